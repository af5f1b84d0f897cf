"""`/admin/v2/scalable/…`: single messages of scalable topics, in the forms that classic topics have.

Where a classic topic has one message id, a scalable one has one for each segment. "The n-th message" is the n-th by
publish time of all segments; as for classic topics, entries are counted.
"""

from __future__ import annotations

from typing import Literal

from anabranch.broker.admin.across.owner_calls import at_owners, owner_read
from anabranch.broker.admin.http.answer import HttpAnswer
from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.parameters import Long, SubscriptionName
from anabranch.broker.admin.http.routes import scalable_routes
from anabranch.broker.admin.scalable.parts import (
    CarriedAnswer,
    entry_at,
    entry_by_id,
    nth_entry,
    segments_of,
    subscription_of,
)
from anabranch.broker.admin.scalable.topics import Service
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.admin.topics.topics import message_id
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.model.segments import SegmentId

SEGMENT_HEADER = "X-Anabranch-Segment"

routes, by_java = scalable_routes(Needs.CONSUME)

Ids = dict[str, dict[str, int]]


async def last_message_ids(services: AdminServices, topic: TopicName, service: Service) -> Ids:
    """The id of the last message of each segment that has one."""
    names = await segments_of(services, service, topic)
    return _ids(names, await at_owners(services, names.values(), last_position))


@owner_read
async def last_position(services: AdminServices, name: TopicName) -> Position | None:
    log = (await services.topic(name)).log
    return log.last if log.entries else None


async def message_ids_at(services: AdminServices, topic: TopicName, service: Service, timestamp: Long) -> Ids:
    """For each segment the first message published at or after the time, in milliseconds since 1970. Segments without
    such a message are left out."""
    names = await segments_of(services, service, topic)
    return _ids(names, await at_owners(services, names.values(), position_at_time, timestamp))


@owner_read
async def position_at_time(services: AdminServices, name: TopicName, timestamp: int) -> Position | None:
    log = (await services.topic(name)).log
    at = await log.find_by_publish_time(timestamp)
    return at if at < log.end else None


def _ids(names: dict[SegmentId, TopicName], found: list[tuple[TopicName, Position | None]]) -> Ids:
    at = dict(found)
    return {
        str(number): message_id(name, place)
        for number, name in names.items()
        if (place := at.get(name)) is not None
    }


async def examine(
    services: AdminServices,
    topic: TopicName,
    service: Service,
    initialPosition: Literal["earliest", "latest"] = "latest",
    messagePosition: int = 1,
) -> HttpAnswer:
    """The n-th entry, from 1, by publish time, counted from either end."""
    names = await segments_of(services, service, topic)
    index = max(messagePosition, 1) - 1
    return await _nth(services, names, "", index, from_latest=initialPosition == "latest")


async def peek(
    services: AdminServices,
    topic: TopicName,
    service: Service,
    subscription: SubscriptionName,
    position: int,
) -> HttpAnswer:
    """The n-th entry, from 1, by publish time, that the subscription has not acknowledged."""
    names = await segments_of(services, service, topic)
    await subscription_of(service, topic, subscription)
    if position < 1:
        raise RestError(412, "Message positions start at 1")
    return await _nth(services, names, subscription, position - 1, from_latest=False)


async def _nth(
    services: AdminServices,
    names: dict[SegmentId, TopicName],
    subscription: str,
    index: int,
    *,
    from_latest: bool,
) -> HttpAnswer:
    found = await nth_entry(services, names, subscription, index, from_latest=from_latest)
    told = (
        []
        if found is None
        else await at_owners(services, [names[found.segment]], entry_at, subscription, found.number)
    )
    if found is None or not told or told[0][1] is None:
        raise RestError(404, "Message not found")
    return _answer(found.segment, told[0][1])


async def message_by_id(
    services: AdminServices, topic: TopicName, service: Service, ledger: Long, entry: Long
) -> HttpAnswer:
    """The entry with that id, in whichever segment it is: a ledger is of one segment."""
    names = await segments_of(services, service, topic)
    numbers = {name: number for number, name in names.items()}
    for name, found in await at_owners(services, names.values(), entry_by_id, ledger, entry):
        if found is not None:
            return _answer(numbers[name], found)
    raise RestError(404, "Message not found")


def _answer(segment: SegmentId, found: CarriedAnswer) -> HttpAnswer:
    headers = {**found.headers, SEGMENT_HEADER: str(segment)}
    return HttpAnswer(found.content, "application/octet-stream", headers=headers)


for _table in (routes, by_java):
    _table.get("/lastMessageId")(last_message_ids)
    _table.get("/messageid/{timestamp}")(message_ids_at)
    _table.get("/examinemessage")(examine)
    _table.get("/ledger/{ledger}/entry/{entry}")(message_by_id)
    _table.get("/subscription/{subscription}/position/{position}")(peek)
