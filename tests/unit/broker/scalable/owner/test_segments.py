"""What a segment's owner does, and what it refuses because the topic's record does not call for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from anabranch.broker.catalog.owners import BrokerAddress
from anabranch.broker.catalog.resources import topic_record_path
from anabranch.broker.catalog.schemas import StoredSchema
from anabranch.broker.errors import NotReadyError
from anabranch.client import RequestRefused
from anabranch.controller.core.errors import SegmentGone, SegmentRefused, SegmentUnavailable
from anabranch.errors import AnabranchError
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import TopicName
from anabranch.model.position import Incarnation, LedgerId, Position
from anabranch.model.scalable import InitialPosition, ScalableTopic, topic_path
from anabranch.model.segments import HashRange, Segment, SegmentId
from anabranch.storage.core.topic_record import TopicRecord
from anabranch.storage.port import LedgerState
from anabranch.wire import pulsar_pb2 as pb
from unit.broker.scalable.cluster import TOPIC, Cluster, deleting, name_of, running

EARLIEST, LATEST = InitialPosition.EARLIEST, InitialPosition.LATEST


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with running() as made:
        yield made


async def stored(cluster: Cluster, segment: Segment) -> TopicRecord | None:
    found = await cluster.metadata.get(topic_record_path(name_of(segment)))
    return None if found is None or not found.value else TopicRecord.decode(found.value)


async def cursor(cluster: Cluster, segment: Segment, subscription: str) -> Position:
    return (await cluster.first.broker.topic(name_of(segment))).subscriptions[subscription].next


# -- making


async def test_a_segment_is_made_with_its_cursors_at_the_start(cluster: Cluster) -> None:
    (parent,) = await cluster.topic()
    await cluster.subscription("s")
    plan = await cluster.plan_split()
    for child in plan.children:
        await cluster.segments.create(TOPIC, child, ["s"])
    await cluster.segments.seal(TOPIC, parent)
    await cluster.publish_plan()
    for child in plan.children:
        await cluster.first.publish(name_of(child), b"one")
        assert await cluster.first.read(name_of(child), "s", 1) == [b"one"]


async def test_making_a_segment_again_keeps_its_messages_and_its_cursors(cluster: Cluster) -> None:
    (segment,) = await cluster.topic()
    await cluster.subscription("s")
    await cluster.segments.create(TOPIC, segment, ["s"])
    await cluster.first.publish(name_of(segment), b"one", b"two")
    await cluster.first.read(name_of(segment), "s", 1)
    before = await cursor(cluster, segment, "s")
    await cluster.segments.create(TOPIC, segment, ["s"])
    assert await cursor(cluster, segment, "s") == before
    assert await cluster.first.read(name_of(segment), "s", 1) == [b"two"]


async def test_a_segment_that_the_record_does_not_name_is_not_made(cluster: Cluster) -> None:
    await cluster.topic()
    for segment in (Segment(SegmentId(5), HashRange(0, 0xFFFF)), Segment(SegmentId(0), HashRange(0, 0x7FFF))):
        with pytest.raises(SegmentRefused):
            await cluster.segments.create(TOPIC, segment, ())
        assert await stored(cluster, segment) is None


async def test_a_sealed_segment_is_not_made_again(cluster: Cluster) -> None:
    (parent,) = await cluster.topic()
    await cluster.split()
    with pytest.raises(SegmentRefused):
        await cluster.segments.create(TOPIC, parent, ())


async def test_nothing_is_made_for_a_topic_that_does_not_exist_or_is_being_deleted(cluster: Cluster) -> None:
    (segment,) = await cluster.topic(made=False)
    await cluster.change(deleting)
    with pytest.raises(SegmentRefused):
        await cluster.segments.create(TOPIC, segment, ())
    other = TopicName.parse("topic://public/default/none")
    with pytest.raises(SegmentRefused):
        await cluster.segments.create(other, segment, ())


async def test_what_a_deleted_topic_of_the_same_name_left_behind_is_cleared_away(cluster: Cluster) -> None:
    (segment,) = await cluster.topic(generation=1)
    await cluster.subscription("old")
    await cluster.segments.create(TOPIC, segment, ["old"])
    await cluster.first.publish(name_of(segment), b"old")
    await cluster.topic(generation=2)
    opened = await cluster.first.broker.topic(name_of(segment))
    assert opened.log.entries == 0
    assert not opened.subscriptions
    assert not opened.is_sealed


async def test_a_leftover_is_not_opened_by_clients(cluster: Cluster) -> None:
    (segment,) = await cluster.topic(generation=1)
    await cluster.topic(generation=2, made=False)
    with pytest.raises(RequestRefused) as refused:
        await cluster.first.client.producer(str(name_of(segment)))
    assert refused.value.error == pb.TopicNotFound


async def test_a_subscription_deleted_meanwhile_does_not_come_back_on_a_child(cluster: Cluster) -> None:
    await cluster.topic()
    await cluster.subscription("kept")
    await cluster.subscription("going", is_deleting=True)
    plan = await cluster.plan_split()
    for child in plan.children:
        await cluster.segments.create(TOPIC, child, ["kept", "going", "gone"])
        opened = await cluster.first.broker.topic(name_of(child))
        assert set(opened.subscriptions) == {"kept"}


# -- sealing


async def test_a_sealed_segment_refuses_producers_and_publishes_after_the_receipts(cluster: Cluster) -> None:
    (parent,) = await cluster.topic()
    producer = await cluster.first.client.producer(str(name_of(parent)))
    before = await producer.send(b"before")
    await cluster.split()
    after = await producer.send(b"after")
    assert await before
    with pytest.raises(RequestRefused) as refused:
        await after
    assert refused.value.error == pb.TopicTerminatedError
    with pytest.raises(RequestRefused) as refused:
        await cluster.first.client.producer(str(name_of(parent)))
    assert refused.value.error == pb.TopicTerminatedError


async def test_what_was_acked_before_the_seal_can_be_read_after_it(cluster: Cluster) -> None:
    (parent,) = await cluster.topic()
    await cluster.first.publish(name_of(parent), b"one", b"two")
    await cluster.split()
    assert await cluster.first.read(name_of(parent), "s", 2) == [b"one", b"two"]


async def test_sealing_twice_is_harmless(cluster: Cluster) -> None:
    (parent,) = await cluster.topic()
    await cluster.first.publish(name_of(parent), b"one")
    await cluster.split()
    await cluster.segments.seal(TOPIC, parent)
    record = await stored(cluster, parent)
    assert record is not None
    assert record.sealed_end is not None


async def test_a_segment_is_not_sealed_unless_the_plan_or_the_layout_has_it_sealed(cluster: Cluster) -> None:
    (segment,) = await cluster.topic()
    with pytest.raises(SegmentRefused):
        await cluster.segments.seal(TOPIC, segment)
    await cluster.first.publish(name_of(segment), b"still open")


async def test_parent_and_children_are_never_writable_together(cluster: Cluster) -> None:
    """Not even by somebody who guesses the children's names: they open with the layout that has the parent sealed."""
    (parent,) = await cluster.topic()
    before = await cluster.first.client.producer(str(name_of(parent)))
    plan = await cluster.plan_split()
    for child in plan.children:
        await cluster.segments.create(TOPIC, child, ())
    await (await before.send(b"still open"))
    for child in plan.children:
        with pytest.raises(RequestRefused) as refused:
            await cluster.first.client.producer(str(name_of(child)))
        assert refused.value.error == pb.ServiceNotReady
    await cluster.segments.seal(TOPIC, parent)
    with pytest.raises(RequestRefused):
        await (await before.send(b"too late"))
    with pytest.raises(RequestRefused):
        await cluster.first.client.producer(str(name_of(plan.children[0])))
    await cluster.publish_plan()
    for child in plan.children:
        await cluster.first.publish(name_of(child), b"open")


