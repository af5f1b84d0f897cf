"""Settings that change while brokers run: checked together, and followed by every broker."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.broker.catalog.dynamic_config import DynamicConfig
from anabranch.broker.catalog.resources import NotFound, Refused
from anabranch.broker.config.config import BrokerConfig
from anabranch.metadata.memory import MemoryMetadata


class Followed:
    """A broker's configuration, as it is in force."""

    def __init__(self) -> None:
        self.config = BrokerConfig()
        self.changed = asyncio.Event()

    def apply(self, config: BrokerConfig) -> None:
        self.config = config
        self.changed.set()


@pytest.fixture
def store() -> MemoryMetadata:
    return MemoryMetadata(lambda: 0)


async def test_parts_of_the_balancer_are_switched_at_every_broker(store: MemoryMetadata) -> None:
    brokers = [Followed(), Followed()]
    settings = [DynamicConfig(await store.connect(), BrokerConfig(), one.apply) for one in brokers]
    for one in settings:
        await one.start()
    await settings[0].set("loadBalancerSheddingEnabled", "false")
    async with asyncio.timeout(10):
        await brokers[1].changed.wait()
    assert [one.config.load_balancer_shedding_enabled for one in brokers] == [False, False]
    brokers[1].changed.clear()
    await settings[0].remove("loadBalancerSheddingEnabled")
    async with asyncio.timeout(10):
        await brokers[1].changed.wait()
    assert brokers[1].config == BrokerConfig()
    for one in settings:
        await one.close()


async def test_values_are_checked_together_with_those_in_force(store: MemoryMetadata) -> None:
    """A load that lives no longer than the time between two reports would never count."""
    broker = Followed()
    settings = DynamicConfig(await store.connect(), BrokerConfig(), broker.apply)
    await settings.start()
    ttl, refresh = "loadBalancerBrokerLoadDataTTLInSeconds", "loadBalancerReportRefreshSeconds"
    with pytest.raises(Refused, match=ttl):
        await settings.set(ttl, "30")
    await settings.set(refresh, "10")
    await settings.set(ttl, "30")
    with pytest.raises(Refused, match=ttl):
        await settings.remove(refresh)
    assert (broker.config.load_balancer_broker_load_data_ttl_in_seconds, settings.values) == (
        30,
        {refresh: "10", ttl: "30"},
    )
    await settings.remove(ttl)
    await settings.remove(refresh)
    with pytest.raises(NotFound):
        await settings.remove(refresh)
    await settings.close()


async def test_what_a_broker_is_made_of_does_not_change_while_it_runs(store: MemoryMetadata) -> None:
    settings = DynamicConfig(await store.connect(), BrokerConfig(), Followed().apply)
    await settings.start()
    for name in ("loadManagerClassName", "loadBalancerServiceUnitStateTombstoneDelayTimeInSeconds"):
        with pytest.raises(Refused, match=f"non-dynamic configuration {name}"):
            await settings.set(name, "simple")
    await settings.close()
