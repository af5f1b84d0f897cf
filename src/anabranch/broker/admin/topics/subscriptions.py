"""`/admin/v2/persistent/…/subscription(s)`: cursors that an operator creates, moves, clears and deletes.

On a partitioned topic each of these applies to every partition. Skipping a number of messages, and moving or expiring
to a message id, are refused there.
"""

from __future__ import annotations

from typing import Concatenate, Literal, ParamSpec, TypeVar

import msgspec

from anabranch.broker.admin.across.owner_calls import OwnerCall, at_owners, owner_call, owner_read
from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.parameters import Long, Role, SubscriptionName, UsersSubscriptionName
from anabranch.broker.admin.http.request import HttpRequest, body, body_of
from anabranch.broker.admin.http.routes import topic_routes
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.admin.topics.partitions import on_parts, owned_parts, single
from anabranch.broker.compaction.topic_compaction import COMPACTION
from anabranch.broker.errors import TopicNotFoundError
from anabranch.broker.policy.stored_json import Int32, Int64
from anabranch.broker.subscription.subscription import Subscription
from anabranch.broker.topic.topic import Topic
from anabranch.model.names import Domain, TopicName
from anabranch.model.position import Position

routes = topic_routes(Domain.PERSISTENT, Needs.CONSUME)

LONG_MAX = 2**63 - 1

P = ParamSpec("P")
R = TypeVar("R")


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
    return sorted({name for _, held in await on_parts(services, topic, subscription_names) for name in held})


@owner_read
async def subscription_names(services: AdminServices, name: TopicName) -> list[str]:
    return [one for one, s in (await services.topic(name)).subscriptions.items() if s.is_durable]


@routes.put("/subscription/{subscription}", status=204, body=At | str)
async def create_subscription(
    services: AdminServices, topic: TopicName, subscription: UsersSubscriptionName, request: HttpRequest
) -> None:
    """The body names the start: a message id, `"earliest"` or `"latest"` (also without a body)."""
    asked: At | str = await body_of(request, At | str, "latest")
    place, properties = (asked.place, asked.properties) if isinstance(asked, At) else (_word(asked), {})
    names = await owned_parts(services, topic)
    without = [part for part, has in await at_owners(services, names, made_and_has, subscription) if not has]
    if not without:
        raise RestError(409, "Subscription already exists for topic")
    await at_owners(services, without, subscribe_part, subscription, place, properties)


@owner_call
async def made_and_has(services: AdminServices, name: TopicName, subscription: str) -> bool:
    """Whether the topic, which is created if need be, has that subscription."""
    return subscription in (await _made(services, name)).subscriptions


@owner_call
async def subscribe_part(
    services: AdminServices,
    name: TopicName,
    subscription: str,
    place: Position | str,
    properties: dict[str, str],
) -> None:
    topic = await _made(services, name)
    if subscription not in topic.subscriptions:
        await topic.create_subscription(subscription, place, properties)


async def _made(services: AdminServices, name: TopicName) -> Topic:
    try:
        return await services.topic(name, create=True)
    except TopicNotFoundError as error:
        # A topic that may not be created is an error here, and not left out.
        raise RestError(404, str(error)) from None


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
    holders = await _holders(services, topic, subscription)
    if not force and any(consumers for _, consumers in holders):
        raise RestError(412, "Subscription has active connected consumers")
    await at_owners(services, _names(holders), unsubscribe_part, subscription, force)


@owner_call
async def unsubscribe_part(services: AdminServices, name: TopicName, subscription: str, force: bool) -> None:
    topic = await services.topic(name)
    if subscription in topic.subscriptions:
        await topic.delete_subscription(subscription, force=force)


@owner_read
async def consumers_of(services: AdminServices, name: TopicName, subscription: str) -> int | None:
    """How many consumers the subscription has; None if the topic has no such subscription."""
    found = (await services.topic(name)).subscriptions.get(subscription)
    return None if found is None else len(found.consumers)


async def _holders(
    services: AdminServices, topic: TopicName, subscription: str
) -> list[tuple[TopicName, int]]:
    """The partitions that have the subscription, with its number of consumers there; 404 if there are none."""
    asked = await on_parts(services, topic, consumers_of, subscription)
    found = [(part, consumers) for part, consumers in asked if consumers is not None]
    if not found:
        raise _absent(topic, subscription)
    return found


def _names(holders: list[tuple[TopicName, int]]) -> list[TopicName]:
    return [name for name, _ in holders]


async def _on_cursors(
    services: AdminServices,
    topic: TopicName,
    subscription: str,
    call: OwnerCall[Concatenate[str, P], R],
    *arguments: P.args,
    **none: P.kwargs,
) -> list[R]:
    """The call's results for each partition that has the subscription; 404 if there are none."""
    names = _names(await _holders(services, topic, subscription))
    return [told for _, told in await at_owners(services, names, call, subscription, *arguments, **none)]


