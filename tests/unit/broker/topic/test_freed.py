"""A closed topic is freed when the last caller lets go of it: by counting references, since the collector would stop
all other topics meanwhile."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from anabranch.broker.broker import Broker
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.errors import NotReadyError
from anabranch.broker.topic.topic import Topic
from anabranch.client import RequestRefused
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.names import TopicName
from anabranch.model.position import LedgerId
from anabranch.storage.port import LogDamagedError, LogError
from anabranch.wire import pulsar_pb2 as pb
from harness.simple_client import Consumer, EndOfTopic, Hidden, Producer
from unit.broker.admin.conftest import NOW_MS, Rest, serving
from unit.broker.scalable.brokers import Peer
from unit.broker.scalable.cluster import TOPIC, Cluster, name_of, running
from unit.broker.topics.test_handing_over import two_brokers

T = "persistent://public/default/t"
NAME = TopicName.parse(T)
REST = "/admin/v2/persistent/public/default/t"
KINDS = pb.CommandSubscribe
SOME_KEYS = pb.KeySharedMeta(keySharedMode=pb.STICKY, hashRanges=[pb.IntRange(start=0, end=65_535)])
# By then everything that was under way has ended.
TURNS = 200


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
async def rest() -> AsyncIterator[Rest]:
    async with serving(MemoryMetadata(lambda: NOW_MS)) as made:
        yield made


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with running() as made:
        yield made


class Watched:
    """A topic and its parts, without keeping them in memory."""

    def __init__(self, topic: Topic) -> None:
        self._parts: dict[str, weakref.ref[Any]] = {
            "topic": weakref.ref(topic),
            "log": weakref.ref(topic.log),
            "producers": weakref.ref(topic.attached),
            "subscribing": weakref.ref(topic.subscribing),
        }
        for name, subscription in topic.subscriptions.items():
            self._parts[f"subscription {name}"] = weakref.ref(subscription)
            if subscription.dispatcher is not None:
                self._parts[f"dispatcher of {name}"] = weakref.ref(subscription.dispatcher)

    def left(self) -> list[str]:
        return [name for name, part in self._parts.items() if part() is not None]

    async def freed(self) -> None:
        for _ in range(TURNS):
            if not self.left():
                return
            await asyncio.sleep(0)
        assert not self.left()


def opened(rest: Rest, name: TopicName = NAME) -> Topic:
    return rest.broker.loaded()[name]


async def closed(rest: Rest, name: TopicName = NAME) -> Watched:
    topic = opened(rest, name)
    watched = Watched(topic)
    await topic.close()
    return watched


async def publish(rest: Rest, count: int = 5, **options: Any) -> Producer:
    """The producer, which stays connected."""
    producer = await rest.client.producer(T, "p")
    for number in range(count):
        await (await producer.send(b"%d" % number, key=f"k{number}", **options))
    return producer


async def take(consumer: Consumer, count: int) -> list[bytes]:
    async with asyncio.timeout(10):
        return [(await consumer.receive()).payload for _ in range(count)]


# -- subscriptions


@pytest.mark.parametrize("consumers", [1, 3])
@pytest.mark.parametrize("kind", [KINDS.Exclusive, KINDS.Failover, KINDS.Shared, KINDS.Key_Shared])
async def test_a_topic_with_consumers_of_each_kind(rest: Rest, kind: int, consumers: int) -> None:
    """Some messages are acknowledged, some not, some are handed back."""
    is_alone = kind == KINDS.Exclusive
    joined = [
        await rest.client.consumer(T, f"s{number if is_alone else ''}", kind=kind, earliest=True)
        for number in range(consumers)
    ]
    await publish(rest, 20)
    if is_alone or consumers == 1:
        await joined[0].ack(await joined[0].receive())
    hand_some_back(rest)
    await (await closed(rest)).freed()


def hand_some_back(rest: Rest) -> None:
    for subscription in opened(rest).subscriptions.values():
        for consumer in subscription.consumers:
            subscription.redeliver(consumer, list(consumer.pending)[:2])


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"durable": False}, id="reader"),
        pytest.param({"keySharedMeta": SOME_KEYS}, id="exclusive, of some keys"),
        pytest.param({"kind": KINDS.Key_Shared, "keySharedMeta": SOME_KEYS}, id="sticky"),
    ],
)
async def test_a_topic_with_a_special_consumer(rest: Rest, options: dict[str, Any]) -> None:
    consumer = await rest.client.consumer(T, "s", earliest=True, **options)
    await publish(rest)
    await consumer.ack(await consumer.receive())
    await (await closed(rest)).freed()


async def test_a_topic_whose_clients_have_left(rest: Rest) -> None:
    producer = await publish(rest)
    consumer = await rest.client.consumer(T, "s", kind=KINDS.Shared, earliest=True)
    await take(consumer, 5)
    await consumer.close()
    await producer.close()
    await (await closed(rest)).freed()


async def test_a_topic_with_delayed_messages(rest: Rest) -> None:
    consumer = await rest.client.consumer(T, "s", kind=KINDS.Shared, earliest=True)
    await publish(rest, published_ms=NOW_MS, delay_ms=3_600_000)
    await publish_to(rest, "q", b"now")
    assert await take(consumer, 1) == [b"now"]
    await (await closed(rest)).freed()


async def publish_to(rest: Rest, name: str, payload: bytes) -> None:
    producer = await rest.client.producer(T, name)
    await (await producer.send(payload))


async def test_a_topic_with_limited_rates(rest: Rest) -> None:
    dispatch = {"dispatchThrottlingRateInMsg": 2, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1}
    await rest.call("POST", "/admin/v2/namespaces/public/default/dispatchRate", json=dispatch)
    await rest.call("POST", "/admin/v2/namespaces/public/default/subscriptionDispatchRate", json=dispatch)
    rate = {"publishThrottlingRateInMsg": 1000, "publishThrottlingRateInByte": -1}
    await rest.call("POST", "/admin/v2/namespaces/public/default/publishRate", json=rate)
    consumer = await rest.client.consumer(T, "s", earliest=True)
    await publish(rest)
    await take(consumer, 1)
    await (await closed(rest)).freed()


async def test_a_topic_whose_subscription_was_moved_skipped_and_deleted(rest: Rest) -> None:
    consumer = await rest.client.consumer(T, "gone", earliest=True)
    await publish(rest)
    topic = opened(rest)
    await topic.subscriptions["gone"].seek(topic.log.first)
    await topic.subscriptions["gone"].skip(2)
    await topic.subscriptions["gone"].expire_before(NOW_MS * 2)
    watched = Watched(topic)
    await topic.delete_subscription("gone", force=True)
    del topic, consumer
    await (await closed(rest)).freed()
    await watched.freed()


# -- producers


async def test_a_topic_with_exclusive_and_waiting_producers(broker: Broker, peer: Peer) -> None:
    for number, mode in enumerate((pb.Exclusive, pb.WaitForExclusive)):
        asked = {"topic": T, "producer_id": number, "producer_access_mode": mode}
        await peer.ask(pb.BaseCommand.PRODUCER, "producer", **asked)
    topic = broker.loaded()[NAME]
    assert (len(topic.producers), topic.attached.waiting) == (1, 1)
    watched = Watched(topic)
    await topic.close()
    del topic
    await watched.freed()


async def test_a_topic_with_deduplication() -> None:
    config = BrokerConfig(broker_deduplication_enabled=True)
    async with serving(MemoryMetadata(lambda: NOW_MS), config) as rest:
        await publish(rest)
        await (await closed(rest)).freed()
        # It reads its log when it is opened again.
        await publish(rest)
        await (await closed(rest)).freed()


async def test_a_topic_with_hidden_writes(rest: Rest) -> None:
    consumer = await rest.client.consumer(T, "s", earliest=True)
    winner, loser = "a" * 32, "b" * 32
    for attempt in (winner, loser):
        producer = await rest.client.producer(T, hidden=Hidden("job", 0, attempt))
        await (await producer.send(attempt.encode()))
    await rest.call("PUT", "/admin/v2/anabranch/writes/job/0", json={"winners": [winner], "topics": [T]})
    reveal = "/admin/v2/anabranch/reveal/persistent/public/default/t"
    await rest.call("POST", reveal, 204, params={"write": "job", "batch": "0"})
    assert await take(consumer, 1) == [winner.encode()]
    await (await closed(rest)).freed()


async def test_a_topic_with_an_open_hidden_write(rest: Rest) -> None:
    producer = await rest.client.producer(T, hidden=Hidden("job", 0, "a" * 32))
    await (await producer.send(b"hidden"))
    await opened(rest).hidden.look()
    await (await closed(rest)).freed()


# -- compaction and upkeep


async def test_a_topic_that_was_compacted_and_is_read_so(rest: Rest) -> None:
    await publish(rest)
    await rest.call("PUT", f"{REST}/compaction", 204)
    await opened(rest).compaction.wait()
    reader = await rest.client.consumer(T, "r", earliest=True, durable=False, read_compacted=True)
    durable = await rest.client.consumer(T, "d", earliest=True, read_compacted=True)
    await take(reader, 5)
    await take(durable, 5)
    await (await closed(rest)).freed()


@pytest.mark.parametrize("turns", [0, 1, 20])
async def test_a_topic_that_is_being_compacted(rest: Rest, turns: int) -> None:
    await publish(rest)
    opened(rest).compaction.trigger()
    for _ in range(turns):
        await asyncio.sleep(0)
    await (await closed(rest)).freed()


async def test_a_topic_that_was_maintained_and_looked_at(rest: Rest) -> None:
    consumer = await rest.client.consumer(T, "s", kind=KINDS.Shared, earliest=True)
    await publish(rest)
    await take(consumer, 1)
    topic = opened(rest)
    await topic.maintain()
    topic.update_rates(1.0)
    await topic.quotas.check()
    topic.upkeep.check_compaction()
    await topic.upkeep.truncate()
    del topic
    await rest.broker.recorder.sample()
    for path in (f"{REST}/stats", f"{REST}/internalStats", f"{REST}/subscriptions"):
        await rest.get(path)
    await (await closed(rest)).freed()


# -- the end of a topic, and of its log


async def test_a_topic_that_was_terminated_and_drained(rest: Rest) -> None:
    consumer = await rest.client.consumer(T, "s", earliest=True)
    await publish(rest)
    await opened(rest).terminate()
    for _ in range(5):
        await consumer.ack(await consumer.receive())
    with pytest.raises(EndOfTopic):
        await consumer.receive()
    await (await closed(rest)).freed()


async def test_a_topic_that_is_deleted(rest: Rest) -> None:
    await rest.client.consumer(T, "s", earliest=True)
    await publish(rest)
    topic = opened(rest)
    topic.publishing.publish_own(b"not confirmed yet", 1)
    watched = Watched(topic)
    await topic.delete(force=True)
    del topic
    await watched.freed()


async def fenced(cluster: Cluster) -> None:
    """Another broker takes the ledger of the first one's topic."""
    topic = cluster.first.broker.loaded()[NAME]
    await cluster.nodes[1].broker.log.take(topic.log.incarnation, [LedgerId(topic.log.ledger)])


