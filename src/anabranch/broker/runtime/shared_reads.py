"""Reads that take long, and that a client may ask for hundreds of times at once: one is under way for each key, and all
that ask during it share the next one. It begins after they asked, so it is as fresh as one of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class SharedReads(Generic[K, V]):
    """`read` makes one read. Those who share its result must not change it."""

    def __init__(self, read: Callable[[K], Awaitable[V]]) -> None:
        self._read = read
        self._under_way: dict[K, asyncio.Task[V]] = {}
        self._next: dict[K, asyncio.Task[V]] = {}

    async def get(self, key: K) -> V:
        reading = self._next.get(key)
        if reading is None:
            # Awaited by everybody who asks before it begins.
            reading = asyncio.create_task(self._after(self._under_way.get(key), key))
            reading.add_done_callback(_look)
            self._next[key] = reading
        return await asyncio.shield(reading)

    async def _after(self, former: asyncio.Task[V] | None, key: K) -> V:
        mine = asyncio.current_task()
        assert mine is not None
        try:
            if former is not None:
                await asyncio.wait((former,))
        finally:
            del self._next[key]
        self._under_way[key] = mine
        try:
            return await self._read(key)
        finally:
            if self._under_way.get(key) is mine:
                del self._under_way[key]


def _look(reading: asyncio.Task[V]) -> None:
    """It is no mistake if everybody who asked has given up waiting."""
    if not reading.cancelled():
        reading.exception()
