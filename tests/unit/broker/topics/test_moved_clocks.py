"""Times that are counted for an open topic, and a topic that moves to another broker meanwhile.

The clock begins again at the new owner, as it does when a broker is restarted: something unused is kept for longer, and
nothing that is used is deleted too soon.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from anabranch.broker.topic.topic import Topic
from anabranch.model.names import TopicName
from unit.broker.admin.across.several import NOW_MS, Member, several

NAMESPACE = "/admin/v2/namespaces/public/default"
NAME = TopicName.parse("persistent://public/default/t")
MINUTE_MS = 60_000


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def brokers(clock: Clock) -> AsyncIterator[list[Member]]:
    """Topics are deleted after five minutes without use, and subscriptions after five without a consumer."""
    async with several(2, now_ms=clock) as made:
        unused = {
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
            "maxInactiveDurationSeconds": 300,
            "deleteWhileInactive": True,
        }
        await made[0].call("POST", f"{NAMESPACE}/inactiveTopicPolicies", json=unused)
        await made[0].call("POST", f"{NAMESPACE}/subscriptionExpirationTime", json=5)
        yield made


async def moved(brokers: list[Member]) -> Topic:
    """The topic, which the second broker owns from now on and opens."""
    brokers[0].owners.places.moved[NAME] = 1
    return await brokers[1].broker.topic(NAME)


async def test_a_topic_that_moves_is_unused_since_its_new_owner_has_seen_it(
    brokers: list[Member], clock: Clock
) -> None:
    former, new = brokers
    await former.broker.topic(NAME, create=True)
    await former.broker.inactive_topics.sweep()
    clock.now_ms += 4 * MINUTE_MS
    await moved(brokers)
    for minutes in (0, 2, 2):
        clock.now_ms += minutes * MINUTE_MS
        for member in brokers:
            await member.broker.inactive_topics.sweep()
        assert await new.broker.resources.topic_exists(NAME)
    clock.now_ms += MINUTE_MS
    await new.broker.inactive_topics.sweep()
    assert not await new.broker.resources.topic_exists(NAME)


async def test_a_former_owner_that_has_not_heard_deletes_no_topic_that_is_used_elsewhere(
    brokers: list[Member], clock: Clock
) -> None:
    former, new = brokers
    before = await former.broker.topic(NAME, create=True)
    await former.broker.inactive_topics.sweep()
    # Its session is lost, so it is fenced and not asked.
    former.owners.believed[NAME] = 0
    await former.broker.registry.close()
    async with asyncio.timeout(10):
        # A watch tells of it.
        while new.broker.registry.by_incarnation(former.broker.log.incarnation):  # noqa: ASYNC110
            await asyncio.sleep(0)
    await moved(brokers)
    await new.publish(str(NAME), b"one")
    assert not before.is_closed
    clock.now_ms += 5 * MINUTE_MS
    await former.broker.inactive_topics.sweep()
    assert await new.broker.resources.topic_exists(NAME)
    consumer = await new.client.consumer(str(NAME), "s", earliest=True)
    assert (await consumer.receive()).payload == b"one"


async def test_a_subscription_of_a_topic_that_moves_is_without_consumers_since_it_was_opened_there(
    brokers: list[Member], clock: Clock
) -> None:
    former, _ = brokers
    await former.broker.topic(NAME, create=True)
    await (await former.client.consumer(str(NAME), "s")).close()
    clock.now_ms += 4 * MINUTE_MS
    topic = await moved(brokers)
    clock.now_ms += 4 * MINUTE_MS
    await topic.maintain()
    assert list(topic.subscriptions) == ["s"]
    clock.now_ms += 2 * MINUTE_MS
    await topic.maintain()
    assert not topic.subscriptions
