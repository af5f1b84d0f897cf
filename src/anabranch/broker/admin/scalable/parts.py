"""The segments of a scalable topic, for requests about all of them, and its entries in the order of publish times.

Each segment has an order of its own. Across segments entries are ordered by publish time, then by segment: the n-th of
them is found by a binary search over times, in which every owner counts its own entries.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from anabranch.broker.admin.across.owner_calls import at_owners, owner_read
from anabranch.broker.admin.http.answer import HttpAnswer
from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.admin.topics.messages import answered, read_entry
from anabranch.broker.subscription.subscription import Subscription
from anabranch.broker.topic.topic import Topic
from anabranch.controller.core.errors import TopicMissing
from anabranch.controller.service import ScalableTopics
from anabranch.model.names import Domain, TopicName
from anabranch.model.position import Position
from anabranch.model.scalable import SubscriptionRecord
from anabranch.model.segments import SegmentId

# How often entries are counted again, if some are acknowledged or deleted meanwhile.
_ATTEMPTS: Final = 5
# Behind all times that clocks have; whatever a producer has sent as its time.
_TIME_MAX: Final = 2**53


async def segments_of(
    services: AdminServices, service: ScalableTopics, topic: TopicName
) -> dict[SegmentId, TopicName]:
    """The topics that hold the messages of each segment, sealed ones too; TopicMissing if there is no such topic."""
    record = await service.get(topic)
    if record is None or record.is_deleting:
        hint = ""
        if "/" not in topic.local:
            classic = TopicName(Domain.PERSISTENT, topic.namespace, topic.local)
            if await services.resources.topic_exists(classic) or await services.resources.partitions(classic):
                hint = f"; {classic} is a classic topic: name it so, or migrate it"
        raise TopicMissing(f"{topic} does not exist{hint}")
    segments = record.layout.segments.values()
    return {segment.id: segment.topic(topic) for segment in segments if not segment.is_deleting}


async def subscription_of(service: ScalableTopics, topic: TopicName, subscription: str) -> SubscriptionRecord:
    """404 if the topic has no such subscription."""
    found = (await service.subscriptions(topic)).get(subscription)
    if found is None or found.is_deleting:
        raise RestError(404, f"Subscription {subscription} not found on topic {topic}")
    return found


class SegmentEntry(NamedTuple):
    """An entry by its number in a segment, and how many entries of each segment come before it."""

    segment: SegmentId
    number: int
    before: dict[SegmentId, int]


class TimeSpan(NamedTuple):
    """The entries of a segment: how many, and when the first and the last were published."""

    entries: int
    first_ms: int
    last_ms: int


async def nth_entry(
    services: AdminServices,
    names: dict[SegmentId, TopicName],
    subscription: str,
    index: int,
    *,
    from_latest: bool = False,
) -> SegmentEntry | None:
    """The entry with that index, of all or of those that the subscription has not acknowledged; None if there are
    fewer. Counted from the last one, if `from_latest`."""
    for _ in range(_ATTEMPTS):
        try:
            return await _nth_entry(services, names, subscription, index, from_latest=from_latest)
        except _Changed:
            continue
    raise RestError(409, "Messages are acknowledged or deleted while they are counted: try again")


class _Changed(Exception):
    """Entries were acknowledged or deleted while they were counted."""


async def _nth_entry(
    services: AdminServices,
    names: dict[SegmentId, TopicName],
    subscription: str,
    index: int,
    *,
    from_latest: bool,
) -> SegmentEntry | None:
    numbers = {name: number for number, name in names.items()}
    spans = {
        numbers[name]: span
        for name, span in await at_owners(services, names.values(), time_span, subscription)
        if span is not None and span.entries
    }
    total = sum(span.entries for span in spans.values())
    if index >= total:
        return None
    index = total - 1 - index if from_latest else index
    asked = {number: names[number] for number in spans}

    async def before(time_ms: int) -> dict[SegmentId, int]:
        """Grows with the time, also where the entries of a segment are not in the order of their times."""
        if time_ms > _TIME_MAX:
            return {number: span.entries for number, span in spans.items()}
        found = await at_owners(services, asked.values(), entries_before, subscription, time_ms)
        return {numbers[name]: count for name, count in found}

    # The latest time with no more entries before it than `index`. Clocks of producers differ, so it need not lie
    # between the times of the first and the last entries, though it nearly always does.
    low = min(_TIME_MAX, *(span.first_ms for span in spans.values()))
    high = min(_TIME_MAX, max(span.last_ms for span in spans.values()))
    if sum((await before(low)).values()) > index:
        low, high = 0, low
    elif sum((await before(high + 1)).values()) <= index:
        low, high = high, _TIME_MAX
    while low < high:
        middle = (low + high + 1) // 2
        if sum((await before(middle)).values()) <= index:
            low = middle
        else:
            high = middle - 1
    counts = await before(low)
    left = index - sum(counts.values())
    upto = await before(low + 1)
    for number in sorted(upto):
        here = upto[number] - counts.get(number, 0)
        if 0 <= left < here:
            return SegmentEntry(
                number, counts.get(number, 0) + left, counts | {number: counts.get(number, 0) + left}
            )
        left -= here
        counts[number] = upto[number]
    raise _Changed


@owner_read
async def time_span(services: AdminServices, name: TopicName, subscription: str) -> TimeSpan | None:
    """The span of all entries, or of those that the subscription has not acknowledged; None if the segment has no such
    subscription."""
    topic = await services.topic(name)
    log = topic.log
    found = topic.subscriptions.get(subscription)
    if subscription and found is None:
        return None
    entries = log.entries if found is None else found.backlog()
    if not entries:
        return TimeSpan(0, 0, 0)
    first = await log.published_at(log.first if found is None else found.next)
    last = await log.published_at(log.last)
    return TimeSpan(entries, first or 0, max(first or 0, last or 0))


@owner_read
async def entries_before(services: AdminServices, name: TopicName, subscription: str, time_ms: int) -> int:
    """How many entries were published before that time: of all, or of those that the subscription has not
    acknowledged."""
    topic = await services.topic(name)
    at = await topic.log.find_by_publish_time(time_ms)
    if not subscription:
        return topic.log.count(topic.log.first, at)
    found = topic.subscriptions.get(subscription)
    return 0 if found is None else found.unacked_below(at)


class CarriedAnswer(NamedTuple):
    """An entry, as the routes of single messages answer it."""

    content: bytes
    headers: dict[str, str]


@owner_read
async def entry_at(
    services: AdminServices, name: TopicName, subscription: str, index: int
) -> CarriedAnswer | None:
    """The entry with that index, of all or of those that the subscription has not acknowledged."""
    topic = await services.topic(name)
    if subscription:
        return await _peeked(topic, subscription, index)
    if index >= topic.log.entries:
        return None
    return _carried(await read_entry(topic.log, topic.log.position_at(index)))


async def _peeked(topic: Topic, subscription: str, index: int) -> CarriedAnswer | None:
    found: Subscription | None = topic.subscriptions.get(subscription)
    peeked = None if found is None else await found.peek(index)
    return None if peeked is None else _carried(await answered(peeked[0], peeked[1][2]))


@owner_read
async def entry_by_id(
    services: AdminServices, name: TopicName, ledger: int, entry: int
) -> CarriedAnswer | None:
    log = (await services.topic(name)).log
    at: Position = (ledger, entry)
    if log.normalise(at) != at or at >= log.end:
        return None
    return _carried(await read_entry(log, at))


def _carried(answer: HttpAnswer) -> CarriedAnswer:
    assert isinstance(answer.body, bytes)
    return CarriedAnswer(answer.body, dict(answer.headers))
