"""Compaction of topics of a real broker on the memory adapters, asked for over REST, read over the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from anabranch.broker.compaction.topic_compaction import COMPACTION
from anabranch.broker.config.config import BrokerConfig
from anabranch.client.errors import RequestRefused
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.names import TopicName
from anabranch.wire import pulsar_pb2 as pb
from harness.simple_client import Consumer
from unit.broker.admin.conftest import NOW_MS, Rest, serving

TOPIC = "persistent://public/default/t"
PATH = "/admin/v2/persistent/public/default/t"
CONFIG = BrokerConfig(default_retention_time_in_minutes=0, log_linger_seconds=0, log_linger_bytes=0)


@pytest.fixture
async def rest() -> AsyncIterator[Rest]:
    async with serving(MemoryMetadata(lambda: NOW_MS), CONFIG) as made:
        yield made


async def publish(rest: Rest, *pairs: tuple[str | None, str]) -> list[tuple[int, int]]:
    producer = await rest.client.producer(TOPIC)
    receipts = [await producer.send(value.encode(), key=key) for key, value in pairs]
    await producer.close()
    return [await receipt for receipt in receipts]


async def compact(rest: Rest, path: str = PATH) -> None:
    await rest.call("PUT", f"{path}/compaction", 204)
    for topic in list(rest.broker.loaded().values()):
        await topic.compaction.wait()
    assert await rest.get(f"{path}/compaction") == {"status": "SUCCESS", "lastError": ""}


async def reader(rest: Rest, subscription: str = "reader", **options: Any) -> Consumer:
    return await rest.client.consumer(
        TOPIC, subscription, earliest=True, **{"read_compacted": True, "durable": False, **options}
    )


async def receive(consumer: Consumer, count: int) -> list[tuple[tuple[int, int], str, str]]:
    async with asyncio.timeout(10):
        found = [await consumer.receive() for _ in range(count)]
    return [((one.ledger, one.entry), one.key or "", one.value.decode()) for one in found]


async def test_compacted_readers_get_the_latest_of_each_key_then_the_tail(rest: Rest) -> None:
    assert (await publish_and_status(rest)) == {"status": "NOT_RUN", "lastError": ""}
    ids = await publish(rest, ("a", "1"), ("b", "1"), (None, "?"), ("a", "2"), ("c", "1"), ("c", ""))
    await compact(rest)
    (tail,) = await publish(rest, ("b", "3"))
    consumer = await reader(rest)
    assert await receive(consumer, 3) == [
        (ids[1], "b", "1"),
        (ids[3], "a", "2"),
        (tail, "b", "3"),
    ]
    assert await consumer.last_message() == (tail, False)
    # Everybody else gets everything.
    plain = await reader(rest, "plain", read_compacted=False)
    assert len(await receive(plain, 8)) == 8


async def publish_and_status(rest: Rest) -> object:
    await publish(rest, ("a", "0"))
    return await rest.get(f"{PATH}/compaction")


async def test_what_is_compacted_outlives_the_log_and_is_compacted_again(rest: Rest) -> None:
    first = await publish(rest, ("a", "1"), ("b", "1"), ("a", "2"), ("gone", "1"))
    topic = await rest.broker.topic(TopicName.parse(TOPIC))
    await compact(rest)
    await topic.maintain()
    assert topic.log.entries == 0, "nothing else keeps the log"
    assert await receive(await reader(rest), 3) == [
        (first[1], "b", "1"),
        (first[2], "a", "2"),
        (first[3], "gone", "1"),
    ]
    more = await publish(rest, ("b", "2"), ("gone", ""))
    await topic.maintain()
    assert topic.log.entries == 2, "what is not compacted yet is kept"
    before = topic.log.topic_record.compacted
    assert before is not None
    await compact(rest)
    await topic.maintain()
    assert topic.log.entries == 0
    consumer = await reader(rest, "again")
    assert await receive(consumer, 2) == [(first[2], "a", "2"), (more[0], "b", "2")]
    assert await consumer.last_message() == (more[0], False)
    stats = await rest.get(f"{PATH}/internalStats")
    after = topic.log.topic_record.compacted
    assert after is not None
    assert after.id != before.id
    assert stats["compactedLedger"] == {
        "ledgerId": after.id,
        "entries": 2,
        "size": after.bytes,
        "offloaded": False,
        "underReplicated": False,
    }
    assert (await rest.get(f"{PATH}/stats"))["compaction"]["lastCompactionRemovedEventCount"] == 3


async def test_a_topic_whose_every_key_was_deleted_reads_as_empty(rest: Rest) -> None:
    await publish(rest, ("a", "1"), ("a", ""))
    await compact(rest)
    consumer = await reader(rest)
    assert (await consumer.last_message())[0] == (2**64 - 1, 2**64 - 1)
    (tail,) = await publish(rest, ("a", "2"))
    assert await receive(consumer, 1) == [(tail, "a", "2")]


async def test_a_reader_goes_on_where_it_is_when_the_topic_is_compacted_under_it(rest: Rest) -> None:
    ids = await publish(rest, ("a", "1"), ("b", "1"))
    consumer = await reader(rest)
    assert len(await receive(consumer, 2)) == 2
    await publish(rest, ("a", "2"))
    await compact(rest)
    (tail,) = await publish(rest, ("c", "1"))
    assert [key for _, key, _ in await receive(consumer, 2)] == ["a", "c"]
    assert ids[0] < tail


async def test_a_durable_subscription_keeps_its_compacted_place_over_an_unload(rest: Rest) -> None:
    ids = await publish(rest, *[(f"k{n}", "1") for n in range(4)], ("k0", "2"))
    await compact(rest)
    topic = await rest.broker.topic(TopicName.parse(TOPIC))
    await topic.maintain()
    consumer = await reader(rest, "durable", durable=True)
    async with asyncio.timeout(10):
        await consumer.ack(await consumer.receive())
    await rest.call("PUT", f"{PATH}/unload", 204)
    topic = await rest.broker.topic(TopicName.parse(TOPIC))
    assert topic.subscriptions["durable"].backlog() == 3
    again = await reader(rest, "durable", durable=True)
    assert [at for at, _, _ in await receive(again, 3)] == [ids[2], ids[3], ids[4]]


async def test_only_exclusive_and_failover_subscriptions_of_classic_topics_read_compacted(rest: Rest) -> None:
    for kind in (pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared):
        with pytest.raises(RequestRefused, match="Exclusive and Failover"):
            await reader(rest, kind=kind)
    with pytest.raises(RequestRefused, match="the broker's own"):
        await reader(rest, COMPACTION)
    await reader(rest, "f", kind=pb.CommandSubscribe.Failover)
    with pytest.raises(RequestRefused, match="consumers that read compacted"):
        await reader(rest, "f", kind=pb.CommandSubscribe.Failover, read_compacted=False)


async def test_deleting_a_topic_needs_no_force_for_compactions_own_subscription(rest: Rest) -> None:
    await publish(rest, ("a", "1"))
    await compact(rest)
    await rest.call("DELETE", PATH, 204)
    await publish(rest, ("b", "1"))
    assert [key for _, key, _ in await receive(await reader(rest), 1)] == ["b"]


async def test_each_partition_is_compacted(rest: Rest) -> None:
    path = "/admin/v2/persistent/public/default/parts"
    await rest.call("PUT", f"{path}/partitions", 204, content="2")
    await compact(rest, path)
    for part in range(2):
        assert (await rest.get(f"{path}-partition-{part}/compaction"))["status"] == "SUCCESS"
    assert await rest.refused("PUT", "/admin/v2/persistent/public/default/none/compaction", 404)


async def test_a_topic_over_its_threshold_is_compacted_by_itself(rest: Rest) -> None:
    await publish(rest, ("a", "x" * 200), ("a", "y" * 200))
    topic = await rest.broker.topic(TopicName.parse(TOPIC))
    topic.upkeep.check_compaction()
    assert topic.compaction.status == "NOT_RUN", "never, unless told so"
    await rest.call("PUT", "/admin/v2/namespaces/public/default/compactionThreshold", 204, content="1000")
    assert await rest.get("/admin/v2/namespaces/public/default/compactionThreshold") == 1000
    topic.upkeep.check_compaction()
    assert topic.compaction.status == "NOT_RUN", "it has less"
    await publish(rest, ("a", "x" * 900))
    topic.upkeep.check_compaction()
    assert topic.compaction.status == "RUNNING"
    await topic.compaction.wait()
    assert topic.compaction.status == "SUCCESS"
    topic.upkeep.check_compaction()
    assert not topic.compaction.is_running
    assert topic.compaction.backlog_bytes == 0


async def test_a_topic_that_is_closed_stops_its_compaction_and_keeps_what_it_had(rest: Rest) -> None:
    await publish(rest, ("a", "1"), ("a", "2"))
    topic = await rest.broker.topic(TopicName.parse(TOPIC))
    topic.compaction.trigger()
    await rest.refused("PUT", f"{PATH}/compaction", 409)
    await topic.close()
    assert topic.compaction.status == "ERROR"
    assert topic.log.topic_record.compacted is None
    await compact(rest)
    assert [value for _, _, value in await receive(await reader(rest), 1)] == ["2"]
