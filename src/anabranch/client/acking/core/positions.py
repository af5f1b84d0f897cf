"""How far a consumer's application has come in each segment: what one acknowledgement covers. Pure.

Messages are numbered in the order in which they are given out, over all segments of a consumer, and over all topics of
a consumer that reads several. Acknowledging a number acknowledges, in every segment, the last entry that was given out
before that number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
P = TypeVar("P")


class Vector(Generic[K, P]):
    """For each segment, the places of entries given out and not acknowledged, each with the number of its last
    message."""

    def __init__(self) -> None:
        self._given: dict[K, deque[tuple[int, P]]] = {}
        # Entries to be acknowledged individually, because entries before them are not given out yet.
        self._alone: dict[K, deque[tuple[int, P]]] = {}

    def given_alone(self, segment: K, last_number: int, place: P) -> None:
        """Like `given`, for an entry whose acknowledgement must not cover the entries before it."""
        self._alone.setdefault(segment, deque()).append((last_number, place))

    def given(self, segment: K, last_number: int, place: P) -> None:
        """Notes that an entry is given out. Numbers rise."""
        entries = self._given.get(segment)
        if entries is None:
            entries = self._given[segment] = deque()
        entries.append((last_number, place))

    def take_back(self, segment: K, number: int) -> None:
        """Notes that this message of the segment, and those behind it there, were not given out after all.

        An entry that has such messages is dropped as a whole: the caller notes again which of its messages were given
        out."""
        for entries in (self._given.get(segment), self._alone.get(segment)):
            while entries and entries[-1][0] >= number:
                entries.pop()

    def forget(self, segment: K) -> int | None:
        """Forgets the segment's entries: they are delivered again, to this consumer or another.

        Returns the first number whose acknowledgement includes unacknowledged entries of the segment.
        """
        forgotten = [entries.pop(segment, None) for entries in (self._given, self._alone)]
        return min((entries[0][0] for entries in forgotten if entries), default=None)

    def is_out(self, segment: K) -> bool:
        """Whether entries of the segment are given out and not acknowledged."""
        return bool(self._given.get(segment) or self._alone.get(segment))

    def up_to(self, number: int) -> list[tuple[K, P]]:
        """For each segment the last entry that this message's acknowledgement covers; returned entries are forgotten
        here."""
        found: list[tuple[K, P]] = []
        for segment, entries in self._given.items():
            last: P | None = None
            while entries and entries[0][0] <= number:
                last = entries.popleft()[1]
            if last is not None:
                found.append((segment, last))
        return found

    def alone_up_to(self, number: int) -> list[tuple[K, P]]:
        """The entries to be acknowledged individually with this message; returned entries are forgotten here."""
        found: list[tuple[K, P]] = []
        for segment, entries in self._alone.items():
            while entries and entries[0][0] <= number:
                found.append((segment, entries.popleft()[1]))
        return found
