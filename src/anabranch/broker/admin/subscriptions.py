"""`/admin/v2/persistent/…/subscription(s)`: cursors made, moved, emptied and deleted by an operator.

On a partitioned topic each of these is done to every partition.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from fastapi import APIRouter, Request

from anabranch.broker.admin.errors import RestError
from anabranch.broker.admin.openapi import takes
from anabranch.broker.admin.params import (
    BrokerDep,
    RoleDep,
    SubscriptionDep,
    TopicDep,
    UsersSubscriptionDep,
    body,
    body_of,
)
from anabranch.broker.admin.partitions import each, parts, single
from anabranch.broker.broker import Broker
from anabranch.broker.compaction.topic_compaction import COMPACTION
from anabranch.broker.policy_json import Int32, Int64
from anabranch.broker.subscription import Subscription
from anabranch.broker.topic import Topic
from anabranch.model.names import TopicName
from anabranch.model.position import Position

router = APIRouter()

LONG_MAX = 2**63 - 1


class At(msgspec.Struct, rename="camel"):
    """Java's MessageId or ResetCursorData. Its earliest is -1:-1 and its latest the largest long."""

    ledger_id: Int64 = LONG_MAX
    entry_id: Int64 = LONG_MAX
    partition_index: Int32 = -1
    batch_index: Int32 = -1
    is_excluded: bool = False
    excluded: bool = False
    properties: dict[str, str] = {}

    @property
    def place(self) -> Position | Literal["earliest", "latest"]:
        if self.ledger_id >= LONG_MAX:
            return "latest"
        if self.ledger_id < 0:
            return "earliest"
        return self.ledger_id, max(self.entry_id, 0)


@router.get("/subscriptions")
async def list_subscriptions(broker: BrokerDep, topic: TopicDep) -> list[str]:
    names = {
        name for part in await each(broker, topic) for name, s in part.subscriptions.items() if s.is_durable
    }
    return sorted(names)


@router.put("/subscription/{subscription}", status_code=204, openapi_extra=takes(At | str))
async def create_subscription(
    broker: BrokerDep, topic: TopicDep, subscription: UsersSubscriptionDep, request: Request
) -> None:
    """The body says where it starts: a message id, `"earliest"` or `"latest"` (also without a body)."""
    asked: At | str = await body_of(request, At | str, "latest")
    place, properties = (asked.place, asked.properties) if isinstance(asked, At) else (_word(asked), {})
    found = [await broker.topic(part, create=True) for part in await parts(broker, topic)]
    if all(subscription in part.subscriptions for part in found):
        raise RestError(409, "Subscription already exists for topic")
    for part in found:
        if subscription not in part.subscriptions:
            await part.create_subscription(subscription, place, properties)


def _word(text: str) -> Literal["earliest", "latest"]:
    match text.lower():
        case "earliest":
            return "earliest"
        case "latest" | "":
            return "latest"
    raise RestError(400, f"{text!r} is no position: expected a message id, earliest or latest")


@router.delete("/subscription/{subscription}", status_code=204)
async def delete_subscription(
    broker: BrokerDep, role: RoleDep, topic: TopicDep, subscription: SubscriptionDep, force: bool = False
) -> None:
    """Compaction's own, which keeps the log for readers of what is compacted, is for those who may compact."""
    if subscription == COMPACTION:
        await broker.rights.administer(role, topic)
    holders = [part for part in await each(broker, topic) if subscription in part.subscriptions]
    if not holders:
        raise _absent(topic, subscription)
    if not force and any(part.subscriptions[subscription].consumers for part in holders):
        raise RestError(412, "Subscription has active connected consumers")
    for part in holders:
        await part.delete_subscription(subscription, force=force)


async def _found(broker: Broker, topic: TopicName, subscription: str) -> list[Subscription]:
    holders: list[Topic] = await each(broker, topic)
    found = [part.subscriptions[subscription] for part in holders if subscription in part.subscriptions]
    if not found:
        raise _absent(topic, subscription)
    return found


async def _only(broker: Broker, topic: TopicName, subscription: str) -> Subscription:
    found = (await single(broker, topic)).subscriptions.get(subscription)
    if found is None:
        raise _absent(topic, subscription)
    return found


def _absent(topic: TopicName, subscription: str) -> RestError:
    return RestError(404, f"Subscription {subscription} not found on topic {topic}")


@router.get("/subscription/{subscription}/properties")
async def properties(broker: BrokerDep, topic: TopicDep, subscription: SubscriptionDep) -> dict[str, str]:
    merged: dict[str, str] = {}
    for found in await _found(broker, topic, subscription):
        merged |= found.properties
    return merged


@router.put("/subscription/{subscription}/properties", status_code=204, openapi_extra=takes(dict[str, str]))
async def set_properties(
    broker: BrokerDep, topic: TopicDep, subscription: UsersSubscriptionDep, request: Request
) -> None:
    """All of them: those not sent are gone."""
    sent = await body(request, dict[str, str], {})
    for found in await _found(broker, topic, subscription):
        await found.set_properties(sent)