async def test_a_record_found_changed_is_read_again_at_the_next_attempt(cluster: Cluster) -> None:
    """As after a write in doubt that was stored after all: the open topic knows an old version."""
    (parent,) = await cluster.topic()
    await cluster.first.publish(name_of(parent), b"one")
    await cluster.plan_split()
    path = topic_record_path(name_of(parent))
    found = await cluster.metadata.get(path)
    assert found is not None
    await cluster.metadata.put(path, found.value)
    with pytest.raises(SegmentUnavailable):
        await cluster.segments.seal(TOPIC, parent)
    await cluster.segments.seal(TOPIC, parent)
    opened = await cluster.first.broker.topic(name_of(parent))
    assert opened.is_sealed
    assert opened.log.entries == 1


async def test_a_deletion_that_failed_is_tried_again(cluster: Cluster) -> None:
    (segment,) = await cluster.topic()
    await cluster.first.publish(name_of(segment), b"one")
    await cluster.change(deleting)
    path = topic_record_path(name_of(segment))
    found = await cluster.metadata.get(path)
    assert found is not None
    await cluster.metadata.put(path, found.value)
    with pytest.raises(SegmentUnavailable):
        await cluster.segments.delete(TOPIC, segment)
    await cluster.segments.delete(TOPIC, segment)
    assert await stored(cluster, segment) is None


