from __future__ import annotations

import asyncio

import pytest

from anabranch.metadata.errors import StoreUnavailable
from anabranch.metadata.memory import MemoryMetadata
from anabranch.metadata.port import SessionState


async def test_time_stands_still_while_the_clock_runs_back() -> None:
    ticks = iter([1000, 2000, 500, 1500, 2500])
    store = await MemoryMetadata(lambda: next(ticks)).connect()
    assert [await store.now_ms() for _ in range(5)] == [1000, 2000, 2000, 2000, 2500]


async def test_a_reply_lost_on_its_way_leaves_the_write_done() -> None:
    tree = MemoryMetadata(lambda: 0)
    store, other = await tree.connect(), await tree.connect()
    with other.watch("/a") as watch:
        await anext(watch)
        writing = asyncio.ensure_future(store.put("/a", b"x"))
        await anext(watch)
        store.disconnect()
        with pytest.raises(StoreUnavailable):
            await writing
    assert await other.exists("/a")


async def test_a_lost_session_is_refused_everything_until_it_is_replaced() -> None:
    tree = MemoryMetadata(lambda: 0)
    store, other = await tree.connect(), await tree.connect()
    await store.expire_session()
    with pytest.raises(StoreUnavailable):
        await store.create("/late", b"", ephemeral=True)
    assert not await other.exists("/late")
    await store.reconnect()
    assert (await store.create("/late", b"", ephemeral=True)).owner == store.session.id


async def test_a_cut_handle_learns_of_its_sessions_end_only_when_it_returns() -> None:
    store = await MemoryMetadata(lambda: 0).connect()
    store.disconnect()
    await store.expire_session()
    states = [store.session.state]
    store.session.on_change(states.append)
    await store.reconnect()
    await store.get("/a")
    assert states == [SessionState.IN_DOUBT, SessionState.LOST, SessionState.CONNECTED]
