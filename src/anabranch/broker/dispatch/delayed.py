"""Entries that must not be delivered yet, by the time when they become due. Pure.

Kept in memory only: after a restart the entries are unacknowledged, so they are read and found to be early again.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from anabranch.model.position import Position


class DelayedEntries:
    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, Position]] = []

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_due_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def add(self, at: Position, due_ms: int) -> None:
        heappush(self._heap, (due_ms, at))

    def take_due(self, now_ms: int, count_max: int) -> list[Position]:
        """Removes and returns up to that many due entries, the earliest first."""
        due: list[Position] = []
        while self._heap and self._heap[0][0] <= now_ms and len(due) < count_max:
            due.append(heappop(self._heap)[1])
        return due

    def drop_below(self, at: Position) -> None:
        self._heap = [one for one in self._heap if one[1] >= at]
        heapify(self._heap)

    def clear(self) -> None:
        self._heap.clear()
