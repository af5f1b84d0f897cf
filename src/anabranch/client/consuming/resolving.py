"""Where "latest", "earliest" or a time is in a segment: its broker is asked, once, by a reader that reads nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from anabranch.client.consuming.reader_place import made_again
from anabranch.client.errors import RequestRefused
from anabranch.client.message import signed
from anabranch.client.transport.attachment import Backoff, SilentPart, keep_trying, refused_with
from anabranch.client.transport.connection import ClientConnection, PartKind
from anabranch.client.transport.core.refusals import Meaning, RefusedPart, first_kept, meaning
from anabranch.client.transport.pool import Connections, ask
from anabranch.model.cut import BEGINNING, Cut, MessagePosition, Place
from anabranch.model.layout import SegmentLayout
from anabranch.model.resuming import resume
from anabranch.model.segments import SegmentId
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.extensions import OWED_FROM, TOPIC_ID, position_text

C = pb.BaseCommand

T = TypeVar("T")


async def position_of(
    connections: Connections, topic: str, since_ms: int | None, chance: random.Random
) -> MessagePosition | None:
    """The first message published at that time or later, or the end if `since_ms` is None. None if the segment is gone.

    Keeps trying until it is cancelled.
    """

    async def ask_once() -> MessagePosition:
        name = f"reader-{chance.getrandbits(32):08x}"
        return await _ask(await connections.owner(topic), topic, name, since_ms)

    return await unless_gone(ask_once, f"looking for a position in {topic}", chance)


class VisibleEnd(NamedTuple):
    """The position behind the last message that readers may see, and whether there is more that they may yet see."""

    at: MessagePosition
    is_hiding: bool


async def visible_end(
    connections: Connections, topic: str, chance: random.Random, topic_id: str = ""
) -> VisibleEnd | None:
    """Where a segment ends for readers. None if the segment is gone. Raises TopicMadeAgain if it is of another topic
    than that id says.

    Keeps trying until it is cancelled.
    """

    async def ask_once() -> VisibleEnd:
        connection = await connections.owner(topic)
        probe = await _subscribed(
            connection, topic, f"reader-{chance.getrandbits(32):08x}", topic_id=topic_id
        )
        try:
            answer = await ask(
                connection, C.GET_LAST_MESSAGE_ID, "getLastMessageId", consumer_id=probe.number
            )
            await ask(connection, C.CLOSE_CONSUMER, "close_consumer", consumer_id=probe.number)
        finally:
            connection.detach(PartKind.CONSUMER, probe.number)
        ledger, entry = signed(answer.last_message_id.ledgerId), signed(answer.last_message_id.entryId)
        return VisibleEnd(BEGINNING if ledger < 0 else (ledger, entry + 1, 0), answer.anabranch_is_hiding)

    try:
        return await unless_gone(ask_once, f"asking for the end of {topic}", chance)
    except RequestRefused as refused:
        if meaning(refused, RefusedPart.CONSUMER) is not Meaning.OTHER_TOPIC:
            raise
        raise made_again(topic) from None


async def unless_gone(ask_once: Callable[[], Awaitable[T]], what: str, chance: random.Random) -> T | None:
    """Asks a segment until it answers; None if it is gone."""
    ends = refused_with(RefusedPart.CONSUMER, Meaning.FINAL, Meaning.GONE, Meaning.OTHER_TOPIC)
    try:
        return await keep_trying(ask_once, Backoff(chance), what, ends)
    except RequestRefused as refused:
        if meaning(refused, RefusedPart.CONSUMER) is not Meaning.GONE:
            raise
    return None


async def earliest(
    connections: Connections,
    layout: SegmentLayout,
    topic_of: Callable[[SegmentId], str],
    chance: random.Random,
) -> Cut:
    """The cut that "earliest" means now: places only in segments whose beginning was already deleted.

    A reader that has read a child's parents is owed the child from its first message. Data that was gone before they
    were read is no loss to a reader that began at the earliest message. Segments without parents need no place for
    that.
    """
    first = resume(layout, Cut()).readable
    children = [number for number in layout.segments if number not in first]
    found = await asyncio.gather(*(_given_up_until(connections, topic_of(n), chance) for n in children))
    places = (
        Place.of(layout.segments[number], is_apart=True).moved(at)
        for number, at in zip(children, found, strict=True)
        if at is not None
    )
    return Cut(tuple(places), layout.topic_id)


async def _given_up_until(
    connections: Connections, topic: str, chance: random.Random
) -> MessagePosition | None:
    """The first entry that is kept, if entries before it were deleted. None for a segment that is gone.

    Keeps trying until it is cancelled.
    """

    async def ask_once() -> MessagePosition | None:
        connection = await connections.owner(topic)
        try:
            probe = await _subscribed(connection, topic, f"reader-{chance.getrandbits(32):08x}", BEGINNING)
        except RequestRefused as refused:
            if (kept := first_kept(refused)) is None:
                raise
            return (*kept, 0)
        try:
            await ask(connection, C.CLOSE_CONSUMER, "close_consumer", consumer_id=probe.number)
        finally:
            connection.detach(PartKind.CONSUMER, probe.number)
        return None

    return await unless_gone(ask_once, f"looking for a position in {topic}", chance)


async def _ask(connection: ClientConnection, topic: str, name: str, since_ms: int | None) -> MessagePosition:
    probe = await _subscribed(connection, topic, name)
    try:
        if since_ms is not None:
            await ask(connection, C.SEEK, "seek", consumer_id=probe.number, message_publish_time=since_ms)
            # A seek closes the consumer. The broker keeps the reader's place for a while, for its return.
            connection.detach(PartKind.CONSUMER, probe.number)
            probe = await _subscribed(connection, topic, name)
        answer = await ask(connection, C.GET_LAST_MESSAGE_ID, "getLastMessageId", consumer_id=probe.number)
        await ask(connection, C.CLOSE_CONSUMER, "close_consumer", consumer_id=probe.number)
    finally:
        connection.detach(PartKind.CONSUMER, probe.number)
    at = answer.consumer_mark_delete_position
    ledger, entry = signed(at.ledgerId), signed(at.entryId)
    return BEGINNING if ledger < 0 else (ledger, entry + 1, 0)


async def _subscribed(
    connection: ClientConnection,
    topic: str,
    name: str,
    owed_from: MessagePosition | None = None,
    topic_id: str = "",
) -> SilentPart:
    probe = connection.attach(PartKind.CONSUMER, SilentPart)
    try:
        await subscribe_probe(
            connection, probe.number, topic, name, name, owed_from=owed_from, topic_id=topic_id
        )
    except BaseException:
        connection.detach(PartKind.CONSUMER, probe.number)
        raise
    return probe


async def subscribe_probe(
    connection: ClientConnection,
    number: int,
    topic: str,
    subscription: str,
    consumer_name: str,
    *,
    is_durable: bool = False,
    from_earliest: bool = False,
    owed_from: MessagePosition | None = None,
    topic_id: str = "",
) -> None:
    """Subscribes a consumer that never asks for messages.

    The broker refuses it with DATA_LOST if data from `owed_from` on is gone, with OTHER_TOPIC if the topic has another
    id."""
    kind = pb.CommandSubscribe
    owed = [] if owed_from is None else [pb.KeyValue(key=OWED_FROM, value=position_text(*owed_from[:2]))]
    own = [pb.KeyValue(key=TOPIC_ID, value=topic_id)] if topic_id else []
    await ask(
        connection,
        C.SUBSCRIBE,
        "subscribe",
        topic=topic,
        subscription=subscription,
        subType=kind.Exclusive,
        consumer_id=number,
        consumer_name=consumer_name,
        initialPosition=kind.Earliest if from_earliest else kind.Latest,
        durable=is_durable,
        force_topic_creation=False,
        metadata=owed + own,
    )
