"""Which entries of one topic are still hidden from readers, and which are dropped for good. Pure.

Entries of an attempt are *open* until its batch is decided. Readers stop before the first open one (`stop`), so that
what they have read never changes. Decided attempts are either visible, and forgotten here, or dropped: readers skip
their runs as if the entries did not exist.

A decision counts for the stored state at once (`decide`, and `image` after it), and for readers once it is stored
(`settle`): until then its entries block readers like open ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, KeysView, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from anabranch.model.entry_runs import EntryRuns, GrowingRuns
from anabranch.model.hidden_writes import WriteBatch
from anabranch.model.position import Position


@dataclass(slots=True)
class Attempt:
    """One undecided attempt at a batch."""

    batch: WriteBatch
    runs: GrowingRuns = field(default_factory=GrowingRuns)
    # Its stored form and its number of entries, cached; None if it has changed since. A batch may have a hundred
    # thousand finished attempts.
    _image: tuple[Any, ...] | None = None
    _entries: int | None = None

    @property
    def first(self) -> Position | None:
        return self.runs.first

    @property
    def entries(self) -> int:
        if self._entries is None:
            self._entries = self.runs.entries
        return self._entries

    def note(self, ledger: int, first: int, end: int) -> None:
        self.runs.add(ledger, first, end)
        self._image = self._entries = None

    def image(self, name: str) -> tuple[Any, ...]:
        if self._image is None:
            self._image = (name, self.batch.write, self.batch.batch, self.runs.packed())
        return self._image


@dataclass(frozen=True, slots=True, eq=False)
class HiddenDecision:
    """A joint decision: the attempts, those of their runs that are dropped, and the position where all of it begins."""

    attempts: tuple[str, ...]
    dropped: EntryRuns
    first: Position | None


class HiddenEntries:
    __slots__ = ("_batches", "_deciding", "_dropped", "_firsts", "attempts")

    def __init__(self) -> None:
        self.attempts: dict[str, Attempt] = {}
        self._batches: dict[WriteBatch, dict[str, None]] = {}
        # The first position of each attempt that has entries. In that order, which is their order of arrival.
        self._firsts: dict[str, Position] = {}
        self._dropped = EntryRuns()
        self._deciding: list[HiddenDecision] = []

    # -- queries

    @property
    def is_empty(self) -> bool:
        return not (self.attempts or self._dropped or self._deciding)

    @property
    def stop(self) -> Position | None:
        """The first open entry; readers stop before it."""
        firsts = [decision.first for decision in self._deciding if decision.first is not None]
        firsts += islice(self._firsts.values(), 1)
        return min(firsts, default=None)

    @property
    def first_open(self) -> str | None:
        """The attempt whose first entry readers stop before; None if they wait for none."""
        name = next(iter(self._firsts), None)
        return name if name is not None and self._firsts[name] == self.stop else None

    @property
    def has_open(self) -> bool:
        return self.stop is not None

    @property
    def dropped(self) -> EntryRuns:
        """A new object whenever it has changed."""
        return self._dropped

    def batches(self) -> dict[WriteBatch, list[str]]:
        """The open attempts, by batch."""
        return {batch: list(names) for batch, names in self._batches.items()}

    @property
    def open_batches(self) -> KeysView[WriteBatch]:
        """The batches that have open attempts."""
        return self._batches.keys()

    def of_batch(self, batch: WriteBatch) -> list[str]:
        """The open attempts of the batch."""
        return list(self._batches.get(batch, ()))

    # -- changes

    def attach(self, name: str, batch: WriteBatch) -> None:
        if name not in self.attempts:
            self._add(name, Attempt(batch))

    def _add(self, name: str, attempt: Attempt) -> None:
        self.attempts[name] = attempt
        self._batches.setdefault(attempt.batch, {})[name] = None

    def _remove(self, name: str) -> Attempt | None:
        attempt = self.attempts.pop(name, None)
        if attempt is not None:
            self._firsts.pop(name, None)
            names = self._batches[attempt.batch]
            del names[name]
            if not names:
                del self._batches[attempt.batch]
        return attempt

    def note(self, name: str, ledger: int, first: int, end: int) -> None:
        """Notes entries that the attached attempt has written, in the order of the log."""
        self.attempts[name].note(ledger, first, end)
        if name not in self._firsts:
            self._firsts[name] = (ledger, first)

    def decide(self, visible: Collection[str], dropped: Collection[str]) -> HiddenDecision:
        """Ends those attempts. `settle` follows when that is stored."""
        runs: list[GrowingRuns] = []
        firsts: list[Position] = []
        for names, is_dropped in ((visible, False), (dropped, True)):
            for name in names:
                attempt = self._remove(name)
                if attempt is None:
                    raise KeyError(name)
                if attempt.first is not None:
                    firsts.append(attempt.first)
                if is_dropped:
                    runs.append(attempt.runs)
        decision = HiddenDecision((*visible, *dropped), EntryRuns.gathered(runs), min(firsts, default=None))
        self._deciding.append(decision)
        return decision

    def settle(self, decision: HiddenDecision) -> None:
        self._deciding.remove(decision)
        if decision.dropped:
            self._dropped = self._dropped.merged(decision.dropped)

    def trim(self, upto: Position) -> None:
        """Forgets everything below `upto`, which has been trimmed."""
        self._dropped = self._dropped.from_(upto)

    # -- storing

    def image(self) -> Mapping[str, Any]:
        """Plain values for a snapshot; decisions that are not stored yet are included."""
        dropped = self._dropped.merged(*(one.dropped for one in self._deciding))
        return {
            "attempts": [attempt.image(name) for name, attempt in self.attempts.items()],
            "dropped": dropped.packed(),
        }

    @classmethod
    def of_image(cls, image: Mapping[str, Any]) -> HiddenEntries:
        hidden = cls()
        for name, write, batch, runs in image["attempts"]:
            attempt = Attempt(
                WriteBatch(write, batch), GrowingRuns.unpacked(runs), (name, write, batch, runs)
            )
            hidden._add(name, attempt)
        firsts = [(at, name) for name, one in hidden.attempts.items() if (at := one.first) is not None]
        hidden._firsts = {name: at for at, name in sorted(firsts)}
        hidden._dropped = EntryRuns.unpacked(image["dropped"])
        return hidden

    def __eq__(self, other: object) -> bool:
        return self.image() == other.image() if isinstance(other, HiddenEntries) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # It changes in place.

    def replay(self, attempts: Iterable[str], dropped: EntryRuns) -> None:
        """Applies a decision read back from the log. It may be in the snapshot already."""
        for name in attempts:
            self._remove(name)
        self._dropped = self._dropped.merged(dropped)
