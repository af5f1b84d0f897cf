"""The simulator's metadata servers that are behind: how far, and what brings a session up to date."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from anabranch.metadata.errors import AlreadyExists, VersionConflict
from anabranch.simulation.machine.loop import SimLoop
from simulation.behind import stores

LAG_S = 0.2


def play(scenario: Coroutine[Any, Any, None]) -> None:
    loop = SimLoop()
    loop.run_until_complete(scenario)
    loop.close()


async def behind() -> None:
    writer, reader = await stores(LAG_S)
    await writer.put("/f/a", b"1")
    assert await reader.get("/f/a") is None
    assert not await reader.exists("/f/a")
    assert await reader.children("/f") == []
    assert await reader.scan("/f") == []
    await asyncio.sleep(LAG_S)
    found = await reader.get("/f/a")
    assert found is not None
    assert found.value == b"1"
    assert await reader.children("/f") == ["a"]
    await writer.delete("/f/a")
    assert await reader.scan("/f") == [("/f/a", found)]
    await asyncio.sleep(2 * LAG_S)
    assert await reader.scan("/f") == []


async def fresh() -> None:
    writer, reader = await stores(LAG_S)
    written = await writer.put("/a", b"1")
    await writer.put("/b", b"1")
    assert await reader.get("/a", fresh=True) == written
    assert await reader.exists("/b"), "a fresh read brings the session up to date"
    await writer.delete("/b")
    assert await reader.exists("/b")
    with pytest.raises(AlreadyExists):
        await reader.create("/a", b"")
    assert not await reader.exists("/b"), "so does a write, refused or not"
    await writer.put("/a", b"2")
    with pytest.raises(VersionConflict):
        await reader.put("/a", b"", if_version=0)
    found = await reader.get("/a")
    assert found is not None
    assert found.value == b"2"


async def watched() -> None:
    writer, reader = await stores(LAG_S)
    with reader.watch("/w") as watch:
        assert (await anext(watch)).everything
        await writer.put("/w/a", b"1")
        told = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(LAG_S / 2)
        assert not told.done()
        assert (await told).paths == {"/w", "/w/a"}
        assert await reader.exists("/w/a")
        await writer.put("/w/b", b"1")
        await writer.put("/w/c", b"1")
        await reader.put("/mine", b"")
        told = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        assert told.done(), "whoever reads something new was told of it before"
        assert (await told).paths == {"/w/b", "/w/c"}


def test_plain_reads_are_behind_by_the_lag_and_no_more() -> None:
    play(behind())


def test_fresh_reads_and_writes_bring_a_session_up_to_date() -> None:
    play(fresh())


def test_a_watch_names_a_change_when_its_server_hears_of_it() -> None:
    play(watched())
