"""What the objects of a log say together about its ledgers. Pure.

The writer folds commits as it confirms them, for its checkpoints; a broker that takes ledgers folds those behind a
checkpoint. Both do it here, so that they agree. Commits come in the order of their ordinals, whatever their numbers
are.

What a ledger holds is decided by three rules: a run that lies above the first fence which names the ledger does not
count; a ledger ends where a run of it is missing; and after that, nothing of it counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from anabranch.storage.core import format as fmt
from anabranch.storage.object.core.numbers import FencedLedgers
from anabranch.storage.port import LedgerState

# (number, kind, bytes) of a state record.
StateRow = tuple[int, int, bytes]


@dataclass(slots=True)
class FirstFences:
    """Which number first held a fence for a ledger."""

    whole: int | None = None
    of: dict[int, int] = field(default_factory=dict)

    @staticmethod
    def among(fences: Iterable[tuple[int, FencedLedgers]]) -> FirstFences:
        found = FirstFences()
        for number, fence in sorted(fences, key=lambda one: one[0]):
            found.add(number, fence.ledgers)
        return found

    def add(self, number: int, ledgers: Iterable[int] | None) -> None:
        """Fences come in the order of their numbers."""
        if ledgers is None:
            self.whole = number if self.whole is None else self.whole
            return
        for ledger in ledgers:
            self.of.setdefault(ledger, number)

    def is_void(self, ledger: int, number: int) -> bool:
        """Whether what lies at that number does not count for the ledger."""
        if self.whole is not None and number > self.whole:
            return True
        return number > self.of.get(ledger, number)


@dataclass(slots=True)
class LedgerFold:
    """One ledger: its ends, and its state."""

    namespace: str = ""
    record: str = ""
    entries_end: int = 0
    state_end: int = 0
    # Bytes of the entries.
    size: int = 0
    snapshot: bytes | None = None
    deltas: list[bytes] = field(default_factory=list)
    # A run is missing: the ledger ends there.
    is_cut: bool = False
    # A record could not be read. What follows is kept, and deltas wait for a state in full.
    is_stale: bool = False
    is_damaged: bool = False
    # Messages in the entries; -1 if not known.
    messages: int = 0

    def add_run(
        self,
        first: int,
        entries: int,
        size: int,
        states: Sequence[StateRow],
        *,
        messages: int = 0,
        is_good: bool = True,
    ) -> bool:
        """False if the run does not count, because one before it is missing."""
        follows = first == self.entries_end and (
            not states or states[0][0] == self.state_end or self.is_damaged
        )
        if self.is_cut or not follows:
            self.is_cut = True
            return False
        self.is_damaged = self.is_damaged or not is_good
        self.entries_end = first + entries
        self.size += size
        if self.messages >= 0:
            self.messages += messages
        for number, kind, data in states:
            if kind == fmt.SNAPSHOT:
                self.snapshot, self.deltas, self.is_stale = data, [], False
            else:
                self.is_stale = self.is_stale or number != self.state_end
                if not self.is_stale:
                    self.deltas.append(data)
            self.state_end = number + 1
        return True

    def set_part(self, part: fmt.CheckpointPart) -> None:
        """The state in full, as of the runs so far. It does not count for a ledger of which a run is missing."""
        if self.is_cut or (part.entries_end, part.state_end) != (self.entries_end, self.state_end):
            if not self.is_damaged:
                self.is_cut = True
                return
            self.entries_end, self.state_end = part.entries_end, part.state_end
        self.size, self.messages = part.size, part.messages
        self.snapshot, self.deltas, self.is_stale = part.snapshot, list(part.deltas), False

    @property
    def has_records(self) -> bool:
        return bool(self.entries_end or self.state_end)

    def state(self) -> LedgerState:
        return LedgerState(self.entries_end, self.snapshot, tuple(self.deltas), self.size, self.messages)
