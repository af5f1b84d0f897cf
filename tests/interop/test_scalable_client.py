"""Our own client of scalable topics against a real broker process: splits, merges, restarts, leaving, taking over."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from anabranch.client import (
    CheckpointConsumer,
    Client,
    Message,
    MessageId,
    Producer,
    QueueConsumer,
    RequestRefused,
    StreamConsumer,
    TopicDeleted,
)
from anabranch.model.cut import Cut
from harness.broker_process import BrokerProcess

pytestmark = pytest.mark.interop

WITHIN_S = 20.0
Consumer = StreamConsumer | QueueConsumer | CheckpointConsumer


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A broker that may be killed, drops duplicates, and is quick to give up on silent consumers."""
    settings = {"brokerDeduplicationEnabled": True, "scalableTopicConsumerSessionGracePeriodSeconds": 1}
    with BrokerProcess(tmp_path_factory.mktemp("own"), settings) as process:
        yield process


clients: list[Client] = []


def client_of(broker: BrokerProcess) -> Client:
    clients.append(Client(broker.url))
    return clients[-1]


@pytest.fixture(autouse=True)
async def closing_clients() -> AsyncIterator[None]:
    yield
    while clients:
        async with asyncio.timeout(WITHIN_S):
            await clients.pop().close()


class Topic:
    """A scalable topic and what REST does to it."""

    def __init__(self, broker: BrokerProcess, name: str, segments: int = 1) -> None:
        self.url = f"topic://public/default/{name}"
        self._path = f"scalable/public/default/{name}"
        self._broker = broker
        broker.put(f"{self._path}?numInitialSegments={segments}")
        # Its layout changes when a test says so, however many consumers join.
        broker.post(f"{self._path}/autoScalePolicy", {"enabled": False})

    @property
    def client(self) -> Client:
        """One more client, with connections of its own."""
        return client_of(self._broker)

    async def split(self, number: int) -> None:
        await asyncio.to_thread(self._broker.post, f"{self._path}/split/{number}")

    async def merge(self, one: int, other: int) -> None:
        await asyncio.to_thread(self._broker.post, f"{self._path}/merge/{one}/{other}")

    async def delete(self) -> None:
        await asyncio.to_thread(self._broker.rest, "DELETE", f"{self._path}?force=true")


@pytest.fixture
async def closing() -> AsyncIterator[Callable[[Any], Any]]:
    """Closes what a test opened, in the end."""
    opened: list[Any] = []

    def keep(one: Any) -> Any:
        opened.append(one)
        return one

    yield keep
    for one in opened:
        async with asyncio.timeout(WITHIN_S):
            await one.close()


async def send(producer: Producer, numbers: range, keys: int = 23) -> list[asyncio.Future[MessageId]]:
    """Number n with the key of n modulo `keys`, all in flight at once."""
    return [await producer.post(b"%d" % n, key=f"key-{n % keys}") for n in numbers]


async def take(consumer: Consumer, count: int, *, ack: bool = True) -> list[Message]:
    """So many different messages, acknowledged as they come."""
    found: dict[bytes, Message] = {}
    async with asyncio.timeout(WITHIN_S):
        while len(found) < count:
            message = await consumer.receive()
            found.setdefault(message.payload, message)
            if ack and isinstance(consumer, StreamConsumer):
                await consumer.ack_cumulative(message)
            elif ack and isinstance(consumer, QueueConsumer):
                await consumer.ack(message)
    return list(found.values())


def assert_in_order(messages: list[Message]) -> None:
    last: dict[str | None, int] = defaultdict(lambda: -1)
    for message in messages:
        assert int(message.payload) > last[message.key], f"{message.key} is out of order"
        last[message.key] = int(message.payload)


async def stored(topic: Topic, count: int) -> list[bytes]:
    """Everything in the topic, read from its beginning, and a moment longer."""
    consumer = await topic.client.checkpoint_consumer(topic.url, start="earliest")
    found: list[bytes] = []
    try:
        async with asyncio.timeout(WITHIN_S):
            while len(found) < count:
                found.append((await consumer.receive()).payload)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                found.append((await consumer.receive()).payload)
    finally:
        await consumer.close()
    return found


