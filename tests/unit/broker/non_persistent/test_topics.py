"""Non-persistent topics of a real broker: who gets what is published, what is dropped, what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.non_persistent.subscription import NonPersistentSubscription
from anabranch.broker.non_persistent.topics import UNUSED_MS
from anabranch.client.errors import RequestRefused
from anabranch.errors import AnabranchError
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.keyhash import sticky_slot
from anabranch.model.names import NamespaceName, TopicName
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.pulsar_pb2 import BaseCommand as C
from harness.simple_client import Consumer
from unit.broker.admin.conftest import NOW_MS, Rest, serving
from unit.broker.scalable.brokers import Peer

TOPIC = "non-persistent://public/default/t"
V2 = "/admin/v2"
PATH = f"{V2}/non-persistent/public/default/t"
NS = f"{V2}/namespaces/public/default"
EXCLUSIVE, SHARED = pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Shared
FAILOVER, KEY_SHARED = pb.CommandSubscribe.Failover, pb.CommandSubscribe.Key_Shared


@pytest.fixture
async def rest() -> AsyncIterator[Rest]:
    async with serving(MemoryMetadata(lambda: NOW_MS)) as made:
        yield made


async def take(consumer: Consumer, count: int) -> list[bytes]:
    async with asyncio.timeout(10):
        return [(await consumer.receive()).payload for _ in range(count)]


async def subscription(rest: Rest, name: str) -> Any:
    return (await rest.get(f"{PATH}/stats"))["subscriptions"][name]


async def test_every_subscription_gets_what_is_published_while_it_is_there(rest: Rest) -> None:
    assert await rest.publish(TOPIC, b"nobody is there") == [(0, 0)]
    one = await rest.client.consumer(TOPIC, "one", earliest=True)
    two = await rest.client.consumer(TOPIC, "two", kind=SHARED)
    await rest.publish(TOPIC, b"1", b"2")
    assert await take(one, 2) == await take(two, 2) == [b"1", b"2"]
    stats = await rest.get(f"{PATH}/stats")
    assert (stats["msgInCounter"], stats["msgOutCounter"], stats["storageSize"]) == (3, 4, 0)
    assert not await rest.broker.resources.topic_exists(TopicName.parse(TOPIC)), "nothing of it is stored"


async def test_shared_consumers_share_and_keys_stay_with_one_consumer(rest: Rest) -> None:
    shared = [await rest.client.consumer(TOPIC, "s", kind=SHARED) for _ in range(2)]
    keyed = [await rest.client.consumer(TOPIC, "k", kind=KEY_SHARED) for _ in range(2)]
    producer = await rest.client.producer(TOPIC)
    for n in range(40):
        await producer.send(b"%d" % n, key=f"key-{n % 8}")
    await producer.close()
    parts = [await take(one, 20) for one in shared]
    assert sorted(parts[0] + parts[1], key=int) == [b"%d" % n for n in range(40)]
    counts = [one["msgOutCounter"] for one in (await subscription(rest, "k"))["consumers"]]
    assert sum(counts) == 40
    got = [await take(one, count) for one, count in zip(keyed, counts, strict=True)]
    keys = [{int(value) % 8 for value in part} for part in got]
    assert not keys[0] & keys[1]
    # In the order of publishing, for each.
    assert all(part == sorted(part, key=int) for part in got)


async def test_the_other_failover_consumer_takes_over(rest: Rest) -> None:
    first = await rest.client.consumer(TOPIC, "f", kind=FAILOVER)
    second = await rest.client.consumer(TOPIC, "f", kind=FAILOVER)
    await rest.publish(TOPIC, b"1")
    active = (await subscription(rest, "f"))["consumers"]
    busy, other = (first, second) if active[0]["msgOutCounter"] else (second, first)
    assert await take(busy, 1) == [b"1"]
    await busy.close()
    await rest.publish(TOPIC, b"2")
    assert await take(other, 1) == [b"2"]


async def test_what_finds_no_permits_is_dropped_and_counted(rest: Rest) -> None:
    peer = await Peer.connect(rest.broker.service_url)
    try:
        await peer.ask(
            C.SUBSCRIBE, "subscribe", topic=TOPIC, subscription="s", subType=EXCLUSIVE, consumer_id=1
        )
        await rest.publish(TOPIC, b"1")
        assert (await subscription(rest, "s"))["msgDropCounter"] == 1
        flow = pb.CommandFlow(consumer_id=1, messagePermits=2)
        peer.send(C(type=C.FLOW, flow=flow))
        await peer.settle()
        await rest.publish(TOPIC, b"2", b"3", b"4")
        for _ in range(2):
            message = (await peer.receive(C.MESSAGE)).message
            assert (message.message_id.ledgerId, message.message_id.entryId) == (0, 0)
        found = await subscription(rest, "s")
        assert (found["msgDropCounter"], found["msgOutCounter"]) == (2, 2)
        # What it acknowledges is answered, though it means nothing.
        ids = [pb.MessageIdData(ledgerId=0, entryId=0)]
        command = C(type=C.ACK)
        command.ack.consumer_id, command.ack.ack_type, command.ack.request_id = (
            1,
            pb.CommandAck.Individual,
            77,
        )
        command.ack.message_id.extend(ids)
        peer.send(command)
        assert not (await peer.receive(C.ACK_RESPONSE)).ackResponse.HasField("error")
        rest.broker.non_persistent.update_rates(10.0)
        assert (await rest.get(f"{PATH}/stats"))["msgDropRate"] == 0.2
    finally:
        await peer.close()


async def test_what_needs_messages_that_are_kept_is_refused(rest: Rest) -> None:
    with pytest.raises(RequestRefused, match="only possible on persistent topics"):
        await rest.client.consumer(TOPIC, "s", read_compacted=True)
    peer = await Peer.connect(rest.broker.service_url)
    try:
        await peer.ask(C.SUBSCRIBE, "subscribe", topic=TOPIC, subscription="s", subType=SHARED, consumer_id=1)
        seek = await peer.ask(C.SEEK, "seek", consumer_id=1, message_publish_time=1)
        assert seek.error.error == pb.NotAllowedError
        last = await peer.ask(C.GET_LAST_MESSAGE_ID, "getLastMessageId", consumer_id=1)
        assert "keeps no messages" in last.error.message
    finally:
        await peer.close()
    for method, what in (
        ("PUT", "compaction"),
        ("GET", "compaction"),
        ("POST", "terminate"),
        ("GET", "lastMessageId"),
    ):
        assert "keeps no messages" in await rest.refused(method, f"{PATH}/{what}", 405)
    await rest.call("GET", f"{PATH}/maxProducers", 204)
    assert "namespace" in await rest.refused("POST", f"{PATH}/maxProducers", 405, json=3)


async def test_types_and_exclusive_consumers_are_respected(rest: Rest) -> None:
    await rest.client.consumer(TOPIC, "s")
    with pytest.raises(RequestRefused, match="Exclusive consumer is already connected"):
        await rest.client.consumer(TOPIC, "s")
    with pytest.raises(RequestRefused, match="cannot join"):
        await rest.client.consumer(TOPIC, "s", kind=SHARED)


async def test_topics_are_made_listed_and_deleted(rest: Rest) -> None:
    assert await rest.get(f"{V2}/non-persistent/public/default") == []
    await rest.call("PUT", PATH, 204)
    await rest.refused("PUT", PATH, 409)
    assert await rest.get(f"{V2}/non-persistent/public/default") == [TOPIC]
    assert await rest.get(f"{PATH}/partitions") == {"partitions": 0, "deleted": False}
    consumer = await rest.client.consumer(TOPIC, "s")
    assert await rest.get(f"{PATH}/subscriptions") == ["s"]
    await rest.refused("DELETE", PATH, 412)
    await rest.refused("DELETE", f"{PATH}/subscription/s", 412)
    await consumer.close()
    await rest.call("DELETE", f"{PATH}/subscription/s", 204)
    await rest.call("DELETE", PATH, 204)
    await rest.refused("GET", f"{PATH}/stats", 404)
    await rest.refused("DELETE", PATH, 404)


async def test_partitions_are_topics_of_their_own(rest: Rest) -> None:
    await rest.call("PUT", f"{PATH}/partitions", 204, content="2")
    assert await rest.get(f"{V2}/non-persistent/public/default/partitioned") == [TOPIC]
    assert (await rest.get(f"{PATH}/partitions"))["partitions"] == 2
    await rest.call("POST", f"{PATH}/partitions", 204, content="2")
    await rest.refused("POST", f"{PATH}/partitions", 422, content="1")
    await rest.refused("POST", f"{PATH}/partitions", 422, content="2000000000")
    assert await rest.client.partitions(TOPIC) == [f"{TOPIC}-partition-0", f"{TOPIC}-partition-1"]
    consumer = await rest.client.consumer(f"{TOPIC}-partition-1", "s")
    await rest.publish(f"{TOPIC}-partition-1", b"x")
    assert await take(consumer, 1) == [b"x"]
    stats = await rest.get(f"{PATH}/partitioned-stats")
    assert (stats["msgInCounter"], len(stats["partitions"])) == (1, 2)
    await rest.refused("DELETE", f"{PATH}/partitions", 412)
    await rest.call("DELETE", f"{PATH}/partitions?force=true", 204)
    assert await rest.get(f"{V2}/non-persistent/public/default") == []


async def test_a_topic_that_nobody_uses_for_a_while_is_gone() -> None:
    now = [NOW_MS]
    async with serving(MemoryMetadata(lambda: NOW_MS), now_ms=lambda: now[0]) as rest:
        await rest.publish(TOPIC, b"x")
        await rest.call("PUT", f"{PATH}-kept", 204)
        rest.broker.non_persistent.update_rates(10.0)
        now[0] += UNUSED_MS
        rest.broker.non_persistent.update_rates(10.0)
        assert await rest.get(f"{V2}/non-persistent/public/default") == [f"{TOPIC}-kept"]


async def test_they_go_with_their_namespace_and_can_be_switched_off(rest: Rest) -> None:
    await rest.call("PUT", f"{V2}/namespaces/public/other", 204)
    await rest.publish("non-persistent://public/other/t", b"x")
    await rest.call("DELETE", f"{V2}/namespaces/public/other", 204)
    assert rest.broker.non_persistent.names(NamespaceName("public", "other")) == []
    config = BrokerConfig(enable_non_persistent_topics=False)
    async with serving(MemoryMetadata(lambda: NOW_MS), config) as off:
        with pytest.raises(RequestRefused, match="enableNonPersistentTopics"):
            await off.publish(TOPIC, b"x")
        assert "enableNonPersistentTopics" in await off.refused("PUT", PATH, 409)


async def test_lists_by_mode_have_them(rest: Rest) -> None:
    await rest.publish(TOPIC, b"x")
    await rest.publish("persistent://public/default/p", b"x")
    peer = await Peer.connect(rest.broker.service_url)
    modes = pb.CommandGetTopicsOfNamespace
    try:
        for mode, found in (
            (modes.PERSISTENT, {"persistent://public/default/p"}),
            (modes.NON_PERSISTENT, {TOPIC}),
            (modes.ALL, {TOPIC, "persistent://public/default/p"}),
        ):
            answer = await peer.ask(
                C.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespace", namespace="public/default", mode=mode
            )
            assert set(answer.getTopicsOfNamespaceResponse.topics) == found
    finally:
        await peer.close()


# -- limits


async def refused(attempt: Awaitable[object]) -> int:
    with pytest.raises(RequestRefused) as error:
        await attempt
    return error.value.error


async def test_its_namespaces_maxima_hold_at_once_and_what_is_there_stays(rest: Rest) -> None:
    producer = await rest.client.producer(TOPIC)
    consumer = await rest.client.consumer(TOPIC, "s", kind=SHARED)
    await rest.call("POST", f"{NS}/maxProducersPerTopic", 204, json=1)
    await rest.call("POST", f"{NS}/maxConsumersPerTopic", 204, json=2)
    await rest.call("POST", f"{NS}/maxConsumersPerSubscription", 204, json=1)
    await rest.call("POST", f"{NS}/maxSubscriptionsPerTopic", 204, json=2)
    assert await refused(rest.client.producer(TOPIC)) == pb.ProducerBusy
    assert await refused(rest.client.consumer(TOPIC, "s", kind=SHARED)) == pb.ConsumerBusy
    other = await rest.client.consumer(TOPIC, "other")
    assert await refused(rest.client.consumer(TOPIC, "third")) == pb.ConsumerBusy
    await rest.call("POST", f"{NS}/maxConsumersPerTopic", 204, json=0)
    assert await refused(rest.client.consumer(TOPIC, "third")) == pb.NotAllowedError
    # A reader's subscription does not count: it is gone with it.
    await (await rest.client.consumer(TOPIC, "reader", durable=False)).close()
    await (await producer.send(b"1"))
    assert await take(consumer, 1) == await take(other, 1) == [b"1"]
    await rest.call("DELETE", f"{NS}/maxProducersPerTopic", 204)
    await rest.client.producer(TOPIC)


async def test_only_the_enabled_types_of_subscription_are_served(rest: Rest) -> None:
    await rest.call("POST", f"{NS}/subscriptionTypesEnabled", 204, json=["Shared"])
    assert await refused(rest.client.consumer(TOPIC, "s", durable=False)) == pb.NotAllowedError
    assert TopicName.parse(TOPIC) in rest.broker.non_persistent.names(NamespaceName("public", "default"))
    assert (await rest.get(f"{PATH}/stats"))["subscriptions"] == {}
    await rest.client.consumer(TOPIC, "s", kind=SHARED)


async def test_what_is_not_encrypted_is_refused_where_it_must_be(rest: Rest) -> None:
    producer = await rest.client.producer(TOPIC)
    consumer = await rest.client.consumer(TOPIC, "s")
    await rest.call("POST", f"{NS}/encryptionRequired", 204, json=True)
    assert await refused(rest.client.producer(TOPIC)) == pb.MetadataError
    with pytest.raises(AnabranchError):
        await (await producer.send(b"for everybody to see"))
    await rest.call("POST", f"{NS}/encryptionRequired", 204, json=False)
    await rest.publish(TOPIC, b"2")
    assert await take(consumer, 1) == [b"2"]


async def test_publishing_faster_than_its_rate_is_slowed_and_drops_nothing(rest: Rest) -> None:
    producer = await rest.client.producer(TOPIC)
    consumer = await rest.client.consumer(TOPIC, "s")
    rate = {"publishThrottlingRateInMsg": 20, "publishThrottlingRateInByte": -1}
    await rest.call("POST", f"{NS}/publishRate", 204, json=rate)
    started = rest.broker.loop.time()
    for n in range(30):
        await (await producer.send(b"%d" % n))
    # Twenty at once, the others as the second goes by.
    assert rest.broker.loop.time() - started > 0.3
    assert await take(consumer, 30) == [b"%d" % n for n in range(30)]


@pytest.mark.parametrize("path", ["dispatchRate", "subscriptionDispatchRate"])
async def test_what_goes_beyond_a_dispatch_rate_is_dropped_and_counted(rest: Rest, path: str) -> None:
    consumer = await rest.client.consumer(TOPIC, "s")
    rate = {"dispatchThrottlingRateInMsg": 5, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 60}
    await rest.call("POST", f"{NS}/{path}", 204, json=rate)
    await rest.publish(TOPIC, *(b"%d" % n for n in range(8)))
    assert await take(consumer, 5) == [b"%d" % n for n in range(5)]
    assert (await subscription(rest, "s"))["msgDropCounter"] == 3
    await rest.call("DELETE", f"{NS}/{path}", 204)
    await rest.publish(TOPIC, b"free")
    assert await take(consumer, 1) == [b"free"]


@pytest.mark.parametrize("topic", [TOPIC, "persistent://public/default/t"])
async def test_keys_are_shared_by_halves_where_the_broker_is_told_so(topic: str) -> None:
    config = BrokerConfig(subscription_key_shared_use_consistent_hashing=False)
    low = next(key for n in range(100) if sticky_slot((key := f"k{n}").encode()) <= 1 << 15)
    high = next(key for n in range(100) if sticky_slot((key := f"k{n}").encode()) > 1 << 15)
    async with serving(MemoryMetadata(lambda: NOW_MS), config) as rest:
        first, second = [await rest.client.consumer(topic, "k", kind=KEY_SHARED) for _ in range(2)]
        await rest.publish(topic, b"low", key=low)
        await rest.publish(topic, b"high", key=high)
        assert await take(second, 1) == [b"low"]
        assert await take(first, 1) == [b"high"]


@pytest.mark.parametrize("claimed", [2_000_000_000, 0, -1])
@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
async def test_a_count_that_no_batch_has_and_metadata_that_nobody_can_parse_cost_one_permit(
    rest: Rest, kind: int, claimed: int
) -> None:
    await rest.client.consumer(TOPIC, "s", kind=kind)
    topic = await rest.broker.attachable(TopicName.parse(TOPIC), create=False)
    (attached,) = topic.subscriptions["s"].consumers
    async with asyncio.timeout(30):
        while not attached.permits:  # noqa: ASYNC110 - nothing tells of it.
            await asyncio.sleep(0.01)
    before = attached.permits
    subscription = topic.subscriptions["s"]
    assert isinstance(subscription, NonPersistentSubscription)
    subscription.dispatch([(claimed, (20).to_bytes(4, "big") + b"\xff" * 20 + b"payload")])
    assert attached.permits == before - 1
