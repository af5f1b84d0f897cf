"""Consumers that share a segment by entry buckets, over sockets; the test stores the sessions, as a controller does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from anabranch.broker.dispatch.entry_buckets import EntryBucketDispatcher
from anabranch.broker.observe.subscription_stats import subscription_stats
from anabranch.broker.scalable.owner.bucket_owners import owners_of
from anabranch.broker.subscription.subscription import Subscription
from anabranch.client import Message, RequestRefused
from anabranch.model import buckets
from anabranch.model.buckets import Splits
from anabranch.model.hidden_writes import WriteBatch
from anabranch.model.names import TopicName
from anabranch.model.scalable import ConsumerRecord, SubscriptionKind, consumer_path
from anabranch.model.segments import Segment, SegmentId
from anabranch.wire import pulsar_pb2 as pb
from harness.simple_client import Client, Consumer, Hidden, Producer
from unit.broker.scalable.cluster import TOPIC, Cluster, Node, name_of, running, until

FOUR = buckets.even(4)
KEY_SHARED = pb.CommandSubscribe.Key_Shared
EXCLUSIVE = pb.CommandSubscribe.Exclusive
ZERO = SegmentId(0)


def declared(splits: Splits, mode: pb.KeySharedMode = pb.STICKY) -> pb.KeySharedMeta:
    meta = pb.KeySharedMeta(keySharedMode=mode, entryBucketDispatch=True)
    for one in buckets.ranges(splits):
        meta.hashRanges.add(start=one.start, end=one.end)
    return meta


class Shared:
    """A topic of one segment, whose sessions the test stores."""

    def __init__(self, cluster: Cluster, segment: Segment) -> None:
        self.cluster = cluster
        self.segment = segment
        self.name: TopicName = name_of(segment)
        self.clients: list[Client] = []

    async def store(self, name: str, *numbers: int, kind: SubscriptionKind = SubscriptionKind.STREAM) -> None:
        """The consumer's share of the segment; without numbers all of it."""
        shares = {self.segment.id: numbers} if numbers else {}
        record = ConsumerRecord(name, kind, (self.segment.id,), shares=shares, knows_buckets=True)
        await self.cluster.metadata.put(consumer_path(TOPIC, "sub", name), record.encode())

    async def drop(self, name: str) -> None:
        await self.cluster.metadata.delete(consumer_path(TOPIC, "sub", name))

    async def subscribe(
        self, name: str, kind: int, node: Node | None = None, own: bool = False, **options: Any
    ) -> Consumer:
        client = (node or self.cluster.first).client
        if own:
            client = Client((node or self.cluster.first).broker.service_url)
            self.clients.append(client)
        return await client.consumer(
            str(self.name), "sub", kind=kind, earliest=True, consumer_name=f"{name}-seg-0", **options
        )

    async def sharer(self, name: str, node: Node | None = None, **options: Any) -> Consumer:
        meta = declared(self.segment.bucket_splits)
        return await self.subscribe(name, KEY_SHARED, node, **{"keySharedMeta": meta, **options})

    async def producer(self, node: Node | None = None) -> Producer:
        return await (node or self.cluster.first).client.producer(str(self.name))

    def subscription(self, node: Node | None = None) -> Subscription:
        return (node or self.cluster.first).broker.loaded()[self.name].subscriptions["sub"]


@pytest.fixture
async def shared() -> AsyncIterator[Shared]:
    async with running(2) as cluster:
        (segment,) = await cluster.topic(splits=FOUR)
        await cluster.subscription("sub")
        made = Shared(cluster, segment)
        yield made
        for client in made.clients:
            await client.close()


async def send(producer: Producer, *bucket_numbers: int) -> None:
    for number in bucket_numbers:
        start = buckets.ranges(FOUR)[number].start
        receipt = await producer.send(b"%d" % number, hashes=(start, start))
        await receipt


async def take(consumer: Consumer, count: int) -> list[Message]:
    async with asyncio.timeout(10):
        return [await consumer.receive() for _ in range(count)]


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.payload for message in messages]


# -- who owns what


def member(name: str, *numbers: int, kind: SubscriptionKind = SubscriptionKind.STREAM) -> ConsumerRecord:
    return ConsumerRecord(name, kind, (ZERO,), shares={ZERO: numbers} if numbers else {})


def test_a_consumer_with_the_whole_segment_owns_all_its_buckets() -> None:
    assert owners_of([member("a")], ZERO, 3) == ("a-seg-0",) * 3
    assert owners_of([member("a")], SegmentId(1), 3) == (None,) * 3