@router.get("/subscription/{subscription}/replicatedSubscriptionStatus")
async def replicated(broker: BrokerDep, topic: TopicDep, subscription: SubscriptionDep) -> dict[str, bool]:
    """Never: there is no geo-replication here."""
    await _found(broker, topic, subscription)
    return {str(part.name): False for part in await each(broker, topic)}


@router.post(
    "/subscription/{subscription}/replicatedSubscriptionStatus", status_code=204, openapi_extra=takes(bool)
)
async def set_replicated(
    broker: BrokerDep, topic: TopicDep, subscription: SubscriptionDep, request: Request
) -> None:
    await _found(broker, topic, subscription)
    if await body(request, bool):
        raise RestError(405, "There is no geo-replication here: subscriptions cannot be replicated")


# -- moving


@router.post("/subscription/{subscription}/skip_all", status_code=204)
async def skip_all(broker: BrokerDep, topic: TopicDep, subscription: UsersSubscriptionDep) -> None:
    for found in await _found(broker, topic, subscription):
        await found.skip_all()


@router.post("/subscription/{subscription}/skip/{count}", status_code=204)
async def skip(broker: BrokerDep, topic: TopicDep, subscription: UsersSubscriptionDep, count: int) -> None:
    if not 0 <= count < 2**31:
        raise RestError(412, "The number of messages to skip must be 0 to 2147483647")
    if not topic.is_partition and await broker.resources.partitions(topic):
        raise RestError(
            405, "Skip messages on a partitioned topic is not allowed; name one of its partitions"
        )
    await (await _only(broker, topic, subscription)).skip(count)


@router.post("/subscription/{subscription}/resetcursor/{timestamp}", status_code=204)
async def reset_to_time(
    broker: BrokerDep, topic: TopicDep, subscription: UsersSubscriptionDep, timestamp: int
) -> None:
    for found in await _found(broker, topic, subscription):
        await found.seek_to_time(timestamp)


@router.post("/subscription/{subscription}/resetcursor", status_code=204, openapi_extra=takes(At))
async def reset(
    broker: BrokerDep, topic: TopicDep, subscription: UsersSubscriptionDep, request: Request
) -> None:
    """To a message id, which is delivered again unless `isExcluded`."""
    at = await body(request, At)
    place = at.place
    if isinstance(place, str):
        for part in await each(broker, topic):
            found = part.subscriptions.get(subscription)
            if found is None:
                raise _absent(topic, subscription)
            await found.seek(part.log.end if place == "latest" else part.log.first)
        return
    if not topic.is_partition and await broker.resources.partitions(topic):
        raise RestError(405, "Reset-cursor at a position is not allowed for a partitioned topic")
    log = (await single(broker, topic)).log
    subscribed = await _only(broker, topic, subscription)
    await subscribed.seek(log.after(place) if at.is_excluded or at.excluded else place)


# -- expiring


@router.post("/subscription/{subscription}/expireMessages/{seconds}", status_code=204)
async def expire(
    broker: BrokerDep, topic: TopicDep, subscription: UsersSubscriptionDep, seconds: int
) -> None:
    """Acknowledges every message older than that."""
    _check_age(seconds)
    for found in await _found(broker, topic, subscription):
        await found.expire_before(broker.now_ms() - seconds * 1000)


@router.post("/subscription/{subscription}/expireMessages", status_code=204, openapi_extra=takes(At))
async def expire_below(
    broker: BrokerDep, topic: TopicDep, subscription: UsersSubscriptionDep, request: Request
) -> None:
    """Acknowledges every message up to that id, and it too unless `isExcluded`."""
    at = await body(request, At)
    if not topic.is_partition and await broker.resources.partitions(topic):
        raise RestError(
            405,
            "Expire message at position is not supported for partitioned-topic; name one of its partitions",
        )
    found = await _only(broker, topic, subscription)
    log = (await single(broker, topic)).log
    place = at.place
    if isinstance(place, str):
        below = log.end if place == "latest" else log.first
    else:
        below = place if at.is_excluded or at.excluded else (place[0], place[1] + 1)
    await found.give_up_below(log.normalise(min(below, log.end)))


@router.post("/all_subscription/expireMessages/{seconds}", status_code=204)
async def expire_all(broker: BrokerDep, topic: TopicDep, seconds: int) -> None:
    _check_age(seconds)
    for part in await each(broker, topic):
        for found in part.subscribing.durable():
            await found.expire_before(broker.now_ms() - seconds * 1000)


def _check_age(seconds: int) -> None:
    if not 0 <= seconds < 2**31:
        raise RestError(412, "The age of messages to expire must be 0 to 2147483647 seconds")
