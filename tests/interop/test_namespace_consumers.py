"""Consumers of a namespace against a real broker process: topics come, go and change while they run."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import anabranch
from anabranch.client import BadArgument, Client, Message, NamespaceQueueConsumer, NamespaceStreamConsumer
from harness.broker_process import BrokerProcess

WITHIN_S = 30.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("namespaces")) as process:
        process.put("tenants/acme", {"allowedClusters": ["standalone"]})
        yield process


class Namespace:
    """A namespace of its own for each test, and what is done to its topics."""

    def __init__(self, broker: BrokerProcess, name: str) -> None:
        self.name = f"acme/{name}"
        self._broker = broker
        broker.put(f"namespaces/{self.name}")

    def topic(self, name: str) -> str:
        return f"topic://{self.name}/{name}"

    async def _rest(self, method: str, path: str, body: Any = None) -> None:
        await asyncio.to_thread(self._broker.rest, method, f"scalable/{self.name}/{path}", body)

    async def make(self, name: str, segments: int = 1, **properties: str) -> str:
        await self._rest("PUT", f"{name}?numInitialSegments={segments}", properties)
        return self.topic(name)

    async def delete(self, name: str) -> None:
        await self._rest("DELETE", f"{name}?force=true")

    async def change(self, name: str, **properties: str) -> None:
        await self._rest("PUT", f"{name}/properties", properties)

    async def split(self, name: str, number: int) -> None:
        await self._rest("POST", f"{name}/split/{number}")

    async def topics(self) -> list[str]:
        return list(await asyncio.to_thread(self._broker.get, f"scalable/{self.name}"))


@pytest.fixture
def space(broker: BrokerProcess, request: pytest.FixtureRequest) -> Namespace:
    return Namespace(broker, request.node.name.removeprefix("test_")[:60])


@pytest.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[Client]:
    async with anabranch.connect(broker.url) as client:
        yield client


async def send(client: Client, topic: str, *texts: str) -> None:
    async with client.producer(topic, create=False) as producer:
        for number, text in enumerate(texts):
            await producer.post(text.encode(), key=f"k{number % 5}")


async def joined(consumer: NamespaceStreamConsumer | NamespaceQueueConsumer, *topics: str) -> None:
    """Once it reads exactly those."""
    async with asyncio.timeout(WITHIN_S):
        while consumer.topics != set(topics):  # noqa: ASYNC110 - what a client shows has no event.
            await asyncio.sleep(0.01)


async def take(consumer: NamespaceStreamConsumer | NamespaceQueueConsumer, count: int) -> list[Message]:
    return [await consumer.receive(timeout_s=WITHIN_S) for _ in range(count)]


def texts(messages: list[Message]) -> set[tuple[str, str]]:
    return {(message.topic.rpartition("/")[2], message.payload.decode()) for message in messages}


async def nothing_more(consumer: NamespaceStreamConsumer | NamespaceQueueConsumer) -> None:
    with pytest.raises(anabranch.TimedOut):
        await consumer.receive(timeout_s=0.5)


async def test_all_topics_are_one_stream_and_messages_name_their_topic(
    space: Namespace, client: Client
) -> None:
    one, two = await space.make("one", segments=2), await space.make("two")
    stream = await client.stream_consumer(namespace=space.name, subscription="s")
    assert stream.topics == {one, two}
    await send(client, one, "a", "b")
    await send(client, two, "c")
    found = await take(stream, 3)
    assert texts(found) == {("one", "a"), ("one", "b"), ("two", "c")}
    assert {message.topic for message in found} == {one, two}


async def test_messages_of_a_topic_that_is_still_joining_are_acknowledged_and_handed_back(
    space: Namespace, client: Client
) -> None:
    queue = await client.queue_consumer(
        namespace=space.name,
        subscription="q",
        start="earliest",
        property_filters={"read": "yes"},
        negative_ack=anabranch.NackDelay(first_s=0.05),
    )
    # Messages come from the first segments while the last ones are not subscribed to.
    topic = await space.make("wide", segments=40)
    async with client.producer(topic, batching=False) as producer:
        for number in range(120):
            await producer.post(b"%d" % number)
    await space.change("wide", read="yes")
    (back,) = await take(queue, 1)
    await queue.nack(back)
    seen = [back.payload]
    while len(seen) < 121:
        message = await queue.receive(timeout_s=WITHIN_S)
        seen.append(message.payload)
        await queue.ack(message)
        if len(seen) < 10:
            assert await queue.flush()
    assert Counter(seen) == Counter(b"%d" % number for number in range(120)) + Counter([back.payload])
    assert await queue.flush()


async def test_topics_join_and_leave_while_it_runs(space: Namespace, client: Client) -> None:
    one = await space.make("one")
    stream = await client.stream_consumer(namespace=space.name, subscription="s", start="earliest")
    two = await space.make("two")
    await joined(stream, one, two)
    await send(client, two, "x")
    assert texts(await take(stream, 1)) == {("two", "x")}
    await space.delete("one")
    await joined(stream, two)
    # Following a topic that is gone does not bring it back.
    assert await space.topics() == [two]


async def test_only_topics_with_all_the_properties_are_read_and_a_change_moves_them(
    space: Namespace, client: Client
) -> None:
    gold = await space.make("gold", tier="gold", region="eu")
    await space.make("silver", tier="silver", region="eu")
    queue = await client.queue_consumer(
        namespace=space.name, property_filters={"tier": "gold", "region": "eu"}, subscription="q"
    )
    assert queue.topics == {gold}
    await space.change("silver", tier="gold")
    await joined(queue, gold, space.topic("silver"))
    await space.change("gold", region="us")
    await joined(queue, space.topic("silver"))


async def test_a_cumulative_ack_covers_every_topic_and_nothing_comes_again(
    space: Namespace, client: Client
) -> None:
    topics = [await space.make(f"t{n}", segments=2) for n in range(4)]
    async with client.stream_consumer(namespace=space.name, subscription="s", start="earliest") as stream:
        for topic in topics:
            await send(client, topic, *(f"{n}" for n in range(25)))
        found = await take(stream, 100)
        await stream.ack_cumulative(found[-1])
        assert await stream.flush()
    again = await client.stream_consumer(namespace=space.name, subscription="s")
    await nothing_more(again)


async def test_a_cumulative_ack_leaves_what_was_delivered_after_the_message(
    space: Namespace, client: Client
) -> None:
    topics = [await space.make(f"t{n}") for n in range(3)]
    async with client.stream_consumer(namespace=space.name, subscription="s", start="earliest") as stream:
        for topic in topics:
            await send(client, topic, *(f"{n}" for n in range(10)))
        found = await take(stream, 30)
        await stream.ack_cumulative(found[13])
    again = await client.stream_consumer(namespace=space.name, subscription="s")
    assert texts(await take(again, 16)) == texts(found[14:])
    await nothing_more(again)


async def test_an_individual_ack_goes_to_the_topic_the_message_came_from(
    space: Namespace, client: Client
) -> None:
    topics = [await space.make(f"t{n}") for n in range(3)]
    async with client.queue_consumer(namespace=space.name, subscription="q", start="earliest") as queue:
        for topic in topics:
            await send(client, topic, "a", "b")
        found = await take(queue, 6)
        for message in found:
            if message.payload == b"a":
                await queue.ack(message)
        assert await queue.flush()
    again = await client.queue_consumer(namespace=space.name, subscription="q")
    assert texts(await take(again, 3)) == {(f"t{n}", "b") for n in range(3)}
    await nothing_more(again)


async def test_what_is_handed_back_comes_again_and_goes_to_its_topics_dead_letters_in_the_end(
    space: Namespace, client: Client
) -> None:
    one = await space.make("one", kind="work")
    queue = await client.queue_consumer(
        namespace=space.name,
        property_filters={"kind": "work"},
        subscription="q",
        start="earliest",
        negative_ack=anabranch.NackDelay(first_s=0.01, max_s=0.02),
        dead_letter=anabranch.DeadLetter(redeliveries_max=1),
    )
    await send(client, one, "poison")
    for _ in range(2):
        message = await queue.receive(WITHIN_S)
        await queue.nack(message)
    assert await queue.flush()
    buried = await client.queue_consumer(f"{one}-q-DLQ", "look", start="earliest")
    assert (await buried.receive(WITHIN_S)).payload == b"poison"


async def test_a_message_of_a_namespace_that_takes_too_long_comes_again(
    space: Namespace, client: Client
) -> None:
    one = await space.make("one")
    queue = await client.queue_consumer(
        namespace=space.name, subscription="q", start="earliest", processing_timeout_s=0.2
    )
    await send(client, one, "slow")
    first, again = await take(queue, 2)
    assert (first.id, first.redeliveries, again.redeliveries) == (again.id, 0, 1)


async def test_acks_of_a_topic_that_leaves_are_stored_and_the_rest_is_there_for_others(
    space: Namespace, client: Client
) -> None:
    one = await space.make("one", colour="red")
    stream = await client.stream_consumer(
        namespace=space.name, property_filters={"colour": "red"}, subscription="s", start="earliest"
    )
    async with client.producer(one, batching=False) as producer:
        for number in range(20):
            await producer.send(b"%d" % number, key="k")
    found = await take(stream, 5)
    await stream.ack_cumulative(found[-1])
    await space.change("one", colour="blue")
    await joined(stream)
    other = await client.stream_consumer(one, "s")
    assert [int((await other.receive(WITHIN_S)).payload) for _ in range(15)] == list(range(5, 20))


async def test_keys_keep_their_order_in_each_topic_through_splits(space: Namespace, client: Client) -> None:
    topics = [await space.make(f"t{n}") for n in range(3)]
    stream = await client.stream_consumer(namespace=space.name, subscription="s", start="earliest")
    producers = [await client.producer(topic) for topic in topics]
    last: dict[tuple[str, str | None], int] = defaultdict(lambda: -1)
    counted: Counter[str] = Counter()

    async def read() -> None:
        while sum(counted.values()) < 3 * 600:
            message = await stream.receive(timeout_s=WITHIN_S)
            number = int(message.payload)
            assert number > last[message.topic, message.key]
            last[message.topic, message.key] = number
            counted[message.topic] += 1
            await stream.ack_cumulative(message)

    reading = asyncio.create_task(read())
    for number in range(600):
        for producer in producers:
            await producer.post(b"%d" % number, key=f"key-{number % 17}")
        if number in (200, 400):
            await space.split("t0", 0 if number == 200 else 1)
    await reading
    assert counted == dict.fromkeys(topics, 600)


async def test_one_busy_topic_does_not_starve_the_others(space: Namespace, client: Client) -> None:
    busy, quiet = await space.make("busy"), await space.make("quiet")
    queue = await client.queue_consumer(
        namespace=space.name, subscription="q", start="earliest", receive_queue=100
    )
    await send(client, busy, *(f"{n}" for n in range(5000)))
    await queue.receive(WITHIN_S)
    await send(client, quiet, "here")
    seen = 0
    while (await queue.receive(WITHIN_S)).topic == busy:
        seen += 1
    assert seen < 3000, "the quiet topic had to wait for the whole backlog of the busy one"


async def test_two_consumers_share_the_segments_of_every_topic(space: Namespace, client: Client) -> None:
    """Each topic's controller decides alone: with two segments each, both consumers read from both topics."""
    topics = {await space.make("one", segments=2), await space.make("two", segments=2)}
    streams = [
        await client.stream_consumer(namespace=space.name, subscription="s", consumer_name=name)
        for name in ("a", "b")
    ]
    found: list[set[str]] = [set(), set()]

    async def read(at: int) -> None:
        while True:
            message = await streams[at].receive()
            found[at].add(message.topic)
            await streams[at].ack_cumulative(message)

    reading = [asyncio.create_task(read(at)) for at in (0, 1)]
    async with asyncio.timeout(WITHIN_S):
        while not all(one == topics for one in found):
            for topic in topics:
                await send(client, topic, *(f"{n}" for n in range(5)))
    for task in reading:
        task.cancel()


