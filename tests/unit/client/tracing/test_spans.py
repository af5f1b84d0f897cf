"""OpenTelemetry: one trace from sender to receiver, errors recorded, and nothing at all unless asked for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pyarrow as pa
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from anabranch import blocking
from anabranch.client import BadArgument, Client, OpenTelemetry, Producer, StreamConsumer
from unit.client.scripted import ScriptedBroker, segment_topic

TOPIC = "topic://public/default/t"
# A context as another program would send it.
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331


@pytest.fixture
def exported() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exported: InMemorySpanExporter) -> OpenTelemetry:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    return OpenTelemetry(provider)


@pytest.fixture
async def client(script: ScriptedBroker, tracing: OpenTelemetry) -> AsyncIterator[Client]:
    async with Client(script.url, chance=random.Random(1), now_ms=lambda: 1, tracing=tracing) as client:
        yield client


def only(exported: InMemorySpanExporter) -> ReadableSpan:
    (span,) = exported.get_finished_spans()
    return span


def attributes(span: ReadableSpan) -> dict[str, object]:
    return {name.removeprefix("messaging."): value for name, value in (span.attributes or {}).items()}


async def test_a_message_sent_is_a_span_that_ends_with_its_receipt(
    client: Client, exported: InMemorySpanExporter
) -> None:
    async with client.producer(TOPIC) as producer:
        assert isinstance(producer, Producer)
        stored = await producer.send(b"x", key="k")
    span = only(exported)
    assert (span.name, span.kind) == (f"send {TOPIC}", SpanKind.PRODUCER)
    assert attributes(span) == {
        "system": "pulsar",
        "destination.name": TOPIC,
        "operation.name": "send",
        "operation.type": "send",
        "message.id": str(stored),
    }


async def test_a_table_is_one_span(client: Client, exported: InMemorySpanExporter) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send_batch(pa.table({"value": [b"x", b"y", b"z"]}))
    assert attributes(only(exported))["batch.message_count"] == 3


async def test_a_message_that_is_not_stored_is_a_span_with_the_error(
    script: ScriptedBroker, client: Client, exported: InMemorySpanExporter
) -> None:
    script.receipts = False
    producer = await client.producer(TOPIC)
    await producer.post(b"x")
    await producer.close(flush=False)
    span = only(exported)
    assert span.status.status_code == StatusCode.ERROR
    assert attributes(span)["error.type"] == "Closed"


async def test_a_message_received_is_a_child_of_the_span_that_sent_it(
    script: ScriptedBroker, client: Client, exported: InMemorySpanExporter
) -> None:
    script.assigned = (0, [0])
    async with client.stream_consumer(TOPIC, "s") as consumer:
        assert isinstance(consumer, StreamConsumer)
        await script.until(lambda: script.consumers)
        script.deliver(segment_topic(0), 0, properties={"traceparent": PARENT})
        script.deliver(segment_topic(0), 1, properties={"traceparent": PARENT})
        async with asyncio.timeout(10):
            await consumer.receive()
            await anext(consumer)
    for span in exported.get_finished_spans():
        assert (span.name, span.kind) == (f"receive {TOPIC}", SpanKind.CONSUMER)
        assert span.parent is not None
        assert (span.parent.trace_id, span.parent.span_id) == (TRACE, SPAN)
        assert attributes(span)["destination.subscription.name"] == "s"
    assert len(exported.get_finished_spans()) == 2


async def test_a_batch_of_columns_received_is_one_span(
    script: ScriptedBroker, client: Client, exported: InMemorySpanExporter
) -> None:
    script.assigned = (0, [0])
    async with client.stream_consumer(TOPIC, "s") as consumer:
        await script.until(lambda: script.consumers)
        script.deliver(segment_topic(0), 0)
        batch = await consumer.receive_arrow(timeout_s=10)
    assert attributes(only(exported))["batch.message_count"] == batch.num_rows == 1


async def test_what_happens_while_a_message_is_processed_belongs_to_its_trace(
    script: ScriptedBroker, client: Client, tracing: OpenTelemetry, exported: InMemorySpanExporter
) -> None:
    script.assigned = (0, [0])
    async with client.stream_consumer(TOPIC, "s") as consumer, client.producer(TOPIC) as producer:
        await script.until(lambda: script.consumers)
        script.deliver(segment_topic(0), 0, properties={"traceparent": PARENT})
        message = await consumer.receive(timeout_s=10)

        async def work() -> None:
            with tracing.processing(message):
                await producer.send(b"y")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await work()
    received, sent, processed = exported.get_finished_spans()
    assert received.context is not None
    assert sent.parent is not None
    assert processed.context is not None
    assert received.context.trace_id == sent.parent.trace_id == TRACE
    assert sent.parent.span_id == processed.context.span_id
    assert processed.status.status_code == StatusCode.ERROR


async def test_a_client_without_tracing_makes_plain_producers_and_carries_nothing(
    script: ScriptedBroker,
) -> None:
    async with Client(script.url) as client, client.producer(TOPIC) as producer:
        assert type(producer) is Producer


async def test_the_blocking_face_of_a_traced_client_tells_too(
    script: ScriptedBroker, tracing: OpenTelemetry, exported: InMemorySpanExporter
) -> None:
    def send() -> None:
        with blocking.connect(script.url, tracing=tracing) as client, client.producer(TOPIC) as producer:
            producer.send(b"x")
            producer.post(b"y")

    await asyncio.to_thread(send)
    assert [span.name for span in exported.get_finished_spans()] == [f"send {TOPIC}"] * 2


def test_something_else_as_tracing_is_refused() -> None:
    with pytest.raises(BadArgument, match="OpenTelemetry"):
        Client("pulsar://localhost", tracing=True)  # type: ignore[arg-type]
