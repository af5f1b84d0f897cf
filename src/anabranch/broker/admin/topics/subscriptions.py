"""`/admin/v2/persistent/…/subscription(s)`: cursors that an operator creates, moves, clears and deletes.

On a partitioned topic each of these applies to every partition. Skipping a number of messages, and moving or expiring
to a message id, are refused there.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.parameters import Role, SubscriptionName, UsersSubscriptionName
from anabranch.broker.admin.http.request import HttpRequest, body, body_of
from anabranch.broker.admin.http.routes import topic_routes
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.admin.topics.partitions import each, parts, single
from anabranch.broker.compaction.topic_compaction import COMPACTION
from anabranch.broker.policy.stored_json import Int32, Int64
from anabranch.broker.subscription.subscription import Subscription
from anabranch.broker.topic.topic import Topic
from anabranch.model.names import Domain, TopicName
from anabranch.model.position import Position

routes = topic_routes(Domain.PERSISTENT, Needs.CONSUME)

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


@routes.get("/subscriptions")
async def list_subscriptions(services: AdminServices, topic: TopicName) -> list[str]:
    names = {
        name for part in await each(services, topic) for name, s in part.subscriptions.items() if s.is_durable
    }
    return sorted(names)


@routes.put("/subscription/{subscription}", status=204, body=At | str)
async def create_subscription(
    services: AdminServices, topic: TopicName, subscription: UsersSubscriptionName, request: HttpRequest
) -> None:
    """The body names the start: a message id, `"earliest"` or `"latest"` (also without a body)."""
    asked: At | str = await body_of(request, At | str, "latest")
    place, properties = (asked.place, asked.properties) if isinstance(asked, At) else (_word(asked), {})
    found = [await services.topic(part, create=True) for part in await parts(services, topic)]
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


@routes.delete("/subscription/{subscription}", status=204)
async def delete_subscription(
    services: AdminServices, role: Role, topic: TopicName, subscription: SubscriptionName, force: bool = False
) -> None:
    """Deletes the subscription. Compaction's own, which keeps the log for readers of the compacted topic, needs the
    right to compact."""
    if subscription == COMPACTION:
        await services.rights.administer(role, topic)
    holders = [part for part in await each(services, topic) if subscription in part.subscriptions]
    if not holders:
        raise _absent(topic, subscription)
    if not force and any(part.subscriptions[subscription].consumers for part in holders):
        raise RestError(412, "Subscription has active connected consumers")
    for part in holders:
        await part.delete_subscription(subscription, force=force)


async def _found(services: AdminServices, topic: TopicName, subscription: str) -> list[Subscription]:
    holders: list[Topic] = await each(services, topic)
    found = [part.subscriptions[subscription] for part in holders if subscription in part.subscriptions]
    if not found:
        raise _absent(topic, subscription)
    return found


async def _only(services: AdminServices, topic: TopicName, subscription: str) -> Subscription:
    found = (await single(services, topic)).subscriptions.get(subscription)
    if found is None:
        raise _absent(topic, subscription)
    return found


def _absent(topic: TopicName, subscription: str) -> RestError:
    return RestError(404, f"Subscription {subscription} not found on topic {topic}")


@routes.get("/subscription/{subscription}/properties")
async def properties(
    services: AdminServices, topic: TopicName, subscription: SubscriptionName
) -> dict[str, str]:
    merged: dict[str, str] = {}
    for found in await _found(services, topic, subscription):
        merged |= found.properties
    return merged


@routes.put("/subscription/{subscription}/properties", status=204, body=dict[str, str])
async def set_properties(
    services: AdminServices, topic: TopicName, subscription: UsersSubscriptionName, request: HttpRequest
) -> None:
    """Sets all properties: those that are not sent are removed."""
    sent = await body(request, dict[str, str], {})
    for found in await _found(services, topic, subscription):
        await found.set_properties(sent)


@routes.get("/subscription/{subscription}/replicatedSubscriptionStatus")
async def replicated(
    services: AdminServices, topic: TopicName, subscription: SubscriptionName
) -> dict[str, bool]:
    """Always false: there is no geo-replication here."""
    await _found(services, topic, subscription)
    return {str(part.name): False for part in await each(services, topic)}


@routes.post("/subscription/{subscription}/replicatedSubscriptionStatus", status=204, body=bool)
async def set_replicated(
    services: AdminServices, topic: TopicName, subscription: SubscriptionName, request: HttpRequest
) -> None:
    await _found(services, topic, subscription)
    if await body(request, bool):
        raise RestError(405, "There is no geo-replication here: subscriptions cannot be replicated")


# -- moving


@routes.post("/subscription/{subscription}/skip_all", status=204)
async def skip_all(services: AdminServices, topic: TopicName, subscription: UsersSubscriptionName) -> None:
    for found in await _found(services, topic, subscription):
        await found.skip_all()


@routes.post("/subscription/{subscription}/skip/{count}", status=204)
async def skip(
    services: AdminServices, topic: TopicName, subscription: UsersSubscriptionName, count: int
) -> None:
    if not 0 <= count < 2**31:
        raise RestError(412, "The number of messages to skip must be 0 to 2147483647")
    if not topic.is_partition and await services.resources.partitions(topic):
        raise RestError(
            405, "Skip messages on a partitioned topic is not allowed; name one of its partitions"
        )
    await (await _only(services, topic, subscription)).skip(count)


@routes.post("/subscription/{subscription}/resetcursor/{timestamp}", status=204)
async def reset_to_time(
    services: AdminServices, topic: TopicName, subscription: UsersSubscriptionName, timestamp: int
) -> None:
    for found in await _found(services, topic, subscription):
        await found.seek_to_time(timestamp)


@routes.post("/subscription/{subscription}/resetcursor", status=204, body=At)
async def reset(
    services: AdminServices, topic: TopicName, subscription: UsersSubscriptionName, request: HttpRequest
) -> None:
    """Moves the subscription to a message id, which is delivered again unless `isExcluded`."""
    at = await body(request, At)
    place = at.place
    if isinstance(place, str):
        for part in await each(services, topic):
            found = part.subscriptions.get(subscription)
            if found is None:
                raise _absent(topic, subscription)
            await found.seek(part.log.end if place == "latest" else part.log.first)
        return
    if not topic.is_partition and await services.resources.partitions(topic):
        raise RestError(405, "Reset-cursor at a position is not allowed for a partitioned topic")
    log = (await single(services, topic)).log
    subscribed = await _only(services, topic, subscription)
    await subscribed.seek(log.after(place) if at.is_excluded or at.excluded else place)


# -- expiring


@routes.post("/subscription/{subscription}/expireMessages/{seconds}", status=204)
async def expire(
    services: AdminServices, topic: TopicName, subscription: UsersSubscriptionName, seconds: int
) -> None:
    """Acknowledges every message older than that time."""
    _check_age(seconds)
    for found in await _found(services, topic, subscription):
        await found.expire_before(services.now_ms() - seconds * 1000)


@routes.post("/subscription/{subscription}/expireMessages", status=204, body=At)
async def expire_below(
    services: AdminServices, topic: TopicName, subscription: UsersSubscriptionName, request: HttpRequest
) -> None:
    """Acknowledges every message before that id, and that one too unless `isExcluded`."""
    at = await body(request, At)
    if not topic.is_partition and await services.resources.partitions(topic):
        raise RestError(
            405,
            "Expire message at position is not supported for partitioned-topic; name one of its partitions",
        )
    found = await _only(services, topic, subscription)
    log = (await single(services, topic)).log
    place = at.place
    if isinstance(place, str):
        below = log.end if place == "latest" else log.first
    else:
        below = place if at.is_excluded or at.excluded else (place[0], place[1] + 1)
    await found.give_up_below(log.normalise(min(below, log.end)))


@routes.post("/all_subscription/expireMessages/{seconds}", status=204)
async def expire_all(services: AdminServices, topic: TopicName, seconds: int) -> None:
    _check_age(seconds)
    for part in await each(services, topic):
        for found in part.subscribing.durable():
            await found.expire_before(services.now_ms() - seconds * 1000)


def _check_age(seconds: int) -> None:
    if not 0 <= seconds < 2**31:
        raise RestError(412, "The age of messages to expire must be 0 to 2147483647 seconds")
