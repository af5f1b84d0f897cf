"""The memory that a client may hold for its producers: messages that have no receipt yet.

Requests are served in their order, whatever their size: small messages do not delay a large one for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Literal, TypeAlias

from anabranch.client.errors import BadArgument, MemoryFull

WhenFull: TypeAlias = Literal["wait", "refuse"]

MEMORY_BYTES_MAX: Final = 64 << 20


class MemoryBudget:
    """The caller calls `take`, then `release`. A message larger than the whole budget passes when nothing else is held.

    `free` may be charged directly while `is_short` is false; it may then go a little below zero.
    """

    __slots__ = ("_is_refusing", "_waiting", "bytes_max", "free")

    def __init__(self, bytes_max: int = MEMORY_BYTES_MAX, when_full: WhenFull = "wait") -> None:
        if when_full not in ("wait", "refuse"):
            raise BadArgument(f"when_full={when_full!r}: choose 'wait' or 'refuse'")
        if bytes_max < 1:
            raise BadArgument("memory_bytes_max must be at least 1")
        self.bytes_max = bytes_max
        self._is_refusing = when_full == "refuse"
        self.free = bytes_max
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def used(self) -> int:
        return self.bytes_max - self.free

    def is_short(self, size: int) -> bool:
        """Whether `take` would have to wait."""
        return self.free < size or bool(self._waiting)

    def would_refuse(self, size: int) -> bool:
        """Whether `take` would raise."""
        return self._is_refusing and self.is_short(size)

    async def take(self, size: int, *, is_begun: bool = False) -> None:
        """Returns once `size` bytes are charged; raises MemoryFull instead of waiting, if so configured, unless the
        caller continues something that `is_begun`."""
        if not self._waiting and self._fits(size):
            self.free -= size
            return
        if self._is_refusing and not is_begun:
            raise MemoryFull(
                f"{self.used} of {self.bytes_max} bytes are held by messages without a receipt: wait for some, "
                "or allow more with memory_bytes_max"
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (size, turn)
        self._waiting.append(waiter)
        try:
            await turn
        except BaseException:
            if not turn.cancelled():
                self.release(size)  # Charged, then cancelled before the task could run.
            elif waiter in self._waiting:
                self._waiting.remove(waiter)
                self._serve()
            raise

    def release(self, size: int) -> None:
        self.free += size
        if self._waiting:
            self._serve()

    def _fits(self, size: int) -> bool:
        return size <= self.free or self.free >= self.bytes_max

    def _serve(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            if not turn.done():
                self.free -= size
                turn.set_result(None)
