"""Where "latest", "earliest" or a time is in a segment: asked of its broker, once, by a reader that reads nothing."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any

from anabranch.client.connection import ClientConnection, PartKind
from anabranch.client.connections import Backoff, Connections, ask
from anabranch.client.errors import RequestRefused
from anabranch.client.message import signed
from anabranch.client.segment_consumer import FINAL_ERRORS
from anabranch.errors import AnabranchError
from anabranch.model.cut import BEGINNING, Cut, Place, Position
from anabranch.model.layout import SegmentLayout
from anabranch.model.resuming import resume
from anabranch.model.segments import SegmentId
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.extensions import DATA_LOST, OWED_FROM, position_text, read_position

log = logging.getLogger(__name__)

C = pb.BaseCommand


async def position_of(
    connections: Connections, topic: str, since_ms: int | None, chance: random.Random
) -> Position | None:
    """The first message published at that time or later, or the end for None. None if the segment is gone.

    Goes on trying until it is cancelled.
    """
    backoff = Backoff(chance)
    while True:
        name = f"reader-{chance.getrandbits(32):08x}"
        try:
            return await _ask(await connections.owner(topic), topic, name, since_ms)
        except RequestRefused as refused:
            if refused.error == pb.TopicNotFound:
                return None
            if refused.error in FINAL_ERRORS:
                raise
            log.debug("looking for a position in %s refused, tried again: %s", topic, refused)
        except AnabranchError as error:
            log.debug("looking for a position in %s tried again: %s", topic, error)
        await backoff.wait()


async def earliest(
    connections: Connections,
    layout: SegmentLayout,
    topic_of: Callable[[SegmentId], str],
    chance: random.Random,
) -> Cut:
    """The cut that "earliest" is now: places in those segments only whose beginning was given up before.

    A child is owed from its first message to whoever has read its parents. What was gone before they were read is no
    loss to a reader that began at the earliest message there was. Segments without parents need no place for that.
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


async def _given_up_until(connections: Connections, topic: str, chance: random.Random) -> Position | None:
    """The first entry that is kept, if there were others before it. None of a segment that is gone.

    Goes on trying until it is cancelled.
    """
    backoff = Backoff(chance)
    while True:
        try:
            connection = await connections.owner(topic)
            owed = pb.KeyValue(key=OWED_FROM, value=position_text(*BEGINNING[:2]))
            probe = await _subscribed(connection, topic, f"reader-{chance.getrandbits(32):08x}", [owed])
            try:
                await ask(connection, C.CLOSE_CONSUMER, "close_consumer", consumer_id=probe.number)
            finally:
                connection.detach(PartKind.CONSUMER, probe.number)
            return None
        except RequestRefused as refused:
            _, is_lost, rest = str(refused).partition(f"{DATA_LOST} ")
            if is_lost and (kept := read_position(rest.partition(": ")[0])) is not None:
                return (*kept, 0)
            if refused.error == pb.TopicNotFound:
                return None
            if refused.error in FINAL_ERRORS:
                raise
            log.debug("looking for the beginning of %s refused, tried again: %s", topic, refused)
        except AnabranchError as error:
            log.debug("looking for the beginning of %s tried again: %s", topic, error)
        await backoff.wait()


async def _ask(connection: ClientConnection, topic: str, name: str, since_ms: int | None) -> Position:
    probe = await _subscribed(connection, topic, name)
    try:
        if since_ms is not None:
            await ask(connection, C.SEEK, "seek", consumer_id=probe.number, message_publish_time=since_ms)
            # A seek closes the consumer. The reader's place is kept for a while, for who comes back.
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
    connection: ClientConnection, topic: str, name: str, metadata: Sequence[pb.KeyValue] = ()
) -> _Probe:
    probe = connection.attach(PartKind.CONSUMER, _Probe)
    try:
        await ask(
            connection,
            C.SUBSCRIBE,
            "subscribe",
            topic=topic,
            subscription=name,
            subType=pb.CommandSubscribe.Exclusive,
            consumer_id=probe.number,
            consumer_name=name,
            initialPosition=pb.CommandSubscribe.Latest,
            durable=False,
            force_topic_creation=False,
            metadata=metadata,
        )
    except BaseException:
        connection.detach(PartKind.CONSUMER, probe.number)
        raise
    return probe


class _Probe:
    """A consumer that never asks for messages."""

    def __init__(self, number: int) -> None:
        self.number = number

    def received(self, kind: int, body: Any, payload: memoryview | None) -> None:
        pass

    def lost(self, error: Exception) -> None:
        pass
