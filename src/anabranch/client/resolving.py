"""Where "latest", or a time, is in a segment: asked of its broker, once, by a reader that reads nothing."""

from __future__ import annotations

import logging
import random
from typing import Any

from anabranch.client.connection import ClientConnection, PartKind
from anabranch.client.connections import Backoff, Connections, ask
from anabranch.client.errors import RequestRefused
from anabranch.client.message import signed
from anabranch.client.segment_consumer import FINAL_ERRORS
from anabranch.errors import AnabranchError
from anabranch.model.cut import BEGINNING, Position
from anabranch.wire import pulsar_pb2 as pb

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


async def _subscribed(connection: ClientConnection, topic: str, name: str) -> _Probe:
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
