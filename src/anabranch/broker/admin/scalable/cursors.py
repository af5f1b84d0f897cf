"""`/admin/v2/scalable/…/subscription(s)`: what operators do to the subscriptions of scalable topics, in the forms that
classic topics have: list, skip, expire, analyze, move.

Each applies to all segments, sealed ones too. Making, deleting and moving to a time are in `topics.py`, with Pulsar's
own routes of scalable topics.
"""

from __future__ import annotations

from typing import Any, Concatenate, ParamSpec, TypeVar

from anabranch.broker.admin.across.owner_calls import OwnerCall, at_owners, owner_call, owner_read
from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.parameters import Long, SubscriptionName
from anabranch.broker.admin.http.routes import scalable_routes
from anabranch.broker.admin.scalable.parts import nth_entry, segments_of, subscription_of
from anabranch.broker.admin.scalable.topics import Service
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.admin.topics.storage import Unacked, analysis, count_unacked
from anabranch.broker.admin.topics.subscriptions import check_age, expire_all_before
from anabranch.model.names import TopicName
from anabranch.model.segments import SegmentId

routes, by_java = scalable_routes(Needs.CONSUME)

P = ParamSpec("P")
R = TypeVar("R")


async def list_subscriptions(services: AdminServices, topic: TopicName, service: Service) -> list[str]:
    await segments_of(services, service, topic)
    return sorted(name for name, r in (await service.subscriptions(topic)).items() if not r.is_deleting)


async def _on_segments(
    services: AdminServices,
    service: Service,
    topic: TopicName,
    subscription: str,
    call: OwnerCall[Concatenate[str, P], R],
    *arguments: P.args,
    **none: P.kwargs,
) -> list[tuple[SegmentId, R]]:
    """The call's results for each segment; 404 if the topic has no such subscription."""
    names = await segments_of(services, service, topic)
    await subscription_of(service, topic, subscription)
    numbers = {name: number for number, name in names.items()}
    found = await at_owners(services, names.values(), call, subscription, *arguments, **none)
    return [(numbers[name], told) for name, told in found]


async def skip_all(
    services: AdminServices, topic: TopicName, service: Service, subscription: SubscriptionName
) -> None:
    await subscription_of(service, topic, subscription)
    await service.skip_all(topic, subscription)


async def skip(
    services: AdminServices, topic: TopicName, service: Service, subscription: SubscriptionName, count: int
) -> None:
    """Skips the next entries by publish time, whichever segments they are in."""
    if not 0 <= count < 2**31:
        raise RestError(412, "The number of messages to skip must be 0 to 2147483647")
    names = await segments_of(services, service, topic)
    await subscription_of(service, topic, subscription)
    if not count:
        return
    last = await nth_entry(services, names, subscription, count - 1)
    if last is None:
        await service.skip_all(topic, subscription)
        return
    counts = last.before | {last.segment: last.number + 1}
    for number, skipped in counts.items():
        if skipped:
            await at_owners(services, [names[number]], skip_on_segment, subscription, skipped)


@owner_call
async def skip_on_segment(services: AdminServices, name: TopicName, subscription: str, count: int) -> None:
    found = (await services.topic(name)).subscriptions.get(subscription)
    if found is not None:
        await found.skip(count)


async def expire(
    services: AdminServices, topic: TopicName, service: Service, subscription: SubscriptionName, seconds: int
) -> None:
    """Acknowledges every message older than that time."""
    check_age(seconds)
    before_ms = services.now_ms() - seconds * 1000
    await _on_segments(services, service, topic, subscription, expire_on_segment, before_ms)


@owner_call
async def expire_on_segment(
    services: AdminServices, name: TopicName, subscription: str, time_ms: int
) -> None:
    found = (await services.topic(name)).subscriptions.get(subscription)
    if found is not None:
        await found.expire_before(time_ms)


async def expire_all(services: AdminServices, topic: TopicName, service: Service, seconds: int) -> None:
    """The same for all subscriptions."""
    check_age(seconds)
    names = await segments_of(services, service, topic)
    await at_owners(services, names.values(), expire_all_before, services.now_ms() - seconds * 1000)


async def reset_to_time(
    services: AdminServices,
    topic: TopicName,
    service: Service,
    subscription: SubscriptionName,
    timestamp: Long,
) -> None:
    await subscription_of(service, topic, subscription)
    await service.seek(topic, subscription, max(0, timestamp))


async def analyze(
    services: AdminServices, topic: TopicName, service: Service, subscription: SubscriptionName
) -> dict[str, Any]:
    """Counts the subscription's unacknowledged messages by reading them, in all and for each segment."""
    found = await _on_segments(services, service, topic, subscription, unacked_of_segment)
    counted = {number: unacked for number, unacked in found if unacked is not None}
    return {
        **analysis(
            sum(one.entries for one in counted.values()),
            sum(one.messages for one in counted.values()),
            any(one.is_cut for one in counted.values()),
            None,
            None,
        ),
        "segments": {
            str(number): analysis(one.entries, one.messages, one.is_cut, one.first, one.last)
            for number, one in sorted(counted.items())
        },
    }


@owner_read
async def unacked_of_segment(services: AdminServices, name: TopicName, subscription: str) -> Unacked | None:
    found = (await services.topic(name)).subscriptions.get(subscription)
    return None if found is None else await count_unacked(found, found.next)


for _table in (routes, by_java):
    _table.get("/subscriptions")(list_subscriptions)
    _table.post("/subscription/{subscription}/skip_all", status=204)(skip_all)
    _table.post("/subscription/{subscription}/skip/{count}", status=204)(skip)
    _table.post("/subscription/{subscription}/expireMessages/{seconds}", status=204)(expire)
    _table.post("/all_subscription/expireMessages/{seconds}", status=204)(expire_all)
    _table.post("/subscription/{subscription}/resetcursor/{timestamp}", status=204)(reset_to_time)
    _table.post("/subscription/{subscription}/analyzeBacklog")(analyze)
