"""Queue consumers against a scripted broker: parts of batches, handing back, time-outs, dead letters, reconnects."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from anabranch.client import Client, ConnectionLost, Message
from anabranch.client.consuming.base import Setup
from anabranch.client.consuming.core.redelivery import DeadLetter, NackDelay
from anabranch.client.consuming.queue import QueueConsumer
from anabranch.client.schema.schemas import Schema
from anabranch.client.transport.attachment import Backoff
from anabranch.client.transport.layout_watch import LayoutWatch
from anabranch.client.transport.pool import Connections
from anabranch.model.layout import SegmentLayout
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_message, open_entry
from unit.client.scripted import ScriptedBroker

TOPIC = "topic://public/default/t"
ROOT = "segment://public/default/t/0000-ffff-0"
AT_ONCE = NackDelay(first_s=0.0, max_s=0.0)


async def take(consumer: QueueConsumer, count: int) -> list[Message]:
    return [await consumer.receive(timeout_s=10) for _ in range(count)]


class Letters:
    """Takes dead letters; refuses as many as it is told to."""

    def __init__(self) -> None:
        self.topic = ""
        self.refusals = 0
        self.sent: list[tuple[bytes, str | bytes | None, Mapping[str, str]]] = []
        self.is_closed = False
        self._changed = asyncio.Event()

    async def make(self, topic: str, *, schema: Schema[bytes] | None) -> Letters:
        self.topic = topic
        return self

    async def send(
        self,
        value: bytes,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
        ordering_key: bytes | None = None,
    ) -> None:
        if self.refusals:
            self.refusals -= 1
            raise ConnectionLost("script")
        self.sent.append((value, key, properties or {}))
        self._changed.set()

    async def until_sent(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.sent) < count:
                self._changed.clear()
                await self._changed.wait()

    async def close(self) -> None:
        self.is_closed = True


@asynccontextmanager
async def queue(script: ScriptedBroker, **options: Any) -> AsyncIterator[QueueConsumer]:
    """A consumer with its parts put together here, to choose where dead letters go."""
    chance = random.Random(1)
    connections = Connections(script.url)
    watch = LayoutWatch(connections, TOPIC, Backoff(chance))
    await watch.open()
    consumer = QueueConsumer(Setup(connections, watch, "one", chance), "q", **options)
    await consumer.open()
    await script.until(lambda: script.consumers)
    try:
        yield consumer
    finally:
        await consumer.close()
        await connections.close()


async def test_messages_of_a_batch_are_acknowledged_one_by_one(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.queue_consumer(TOPIC, "q") as consumer:
        await script.until(lambda: script.consumers)
        script.deliver_batch(ROOT, 7, 3)
        messages = await take(consumer, 3)
        await consumer.ack(messages[1])
        assert await consumer.flush()
        assert (script.parts, script.acks) == ([(7, 0b101)], [])
        await consumer.ack(messages[0])
        await consumer.ack(messages[2])
        assert await consumer.flush()
        assert script.acks == [(ROOT, 1, 7, False)]


async def test_messages_that_the_broker_knows_as_acknowledged_are_not_given_out(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.queue_consumer(TOPIC, "q") as consumer:
        await script.until(lambda: script.consumers)
        script.deliver_batch(ROOT, 7, 5, unacked=0b10010)
        messages = await take(consumer, 2)
        assert [m.payload for m in messages] == [b"7.1", b"7.4"]
        await consumer.ack(messages[1])
        assert await consumer.flush()
        assert script.parts == [(7, 0b00010)]


async def test_acknowledgements_are_sent_again_after_a_lost_connection_before_anything_is_fetched(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.queue_consumer(TOPIC, "q") as consumer:
        await script.until(lambda: script.consumers)
        script.answers_acks = False
        script.deliver(ROOT, 0)
        (message,) = await take(consumer, 1)
        await consumer.ack(message)
        flushing = asyncio.create_task(consumer.flush())
        await script.until(lambda: script.acks)
        acks_at_flow: list[int] = []
        script.flowed = lambda: acks_at_flow.append(len(script.acks))
        script.answers_acks = True
        for link in script.links:
            link.cut()
        assert await flushing
        assert [ack[1:] for ack in script.acks] == [(1, 0, False)] * 2
        await script.until(lambda: acks_at_flow)
        assert acks_at_flow[0] == 2


async def test_closing_sends_acknowledgements_that_wait(script: ScriptedBroker, client: Client) -> None:
    async with client.queue_consumer(TOPIC, "q") as consumer:
        await script.until(lambda: script.consumers)
        script.deliver(ROOT, 0)
        (message,) = await take(consumer, 1)
        await consumer.ack(message)
    assert script.acks == [(ROOT, 1, 0, False)]
    assert [name for name, _ in script.closed] == [ROOT]


async def test_a_message_handed_back_is_asked_for_again(script: ScriptedBroker) -> None:
    async with queue(script, negative_ack=AT_ONCE) as consumer:
        script.deliver_batch(ROOT, 7, 3)
        messages = await take(consumer, 3)
        await consumer.ack(messages[2])
        await consumer.nack(messages[0])
        await script.until(lambda: script.redelivered)
        # The broker knows of the acknowledgement before it sends the batch again.
        assert script.parts == [(7, 0b011)]
        script.deliver_batch(ROOT, 7, 3, redeliveries=1, unacked=0b011)
        script.deliver_batch(ROOT, 8, 1)
        again = await take(consumer, 2)
        assert [(m.payload, m.redeliveries) for m in again] == [(b"7.0", 1), (b"8.0", 0)]
        await consumer.ack(messages[1])
        await consumer.ack(again[0])
        assert await consumer.flush()
        assert script.acks == [(ROOT, 1, 7, False)]


async def test_a_message_that_is_not_settled_in_time_is_asked_for_again(script: ScriptedBroker) -> None:
    async with queue(script, processing_timeout_s=0.02) as consumer:
        script.deliver(ROOT, 0)
        script.deliver(ROOT, 1)
        first, _ = await take(consumer, 2)
        await consumer.ack(first)
        await script.until(lambda: script.redelivered)
        assert script.redelivered == [(ROOT, 1)]


async def test_a_message_handed_back_too_often_is_stored_elsewhere_and_then_acknowledged(
    script: ScriptedBroker,
) -> None:
    letters = Letters()
    options = {"negative_ack": AT_ONCE, "dead_letter": DeadLetter(2), "make_sender": letters.make}
    async with queue(script, **options) as consumer:
        script.deliver_batch(ROOT, 7, 2, redeliveries=1)
        for message in await take(consumer, 2):
            await consumer.nack(message)
        await script.until(lambda: script.redelivered)
        script.deliver_batch(ROOT, 7, 2, redeliveries=2)
        first, second = await take(consumer, 2)
        letters.refusals = 1
        await consumer.nack(second)
        # Not stored at first, and so not acknowledged; it is tried again.
        await letters.until_sent(1)
        await consumer.nack(first)
        assert await consumer.flush()
        assert script.acks == [(ROOT, 1, 7, False)]
        assert len(script.redelivered) == 1
        assert consumer.dead_letter_topic == letters.topic == f"{TOPIC}-q-DLQ"
        origin = {"REAL_TOPIC": TOPIC, "REAL_SUBSCRIPTION": "q", "ORIGIN_MESSAGE_ID": "1:7:0:0"}
        assert letters.sent[1] == (b"7.0", "k", origin)
    assert letters.is_closed


async def test_a_message_that_consumers_die_of_is_not_given_out_for_ever(script: ScriptedBroker) -> None:
    letters = Letters()
    async with queue(
        script, dead_letter=DeadLetter(2, topic="topic://public/default/dead"), make_sender=letters.make
    ) as consumer:
        script.deliver_batch(ROOT, 7, 1, redeliveries=3)
        script.deliver_batch(ROOT, 8, 1)
        assert [m.payload for m in await take(consumer, 1)] == [b"8.0"]
        assert await consumer.flush()
        assert [value for value, _, _ in letters.sent] == [b"7.0"]
        assert letters.topic == "topic://public/default/dead"
        assert script.acks == [(ROOT, 1, 7, False)]


async def test_what_a_closed_consumer_is_told_changes_nothing(script: ScriptedBroker) -> None:
    async with queue(script, negative_ack=AT_ONCE) as consumer:
        script.deliver(ROOT, 0)
        script.deliver(ROOT, 1)
        one, two = await take(consumer, 2)
        await consumer.leave()
        await consumer.ack(one)
        await consumer.nack(two)
        assert not await consumer.flush()
    assert not script.acks
    assert not script.redelivered


async def test_a_segment_is_asked_for_no_more_than_there_is_room_for(
    script: ScriptedBroker, client: Client
) -> None:
    async with client.queue_consumer(TOPIC, "q", receive_queue=10) as consumer:
        await script.until(lambda: script.consumers)
        assert script.permits == 10
        for entry in range(4):
            script.deliver_batch(ROOT, entry, 5)
        await take(consumer, 1)
        # An entry counts as taken once its first message is.
        await script.until(lambda: script.permits > 10)
        assert script.permits == 15


async def test_a_closed_consumer_ends_the_iteration(script: ScriptedBroker, client: Client) -> None:
    consumer = await client.queue_consumer(TOPIC, "q")
    await script.until(lambda: script.consumers)
    script.deliver(ROOT, 0)
    found = []
    async for message in consumer:
        found.append(message)
        await consumer.close()
    assert len(found) == 1


async def test_a_receive_with_nothing_to_receive_times_out(script: ScriptedBroker, client: Client) -> None:
    async with client.queue_consumer(TOPIC, "q") as consumer:
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout_s=0.01)


def test_messages_are_handed_back_at_once_on_a_loop_whose_handles_do_not_tell_their_time() -> None:
    async def main() -> None:
        script = ScriptedBroker(SegmentLayout.initial(1, 0))
        server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
        url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        script.url = url
        async with (
            Client(url, chance=random.Random(1), now_ms=lambda: 1) as client,
            client.queue_consumer(TOPIC, "s", negative_ack=AT_ONCE) as consumer,
        ):
            await script.until(lambda: ROOT in script.consumers)
            for entry in (7, 8):
                script.deliver(ROOT, entry)
            for message in await take(consumer, 2):
                await consumer.nack(message)
            await script.until(lambda: len(script.redelivered) == 2)
        server.close()

    uvloop.run(asyncio.wait_for(main(), 30))


async def test_a_dead_letter_that_came_in_parts_leaves_in_parts(
    script: ScriptedBroker, client: Client
) -> None:
    half = b"x" * (4 << 20)
    async with client.queue_consumer(TOPIC, "q", dead_letter=DeadLetter(0)) as consumer:
        await script.until(lambda: script.consumers)
        link, number = script.consumers[ROOT]
        for chunk in range(2):
            metadata = pb.MessageMetadata(
                producer_name="p",
                sequence_id=0,
                publish_time=1,
                uuid="u",
                chunk_id=chunk,
                num_chunks_from_msg=2,
            )
            at = pb.MessageIdData(ledgerId=1, entryId=chunk)
            body = pb.CommandMessage(consumer_id=number, message_id=at)
            link.send_entry(body, build_message(metadata, half))
        (message,) = await take(consumer, 1)
        await consumer.nack(message)
        assert await consumer.flush()
        parts = [open_entry(entry) for entry in script.entries]
        assert [metadata.chunk_id for metadata, _ in parts] == [0, 1]
        assert b"".join(bytes(payload) for _, payload in parts) == half + half
