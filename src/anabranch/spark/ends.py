"""Where segments end, asked before every batch: by readers that stay subscribed and never ask for messages.

One request for each segment, all at once. A reader whose broker went away is made again with the next question.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection
from typing import Any

from anabranch.client.connection import ClientConnection, PartKind
from anabranch.client.connections import Backoff, Connections, ask
from anabranch.client.errors import RequestRefused
from anabranch.client.message import signed
from anabranch.client.reader_place import made_again
from anabranch.client.segment_consumer import FINAL_ERRORS
from anabranch.errors import AnabranchError
from anabranch.model.cut import BEGINNING, Position
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.extensions import (
    DATA_LOST,
    OTHER_TOPIC,
    OWED_FROM,
    TOPIC_ID,
    UNKNOWN_POSITION,
    position_text,
)

log = logging.getLogger(__name__)

C = pb.BaseCommand


class Ends:
    """By the names of segments' topics. `keep` lets go of the others."""

    def __init__(self, connections: Connections, chance: random.Random) -> None:
        self._connections = connections
        self._chance = chance
        self._probes: dict[str, Probe] = {}
        # Of the topic whose segments they are; "" if that is not known. Another of the same name refuses.
        self.topic_id = ""

    async def of(self, topic: str) -> Position | None:
        """Behind the last message; None if the segment is gone. Goes on trying until it is cancelled.

        TopicMadeAgain if the segment is one of another topic of the same name.
        """
        backoff = Backoff(self._chance)
        while True:
            try:
                probe = await self._probe(topic)
                return await probe.end()
            except RequestRefused as refused:
                if refused.error == pb.TopicNotFound:
                    return None
                if OTHER_TOPIC in str(refused):
                    raise made_again(topic) from None
                if refused.error in FINAL_ERRORS:
                    raise
                log.debug("the end of %s refused, asked again: %s", topic, refused)
            except AnabranchError as error:
                log.debug("the end of %s asked again: %s", topic, error)
            self._probes.pop(topic, None)
            await backoff.wait()

    def is_hiding(self, topic: str) -> bool:
        """Whether, when it was last asked, there was more behind its end that readers may yet be shown."""
        probe = self._probes.get(topic)
        return probe is not None and probe.is_hiding

    async def _probe(self, topic: str) -> Probe:
        probe = self._probes.get(topic)
        if probe is None or probe.is_lost:
            connection = await self._connections.owner(topic)
            probe = connection.attach(PartKind.CONSUMER, lambda number: Probe(connection, number))
            name = f"spark-end-{self._chance.getrandbits(32):08x}"
            try:
                await probe.subscribe(topic, name, topic_id=self.topic_id)
            except BaseException:
                probe.detach()
                raise
            self._probes[topic] = probe
        return probe

    async def has_lost(self, topic: str, since: Position) -> bool:
        """Whether any message from a position on was given up. A log that lost all it had looks like an empty one."""
        backoff = Backoff(self._chance)
        while True:
            try:
                await self._look(topic, since)
                return False
            except RequestRefused as refused:
                if DATA_LOST in str(refused):
                    return True
                if refused.error == pb.TopicNotFound:
                    return False
                if refused.error in FINAL_ERRORS or UNKNOWN_POSITION in str(refused):
                    raise
            except AnabranchError as error:
                log.debug("what %s has lost is asked again: %s", topic, error)
            await backoff.wait()

    async def is_foreign(self, topic: str, at: Position) -> bool:
        """Whether a segment never had that position: it is one of another topic. False of a segment that is gone."""
        try:
            await self.has_lost(topic, at)
        except RequestRefused as refused:
            if UNKNOWN_POSITION not in str(refused):
                raise
            return True
        return False

    async def _look(self, topic: str, since: Position) -> None:
        connection = await self._connections.owner(topic)
        probe = connection.attach(PartKind.CONSUMER, lambda number: Probe(connection, number))
        try:
            await probe.subscribe(topic, f"spark-look-{self._chance.getrandbits(32):08x}", owed_from=since)
        except BaseException:
            probe.detach()
            raise
        await probe.close()

    async def keep(self, topics: Collection[str]) -> None:
        """Closes all that are of other segments."""
        leaving = [self._probes.pop(topic) for topic in list(self._probes) if topic not in topics]
        await asyncio.gather(*(probe.close() for probe in leaving))


class Probe:
    """A consumer of one segment, on one connection, that never asks for messages."""

    def __init__(self, connection: ClientConnection, number: int) -> None:
        self._connection = connection
        self._number = number
        self.is_lost = False
        self.is_hiding = False

    async def subscribe(
        self,
        topic: str,
        subscription: str,
        *,
        is_durable: bool = False,
        from_earliest: bool = False,
        owed_from: Position | None = None,
        topic_id: str = "",
    ) -> None:
        """Refused with DATA_LOST if anything from `owed_from` on is gone, with OTHER_TOPIC by one of another id."""
        kind = pb.CommandSubscribe
        owed = [] if owed_from is None else [pb.KeyValue(key=OWED_FROM, value=position_text(*owed_from[:2]))]
        own = [pb.KeyValue(key=TOPIC_ID, value=topic_id)] if topic_id else []
        await ask(
            self._connection,
            C.SUBSCRIBE,
            "subscribe",
            topic=topic,
            subscription=subscription,
            subType=kind.Exclusive,
            consumer_id=self._number,
            consumer_name="spark",
            initialPosition=kind.Earliest if from_earliest else kind.Latest,
            durable=is_durable,
            force_topic_creation=False,
            metadata=owed + own,
        )

    async def last(self) -> tuple[int, int]:
        """The last entry of the segment; negative numbers if it has none."""
        number = self._number
        answer = await ask(self._connection, C.GET_LAST_MESSAGE_ID, "getLastMessageId", consumer_id=number)
        self.is_hiding = answer.anabranch_is_hiding
        return signed(answer.last_message_id.ledgerId), signed(answer.last_message_id.entryId)

    async def end(self) -> Position:
        ledger, entry = await self.last()
        return BEGINNING if ledger < 0 else (ledger, entry + 1, 0)

    async def ack_until(self, ledger: int, entry: int) -> None:
        """Returns once that is stored."""
        await ask(
            self._connection,
            C.ACK,
            "ack",
            consumer_id=self._number,
            ack_type=pb.CommandAck.Cumulative,
            message_id=[pb.MessageIdData(ledgerId=ledger, entryId=entry)],
        )

    async def close(self) -> None:
        """Its connection may be gone: then there is nothing to say."""
        self.detach()
        if not self.is_lost and not self._connection.is_closed:
            try:
                await ask(self._connection, C.CLOSE_CONSUMER, "close_consumer", consumer_id=self._number)
            except AnabranchError as error:
                log.debug("closing a reader: %s", error)

    def detach(self) -> None:
        self._connection.detach(PartKind.CONSUMER, self._number)

    # -- what the connection says

    def received(self, kind: int, body: Any, payload: memoryview | None) -> None:
        if kind == C.CLOSE_CONSUMER:
            self.is_lost = True
            self.detach()

    def lost(self, error: Exception) -> None:
        self.is_lost = True
