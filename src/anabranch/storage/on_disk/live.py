"""Which entries are still wanted, and so which files are. Pure bookkeeping of what the log's callers reported."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.on_disk.catalog import LogFile


@dataclass(slots=True)
class LiveRange:
    """Entries [first, end) of a ledger are live; `end` is None while its writer may still be at work."""

    incarnation: Incarnation
    first: int
    end: int | None
    namespace: str


@dataclass(frozen=True, slots=True)
class LiveRow:
    ledger: int
    first: int
    end: int
    size: int


class Liveness:
    """Reports nothing as dead until `retain` has been called, except entries that were trimmed or deleted by name."""

    def __init__(self, own: Incarnation) -> None:
        self._own = own
        self._wanted: dict[int, LiveRange] = {}
        # Ledgers deleted while a caller may still want them: before the records have been read, and while ledgers are
        # being taken. After that, every ledger that is not wanted is dead.
        self._dead: set[int] = set()
        self._takes = 0
        self.is_retained = False

    def open(self, ledger: LedgerId, namespace: str) -> None:
        self._wanted[ledger] = LiveRange(self._own, 0, None, namespace)

    def retain(self, live: Iterable[tuple[LedgerId, Incarnation, int, int | None, str]]) -> None:
        # Ledgers taken before the records were read count only if a record names them. Ledgers trimmed or deleted
        # meanwhile stay so: the records may have been read before that.
        before = self._wanted
        self._wanted = {ledger: one for ledger, one in before.items() if one.incarnation == self._own}
        for ledger, incarnation, first, end, namespace in live:
            if ledger not in self._dead:
                old = before.get(ledger)
                self._wanted[ledger] = LiveRange(
                    incarnation, max(first, old.first if old else 0), end, namespace
                )
        self.is_retained = True
        self._forget_dead()

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
        if self.is_retained and not self._takes:
            self._dead.clear()

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
        if self._takes or not self.is_retained:
            self._dead.add(ledger)

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

    def rows(self, file: LogFile) -> list[LiveRow]:
        """The live stretches of a file, with their bytes."""
        found = []
        for ledger, first, count, size in file.index.rows():
            wanted = self._wanted.get(ledger)
            if wanted is None:
                if self.is_retained or ledger in self._dead:
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
