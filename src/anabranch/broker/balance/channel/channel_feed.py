"""The newest accepted changes of the bundle state channel at the leader, for the other brokers to read.

Positions are those of the topic's entries, so that a broker that has read them from one leader goes on at the next one.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from anabranch.balance.core.states import BundleChange
from anabranch.model.position import BEFORE_ALL, Position

# How many changes are kept. A broker that is further behind reads all states.
CHANGES_MAX: Final = 10_000


class ChannelFeed:
    """Has every change after `first`, up to `end`."""

    def __init__(self, changes_max: int = CHANGES_MAX) -> None:
        self._changes_max = changes_max
        self.first = self.end = BEFORE_ALL
        self._positions: list[Position] = []
        self._changes: list[BundleChange] = []
        self._waiting: dict[asyncio.Future[None], None] = {}  # In the order in which they came.

    def restart(self, at: Position) -> None:
        """The changes before that position are not known."""
        self.first = self.end = at
        self._positions.clear()
        self._changes.clear()

    def add(self, at: Position, change: BundleChange) -> None:
        self._positions.append(at)
        self._changes.append(change)
        if len(self._positions) > 2 * self._changes_max:
            gone = len(self._positions) - self._changes_max
            self.first = self._positions[gone - 1]
            del self._positions[:gone]
            del self._changes[:gone]
        self.passed(at)

    def passed(self, at: Position) -> None:
        """Everything up to that position has been read."""
        self.end = at
        self.wake()

    def after(self, since: Position, changes_max: int) -> tuple[Position, Sequence[BundleChange]] | None:
        """The first changes after that position, and the position of the last one; None if not all of them are here."""
        if not self.first <= since <= self.end:
            return None
        first = bisect_right(self._positions, since)
        last = first + changes_max
        at = self._positions[last - 1] if last < len(self._positions) else self.end
        return at, self._changes[first:last]

    async def beyond(self, since: Position, wait_s: float) -> None:
        """Returns once there is more after that position, after that time, or when woken."""
        if self.end > since:
            return
        news = asyncio.get_running_loop().create_future()
        self._waiting[news] = None
        try:
            await asyncio.wait([news], timeout=wait_s)
        finally:
            self._waiting.pop(news, None)

    def wake(self) -> None:
        for news in self._waiting:
            if not news.done():
                news.set_result(None)
