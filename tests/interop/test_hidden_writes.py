"""Hidden writes as others see them: our client through splits and merges, Pulsar's client, and readers of the files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from uuid import UUID, uuid4

import pulsar
import pytest

import anabranch.client as ours
from anabranch.client.hidden_writes.write import Write
from anabranch.client.reading.direct import entries
from anabranch.client.reading.plans import Planner
from anabranch.wire.batch import messages
from harness.broker_process import BrokerProcess, rest_path


def settle(broker: BrokerProcess, write: str, winners: Iterable[UUID], topics: Iterable[str]) -> None:
    """Decides batch 0 of a write and tells every topic."""
    body = {"winners": [winner.hex for winner in winners], "topics": sorted(topics)}
    record = broker.put(f"anabranch/writes/{write}/0", body)
    for topic in record["topics"]:
        broker.post(f"anabranch/reveal/{topic.replace('://', '/')}?write={write}&batch=0")


async def write(
    client: ours.Client, topic: str, attempt: UUID, payloads: Iterable[bytes], name: str
) -> set[str]:
    async with client.producer(topic, write=Write(name, 0, attempt)) as producer:
        for payload in payloads:
            await producer.send(payload, key=payload.decode()[:1])
        return set(producer.topics_written)


async def test_a_segment_split_and_merged_while_it_hides_keeps_the_order_of_keys(
    broker: BrokerProcess, topic: str
) -> None:
    broker.put(f"scalable/public/default/{topic}?numInitialSegments=1")
    place, keys = f"topic://public/default/{topic}", "abcdefgh"
    name, attempt, loser = f"w-{topic}", uuid4(), uuid4()
    seen: list[bytes] = []
    async with (
        asyncio.timeout(60),
        ours.connect(broker.url) as client,
        client.stream_consumer(place, "s", start="earliest") as consumer,
        client.producer(place) as plain,
    ):

        async def see(count: int) -> None:
            for _ in range(count):
                message = await consumer.receive()
                seen.append(message.payload)
                await consumer.ack_cumulative(message)

        for key in keys:
            await plain.send(f"{key}0".encode(), key=key)
        written = await write(client, place, attempt, (f"{key}1".encode() for key in keys), name)
        await write(client, place, loser, (f"{key}x".encode() for key in keys), name)
        broker.post(f"scalable/public/default/{topic}/split/0")
        await write(client, place, loser, (f"{key}x".encode() for key in keys), name)
        written |= await write(client, place, attempt, (f"{key}2".encode() for key in keys), name)
        broker.post(f"scalable/public/default/{topic}/merge/1/2")
        assert len(written) == 3
        for key in keys:
            await plain.send(f"{key}3".encode(), key=key)
        await see(len(keys))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await consumer.receive()
        settle(broker, name, [attempt], written)
        await see(3 * len(keys))
    for key in keys:
        assert [text for text in seen if text[:1] == key.encode()] == [f"{key}{n}".encode() for n in range(4)]


async def test_pulsars_reader_and_consumer_see_winners_only_and_no_earlier(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    place = f"persistent://public/default/{topic}"
    name, attempt, loser = f"w-{topic}", uuid4(), uuid4()
    await asyncio.to_thread(client.create_producer(place).send, b"before")
    async with ours.connect(broker.url) as ours_client:
        await write(ours_client, place, loser, [b"lost"], name)
        await write(ours_client, place, attempt, [b"won 1", b"won 2"], name)
    await asyncio.to_thread(client.create_producer(place).send, b"after")

    def look() -> None:
        consumer = client.subscribe(place, "s", initial_position=pulsar.InitialPosition.Earliest)
        reader = client.create_reader(place, pulsar.MessageId.earliest)
        assert reader.read_next(5000).data() == b"before"
        assert not reader.has_message_available()
        settle(broker, name, [attempt], [place])
        assert reader.has_message_available()
        assert [reader.read_next(5000).data() for _ in range(3)] == [b"won 1", b"won 2", b"after"]
        assert not reader.has_message_available()
        found = [consumer.receive(5000) for _ in range(4)]
        assert [message.data() for message in found] == [b"before", b"won 1", b"won 2", b"after"]
        consumer.acknowledge_cumulative(found[-1])
        consumer.close()
        assert broker.get(f"{rest_path(topic)}/stats")["subscriptions"]["s"]["msgBacklog"] == 0

    await asyncio.to_thread(look)


async def test_readers_of_the_files_see_winners_only_and_no_earlier(
    broker: BrokerProcess, topic: str
) -> None:
    place = f"persistent://public/default/{topic}"
    name, attempt, loser = f"w-{topic}", uuid4(), uuid4()
    planner = Planner(f"http://127.0.0.1:{broker.http_port}", place)

    def found() -> list[bytes]:
        return [
            bytes(payload) for _, _, data in entries(planner, None, None) for _, payload in messages(data)
        ]

    async with ours.connect(broker.url) as client:
        async with client.producer(place) as producer:
            await producer.send(b"before")
        for n in range(3):
            await write(client, place, loser, [b"lost %d" % n], name)
            await write(client, place, attempt, [b"won %d" % n], name)
    before = planner()
    assert await asyncio.to_thread(found) == [b"before"]
    settle(broker, name, [attempt], [place])
    assert await asyncio.to_thread(found) == [b"before", b"won 0", b"won 1", b"won 2"]
    after = planner()
    assert before.log_end < after.log_end
    assert after.start == before.start
