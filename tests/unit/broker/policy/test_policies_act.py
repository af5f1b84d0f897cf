"""Policies of namespaces and topics change what clients may do, and what becomes of their messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec
import pytest

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.policy.rate_bucket import Pace
from anabranch.broker.policy.rate_json import DispatchRate
from anabranch.broker.topic.topic import Topic
from anabranch.client.errors import ConnectionLost, RequestRefused
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.names import TopicName
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.pulsar_pb2 import BaseCommand as C
from unit.broker.admin.conftest import Rest, serving
from unit.broker.scalable.brokers import Peer

V2 = "/admin/v2"
NS = f"{V2}/namespaces/public/default"
T = f"{V2}/persistent/public/default/t"
NAME = TopicName.parse("persistent://public/default/t")
HOUR_MS = 3_600_000


class Clock:
    """The broker's; messages carry the test's own time, so it starts there."""

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


async def topic(rest: Rest) -> Topic:
    return await rest.broker.topic(NAME, create=True)


async def refusal(attempt: object) -> int:
    with pytest.raises(RequestRefused) as refused:
        await attempt  # type: ignore[misc]  # Any coroutine.
    return refused.value.error


# -- backlog quotas


@pytest.mark.parametrize(
    ("action", "code"),
    [
        ("producer_request_hold", pb.ProducerBlockedQuotaExceededError),
        ("producer_exception", pb.ProducerBlockedQuotaExceededException),
    ],
)
async def test_a_full_backlog_closes_producers_and_says_why_until_it_is_consumed(
    rest: Rest, action: str, code: int
) -> None:
    await rest.call("PUT", f"{T}/subscription/s", 204)
    await rest.call("POST", f"{NS}/backlogQuota", 204, json={"limitSize": 1000, "policy": action})
    producer = await rest.client.producer("t")
    await (await producer.send(b"x" * 500))
    await rest.call("GET", f"{V2}/brokers/backlog-quota-check", 204)
    await (await producer.send(b"x" * 600))
    await rest.call("GET", f"{V2}/brokers/backlog-quota-check", 204)
    with pytest.raises(ConnectionLost):
        await (await producer.send(b"more"))
    assert await refusal(rest.client.producer("t")) == code
    consumer = await rest.client.consumer("t", "s")
    for _ in range(2):
        await consumer.ack(await consumer.receive())
    await rest.publish("t", b"again")


async def test_eviction_gives_up_the_oldest_until_the_backlog_is_below_its_quota(rest: Rest) -> None:
    await rest.call("PUT", f"{T}/subscription/s", 204)
    quota = {"limitSize": 5000, "policy": "consumer_backlog_eviction"}
    await rest.call("POST", f"{T}/backlogQuota", 204, json=quota)
    await rest.publish("t", *[b"%3d" % n + b"x" * 500 for n in range(20)])
    await rest.call("GET", f"{V2}/brokers/backlog-quota-check", 204)
    found = (await topic(rest)).subscriptions["s"]
    assert 5 <= found.backlog() <= 9
    consumer = await rest.client.consumer("t", "s")
    assert int((await consumer.receive()).value[:3]) == 20 - found.backlog()
    stats = await rest.get(f"{T}/stats")
    assert stats["backlogSize"] < 5000
    await rest.publish("t", b"goes on")


async def test_a_quota_by_age_holds_producers_while_something_old_waits(rest: Rest, clock: Clock) -> None:
    await rest.call("PUT", f"{T}/subscription/s", 204)
    await rest.call(
        "POST",
        f"{NS}/backlogQuota?backlogQuotaType=message_age",
        204,
        json={"limitTime": 60, "policy": "producer_request_hold"},
    )
    await rest.publish("t", b"old")
    await rest.publish("t", b"young still")
    clock.ahead_ms = HOUR_MS
    assert await refusal(rest.client.producer("t")) == pb.ProducerBlockedQuotaExceededError
    await rest.call("POST", f"{T}/subscription/s/skip_all", 204)
    await rest.publish("t", b"free again")


async def test_eviction_by_age_gives_up_what_is_too_old(rest: Rest, clock: Clock) -> None:
    await rest.call("PUT", f"{T}/subscription/s", 204)
    quota = {"limitTime": 60, "policy": "consumer_backlog_eviction"}
    await rest.call("POST", f"{NS}/backlogQuota?backlogQuotaType=message_age", 204, json=quota)
    await rest.publish("t", b"old", b"old too")
    clock.ahead_ms = HOUR_MS
    await rest.call("GET", f"{V2}/brokers/backlog-quota-check", 204)
    assert (await topic(rest)).subscriptions["s"].backlog() == 0


async def test_a_topics_own_quota_takes_the_place_of_its_namespaces(rest: Rest) -> None:
    await rest.call("PUT", f"{T}/subscription/s", 204)
    await rest.call("POST", f"{NS}/backlogQuota", 204, json={"limitSize": 10, "policy": "producer_exception"})
    await rest.call("POST", f"{T}/backlogQuota", 204, json={"limitSize": -1, "policy": "producer_exception"})
    await rest.publish("t", b"x" * 100)
    await rest.publish("t", b"x" * 100)
    await rest.call("DELETE", f"{T}/backlogQuota", 204)
    assert await refusal(rest.client.producer("t")) == pb.ProducerBlockedQuotaExceededException


async def test_a_backlog_may_not_be_larger_than_what_is_kept_of_the_consumed(rest: Rest) -> None:
    kept = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 1}
    await rest.call("POST", f"{NS}/retention", 204, json=kept)
    quota = {"limitSize": 2 << 20, "policy": "producer_exception"}
    assert "retention" in await rest.refused("POST", f"{NS}/backlogQuota", 412, json=quota)


# -- how many there may be


async def test_producers_beyond_the_maximum_are_refused(rest: Rest) -> None:
    await rest.call("POST", f"{NS}/maxProducersPerTopic", 204, json=1)
    first = await rest.client.producer("t")
    assert await refusal(rest.client.producer("t")) == pb.ProducerBusy
    await first.close()
    await rest.client.producer("t")


async def test_consumers_beyond_the_maximum_are_refused(rest: Rest) -> None:
    await topic(rest)
    await rest.call("POST", f"{T}/maxConsumers", 204, json=2)
    shared = pb.CommandSubscribe.Shared
    for name in ("a", "b"):
        await rest.client.consumer("t", name, kind=shared)
    assert await refusal(rest.client.consumer("t", "c", kind=shared)) == pb.ConsumerBusy


async def test_consumers_beyond_a_subscriptions_maximum_are_refused(rest: Rest) -> None:
    await rest.call("POST", f"{NS}/maxConsumersPerSubscription", 204, json=1)
    shared = pb.CommandSubscribe.Shared
    await rest.client.consumer("t", "a", kind=shared)
    assert await refusal(rest.client.consumer("t", "a", kind=shared)) == pb.ConsumerBusy
    await rest.client.consumer("t", "b", kind=shared)


async def test_subscriptions_beyond_the_maximum_are_refused_on_both_protocols(rest: Rest) -> None:
    await rest.call("POST", f"{NS}/maxSubscriptionsPerTopic", 204, json=1)
    await rest.call("PUT", f"{T}/subscription/a", 204)
    await rest.refused("PUT", f"{T}/subscription/b", 409)
    assert await refusal(rest.client.consumer("t", "b")) == pb.NotAllowedError
    await rest.client.consumer("t", "a")


async def test_topics_beyond_the_namespaces_maximum_are_refused(rest: Rest) -> None:
    await rest.call("POST", f"{NS}/maxTopicsPerNamespace", 204, json=2)
    await rest.call("PUT", T, 204)
    await rest.refused("PUT", f"{V2}/persistent/public/default/p/partitions", 412, json=2)
    await rest.publish("second", b"x")
    await rest.refused("PUT", f"{V2}/persistent/public/default/third", 412)
    assert await refusal(rest.client.producer("third")) == pb.NotAllowedError


async def test_only_the_enabled_types_of_subscription_are_served(rest: Rest) -> None:
    await rest.call("POST", f"{NS}/subscriptionTypesEnabled", 204, json=["Shared"])
    assert await refusal(rest.client.consumer("t", "a")) == pb.NotAllowedError
    await rest.client.consumer("t", "a", kind=pb.CommandSubscribe.Shared)


async def test_subscriptions_are_not_made_by_use_where_that_is_turned_off(rest: Rest) -> None:
    await rest.call(
        "POST", f"{NS}/autoSubscriptionCreation", 204, json={"allowAutoSubscriptionCreation": False}
    )
    assert await refusal(rest.client.consumer("t", "a")) == pb.SubscriptionNotFound
    await rest.call("PUT", f"{T}/subscription/a", 204)
    await rest.client.consumer("t", "a")


async def test_a_consumer_with_too_much_unacknowledged_waits_and_goes_on_when_the_limit_rises(
    rest: Rest,
) -> None:
    await rest.call("POST", f"{NS}/maxUnackedMessagesPerConsumer", 204, json=2)
    consumer = await rest.client.consumer("t", "a", kind=pb.CommandSubscribe.Shared)
    await rest.publish("t", *[b"%d" % n for n in range(5)])
    for _ in range(2):
        await consumer.receive()
    await asyncio.sleep(0)
    stats = (await rest.get(f"{T}/stats"))["subscriptions"]["a"]["consumers"][0]
    assert stats["unackedMessages"] == 2
    assert stats["blockedConsumerOnUnackedMsgs"]
    await rest.call("POST", f"{NS}/maxUnackedMessagesPerConsumer", 204, json=100)
    assert [(await consumer.receive()).value for _ in range(3)] == [b"2", b"3", b"4"]


async def test_producers_that_do_not_encrypt_are_refused_where_it_is_required(rest: Rest) -> None:
    producer = await rest.client.producer("t")
    await rest.call("POST", f"{NS}/encryptionRequired", 204, json=True)
    assert await refusal(rest.client.producer("t")) == pb.MetadataError
    with pytest.raises(RequestRefused, match="must be encrypted"):
        await (await producer.send(b"plain"))


# -- rates


async def test_publishing_faster_than_its_rate_is_slowed_and_loses_nothing(rest: Rest) -> None:
    await topic(rest)
    rate = {"publishThrottlingRateInMsg": 20, "publishThrottlingRateInByte": -1}
    await rest.call("POST", f"{T}/publishRate", 204, json=rate)
    producer = await rest.client.producer("t")
    before = asyncio.get_running_loop().time()
    for n in range(10):
        for _ in range(3):
            await producer.send(b"%d" % n)
        await producer.flush()
    assert asyncio.get_running_loop().time() - before > 0.3
    assert (await topic(rest)).log.entries == 30


async def test_dispatch_keeps_to_its_rate(rest: Rest) -> None:
    rate = {"dispatchThrottlingRateInMsg": 10, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1}
    await rest.call("POST", f"{NS}/subscriptionDispatchRate", 204, json=rate)
    await rest.publish("t", *[b"%d" % n for n in range(14)])
    consumer = await rest.client.consumer("t", "a", earliest=True)
    before = asyncio.get_running_loop().time()
    assert [(await consumer.receive()).value for _ in range(14)] == [b"%d" % n for n in range(14)]
    assert asyncio.get_running_loop().time() - before > 0.3


async def test_a_subscription_may_have_a_rate_of_its_own(rest: Rest) -> None:
    rate = {"dispatchThrottlingRateInMsg": 10, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1}
    await rest.publish("t", *[b"%d" % n for n in range(14)])
    await rest.call("GET", f"{T}/slow/dispatchRate", 204)
    await rest.call("POST", f"{T}/slow/dispatchRate", 204, json=rate)
    assert (await rest.get(f"{T}/slow/dispatchRate"))["dispatchThrottlingRateInMsg"] == 10
    took: dict[str, float] = {}
    for name in ("fast", "slow"):
        consumer = await rest.client.consumer("t", name, earliest=True)
        before = asyncio.get_running_loop().time()
        for _ in range(14):
            await consumer.receive()
        took[name] = asyncio.get_running_loop().time() - before
    assert took["slow"] > 0.3 > took["fast"]
    await rest.call("DELETE", f"{T}/slow/dispatchRate", 204)
    await rest.call("GET", f"{T}/slow/dispatchRate", 204)
    assert (await rest.get(f"{T}/slow/dispatchRate?applied=true"))["dispatchThrottlingRateInMsg"] == 0


async def test_a_message_that_is_to_come_too_late_is_refused(rest: Rest) -> None:
    await topic(rest)
    policy = {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 5000}
    await rest.call("POST", f"{NS}/delayedDelivery", 204, json=policy)
    producer = await rest.client.producer("t")
    await (await producer.send(b"now"))
    await (await producer.send(b"soon", delay_ms=5000))
    with pytest.raises(RequestRefused, match="delivery delay of 5000") as refused:
        await (await producer.send(b"too late", delay_ms=5001))
    assert refused.value.error == pb.NotAllowedError
    assert (await topic(rest)).log.entries == 2


async def test_a_dispatch_rate_that_is_relative_lets_what_is_published_pass_too(rest: Rest) -> None:
    rate = {"dispatchThrottlingRateInMsg": 10, "relativeToPublishRate": True, "ratePeriodInSecond": 2}
    await rest.call("POST", f"{T}/subscriptionDispatchRate", 404, json=rate)
    await topic(rest)
    await rest.call("POST", f"{T}/subscriptionDispatchRate", 204, json=rate)
    assert (await rest.get(f"{T}/subscriptionDispatchRate"))["relativeToPublishRate"] is True
    pace = Pace.of(msgspec.convert(rate, DispatchRate), now=0.0)
    pace.follow((5.0, 0.0))
    pace.spend(10, 0, 0.0)
    # Ten asked for and five a second published are twenty in two seconds.
    assert (pace.messages_left(1.0), pace.messages_left(5.0)) == (10, 20)


async def test_a_consumer_that_subscribes_too_often_is_refused(rest: Rest) -> None:
    await topic(rest)
    rate = {"subscribeThrottlingRatePerConsumer": 2, "ratePeriodInSecond": 600}
    await rest.call("POST", f"{T}/subscribeRate", 204, json=rate)
    assert await rest.get(f"{T}/subscribeRate") == rate
    wire = await Peer.connect(rest.broker.service_url)

    async def subscribe(name: str) -> pb.BaseCommand:
        answer = await wire.ask(
            C.SUBSCRIBE,
            "subscribe",
            topic=str(NAME),
            subscription=name,
            consumer_name="c",
            consumer_id=1,
            subType=pb.CommandSubscribe.Shared,
        )
        await wire.ask(C.CLOSE_CONSUMER, "close_consumer", consumer_id=1)
        return answer

    assert [(await subscribe("s")).type for _ in range(2)] == [C.SUCCESS] * 2
    assert (await subscribe("s")).error.error == pb.NotAllowedError
    await rest.call("DELETE", f"{T}/subscribeRate", 204)
    assert (await subscribe("s")).type == C.SUCCESS
    await wire.close()


async def test_a_message_over_the_size_of_its_topic_is_refused(rest: Rest) -> None:
    await topic(rest)
    await rest.call("POST", f"{T}/maxMessageSize", 204, json=1000)
    assert "not be over" in await rest.refused("POST", f"{T}/maxMessageSize", 412, json=1 << 30)
    producer = await rest.client.producer("t")
    await (await producer.send(b"small"))
    with pytest.raises(RequestRefused, match="maximum message size") as refused:
        await (await producer.send(b"x" * 1000))
    assert refused.value.error == pb.NotAllowedError


async def test_a_topic_is_replicated_to_its_own_cluster_and_no_other(rest: Rest) -> None:
    await topic(rest)
    await rest.call("POST", f"{T}/replication", 204, json=["standalone"])
    assert await rest.get(f"{T}/replication") == ["standalone"]
    assert "geo-replication" in await rest.refused(
        "POST", f"{T}/replication", 412, json=["standalone", "mars"]
    )
    await rest.call("DELETE", f"{T}/replication", 204)
    await rest.call("GET", f"{T}/replication", 204)


# -- what is deleted by itself


async def test_a_subscription_without_consumers_expires(rest: Rest, clock: Clock) -> None:
    consumer = await rest.client.consumer("t", "kept")
    await rest.call("PUT", f"{T}/subscription/gone", 204)
    await rest.call("POST", f"{NS}/subscriptionExpirationTime", 204, json=5)
    clock.ahead_ms = HOUR_MS
    await (await topic(rest)).maintain()
    assert await rest.get(f"{T}/subscriptions") == ["kept"]
    await consumer.close()


async def test_a_topic_that_nobody_uses_is_deleted_where_a_policy_says_so(rest: Rest, clock: Clock) -> None:
    policy = {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 60,
        "deleteWhileInactive": True,
    }
    await topic(rest)
    await rest.call("POST", f"{NS}/inactiveTopicPolicies", 204, json=policy)
    await rest.broker.inactive_topics.sweep()
    clock.ahead_ms = 30_000
    await rest.broker.inactive_topics.sweep()
    assert await rest.get(f"{V2}/persistent/public/default") == [str(NAME)]
    clock.ahead_ms = 61_000
    await rest.broker.inactive_topics.sweep()
    assert await rest.get(f"{V2}/persistent/public/default") == []


async def test_a_topic_with_a_subscription_stays_unless_the_policy_asks_for_no_more_than_caught_up(
    rest: Rest, clock: Clock
) -> None:
    policy = {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 60}
    await rest.call("PUT", f"{T}/subscription/s", 204)
    await rest.call("POST", f"{T}/inactiveTopicPolicies", 204, json=policy)
    for clock.ahead_ms in (0, HOUR_MS):
        await rest.broker.inactive_topics.sweep()
    assert await rest.get(f"{V2}/persistent/public/default") == [str(NAME)]
    policy["inactiveTopicDeleteMode"] = "delete_when_subscriptions_caught_up"
    await rest.call("POST", f"{T}/inactiveTopicPolicies", 204, json=policy)
    for clock.ahead_ms in (HOUR_MS, 2 * HOUR_MS):
        await rest.broker.inactive_topics.sweep()
    assert await rest.get(f"{V2}/persistent/public/default") == []


# -- keeping and expiring


async def test_a_topics_own_ttl_and_retention_free_what_its_namespace_would_keep(
    rest: Rest, clock: Clock
) -> None:
    kept = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    await rest.call("POST", f"{NS}/retention", 204, json=kept)
    await rest.call("PUT", f"{T}/subscription/s", 204)
    await rest.publish("t", b"1", b"2")
    clock.ahead_ms = HOUR_MS
    opened = await topic(rest)
    await opened.maintain()
    assert opened.log.entries == 2
    await rest.call("POST", f"{T}/messageTTL?messageTTL=60", 204)
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    await rest.call("POST", f"{T}/retention", 204, json=nothing)
    await opened.maintain()
    assert opened.log.entries == 0


async def test_truncating_gives_up_everything_whatever_retention_says(rest: Rest) -> None:
    kept = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    await rest.call("POST", f"{NS}/retention", 204, json=kept)
    await rest.call("PUT", f"{T}/subscription/s", 204)
    await rest.publish("t", b"1", b"2")
    await rest.call("DELETE", f"{T}/truncate", 204)
    opened = await topic(rest)
    assert opened.log.entries == 0
    assert opened.subscriptions["s"].backlog() == 0
    await rest.publish("t", b"3")
    assert opened.subscriptions["s"].backlog() == 1


# -- deduplication


async def publish_as(rest: Rest, name: str, *ids: int) -> int:
    """Publishes under those sequence ids; returns the last one that the broker told it about."""
    producer = await rest.client.producer("t", name=name)
    told = producer.next_sequence - 1
    for id in ids:
        producer.next_sequence = id
        await producer.send(b"%d" % id)
    await producer.close()
    return told


async def test_deduplication_turned_on_starts_from_each_producers_last_id(rest: Rest) -> None:
    assert await publish_as(rest, "gone", 0, 1, 2) == -1
    live = await rest.client.producer("t", name="live")
    for _ in range(3):
        await live.send(b"x")
    await live.flush()
    await rest.call("POST", f"{T}/deduplicationEnabled", 204, json=True)
    opened = await topic(rest)
    assert opened.log.entries == 6
    live.next_sequence = 1
    for _ in range(3):  # 1 and 2 are known, 3 is new.
        await live.send(b"y")
    await live.flush()
    assert opened.log.entries == 7
    assert await publish_as(rest, "gone", 2, 3) == 2
    assert opened.log.entries == 8


async def test_what_a_restart_finds_in_the_log_counts_too(rest: Rest) -> None:
    await publish_as(rest, "p", 0, 1, 2)
    await rest.call("PUT", f"{T}/unload", 204)
    await rest.call("POST", f"{NS}/deduplication", 204, json=True)
    assert await publish_as(rest, "p", 2, 3) == 2
    assert (await topic(rest)).log.entries == 4


async def test_without_deduplication_a_producer_may_start_again_from_nothing(rest: Rest) -> None:
    await publish_as(rest, "p", 0, 1, 2, 3, 4)
    assert await publish_as(rest, "p", 0, 1) == -1
    await rest.call("POST", f"{NS}/deduplication", 204, json=True)
    assert await publish_as(rest, "p", 2) == 1
    assert (await topic(rest)).log.entries == 8


@pytest.mark.parametrize("is_crashed_before", [False, True])
async def test_a_topic_sealed_without_deduplication_tells_no_ids_of_the_time_with_it(
    rest: Rest, is_crashed_before: bool
) -> None:
    """A producer in doubt would take all that it has sent since, from nothing, for stored."""
    await rest.call("POST", f"{NS}/deduplication", 204, json=True)
    await publish_as(rest, "p", *range(10))
    await rest.call("POST", f"{NS}/deduplication", 204, json=False)
    await publish_as(rest, "p", 0, 1)
    if is_crashed_before:
        await rest.call("PUT", f"{T}/unload", 204)
    opened = await topic(rest)
    await opened.terminate()
    assert opened.stored_ids("p").last <= 1
    await rest.call("PUT", f"{T}/unload", 204)
    assert (await topic(rest)).stored_ids("p").last <= 1


async def test_a_topic_sealed_with_deduplication_goes_on_telling_without_it(rest: Rest) -> None:
    await rest.call("POST", f"{NS}/deduplication", 204, json=True)
    await publish_as(rest, "p", 0, 1, 2)
    opened = await topic(rest)
    await opened.terminate()
    await rest.call("POST", f"{NS}/deduplication", 204, json=False)
    assert opened.stored_ids("p").last == 2
    await rest.call("PUT", f"{T}/unload", 204)
    assert (await topic(rest)).stored_ids("p").last == 2
