"""A broker that has died is noticed by its neighbour, and no living one is taken for dead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from soak.ports import free_port

from anabranch.broker.catalog.neighbours import Neighbours, neighbour
from anabranch.broker.catalog.owners import BrokerAddress
from anabranch.broker.catalog.registry import BROKERS, BrokerRegistration, BrokerRegistry
from anabranch.metadata.embedded import EmbeddedStore
from anabranch.metadata.memory import MemoryMetadata


@given(st.sets(st.text("abc:1", min_size=1), min_size=2))
def test_the_neighbours_of_all_brokers_are_one_ring(living: set[str]) -> None:
    ring = [min(living)]
    while (after := neighbour(ring[-1], living)) != ring[0]:
        assert after is not None
        ring.append(after)
    assert sorted(ring) == sorted(living)


def test_a_broker_alone_has_no_neighbour() -> None:
    assert neighbour("a", ["a"]) is None
    assert neighbour("a", []) is None


class Two:
    """This broker, and another that listens, or does not."""

    def __init__(self) -> None:
        self.tree = MemoryMetadata(lambda: 0)
        self.port = free_port()
        self.server: asyncio.Server | None = None
        self.stores: list[EmbeddedStore] = []
        self.registries: list[BrokerRegistry] = []

    async def start(self) -> None:
        self.registry, self.store = await self.registered(BrokerRegistration(self.address(1), "me"))
        self.other, self.others_store = await self.registered(
            BrokerRegistration(self.address(self.port), "other")
        )
        self.neighbours = Neighbours(self.store, self.registry)
        await self.until_known("other")

    def address(self, port: int) -> BrokerAddress:
        return BrokerAddress(f"pulsar://127.0.0.1:{port}", f"http://127.0.0.1:{port}")

    async def registered(self, what: BrokerRegistration) -> tuple[BrokerRegistry, EmbeddedStore]:
        store = await self.tree.connect()
        registry = BrokerRegistry(store, what)
        await registry.start()
        self.stores.append(store)
        self.registries.append(registry)
        return registry, store

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits until that is true of this broker's registry."""
        changed = asyncio.Event()
        stop = self.registry.on_change(changed.set)
        async with asyncio.timeout(20):
            while not holds():
                await changed.wait()
                changed.clear()
        stop()

    async def until_known(self, run: str) -> None:
        await self.until(lambda: run in {one.run_id for one in self.registry.living().values()})

    async def listen(self) -> None:
        self.server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", self.port)

    async def refuse(self) -> None:
        assert self.server is not None
        self.server.close()
        await self.server.wait_closed()
        self.server = None

    @property
    def path(self) -> str:
        return f"{BROKERS}/127.0.0.1:{self.port}"

    async def is_registered(self) -> bool:
        return await self.store.exists(self.path)

    async def close(self) -> None:
        if self.server is not None:
            await self.refuse()
        for registry in self.registries:
            await registry.close()
        for store in self.stores:
            await store.close()


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    made = Two()
    await made.start()
    yield made
    await made.close()


async def test_a_broker_whose_port_closes_loses_its_registration(two: Two) -> None:
    await two.listen()
    await two.neighbours.look()
    assert await two.is_registered()
    await two.refuse()
    await two.neighbours.look()
    assert not await two.is_registered()


async def test_a_port_that_was_never_open_to_this_broker_says_nothing(two: Two) -> None:
    await two.neighbours.look()
    assert await two.is_registered()


async def test_the_next_run_on_the_same_port_is_not_taken_for_the_one_that_died(two: Two) -> None:
    await two.listen()
    await two.neighbours.look()
    await two.refuse()
    # It has registered and does not listen yet, or this broker has not read of it yet.
    await two.others_store.put(two.path, replace(two.other.me, run_id="next").encode())
    await two.neighbours.look()
    await two.until_known("next")
    await two.neighbours.look()
    assert await two.is_registered()


async def test_a_living_broker_behind_a_port_that_refuses_loses_its_registration_once(two: Two) -> None:
    """A firewall, or another program's port: it registers again each time, and its topics would move for ever."""
    await two.listen()
    await two.neighbours.look()
    await two.refuse()
    await two.neighbours.look()
    assert not await two.is_registered()
    await two.until(lambda: two.other.me.id not in two.registry.living())
    await two.other.register()
    await two.until_known("other")
    await two.neighbours.look()
    assert await two.is_registered()
    # Once it accepts again, it is looked after as before.
    await two.listen()
    await two.neighbours.look()
    await two.refuse()
    await two.neighbours.look()
    assert not await two.is_registered()


async def test_a_broker_that_is_leaving_is_let_go(two: Two) -> None:
    await two.listen()
    await two.neighbours.look()
    await two.other.drain()
    await two.until(lambda: two.registry.living()[two.other.me.id].is_draining)
    await two.refuse()
    await two.neighbours.look()
    assert await two.is_registered()


async def test_without_the_store_nothing_is_done(two: Two) -> None:
    await two.listen()
    await two.neighbours.look()
    await two.refuse()
    two.store.disconnect()
    await two.neighbours.look()
    await two.store.reconnect()
    assert await two.is_registered()


async def test_a_broker_whose_registration_was_deleted_registers_again(two: Two) -> None:
    await two.listen()
    mine = f"{BROKERS}/{two.registry.me.id}"
    await two.others_store.delete(mine)
    await two.until(lambda: not two.registry.is_registered)
    await two.neighbours.look()
    found = await two.store.get(mine)
    assert found is not None
    assert found.owner == two.store.session.id
