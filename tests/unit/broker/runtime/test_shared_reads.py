"""Reads that are shared: one at a time for each key, and never older than the question."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.broker.runtime.shared_reads import SharedReads


async def test_whoever_asks_before_a_read_begins_shares_it_and_whoever_asks_later_the_next_one() -> None:
    value, reads = 0, 0
    began, may_end = asyncio.Event(), asyncio.Event()

    async def read(key: str) -> tuple[str, int]:
        nonlocal reads
        reads += 1
        found = value
        began.set()
        await may_end.wait()
        return key, found

    shared = SharedReads(read)
    first = [asyncio.create_task(shared.get("a")) for _ in range(100)]
    other = asyncio.create_task(shared.get("b"))
    await began.wait()
    value = 1
    then = [asyncio.create_task(shared.get("a")) for _ in range(100)]
    await asyncio.sleep(0)
    first[0].cancel()
    then[0].cancel()
    may_end.set()
    assert set(await asyncio.gather(*first[1:])) == {("a", 0)}
    assert set(await asyncio.gather(*then[1:])) == {("a", 1)}
    assert await other == ("b", 0)
    assert reads == 3


async def test_an_error_is_everybodys_and_the_next_read_is_made() -> None:
    reads = 0

    async def read(key: str) -> int:
        nonlocal reads
        reads += 1
        if reads == 1:
            raise ValueError(key)
        return reads

    shared = SharedReads(read)
    found = await asyncio.gather(*(shared.get("a") for _ in range(10)), return_exceptions=True)
    assert [str(one) for one in found] == ["a"] * 10
    assert await shared.get("a") == 2
    given_up = asyncio.create_task(shared.get("a"))
    await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    assert await shared.get("a") == 4
