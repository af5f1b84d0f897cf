"""The last messages of a topic, and a consumer that goes on behind them.

A topic has a last message in each segment, and brokers find messages by their time: so the topic is read from a moment
ago, then from longer ago, until enough messages come before its present end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from anabranch.client import CheckpointConsumer, Message
from anabranch.client.consuming.core.checkpoint import Start
from anabranch.client.errors import TimedOut
from anabranch.model.cut import BEGINNING, Cut, MessagePosition, Place, behind
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import SegmentId

# How far back is looked. Each look costs a few requests, and the messages since then.
LOOKS_S: Final = (2, 30, 600, 3 * 3600, 2 * 86_400)
# How often it is asked whether the end is reached while nothing comes, and when that is taken for the end itself: an
# end may lie behind entries that readers do not get.
TICK_S: Final = 0.1
# The end of the year 9999: a producer may have sent any time, even one in no year that is known.
TIME_MS_MAX: Final = 253_402_300_799_000
SILENCE_S: Final = 3.0

Opened = Callable[[Start], Awaitable[CheckpointConsumer]]


async def last_messages(count: int, opened: Opened, now_s: float) -> tuple[CheckpointConsumer, list[Message]]:
    """The last messages by publish time, at most `count`, and the consumer that has read them."""
    probe = await opened("latest")
    ends = Cut.decode(probe.checkpoint())
    await probe.close()
    is_empty = all(_end(place) == BEGINNING for place in ends.places)
    looks: list[Start] = [] if is_empty else [_ago(now_s, seconds) for seconds in LOOKS_S]
    for start in looks:
        consumer = await opened(start)
        found = await _until_end(consumer, ends, count)
        if len(found) >= count:
            return consumer, found
        await consumer.close()
    consumer = await opened("earliest")
    return consumer, await _until_end(consumer, ends, count)


def _ago(now_s: float, seconds: float) -> datetime:
    return datetime.fromtimestamp(now_s - seconds, UTC)


def _end(place: Place) -> MessagePosition:
    return place.at[0] if place.at else BEGINNING


async def _until_end(consumer: CheckpointConsumer, ends: Cut, count: int) -> list[Message]:
    """The last messages before those ends, sorted by publish time."""
    begin = {place.segment: place for place in Cut.decode(consumer.checkpoint()).places}
    left = {place.segment: _end(place) for place in ends.places if _end(place) != BEGINNING}
    for number, place in begin.items():
        if number in left and (place.is_over or _end(place) >= left[number]):
            del left[number]
    active = frozenset(place.segment for place in ends.places)
    found: list[Message] = []
    loop = asyncio.get_running_loop()
    heard = loop.time()
    while left or not consumer.reading <= active:
        try:
            message = await consumer.receive(timeout_s=TICK_S)
        except TimedOut:
            if loop.time() - heard > SILENCE_S:
                break
            continue
        heard = loop.time()
        found.append(message)
        if len(found) >= 2 * count + 1000:
            found = _last(found, count)
        end = left.get(SegmentId(message.segment))
        if end is not None and _behind(message) >= end:
            del left[SegmentId(message.segment)]
    return _last(found, count)


def _last(messages: list[Message], count: int) -> list[Message]:
    # The sort is stable: messages of one segment with the same time keep their order.
    return sorted(messages, key=lambda message: message.publish_time_ms)[-count:] if count else []


def _behind(message: Message) -> MessagePosition:
    index = max(0, message.index)
    return behind(message.ledger, message.entry, index, is_last_of_entry=message.is_last_of_entry)


# -- from one message on


async def from_message(
    layout: SegmentLayout, segment: SegmentId, at: MessagePosition, opened: Opened
) -> bytes | None:
    """The checkpoint at which that message is the next of its segment, and others begin with what was published at its
    time or later. None if there is no such message any more, nor one behind it in its segment."""
    own = Place.of(layout.segment(segment)).moved(at)
    probe = await opened("latest")
    latest = Cut.decode(probe.checkpoint())
    await probe.close()
    others = [place for place in latest.places if place.segment != segment and not own.is_before(place)]
    topic_id = latest.topic_id or layout.topic_id
    reader = await opened(Cut((own, *others), topic_id).encode())
    published_ms = await _time_of_first(reader, segment)
    await reader.close()
    if published_ms is None:
        return None
    probe = await opened(datetime.fromtimestamp(min(published_ms, TIME_MS_MAX) / 1000, UTC))
    by_time = Cut.decode(probe.checkpoint())
    await probe.close()
    places = [place for place in by_time.places if place.segment != segment]
    return Cut((*places, own), topic_id).encode()


async def _time_of_first(consumer: CheckpointConsumer, segment: SegmentId) -> int | None:
    loop = asyncio.get_running_loop()
    until = loop.time() + SILENCE_S
    while loop.time() < until:
        try:
            message = await consumer.receive(timeout_s=TICK_S)
        except TimedOut:
            if segment not in consumer.reading:
                return None
            continue
        if message.segment == segment:
            return message.publish_time_ms
    return None
