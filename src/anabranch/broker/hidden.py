"""Which entries of one topic nobody may see yet, and which nobody ever will. Pure.

Entries of an attempt are *open* until its batch is decided. Readers stop before the first open one (`stop`), so that
what they are shown never changes behind them. Decided attempts are either visible, and forgotten here, or dropped:
their runs are stepped over like entries that are not there.

A decision counts for the stored state at once (`decide`, and `image` after it), and for readers once it is stored
(`settle`): until then its entries keep readers waiting like open ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anabranch.model.hidden_writes import WriteBatch
from anabranch.model.position import Position

# Entries [first, end) of a ledger.
Run = tuple[int, int, int]


@dataclass(slots=True)
class Attempt:
    """One attempt at a batch, not decided yet. Its runs are in the order of the log."""

    batch: WriteBatch
    runs: list[Run] = field(default_factory=list)

    def note(self, ledger: int, first: int, end: int) -> None:
        if self.runs and self.runs[-1][0] == ledger and first <= self.runs[-1][2]:
            _, before, known = self.runs[-1]
            self.runs[-1] = (ledger, before, max(known, end))
        else:
            self.runs.append((ledger, first, end))

    @property
    def first(self) -> Position | None:
        return self.runs[0][:2] if self.runs else None

    @property
    def entries(self) -> int:
        return sum(end - first for _, first, end in self.runs)


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """What was decided together: the attempts, those of their runs that are dropped, and where all of it begins."""

    attempts: tuple[str, ...]
    dropped: tuple[Run, ...]
    first: Position | None


class HiddenEntries:
    __slots__ = ("_deciding", "_dropped", "attempts")

    def __init__(self) -> None:
        self.attempts: dict[str, Attempt] = {}
        self._dropped: list[Run] = []
        self._deciding: list[Decision] = []

    # -- what is

    @property
    def is_empty(self) -> bool:
        return not (self.attempts or self._dropped or self._deciding)

    @property
    def stop(self) -> Position | None:
        """The first entry that is open; readers stop before it."""
        firsts = [attempt.first for attempt in self.attempts.values()]
        firsts += [decision.first for decision in self._deciding]
        return min((first for first in firsts if first is not None), default=None)

    @property
    def has_open(self) -> bool:
        return self.stop is not None

    @property
    def dropped(self) -> Sequence[Run]:
        """In order, and none touches the next. Another object whenever it has changed."""
        return self._dropped

    def batches(self) -> dict[WriteBatch, list[str]]:
        """The attempts that are open, by batch."""
        found: dict[WriteBatch, list[str]] = {}
        for name, attempt in self.attempts.items():
            found.setdefault(attempt.batch, []).append(name)
        return found

    # -- what happens

    def attach(self, name: str, batch: WriteBatch) -> None:
        if name not in self.attempts:
            self.attempts[name] = Attempt(batch)

    def note(self, name: str, ledger: int, first: int, end: int) -> None:
        """The attempt, which is attached, has written those entries. They come in the order of the log."""
        self.attempts[name].note(ledger, first, end)

    def decide(self, visible: Collection[str], dropped: Collection[str]) -> Decision:
        """Those attempts are open no more. `settle` follows when that is stored."""
        runs: list[Run] = []
        firsts: list[Position] = []
        for names, is_dropped in ((visible, False), (dropped, True)):
            for name in names:
                attempt = self.attempts.pop(name)
                if attempt.first is not None:
                    firsts.append(attempt.first)
                if is_dropped:
                    runs += attempt.runs
        decision = Decision((*visible, *dropped), tuple(merged(runs)), min(firsts, default=None))
        self._deciding.append(decision)
        return decision

    def settle(self, decision: Decision) -> None:
        self._deciding.remove(decision)
        if decision.dropped:
            self._dropped = list(merged([*self._dropped, *decision.dropped]))

    def trim(self, upto: Position) -> None:
        """Nothing below that is kept."""
        if self._dropped and (self._dropped[0][0], self._dropped[0][2]) <= upto:
            self._dropped = [run for run in self._dropped if (run[0], run[2]) > upto]

    # -- storing

    def image(self) -> Mapping[str, Any]:
        """Plain values for a snapshot; what is decided and not stored yet counts as decided."""
        dropped = merged([*self._dropped, *(run for one in self._deciding for run in one.dropped)])
        return {
            "attempts": [
                (name, attempt.batch.write, attempt.batch.batch, flat(attempt.runs))
                for name, attempt in self.attempts.items()
            ],
            "dropped": flat(dropped),
        }

    @classmethod
    def of_image(cls, image: Mapping[str, Any]) -> HiddenEntries:
        hidden = cls()
        for name, write, batch, runs in image["attempts"]:
            hidden.attempts[name] = Attempt(WriteBatch(write, batch), list(unflat(runs)))
        hidden._dropped = list(unflat(image["dropped"]))
        return hidden

    def __eq__(self, other: object) -> bool:
        return self.image() == other.image() if isinstance(other, HiddenEntries) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # It changes in place.

    def replay(self, attempts: Iterable[str], dropped: Iterable[Run]) -> None:
        """A decision read back. What a snapshot holds already may come again."""
        for name in attempts:
            self.attempts.pop(name, None)
        self._dropped = list(merged([*self._dropped, *dropped]))


def merged(runs: Iterable[Run]) -> Iterator[Run]:
    """Sorted, and runs that touch or overlap made one."""
    last: Run | None = None
    for run in sorted(runs):
        if last is not None and run[0] == last[0] and run[1] <= last[2]:
            last = (last[0], last[1], max(last[2], run[2]))
            continue
        if last is not None:
            yield last
        last = run
    if last is not None:
        yield last


def flat(runs: Iterable[Run]) -> list[int]:
    return [number for run in runs for number in run]


def unflat(numbers: Sequence[int]) -> Iterator[Run]:
    for n in range(0, len(numbers), 3):
        yield numbers[n], numbers[n + 1], numbers[n + 2]
