"""Where segments end: told to readers that stay subscribed and never ask for messages.

Each segment's end is asked for once, and followed from then on: `Following` asks each broker, with one request for all
segments there, what has moved. A reader whose broker went away is made again with the next question. Brokers that do
not know what following is are asked for each segment, each time.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection, Sequence
from typing import Any

from anabranch.client.connection import ClientConnection, PartKind
from anabranch.client.connections import Backoff, Connections, ask
from anabranch.client.errors import ConnectionLost, RequestRefused
from anabranch.client.message import signed
from anabranch.client.reader_place import made_again
from anabranch.client.segment_consumer import FINAL_ERRORS
from anabranch.errors import AnabranchError
from anabranch.model.cut import BEGINNING, Position
from anabranch.spark.packing import Kept
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


class Following:
    """What is new to a query: ends that have moved, and what others `note`. `close` in the end."""

    def __init__(self) -> None:
        self._probes: dict[ClientConnection, set[Probe]] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self.count = 0
        """Grows with all that is new."""

    def note(self) -> None:
        """Something is new: a layout, a topic, a segment that has to be asked again."""
        self.count += 1
        self._news.set()

    def add(self, connection: ClientConnection, probe: Probe) -> None:
        self._probes.setdefault(connection, set()).add(probe)

    def remove(self, connection: ClientConnection, probe: Probe) -> None:
        probes = self._probes.get(connection, set())
        probes.discard(probe)
        if not probes:
            self._probes.pop(connection, None)

    async def look(self) -> None:
        """From here on all ends that are followed are as they are now, or later."""
        if asking := self._ask(0):
            await asyncio.wait(asking)

    async def wait(self, seconds: float, count: int) -> None:
        """Returns as soon as there is something new since that count; else once those seconds have passed, and all
        brokers have said that nothing was."""
        self._news.clear()
        if self.count != count:
            return
        asking: set[asyncio.Task[Any]] = {*self._ask(int(seconds * 1000))}
        news = asyncio.create_task(self._news.wait())
        try:
            if not asking:
                await asyncio.wait({news}, timeout=seconds)
            while asking and self.count == count:
                _, asking = await asyncio.wait({news, *asking}, return_when=asyncio.FIRST_COMPLETED)
                asking.discard(news)
        finally:
            news.cancel()

    def _ask(self, wait_ms: int) -> set[asyncio.Task[None]]:
        asking = {
            asyncio.create_task(self._ask_one(connection, next(iter(probes)), wait_ms))
            for connection, probes in self._probes.items()
        }
        # Awaited by `close`, if nobody waits for them any more.
        self._asking |= asking
        for one in asking:
            one.add_done_callback(self._asking.discard)
        return asking

    async def _ask_one(self, connection: ClientConnection, one: Probe, wait_ms: int) -> None:
        has_more, seen = True, set[int]()
        while has_more:
            try:
                moved, has_more = await one.moved(wait_ms)
            except AnabranchError as error:
                log.debug("the ends of segments are asked for one by one: %s", error)
                for probe in self._probes.get(connection, ()):
                    probe.is_told = False
                self.note()
                return
            probes = {probe.number: probe for probe in self._probes.get(connection, ())} if moved else {}
            for end in moved:
                if end.consumer_id in probes:
                    kept = Kept(end.bytes, end.entries)
                    probes[end.consumer_id].told(end.ledger_id, end.entry_id, end.is_hiding, kept)
            if moved:
                self.note()
            wait_ms = 0
            told = {end.consumer_id for end in moved}
            if not seen.isdisjoint(told):
                # They are told in the order in which they moved: all that had when this was asked for are told.
                return
            seen |= told

    async def close(self) -> None:
        for one in self._asking:
            one.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)


class Ends:
    """By the names of segments' topics. `keep` lets go of the others."""

    def __init__(
        self, connections: Connections, chance: random.Random, following: Following | None = None
    ) -> None:
        self._connections = connections
        self._chance = chance
        self._following = following
        self._probes: dict[str, Probe] = {}
        # Of the topic whose segments they are; "" if that is not known. Another of the same name refuses.
        self.topic_id = ""

    async def of(self, topic: str, *, now: bool = True) -> Position | None:
        """Behind the last message; None if the segment is gone. Goes on trying until it is cancelled.

        It is asked for `now`, or is what it was when `Following` has last looked. TopicMadeAgain if the segment is one
        of another topic of the same name.
        """
        backoff = Backoff(self._chance)
        while True:
            try:
                probe = await self._probe(topic)
                return probe.end if probe.is_told and not now else await probe.ask()
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

    def kept(self, topic: str) -> Kept | None:
        """What was last told of it, if anything was."""
        probe = self._probes.get(topic)
        return None if probe is None else probe.kept

    async def _probe(self, topic: str) -> Probe:
        probe = self._probes.get(topic)
        if probe is None or probe.is_lost:
            connection = await self._connections.owner(topic)
            probe = connection.attach(
                PartKind.CONSUMER, lambda number: Probe(connection, number, self._following)
            )
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

    def __init__(self, connection: ClientConnection, number: int, following: Following | None = None) -> None:
        self._connection = connection
        self._following = following
        self.number = number
        self.is_lost = False
        # What was last told of the segment. It is followed where `is_told`.
        self.is_told = False
        self.end = BEGINNING
        self.is_hiding = False
        self.kept: Kept | None = None
        # Up to there its subscription had all acknowledged, when `last` was asked.
        self.acknowledged = (-1, -1)

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
            consumer_id=self.number,
            consumer_name="spark",
            initialPosition=kind.Earliest if from_earliest else kind.Latest,
            durable=is_durable,
            force_topic_creation=False,
            metadata=owed + own,
        )

    async def last(self) -> tuple[int, int]:
        """The last entry of the segment; negative numbers if it has none."""
        answer = await ask(
            self._connection,
            C.GET_LAST_MESSAGE_ID,
            "getLastMessageId",
            consumer_id=self.number,
            anabranch_follow=self._following is not None,
        )
        at = answer.last_message_id
        kept = Kept(answer.anabranch_bytes, answer.anabranch_entries)
        self.told(at.ledgerId, at.entryId, answer.anabranch_is_hiding, kept)
        marked = answer.consumer_mark_delete_position
        self.acknowledged = signed(marked.ledgerId), signed(marked.entryId)
        if self._following is not None:
            if answer.anabranch_is_followed and not self.is_lost:
                self.is_told = True
                self._following.add(self._connection, self)
            else:
                # Nobody will say when there is more: it has to be asked for each time.
                self._following.note()
        return signed(at.ledgerId), signed(at.entryId)

    def told(self, ledger: int, entry: int, is_hiding: bool, kept: Kept) -> None:
        """Its last entry is that one, as the protocol writes it."""
        self.is_hiding, self.kept = is_hiding, kept
        self.end = BEGINNING if signed(ledger) < 0 else (ledger, signed(entry) + 1, 0)

    async def ask(self) -> Position:
        """The segment's end, now."""
        await self.last()
        return self.end

    async def moved(self, wait_ms: int) -> tuple[Sequence[pb.AnabranchEnd], bool]:
        """The ends of segments followed on this connection that have moved since they were told, and whether there are
        more of them: brokers tell so many at once."""
        answer = await ask(
            self._connection,
            C.GET_LAST_MESSAGE_ID,
            "getLastMessageId",
            consumer_id=self.number,
            anabranch_wait_ms=wait_ms,
        )
        return answer.anabranch_moved, answer.anabranch_has_more_moved

    async def ack_until(self, ledger: int, entry: int) -> None:
        """Returns once that is stored."""
        await ask(
            self._connection,
            C.ACK,
            "ack",
            consumer_id=self.number,
            ack_type=pb.CommandAck.Cumulative,
            message_id=[pb.MessageIdData(ledgerId=ledger, entryId=entry)],
        )

    async def close(self) -> None:
        """Its connection may be gone: then there is nothing to say."""
        self.detach()
        if not self.is_lost and not self._connection.is_closed:
            try:
                await ask(self._connection, C.CLOSE_CONSUMER, "close_consumer", consumer_id=self.number)
            except AnabranchError as error:
                log.debug("closing a reader: %s", error)

    def detach(self) -> None:
        self.is_told = False
        if self._following is not None:
            self._following.remove(self._connection, self)
        self._connection.detach(PartKind.CONSUMER, self.number)

    # -- what the connection says

    def received(self, kind: int, body: Any, payload: memoryview | None) -> None:
        if kind == C.CLOSE_CONSUMER:
            self.lost(ConnectionLost("the broker has closed it"))

    def lost(self, error: Exception) -> None:
        self.is_lost = True
        self.detach()
        if self._following is not None:
            self._following.note()
