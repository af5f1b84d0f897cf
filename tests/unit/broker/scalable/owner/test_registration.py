"""A SUBSCRIBE straight to a segment: registered at the topic first, and never between two layouts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from anabranch.client import RequestRefused
from anabranch.model.names import TopicName
from anabranch.model.scalable import InitialPosition, SubscriptionKind
from anabranch.model.segments import Segment
from anabranch.wire import pulsar_pb2 as pb
from harness.simple_client import Consumer
from unit.broker.scalable.cluster import TOPIC, Cluster, name_of, running

SHARED = pb.CommandSubscribe.Shared
EXCLUSIVE = pb.CommandSubscribe.Exclusive


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with running() as made:
        yield made


async def subscribe(
    cluster: Cluster, segment: Segment, name: str, kind: int = SHARED, *, earliest: bool = True
) -> Consumer:
    return await cluster.first.client.consumer(str(name_of(segment)), name, kind=kind, earliest=earliest)


async def cursors(cluster: Cluster, segment: Segment) -> set[str]:
    return set((await cluster.segments.status(TOPIC, segment)).subscriptions)


@pytest.mark.parametrize(
    ("type_of_consumer", "kind"),
    [
        (SHARED, SubscriptionKind.QUEUE),
        (pb.CommandSubscribe.Key_Shared, SubscriptionKind.QUEUE),
        (EXCLUSIVE, SubscriptionKind.STREAM),
        (pb.CommandSubscribe.Failover, SubscriptionKind.STREAM),
    ],
)
@pytest.mark.parametrize("earliest", [True, False])
async def test_a_subscription_made_on_a_segment_is_stored_at_the_topic(
    cluster: Cluster, type_of_consumer: int, kind: SubscriptionKind, earliest: bool
) -> None:
    (segment,) = await cluster.topic()
    await subscribe(cluster, segment, "s", type_of_consumer, earliest=earliest)
    stored = await cluster.stored_subscription("s")
    assert stored is not None
    assert stored.kind is kind
    assert stored.initial is (InitialPosition.EARLIEST if earliest else InitialPosition.LATEST)
    assert stored.generation == 7


async def test_a_new_subscription_has_its_cursors_everywhere_before_it_is_answered(cluster: Cluster) -> None:
    segments = await cluster.topic(3)
    await subscribe(cluster, segments[1], "s", earliest=False)
    for segment in segments:
        assert await cursors(cluster, segment) == {"s"}
        await cluster.first.publish(name_of(segment), b"after the answer")
        assert (await cluster.segments.status(TOPIC, segment)).subscriptions["s"].backlog == 1


async def test_earliest_includes_sealed_segments_and_latest_does_not(cluster: Cluster) -> None:
    (parent,) = await cluster.topic()
    await cluster.first.publish(name_of(parent), b"old")
    one, other = await cluster.split()
    await subscribe(cluster, one, "all", earliest=True)
    await subscribe(cluster, one, "new", earliest=False)
    assert await cursors(cluster, parent) == {"all"}
    assert await cursors(cluster, other) == {"all", "new"}


async def test_latest_on_a_sealed_segment_is_its_end_and_covers_the_children(cluster: Cluster) -> None:
    (parent,) = await cluster.topic()
    await cluster.first.publish(name_of(parent), b"old")
    children = await cluster.split()
    await subscribe(cluster, parent, "s", earliest=False)
    assert (await cluster.segments.status(TOPIC, parent)).subscriptions["s"].is_drained
    for child in children:
        assert await cursors(cluster, child) == {"s"}


async def test_where_a_subscription_begins_was_said_by_whoever_made_it(cluster: Cluster) -> None:
    (segment,) = await cluster.topic()
    await cluster.first.publish(name_of(segment), b"old")
    await cluster.subscription("s", kind=SubscriptionKind.QUEUE, initial=InitialPosition.EARLIEST)
    consumer = await subscribe(cluster, segment, "s", earliest=False)
    assert (await consumer.receive()).payload == b"old"


async def test_a_latest_subscription_has_drained_what_was_sealed_before_whoever_comes_later(
    cluster: Cluster,
) -> None:
    """Its controller has handed out the children by then, and would never hand out the parent."""
    (parent,) = await cluster.topic()
    await cluster.first.publish(name_of(parent), b"old")
    await cluster.subscription("s", initial=InitialPosition.LATEST)
    await cluster.split()
    await subscribe(cluster, parent, "s", EXCLUSIVE, earliest=True)
    assert (await cluster.segments.status(TOPIC, parent)).subscriptions["s"].is_drained


async def test_a_stream_consumer_says_where_it_begins_after_it_has_registered(cluster: Cluster) -> None:
    segments = await cluster.topic(2)
    await cluster.subscription("s", kind=SubscriptionKind.STREAM, initial=None)
    await subscribe(cluster, segments[0], "s", EXCLUSIVE, earliest=True)
    stored = await cluster.stored_subscription("s")
    assert stored is not None
    assert stored.initial is InitialPosition.EARLIEST
    assert await cursors(cluster, segments[1]) == {"s"}


async def test_a_subscription_that_is_being_deleted_is_refused_for_the_moment(cluster: Cluster) -> None:
    (segment,) = await cluster.topic()
    await cluster.subscription("s", is_deleting=True)
    with pytest.raises(RequestRefused) as refused:
        await subscribe(cluster, segment, "s")
    assert refused.value.error == pb.ServiceNotReady


async def test_what_an_earlier_topic_of_the_same_name_left_behind_does_not_count(cluster: Cluster) -> None:
    await cluster.topic(generation=1)
    await cluster.subscription("s", initial=InitialPosition.LATEST, is_deleting=True)
    (segment,) = await cluster.topic(generation=2)
    await subscribe(cluster, segment, "s", earliest=True)
    stored = await cluster.stored_subscription("s")
    assert stored is not None
    assert (stored.generation, stored.initial) == (2, InitialPosition.EARLIEST)


async def test_a_subscriber_waits_while_its_segment_is_being_split(cluster: Cluster) -> None:
    """Created between discovery and seal: it is on both children before anybody is told of it."""
    (parent,) = await cluster.topic()
    await cluster.first.publish(name_of(parent), b"one")
    plan = await cluster.plan_split()
    for child in plan.children:
        await cluster.segments.create(TOPIC, child, ())  # Nobody had subscribed yet.
    waiting = asyncio.create_task(subscribe(cluster, parent, "s", earliest=True))
    while await cluster.stored_subscription("s") is None:
        pass  # Each look at the store lets the subscriber go on.
    await cluster.segments.seal(TOPIC, parent)
    assert not waiting.done()
    await cluster.publish_plan()
    consumer = await waiting
    assert (await consumer.receive()).payload == b"one"
    for child in plan.children:
        assert await cursors(cluster, child) == {"s"}


async def test_an_existing_cursor_needs_no_registration(cluster: Cluster) -> None:
    (parent,) = await cluster.topic()
    await cluster.subscription("s")
    await cluster.segments.create(TOPIC, parent, ["s"])
    await cluster.plan_split()  # Pending for ever.
    await subscribe(cluster, parent, "s")


async def test_a_producers_initial_subscription_registers_too(cluster: Cluster) -> None:
    one, other = await cluster.topic(2)
    await (await cluster.first.broker.topic(name_of(one))).create_initial_subscription("s")
    for segment in (one, other):
        assert await cursors(cluster, segment) == {"s"}


async def test_readers_do_not_register(cluster: Cluster) -> None:
    (segment,) = await cluster.topic()
    await cluster.first.publish(name_of(segment), b"one")
    await cluster.reader(name_of(segment), "r")
    assert await cluster.stored_subscription("r") is None


async def test_a_segment_is_not_made_by_a_stray_subscribe_publish_or_lookup(cluster: Cluster) -> None:
    await cluster.topic()
    for text in ("segment://public/default/orders/0000-7fff-9", "segment://public/default/none/0000-ffff-0"):
        for attempt in (cluster.first.client.consumer(text, "s"), cluster.first.client.producer(text)):
            with pytest.raises(RequestRefused) as refused:
                await attempt
            assert refused.value.error == pb.TopicNotFound
        assert not await cluster.first.broker.resources.topic_exists(TopicName.parse(text))


async def test_segments_are_in_no_list_of_classic_topics(cluster: Cluster) -> None:
    await cluster.topic(2)
    await cluster.first.publish(TopicName.parse("persistent://public/default/classic"), b"one")
    classic = ["persistent://public/default/classic"]
    assert await cluster.first.broker.known.stored(TOPIC.namespace) == classic
    for path in ("persistent/public/default", "namespaces/public/default/topics"):
        assert (await cluster.first.rest("GET", path)).json() == classic


async def test_all_segments_of_a_topic_share_its_schema(cluster: Cluster) -> None:
    one, other = await cluster.topic(2)
    assert name_of(one).schema_path == name_of(other).schema_path == TOPIC.schema_path
