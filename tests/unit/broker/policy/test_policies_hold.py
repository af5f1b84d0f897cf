"""Policies keep their word at bad moments: while a topic opens, ends or is empty, and while others crowd in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.state.dedup import Deduplication
from anabranch.broker.topic.topic import Topic
from anabranch.client.errors import ConnectionLost, RequestRefused
from anabranch.metadata.errors import StoreUnavailable
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.names import TopicName
from anabranch.model.position import LedgerId
from anabranch.storage.memory import MemoryLogStore
from anabranch.wire import pulsar_pb2 as pb
from harness.simple_client import Consumer, Producer
from unit.broker.admin.conftest import Rest, serving

V2 = "/admin/v2"
NS = f"{V2}/namespaces/public/default"
T = f"{V2}/persistent/public/default/t"
NAME = TopicName.parse("persistent://public/default/t")
HOUR_MS = 3_600_000
UNUSED = {"inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up", "maxInactiveDurationSeconds": 60}
# More than any of the things that race here takes.
TURNS = 25


class Clock:
    def __init__(self) -> None:
        self.ahead_ms = 0

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def rest(clock: Clock) -> AsyncIterator[Rest]:
    config = BrokerConfig(default_retention_time_in_minutes=0, log_linger_seconds=0, log_linger_bytes=0)
    async with serving(MemoryMetadata(clock), config, now_ms=clock) as made:
        yield made


async def topic(rest: Rest, name: TopicName = NAME) -> Topic:
    return await rest.broker.topic(name, create=True)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("level", ["namespace", "topic"])
async def test_what_is_set_while_a_topic_is_being_opened_is_in_force_once_it_is(
    rest: Rest, level: str
) -> None:
    await topic(rest)
    base = NS if level == "namespace" else T
    for wait in range(TURNS):
        await rest.broker.unload_topic(NAME)
        opening = asyncio.create_task(rest.broker.topic(NAME))
        await turns(wait)
        path = f"{base}/maxProducersPerTopic" if level == "namespace" else f"{base}/maxProducers"
        await rest.call("POST", path, 204, json=wait + 1)
        assert (await opening).limits.producers_max == wait + 1


# -- limits


async def test_consumers_that_come_at_once_are_no_more_than_may_be(rest: Rest) -> None:
    await rest.call("POST", f"{NS}/maxConsumersPerTopic", 204, json=2)

    async def come(n: int) -> Consumer | RequestRefused:
        try:
            return await rest.client.consumer("t", f"s{n}")
        except RequestRefused as refused:
            return refused

    came = await asyncio.gather(*map(come, range(6)))
    assert sum(isinstance(one, Consumer) for one in came) == 2
    assert {one.error for one in came if isinstance(one, RequestRefused)} == {pb.ConsumerBusy}


async def test_a_topic_with_all_the_subscriptions_it_may_have_is_compacted(rest: Rest) -> None:
    await rest.call("POST", f"{NS}/maxSubscriptionsPerTopic", 204, json=1)
    await rest.call("PUT", f"{T}/subscription/s", 204)
    await rest.publish("t", b"1", b"2", key="k")
    await rest.call("PUT", f"{T}/compaction", 204)
    await (await topic(rest)).compaction.wait()
    assert await rest.get(f"{T}/compaction") == {"status": "SUCCESS", "lastError": ""}


# -- backlog quotas


async def test_a_log_that_cannot_be_read_keeps_nobody_from_its_topic_and_no_other_from_its_quota(
    rest: Rest, clock: Clock
) -> None:
    quota = {"limitTime": 60, "policy": "producer_exception"}
    await rest.call("POST", f"{NS}/backlogQuota?backlogQuotaType=message_age", 204, json=quota)
    producers: dict[str, Producer] = {}
    for name in ("a", "b"):
        await rest.call("PUT", f"{V2}/persistent/public/default/{name}/subscription/s", 204)
        producers[name] = await rest.client.producer(name)
        await (await producers[name].send(b"old"))
    log = (await topic(rest, TopicName.parse("a"))).log
    rest.broker.log.delete(LedgerId(log.ledger), log.incarnation)
    clock.ahead_ms = HOUR_MS
    await rest.call("GET", f"{V2}/brokers/backlog-quota-check", 204)
    with pytest.raises(ConnectionLost):
        await (await producers["b"].send(b"more"))
    await (await rest.client.producer("a")).close()


async def test_the_age_of_a_backlog_is_known_without_a_quota(rest: Rest, clock: Clock) -> None:
    await rest.call("PUT", f"{T}/subscription/s", 204)
    assert (await rest.get(f"{T}/stats"))["oldestBacklogMessageAgeSeconds"] == -1
    await rest.publish("t", b"old")
    clock.ahead_ms = HOUR_MS
    await rest.call("GET", f"{V2}/brokers/backlog-quota-check", 204)
    stats = await rest.get(f"{T}/stats")
    assert 3600 <= stats["oldestBacklogMessageAgeSeconds"] < 3660
    assert (stats["backlogQuotaLimitSize"], stats["backlogQuotaLimitTime"]) == (-1, -1)
    await rest.call("POST", f"{T}/subscription/s/skip_all", 204)
    assert (await rest.get(f"{T}/stats"))["oldestBacklogMessageAgeSeconds"] == -1


# -- what is deleted by itself


async def test_a_subscription_of_an_empty_topic_expires(rest: Rest, clock: Clock) -> None:
    await rest.call("PUT", f"{T}/subscription/s", 204)
    opened = await topic(rest)
    await opened.maintain()
    assert opened.log_is_empty
    await rest.call("POST", f"{NS}/subscriptionExpirationTime", 204, json=5)
    assert not opened.log_is_empty, "upkeep passes by topics that are"
    clock.ahead_ms = HOUR_MS
    await opened.maintain()
    assert await rest.get(f"{T}/subscriptions") == []
    assert opened.log_is_empty


async def test_a_topic_that_only_compaction_has_left_something_of_is_not_deleted(
    rest: Rest, clock: Clock
) -> None:
    await rest.publish("t", b"1", b"2", key="k")
    await rest.call("PUT", f"{T}/compaction", 204)
    opened = await topic(rest)
    await opened.compaction.wait()
    await opened.maintain()
    assert opened.log.entries == 0
    await rest.call("POST", f"{NS}/inactiveTopicPolicies", 204, json=UNUSED)
    for clock.ahead_ms in (0, HOUR_MS):
        await rest.broker.inactive_topics.sweep()
    assert await rest.get(f"{V2}/persistent/public/default") == [str(NAME)]


async def test_a_topic_that_somebody_comes_back_to_keeps_all_its_subscriptions_or_none(
    rest: Rest, clock: Clock
) -> None:
    await rest.call("POST", f"{NS}/inactiveTopicPolicies", 204, json=UNUSED)
    for wait in range(TURNS):
        opened = await topic(rest)
        for name in ("s1", "s2", "s3"):
            await opened.create_subscription(name, "earliest", {})
        await rest.broker.inactive_topics.sweep()
        clock.ahead_ms += HOUR_MS
        coming = asyncio.create_task(rest.client.producer("t"))
        await turns(wait)
        await rest.broker.inactive_topics.sweep()
        producer = await coming
        assert set((await topic(rest)).subscriptions) in ({"s1", "s2", "s3"}, set())
        await producer.close()


async def test_a_topic_that_cannot_be_deleted_keeps_no_other_from_it(
    rest: Rest, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rest.call("POST", f"{NS}/inactiveTopicPolicies", 204, json=UNUSED)
    first = await topic(rest)
    await topic(rest, TopicName.parse("persistent://public/default/u"))

    async def unavailable() -> None:
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(first.log, "delete", unavailable)
    for clock.ahead_ms in (0, HOUR_MS):
        await rest.broker.inactive_topics.sweep()
    assert await rest.get(f"{V2}/persistent/public/default") == [str(NAME)]


# -- a topic's end


async def test_upkeep_of_a_topic_that_is_being_deleted_is_quiet(
    rest: Rest, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    kept = {"retentionTimeInMinutes": 1, "retentionSizeInMB": -1}
    await rest.call("POST", f"{NS}/retention", 204, json=kept)
    clock.ahead_ms = HOUR_MS
    store = rest.broker.log
    assert isinstance(store, MemoryLogStore)
    for wait in range(TURNS):
        await rest.publish("t", b"1", b"2")
        # Whoever is short of space looks after all topics at once.
        store.set_accepting(False)
        await turns(wait)
        await rest.broker.delete_topic(NAME, force=True)
        await turns(TURNS)
        store.set_accepting(True)
        assert not await rest.broker.resources.topic_exists(NAME)
    assert [record.message for record in caplog.records if "upkeep" in record.message] == []


# -- deduplication


async def test_two_producers_of_one_name_that_wait_for_the_log_are_not_both_attached(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rest.call("POST", f"{NS}/deduplication", 204, json=True)
    opened = await topic(rest)
    confirmed = asyncio.Event()
    monkeypatch.setattr(opened.publishing, "dedup", dedup := Deduplication())
    monkeypatch.setattr(dedup, "pushed", {"p": 5})

    async def wait(_: object) -> None:
        await confirmed.wait()

    monkeypatch.setattr(type(opened.confirmations), "wait", wait)
    coming = [asyncio.create_task(rest.client.producer("t", "p")) for _ in range(2)]
    await turns(TURNS)
    confirmed.set()
    found = await asyncio.gather(*coming, return_exceptions=True)
    refused = [one for one in found if isinstance(one, RequestRefused)]
    assert [one.error for one in refused] == [pb.ProducerBusy]
    assert len(opened.producers) == 1
