"""The end of a soak of scalable topics: what still comes is waited for, however long a look at the history takes."""

from __future__ import annotations

import asyncio
import random

from soak.scalable import settle
from soak.scalable_clients import World

from anabranch.simulation.world.history import HistoryPlace, Sent


def world_with(messages: int) -> World:
    world = World("pulsar://127.0.0.1:9", "topic://public/default/t", random.Random(1))
    world.history.subscribed("stream", keeps_order=True)
    world.history.opened("c")
    for number in range(messages):
        world.history.sent("p", number, "k")
        world.history.receipt("p", number)
    return world


def receive(world: World, number: int) -> None:
    place = HistoryPlace(0, 1, number)
    world.history.received("stream", "c", Sent("p", number), "k", place, keeps_order=True, is_whole=True)


async def test_messages_that_come_between_two_looks_are_waited_for_whatever_time_has_passed() -> None:
    world = world_with(3)
    settling = asyncio.create_task(settle(world, quiet_s=0.0))
    for number in range(3):
        await asyncio.sleep(0)
        assert not settling.done()
        receive(world, number)
        await asyncio.wait([settling], timeout=0.3)
    assert not world.history.owed("stream")
    await settling


async def test_a_group_that_stands_still_is_not_waited_for() -> None:
    world = world_with(1)
    await settle(world, quiet_s=0.0)
    assert world.history.owed("stream")
