"""Deduplication on a segment with several entry buckets, as its producers see it over their connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.observe.metrics_buckets import PER_ENTRY, BucketLines
from anabranch.broker.observe.metrics_page import Page
from anabranch.broker.observe.topic_stats import topic_stats
from anabranch.broker.state.bucket_dedup import BucketDeduplication
from anabranch.broker.topic.topic import SEALED_OK, Topic
from anabranch.client import ClientConnection
from anabranch.client.transport.connection import PartKind
from anabranch.model.buckets import even, ranges
from anabranch.model.hidden_writes import attempt_bits
from anabranch.model.names import TopicName
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_batch, build_entry, encode_send
from anabranch.wire.extensions import ASK_SEQUENCE_ID
from harness.simple_client import Hidden
from unit.broker.balance.topic_channel import SilentMoves
from unit.broker.scalable.cluster import TOPIC, Cluster, Node, name_of, running

C = pb.BaseCommand
BUCKETS = ranges(even(4))
# What a producer may find in an answer: the id by bucket, that of no single bucket, and the highest.
Told = tuple[dict[int, int], int, int]
NOTHING: Told = ({}, -1, -1)
DEDUPLICATING = BrokerConfig(broker_deduplication_enabled=True)


class Sender:
    """A producer that chooses its ids and stamps."""

    def __init__(self, connection: ClientConnection, number: int) -> None:
        self.connection = connection
        self.id = number
        self.name = ""
        self.answers: asyncio.Queue[Any] = asyncio.Queue()

    def received(self, kind: int, body: object, payload: memoryview | None) -> None:
        self.answers.put_nowait(body)

    def lost(self, error: Exception) -> None: ...

    def write(
        self,
        last: int,
        *stamp: int | None,
        chunk: tuple[int, int] | None = None,
        attempt: str | None = None,
        messages: int = 1,
    ) -> None:
        """An entry that names this id; one number as a stamp means a bucket, two mean the range itself."""
        metadata = pb.MessageMetadata(producer_name=self.name, sequence_id=last, publish_time=1)
        if len(stamp) == 1 and stamp[0] is not None:
            metadata.entry_hash_min, metadata.entry_hash_max = BUCKETS[stamp[0]].start, BUCKETS[stamp[0]].end
        elif len(stamp) == 2:
            low, high = stamp
            if low is not None:
                metadata.entry_hash_min = low
            if high is not None:
                metadata.entry_hash_max = high
        if attempt is not None:
            metadata.txnid_most_bits, metadata.txnid_least_bits = attempt_bits(attempt)
        if chunk is not None:
            metadata.uuid, (metadata.chunk_id, metadata.num_chunks_from_msg) = "u", chunk
        entry = build_entry(metadata, b"%d" % last)
        if messages > 1:
            entry = build_batch(metadata, [(pb.SingleMessageMetadata(), b"x")] * messages)
        frame = encode_send(
            entry,
            producer_id=self.id,
            sequence_id=last,
            num_messages=messages,
            is_chunk=chunk is not None,
        )
        self.connection.write_now(frame)

    async def is_stored(self) -> bool:
        """Whether the next answer says that the entry was stored now; False for a duplicate."""
        answer = await asyncio.wait_for(self.answers.get(), 10)
        assert isinstance(answer, pb.CommandSendReceipt), answer
        return answer.message_id.entryId != 2**64 - 1

    async def send(self, last: int, *stamp: int | None, **more: Any) -> bool:
        self.write(last, *stamp, **more)
        return await self.is_stored()


async def ask(
    cluster: Cluster, topic: TopicName, name: str, node: Node | None = None, metadata: Mapping[str, str] = {}
) -> tuple[Sender, pb.CommandProducerSuccess]:
    connection = await ClientConnection.open((node or cluster.first).broker.service_url)
    cluster.connections.append(connection)
    made = connection.attach(PartKind.PRODUCER, lambda number: Sender(connection, number))
    answer = await connection.request(
        C.PRODUCER,
        "producer",
        topic=str(topic),
        producer_id=made.id,
        producer_name=name,
        user_provided_producer_name=True,
        metadata=[pb.KeyValue(key=key, value=value) for key, value in metadata.items()],
    )
    made.name = name
    return made, answer


async def sender(
    cluster: Cluster, topic: TopicName, name: str = "p", metadata: Mapping[str, str] = {}
) -> Sender:
    return (await ask(cluster, topic, name, metadata=metadata))[0]


async def told(cluster: Cluster, topic: TopicName, name: str = "p", node: Node | None = None) -> Told:
    _, answer = await ask(cluster, topic, name, node, {ASK_SEQUENCE_ID: "true"})
    return _told(answer)


def _told(answer: pb.CommandProducerSuccess) -> Told:
    assert answer.HasField("anabranch_whole_sequence_id"), "so a client knows that ids are judged by bucket"
    buckets = {one.bucket: one.last_sequence_id for one in answer.anabranch_buckets}
    return buckets, answer.anabranch_whole_sequence_id, answer.last_sequence_id


async def segment(cluster: Cluster, buckets: int = 4) -> TopicName:
    (made,) = await cluster.topic(buckets=buckets)
    return name_of(made)


async def opened(cluster: Cluster, topic: TopicName) -> Topic:
    return await cluster.first.broker.topic(topic)


async def reopened(cluster: Cluster, topic: TopicName) -> Topic:
    await (await opened(cluster, topic)).close()
    return await opened(cluster, topic)


def lose_first(cluster: Cluster, topic: TopicName) -> Node:
    """Another broker takes the topic, as after a crash: the first one is fenced and not asked."""
    for owners in cluster.owners:
        owners.moved[topic] = 1
    return cluster.nodes[1]


async def deduplicate(cluster: Cluster, is_on: bool) -> None:
    answer = await cluster.first.rest("POST", "namespaces/public/default/deduplication", json=is_on)
    assert answer.status_code == 204


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with running(2, config=DEDUPLICATING, moves=lambda nodes: SilentMoves()) as made:
        yield made


@pytest.fixture
async def handing_over() -> AsyncIterator[Cluster]:
    async with running(2, config=DEDUPLICATING) as made:
        yield made


@pytest.fixture
async def undecided() -> AsyncIterator[Cluster]:
    """Without deduplication until it is turned on."""
    async with running(2, moves=lambda nodes: SilentMoves()) as made:
        yield made


async def test_each_bucket_is_judged_by_its_own_ids(cluster: Cluster) -> None:
    topic = await segment(cluster)
    made = await sender(cluster, topic)
    entries = [(2, 1), (4, 1), (1, 0), (3, 0), (5, 3)]
    for last, bucket in entries:
        assert await made.send(last, bucket), "the ids of buckets interleave"
    for last, bucket in entries:
        assert not await made.send(last, bucket)
    assert (await opened(cluster, topic)).log.entries == 5
    assert await told(cluster, topic) == ({0: 3, 1: 4, 3: 5}, -1, 5)
    assert await told(cluster, topic, "q") == NOTHING
    await made.connection.close()
    _, again = await ask(cluster, topic, "p")
    assert _told(again) == ({0: 3, 1: 4, 3: 5}, -1, 5)


async def test_what_is_in_no_single_bucket_counts_for_all(cluster: Cluster) -> None:
    topic = await segment(cluster)
    made = await sender(cluster, topic)
    assert await made.send(4, 1)
    assert not await made.send(3)
    assert await made.send(7)
    assert not await made.send(6, 2)
    assert await made.send(8, BUCKETS[0].end, BUCKETS[1].start)
    assert not await made.send(8, 0)
    assert await told(cluster, topic) == ({1: 4}, 8, 8)


@pytest.mark.parametrize(
    "stamp",
    [(), (7, None), (None, 7), (0, None), (9, 8), (5, 0x10000), (0x10000, 0x10001), (0xFFFFFFFF, 0xFFFFFFFF)],
)
async def test_a_stamp_that_no_producer_can_mean_is_none(
    cluster: Cluster, stamp: tuple[int | None, ...]
) -> None:
    topic = await segment(cluster)
    made = await sender(cluster, topic)
    assert await made.send(1, *stamp)
    assert await told(cluster, topic) == ({}, 1, 1)
    after = await reopened(cluster, topic)
    assert after.log.entries == 1
    assert await told(cluster, topic) == ({}, 1, 1)


async def test_ids_are_known_after_the_topic_was_closed_or_handed_over(handing_over: Cluster) -> None:
    cluster = handing_over
    topic = await segment(cluster)
    made = await sender(cluster, topic)
    for last, bucket in [(4, 1), (3, 0)]:
        assert await made.send(last, bucket)
    expected: Told = ({0: 3, 1: 4}, -1, 4)
    await reopened(cluster, topic)
    assert await told(cluster, topic) == expected
    cluster.move(topic, 1)
    assert await told(cluster, topic, node=cluster.nodes[1]) == expected
    again, _ = await ask(cluster, topic, "p", cluster.nodes[1])
    assert await again.send(6, 1)
    assert await again.send(5, 2)
    assert await again.send(7)
    cluster.move(topic, 0)
    assert await told(cluster, topic) == ({0: 3, 1: 6, 2: 5}, 7, 7)


async def test_a_crash_leaves_what_the_log_says_of_each_bucket(cluster: Cluster) -> None:
    topic = await segment(cluster)
    made = await sender(cluster, topic)
    entries = [(4, 1), (3, 0), (6, 1), (5, 2), (1, 3)]
    for last, bucket in entries:
        assert await made.send(last, bucket)
    node = lose_first(cluster, topic)
    assert await told(cluster, topic, node=node) == ({0: 3, 1: 6, 2: 5, 3: 1}, -1, 6)
    again, _ = await ask(cluster, topic, "p", node)
    for last, bucket in entries:
        assert not await again.send(last, bucket), "it has its receipt, and is stored"
    assert await again.send(2, 3), "it was never stored, however high the other buckets are"


async def test_a_sealed_segment_says_what_it_holds_of_each_bucket(cluster: Cluster) -> None:
    topic = await segment(cluster)
    made = await sender(cluster, topic)
    for last, bucket in [(4, 1), (3, 0)]:
        assert await made.send(last, bucket)
    await cluster.split()
    expected: Told = ({0: 3, 1: 4}, -1, 4)
    assert await told(cluster, topic) == expected
    await made.connection.close()
    _, attached = await ask(cluster, topic, "p", metadata=dict([SEALED_OK]))
    assert _told(attached) == expected
    await deduplicate(cluster, False)
    await reopened(cluster, topic)
    assert await told(cluster, topic) == expected, "whatever the policy is by now"


async def test_a_child_judges_by_its_own_buckets(cluster: Cluster) -> None:
    await segment(cluster)
    left, _ = await cluster.split()
    assert left.bucket_splits == even(2)
    made = await sender(cluster, name_of(left))
    assert await made.send(4, 2)
    assert await made.send(3, 1)
    assert not await made.send(4, 3), "the same bucket here"
    assert await told(cluster, name_of(left)) == ({0: 3, 1: 4}, -1, 4)


async def test_a_sealed_segment_says_it_after_a_crash_without_deduplication(cluster: Cluster) -> None:
    topic = await segment(cluster)
    made = await sender(cluster, topic)
    for last, bucket in [(4, 1), (3, 0)]:
        assert await made.send(last, bucket)
    await cluster.split()
    node = lose_first(cluster, topic)
    answer = await node.rest("POST", "namespaces/public/default/deduplication", json=False)
    assert answer.status_code == 204
    assert await told(cluster, topic, node=node) == ({0: 3, 1: 4}, -1, 4)


async def test_nobody_is_told_of_what_is_on_its_way_to_the_disk(cluster: Cluster) -> None:
    topic = await segment(cluster)
    made = await sender(cluster, topic)
    assert await made.send(4, 1)
    held = await opened(cluster, topic)
    held.publishing.dedup.push("p", 3, -1, 0)
    assert held.stored_ids("p").by_lane == {1: 4}
    assert held.publishing.dedup.is_behind("p"), "who asks has to wait, though the highest id is stored"


async def test_a_chunked_message_is_judged_at_the_last_chunk_of_its_bucket(cluster: Cluster) -> None:
    topic = await segment(cluster)
    made = await sender(cluster, topic)
    assert await made.send(9, 1)
    for chunk in range(2):
        assert await made.send(5, 2, chunk=(chunk, 3))
    assert await told(cluster, topic) == ({1: 9}, -1, 9)
    node = lose_first(cluster, topic)
    assert await told(cluster, topic, node=node) == ({1: 9}, -1, 9)
    again, _ = await ask(cluster, topic, "p", node)
    for chunk in range(3):
        assert await again.send(5, 2, chunk=(chunk, 3))
    assert not await again.send(5, 2, chunk=(0, 3))
    assert await told(cluster, topic, node=node) == ({1: 9, 2: 5}, -1, 9)


# -- deduplication that is turned on and off


async def test_without_deduplication_nothing_is_told(undecided: Cluster) -> None:
    topic = await segment(undecided)
    made = await sender(undecided, topic)
    for _ in range(2):
        assert await made.send(4, 1)
    assert await told(undecided, topic) == NOTHING


async def test_deduplication_turned_on_starts_from_the_ids_of_each_bucket(undecided: Cluster) -> None:
    topic = await segment(undecided)
    made, other = await sender(undecided, topic), await sender(undecided, topic, "q")
    for last, bucket in [(1, 0), (2, 1), (3, 3)]:
        assert await made.send(last, bucket)
        assert await other.send(last + 10, bucket)
    await other.connection.close()
    await deduplicate(undecided, True)
    assert await told(undecided, topic) == ({0: 1, 1: 2, 3: 3}, -1, 3)
    assert not await made.send(2, 1)
    assert await made.send(2, 2)
    assert await told(undecided, topic, "q") == ({0: 11, 1: 12, 3: 13}, -1, 13)


@pytest.mark.parametrize("how", ["open", "closed", "lost"])
async def test_what_a_producer_that_began_again_has_not_stored_is_not_taken_for_stored(
    undecided: Cluster, how: str
) -> None:
    topic = await segment(undecided)
    made = await sender(undecided, topic)
    for last, bucket in [(90, 0), (91, 1)]:
        assert await made.send(last, bucket)
    # Without deduplication its ids may begin again from 0.
    assert await made.send(0, 2)
    node = undecided.first
    if how == "closed":
        await made.connection.close()
        await (await opened(undecided, topic)).close()
    elif how == "lost":
        node = lose_first(undecided, topic)
    await deduplicate(undecided, True)
    assert await told(undecided, topic, node=node) == ({2: 0}, -1, 0)
    again = made if how == "open" else (await ask(undecided, topic, "p", node))[0]
    assert await again.send(1, 1)
    assert await again.send(2, 0)
    assert not await again.send(0, 2)


async def test_entries_that_were_judged_are_known_after_a_crash_also_where_that_began_lately(
    undecided: Cluster,
) -> None:
    topic = await segment(undecided)
    made = await sender(undecided, topic)
    assert await made.send(1, 0)
    await deduplicate(undecided, True)
    for last, bucket in [(4, 1), (3, 0), (6, 1), (5, 2)]:
        assert await made.send(last, bucket)
    node = lose_first(undecided, topic)
    assert await told(undecided, topic, node=node) == ({0: 3, 1: 6, 2: 5}, -1, 6)


async def test_entries_from_a_time_without_deduplication_are_not_called_judged(cluster: Cluster) -> None:
    topic = await segment(cluster)
    made = await sender(cluster, topic)
    for last, bucket in [(4, 1), (3, 0)]:
        assert await made.send(last, bucket)
    await deduplicate(cluster, False)
    assert await made.send(0, 2), "it begins again"
    node = lose_first(cluster, topic)
    await deduplicate(cluster, True)
    assert await told(cluster, topic, node=node) == ({2: 0}, -1, 0)
    again, _ = await ask(cluster, topic, "p", node)
    assert await again.send(2, 1)


async def test_what_was_on_its_way_when_deduplication_was_turned_off_and_on_is_still_known(
    cluster: Cluster,
) -> None:
    topic = await segment(cluster)
    made = await sender(cluster, topic)
    for last, bucket in [(4, 1), (5, 0)]:
        assert await made.send(last, bucket)
    await deduplicate(cluster, False)
    assert await made.send(6, 2)
    await deduplicate(cluster, True)
    assert await told(cluster, topic) == ({1: 4, 0: 5, 2: 6}, -1, 6)


async def test_deduplication_that_never_began_leaves_the_ids_of_its_producers(undecided: Cluster) -> None:
    topic = await segment(undecided)
    made = await sender(undecided, topic)
    await (await opened(undecided, topic)).create_subscription("s", "earliest", {}, is_limited=False)
    assert await made.send(90, 1)
    node = lose_first(undecided, topic)
    again, _ = await ask(undecided, topic, "p", node)
    assert await again.send(1, 0)
    held = await node.broker.topic(topic)
    assert held.sequence_ids.unread_from is not None, "it has to be read before deduplication begins"
    for is_wanted in (True, False):
        held.sequence_ids.want(is_wanted)
    assert held.producers["p"].last_ids == {0: 1}


# -- who does not stamp


@pytest.mark.parametrize("is_deduplicating", [True, False])
async def test_entries_in_no_single_bucket_are_counted_with_their_producer(
    cluster: Cluster, is_deduplicating: bool
) -> None:
    await deduplicate(cluster, is_deduplicating)
    topic = await segment(cluster)
    stamping, other = await sender(cluster, topic, "stamps"), await sender(cluster, topic, "does not")
    for n in range(3):
        assert await stamping.send(n, n)
    for n in range(3):
        other.write(n)
    other.write(3, 0, 0xFFFF)
    other.write(4, 2)
    assert all([await other.is_stored() for _ in range(5)])
    if is_deduplicating:
        assert not await other.send(0)
    stats = await topic_stats(await opened(cluster, topic))
    assert stats["unstampedEntries"] == 4
    assert {one["producerName"]: one["unstampedEntries"] for one in stats["publishers"]} == {
        "stamps": 0,
        "does not": 4,
    }
    (made,) = (await cluster.record()).layout.active
    status = await cluster.segments.status(TOPIC, made)
    assert (status.unstamped_entries, status.unstamped_producer) == (4, "does not")
    found = await cluster.first.http.request("GET", "/metrics")
    (line,) = [
        x for x in found.text.splitlines() if x.startswith("anabranch_scalable_unstamped_entries_total{")
    ]
    parent, _, number = str(topic).removeprefix("segment://").rpartition("/")
    assert f'topic="topic://{parent}",segment="{number}"' in line
    assert line.endswith(" 4")


@pytest.mark.parametrize("is_deduplicating", [True, False])
@pytest.mark.parametrize("are_listed", [True, False])
async def test_how_full_the_batches_of_each_bucket_are_is_told(
    cluster: Cluster, is_deduplicating: bool, are_listed: bool
) -> None:
    await deduplicate(cluster, is_deduplicating)
    topic = await segment(cluster)
    made = await sender(cluster, topic, "stamps")
    made.write(0, 0, messages=10)
    made.write(10, 3, messages=2)
    made.write(12, 3, messages=3)
    made.write(15, messages=100)
    assert all([await made.is_stored() for _ in range(4)])
    stats = await topic_stats(await opened(cluster, topic))
    assert stats["entryBucketFill"] == [
        {"entries": 1, "messages": 10, "messagesPerEntry": 10.0},
        {"entries": 0, "messages": 0, "messagesPerEntry": 0.0},
        {"entries": 0, "messages": 0, "messagesPerEntry": 0.0},
        {"entries": 2, "messages": 5, "messagesPerEntry": 2.5},
    ]
    page = Page()
    lines = BucketLines(page, 'cluster="c"', per_topic=are_listed)
    lines.add('topic="t"', await opened(cluster, topic))
    lines.finish()
    labels = 'topic="t"' if are_listed else 'cluster="c",namespace="public/default"'
    assert f"{PER_ENTRY}{{{labels}}} 5.0\n" in b"".join(page.pieces()).decode()


@pytest.mark.parametrize("buckets", [1, 4])
async def test_the_number_of_buckets_is_told_whether_consumers_share_the_segment_or_not(
    cluster: Cluster, buckets: int
) -> None:
    topic = await segment(cluster, buckets=buckets)
    page = Page()
    lines = BucketLines(page, 'cluster="c"', per_topic=True)
    lines.add('topic="t"', await opened(cluster, topic))
    lines.finish()
    found = b"".join(page.pieces()).decode()
    assert f'anabranch_scalable_segment_entry_buckets{{topic="t"}} {buckets}\n' in found


async def test_what_a_hidden_producer_does_not_stamp_is_counted_and_its_ids_are_not(cluster: Cluster) -> None:
    topic = await segment(cluster)
    hidden = Hidden("job", 0, "a" * 32)
    made = await sender(cluster, topic, metadata={one.key: one.value for one in hidden.metadata})
    assert await made.send(8, attempt=hidden.attempt)
    assert await made.send(8, 1, attempt=hidden.attempt)
    held = await opened(cluster, topic)
    assert held.stamps is not None
    assert held.stamps.unstamped == 1
    node = lose_first(cluster, topic)
    assert await told(cluster, topic, node=node) == NOTHING


# -- one bucket


async def test_a_segment_with_one_bucket_and_a_classic_topic_are_as_they_were(cluster: Cluster) -> None:
    one = await segment(cluster, buckets=1)
    classic = TopicName.parse("persistent://public/default/classic")
    for topic in (one, classic):
        made, answer = await ask(cluster, topic, "p")
        assert await made.send(4, 1)
        assert not await made.send(3, 0)
        _, answer = await ask(cluster, topic, "p", metadata={ASK_SEQUENCE_ID: "true"})
        assert answer.last_sequence_id == 4
        assert not answer.HasField("anabranch_whole_sequence_id")
        assert not answer.anabranch_buckets
        held = await cluster.first.broker.topic(topic)
        assert held.stamps is None
        assert not isinstance(held.publishing.dedup, BucketDeduplication)
        assert "unstampedEntries" not in await topic_stats(held)
