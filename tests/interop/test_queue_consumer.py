"""Queue consumers against a real broker process: parts of batches, handing back, time-outs, dead letters."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.client import Client, DeadLetter, Message, NackDelay, QueueConsumer
from harness.broker_process import BrokerProcess

pytestmark = pytest.mark.interop

WITHIN_S = 20.0
SOON = NackDelay(first_s=0.01, max_s=0.05)


async def produce(client: Client, topic: str, count: int, *, key: str | None = None) -> None:
    """So many messages in batches, "0" and so on."""
    async with client.producer(topic) as producer:
        for number in range(count):
            await producer.post(b"%d" % number, key=key, properties={"number": str(number)})
        await producer.flush()


async def take(consumer: QueueConsumer, count: int) -> list[Message]:
    return [await consumer.receive(timeout_s=WITHIN_S) for _ in range(count)]


async def test_only_the_rest_of_a_batch_comes_again(broker: BrokerProcess, topic: str) -> None:
    name = f"topic://public/default/{topic}"
    async with Client(broker.url) as client:
        async with client.queue_consumer(name, "q", start="earliest") as consumer:
            await produce(client, name, 10)
            messages = await take(consumer, 10)
            assert {m.size for m in messages} != {1}
            for message in messages[::2]:
                await consumer.ack(message)
            assert await consumer.flush()
        async with client.queue_consumer(name, "q") as consumer:
            again = await take(consumer, 5)
            assert [m.payload for m in again] == [m.payload for m in messages[1::2]]
            for message in again:
                await consumer.ack(message)
            assert await consumer.flush()
        async with client.queue_consumer(name, "q") as consumer:
            with pytest.raises(TimeoutError):
                await consumer.receive(timeout_s=0.2)


async def test_messages_handed_back_come_again_while_the_others_of_their_batch_are_at_work(
    broker: BrokerProcess, topic: str
) -> None:
    name = f"topic://public/default/{topic}"
    async with (
        Client(broker.url) as client,
        client.queue_consumer(name, "q", start="earliest", negative_ack=SOON) as consumer,
    ):
        await produce(client, name, 10)
        messages = await take(consumer, 10)
        for message in messages[:3]:
            await consumer.nack(message)
        again = await take(consumer, 3)
        assert sorted(m.payload for m in again) == [m.payload for m in messages[:3]]
        assert {m.redeliveries for m in again} == {1}
        for message in (*again, *messages[3:]):
            await consumer.ack(message)
        assert await consumer.flush()
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout_s=0.2)


async def test_a_message_that_is_handed_back_too_often_ends_in_the_dead_letter_topic(
    broker: BrokerProcess, topic: str
) -> None:
    name = f"topic://public/default/{topic}"
    dead = DeadLetter(redeliveries_max=2)
    async with (
        Client(broker.url) as client,
        client.queue_consumer(f"{name}-q-DLQ", "late", start="earliest") as late,
        client.queue_consumer(name, "q", start="earliest", negative_ack=SOON, dead_letter=dead) as consumer,
    ):
        await produce(client, name, 4, key="customer-7")
        deliveries = 0
        received = asyncio.create_task(late.receive(timeout_s=WITHIN_S))
        while not received.done():
            try:
                message = await consumer.receive(timeout_s=0.05)
            except TimeoutError:
                continue
            if message.payload == b"2":
                deliveries += 1
                await consumer.nack(message)
            else:
                await consumer.ack(message)
        letter = await received
        assert deliveries == 3
        assert (letter.payload, letter.key) == (b"2", "customer-7")
        assert letter.properties["number"] == "2"
        assert letter.properties["REAL_TOPIC"] == name
        assert letter.properties["REAL_SUBSCRIPTION"] == "q"
        assert letter.properties["ORIGIN_MESSAGE_ID"].count(":") == 3
        assert await consumer.flush()
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout_s=0.2)


async def test_a_message_whose_time_has_run_out_goes_to_another_consumer(
    broker: BrokerProcess, topic: str
) -> None:
    name = f"topic://public/default/{topic}"
    async with Client(broker.url) as client:
        slow = await client.queue_consumer(
            name, "q", start="earliest", processing_timeout_s=0.1, receive_queue=1
        )
        await produce(client, name, 1)
        (first,) = await take(slow, 1)
        async with client.queue_consumer(name, "q") as other:
            taking = [asyncio.create_task(one.receive(timeout_s=WITHIN_S)) for one in (slow, other)]
            done, waiting = await asyncio.wait(taking, return_when=asyncio.FIRST_COMPLETED)
            (again,) = [task.result() for task in done]
            assert (again.payload, again.redeliveries) == (first.payload, 1)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        await slow.close()