def test_a_checkpoint_consumer_reads_one_topic() -> None:
    taken = inspect.signature(Client.checkpoint_consumer).parameters
    assert "topic" in taken
    assert "namespace" not in taken


async def test_a_topic_made_again_under_the_same_name_is_read_anew(space: Namespace, client: Client) -> None:
    one = await space.make("one")
    stream = await client.stream_consumer(namespace=space.name, subscription="s", start="earliest")
    await send(client, one, "old")
    await take(stream, 1)
    await space.delete("one")
    await space.make("one")
    await send(client, one, "new")
    assert texts(await take(stream, 1)) == {("one", "new")}


async def test_a_restarted_broker_costs_nothing_but_time(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        broker.put("tenants/acme", {"allowedClusters": ["standalone"]})
        space = Namespace(broker, "restarted")
        one = await space.make("one")
        async with anabranch.connect(broker.url) as client:
            stream = await client.stream_consumer(namespace=space.name, subscription="s", start="earliest")
            await send(client, one, "before")
            before = await take(stream, 1)
            await stream.ack_cumulative(before[0])
            assert await stream.flush()
            await asyncio.to_thread(broker.restart)
            two = await space.make("two")
            await send(client, one, "after")
            await send(client, two, "new")
            assert texts(await take(stream, 2)) == {("one", "after"), ("two", "new")}


@pytest.mark.parametrize("kind", ["stream_consumer", "queue_consumer"])
async def test_both_or_neither_of_topic_and_namespace_are_refused_before_connecting(kind: str) -> None:
    # Nobody is there to connect to.
    async with anabranch.connect("pulsar://127.0.0.1:1") as client:
        make = getattr(client, kind)
        with pytest.raises(BadArgument, match="not both"):
            make("topic://public/default/t", "s", namespace="public/default")
        with pytest.raises(BadArgument, match="a topic or a namespace"):
            make(subscription="s")
        with pytest.raises(BadArgument, match="property_filters"):
            make("topic://public/default/t", "s", property_filters={"a": "b"})


async def test_a_namespace_that_is_not_there_says_so(client: Client) -> None:
    with pytest.raises(anabranch.RequestRefused, match="nowhere"):
        await client.stream_consumer(namespace="acme/nowhere", subscription="s")