async def test_sealing_a_segment_whose_making_was_cut_short_makes_it_empty(cluster: Cluster) -> None:
    (parent,) = await cluster.topic(made=False)
    await cluster.split()
    opened = await cluster.first.broker.topic(name_of(parent))
    assert opened.is_sealed
    assert opened.log.entries == 0


# -- deleting


async def test_a_segment_marked_as_deleting_loses_its_storage(cluster: Cluster) -> None:
    (parent,) = await cluster.topic()
    await cluster.first.publish(name_of(parent), b"one")
    await cluster.split()
    with pytest.raises(SegmentRefused):
        await cluster.segments.delete(TOPIC, parent)
    record = await cluster.record()
    await cluster.put(type(record)(record.layout.mark_deleting([parent.id]), record.generation))
    await cluster.segments.delete(TOPIC, parent)
    assert await stored(cluster, parent) is None
    await cluster.segments.delete(TOPIC, parent)
    with pytest.raises(SegmentGone):
        await cluster.segments.status(TOPIC, parent)


async def test_every_segment_of_a_deleted_topic_goes_and_leaves_no_folder(cluster: Cluster) -> None:
    segments = await cluster.topic(3)
    await cluster.first.publish(name_of(segments[0]), b"one")
    await cluster.change(deleting)
    for segment in segments:
        await cluster.segments.delete(TOPIC, segment)
    assert await cluster.metadata.children("/managed-ledgers/public/default/segment") == []


async def test_the_schema_goes_with_the_topic_and_not_with_a_segment(cluster: Cluster) -> None:
    (parent,) = await cluster.topic()
    schemas = cluster.first.broker.schemas
    await schemas.add(name_of(parent), StoredSchema(type=pb.Schema.String, name="s", data=b""))
    await cluster.split()
    record = await cluster.record()
    await cluster.put(type(record)(record.layout.mark_deleting([parent.id]), record.generation))
    await cluster.segments.delete(TOPIC, parent)
    assert await schemas.versions(TOPIC)
    await cluster.change(deleting)
    await cluster.segments.delete(TOPIC, record.layout.active[0])
    assert not await schemas.versions(TOPIC)


async def test_leftovers_go_after_the_record_is_gone_too(cluster: Cluster) -> None:
    (segment,) = await cluster.topic()
    await cluster.metadata.delete(f"{topic_path(TOPIC)}/controller")
    await cluster.metadata.put(topic_path(TOPIC), b"")
    await cluster.segments.delete(TOPIC, segment)
    assert await stored(cluster, segment) is None


# -- subscriptions


async def test_a_cursor_is_made_once_and_never_moved(cluster: Cluster) -> None:
    (segment,) = await cluster.topic()
    await cluster.subscription("s")
    await cluster.first.publish(name_of(segment), b"one")
    await cluster.segments.create_subscription(TOPIC, segment, "s", LATEST)
    place = await cursor(cluster, segment, "s")
    await cluster.segments.create_subscription(TOPIC, segment, "s", EARLIEST)
    assert await cursor(cluster, segment, "s") == place


async def test_a_cursor_without_a_subscription_of_the_topic_is_refused(cluster: Cluster) -> None:
    (segment,) = await cluster.topic()
    with pytest.raises(SegmentRefused):
        await cluster.segments.create_subscription(TOPIC, segment, "s", EARLIEST)