async def test_keys_keep_their_order_through_splits_and_merges_with_sends_in_flight(
    broker: BrokerProcess, topic: str, closing: Callable[[Any], Any]
) -> None:
    river = Topic(broker, topic)
    consumer = closing(await river.client.stream_consumer(river.url, "s", start="earliest"))
    producer = closing(await river.client.producer(river.url))
    taking = asyncio.create_task(take(consumer, 3000))
    receipts = []
    for step, change in enumerate((river.split(0), river.split(1), river.merge(2, 4))):
        receipts += await send(producer, range(step * 1000, step * 1000 + 500))
        # The first segment has at least one of them, however fast it is split.
        await receipts[0]
        reshaping = asyncio.create_task(change)
        receipts += await send(producer, range(step * 1000 + 500, step * 1000 + 1000))
        await reshaping
    await producer.flush()
    assert {receipt.result().segment for receipt in receipts} > {0}
    assert_in_order(await taking)
    await until(lambda: consumer.assigned == {3, 5})


async def test_messages_without_a_key_go_to_all_segments(
    broker: BrokerProcess, topic: str, closing: Callable[[Any], Any]
) -> None:
    river = Topic(broker, topic, segments=4)
    producer = closing(await river.client.producer(river.url))
    receipts = [await producer.post(b"x") for _ in range(8)]
    assert sorted([(await receipt).segment for receipt in receipts]) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_a_killed_broker_costs_neither_messages_nor_order_and_doubles_none(
    own: BrokerProcess, topic: str, closing: Callable[[Any], Any]
) -> None:
    river = Topic(own, topic, segments=2)
    producer = closing(await river.client.producer(river.url))
    consumer = closing(await river.client.stream_consumer(river.url, "s", start="earliest"))
    taking = asyncio.create_task(take(consumer, 1600))
    await send(producer, range(800))
    restarting = asyncio.create_task(asyncio.to_thread(own.restart))
    await send(producer, range(800, 1600))
    await restarting
    async with asyncio.timeout(WITHIN_S):
        await producer.flush()
    await river.split(0)
    assert_in_order(await taking)
    assert sorted(map(int, await stored(river, 1600))) == list(range(1600))


async def test_a_producer_that_comes_back_asks_sealed_ancestors_what_they_hold(
    own: BrokerProcess, topic: str, closing: Callable[[Any], Any]
) -> None:
    river = Topic(own, topic)
    first = await river.client.producer(river.url, name="billing")
    for receipt in [await first.post(b"%d" % n, key=f"key-{n % 7}", sequence_id=n) for n in range(100)]:
        await receipt
    first.crash()
    await river.split(0)
    await river.merge(1, 2)
    second = closing(await river.client.producer(river.url, name="billing"))
    assert second.last_sequence_id == 99
    # Its application lost the last receipts, and sends those messages again before the new ones.
    again = [await second.post(b"%d" % n, key=f"key-{n % 7}", sequence_id=n) for n in range(60, 130)]
    places = [await receipt for receipt in again]
    assert places[:40] == [MessageId(0, -1, -1)] * 40
    assert {place.segment for place in places[40:]} == {3}
    assert sorted(map(int, await stored(river, 130))) == list(range(130))


async def test_a_consumer_that_leaves_hands_its_segments_over_at_once(
    broker: BrokerProcess, topic: str, closing: Callable[[Any], Any]
) -> None:
    river = Topic(broker, topic, segments=4)
    one = closing(await river.client.stream_consumer(river.url, "s", consumer_name="one"))
    two = closing(await river.client.stream_consumer(river.url, "s", consumer_name="two"))
    await until(lambda: len(one.attached) == len(two.attached) == 2)
    await one.leave()
    # Far less than the grace period that silence would be given.
    await until(lambda: len(two.attached) == 4)