def test_a_bucket_that_two_records_name_has_no_owner() -> None:
    records = [member("a", 0, 1), member("b", 1, 2), member("c", 1)]
    assert owners_of(records, ZERO, 4) == ("a-seg-0", None, "b-seg-0", None)
    assert owners_of([member("a"), member("b", 2)], ZERO, 3) == ("a-seg-0", "a-seg-0", None)


def test_numbers_outside_the_segment_and_other_kinds_of_consumers_do_not_count() -> None:
    records = [member("a", 0, 9, -1), member("b", 1, kind=SubscriptionKind.CHECKPOINT)]
    assert owners_of(records, ZERO, 2) == ("a-seg-0", None)


async def test_entries_go_to_the_owners_that_the_sessions_name(shared: Shared) -> None:
    await shared.store("a", 0, 2)
    await shared.store("b", 1, 3)
    a, b = await shared.sharer("a"), await shared.sharer("b")
    await send(await shared.producer(), 0, 1, 2, 3, 0, 3)
    assert bodies(await take(a, 3)) == [b"0", b"2", b"0"]
    assert bodies(await take(b, 3)) == [b"1", b"3", b"3"]


async def test_a_bucket_moves_with_the_records_once_its_owner_has_acknowledged(shared: Shared) -> None:
    await shared.store("a")
    a, b = await shared.sharer("a"), await shared.sharer("b")
    producer = await shared.producer()
    await send(producer, 3)
    (held,) = await take(a, 1)
    await shared.store("a", 0, 1, 2)
    await shared.store("b", 3)
    subscription = shared.subscription()

    def reassigned() -> bool:
        return bool(subscription_stats(subscription)["entryBucketReassignments"] == 1)

    await until(reassigned)
    await send(producer, 3, 0)
    assert bodies(await take(a, 1)) == [b"0"]
    assert subscription_stats(subscription)["entryBucketsWithheld"] == 1
    page = (await shared.cluster.first.http.get("/metrics")).text
    topic, _, segment = str(shared.name).removeprefix("segment://").rpartition("/")
    labels = f'namespace="public/default",topic="topic://{topic}",segment="{segment}"'
    assert f'anabranch_scalable_segment_entry_buckets{{cluster="standalone",{labels}}} 4' in page.splitlines()
    for figure, value in {
        "sharers": 2,
        "bucket_reassignments_total": 1,
        "buckets_withheld": 1,
    }.items():
        found = [one for one in page.splitlines() if one.startswith(f"anabranch_scalable_segment_{figure}{{")]
        assert [one.split()[-1] for one in found] == [str(value)], figure
        assert f'{labels},subscription="sub"' in found[0]
    await a.ack(held)
    assert bodies(await take(b, 1)) == [b"3"]
    assert subscription_stats(subscription)["entryBucketsWithheld"] == 0


async def test_a_bucket_that_two_sessions_name_is_withheld_until_they_agree(shared: Shared) -> None:
    await shared.store("a")
    await shared.store("b", 1)
    a, b = await shared.sharer("a"), await shared.sharer("b")
    await send(await shared.producer(), 1, 0)
    assert bodies(await take(a, 1)) == [b"0"]
    await shared.store("a", 0, 2, 3)
    assert bodies(await take(b, 1)) == [b"1"]


async def test_a_consumer_that_is_not_there_keeps_its_buckets(shared: Shared) -> None:
    await shared.store("a", 0, 1)
    await shared.store("b", 2, 3)
    a = await shared.sharer("a")
    await send(await shared.producer(), 2, 0)
    assert bodies(await take(a, 1)) == [b"0"]
    b = await shared.sharer("b")
    assert bodies(await take(b, 1)) == [b"2"]


async def test_a_removed_session_gives_its_buckets_on_with_what_it_held(shared: Shared) -> None:
    await shared.store("a", 0, 1)
    await shared.store("b", 2, 3)
    a, b = await shared.sharer("a"), await shared.sharer("b")
    await send(await shared.producer(), 0, 1, 2)
    await take(a, 2)
    await take(b, 1)
    await a.close()
    await shared.drop("a")
    await shared.store("b", 0, 1, 2, 3)
    assert bodies(await take(b, 2)) == [b"0", b"1"]


