"""Blocks of objects that were read: each is asked for once, shared by all readers, and kept while there is room.

Commits hold many topics' entries, so a reader of one topic reads blocks that readers of others need as well. A reader
that holds an entry keeps its block in memory, whatever is evicted.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from anabranch.storage.object.medium import ObjectMedium
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.object.requests import asked

Block = tuple[str, int]


class BlockCache:
    def __init__(self, medium: ObjectMedium, policy: ObjectLogPolicy) -> None:
        self._medium = medium
        self._policy = policy
        self._kept: OrderedDict[Block, memoryview] = OrderedDict()
        # Awaited by those that want them, and by `close`.
        self._loading: dict[Block, asyncio.Task[memoryview]] = {}
        self.bytes = 0
        self.hits = 0
        self.misses = 0

    async def read(self, key: str, start: int, length: int) -> memoryview:
        """That part of the object, or less of it if the object ends before. A copy only where it spans blocks."""
        size = self._policy.block_bytes
        first, last = start // size, (start + max(length, 1) - 1) // size
        if first == last:
            block = await self._block((key, first))
            return block[start - first * size : start - first * size + length]
        parts = await asyncio.gather(*(self._block((key, at)) for at in range(first, last + 1)))
        return memoryview(b"".join(parts))[start - first * size : start - first * size + length]

    def ask(self, key: str, at: int) -> None:
        """Reads a block ahead, if it is not there."""
        block = (key, at)
        if block not in self._kept and block not in self._loading:
            self._load(block)

    async def _block(self, block: Block) -> memoryview:
        found = self._kept.get(block)
        if found is not None:
            self._kept.move_to_end(block)
            self.hits += 1
            return found
        task = self._loading.get(block)
        if task is None:
            self.misses += 1
            task = self._load(block)
        else:
            self.hits += 1
        # One reader that goes away does not take the block from the others.
        return await asyncio.shield(task)

    def _load(self, block: Block) -> asyncio.Task[memoryview]:
        task = self._loading[block] = asyncio.create_task(self._get(block))
        task.add_done_callback(lambda done: self._loaded(block, done))
        return task

    async def _get(self, block: Block) -> memoryview:
        key, at = block
        size = self._policy.block_bytes
        return memoryview(await asked(lambda: self._medium.get(key, at * size, size), self._policy))

    def _loaded(self, block: Block, task: asyncio.Task[memoryview]) -> None:
        self._loading.pop(block, None)
        # An error is raised to those that wait; a block read ahead may have none.
        if task.cancelled() or task.exception() is not None:
            return
        self._kept[block] = task.result()
        self.bytes += len(task.result())
        while self.bytes > self._policy.block_cache_bytes and len(self._kept) > 1:
            _, gone = self._kept.popitem(last=False)
            self.bytes -= len(gone)

    async def close(self) -> None:
        tasks = list(self._loading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._kept.clear()
        self.bytes = 0