async def test_a_silent_consumers_segments_move_after_the_grace_period_and_nothing_is_lost(
    own: BrokerProcess, topic: str, closing: Callable[[Any], Any]
) -> None:
    river = Topic(own, topic, segments=2)
    producer = closing(await river.client.producer(river.url))
    one = await river.client.stream_consumer(river.url, "s", consumer_name="one", start="earliest")
    two = closing(await river.client.stream_consumer(river.url, "s", consumer_name="two", start="earliest"))
    await until(lambda: len(one.attached) == len(two.attached) == 1)
    for receipt in await send(producer, range(100)):
        await receipt
    await take(one, 10, ack=False)
    one.crash()
    assert_in_order(await take(two, 100))
    assert len(two.assigned) == 2


async def test_a_second_consumer_of_the_same_name_takes_the_session_over(
    broker: BrokerProcess, topic: str, closing: Callable[[Any], Any]
) -> None:
    river = Topic(broker, topic, segments=2)
    producer = closing(await river.client.producer(river.url))
    old = closing(await river.client.stream_consumer(river.url, "s", consumer_name="same", start="earliest"))
    for receipt in await send(producer, range(50)):
        await receipt
    assert_in_order(await take(old, 50))
    new = closing(await river.client.stream_consumer(river.url, "s", consumer_name="same", start="earliest"))
    await until(lambda: len(new.attached) == 2 and not old.assigned)
    for receipt in await send(producer, range(50, 60)):
        await receipt
    assert sorted(int(m.payload) for m in await take(new, 10)) == list(range(50, 60))
    # The old one may go without taking anything away from its successor.
    await old.leave()
    assert len(new.attached) == 2


async def test_a_stream_consumer_goes_on_after_a_restart_with_what_it_has_not_acknowledged(
    own: BrokerProcess, topic: str, closing: Callable[[Any], Any]
) -> None:
    river = Topic(own, topic, segments=2)
    producer = closing(await river.client.producer(river.url))
    consumer = closing(await river.client.stream_consumer(river.url, "s", start="earliest"))
    for receipt in await send(producer, range(40)):
        await receipt
    messages = await take(consumer, 40, ack=False)
    await consumer.ack_cumulative(messages[29])
    assert await consumer.flush()
    await asyncio.to_thread(own.restart)
    again = await take(consumer, 10)
    assert {m.payload for m in again} == {m.payload for m in messages[30:]}


async def test_a_queue_consumer_reads_sealed_segments_and_drops_them_once_drained(
    broker: BrokerProcess, topic: str, closing: Callable[[Any], Any]
) -> None:
    river = Topic(broker, topic)
    producer = closing(await river.client.producer(river.url))
    consumer = closing(await river.client.queue_consumer(river.url, "q", start="earliest"))
    await send(producer, range(100))
    await river.split(0)
    await send(producer, range(100, 200))
    assert len(await take(consumer, 200)) == 200
    await until(lambda: consumer.drained == {0} and consumer.attached == {1, 2})


async def test_queue_consumers_share_every_segment(
    broker: BrokerProcess, topic: str, closing: Callable[[Any], Any]
) -> None:
    river = Topic(broker, topic, segments=2)
    consumers = [
        closing(await river.client.queue_consumer(river.url, "q", start="earliest")) for _ in range(2)
    ]
    producer = closing(await river.client.producer(river.url, batching=False))
    for receipt in await send(producer, range(100)):
        await receipt
    messages = [await take(consumer, 20) for consumer in consumers]
    assert {m.payload for m in messages[0]}.isdisjoint(m.payload for m in messages[1])


async def test_a_checkpoint_is_good_after_more_splits_and_merges(
    broker: BrokerProcess, topic: str, closing: Callable[[Any], Any]
) -> None:
    river = Topic(broker, topic)
    producer = closing(await river.client.producer(river.url))
    first = closing(await river.client.checkpoint_consumer(river.url, start="earliest"))
    await send(producer, range(50))
    await producer.flush()
    before = await take(first, 30)
    kept = first.checkpoint()
    await river.split(0)
    await send(producer, range(50, 100))
    await producer.flush()
    await river.merge(1, 2)
    await send(producer, range(100, 150))
    second = closing(await river.client.checkpoint_consumer(river.url, start=kept))
    after = await take(second, 120)
    assert_in_order(before + after)
    assert [place.segment for place in Cut.decode(second.checkpoint()).places] == [3]