async def _cursor(services: AdminServices, name: TopicName, subscription: str) -> Subscription:
    """The subscription of a topic that had it a moment ago."""
    found = (await services.topic(name)).subscriptions.get(subscription)
    if found is None:
        raise _absent(name, subscription)
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
    for found in await _on_cursors(services, topic, subscription, properties_of):
        merged |= found
    return merged


@owner_read
async def properties_of(services: AdminServices, name: TopicName, subscription: str) -> dict[str, str]:
    return dict((await _cursor(services, name, subscription)).properties)


@routes.put("/subscription/{subscription}/properties", status=204, body=dict[str, str])
async def set_properties(
    services: AdminServices, topic: TopicName, subscription: UsersSubscriptionName, request: HttpRequest
) -> None:
    """Sets all properties: those that are not sent are removed."""
    sent = await body(request, dict[str, str], {})
    await _on_cursors(services, topic, subscription, set_properties_of, sent)


@owner_call
async def set_properties_of(
    services: AdminServices, name: TopicName, subscription: str, properties: dict[str, str]
) -> None:
    await (await _cursor(services, name, subscription)).set_properties(properties)


@routes.get("/subscription/{subscription}/replicatedSubscriptionStatus")
async def replicated(
    services: AdminServices, topic: TopicName, subscription: SubscriptionName
) -> dict[str, bool]:
    """Always false: there is no geo-replication here."""
    await _holders(services, topic, subscription)
    return {str(part): False for part, _ in await on_parts(services, topic, consumers_of, subscription)}


@routes.post("/subscription/{subscription}/replicatedSubscriptionStatus", status=204, body=bool)
async def set_replicated(
    services: AdminServices, topic: TopicName, subscription: SubscriptionName, request: HttpRequest
) -> None:
    await _holders(services, topic, subscription)
    if await body(request, bool):
        raise RestError(405, "There is no geo-replication here: subscriptions cannot be replicated")


# -- moving


@routes.post("/subscription/{subscription}/skip_all", status=204)
async def skip_all(services: AdminServices, topic: TopicName, subscription: UsersSubscriptionName) -> None:
    await _on_cursors(services, topic, subscription, skip_all_of)


@owner_call
async def skip_all_of(services: AdminServices, name: TopicName, subscription: str) -> None:
    await (await _cursor(services, name, subscription)).skip_all()


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
    services: AdminServices, topic: TopicName, subscription: UsersSubscriptionName, timestamp: Long
) -> None:
    await _on_cursors(services, topic, subscription, seek_to_time, timestamp)


@owner_call
async def seek_to_time(services: AdminServices, name: TopicName, subscription: str, timestamp: int) -> None:
    await (await _cursor(services, name, subscription)).seek_to_time(timestamp)


@routes.post("/subscription/{subscription}/resetcursor", status=204, body=At)
async def reset(
    services: AdminServices, topic: TopicName, subscription: UsersSubscriptionName, request: HttpRequest
) -> None:
    """Moves the subscription to a message id, which is delivered again unless `isExcluded`."""
    at = await body(request, At)
    place = at.place
    if isinstance(place, str):
        asked = await on_parts(services, topic, consumers_of, subscription)
        if any(consumers is None for _, consumers in asked):
            raise _absent(topic, subscription)
        await at_owners(services, [part for part, _ in asked], seek_to_edge, subscription, place)
        return
    if not topic.is_partition and await services.resources.partitions(topic):
        raise RestError(405, "Reset-cursor at a position is not allowed for a partitioned topic")
    log = (await single(services, topic)).log
    subscribed = await _only(services, topic, subscription)
    await subscribed.seek(log.after(place) if at.is_excluded or at.excluded else place)


@owner_call
async def seek_to_edge(
    services: AdminServices, name: TopicName, subscription: str, place: Literal["earliest", "latest"]
) -> None:
    log = (await services.topic(name)).log
    await (await _cursor(services, name, subscription)).seek(log.end if place == "latest" else log.first)


# -- expiring


@routes.post("/subscription/{subscription}/expireMessages/{seconds}", status=204)
async def expire(
    services: AdminServices, topic: TopicName, subscription: UsersSubscriptionName, seconds: int
) -> None:
    """Acknowledges every message older than that time."""
    check_age(seconds)
    await _on_cursors(services, topic, subscription, expire_before, services.now_ms() - seconds * 1000)


@owner_call
async def expire_before(services: AdminServices, name: TopicName, subscription: str, time_ms: int) -> None:
    await (await _cursor(services, name, subscription)).expire_before(time_ms)


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
    check_age(seconds)
    await on_parts(services, topic, expire_all_before, services.now_ms() - seconds * 1000)


@owner_call
async def expire_all_before(services: AdminServices, name: TopicName, time_ms: int) -> None:
    for found in (await services.topic(name)).subscribing.durable():
        await found.expire_before(time_ms)


def check_age(seconds: int) -> None:
    """412 for an age that is none."""
    if not 0 <= seconds < 2**31:
        raise RestError(412, "The age of messages to expire must be 0 to 2147483647 seconds")