async def test_a_cursor_goes_only_when_its_subscription_does(cluster: Cluster) -> None:
    (segment,) = await cluster.topic()
    await cluster.subscription("s")
    await cluster.segments.create_subscription(TOPIC, segment, "s", EARLIEST)
    with pytest.raises(SegmentRefused):
        await cluster.segments.delete_subscription(TOPIC, segment, "s")
    await cluster.subscription("s", is_deleting=True)
    await cluster.segments.delete_subscription(TOPIC, segment, "s")
    await cluster.segments.delete_subscription(TOPIC, segment, "s")
    assert "s" not in (await cluster.segments.status(TOPIC, segment)).subscriptions


async def test_seek_makes_the_cursor_that_a_latest_subscription_has_not(cluster: Cluster) -> None:
    (parent,) = await cluster.topic()
    await cluster.first.publish(name_of(parent), b"one")
    await cluster.split()
    await cluster.subscription("s", initial=LATEST)
    await cluster.segments.seek(TOPIC, parent, "s", 0)
    assert (await cluster.segments.status(TOPIC, parent)).subscriptions["s"].backlog == 1
    await cluster.segments.skip_all(TOPIC, parent, "s")
    assert (await cluster.segments.status(TOPIC, parent)).subscriptions["s"].is_drained


# -- several brokers


async def test_each_call_goes_to_the_broker_that_owns_the_segment() -> None:
    async with running(2) as cluster:
        one, other = await cluster.topic(2, made=False)
        cluster.move(name_of(other), 1)
        for segment in (one, other):
            await cluster.segments.create(TOPIC, segment, ())
        await cluster.nodes[1].publish(name_of(other), b"one")
        assert (await cluster.segments.status(TOPIC, other)).is_sealed is False
        assert name_of(other) in cluster.nodes[1].broker.loaded()
        assert name_of(other) not in cluster.nodes[0].broker.loaded()
        with pytest.raises(SegmentUnavailable):
            await cluster.first.broker.segment_owner.status(TOPIC, other)


async def test_a_merge_seals_parents_of_different_brokers() -> None:
    async with running(2) as cluster:
        one, other = await cluster.topic(2)
        await cluster.first.broker.topic(name_of(other))
        cluster.move(name_of(other), 1)
        record = await cluster.record()
        merged = record.layout.merge(one.id, other.id, 1)
        await cluster.put(type(record)(merged, record.generation))
        for parent in (one, other):
            await cluster.segments.seal(TOPIC, parent)
        for parent, node in ((one, 0), (other, 1)):
            with pytest.raises(RequestRefused) as refused:
                await cluster.nodes[node].publish(name_of(parent), b"late")
            assert refused.value.error == pb.TopicTerminatedError


async def test_a_segment_that_moves_keeps_what_was_acked_and_is_found_at_its_new_owner() -> None:
    async with running(2) as cluster:
        (segment,) = await cluster.topic()
        await cluster.subscription("s")
        await cluster.segments.create(TOPIC, segment, ["s"])
        await cluster.first.publish(name_of(segment), b"one")
        old = await cluster.first.broker.topic(name_of(segment))
        cluster.move(name_of(segment), 1)
        await old.wait_closed()
        with pytest.raises(NotReadyError) as refused:
            await cluster.first.broker.topic(name_of(segment))
        assert refused.value.retryable
        await cluster.first.publish(name_of(segment), b"two")  # The lookup leads to the new owner.
        assert await cluster.nodes[1].read(name_of(segment), "s", 2) == [b"one", b"two"]


class SilentMoves:
    """Calls to brokers that do not answer them."""

    async def last_word(self, incarnation: Incarnation, ledger: LedgerId, path: str) -> LedgerState | None:
        return None

    async def tell_open(self, owner: BrokerAddress, topics: Sequence[TopicName]) -> None:
        """It is not heard."""


async def test_an_owner_that_has_not_heard_of_the_move_and_cannot_be_asked_is_fenced() -> None:
    async with running(2, moves=lambda nodes: SilentMoves()) as cluster:
        (segment,) = await cluster.topic()
        await cluster.first.publish(name_of(segment), b"one")
        producer = await cluster.first.client.producer(str(name_of(segment)))
        old = await cluster.first.broker.topic(name_of(segment))
        cluster.owners[1].moved[name_of(segment)] = 1
        new = await cluster.nodes[1].broker.topic(name_of(segment))
        lost = await producer.send(b"never confirmed")
        await old.wait_closed()
        with pytest.raises(AnabranchError):
            await lost
        assert new.log.entries == 1