async def test_a_new_owner_of_the_segment_restores_the_progress_of_each_bucket(shared: Shared) -> None:
    """The broker goes away in the middle of a hand-over: the bucket is withheld from its new owner."""
    await shared.store("a")
    a = await shared.sharer("a")
    await shared.sharer("b")
    producer = await shared.producer()
    await send(producer, 0, 3, 1, 3, 2)
    held = await take(a, 5)
    for message in (held[0], held[2], held[3]):
        await a.ack(message)
    await shared.store("a", 0, 1, 2)
    await shared.store("b", 3)
    await send(producer, 3, 0)
    second = shared.cluster.nodes[1]
    shared.cluster.move(shared.name, 1)
    b = await shared.sharer("b", second)
    a = await shared.sharer("a", second)
    assert bodies(await take(b, 2)) == [b"3", b"3"]
    assert bodies(await take(a, 2)) == [b"2", b"0"]
    assert shared.subscription(second).backlog() == 4


@pytest.mark.parametrize(
    "stamp", [(None, None), (7, None), (None, 7), (9, 8), (3, 1 << 17), (1 << 31, 1 << 31)]
)
async def test_an_odd_stamp_costs_no_message_and_no_order(
    shared: Shared, stamp: tuple[int | None, int | None]
) -> None:
    await shared.store("a", 0, 1)
    await shared.store("b", 2, 3)
    a, b = await shared.sharer("a"), await shared.sharer("b")
    producer = await shared.producer()
    await send(producer, 3)
    await (await producer.send(b"odd", hashes=stamp))
    await send(producer, 3, 0)
    (first,) = await take(b, 1)
    await b.ack(first)
    odd = await take(a, 2)
    assert bodies(odd) == [b"odd", b"0"]
    await a.ack(odd[0])
    assert bodies(await take(b, 1)) == [b"3"]


# -- who may share


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [(0, 65_535)],
        [(0, 16_383), (16_384, 32_767), (32_768, 49_151)],
        [(0, 16_383), (16_384, 32_767), (32_768, 49_151), (49_152, 65_534)],
        [(0, 16_382), (16_383, 32_767), (32_768, 49_151), (49_152, 65_535)],
        [(16_384, 32_767), (0, 16_383), (32_768, 49_151), (49_152, 65_535)],
        [(5, 3)],
        [(-1, 1 << 20)],
    ],
)
async def test_a_sharer_must_declare_the_buckets_of_the_segment(
    shared: Shared, ranges: list[tuple[int, int]]
) -> None:
    meta = pb.KeySharedMeta(keySharedMode=pb.STICKY, entryBucketDispatch=True)
    for start, end in ranges:
        meta.hashRanges.add(start=start, end=end)
    with pytest.raises(RequestRefused) as refused:
        await shared.sharer("a", keySharedMeta=meta)
    assert refused.value.error == pb.ConsumerAssignError


async def test_sharing_needs_the_mode_sticky(shared: Shared) -> None:
    with pytest.raises(RequestRefused) as refused:
        await shared.sharer("a", keySharedMeta=declared(FOUR, pb.AUTO_SPLIT))
    assert refused.value.error == pb.ConsumerAssignError


async def test_a_classic_topic_has_no_entry_buckets(shared: Shared) -> None:
    with pytest.raises(RequestRefused) as refused:
        await shared.cluster.first.client.consumer(
            "persistent://public/default/classic", "sub", kind=KEY_SHARED, keySharedMeta=declared(FOUR)
        )
    assert refused.value.error == pb.NotAllowedError


@pytest.mark.parametrize("options", [{"read_compacted": True}, {"durable": False}])
async def test_sharers_read_neither_compacted_nor_without_a_cursor(
    shared: Shared, options: dict[str, Any]
) -> None:
    with pytest.raises(RequestRefused) as refused:
        await shared.sharer("a", **options)
    assert refused.value.error == pb.NotAllowedError


async def test_a_cumulative_acknowledgement_is_refused(shared: Shared) -> None:
    await shared.store("a")
    a = await shared.sharer("a")
    await send(await shared.producer(), 0, 1)
    held = await take(a, 2)
    with pytest.raises(RequestRefused) as refused:
        await a.ack_up_to(held[1])
    assert refused.value.error == pb.NotAllowedError
    assert shared.subscription().backlog() == 2


async def test_a_subscription_that_a_sharer_creates_keeps_the_order_of_a_stream(shared: Shared) -> None:
    client = shared.cluster.first.client
    await client.consumer(
        str(shared.name), "other", kind=KEY_SHARED, earliest=True, keySharedMeta=declared(FOUR)
    )
    stored = await shared.cluster.stored_subscription("other")
    assert stored is not None
    assert stored.kind is SubscriptionKind.STREAM


# -- from one consumer to several, and back