async def test_a_topic_that_lost_its_log() -> None:
    async with running(2) as cluster:
        await cluster.first.client.consumer(T, "s", kind=KINDS.Shared, earliest=True)
        await cluster.first.publish(NAME, b"1")
        await fenced(cluster)
        topic = cluster.first.broker.loaded()[NAME]
        watched = Watched(topic)
        topic.publishing.publish_own(b"met by the fence", 1)
        await topic.wait_closed()
        for _ in range(3):
            with pytest.raises(LogError):
                topic.log.append(b"late", 1)
            with pytest.raises(LogError):
                await topic.confirmations.stored(b"late")
        del topic
        await watched.freed()


async def test_a_topic_that_lost_its_log_while_a_subscription_was_stored() -> None:
    async with running(2) as cluster:
        await cluster.first.publish(NAME, b"1")
        await fenced(cluster)
        watched = Watched(cluster.first.broker.loaded()[NAME])
        with pytest.raises(RequestRefused, match="was taken by another broker"):
            await cluster.first.client.consumer(T, "s", earliest=True)
        await watched.freed()


async def test_a_topic_that_lost_its_log_while_hidden_entries_were_revealed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("CRITICAL")  # What is logged here holds the error, and that the topic.
    async with running(2) as cluster:
        attempt = "a" * 32
        producer = await cluster.first.client.producer(T, hidden=Hidden("job", 0, attempt))
        await (await producer.send(b"hidden"))
        watched = Watched(cluster.first.broker.loaded()[NAME])
        await fenced(cluster)
        # The broker hears of the decision, carries it out, and meets the fence.
        decided = {"winners": [attempt], "topics": [T]}
        assert (await cluster.first.rest("PUT", "anabranch/writes/job/0", json=decided)).is_success
        await watched.freed()


