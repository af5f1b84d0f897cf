"""Messages that nobody has said anything about stay for a week, within a share of the disk; the oldest go first."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.topic.topic import Topic
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.names import TopicName
from anabranch.storage.memory import MemoryLogStore
from unit.broker.admin.conftest import Rest, serving

NS = "/admin/v2/namespaces/public/default"
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
KIB = 1024
NOTHING = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
FOR_EVER = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


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
    async with serving(MemoryMetadata(clock), BrokerConfig(), now_ms=clock) as made:
        yield made


async def opened(rest: Rest, name: str = "t") -> Topic:
    return await rest.broker.topic(TopicName.parse(f"persistent://public/default/{name}"), create=True)


async def published(rest: Rest, name: str, *ages_ms: int, clock: Clock, size: int = KIB) -> Topic:
    """A topic with a message of each of these ages, the oldest first."""
    topic = await opened(rest, name)
    producer = await rest.client.producer(name)
    for age_ms in ages_ms:
        await (await producer.send(b"x" * size, published_ms=clock() - age_ms))
    await producer.close()
    return topic


def disk(rest: Rest, capacity: int | None) -> None:
    """The log may take so much in all."""
    assert isinstance(rest.broker.log, MemoryLogStore)
    rest.broker.log.set_capacity(capacity)


def taken(rest: Rest) -> int:
    return int(rest.broker.log.stats()["live_bytes"])


# -- time


async def test_what_nobody_subscribed_to_stays_for_a_week_and_then_goes(rest: Rest, clock: Clock) -> None:
    topic = await published(rest, "t", 0, 0, 0, clock=clock)
    clock.ahead_ms = 7 * DAY_MS - MINUTE_MS
    await topic.maintain()
    assert topic.log.entries == 3
    clock.ahead_ms = 7 * DAY_MS + MINUTE_MS
    await topic.maintain()
    assert topic.log.entries == 0


async def test_what_everybody_acknowledged_stays_as_long(rest: Rest, clock: Clock) -> None:
    topic = await opened(rest)
    await rest.call("PUT", "/admin/v2/persistent/public/default/t/subscription/s", 204)
    await published(rest, "t", 0, 0, clock=clock)
    await topic.subscriptions["s"].skip_all()
    clock.ahead_ms = 6 * DAY_MS
    await topic.maintain()
    assert topic.log.entries == 2
    clock.ahead_ms = 8 * DAY_MS
    await topic.maintain()
    assert topic.log.entries == 0


async def test_what_a_subscription_has_not_acknowledged_stays_whatever_its_age(
    rest: Rest, clock: Clock
) -> None:
    topic = await opened(rest)
    await rest.call("PUT", "/admin/v2/persistent/public/default/t/subscription/s", 204)
    await published(rest, "t", 0, clock=clock)
    clock.ahead_ms = 365 * DAY_MS
    await topic.maintain()
    disk(rest, 1)
    await rest.broker.disk_share.give_back()
    assert topic.log.entries == 1


async def test_a_policy_of_nothing_means_nothing(rest: Rest, clock: Clock) -> None:
    """As in Pulsar, but for the minute that consumed messages linger."""
    await rest.call("POST", f"{NS}/retention", 204, json=NOTHING)
    topic = await published(rest, "t", 0, clock=clock)
    await topic.maintain()
    assert topic.log.entries == 1
    clock.ahead_ms = 2 * MINUTE_MS
    await topic.maintain()
    assert topic.log.entries == 0


# -- clocks that are wrong, and what is no message at all


async def spoilt(rest: Rest, name: str) -> Topic:
    """A topic whose first entry nobody can read."""
    topic = await opened(rest, name)
    topic.publishing.publish_own(b"\x0e\x01\0\0\0\0\0\0\0\x02\xff\xff", 1)
    await topic.confirmations.stored_in_full()
    return topic


async def test_a_first_entry_that_nobody_can_read_holds_nothing(rest: Rest, clock: Clock) -> None:
    topic = await spoilt(rest, "t")
    await published(rest, "t", 1000, 1000, clock=clock)
    await topic.maintain()
    assert topic.log.entries == 3
    clock.ahead_ms = 8 * DAY_MS
    await topic.maintain()
    assert topic.log.entries == 0


async def test_a_first_message_from_the_future_holds_nothing(rest: Rest, clock: Clock) -> None:
    topic = await published(rest, "t", -1000 * DAY_MS, *[1000] * 20, clock=clock)
    clock.ahead_ms = 6 * DAY_MS
    await topic.maintain()
    assert topic.log.entries == 21
    clock.ahead_ms = 8 * DAY_MS
    await topic.maintain()
    assert topic.log.entries == 0


async def test_stats_of_a_topic_whose_last_entry_nobody_can_read(rest: Rest) -> None:
    await spoilt(rest, "t")
    stats = await rest.get("/admin/v2/persistent/public/default/t/stats")
    assert stats["lastPublishTimeStamp"] == 0


# -- the share of the disk


async def test_within_its_share_nothing_is_given_back(rest: Rest, clock: Clock) -> None:
    topic = await published(rest, "t", 1000, 500, clock=clock)
    disk(rest, 4 * taken(rest))
    await rest.broker.disk_share.give_back()
    assert topic.log.entries == 2


async def test_where_nobody_knows_the_size_of_the_disk_nothing_is_given_back(
    rest: Rest, clock: Clock
) -> None:
    topic = await published(rest, "t", 1000, clock=clock)
    disk(rest, None)
    await rest.broker.disk_share.give_back()
    assert topic.log.entries == 1


async def test_above_its_share_the_oldest_of_all_topics_go_first(rest: Rest, clock: Clock) -> None:
    hours = [hour * 60 * MINUTE_MS for hour in range(100, 0, -1)]
    old = await published(rest, "old", *hours[:50], clock=clock)
    mixed = await published(rest, "mixed", *hours[::2], clock=clock)
    new = await published(rest, "new", *hours[50:], clock=clock)
    # Of 150 messages there is room for 90: the 60 oldest are 40 of the first topic, then 20 of the second.
    disk(rest, 2 * taken(rest) * 90 // 150)
    await rest.broker.disk_share.give_back()
    left = (old.log.entries, mixed.log.entries, new.log.entries)
    assert left[2] == 50
    # To within a step, which is a 50th of the whole time: two hours, and so two messages and one.
    assert left[0] in (8, 9, 10, 11)
    assert left[1] in (29, 30, 31)
    assert rest.broker.disk_share.excess_bytes() <= 0


async def test_one_message_of_1970_costs_nobody_more_than_its_share(rest: Rest, clock: Clock) -> None:
    hours = [hour * 60 * MINUTE_MS for hour in range(100, 0, -1)]
    topic = await published(rest, "t", *hours, clock=clock)
    odd = [clock() - 1 - year * 366 * DAY_MS for year in range(50)]
    await published(rest, "odd", *odd, clock=clock)
    # Of 150 messages there is room for 90: all odd ones go, and 10 of the others.
    disk(rest, 2 * taken(rest) * 90 // 150)
    await rest.broker.disk_share.give_back()
    assert topic.log.entries in (88, 89, 90)
    assert rest.broker.disk_share.excess_bytes() <= 0


@pytest.mark.parametrize("is_spoilt", [True, False])
async def test_what_lies_behind_an_odd_first_message_is_given_back(
    rest: Rest, clock: Clock, is_spoilt: bool
) -> None:
    if is_spoilt:
        await spoilt(rest, "t")
        topic = await published(rest, "t", *[DAY_MS] * 20, clock=clock)
    else:
        topic = await published(rest, "t", -1000 * DAY_MS, *[DAY_MS] * 20, clock=clock)
    other = await published(rest, "other", *[0] * 20, clock=clock)
    clock.ahead_ms = MINUTE_MS
    disk(rest, 2 * taken(rest) * 25 // 41)
    await rest.broker.disk_share.give_back()
    assert (topic.log.entries, other.log.entries) == (0, 20)


async def test_a_retention_that_somebody_set_is_kept_whatever_it_takes(rest: Rest, clock: Clock) -> None:
    set_topic = await published(rest, "set", 5000, 4000, clock=clock)
    await rest.call("POST", "/admin/v2/persistent/public/default/set/retention", 204, json=FOR_EVER)
    other = await published(rest, "other", 1000, clock=clock)
    disk(rest, 1)
    await rest.broker.disk_share.give_back()
    assert (set_topic.log.entries, other.log.entries) == (2, 0)


async def test_a_topic_that_nobody_has_opened_since_the_start_gives_back_too(
    rest: Rest, clock: Clock
) -> None:
    topic = await published(rest, "closed", 5000, 4000, clock=clock)
    await topic.close()
    assert rest.broker.opened(topic.name) is None
    disk(rest, 1)
    await rest.broker.disk_share.give_back()
    assert (await opened(rest, "closed")).log.entries == 0


async def test_a_low_disk_takes_all_that_only_the_default_keeps(rest: Rest, clock: Clock) -> None:
    topic = await published(rest, "t", 1000, clock=clock)
    kept = await published(rest, "kept", 1000, clock=clock)
    await rest.call("POST", "/admin/v2/persistent/public/default/kept/retention", 204, json=FOR_EVER)
    assert isinstance(rest.broker.log, MemoryLogStore)
    rest.broker.log.set_accepting(False)
    for one in (topic, kept):
        await one.maintain()
    assert (topic.log.entries, kept.log.entries) == (0, 1)


async def test_a_policy_that_deletes_unused_topics_deletes_what_only_the_default_keeps(
    rest: Rest, clock: Clock
) -> None:
    policy = {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 60,
        "deleteWhileInactive": True,
    }
    await rest.call("POST", f"{NS}/inactiveTopicPolicies", 204, json=policy)
    for name, retention in (("loose", None), ("kept", FOR_EVER)):
        await published(rest, name, 0, clock=clock)
        if retention:
            await rest.call(
                "POST", f"/admin/v2/persistent/public/default/{name}/retention", 204, json=retention
            )
    await rest.broker.inactive_topics.sweep()
    clock.ahead_ms = 2 * MINUTE_MS
    await rest.broker.inactive_topics.sweep()
    assert await rest.broker.known.stored(TopicName.parse("t").namespace) == [
        "persistent://public/default/kept"
    ]