async def test_an_owner_that_has_not_heard_of_the_move_keeps_the_topic_until_it_does() -> None:
    async with running(2) as cluster:
        (segment,) = await cluster.topic()
        await cluster.first.publish(name_of(segment), b"one")
        cluster.owners[1].moved[name_of(segment)] = 1
        with pytest.raises(NotReadyError):
            await cluster.nodes[1].broker.topic(name_of(segment))
        await cluster.first.publish(name_of(segment), b"two")
        cluster.move(name_of(segment), 1)
        new = await cluster.nodes[1].broker.topic(name_of(segment))
        assert new.log.entries == 2


async def test_a_plan_goes_on_although_the_old_owner_has_sealed_nothing() -> None:
    async with running(2) as cluster:
        (parent,) = await cluster.topic()
        await cluster.first.publish(name_of(parent), b"one")
        plan = await cluster.plan_split()
        cluster.move(name_of(parent), 1)
        await cluster.segments.seal(TOPIC, parent)
        for child in plan.children:
            await cluster.segments.create(TOPIC, child, ())
        await cluster.publish_plan()
        assert await cluster.nodes[1].read(name_of(parent), "s", 1) == [b"one"]


# -- segments that stand for classic topics


async def migrated(cluster: Cluster) -> Segment:
    """A classic topic that is being turned into a scalable one: the segment that stands for it."""
    classic = "persistent://public/default/orders"
    await cluster.first.publish(TopicName.parse(classic), b"one")
    layout = SegmentLayout.migrated([classic], 1)
    await cluster.put(ScalableTopic(layout, 3))
    await cluster.metadata.create(
        f"{topic_path(TOPIC)}/controller", b"pulsar://elsewhere:6650", ephemeral=True
    )
    return layout.segments[SegmentId(0)]


async def test_a_classic_topic_is_sealed_and_read_as_a_segment(cluster: Cluster) -> None:
    legacy = await migrated(cluster)
    await cluster.segments.seal(TOPIC, legacy)
    await cluster.subscription("s")
    await cluster.segments.create_subscription(TOPIC, legacy, "s", EARLIEST)
    status = await cluster.segments.status(TOPIC, legacy)
    assert status.is_sealed
    assert status.subscriptions["s"].backlog == 1
    assert not status.subscriptions["s"].is_drained
    with pytest.raises(RequestRefused) as refused:
        await cluster.first.publish(TopicName.parse(legacy.classic_topic), b"late")
    assert refused.value.error == pb.TopicTerminatedError


async def test_a_classic_topic_goes_with_the_scalable_topic_it_became(cluster: Cluster) -> None:
    legacy = await migrated(cluster)
    with pytest.raises(SegmentRefused):
        await cluster.segments.delete(TOPIC, legacy)
    await cluster.change(deleting)
    await cluster.segments.delete(TOPIC, legacy)
    assert await cluster.first.broker.known.stored(TOPIC.namespace) == []


async def test_a_classic_topic_is_touched_for_no_other_scalable_topic(cluster: Cluster) -> None:
    legacy = await migrated(cluster)
    stranger = replace(legacy, classic_topic="persistent://public/default/precious")
    await cluster.first.publish(TopicName.parse(stranger.classic_topic), b"one")
    await cluster.change(deleting)
    for act in (cluster.segments.seal, cluster.segments.delete):
        with pytest.raises(SegmentRefused):
            await act(TOPIC, stranger)
    await cluster.first.publish(TopicName.parse(stranger.classic_topic), b"two")


async def test_a_subscription_on_a_sealed_classic_topic_registers_at_the_scalable_one(
    cluster: Cluster,
) -> None:
    legacy = await migrated(cluster)
    await cluster.segments.seal(TOPIC, legacy)
    for segment in (await cluster.record()).layout.active:
        await cluster.segments.create(TOPIC, segment, ())
    assert await cluster.first.read(TopicName.parse(legacy.classic_topic), "s", 1) == [b"one"]
    assert await cluster.stored_subscription("s") is not None


async def test_a_classic_topic_of_a_scalable_topics_name_is_not_made_by_use(cluster: Cluster) -> None:
    await cluster.topic()
    with pytest.raises(RequestRefused, match="V5 client"):
        await cluster.first.client.producer("persistent://public/default/orders")