async def test_a_topic_with_damage_in_its_log(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    await publish(rest)
    topic = opened(rest)
    ledger, entry = topic.log.first

    async def read(*_: object) -> object:
        raise LogDamagedError(ledger, entry, entry + 1, "wal-1", 77)

    with monkeypatch.context() as patch:
        patch.setattr(topic.services.log_store, "read", read)
        patch.setattr(topic.services.log_store, "read_cached", lambda *_: None)
        await rest.client.consumer(T, "s", earliest=True)
        async with asyncio.timeout(10):
            while topic.subscriptions["s"].error is None:  # noqa: ASYNC110
                await asyncio.sleep(0)
    del topic
    await (await closed(rest)).freed()


async def test_a_topic_that_was_closed_half_way(rest: Rest) -> None:
    await publish(rest)
    topic = opened(rest)
    topic.publishing.publish_own(b"not confirmed yet", 1)
    watched = Watched(topic)
    closing = asyncio.ensure_future(topic.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    del topic, closing
    await watched.freed()


# -- segments, moves


async def test_segments_of_a_scalable_topic(cluster: Cluster) -> None:
    """The parent is sealed by the split and drained; both children are in use."""
    (parent,) = await cluster.topic()
    await cluster.subscription("s")
    await cluster.segments.create(TOPIC, parent, ["s"])
    await cluster.first.publish(name_of(parent), b"1", b"2")
    children = await cluster.split(subscriptions=["s"])
    await cluster.first.read(name_of(parent), "s", 2)
    for child in children:
        await cluster.first.publish(name_of(child), b"3")
        await cluster.first.client.consumer(str(name_of(child)), "s", earliest=True)
    for segment in (parent, *children):
        topic = cluster.first.broker.loaded()[name_of(segment)]
        watched = Watched(topic)
        await topic.close()
        del topic
        await watched.freed()


async def test_a_topic_that_has_moved_to_another_broker() -> None:
    async with two_brokers() as (cluster, _):
        await cluster.first.client.consumer(T, "s", earliest=True)
        await cluster.first.publish(NAME, b"1")
        watched = Watched(cluster.first.broker.loaded()[NAME])
        cluster.move(NAME, 1)
        async with asyncio.timeout(10):
            while NAME not in cluster.nodes[1].broker.loaded():  # noqa: ASYNC110
                await asyncio.sleep(0)
        await watched.freed()


# -- what comes late


async def test_acknowledgements_and_timers_of_a_closed_topic_are_harmless(rest: Rest) -> None:
    client = await rest.client.consumer(T, "s", kind=KINDS.Shared, earliest=True)
    await publish(rest)
    await take(client, 5)
    topic = opened(rest)
    subscription = topic.subscriptions["s"]
    (consumer,) = subscription.consumers
    places = list(consumer.pending)
    ack = pb.CommandAck(consumer_id=consumer.id, ack_type=pb.CommandAck.Individual)
    ack.message_id.add(ledgerId=places[0][0], entryId=places[0][1])
    errors: list[Exception | None] = []
    subscription.ack(consumer, ack, errors.append)
    watched = Watched(topic)
    await topic.close()
    del topic
    subscription.ack(consumer, ack, errors.append)
    subscription.redeliver(consumer, places)
    subscription.flow(consumer, 10)
    subscription.entries_confirmed()
    subscription.remove_consumer(consumer)
    with pytest.raises(NotReadyError):
        await subscription.skip_all()
    del subscription, consumer
    await watched.freed()
    late, stored = errors
    assert isinstance(late, NotReadyError)
    assert stored is None, "it was accepted before the topic was closed"


# -- topics without a log


@pytest.mark.parametrize("kind", [KINDS.Exclusive, KINDS.Failover, KINDS.Shared, KINDS.Key_Shared])
async def test_a_non_persistent_topic(rest: Rest, kind: int) -> None:
    name = f"non-{T}"
    consumer = await rest.client.consumer(name, "s", kind=kind)
    await rest.publish(name, b"1")
    assert await take(consumer, 1) == [b"1"]
    (topic,) = rest.broker.non_persistent.loaded()
    parts = [weakref.ref(one) for one in (topic, topic.attached, topic.subscriptions["s"])]
    topic.close()
    del topic
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert [part() for part in parts] == [None, None, None]
