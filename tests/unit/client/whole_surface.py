"""A program that uses all of the client, for type checkers: nothing of it runs, and nothing of it is `Any` by accident.

`make types` checks it, and test_face.py that no public name is missing here.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, assert_type

import pyarrow as pa

import anabranch
from anabranch import blocking


@dataclass
class Order:
    number: int
    price: Annotated[Decimal, anabranch.AvroType.decimal(12, 2)]


async def produce(client: anabranch.Client, when: datetime) -> None:
    encryption = anabranch.Encryption(public_keys={"k": Path("public.pem")})
    opening = client.producer(
        "topic://public/default/t",
        name="p",
        schema=anabranch.AvroSchema(Order),
        compression="zstd",
        batching=anabranch.Batching(delay_ms=2.0),
        routing=anabranch.Routing.LOW,
        access="exclusive",
        chunking=True,
        encryption=encryption,
        send_timeout_s=5.0,
        create=False,
        properties={"a": "b"},
    )
    async with opening as producer:
        assert_type(producer, anabranch.Producer[Order])
        stored = await producer.send(
            Order(1, Decimal(2)),
            key="k",
            properties={"a": "b"},
            event_time=when,
            deliver_after=timedelta(seconds=1),
            ordering_key=b"o",
        )
        assert_type(stored, anabranch.MessageId)
        assert_type(stored.segment, int)
        later = await producer.post(Order(2, Decimal(3)), key=b"k", sequence_id=7, deliver_at=when)
        assert_type(later, asyncio.Future[anabranch.MessageId])
        table = pa.table({"key": ["k"], "value": [b"v"]})
        assert_type(await producer.send_batch(table, key="key", value="value"), anabranch.BatchReceipt)
        stored_later = await producer.post_batch(table)
        assert_type(stored_later, asyncio.Future[anabranch.BatchReceipt])
        assert_type(producer.last_sequence_id, int)
        assert_type(producer.name, str)
        await producer.flush()
        await producer.close()


def look(message: anabranch.Message) -> None:
    assert_type(message.value, Any)
    assert_type(message.payload, bytes)
    assert_type(message.key, str | None)
    assert_type(message.key_bytes, bytes | None)
    assert_type(message.id, anabranch.MessageId)
    assert_type(message.topic, str)
    assert_type(message.segment, int)
    assert_type(message.publish_time_ms, int)
    assert_type(message.event_time_ms, int)
    assert_type(message.redeliveries, int)
    assert_type(message.producer, str)
    assert_type(message.sequence_id, int)
    assert_type(message.properties["a"], str)


async def consume(client: anabranch.Client) -> None:
    decryption = anabranch.Encryption(private_keys=lambda name: Path(name).read_text(), on_failure="skip")
    async with client.stream_consumer(
        "t", "s", consumer_name="c", start="earliest", schema=str, encryption=decryption
    ) as stream:
        assert_type(stream, anabranch.StreamConsumer[str])
        message = await stream.receive(timeout_s=1.0)
        assert_type(message, anabranch.Message[str])
        look(message)
        await stream.ack_cumulative(message)
        await stream.ack_cumulative(await stream.receive_arrow(rows_max=100, timeout_s=1.0))
        assert_type(await stream.flush(), bool)
    queue = await client.queue_consumer(
        "t",
        "s",
        schema=anabranch.JsonSchema(Order),
        processing_timeout_s=30.0,
        negative_ack=anabranch.NackDelay(first_s=1.0, max_s=60.0),
        dead_letter=anabranch.DeadLetter(3, topic="dead"),
    )
    assert_type(queue, anabranch.QueueConsumer[Order])
    async for order in queue:
        assert_type(order, anabranch.Message[Order])
        assert_type(order.value.price, Decimal)
        await queue.ack(order)
        await queue.nack(order)
    assert_type(queue.dead_letter_topic, str | None)
    await queue.close()
    async with client.checkpoint_consumer("t", start="earliest", group="g") as reader:
        assert_type(reader, anabranch.CheckpointConsumer[bytes])
        assert_type(await reader.receive(timeout_s=1.0), anabranch.Message[bytes])
        assert_type(reader.checkpoint(), bytes)
        assert_type(anabranch.merge_checkpoints([reader.checkpoint()]), bytes)


async def consume_namespace(client: anabranch.Client) -> None:
    stream = await client.stream_consumer(
        subscription="s", namespace="public/default", property_filters={"team": "blue"}
    )
    assert_type(stream, anabranch.NamespaceStreamConsumer[bytes])
    await stream.ack_cumulative(await stream.receive(timeout_s=1.0))
    assert_type(stream.topics, frozenset[str])
    async with client.queue_consumer(subscription="s", namespace="public/default") as queue:
        assert_type(queue, anabranch.NamespaceQueueConsumer[bytes])
        async for message in queue:
            assert_type(message, anabranch.Message[bytes])
            await queue.ack(message)
        assert_type(await queue.flush(), bool)


def schemas() -> None:
    assert_type(anabranch.BytesSchema().decode(b""), bytes)
    assert_type(anabranch.StringSchema().decode(b""), str)
    assert_type(anabranch.JsonSchema(Order).decode(b""), Order)
    assert_type(anabranch.JsonSchema().decode(b""), Any)
    assert_type(anabranch.AvroSchema(Order).decode(b""), Order)
    assert_type(anabranch.AvroSchema(definition={}).decode(b""), dict[str, Any])
    given: anabranch.Schema[Order] = anabranch.JsonSchema(Order)
    assert_type(given.encode(Order(1, Decimal(1))), bytes)


def errors(error: anabranch.AnabranchError) -> bool:
    match error:
        case anabranch.RequestRefused():
            assert_type(error.error, int)
        case anabranch.ConnectionLost() | anabranch.TimedOut() | anabranch.MemoryFull():
            assert_type(error.retryable, bool)
        case (
            anabranch.TopicDeleted() | anabranch.Closed() | anabranch.Unsupported() | anabranch.BadArgument()
        ):
            pass
        case anabranch.BadCheckpoint() | anabranch.DataLost():
            pass
        case anabranch.AccessFailed() | anabranch.SchemaRefused() | anabranch.TopicMadeAgain():
            pass
        case anabranch.SchemaMismatch() | anabranch.CryptoFailed() | anabranch.MessageIncomplete():
            pass
    return error.retryable


async def main() -> None:
    tracing = anabranch.OpenTelemetry()
    async with anabranch.connect(
        "pulsar://localhost:6650",
        memory_bytes_max=1 << 20,
        when_full="refuse",
        operation_timeout_s=5.0,
        tracing=tracing,
    ) as client:
        assert_type(client, anabranch.Client)
        await produce(client, datetime.now())
        await consume(client)


def block() -> None:
    with blocking.connect("pulsar://localhost:6650", when_full="wait") as client:
        assert_type(client, blocking.Client)
        with client.producer("t", compression="lz4") as producer:
            assert_type(producer, blocking.Producer[bytes])
            assert_type(producer.send(b"x", key="k"), anabranch.MessageId)
            assert_type(producer.post(b"x"), concurrent.futures.Future[anabranch.MessageId])
            assert_type(producer.send_batch(pa.table({"value": [b"v"]})).messages, int)
            producer.flush()
        stream = client.stream_consumer("t", "s", start="earliest")
        assert_type(stream, blocking.StreamConsumer[bytes])
        assert_type(stream.receive(timeout_s=1.0), anabranch.Message[bytes])
        assert_type(stream.flush(), bool)
        queue = client.queue_consumer("t", "s")
        assert_type(queue, blocking.QueueConsumer[bytes])
        for message in queue:
            look(message)
            queue.ack(message)
            queue.nack(message)
        with client.checkpoint_consumer("t") as reader:
            assert_type(reader, blocking.CheckpointConsumer[bytes])
            assert_type(blocking.merge_checkpoints([reader.checkpoint()]), bytes)
        of_all = client.stream_consumer(subscription="s", namespace="public/default")
        assert_type(of_all, blocking.NamespaceStreamConsumer[bytes])
        shared = client.queue_consumer(subscription="s", namespace="public/default")
        assert_type(shared, blocking.NamespaceQueueConsumer[bytes])
        client.close(flush=False)


def refused(client: anabranch.Client, waiting: blocking.Client) -> None:
    """Calls that type checkers must refuse: mypy reports an ignore that is not needed."""
    client.stream_consumer("t", "s", receive_queu=3)  # type: ignore[call-overload]
    client.stream_consumer("t", "s", receive_queue="3")  # type: ignore[call-overload]
    client.stream_consumer("t", "s", processing_timeout_s=3.0)  # type: ignore[call-overload]
    client.stream_consumer(namespace="n", subscription="s", create=False)  # type: ignore[call-overload]
    waiting.queue_consumer("t", "s", start="middle")  # type: ignore[call-overload]
    waiting.queue_consumer("t", "s", dead_letter=3)  # type: ignore[call-overload]
    waiting.queue_consumer("t", subscription="s", namespace="n")  # type: ignore[call-overload]


async def refused_values(client: anabranch.Client, waiting: blocking.Client) -> None:
    """Values of another type than the schema's; without a schema, values are bytes."""
    orders = await client.producer("t", schema=Order)
    assert_type(orders, anabranch.Producer[Order])
    await orders.send("an order")  # type: ignore[arg-type]
    await orders.post(b"an order")  # type: ignore[arg-type]
    await (await client.producer("t")).send("text")  # type: ignore[arg-type]
    with waiting.producer("t", schema=anabranch.JsonSchema(Order)) as producer:
        assert_type(producer, blocking.Producer[Order])
        producer.send(Order(1, Decimal(2)), key="k")
        producer.send("an order")  # type: ignore[arg-type]
        producer.post(b"an order")  # type: ignore[arg-type]
    with waiting.queue_consumer("t", "s", schema=Order) as queue:
        for message in queue:
            assert_type(message.value, Order)
        message.value.weight  # type: ignore[attr-defined]  # noqa: B018
    with waiting.checkpoint_consumer("t", schema=str) as reader:
        assert_type(reader.receive().value, str)
    # Without a type the class is that of any values, as before.
    anything: anabranch.Producer = orders
    await anything.send("whatever")


async def tables(client: anabranch.Client, waiting: blocking.Client) -> None:
    """The same value on both faces."""
    rows = await client.table("t", as_of=b"a checkpoint", storage_options={"AWS_REGION": "eu-1"})
    assert_type(rows, anabranch.TopicRows)
    try:
        assert_type(waiting.table("t", part="history", as_of=3), anabranch.TopicRows)
        waiting.table("t", part="heads")  # type: ignore[arg-type]
    except anabranch.NoTable:
        assert_type(rows.cut, bytes)
