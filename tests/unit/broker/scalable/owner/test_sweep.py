"""What a starting broker removes: segments' storage that no topic's record names."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest

from anabranch.broker.catalog.resources import MANAGED_LEDGERS, topic_record_path
from anabranch.broker.scalable.owner.sweep import sweep_leftovers
from anabranch.model.names import TopicName
from anabranch.model.scalable import topic_path
from anabranch.storage.core.topic_record import TopicRecord
from unit.broker.scalable.cluster import TOPIC, Cluster, name_of, running

CLASSIC = TopicName.parse("persistent://public/default/classic")


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with running() as made:
        yield made


async def sweep(cluster: Cluster, node: int = 0) -> set[str]:
    """What is left of the segments of TOPIC."""
    found = await cluster.metadata.scan(MANAGED_LEDGERS)
    broker = cluster.nodes[node].broker
    logs = {path: TopicRecord.decode(record.value) for path, record in found}
    await sweep_leftovers(broker.metadata, broker.owners, broker.segment_owner, logs)
    assert await cluster.metadata.exists(topic_record_path(CLASSIC))
    return {name.segment for name in await cluster.first.broker.resources.segment_names(TOPIC.namespace)}


@pytest.fixture(autouse=True)
async def _classic(cluster: Cluster) -> None:
    await cluster.first.publish(CLASSIC, b"one")


async def test_everything_that_a_layout_or_a_plan_names_stays(cluster: Cluster) -> None:
    await cluster.topic()
    await cluster.split()
    plan = await cluster.plan_split(1)
    for child in plan.children:
        await cluster.segments.create(TOPIC, child, ())
    assert len(await sweep(cluster)) == 5


async def test_segments_without_a_topic_go(cluster: Cluster) -> None:
    await cluster.topic(2)
    await cluster.metadata.put(topic_path(TOPIC), b"")
    assert await sweep(cluster) == set()


async def test_segments_of_an_earlier_topic_of_the_same_name_go(cluster: Cluster) -> None:
    segments = await cluster.topic(2, generation=1)
    await cluster.first.publish(name_of(segments[0]), b"old")
    await cluster.topic(2, generation=2, made=False)
    await cluster.segments.create(TOPIC, segments[1], ())
    assert await sweep(cluster) == {segments[1].descriptor}


async def test_what_was_pruned_goes(cluster: Cluster) -> None:
    (parent,) = await cluster.topic()
    children = await cluster.split()
    record = await cluster.record()
    await cluster.put(type(record)(record.layout.prune([parent.id]), record.generation))
    assert await sweep(cluster) == {child.descriptor for child in children}


async def test_nothing_goes_while_the_record_cannot_be_read(cluster: Cluster) -> None:
    (segment,) = await cluster.topic()
    await cluster.metadata.put(topic_path(TOPIC), b"not a record")
    assert await sweep(cluster) == {segment.descriptor}


async def test_what_another_broker_owns_is_left_to_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running(2) as cluster:
        (segment,) = await cluster.topic()
        await cluster.first.publish(CLASSIC, b"one")
        await cluster.metadata.put(topic_path(TOPIC), b"")
        cluster.move(name_of(segment), 1)
        assert await sweep(cluster) == {segment.descriptor}
        assert "leftover" not in caplog.text, "it is not even tried"
        assert await sweep(cluster, 1) == set()
