"""One connection and those who share it."""

from __future__ import annotations

import asyncio
from typing import Any

from anabranch.client import ClientConnection
from anabranch.client.transport.connection import PartKind
from unit.client.scripted import ScriptedBroker


class Part:
    """Takes what comes, or cannot."""

    def __init__(self, number: int, *, fails: bool) -> None:
        self.number = number
        self.fails = fails
        self.came = asyncio.Event()
        self.is_lost = False

    def received(self, kind: int, body: Any, payload: memoryview | None) -> None:
        if self.fails:
            raise ValueError("nobody thought of that")
        self.came.set()

    def lost(self, error: Exception) -> None:
        self.is_lost = True
        if self.fails:
            raise ValueError("nor of that")


async def test_a_consumer_that_fails_by_a_message_costs_itself_only(script: ScriptedBroker) -> None:
    connection = await ClientConnection.open(script.url)
    bad = connection.attach(PartKind.CONSUMER, lambda number: Part(number, fails=True))
    good = connection.attach(PartKind.CONSUMER, lambda number: Part(number, fails=False))
    worse = connection.attach(PartKind.PRODUCER, lambda number: Part(number, fails=True))
    (link,) = script.links
    for number in (bad.number, good.number):
        link.send_message(number, 1, 0, b"x", {})
    async with asyncio.timeout(10):
        await good.came.wait()
    assert (bad.is_lost, good.is_lost) == (True, False)
    # The broker hears of it: to a consumer that is gone it would send for ever.
    await script.until(lambda: script.closed)
    assert [number for _, number in script.closed] == [bad.number]
    await connection.close()
    assert (good.is_lost, worse.is_lost) == (True, True)
