"""Which entries are still wanted, and so which files are. Pure bookkeeping of what the log's callers reported.

A ledger is wanted because it is written here, because its topic was opened here (`know`), or because a record named it
when all records were read (`retain`). Where the log has no other users, every other ledger is dead once the records
have been read. Where several brokers share it, a ledger of another broker is dead only once its record was read and
does not name it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.port import LiveLedger


class RowIndex(Protocol):
    """The index of a file, as far as it is needed here."""

    def rows(self) -> Iterator[tuple[int, int, int, int]]:
        """(ledger, first entry, count, bytes) of each row."""

    def places(
        self, ledger: int, entry: int, count_max: int
    ) -> tuple[int, Sequence[int], Sequence[int]] | None: ...


class IndexedFile(Protocol):
    @property
    def index(self) -> RowIndex: ...


@dataclass(slots=True)
class LiveRange:
    """Entries [first, end) of a ledger are live; `end` is None while its writer may still be at work."""

    incarnation: Incarnation
    first: int
    end: int | None
    namespace: str
    # The path of the topic's record; "" if unknown.
    record: str = ""
    # False for a ledger that no record names yet: what compaction writes is named when it is complete.
    is_named: bool = True
    # The record was read when the topic was opened here: later than any scan of all records that is still under way.
    is_known: bool = False


@dataclass(frozen=True, slots=True)
class LiveRow:
    ledger: int
    first: int
    end: int
    size: int


class Liveness:
    """Reports nothing as dead until `retain` has been called, except entries that were trimmed or deleted by name."""

    def __init__(self, own: Incarnation, *, is_shared: bool = False) -> None:
        self._own = own
        self._is_shared = is_shared
        self._wanted: dict[int, LiveRange] = {}
        # Ledgers deleted while a caller may still want them: before the records have been read, and while ledgers are
        # being taken. After that, every ledger that is not wanted is dead. In a shared log, every ledger known to be
        # dead of which there may still be a file.
        self._dead: set[int] = set()
        self._takes = 0
        self.is_retained = False

    def open(self, ledger: LedgerId, namespace: str, record: str = "", *, is_named: bool = True) -> None:
        self._wanted[ledger] = LiveRange(self._own, 0, None, namespace, record, is_named)

    def know(self, live: Iterable[LiveLedger]) -> None:
        """A record that was stored just now names these ledgers."""
        for one in live:
            self._dead.discard(one.ledger)
            self._wanted[one.ledger] = self._range(one, self._wanted.get(one.ledger), is_known=True)

    def hear(self, one: LiveLedger) -> bool:
        """A record named the ledger a moment ago; what was trimmed or deleted here since then stays so. True if that
        changes which entries live."""
        if one.ledger in self._dead:
            return False
        old = self._wanted.get(one.ledger)
        new = self._range(one, old, is_known=old is not None and old.is_known)
        self._wanted[one.ledger] = new
        return old is None or (old.first, old.end) != (new.first, new.end)

    def retain(self, live: Iterable[LiveLedger]) -> None:
        # Ledgers taken before the records were read count only if a record names them. Ledgers trimmed or deleted
        # meanwhile stay so: the records may have been read before that. Topics opened meanwhile were read later.
        before = self._wanted
        self._wanted = {
            ledger: one for ledger, one in before.items() if one.incarnation == self._own or one.is_known
        }
        for one in live:
            old = before.get(one.ledger)
            if one.ledger not in self._dead and not (old is not None and old.is_known):
                self._wanted[one.ledger] = self._range(one, old, is_known=False)
        self.is_retained = True
        self._forget_dead()

    @staticmethod
    def _range(one: LiveLedger, old: LiveRange | None, *, is_known: bool) -> LiveRange:
        first = max(one.first, old.first if old else 0)
        return LiveRange(one.incarnation, first, one.end, one.namespace, one.record, is_known=is_known)

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """Ledgers deleted inside this context are not wanted by the caller that took them."""
        self._takes += 1
        try:
            yield
        finally:
            self._takes -= 1
            self._forget_dead()

    def _forget_dead(self) -> None:
        if self.is_retained and not self._takes and not self._is_shared:
            self._dead.clear()

    def forget(self, ledgers: Iterable[int]) -> None:
        """Nothing is left of these dead ledgers in a shared log."""
        self._dead.difference_update(ledgers)

    @property
    def dead(self) -> Collection[int]:
        return self._dead

    @property
    def remembered(self) -> int:
        """For how many ledgers anything is remembered."""
        return len(self._wanted) + len(self._dead)

    def want(self, ledger: LedgerId, incarnation: Incarnation) -> None:
        """The ledger was taken: a record names it that was written after `retain`."""
        if ledger not in self._dead:
            self._wanted.setdefault(ledger, LiveRange(incarnation, 0, None, ""))

    def trim(self, ledger: LedgerId, incarnation: Incarnation, first: int) -> None:
        wanted = self._wanted.setdefault(ledger, LiveRange(incarnation, 0, None, ""))
        wanted.first = max(wanted.first, first)

    def delete(self, ledger: LedgerId) -> None:
        self._wanted.pop(ledger, None)
        if self._takes or self._is_shared or not self.is_retained:
            self._dead.add(ledger)

    def find(self, ledger: int) -> LiveRange | None:
        return self._wanted.get(ledger)

    def of(self, incarnation: Incarnation) -> list[tuple[int, LiveRange]]:
        """The wanted ledgers of an incarnation."""
        return [(ledger, one) for ledger, one in self._wanted.items() if one.incarnation == incarnation]

    def namespace(self, ledger: int) -> str:
        wanted = self._wanted.get(ledger)
        return wanted.namespace if wanted else ""

    def is_gone(self, ledger: int, entry: int) -> bool:
        """True if the entry has been trimmed or its ledger deleted: it must not be served, even if a file still has
        it."""
        wanted = self._wanted.get(ledger)
        if wanted is None:
            return ledger in self._dead or self.is_retained
        return entry < wanted.first

    def incarnations(self) -> set[Incarnation]:
        return {wanted.incarnation for wanted in self._wanted.values()}

    def rows(self, file: IndexedFile) -> list[LiveRow]:
        """The live stretches of a file, with their bytes."""
        found = []
        is_rest_dead = self.is_retained and not self._is_shared
        for ledger, first, count, size in file.index.rows():
            wanted = self._wanted.get(ledger)
            if wanted is None:
                if is_rest_dead or ledger in self._dead:
                    continue
                found.append(LiveRow(ledger, first, first + count, size))
                continue
            start = max(first, wanted.first)
            stop = first + count if wanted.end is None else min(first + count, wanted.end)
            if start >= stop:
                continue
            if stop - start < count:
                places = file.index.places(ledger, start, stop - start)
                assert places is not None
                size = sum(places[2])
            found.append(LiveRow(ledger, start, stop, size))
        return found
