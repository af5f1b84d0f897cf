"""Watches of a namespace when the store, the client or everything at once makes trouble. Time is virtual."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from anabranch.metadata.errors import StoreUnavailable
from anabranch.wire import pulsar_pb2 as pb
from unit.broker.scalable.namespace_rig import Rig, full, simulated

BLUE = ("colour", "blue")


# -- trouble with the store


@simulated
async def test_what_changed_while_the_store_was_away_is_told_afterwards(rig: Rig) -> None:
    await rig.make("a")
    await rig.make("b")
    client = await rig.opened()
    rig.store.disconnect()
    await rig.delete("a")
    await rig.make("c")
    await rig.delete("b")
    await rig.make("b")
    await rig.later()
    assert client.events == [("snapshot", ["a", "b"])]
    await rig.store.reconnect()
    await rig.later()
    assert client.events[1:] == [("diff", ["b", "c"], ["a", "b"])]


@simulated
async def test_a_change_that_cannot_be_read_is_read_until_it_can(rig: Rig) -> None:
    client = await rig.opened()

    async def fail(path: str) -> None:
        raise StoreUnavailable("not now")

    rig.hook.after_get = fail
    await rig.make("a")
    await rig.later(5)
    assert client.events == [("snapshot", [])]
    rig.hook.after_get = None
    await rig.later(2)
    assert client.events[1:] == [("diff", ["a"], [])]


@simulated
async def test_a_first_open_is_refused_when_the_store_does_not_answer_for_long(rig: Rig) -> None:
    rig.store.disconnect()
    client = rig.watch()
    await rig.later(5)
    assert client.events == []
    await rig.later(10)
    assert client.events == [("error", pb.ServiceNotReady)]
    assert (rig.ended, rig.feed.namespaces) == ([client.watch], 0)
    await rig.store.reconnect()


@simulated
async def test_a_first_open_survives_a_short_trouble(rig: Rig) -> None:
    await rig.make("a")
    rig.store.disconnect()

    async def policies() -> None:
        await rig.store.get("/admin/namespaces/public/default")

    client = rig.watch(admit=policies)
    await rig.later(3)
    await rig.store.reconnect()
    await rig.later(3)
    assert client.events == [("snapshot", ["a"])]


@simulated
async def test_a_client_that_comes_back_waits_for_the_store(rig: Rig) -> None:
    await rig.make("a")
    client = await rig.opened()
    client.watch.close()
    rig.store.disconnect()
    rig.watch(client=client, known_hash=client.hash)
    await rig.later(600)
    assert client.events == [("snapshot", ["a"])]
    await rig.store.reconnect()
    await rig.make("b")
    await rig.later(3)
    assert client.topics == {full("a"), full("b")}


# -- a client that does not read


@simulated
async def test_a_client_that_does_not_read_gets_one_difference_when_it_does(rig: Rig) -> None:
    await rig.make("a")
    client = await rig.opened()
    client.is_writable = False
    sent = client.bytes
    for number in range(300):
        await rig.make(f"short-{number}")
        await rig.later()
        await rig.delete(f"short-{number}")
        await rig.later()
        assert client.watch.pending <= 1
    await rig.make("b")
    await rig.delete("a")
    await rig.later()
    assert (client.bytes, client.watch.pending, rig.loop.timers) == (sent, 2, 0)
    client.read_again()
    assert client.events[1:] == [("diff", ["b"], ["a"])]


@simulated
async def test_the_first_set_too_waits_for_a_client_that_does_not_read(rig: Rig) -> None:
    await rig.make("a")
    client = rig.watch()
    client.is_writable = False
    await rig.later()
    await rig.make("b")
    await rig.delete("a")
    await rig.later()
    assert client.events == []
    client.read_again()
    assert client.events == [("snapshot", ["b"])]
    await rig.make("c")
    await rig.later()
    assert client.events[1:] == [("diff", ["c"], [])]


# -- any run


@pytest.mark.parametrize("seed", range(60))
@simulated
async def test_whatever_happens_the_client_ends_up_with_the_stores_set(rig: Rig, seed: int) -> None:
    chance = random.Random(seed)
    names = [f"t{number}" for number in range(6)]
    there: set[str] = set()
    blue: set[str] = set()

    async def step() -> None:
        name = chance.choice(names)
        is_blue = chance.random() < 0.5
        if name not in there:
            await rig.make(name, colour="blue" if is_blue else "red")
            there.add(name)
        elif chance.random() < 0.5:
            properties = {"colour": "blue" if is_blue else "red"}
            await rig.change(name, lambda record: replace(record, properties=properties))
        else:
            await rig.delete(name)
            there.discard(name)
            is_blue = False
        (blue.add if is_blue else blue.discard)(name)

    async def churn() -> None:
        for _ in range(150):
            await step()
            if chance.random() < 0.3:
                await asyncio.sleep(chance.choice([0, 0.01, 0.06]))

    async def trouble() -> None:
        for _ in range(10):
            await asyncio.sleep(chance.random() * 0.2)
            rig.store.disconnect()
            await asyncio.sleep(chance.random() * 0.2)
            await rig.store.reconnect()

    running = [asyncio.get_running_loop().create_task(work()) for work in (churn, trouble)]
    clients = []
    for _ in range(4):
        await asyncio.sleep(chance.random() * 0.3)
        clients += [rig.watch(BLUE), rig.watch()]
        clients[-1].is_writable = chance.random() < 0.8
    for task in running:
        await task
    await rig.later(3)
    for client in clients:
        if not client.is_writable:
            client.read_again()
    await rig.later()
    for client in clients:
        assert client.events[0][0] == "snapshot"
    assert [client.topics for client in clients] == [{full(n) for n in blue}, {full(n) for n in there}] * 4
