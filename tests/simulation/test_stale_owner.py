"""A broker that was away while another took its segments: what it remembers of them must not be taken for the truth."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from anabranch.broker.broker import FENCES_SECONDS, Broker
from anabranch.broker.catalog.resources import Resources
from anabranch.broker.policy.namespace import ClusterRecord as ClusterData
from anabranch.controller.core.errors import SegmentUnavailable
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.names import TopicName
from anabranch.model.position import Incarnation
from anabranch.model.scalable import InitialPosition, SubscriptionKind, SubscriptionRecord
from anabranch.simulation.cluster.cluster import CONFIG
from anabranch.simulation.machine.loop import SimLoop
from anabranch.storage.memory import MemoryLogStore, MemoryMedium

TOPIC = TopicName.parse("topic://public/default/t")
CLASSIC = TopicName.parse("persistent://public/default/c")


async def start(name: str, service: MemoryMetadata, medium: MemoryMedium) -> Broker:
    """A broker that believes it owns everything."""
    metadata = await service.connect()
    resources = Resources(metadata)
    await resources.start()
    await resources.bootstrap(ClusterData(service_url="http://b", broker_service_url="pulsar://b"))
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    broker = Broker(
        CONFIG,
        metadata,
        MemoryLogStore(medium, incarnation=Incarnation(name)),
        resources,
        service_url=f"pulsar://{name}:6650",
        http_url=f"http://{name}:8080",
        now_ms=loop.now_ms,
    )
    await broker.start()
    return broker


async def scenario() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    service, medium = MemoryMetadata(loop.now_ms), MemoryMedium()
    away, here = [await start(name, service, medium) for name in ("away", "here")]
    assert away.scalable is not None
    assert here.scalable is not None
    record = await away.scalable.create(TOPIC)
    segment = record.layout.active[0]
    await away.segment_owner.status(TOPIC, segment)  # It has the segment open, without any cursor.
    wanted = SubscriptionRecord("s", SubscriptionKind.QUEUE, record.generation, InitialPosition.EARLIEST)
    await here.scalable.records.register_subscription(TOPIC, wanted)
    await here.segment_owner.create_subscription(TOPIC, segment, "s", InitialPosition.EARLIEST)

    with pytest.raises(SegmentUnavailable):
        await away.segment_owner.status(TOPIC, segment)
    assert "s" in (await away.segment_owner.status(TOPIC, segment)).subscriptions

    # Now the other one has it open and does not know that it was taken.
    await away.scalable.records.change_subscription(TOPIC, replace(wanted, is_deleting=True))
    await away.scalable.records.remove_subscription(TOPIC, "s")
    await away.segment_owner.delete_subscription(TOPIC, segment, "s")
    with pytest.raises(SegmentUnavailable):
        await here.segment_owner.delete_subscription(TOPIC, segment, "s")
    assert (await here.segment_owner.status(TOPIC, segment)).subscriptions == {}


def test_an_owner_whose_log_was_taken_does_not_answer_from_memory() -> None:
    play(scenario())


async def idle_scenario() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    service, medium = MemoryMetadata(loop.now_ms), MemoryMedium()
    away, here = [await start(name, service, medium) for name in ("away", "here")]
    stale = await away.topic(CLASSIC, create=True)
    await stale.create_subscription("s", "earliest", {})
    ours = await away.topic(TopicName.parse("persistent://public/default/other"), create=True)
    taken = await here.topic(CLASSIC)
    await taken.create_subscription("made there", "earliest", {})
    # It writes nothing: only a look tells it.
    async with asyncio.timeout(2 * FENCES_SECONDS):
        await stale.wait_closed()
    assert not ours.is_closed
    assert set((await away.topic(CLASSIC)).subscriptions) == {"s", "made there"}


def test_an_owner_that_writes_nothing_does_not_keep_what_was_taken() -> None:
    play(idle_scenario())


def play(scenario: Coroutine[Any, Any, None]) -> None:
    loop = SimLoop()
    try:
        loop.run_until_complete(scenario)
    finally:
        loop.close()
