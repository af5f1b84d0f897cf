"""Records are followed soon after they change, however many change at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

import pytest

from anabranch.metadata.embedded import Op
from anabranch.metadata.errors import StoreUnavailable
from anabranch.metadata.followed import READ_AT_ONCE, FollowedRecords
from anabranch.metadata.memory import MemoryMetadata
from anabranch.metadata.port import Versioned

T = TypeVar("T")


class FarMetadata(MemoryMetadata):
    """Reads of nodes are answered together, each so many turns of the loop after it was asked."""

    def __init__(self) -> None:
        super().__init__(lambda: 0)
        self.turns = 0
        self.reads = self.under_way = self.most_under_way = 0
        self.refuse = 0

    async def run(
        self,
        op: Op[T],
        *,
        node: str | None = None,
        folder: str | None = None,
        writes: str | None = None,
        always: bool = False,
    ) -> T:
        if node is not None and self.turns:
            self.reads += 1
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
            for _ in range(self.turns):
                await asyncio.sleep(0)
            self.under_way -= 1
            if self.refuse:
                self.refuse -= 1
                raise StoreUnavailable("not now")
        return await super().run(op, node=node, folder=folder, writes=writes, always=always)


@pytest.fixture
async def shared() -> FarMetadata:
    return FarMetadata()


class Followed:
    """What was read, and in how many steps."""

    def __init__(self) -> None:
        self.records: dict[str, bytes] = {}
        self.steps = 0

    def read(self, records: object) -> None:
        assert isinstance(records, dict)
        self.steps += 1
        for path, node in records.items():
            self.records.pop(path, None)
            if isinstance(node, Versioned):
                self.records[path] = node.value

    async def until(self, count: int, value: bytes) -> int:
        """In how many turns of the loop it has so many records with that value."""
        turns = 0
        while sum(found == value for found in self.records.values()) != count:
            await asyncio.sleep(0)
            turns += 1
            assert turns < 100_000
        return turns


@pytest.fixture
async def followed(shared: FarMetadata) -> AsyncIterator[Followed]:
    found = Followed()
    store = await shared.connect()
    following = FollowedRecords(store, "/all", found.read)
    await following.start()
    yield found
    await following.close()
    await store.close()


async def change(shared: FarMetadata, count: int, value: bytes) -> None:
    other = await shared.connect()
    await asyncio.gather(*(other.put(f"/all/{number}", value) for number in range(count)))


async def test_hundreds_of_changes_at_once_are_read_at_the_same_time(
    shared: FarMetadata, followed: Followed
) -> None:
    count = 5 * READ_AT_ONCE
    await change(shared, count, b"1")
    await followed.until(count, b"1")
    shared.turns = 50
    await change(shared, count, b"2")
    turns = await followed.until(count, b"2")
    assert turns < 10 * (shared.turns + 10), "one after the other they take 16,000"
    assert shared.most_under_way == READ_AT_ONCE, "no more than the store shall have to hold"


async def test_a_read_that_is_refused_is_repeated_and_nothing_is_left_out(
    shared: FarMetadata, followed: Followed
) -> None:
    count = 3 * READ_AT_ONCE
    shared.turns, shared.refuse = 2, 5
    await change(shared, count, b"1")
    async with asyncio.timeout(10):
        while len(followed.records) < count:  # noqa: ASYNC110  # The retry's wait is real time.
            await asyncio.sleep(0.01)
    assert shared.refuse == 0
    assert shared.under_way == 0
