"""Scalable topics over several brokers: deletion without force, and migration of partitions that are open elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from anabranch.controller.core.errors import NotLeader, OperationRefused, TooBusy
from anabranch.model.names import TopicName
from anabranch.model.scalable import ScalableTopic, SubscriptionKind
from unit.broker.scalable.brokers import topics_of
from unit.broker.scalable.cluster import TOPIC, Cluster, running

ONLY = TopicName.parse("segment://public/default/orders/0000-ffff-0")
CLASSIC = TopicName.parse("persistent://public/default/orders")


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with running(2) as made:
        yield made


async def gone(cluster: Cluster, number: int) -> None:
    """That broker cannot be reached any more, until its registry is started again."""
    broker = cluster.nodes[number].broker
    await broker.registry.close()
    for session in list(broker.sessions):
        session.abort()


async def test_a_topic_is_not_deleted_without_force_while_an_owner_cannot_be_asked(cluster: Cluster) -> None:
    cluster.move(ONLY, 1)
    topics = topics_of(cluster.first.broker)
    await topics.create(TOPIC)
    await topics.leading(TOPIC)
    producer = await cluster.nodes[1].client.producer(str(ONLY))
    with pytest.raises(OperationRefused, match="1 producers"):
        await topics.delete(TOPIC)
    await gone(cluster, 1)
    with pytest.raises(TooBusy, match="not known"):
        await topics.delete(TOPIC)
    assert await topics.get(TOPIC) is not None
    await cluster.nodes[1].broker.registry.start()
    del producer  # Its connection was lost.
    await topics.delete(TOPIC)
    assert await topics.get(TOPIC) is None


async def test_a_topic_whose_segment_was_never_made_can_be_deleted(cluster: Cluster) -> None:
    await cluster.topic(made=False)
    topics = topics_of(cluster.first.broker)
    await cluster.metadata.delete("/topics/public/default/orders/controller")
    await topics.delete(TOPIC)
    assert await topics.get(TOPIC) is None


async def partitioned(cluster: Cluster) -> list[TopicName]:
    """A topic of two partitions, the second of which is at the second broker; both are used."""
    parts = [CLASSIC.partition(number) for number in range(2)]
    cluster.move(parts[1], 1)
    await cluster.first.broker.resources.create_partitioned(CLASSIC, 2)
    for node, part in zip(cluster.nodes, parts, strict=True):
        await node.publish(part, b"one")
    return parts


async def test_a_topic_with_clients_at_another_broker_is_not_migrated_without_force(cluster: Cluster) -> None:
    parts = await partitioned(cluster)
    topics = topics_of(cluster.first.broker)
    consumer = await cluster.nodes[1].client.consumer(str(parts[1]), "s", earliest=True)
    with pytest.raises(OperationRefused, match="has 1 producers and consumers connected"):
        await topics.migrate(TOPIC)
    await consumer.close()
    await topics.migrate(TOPIC)
    assert list(await topics.subscriptions(TOPIC)) == ["s"]
    record = await cluster.record()
    assert [s.classic_topic for s in record.layout.segments.values() if s.classic_topic] == [
        str(part) for part in parts
    ]


async def test_subscriptions_at_another_broker_are_migrated_too(cluster: Cluster) -> None:
    parts = await partitioned(cluster)
    await cluster.nodes[1].read(parts[1], "far", 0)
    await cluster.first.read(parts[0], "near", 0)
    topics = topics_of(cluster.first.broker)
    await topics.migrate(TOPIC)
    found = await topics.subscriptions(TOPIC)
    assert {name: record.kind for name, record in found.items()} == {
        "far": SubscriptionKind.STREAM,
        "near": SubscriptionKind.STREAM,
    }


@pytest.mark.parametrize("force", [False, True])
async def test_a_topic_is_not_migrated_while_an_owner_cannot_be_asked(cluster: Cluster, force: bool) -> None:
    """Its subscriptions there would be lost."""
    await partitioned(cluster)
    await gone(cluster, 1)
    topics = topics_of(cluster.first.broker)
    with pytest.raises(Exception, match=r"cannot be|not registered") as raised:
        await topics.migrate(TOPIC, force=force)
    assert getattr(raised.value, "retryable", False)
    assert await topics.get(TOPIC) is None


async def test_a_broker_that_does_not_lead_a_topic_migrates_nothing_of_it(cluster: Cluster) -> None:
    """Else the caller, sent to the leader, would be told that there is such a scalable topic already."""
    await partitioned(cluster)
    near, far = (topics_of(node.broker) for node in cluster.nodes)
    cluster.move(TOPIC, 1)
    await far.leading(TOPIC)
    with pytest.raises(NotLeader) as raised:
        await near.migrate(TOPIC)
    assert raised.value.leader == cluster.nodes[1].broker.service_url
    assert await near.get(TOPIC) is None
    await far.migrate(TOPIC)
    assert (await cluster.record()).plan is None


async def test_a_migration_whose_leader_changes_is_waited_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await partitioned(cluster)
    near, far = (topics_of(node.broker) for node in cluster.nodes)
    create = near.records.create_topic

    async def create_and_lose(topic: TopicName, record: ScalableTopic) -> None:
        await create(topic, record)
        await near.release(topic)
        cluster.move(TOPIC, 1)
        await far.leading(topic)

    monkeypatch.setattr(near.records, "create_topic", create_and_lose)
    await near.migrate(TOPIC)
    assert (await cluster.record()).plan is None
    assert await near.leader(TOPIC) == cluster.nodes[1].broker.service_url
