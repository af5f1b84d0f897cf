"""Limits on the numbers of topics and subscriptions count what was created through every broker.

They are checked and then acted on, so requests at two brokers at the same moment may exceed them by a few.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from anabranch.model.names import TopicName
from unit.broker.admin.across.several import Member, several

NAMESPACE = "/admin/v2/namespaces/public/default"
PERSISTENT = "/admin/v2/persistent/public/default"


@pytest.fixture
async def brokers() -> AsyncIterator[list[Member]]:
    """Three brokers, each of which owns the topic with its number."""
    async with several(3) as made:
        for number in range(3):
            made[0].owners.places.moved[TopicName.parse(f"persistent://public/default/t{number}")] = number
        yield made


async def test_topics_of_all_brokers_count(brokers: list[Member]) -> None:
    await brokers[0].call("POST", f"{NAMESPACE}/maxTopicsPerNamespace", json=2)
    for number in (0, 1):
        await brokers[number].call("PUT", f"{PERSISTENT}/t{number}")
    assert "maximum number of topics" in await brokers[2].refused("PUT", f"{PERSISTENT}/t2", 412)
    await brokers[2].call("DELETE", f"{PERSISTENT}/t0")
    await brokers[2].call("PUT", f"{PERSISTENT}/t2")


async def test_topics_that_are_created_at_the_same_moment_exceed_the_limit_by_no_more_than_there_are_brokers(
    brokers: list[Member],
) -> None:
    await brokers[0].call("POST", f"{NAMESPACE}/maxTopicsPerNamespace", json=1)
    await asyncio.gather(
        *(
            member.http.request("PUT", f"{PERSISTENT}/t{number}", follow_redirects=False)
            for number, member in enumerate(brokers)
        )
    )
    assert 1 <= len(await brokers[0].get(PERSISTENT)) <= 3
    await brokers[0].refused("PUT", f"{PERSISTENT}/late", 412)


async def test_subscriptions_of_a_scalable_topic_are_counted_wherever_they_are_made(
    brokers: list[Member],
) -> None:
    await brokers[0].call("POST", f"{NAMESPACE}/maxSubscriptionsPerTopic", json=2)
    river = "/admin/v2/scalable/public/default/river"
    await brokers[0].call("PUT", river, params={"numInitialSegments": "3"})
    for number, name in ((1, "a"), (2, "b")):
        await brokers[number].call("PUT", f"{river}/subscriptions/{name}")
    await brokers[1].call("PUT", f"{river}/subscriptions/a")
    assert "maximum number of subscriptions" in await brokers[2].refused(
        "PUT", f"{river}/subscriptions/c", 409
    )
