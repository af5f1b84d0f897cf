"""Messages larger than an entry, sent in chunks by our producer and by Pulsar's client, and read by our consumers."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from anabranch.client import Client
from harness.broker_process import BrokerProcess

pulsar = pytest.importorskip("pulsar")

pytestmark = pytest.mark.interop

WITHIN_S = 20.0
MB = 1 << 20


def large(number: int, size: int = 12 * MB) -> bytes:
    """Bytes that do not compress well, and differ."""
    return random.Random(number).randbytes(size)


@pytest.mark.parametrize("compression", ["none", "zlib"])
async def test_a_large_message_arrives_whole_among_small_ones(
    broker: BrokerProcess, topic: str, compression: Any
) -> None:
    name = f"topic://public/default/{topic}"
    async with Client(broker.url) as client:
        stream = await client.stream_consumer(name, "s", start="earliest")
        queue = await client.queue_consumer(name, "q", start="earliest")
        async with client.producer(name, chunking=True, compression=compression) as producer:
            sent = [b"small", large(1), b"middle", large(2), b"last"]
            for payload in sent:
                await producer.send(payload, key="k", properties={"size": str(len(payload))})
        found = [await stream.receive(timeout_s=WITHIN_S) for _ in sent]
        assert [m.payload == payload for m, payload in zip(found, sent, strict=True)] == [True] * 5
        assert [m.properties["size"] for m in found] == [str(len(payload)) for payload in sent]
        await stream.ack_cumulative(found[-1])
        assert await stream.flush()
        taken = [await queue.receive(timeout_s=WITHIN_S) for _ in sent]
        await queue.nack(taken[1])
        for message in (*taken[:1], *taken[2:]):
            await queue.ack(message)
        again = await queue.receive(timeout_s=WITHIN_S)
        assert again.payload == sent[1]
        await queue.ack(again)
        assert await queue.flush()
        for open_ in (client.stream_consumer, client.queue_consumer):
            async with open_(name, "s" if open_ == client.stream_consumer else "q") as consumer:
                with pytest.raises(TimeoutError):
                    await consumer.receive(timeout_s=0.2)


async def test_large_messages_of_pulsars_client_arrive_whole(broker: BrokerProcess, topic: str) -> None:
    name = f"persistent://public/default/{topic}"

    def produce() -> None:
        client = pulsar.Client(broker.url)
        try:
            producer = client.create_producer(name, chunking_enabled=True, batching_enabled=False)
            for number in range(3):
                producer.send(large(number), partition_key=f"key-{number}")
        finally:
            client.close()

    async with (
        Client(broker.url) as client,
        client.stream_consumer(name, "s", start="earliest") as consumer,
    ):
        await asyncio.to_thread(produce)
        found = [await consumer.receive(timeout_s=WITHIN_S) for _ in range(3)]
        assert [m.payload == large(number) for number, m in enumerate(found)] == [True] * 3
        assert [m.key for m in found] == ["key-0", "key-1", "key-2"]
