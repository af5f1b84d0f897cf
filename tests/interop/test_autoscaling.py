"""Topics of a real broker process that split and merge by themselves, with limits and times made small by settings."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from anabranch.client import Client, Message, Producer, StreamConsumer
from harness.broker_process import BrokerProcess, until

pytestmark = pytest.mark.interop

SETTINGS = {
    "scalableTopicAutoScaleInterval": "200ms",
    "scalableTopicLoadReportInterval": "100ms",
    "scalableTopicLoadReportWindow": "600ms",
    "scalableTopicSplitCooldown": "400ms",
    "scalableTopicMergeCooldown": "400ms",
    "scalableTopicMergeWindow": "800ms",
    "scalableTopicMaxDagDepth": 100,
    "scalableTopicSplitMsgRateInThreshold": 400,
    "scalableTopicMergeMsgRateInThreshold": 40,
    "scalableTopicMaxSegments": 16,
}
WITHIN_S = 30.0
BURST, PAUSE_S = 30, 0.02  # 1,500 messages a second: four segments' worth.


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("quick"), SETTINGS) as process:
        yield process


@pytest.fixture
async def closing() -> AsyncIterator[Callable[[Client], Client]]:
    """Closes a test's client in the end."""
    opened: list[Client] = []

    def keep(client: Client) -> Client:
        opened.append(client)
        return client

    yield keep
    for client in opened:
        await client.close()


class Topic:
    def __init__(self, broker: BrokerProcess, name: str) -> None:
        self.url = f"topic://public/default/{name}"
        self.client = Client(broker.url)
        self.path = f"scalable/public/default/{name}"
        self._broker = broker
        broker.put(f"{self.path}?numInitialSegments=1")

    def active(self) -> int:
        return sum(s["state"] == "ACTIVE" for s in self._broker.get(self.path)["segments"].values())

    def buckets(self) -> list[int]:
        """How many entry buckets each active segment has."""
        segments = self._broker.get(self.path)["segments"].values()
        return [1 + len(s.get("entryBucketSplits", ())) for s in segments if s["state"] == "ACTIVE"]

    async def until(self, met: Callable[[int], bool]) -> None:
        """Once the number of active segments is so."""
        await asyncio.to_thread(until, lambda: met(self.active()), WITHIN_S)


@contextlib.asynccontextmanager
async def load(producer: Producer, sent: list[int]) -> AsyncIterator[None]:
    """Keyed messages at a steady pace, until the block ends; then all are stored."""
    is_over = asyncio.Event()

    async def flow() -> None:
        receipts = []
        while not is_over.is_set():
            for _ in range(BURST):
                number = len(sent)
                sent.append(number)
                receipts.append(await producer.post(b"%d" % number, key=f"key-{number % 97}"))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(is_over.wait(), PAUSE_S)
        await asyncio.gather(*receipts)

    flowing = asyncio.create_task(flow())
    try:
        yield
    finally:
        is_over.set()
        await flowing


def metric(broker: BrokerProcess, name: str, topic: Topic) -> int:
    lines = [line for page in broker.metrics() for line in page.splitlines()]
    (line,) = [at for at in lines if at.startswith(name + "{") and f'topic="{topic.url}"' in at]
    return int(line.rsplit(" ", 1)[1])


async def test_a_hot_topic_with_producers_only_splits_by_itself_and_returns_to_one_when_it_is_cold(
    quick: BrokerProcess, closing: Callable[[Client], Client]
) -> None:
    topic = Topic(quick, "hot")
    client = closing(topic.client)
    producer = await client.producer(topic.url)
    sent: list[int] = []
    async with load(producer, sent):
        await topic.until(lambda active: active >= 4)
    await topic.until(lambda active: active == 1)
    # It flows as it did before.
    await producer.send(b"last", key="key-1")
    await producer.close()
    splits = metric(quick, "pulsar_scalable_topic_auto_splits_total", topic)
    merges = metric(quick, "pulsar_scalable_topic_auto_merges_total", topic)
    assert splits == merges >= 3
    assert metric(quick, "pulsar_scalable_topic_active_segments", topic) == 1


