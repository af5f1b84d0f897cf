"""Watches that merge: a bounded set of paths waits for a slow reader, never a queue of events.

Every adapter feeds one WatchTable for each store handle, on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Self

from anabranch.metadata.paths import check_prefix, upwards
from anabranch.metadata.port import Changes

# Above this many waiting paths, one bulk read is cheaper than that many single ones.
PENDING_PATHS_MAX = 1_000


class MergingWatch:
    """The Watch of the port."""

    def __init__(self, table: WatchTable, prefix: str, *, is_armed: bool = True) -> None:
        self.prefix = prefix
        self._table = table
        self._paths: set[str] = set()
        self._is_armed = is_armed
        self._everything = is_armed  # The first item, so that watching and then reading leaves no gap.
        self._is_closed = False
        self._waiter: asyncio.Future[None] | None = None

    def changed(self, path: str) -> None:
        if self._everything or not self._is_armed:
            return
        self._paths.add(path)
        if len(self._paths) > PENDING_PATHS_MAX:
            self.read_everything()
        self._wake()

    def read_everything(self) -> None:
        """The watch counts as armed from here on."""
        self._paths.clear()
        self._is_armed = True
        self._everything = True
        self._wake()

    def armed(self) -> None:
        """From here on every change is told."""
        if not self._is_armed:
            self.read_everything()

    def close(self) -> None:
        self._is_closed = True
        self._table.forget(self)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Changes:
        assert self._waiter is None, "a watch is iterated by one task"
        while not (self._is_closed or self._everything or self._paths):
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._is_closed:
            raise StopAsyncIteration
        changes = Changes(frozenset(self._paths), self._everything)
        self._paths.clear()
        self._everything = False
        return changes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class WatchTable:
    """The watches of one handle, found by prefix: a change costs its depth, not the number of watches."""

    def __init__(self) -> None:
        self._by_prefix: dict[str, dict[MergingWatch, None]] = {}

    def open(self, prefix: str) -> MergingWatch:
        return self.add(prefix, is_armed=True)

    def add(self, prefix: str, *, is_armed: bool) -> MergingWatch:
        """One that is not armed yet says nothing until `armed` or `read_everything`."""
        watch = MergingWatch(self, check_prefix(prefix), is_armed=is_armed)
        self._by_prefix.setdefault(prefix, {})[watch] = None
        return watch

    def forget(self, watch: MergingWatch) -> None:
        at = self._by_prefix.get(watch.prefix, {})
        at.pop(watch, None)
        if not at:
            self._by_prefix.pop(watch.prefix, None)

    def changed(self, paths: Iterable[str]) -> None:
        if not self._by_prefix:
            return
        for path in paths:
            for prefix in upwards(path):
                for watch in self._by_prefix.get(prefix, ()):
                    watch.changed(path)

    def armed(self, prefix: str) -> None:
        for watch in list(self._by_prefix.get(prefix, ())):
            watch.armed()

    def read_everything(self) -> None:
        for watch in self._all():
            watch.read_everything()

    def close(self) -> None:
        for watch in self._all():
            watch.close()

    def _all(self) -> list[MergingWatch]:
        return [watch for watches in self._by_prefix.values() for watch in watches]
