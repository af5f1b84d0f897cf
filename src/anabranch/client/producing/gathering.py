"""When a batch that is not full is sent: at the end of the loop's turn if its segment is idle, else after a delay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from anabranch.client.producing.core.lanes import Lane


class Gathering:
    """Calls `cut` for each lane whose messages have been gathered for long enough. Receipts cause them to be sent
    earlier."""

    __slots__ = ("_cut", "_delay_s", "_idle", "_late", "_loop", "_soon", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, delay_s: float, cut: Callable[[Lane], None]) -> None:
        self._loop = loop
        self._delay_s = delay_s
        self._cut = cut
        self._idle: list[Lane] = []
        self._late: list[Lane] = []
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begun(self, lane: Lane, *, is_idle: bool) -> None:
        """Notes that the lane has its first message. `is_idle`: nothing of it is under way."""
        if is_idle:
            self._idle.append(lane)
            if self._soon is None:
                self._soon = self._loop.call_soon(self._turn_ended)
        else:
            self._late.append(lane)
            if self._timer is None:
                self._timer = self._loop.call_later(self._delay_s, self._delay_passed)

    def _turn_ended(self) -> None:
        self._soon = None
        lanes, self._idle = self._idle, []
        for lane in lanes:
            self._cut(lane)

    def _delay_passed(self) -> None:
        self._timer = None
        now = self._loop.time()
        lanes, self._late = self._late, []
        for lane in lanes:
            # Batches that began a little later are sent along with the others, rather than each by its own timer.
            if now - lane.since >= self._delay_s / 2:
                self._cut(lane)
            elif lane.items:
                self._late.append(lane)
        if self._late:
            wait_s = min(lane.since for lane in self._late) + self._delay_s - now
            self._timer = self._loop.call_later(wait_s, self._delay_passed)

    def close(self) -> None:
        for handle in (self._soon, self._timer):
            if handle is not None:
                handle.cancel()
        self._soon = self._timer = None
        self._idle, self._late = [], []
