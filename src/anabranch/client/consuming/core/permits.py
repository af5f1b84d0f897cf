"""How many messages a broker may still send to one consumer, and when to allow more. Pure.

Brokers count messages, and never cut a batch: they may send more than allowed, and their count is then below zero. A
window starts small and doubles each time it is refilled, so that a topic of large messages causes no flood.
"""

from __future__ import annotations

from typing import Final

FIRST: Final = 64


class Window:
    """The permits of one subscription on one connection."""

    __slots__ = ("_allowed", "_low", "_queued", "_size")

    def __init__(self) -> None:
        self._allowed = 0  # Messages that the broker may still send.
        self._queued = 0  # Messages that have arrived and are not taken.
        self._size = FIRST
        self._low = 0  # At this many allowed and queued messages, it is time for more.

    def arrived(self, messages: int) -> None:
        self._allowed -= messages
        self._queued += messages

    def taken(self, messages: int) -> bool:
        """The application has these messages, or never will; returns whether it is time for more."""
        self._queued -= messages
        return self._allowed + self._queued <= self._low

    def refill(self, limit: int) -> int:
        """How many more to allow now, so that at most `limit` are under way or queued; 0 if too few to send a request
        for."""
        size = min(self._size, limit)
        missing = size - self._allowed - self._queued
        if missing <= 0 or missing < size // 2:
            self._low = size - max(1, size // 2)
            return 0
        self._allowed += missing
        if size == self._size:
            self._size = min(size * 2, limit)
        size = min(self._size, limit)
        self._low = size - max(1, size // 2)
        return missing

    def shrink(self) -> None:
        """There is no room for as many: starts small again."""
        self._size = FIRST