async def test_a_checkpoint_group_gets_children_once_a_member_has_finished_their_parent(
    broker: BrokerProcess, topic: str, closing: Callable[[Any], Any]
) -> None:
    river = Topic(broker, topic)
    producer = closing(await river.client.producer(river.url))
    members = [
        closing(
            await river.client.checkpoint_consumer(
                river.url, start="earliest", group="g", consumer_name=f"member-{n}"
            )
        )
        for n in range(2)
    ]
    await send(producer, range(100))
    await river.split(0)
    await send(producer, range(100, 200))
    found: list[Message] = []

    async def read(member: CheckpointConsumer) -> None:
        while True:
            found.append(await member.receive())

    reading = [asyncio.create_task(read(member)) for member in members]
    await until(lambda: len(found) == 200)
    assert_in_order(found)
    await until(lambda: {*members[0].reading, *members[1].reading} == {1, 2})
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)


@pytest.mark.parametrize("first", ["queue", "stream"])
async def test_a_subscription_of_another_type_is_told_when_it_is_opened(
    first: str, broker: BrokerProcess, topic: str, closing: Callable[[Any], Any]
) -> None:
    river = Topic(broker, topic)
    one, other = river.client, river.client
    if first == "queue":
        closing(await one.queue_consumer(river.url, "s"))
        with pytest.raises(RequestRefused, match="type"):
            await other.stream_consumer(river.url, "s")
    else:
        closing(await one.stream_consumer(river.url, "s"))
        with pytest.raises(RequestRefused, match="type"):
            await other.queue_consumer(river.url, "s")


async def test_a_deleted_topic_is_told_to_producers_and_consumers(
    broker: BrokerProcess, topic: str, closing: Callable[[Any], Any]
) -> None:
    river = Topic(broker, topic)
    producer = closing(await river.client.producer(river.url))
    stream = closing(await river.client.stream_consumer(river.url, "s"))
    queue = closing(await river.client.queue_consumer(river.url, "q"))
    await river.delete()
    for consumer in (stream, queue):
        with pytest.raises(TopicDeleted):
            async with asyncio.timeout(WITHIN_S):
                await consumer.receive()
    with pytest.raises(TopicDeleted):
        await producer.post(b"x")
    with pytest.raises(TopicDeleted):
        await river.client.producer(river.url, create=False)


async def test_a_partitioned_classic_topic_is_read_in_order_by_the_same_client(
    broker: BrokerProcess, topic: str, closing: Callable[[Any], Any]
) -> None:
    await asyncio.to_thread(broker.put, f"persistent/public/default/{topic}/partitions", 3)
    client = client_of(broker)
    name = f"persistent://public/default/{topic}"
    consumer = closing(await client.stream_consumer(name, "s", start="earliest"))
    producer = closing(await client.producer(name))
    receipts = await send(producer, range(100))
    assert {(await receipt).segment for receipt in receipts} == {0, 1, 2}
    found = await take(consumer, 100)
    assert_in_order(found)
    assert {message.topic for message in found} == {name} == {consumer.topic, producer.topic}


async def test_a_missing_topic_is_made_only_when_asked_for(broker: BrokerProcess, topic: str) -> None:
    client = client_of(broker)
    with pytest.raises(TopicDeleted):
        await client.producer(f"topic://public/default/{topic}", create=False)
    producer = await client.producer(f"topic://public/default/{topic}")
    await (await producer.post(b"x"))
    await producer.close()


async def until(met: Callable[[], bool], within_s: float = WITHIN_S) -> None:
    async with asyncio.timeout(within_s):
        while not met():  # noqa: ASYNC110 - what clients show has no event.
            await asyncio.sleep(0.01)
