"""What our producer sends, as Pulsar's own client reads it: batches, chunks, all that a message carries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pulsar
import pyarrow as pa
import pytest

from anabranch.client import Batching, Client, RequestRefused
from harness.broker_process import BrokerProcess
from interop.receiving import assert_silent, payloads, receive

pytestmark = pytest.mark.interop

WITHIN_S = 20.0


@pytest.fixture
async def ours(broker: BrokerProcess) -> AsyncIterator[Client]:
    async with Client(broker.url) as client:
        yield client


async def test_batches_arrive_in_order_with_all_that_messages_carry(
    ours: Client, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    async with ours.producer(f"persistent://public/default/{topic}", name="ours") as producer:
        receipts = [
            await producer.post(b"%d" % n, key=f"key-{n}", properties={"n": f"{n}"}, event_time=n + 1)
            for n in range(100)
        ]
        await producer.flush()
    messages = await asyncio.to_thread(receive, consumer, 100)
    assert [message.data() for message in messages] == [b"%d" % n for n in range(100)]
    assert [message.partition_key() for message in messages] == [f"key-{n}" for n in range(100)]
    assert [message.properties() for message in messages] == [{"n": f"{n}"} for n in range(100)]
    assert [message.event_timestamp() for message in messages] == list(range(1, 101))
    assert {message.producer_name() for message in messages} == {"ours"}
    ids = [receipt.result() for receipt in receipts]
    assert [
        (m.message_id().ledger_id(), m.message_id().entry_id(), m.message_id().batch_index())
        for m in messages
    ] == [(one.ledger, one.entry, one.index) for one in ids]


@pytest.mark.parametrize("compression", ["lz4", "zlib", "zstd", "snappy"])
async def test_compressed_batches_arrive_as_sent(
    ours: Client, client: pulsar.Client, topic: str, compression: Any
) -> None:
    consumer = client.subscribe(topic, "s")
    name = f"persistent://public/default/{topic}"
    async with ours.producer(name, compression=compression) as producer:
        for number in range(50):
            await producer.post(b"%d" % number * 100)
        await producer.send(b"alone" * 100, ordering_key=b"o")
    found = await asyncio.to_thread(payloads, consumer, 51)
    assert found == [b"%d" % number * 100 for number in range(50)] + [b"alone" * 100]


@pytest.mark.parametrize("compression", ["none", "lz4"])
async def test_a_message_larger_than_a_frame_arrives_from_its_chunks(
    ours: Client, client: pulsar.Client, topic: str, compression: Any
) -> None:
    consumer = client.subscribe(topic, "s")
    large = b"".join(n.to_bytes(4, "big") for n in range(3 << 20))  # 12 MB, and not much less packed.
    name = f"persistent://public/default/{topic}"
    async with ours.producer(name, chunking=True, compression=compression) as producer:
        await producer.post(b"before", key="k")
        await producer.post(large, key="k", properties={"a": "b"})
        await producer.post(b"after", key="k")
    messages = await asyncio.to_thread(receive, consumer, 3)
    assert [message.data() for message in messages] == [b"before", large, b"after"]
    assert messages[1].partition_key() == "k"
    assert messages[1].properties()["a"] == "b"


async def test_a_delayed_message_comes_when_it_is_due(
    ours: Client, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    async with ours.producer(f"persistent://public/default/{topic}") as producer:
        await producer.send(b"later", deliver_after=1.0)
        await producer.send(b"now")
    first, second = await asyncio.to_thread(receive, consumer, 2)
    assert (first.data(), second.data()) == (b"now", b"later")


async def test_a_fixed_name_and_its_sequence_ids_double_nothing(
    broker: BrokerProcess, ours: Client, client: pulsar.Client, topic: str
) -> None:
    broker.post("namespaces/public/default/deduplication", True)
    try:
        name = f"persistent://public/default/{topic}"
        consumer = client.subscribe(topic, "s")
        async with ours.producer(name, name="billing") as producer:
            for number in range(50):
                await producer.post(b"%d" % number, sequence_id=number)
        async with ours.producer(name, name="billing") as producer:
            assert producer.last_sequence_id == 49
            # Nothing of a batch that begins among the stored ones may be taken for a repetition.
            for number in range(30, 90):
                await producer.post(b"%d" % number, sequence_id=number)
        assert await asyncio.to_thread(payloads, consumer, 90) == [b"%d" % number for number in range(90)]
        await asyncio.to_thread(assert_silent, consumer)
    finally:
        broker.post("namespaces/public/default/deduplication", False)


async def test_a_topic_that_was_terminated_is_told(broker: BrokerProcess, ours: Client, topic: str) -> None:
    name = f"persistent://public/default/{topic}"
    async with ours.producer(name) as producer:
        await producer.send(b"x")
        await asyncio.to_thread(broker.post, f"persistent/public/default/{topic}/terminate")
        with pytest.raises(RequestRefused, match="takes no more messages"):
            await producer.send(b"y")
    async with ours.producer(name) as producer:
        with pytest.raises(RequestRefused, match="takes no more messages"):
            await producer.send(b"y")


async def test_producers_that_want_a_topic_for_themselves(
    ours: Client, client: pulsar.Client, topic: str
) -> None:
    name = f"persistent://public/default/{topic}"
    async with ours.producer(name, access="exclusive") as holder:
        with pytest.raises(RequestRefused, match="access='wait'"):
            await ours.producer(name, access="exclusive")
        waiting = asyncio.ensure_future(_open(ours, name))
        await holder.send(b"mine")
    async with asyncio.timeout(WITHIN_S):
        next_one = await waiting
    await next_one.send(b"now mine")
    async with ours.producer(name, access="fencing") as winner:
        await winner.send(b"all mine")
        with pytest.raises(RequestRefused, match="ProducerFenced"):
            await next_one.send(b"too late")
    await next_one.close()


async def _open(ours: Client, name: str) -> Any:
    return await ours.producer(name, access="wait")


async def test_many_posts_of_many_keys_arrive_in_order(
    ours: Client, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    batching = Batching(messages_max=100, bytes_max=4000)
    async with ours.producer(f"persistent://public/default/{topic}", batching=batching) as producer:
        for number in range(5000):
            await producer.post(b"%d" % number, key=f"{number % 97}")
    found = await asyncio.to_thread(payloads, consumer, 5000, acknowledge=False)
    assert found == [b"%d" % number for number in range(5000)]


async def test_tables_arrive_as_messages_like_any_other(
    ours: Client, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    rows = range(3000)
    table = pa.table(
        {
            "key": [f"key-{n % 50}" if n % 7 else None for n in rows],
            "value": [b"%d" % n for n in rows],
            "time": pa.array([n + 1 for n in rows], pa.timestamp("ms")),
            "more": [{"n": f"{n}"} for n in rows],
        }
    )
    async with ours.producer(f"persistent://public/default/{topic}", compression="lz4") as producer:
        await producer.send_batch(table, key="key", event_time="time", properties="more")
        await producer.send(b"last")
    messages = await asyncio.to_thread(receive, consumer, 3001, acknowledge=False)
    assert [message.data() for message in messages] == [b"%d" % n for n in rows] + [b"last"]
    for number, message in enumerate(messages[:-1]):
        assert message.partition_key() == (f"key-{number % 50}" if number % 7 else "")
        assert message.event_timestamp() == number + 1
        assert message.properties() == {"n": f"{number}"}


async def test_tables_keep_every_key_in_order_through_splits_and_merges(
    broker: BrokerProcess, ours: Client, topic: str
) -> None:
    name = f"topic://public/default/{topic}"
    path = f"scalable/public/default/{topic}"
    broker.put(f"{path}?numInitialSegments=1")
    broker.post(f"{path}/autoScalePolicy", {"enabled": False})
    async with ours.producer(name) as producer, Client(broker.url) as reader:
        consumer = await reader.checkpoint_consumer(name, start="earliest")
        steps = ("split/0", "split/1", "merge/2/4", "merge/3/5")
        for step, change in enumerate(steps):
            reshaping = asyncio.create_task(asyncio.to_thread(broker.post, f"{path}/{change}"))
            for part in range(10):
                rows = range((step * 10 + part) * 1000, (step * 10 + part + 1) * 1000)
                table = pa.table({"key": [f"key-{n % 23}" for n in rows], "value": [b"%d" % n for n in rows]})
                await producer.post_batch(table, key="key")
            await reshaping
        await producer.flush()
        last: dict[str | None, int] = {}
        async with asyncio.timeout(WITHIN_S):
            for _ in range(len(steps) * 10_000):
                message = await consumer.receive()
                assert int(message.payload) > last.get(message.key, -1), "out of order, or twice"
                last[message.key] = int(message.payload)
