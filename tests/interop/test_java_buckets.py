"""Pulsar's released Java client, 5.0.0-M1, on segments with four entry buckets, beside our own clients.

It knows nothing of buckets: its entries have no range of hashes, and its consumers read whole segments. Opt-in (`make
interop`): it needs a JDK 17 or later and Maven.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.client import Client
from harness.broker_process import BrokerProcess
from interop import java_program
from interop.java_worker import JavaWorker
from interop.sharers import SETTINGS, History, Member, all_receive, make, sending, sharing, until
from interop.test_java_v5 import SETTINGS as V5_SETTINGS

pytestmark = [pytest.mark.interop, pytest.mark.java, pytest.mark.timeout(600)]

QUICK = SETTINGS | {
    "scalableTopicAutoScaleInterval": "200ms",
    "scalableTopicLoadReportInterval": "100ms",
    "scalableTopicLoadReportWindow": "2s",
    "scalableTopicSplitCooldown": "400ms",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    java_program.build()
    with BrokerProcess(tmp_path_factory.mktemp("buckets"), QUICK) as process:
        yield process


@pytest.fixture
def complaints(tmp_path: Path) -> Path:
    return tmp_path / "stderr"


def path_of(topic: str) -> str:
    return topic.replace("topic://", "scalable/")


def active(broker: BrokerProcess, topic: str) -> list[int]:
    segments = broker.get(path_of(topic))["segments"].values()
    return sorted(one["segmentId"] for one in segments if one["state"] == "ACTIVE")


async def test_entries_of_its_producer_go_to_one_sharer_at_a_time_until_the_topic_splits(
    broker: BrokerProcess, topic: str, complaints: Path
) -> None:
    name, history = make(broker, topic), History()
    async with await JavaWorker.start(
        broker, history, "produce", name, "40", complaints=complaints
    ) as sender:
        first = await Member.join(broker, name, "first", history)
        second = await Member.join(broker, name, "second", history)
        await until(lambda: all("sharing 0" in repr(one.consumer) for one in (first, second)))
        await until(lambda: bool(first.consumer.attached and second.consumer.attached))
        before = first.received, second.received
        for _ in range(20):
            await sender.send(50)
        await until(lambda: history.is_whole)
        took_part = [one.received > n for one, n in zip((first, second), before, strict=True)]
        assert sorted(took_part) == [False, True]
        # One consumer has nothing to do: the topic splits for it, as it does where there are no buckets.
        broker.post(f"{path_of(name)}/autoScalePolicy", {"enabled": True})

        async def on() -> None:
            while True:
                await sender.send(50)

        sent = asyncio.create_task(on())
        await all_receive(first, second)
        sent.cancel()
        await asyncio.wait([sent])
        assert len(active(broker, name)) > 1
    for member in (first, second):
        await member.leave()
    history.assert_in_order()


async def test_its_stream_consumers_never_share_and_get_a_split(
    broker: BrokerProcess, topic: str, complaints: Path
) -> None:
    name, history = make(broker, topic), History()
    broker.post(f"{path_of(name)}/autoScalePolicy", {"enabled": True})
    async with (
        Client(broker.url) as client,
        await client.producer(name) as producer,
        await JavaWorker.start(broker, history, "stream", name, "team", "one", complaints=complaints) as one,
        await JavaWorker.start(broker, history, "stream", name, "team", "two", complaints=complaints) as two,
    ):
        assert sharing(broker, name) == 0
        async with sending(producer, history):
            await all_receive(one, two)
            assert sharing(broker, name) == 0
        await until(lambda: history.is_whole)
        assert len(active(broker, name)) > 1
        assert sharing(broker, name) == 0
    history.assert_in_order()


async def test_in_a_group_with_ours_it_has_whole_segments_and_ours_share_the_others(
    broker: BrokerProcess, topic: str, complaints: Path
) -> None:
    name, history = make(broker, topic, segments=2), History()
    async with Client(broker.url) as client, await client.producer(name) as producer:
        async with await JavaWorker.start(
            broker, history, "stream", name, "team", "java", complaints=complaints
        ) as java:
            ours = [await Member.join(broker, name, f"ours-{n}", history) for n in range(2)]
            async with sending(producer, history):
                await until(lambda: all("sharing" in repr(one.consumer) for one in ours))
                await all_receive(java, *ours)
                await ours[0].leave()
                await all_receive(java, ours[1])
            await until(lambda: history.is_whole)
        await ours[1].leave()
    history.assert_in_order()


async def test_its_producer_and_its_consumer_follow_a_segment_that_gets_other_buckets(
    broker: BrokerProcess, topic: str, complaints: Path
) -> None:
    name, history = make(broker, topic), History()
    async with (
        await JavaWorker.start(broker, history, "produce", name, "40", complaints=complaints) as sender,
        await JavaWorker.start(broker, history, "stream", name, "team", "one", complaints=complaints) as one,
    ):
        for buckets in (7, 1, 4):
            await sender.send(100, in_turn=True)
            [segment] = active(broker, name)
            await asyncio.to_thread(broker.post, f"{path_of(name)}/rebucket/{segment}?buckets={buckets}")
        await sender.send(100, in_turn=True)
        await until(lambda: history.is_whole)
        assert one.received >= history.sent
    history.assert_in_order()


async def test_its_queue_consumers_read_entries_with_ranges(
    broker: BrokerProcess, topic: str, complaints: Path
) -> None:
    name, history = make(broker, topic), History()
    async with (
        Client(broker.url) as client,
        await client.producer(name) as producer,
        await JavaWorker.start(broker, history, "queue", name, "work", "one", complaints=complaints) as one,
        await JavaWorker.start(broker, history, "queue", name, "work", "two", complaints=complaints) as two,
    ):
        async with sending(producer, history):
            await all_receive(one, two)
        await until(lambda: history.is_whole)


async def test_ours_share_what_it_and_we_send(broker: BrokerProcess, topic: str, complaints: Path) -> None:
    """Entries without a range are barriers among those that have one."""
    name, history, theirs = make(broker, topic), History(), History()
    async with (
        Client(broker.url) as client,
        await client.producer(name) as producer,
        await JavaWorker.start(broker, theirs, "produce", name, "0", complaints=complaints) as sender,
    ):
        members = [await Member.join(broker, name, f"m{n}", history) for n in range(3)]
        async with sending(producer, history):
            for _ in range(5):
                await all_receive(*members)
                await sender.send(20)
        await until(lambda: history.is_whole)
        await until(lambda: sum(member.keyless for member in members) >= theirs.sent)
        for member in members:
            await member.leave()
    history.assert_in_order()


@pytest.mark.parametrize("group", ["admin", "stream", "producer"])
def test_every_claim_holds_where_segments_have_buckets(group: str, tmp_path: Path) -> None:
    java_program.build()
    with BrokerProcess(tmp_path, V5_SETTINGS | {"scalableTopicEntryBucketBudget": 4}) as broker:
        ended = java_program.run("V5Claims", broker, group, complaints=tmp_path / "stderr")
    assert ended.failed == [], ended.complaints
    assert ended.code == 0, ended.complaints
