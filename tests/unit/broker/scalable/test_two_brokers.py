"""Scalable topics over brokers that each own some of the segments, led by one of them, used by real clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from anabranch.client.client import Client
from anabranch.client.consuming.queue import QueueConsumer
from anabranch.model.names import TopicName
from anabranch.model.scalable import SubscriptionKind, controller_path
from anabranch.model.segments import Segment
from unit.broker.scalable.brokers import Peer, topics_of
from unit.broker.scalable.cluster import TOPIC, Cluster, name_of, running

ORDERS = str(TOPIC)
LOWER = TopicName.parse("segment://public/default/orders/0000-7fff-1")
UPPER = TopicName.parse("segment://public/default/orders/8000-ffff-2")
MERGED = TopicName.parse("segment://public/default/orders/0000-ffff-3")


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with running(2) as made:
        yield made


async def active(cluster: Cluster) -> list[Segment]:
    return list((await cluster.record()).layout.active)


def loaded(cluster: Cluster, node: int) -> set[TopicName]:
    return set(cluster.nodes[node].broker.loaded())


async def test_children_may_land_on_other_brokers_than_their_parent_and_be_merged_from_there(
    cluster: Cluster,
) -> None:
    """The child that moves away has its parent's subscriptions, and the merge seals one parent at each broker."""
    leading = topics_of(cluster.first.broker)
    cluster.move(LOWER, 1)
    cluster.move(MERGED, 1)
    await leading.create(TOPIC)
    await leading.create_subscription(TOPIC, "s")
    (parent,) = await active(cluster)
    await cluster.first.publish(name_of(parent), b"parent")
    await leading.split(TOPIC, 0)
    assert loaded(cluster, 0) == {name_of(parent), UPPER}
    assert loaded(cluster, 1) == {LOWER}
    for name in (LOWER, UPPER):
        await cluster.first.publish(name, b"child")
    await leading.merge(TOPIC, 1, 2)
    assert MERGED in loaded(cluster, 1)
    await cluster.first.publish(MERGED, b"merged")
    for name in (LOWER, UPPER):
        assert await cluster.first.read(name, "s", 1) == [b"child"]
    assert await cluster.first.read(name_of(parent), "s", 1) == [b"parent"]
    assert await cluster.first.read(MERGED, "s", 1) == [b"merged"]


async def test_a_leader_need_not_own_a_segment(cluster: Cluster) -> None:
    for name in ("0000-ffff-0", "0000-7fff-1", "8000-ffff-2", "0000-ffff-3"):
        cluster.move(TopicName.parse(f"segment://public/default/orders/{name}"), 1)
    leading = topics_of(cluster.first.broker)
    await leading.create(TOPIC)
    await leading.split(TOPIC, 0)
    await leading.create_subscription(TOPIC, "s", SubscriptionKind.QUEUE)
    await leading.merge(TOPIC, 1, 2)
    assert await leading.leader(TOPIC) == cluster.first.broker.service_url
    assert loaded(cluster, 0) == set()
    (merged,) = await active(cluster)
    assert set((await cluster.segments.status(TOPIC, merged)).subscriptions) == {"s"}
    await leading.delete_subscription(TOPIC, "s")
    assert not (await cluster.segments.status(TOPIC, merged)).subscriptions
    await leading.delete(TOPIC)
    assert loaded(cluster, 1) == set()
    assert await cluster.metadata.children("/managed-ledgers/public/default/segment") == []


async def test_a_broker_that_gains_a_topic_finishes_what_its_leader_began_before_it_died(
    cluster: Cluster,
) -> None:
    """Nobody uses the topic, and no living broker has a controller of it."""
    await cluster.topic(made=False)
    await cluster.plan_split()
    await cluster.metadata.delete(controller_path(TOPIC))
    cluster.move(TOPIC, 1)
    gaining = topics_of(cluster.nodes[1].broker)
    async with asyncio.timeout(30):
        while (await cluster.record()).plan is not None:  # noqa: ASYNC110 - a stored record is no event.
            await asyncio.sleep(0.01)
    assert await gaining.leader(TOPIC) == cluster.nodes[1].broker.service_url
    assert len(await active(cluster)) == 2