async def test_readers_of_a_topic_that_scales_itself_get_everything_in_order(
    quick: BrokerProcess, closing: Callable[[Client], Client]
) -> None:
    topic = Topic(quick, "read")
    client = closing(topic.client)
    consumer = await client.stream_consumer(topic.url, "all")
    producer = await client.producer(topic.url)
    sent: list[int] = []
    got: list[Message] = []

    async def read() -> None:
        while True:
            message = await consumer.receive()
            got.append(message)
            await consumer.ack_cumulative(message)

    reading = asyncio.create_task(read())
    async with load(producer, sent):
        await topic.until(lambda active: active >= 3)
    await topic.until(lambda active: active == 1)
    await asyncio.to_thread(until, lambda: len({m.payload for m in list(got)}) == len(sent), WITHIN_S)
    reading.cancel()
    last: dict[str | None, int] = defaultdict(lambda: -1)
    for message in got:
        number = int(message.payload)
        assert number > last[message.key], f"{message.key} is out of order"
        last[message.key] = number
    await consumer.close()
    await producer.close()


async def test_with_a_budget_of_one_bucket_a_consumer_that_joins_gets_a_segment_of_its_own(
    tmp_path: Path, closing: Callable[[Client], Client]
) -> None:
    with BrokerProcess(tmp_path, {**SETTINGS, "scalableTopicEntryBucketBudget": 1}) as broker:
        topic = Topic(broker, "divided")
        client = closing(topic.client)
        team = [await client.stream_consumer(topic.url, "team", consumer_name=f"c-{n}") for n in range(2)]
        await topic.until(lambda active: active == 2)
        assert topic.buckets() == [1, 1]
        producer = await client.producer(topic.url)
        received = await each_receives(producer, *team)
        assert not received[0] & received[1], "a key went to both"
        for one in team:
            await one.close()
        await producer.close()
        told = await asyncio.to_thread(broker.get, f"{topic.path}/explain")
        assert "'team' has 2 consumers" in str(told)


async def test_a_consumer_that_joins_shares_the_only_segment_and_nothing_splits(
    quick: BrokerProcess, closing: Callable[[Client], Client]
) -> None:
    topic = Topic(quick, "joined")
    client = closing(topic.client)
    team = [await client.stream_consumer(topic.url, "team", consumer_name=f"c-{n}") for n in range(2)]
    producer = await client.producer(topic.url)
    await each_receives(producer, *team)
    # By now both share it.
    received = await each_receives(producer, *team)
    assert not received[0] & received[1], "a key went to both"
    assert topic.active() == 1
    assert topic.buckets() == [4]
    for one in team:
        await one.close()
    await producer.close()


async def test_consumers_beyond_all_entry_buckets_of_a_quiet_topic_are_given_more_of_them(
    quick: BrokerProcess, closing: Callable[[Client], Client]
) -> None:
    topic = Topic(quick, "crowded")
    client = closing(topic.client)
    team = [await client.stream_consumer(topic.url, "team", consumer_name=f"c-{n}") for n in range(5)]
    await asyncio.to_thread(until, lambda: topic.buckets() == [8], WITHIN_S)
    # Asked while the topic is quiet: the messages below may be load enough for a split.
    told = (await asyncio.to_thread(quick.get, f"{topic.path}/explain"))["decisions"]
    assert [(one["kind"], one["rule"]) for one in told if one["kind"] != "stay"] == [
        ("rebucket", "consumers")
    ]
    producer = await client.producer(topic.url)
    await each_receives(producer, *team)
    for one in team:
        await one.close()
    await producer.close()


async def each_receives(producer: Producer, *team: StreamConsumer) -> list[set[str]]:
    """Sends the same keys, again and again, until each consumer has received some. Returns the keys of each."""
    received: list[set[str]] = [set() for _ in team]

    async def read(consumer: StreamConsumer, keys: set[str]) -> None:
        while True:
            message = await consumer.receive()
            keys.add(message.key or "")
            await consumer.ack_cumulative(message)

    reading = [asyncio.create_task(read(one, keys)) for one, keys in zip(team, received, strict=True)]
    try:
        async with asyncio.timeout(WITHIN_S):
            while not all(received):
                for number in range(50):
                    await producer.post(b"", key=f"key-{number}")
                await producer.flush()
    finally:
        for task in reading:
            task.cancel()
        await asyncio.wait(reading)
    return received


async def test_what_it_did_and_why_is_known_after_a_restart(
    quick: BrokerProcess, closing: Callable[[Client], Client]
) -> None:
    topic = Topic(quick, "told")
    client = closing(topic.client)
    consumers = [await client.stream_consumer(topic.url, "team", consumer_name=f"c{n}") for n in range(5)]
    await asyncio.to_thread(until, lambda: topic.buckets() == [8], WITHIN_S)
    for one in consumers:
        await one.close()
    quick.stop()
    quick.start()
    told = str(await asyncio.to_thread(quick.get, f"{topic.path}/explain"))
    assert "'team' has 5 consumers" in told
