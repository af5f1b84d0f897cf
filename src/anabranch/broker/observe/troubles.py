"""Who is held back by what at this broker: the disk, quotas, hidden writes, messages that nothing acknowledges.

It is computed when it is asked for, from what the parts know anyway. Nothing here is an error of the broker: each
trouble is one that an operator or an application can end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal

import msgspec

from anabranch.broker.dispatch.entry_buckets import EntryBucketDispatcher
from anabranch.broker.subscription.subscription import Subscription
from anabranch.broker.topic.topic import Topic
from anabranch.model.names import TopicName
from anabranch.storage.port import LogStore

# So many are listed; the rest is counted.
LISTED_MAX: Final = 50
# A hidden write holds readers for as long as its batch takes: that alone is no trouble.
HELD_MS: Final = 60_000
TOPICS_PER_TURN: Final = 100

Kind = Literal["disk", "connections", "quota", "hidden write", "unacknowledged", "dispatch", "buckets"]


class HeldBack(msgspec.Struct, frozen=True, rename="camel"):
    kind: Kind
    # What waits, and for what.
    because: str
    # "" if it concerns all topics.
    topic: str = ""
    subscription: str = ""


class Disk(msgspec.Struct, frozen=True, rename="camel"):
    """The log's space: what it takes, the most that it may take (None if unknown), and a sentence about both."""

    used_bytes: int
    capacity_bytes: int | None
    is_accepting: bool
    told: str


class Troubles(msgspec.Struct, frozen=True, rename="camel"):
    disk: Disk
    troubles: list[HeldBack]
    # How many more there are.
    more: int = 0


def disk(log: LogStore) -> Disk:
    return Disk(int(log.stats().get("disk_bytes", 0)), log.capacity_bytes, log.is_accepting, log.told_space())


async def troubles(
    log: LogStore, loaded: Mapping[TopicName, Topic], paused_connections: Callable[[], int]
) -> Troubles:
    space = disk(log)
    found: list[HeldBack] = []
    count = 0
    if not space.is_accepting:
        found.append(HeldBack("disk", f"publishing has stopped, as the disk is full: {space.told}"))
    if paused := paused_connections():
        found.append(
            HeldBack(
                "connections",
                f"{paused} connections are not read from: what they published waits for the disk, "
                "or they do not read what they asked for",
            )
        )
    for number, topic in enumerate(list(loaded.values()), 1):
        if number % TOPICS_PER_TURN == 0:
            await asyncio.sleep(0)
        for one in _of_topic(topic):
            count += 1
            if count <= LISTED_MAX:
                found.append(one)
    return Troubles(space, found, max(0, count - LISTED_MAX))


def _of_topic(topic: Topic) -> Iterator[HeldBack]:
    name = str(topic.name)
    for because in topic.quotas.holding():
        yield HeldBack("quota", because, name)
    if (held_ms := topic.hidden.held_ms) >= HELD_MS:
        yield HeldBack(
            "hidden write",
            f"readers have waited for {held_ms // 1000} s for a batch that is not decided: "
            "`anabranch writes list` shows it",
            name,
        )
    for subscription in topic.subscriptions.values():
        for kind, because in _of_subscription(subscription):
            yield HeldBack(kind, because, name, subscription.name)


def _of_subscription(subscription: Subscription) -> Iterator[tuple[Kind, str]]:
    if (error := subscription.error) is not None:
        yield "dispatch", f"nothing is sent: {error}"
    dispatcher = subscription.dispatcher
    if dispatcher is None:
        return
    if dispatcher.stats().get("blockedSubscriptionOnUnackedMsgs"):
        yield (
            "unacknowledged",
            "its consumers have more messages than maxUnackedMessagesPerSubscription allows and acknowledge none",
        )
    most = dispatcher.unacked_max
    if most and (full := [one.name for one in subscription.consumers if one.unacked >= most]):
        yield (
            "unacknowledged",
            f"{', '.join(sorted(full)[:5])}: {most} messages or more are not acknowledged, and no more are sent "
            "(maxUnackedMessagesPerConsumer)",
        )
    if isinstance(dispatcher, EntryBucketDispatcher) and (withheld := dispatcher.withheld):
        yield (
            "buckets",
            f"{withheld} entry buckets wait for a consumer that has not acknowledged what it has of them, or is gone",
        )