async def test_a_segment_that_changes_its_owner_reaches_those_who_watch(cluster: Cluster) -> None:
    await topics_of(cluster.first.broker).create(TOPIC)
    (segment,) = await active(cluster)
    urls = [node.broker.service_url for node in cluster.nodes]
    peers = [await Peer.connect(url) for url in urls]
    for peer in peers:
        assert [b.broker_url for b in (await peer.watch(str(TOPIC))).dag.segment_brokers] == urls[:1]
    cluster.move(name_of(segment), 1)
    for peer in peers:
        update = await peer.update()
        assert (update.dag.epoch, [b.broker_url for b in update.dag.segment_brokers]) == (0, urls[1:])
        await peer.close()


async def test_queue_consumers_share_every_segment_without_a_controller(cluster: Cluster) -> None:
    """Round and round at each owner; a new segment comes with the layout, a drained sealed one is dropped."""
    leading = topics_of(cluster.first.broker)
    cluster.move(LOWER, 1)
    await leading.create(TOPIC)
    client = Client(cluster.first.broker.service_url)
    one = await client.queue_consumer(ORDERS, "q", start="earliest")
    two = await client.queue_consumer(ORDERS, "q", start="earliest")
    producer = await client.producer(ORDERS)
    sent = {b"%d" % n for n in range(40)}
    for payload in sorted(sent)[:20]:
        await producer.send(payload, key=payload.decode())
    await producer.flush()
    await leading.split(TOPIC, 0)
    await until(cluster, lambda: all(c.attached | c.drained == {0, 1, 2} for c in (one, two)))
    for payload in sorted(sent)[20:]:
        await producer.send(payload, key=payload.decode())
    shares = [set[bytes](), set[bytes]()]
    takers = [asyncio.create_task(take(c, share)) for c, share in zip((one, two), shares, strict=True)]
    await until(cluster, lambda: shares[0] | shares[1] == sent)
    assert all(shares), "one of them got everything"
    assert not shares[0] & shares[1]
    await until(cluster, lambda: all(c.drained == {0} and c.attached == {1, 2} for c in (one, two)))
    assert leading.controllers[TOPIC].coordinators == {}
    for taker in takers:
        taker.cancel()
    await client.close()


async def until(cluster: Cluster, met: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not met():
            await cluster.record()  # Each look at the store gives the others a turn.


async def take(consumer: QueueConsumer, share: set[bytes]) -> None:
    async for message in consumer:
        await consumer.ack(message)
        assert await consumer.flush()
        share.add(message.payload)


async def test_a_broker_that_was_away_serves_nothing_from_before_another_had_the_topic(
    cluster: Cluster,
) -> None:
    """It is the owner again when it comes back, and wrote nothing meanwhile: no fence tells it what it missed."""
    name = TopicName.parse("persistent://public/default/classic")
    first, second = cluster.nodes
    await first.publish(name, b"one")
    await first.read(name, "s", 1)
    before = first.broker.loaded()[name]
    first.metadata.disconnect()
    await first.metadata.expire_session()
    for owners in cluster.owners:
        owners.moved[name] = 1  # The broker that is away does not hear of it.
    await second.publish(name, b"two")
    for owners in cluster.owners:
        owners.moved[name] = 0
    await second.broker.loaded()[name].close()
    await first.metadata.reconnect()
    # The store goes on and off, so not all topics are looked at before the first client comes.
    first.metadata.disconnect()
    for _ in range(10):
        await asyncio.sleep(0)
    await first.metadata.reconnect()
    assert not before.is_closed
    assert await first.broker.topic(name) is not before
    assert await first.read(name, "s", 1) == [b"two"]
