"""When a sealed segment is drained, and what its owner says about it and its producers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.observe.topic_stats import topic_stats
from anabranch.broker.topic.topic import SEALED_OK
from anabranch.client import ClientConnection, RequestRefused
from anabranch.client.transport.connection import PartKind
from anabranch.model.hidden_writes import WriteBatch
from anabranch.model.names import TopicName
from anabranch.model.scalable import InitialPosition, SubscriptionKind, SubscriptionRecord
from anabranch.model.segments import Segment
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_entry, build_message, encode_send
from anabranch.wire.frames import FrameDecoder
from harness.simple_client import EndOfTopic, Hidden
from unit.broker.scalable.cluster import TOPIC, Cluster, name_of, running

CLASSIC = TopicName.parse("persistent://public/default/classic")


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with running() as made:
        yield made


async def is_drained(cluster: Cluster, segment: Segment, subscription: str = "s") -> bool:
    status = await cluster.segments.status(TOPIC, segment)
    return status.subscriptions[subscription].is_drained


async def sealed(cluster: Cluster, *payloads: bytes) -> Segment:
    """A sealed segment with a subscription "s" that has read nothing."""
    (parent,) = await cluster.topic()
    await cluster.subscription("s")
    await cluster.segments.create(TOPIC, parent, ["s"])
    await cluster.first.publish(name_of(parent), *payloads)
    await cluster.split(subscriptions=["s"])
    return parent


class Publisher:
    """A producer that chooses its own metadata."""

    def __init__(self, connection: ClientConnection, number: int) -> None:
        self.id = number
        self.connection = connection
        self.answers: asyncio.Queue[object] = asyncio.Queue()

    def received(self, kind: int, body: object, payload: memoryview | None) -> None:
        self.answers.put_nowait(body)

    def lost(self, error: Exception) -> None: ...


async def publish_chunks(
    cluster: Cluster, topic: TopicName, chunks: int, *, of: int, uuid: str = "u"
) -> None:
    """The first so many chunks of a message cut into `of`."""
    opened = await cluster.first.broker.topic(topic)
    for number in range(chunks):
        metadata = pb.MessageMetadata(
            producer_name="p",
            sequence_id=1,
            publish_time=1,
            uuid=uuid,
            chunk_id=number,
            num_chunks_from_msg=of,
            total_chunk_msg_size=of,
        )
        opened.log.append(build_entry(metadata, b"x"), 1)
    await opened.close()


async def test_a_segment_is_drained_once_all_of_it_is_acknowledged_and_no_earlier(cluster: Cluster) -> None:
    segment = await sealed(cluster, b"one", b"two")
    assert not await is_drained(cluster, segment)
    await cluster.first.read(name_of(segment), "s", 2, ack=False)
    assert not await is_drained(cluster, segment)
    await cluster.first.read(name_of(segment), "s", 2)
    assert await is_drained(cluster, segment)
    assert (await cluster.segments.status(TOPIC, segment)).subscriptions["s"].backlog == 0


async def test_an_active_segment_is_not_drained_however_empty(cluster: Cluster) -> None:
    (segment,) = await cluster.topic()
    await cluster.subscription("s")
    await cluster.segments.create(TOPIC, segment, ["s"])
    assert not await is_drained(cluster, segment)


async def test_a_segment_sealed_empty_is_drained(cluster: Cluster) -> None:
    segment = await sealed(cluster)
    assert await is_drained(cluster, segment)


async def test_a_sealed_segment_that_hides_something_is_not_drained_and_keeps_its_consumers(
    cluster: Cluster,
) -> None:
    (segment,) = await cluster.topic()
    await cluster.subscription("s")
    await cluster.segments.create(TOPIC, segment, ["s"])
    name = name_of(segment)
    won = Hidden("job", 0, "a" * 32)
    producer = await cluster.first.client.producer(str(name), hidden=won)
    await (await producer.send(b"won"))
    await cluster.split(subscriptions=["s"])
    status = await cluster.segments.status(TOPIC, segment)
    assert (status.is_sealed, status.is_hiding) == (True, True)
    assert not status.subscriptions["s"].is_drained
    stored = SubscriptionRecord("never-subscribed-here", SubscriptionKind.STREAM, 7, InitialPosition.LATEST)
    assert not status.is_drained_by(stored, segment.id)
    consumer = await cluster.first.client.consumer(str(name), "s")
    await cluster.first.broker.write_records.decide(WriteBatch("job", 0), [won.attempt], [str(name)])
    await (await cluster.first.broker.topic(name)).hidden.reveal(WriteBatch("job", 0))
    async with asyncio.timeout(5):
        message = await consumer.receive()
        assert message.payload == b"won"
        await consumer.ack(message)
        with pytest.raises(EndOfTopic):
            await consumer.receive()
    assert await is_drained(cluster, segment)
    assert (await cluster.segments.status(TOPIC, segment)).is_drained_by(stored, segment.id)


async def test_chunks_whose_last_one_never_came_do_not_count(cluster: Cluster) -> None:
    (segment,) = await cluster.topic()
    await cluster.subscription("s")
    await cluster.segments.create(TOPIC, segment, ["s"])
    await cluster.first.publish(name_of(segment), b"one")
    await publish_chunks(cluster, name_of(segment), 2, of=3)
    await cluster.split(subscriptions=["s"])
    assert not await is_drained(cluster, segment)
    await cluster.first.read(name_of(segment), "s", 1)
    assert await is_drained(cluster, segment)


async def test_a_whole_chunked_message_counts(cluster: Cluster) -> None:
    (segment,) = await cluster.topic()
    await cluster.subscription("s")
    await cluster.segments.create(TOPIC, segment, ["s"])
    await publish_chunks(cluster, name_of(segment), 2, of=3, uuid="lost")
    await publish_chunks(cluster, name_of(segment), 3, of=3, uuid="whole")
    await cluster.split(subscriptions=["s"])
    assert not await is_drained(cluster, segment)


async def test_drained_is_known_again_after_the_topic_was_closed(cluster: Cluster) -> None:
    segment = await sealed(cluster, b"one")
    await cluster.first.read(name_of(segment), "s", 1)
    await (await cluster.first.broker.topic(name_of(segment))).close()
    assert await is_drained(cluster, segment)
    assert (await cluster.segments.status(TOPIC, segment)).is_sealed


async def test_seeking_back_makes_a_segment_undrained(cluster: Cluster) -> None:
    segment = await sealed(cluster, b"one")
    await cluster.first.read(name_of(segment), "s", 1)
    await cluster.segments.seek(TOPIC, segment, "s", 0)
    assert not await is_drained(cluster, segment)
    await cluster.segments.skip_all(TOPIC, segment, "s")
    assert await is_drained(cluster, segment)


async def test_a_terminated_classic_topic_shows_no_backlog_of_lost_chunks(cluster: Cluster) -> None:
    await cluster.first.publish(CLASSIC, b"one")
    await cluster.first.read(CLASSIC, "s", 1)
    await publish_chunks(cluster, CLASSIC, 2, of=3)
    topic = await cluster.first.broker.topic(CLASSIC)
    assert (await topic_stats(topic))["subscriptions"]["s"]["msgBacklog"] == 2
    await topic.terminate()
    assert await topic.subscriptions["s"].look_whether_drained()
    assert (await topic_stats(topic))["subscriptions"]["s"]["msgBacklog"] == 0


# -- readers


async def test_a_reader_that_acknowledged_to_the_end_is_remembered_when_it_is_gone(cluster: Cluster) -> None:
    segment = await sealed(cluster, b"one", b"two")
    reader = await cluster.reader(name_of(segment), "c-seg-0")
    first, second = await reader.messages.get(), await reader.messages.get()
    await reader.ack(first)
    assert not (await cluster.segments.status(TOPIC, segment)).finished_readers
    await reader.ack(second)
    await reader.is_at_end.wait()
    await reader.close()
    assert (await cluster.segments.status(TOPIC, segment)).finished_readers == {"c-seg-0"}


async def test_a_reader_that_comes_back_behind_the_last_message_has_finished(cluster: Cluster) -> None:
    """As after a restart: the client drops what it had read already, without a word to the broker."""
    segment = await sealed(cluster, b"one", b"two")
    reader = await cluster.reader(name_of(segment), "c-seg-0")
    first, last = await reader.messages.get(), await reader.messages.get()
    await reader.close()
    again = await cluster.reader(name_of(segment), "early-seg-0", first)
    await again.messages.get()
    await cluster.reader(name_of(segment), "late-seg-0", last)
    assert (await cluster.segments.status(TOPIC, segment)).finished_readers == {"late-seg-0"}


# -- what is stored of a producer


@pytest.fixture
async def deduplicating() -> AsyncIterator[Cluster]:
    async with running(config=BrokerConfig(broker_deduplication_enabled=True)) as made:
        yield made


async def asker(
    cluster: Cluster, topic: TopicName, producer: str, **metadata: str
) -> tuple[Publisher, pb.CommandProducerSuccess]:
    connection = await ClientConnection.open(cluster.first.broker.service_url)
    cluster.connections.append(connection)
    made = connection.attach(PartKind.PRODUCER, lambda number: Publisher(connection, number))
    answer = await connection.request(
        pb.BaseCommand.PRODUCER,
        "producer",
        topic=str(topic),
        producer_id=made.id,
        producer_name=producer,
        user_provided_producer_name=True,
        metadata=[pb.KeyValue(key=key, value=value) for key, value in metadata.items()],
    )
    return made, answer


async def last_id(cluster: Cluster, segment: Segment, producer: str) -> int:
    _, answer = await asker(cluster, name_of(segment), producer, **dict([SEALED_OK]))
    return answer.last_sequence_id


async def test_a_producer_in_doubt_is_told_of_what_is_still_on_its_way_to_the_disk(
    deduplicating: Cluster,
) -> None:
    cluster = deduplicating
    (parent,) = await cluster.topic()
    made, _ = await asker(cluster, name_of(parent), "p")
    topic = await cluster.first.broker.topic(name_of(parent))
    entry = build_message(pb.MessageMetadata(producer_name="p", sequence_id=5, publish_time=1), b"x")
    sent = FrameDecoder().feed(encode_send(entry, producer_id=made.id, sequence_id=5))
    topic.publish(topic.producers["p"], sent)
    assert topic.stored_ids("p").last == -1, "nothing is confirmed within a turn of the loop"
    assert (await topic.settled_ids("p")).last == 5


async def test_a_sealed_segment_still_says_what_it_holds_of_a_producer(deduplicating: Cluster) -> None:
    cluster = deduplicating
    (parent,) = await cluster.topic()
    await cluster.first.publish(name_of(parent), b"0", b"1", b"2", name="p")
    await cluster.split()
    with pytest.raises(RequestRefused) as refused:
        await asker(cluster, name_of(parent), "p")
    assert refused.value.error == pb.TopicTerminatedError
    assert await last_id(cluster, parent, "p") == 2
    assert await cluster.first.broker.segment_owner.last_sequence_id(TOPIC, parent, "p") == 2
    assert await cluster.first.broker.segment_owner.last_sequence_id(TOPIC, parent, "q") == -1
    await (await cluster.first.broker.topic(name_of(parent))).close()
    assert await last_id(cluster, parent, "p") == 2


async def test_a_sealed_segment_does_not_hold_a_message_whose_last_chunk_never_came(
    deduplicating: Cluster,
) -> None:
    cluster = deduplicating
    (parent,) = await cluster.topic()
    await cluster.first.publish(name_of(parent), b"0", name="p")
    made, _ = await asker(cluster, name_of(parent), "p")
    for chunk in range(2):
        metadata = pb.MessageMetadata(
            producer_name="p", sequence_id=1, publish_time=1, uuid="u", chunk_id=chunk, num_chunks_from_msg=3
        )
        entry = build_entry(metadata, b"x")
        made.connection.write_now(encode_send(entry, producer_id=made.id, sequence_id=1, is_chunk=True))
        assert isinstance(await made.answers.get(), pb.CommandSendReceipt)
    # Its connection is lost, and the segment sealed before it is back.
    await made.connection.close()
    await cluster.split()
    assert await last_id(cluster, parent, "p") == 0
    await (await cluster.first.broker.topic(name_of(parent))).close()
    assert await last_id(cluster, parent, "p") == 0


async def test_whoever_only_asks_is_refused_when_it_publishes_to_a_sealed_segment(cluster: Cluster) -> None:
    segment = await sealed(cluster, b"one")
    opened = await cluster.first.broker.topic(name_of(segment))
    made, _ = await asker(cluster, name_of(segment), "p", **dict([SEALED_OK]))
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=9, publish_time=1)
    entry = build_entry(metadata, b"late")
    made.connection.write_now(encode_send(entry, producer_id=made.id, sequence_id=9))
    answer = await made.answers.get()
    assert isinstance(answer, pb.CommandSendError)
    assert answer.error == pb.TopicTerminatedError
    assert opened.log.entries == 1