async def test_a_sharer_waits_for_the_exclusive_holder_to_come_back_as_a_sharer(shared: Shared) -> None:
    await shared.store("a", 0, 1)
    await shared.store("b", 2, 3)
    alone = await shared.subscribe("a", EXCLUSIVE)
    await send(await shared.producer(), 0, 3)
    held = await take(alone, 2)
    coming = asyncio.create_task(shared.sharer("b", own=True))
    await alone.ack(held[0])
    assert not coming.done()
    await alone.close()
    b, a = await coming, await shared.sharer("a")
    assert bodies(await take(b, 1)) == [b"3"]
    await send(await shared.producer(), 0)
    assert bodies(await take(a, 1)) == [b"0"]


async def test_an_exclusive_consumer_waits_until_all_sharers_have_left(shared: Shared) -> None:
    a, b = await shared.sharer("a"), await shared.sharer("b")
    coming = asyncio.create_task(shared.subscribe("a", EXCLUSIVE, own=True))
    await a.close()
    await shared.cluster.first.http.get("/metrics")
    assert not coming.done()
    await b.close()
    await coming


async def test_a_sharer_that_no_session_names_does_not_keep_the_last_of_a_group_waiting(
    shared: Shared,
) -> None:
    await shared.store("a", 0, 1, 2, 3)
    await shared.sharer("nobody", own=True)
    a = await shared.sharer("a", own=True)
    producer = await shared.producer()
    await send(producer, 0)
    assert bodies(await take(a, 1)) == [b"0"]
    await a.close()
    await shared.store("a")
    async with asyncio.timeout(5):
        alone = await shared.subscribe("a", EXCLUSIVE)
    await send(producer, 1)
    assert bodies(await take(alone, 2)) == [b"0", b"1"]
    assert [one.name for one in shared.subscription().consumers] == ["a-seg-0"]


async def test_a_sharer_whose_client_has_vanished_makes_room_for_itself(shared: Shared) -> None:
    await shared.store("a")
    first = await shared.sharer("a", own=True)
    coming = asyncio.create_task(shared.sharer("a"))
    await first.close()
    await send(await shared.producer(), 1)
    assert bodies(await take(await coming, 1)) == [b"1"]


async def test_names_that_are_no_segment_consumers_are_refused_at_once(shared: Shared) -> None:
    await shared.subscribe("a", EXCLUSIVE)
    with pytest.raises(RequestRefused) as refused:
        await shared.cluster.first.client.consumer(
            str(shared.name), "sub", kind=KEY_SHARED, consumer_name="plain", keySharedMeta=declared(FOUR)
        )
    assert refused.value.error == pb.ConsumerBusy


async def test_plain_key_shared_consumers_of_a_segment_take_no_notice_of_stamps(shared: Shared) -> None:
    other = await shared.cluster.first.client.consumer(
        str(shared.name), "queue", kind=KEY_SHARED, earliest=True
    )
    await send(await shared.producer(), 3, 0, 2)
    assert bodies(await take(other, 3)) == [b"3", b"0", b"2"]


async def test_a_segment_with_one_bucket_may_be_declared_as_one(shared: Shared) -> None:
    plain = TopicName.parse("topic://public/default/plain")
    (segment,) = await shared.cluster.topic(topic=plain)
    client = shared.cluster.first.client
    await client.consumer(str(segment.topic(plain)), "sub", kind=KEY_SHARED, keySharedMeta=declared(()))
    with pytest.raises(RequestRefused):
        await client.consumer(str(segment.topic(plain)), "sub", kind=KEY_SHARED, keySharedMeta=declared(FOUR))


async def test_one_open_hidden_write_holds_all_sharers(shared: Shared) -> None:
    await shared.store("a", 0, 1)
    await shared.store("b", 2, 3)
    a, b = await shared.sharer("a"), await shared.sharer("b")
    hidden = await shared.cluster.first.client.producer(str(shared.name), hidden=Hidden("job", 0, "a" * 32))
    await (await hidden.send(b"won", hashes=(1, 1)))
    await send(await shared.producer(), 0, 3)
    subscription = shared.subscription()
    assert isinstance(subscription.dispatcher, EntryBucketDispatcher)
    await until(lambda: subscription.topic_log.is_hiding)
    assert (subscription.dispatcher.is_all_sent, subscription.messages_out) == (True, 0)
    decided = await shared.cluster.first.rest(
        "PUT", "anabranch/writes/job/0", json={"winners": ["a" * 32], "topics": [str(shared.name)]}
    )
    assert decided.status_code == 200, decided.text
    await shared.cluster.first.broker.loaded()[shared.name].hidden.reveal(WriteBatch("job", 0))
    assert (bodies(await take(a, 2)), bodies(await take(b, 1))) == ([b"won", b"0"], [b"3"])
