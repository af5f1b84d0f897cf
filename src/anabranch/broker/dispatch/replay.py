"""Positions to be read again, the lowest first and each once. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable
from heapq import heapify, heappop, heappush

from anabranch.model.position import Position

# (ledger, first entry, count): consecutive entries that can be read at once.
ReplayRun = tuple[int, int, int]


class ReplayQueue:
    """A heap that ignores positions it already holds."""

    __slots__ = ("_heap", "_known")

    def __init__(self) -> None:
        self._heap: list[Position] = []
        self._known: set[Position] = set()

    def __len__(self) -> int:
        return len(self._heap)

    def __contains__(self, at: Position) -> bool:
        return at in self._known

    def add(self, at: Position) -> None:
        if at not in self._known:
            self._known.add(at)
            heappush(self._heap, at)

    def add_all(self, positions: Iterable[Position]) -> None:
        new = [at for at in dict.fromkeys(positions) if at not in self._known]
        if len(new) <= len(self._heap) >> 4:
            for at in new:
                heappush(self._heap, at)
        else:
            # Very many entries come back at once when their consumer leaves.
            self._heap += new
            heapify(self._heap)
        self._known.update(new)

    def take_run(self, count_max: int, without: Container[Position] = ()) -> ReplayRun | None:
        """Removes and returns the first run of consecutive entries, as far as it has none of `without`. None if the
        queue is empty or begins with one of these."""
        if not self._heap or self._heap[0] in without:
            return None
        ledger, first = heappop(self._heap)
        self._known.discard((ledger, first))
        count = 1
        while count < count_max and self._heap and self._heap[0] == (ledger, first + count):
            if self._heap[0] in without:
                break
            self._known.discard(heappop(self._heap))
            count += 1
        return ledger, first, count

    def take_those(self, which: Container[Position], count_max: int) -> list[Position]:
        """Removes and returns the first entries, of one ledger, as long as they are some of `which`."""
        found: list[Position] = []
        while len(found) < count_max and self._heap and self._heap[0] in which:
            if found and found[0][0] != self._heap[0][0]:
                break
            found.append(heappop(self._heap))
            self._known.discard(found[-1])
        return found

    def drop_below(self, at: Position) -> None:
        if self._heap and self._heap[0] < at:
            self._heap = [place for place in self._heap if place >= at]
            heapify(self._heap)
            self._known = set(self._heap)

    def clear(self) -> None:
        self._heap.clear()
        self._known.clear()
