"""Where segments end, learned by readers that stay subscribed and never ask for messages.

Each segment's end is asked for once, and followed from then on: `Following` asks each broker, with one request for all
segments there, which ends have moved. A reader whose broker is gone is made again with the next request. Brokers that
do not support following are asked for each segment, each time.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection, Sequence
from typing import Any

from anabranch.client.consuming.reader_place import made_again
from anabranch.client.consuming.resolving import subscribe_probe
from anabranch.client.errors import ConnectionLost, RequestRefused
from anabranch.client.message import signed
from anabranch.client.transport.attachment import Backoff, keep_trying, refused_with
from anabranch.client.transport.connection import ClientConnection, PartKind
from anabranch.client.transport.core.refusals import Meaning, RefusedPart, meaning
from anabranch.client.transport.pool import Connections, ask
from anabranch.errors import AnabranchError
from anabranch.model.cut import BEGINNING, MessagePosition
from anabranch.spark.plan.packing import SegmentSize
from anabranch.wire import pulsar_pb2 as pb

log = logging.getLogger(__name__)

C = pb.BaseCommand

_ends_asking = refused_with(RefusedPart.CONSUMER, Meaning.FINAL, Meaning.GONE, Meaning.OTHER_TOPIC)
_ends_looking = refused_with(
    RefusedPart.CONSUMER, Meaning.FINAL, Meaning.GONE, Meaning.DATA_LOST, Meaning.UNKNOWN_POSITION
)


class Following:
    """What is new to a query: ends that have moved, and what others `note`. Call `close` at the end."""

    def __init__(self) -> None:
        self._probes: dict[ClientConnection, set[Probe]] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self.count = 0
        """Grows with each piece of news."""

    def note(self) -> None:
        """Notes something new: a layout, a topic, a segment that has to be asked again."""
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
        """Updates all followed ends: from here on they are as they are now, or later."""
        if asking := self._ask(0):
            await asyncio.wait(asking)

    async def wait(self, seconds: float, count: int) -> None:
        """Returns as soon as there is something new since that count; else once those seconds have passed, and all
        brokers have answered that nothing was new."""
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
        # Awaited by `close`, if no caller waits for them any more.
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
                log.debug("asking for the ends of segments one by one: %s", error)
                for probe in self._probes.get(connection, ()):
                    probe.is_told = False
                self.note()
                return
            probes = {probe.number: probe for probe in self._probes.get(connection, ())} if moved else {}
            for end in moved:
                if end.consumer_id in probes:
                    kept = SegmentSize(end.bytes, end.entries)
                    probes[end.consumer_id].told(end.ledger_id, end.entry_id, end.is_hiding, kept)
            if moved:
                self.note()
            wait_ms = 0
            told = {end.consumer_id for end in moved}
            if not seen.isdisjoint(told):
                # Brokers report ends in the order in which they moved: all that had moved before this request are
                # reported.
                return
            seen |= told

    async def close(self) -> None:
        for one in self._asking:
            one.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)


class Ends:
    """The ends by segment topic. `keep` closes the other probes."""

    def __init__(
        self, connections: Connections, chance: random.Random, following: Following | None = None
    ) -> None:
        self._connections = connections
        self._chance = chance
        self._following = following
        self._probes: dict[str, Probe] = {}
        # The id of the topic whose segments these are; "" if it is unknown. Another topic of the same name refuses.
        self.topic_id = ""

    async def of(self, topic: str, *, now: bool = True) -> MessagePosition | None:
        """The position behind the last message; None if the segment is gone. Keeps trying until it is cancelled.

        The end is asked for `now`, or is that of the last check of `Following`. Raises TopicMadeAgain if the segment
        belongs to another topic of the same name.
        """

        async def ask_once() -> MessagePosition:
            try:
                probe = await self._probe(topic)
                return probe.end if probe.is_told and not now else await probe.ask()
            except AnabranchError as error:
                if not _ends_asking(error):
                    self._probes.pop(topic, None)
                raise

        try:
            return await keep_trying(ask_once, Backoff(self._chance), f"the end of {topic}", _ends_asking)
        except RequestRefused as refused:
            match meaning(refused, RefusedPart.CONSUMER):
                case Meaning.GONE:
                    return None
                case Meaning.OTHER_TOPIC:
                    raise made_again(topic) from None
            raise

    def is_hiding(self, topic: str) -> bool:
        """Whether, by the last answer, there was more behind its end that readers may yet be shown."""
        probe = self._probes.get(topic)
        return probe is not None and probe.is_hiding

    def kept(self, topic: str) -> SegmentSize | None:
        """The last known size of the segment, if any."""
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
                await subscribe_probe(connection, probe.number, topic, name, "spark", topic_id=self.topic_id)
            except BaseException:
                probe.detach()
                raise
            self._probes[topic] = probe
        return probe

    async def has_lost(self, topic: str, since: MessagePosition) -> bool:
        """Whether any message from a position on was deleted. A log that lost all of its entries looks like an empty
        one."""
        try:
            await keep_trying(
                lambda: self._look(topic, since),
                Backoff(self._chance),
                f"what {topic} has lost",
                _ends_looking,
            )
        except RequestRefused as refused:
            match meaning(refused, RefusedPart.CONSUMER):
                case Meaning.DATA_LOST:
                    return True
                case Meaning.GONE:
                    return False
            raise
        return False

    async def is_foreign(self, topic: str, at: MessagePosition) -> bool:
        """Whether a segment never had that position: it belongs to another topic. False for a segment that is gone."""
        try:
            await self.has_lost(topic, at)
        except RequestRefused as refused:
            if meaning(refused, RefusedPart.CONSUMER) is not Meaning.UNKNOWN_POSITION:
                raise
            return True
        return False

    async def _look(self, topic: str, since: MessagePosition) -> None:
        connection = await self._connections.owner(topic)
        probe = connection.attach(PartKind.CONSUMER, lambda number: Probe(connection, number))
        name = f"spark-look-{self._chance.getrandbits(32):08x}"
        try:
            await subscribe_probe(connection, probe.number, topic, name, "spark", owed_from=since)
        except BaseException:
            probe.detach()
            raise
        await probe.close()

    async def keep(self, topics: Collection[str]) -> None:
        """Closes the probes of all other segments."""
        leaving = [self._probes.pop(topic) for topic in list(self._probes) if topic not in topics]
        await asyncio.gather(*(probe.close() for probe in leaving))


class Probe:
    """A consumer of one segment, on one connection, that never asks for messages."""

    def __init__(self, connection: ClientConnection, number: int, following: Following | None = None) -> None:
        self._connection = connection
        self._following = following
        self.number = number
        self.is_lost = False
        # The last known state of the segment. It is followed where `is_told`.
        self.is_told = False
        self.end = BEGINNING
        self.is_hiding = False
        self.kept: SegmentSize | None = None
        # The position up to which its subscription had acknowledged everything, when `last` was called.
        self.acknowledged = (-1, -1)

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
        kept = SegmentSize(answer.anabranch_bytes, answer.anabranch_entries)
        self.told(at.ledgerId, at.entryId, answer.anabranch_is_hiding, kept)
        marked = answer.consumer_mark_delete_position
        self.acknowledged = signed(marked.ledgerId), signed(marked.entryId)
        if self._following is not None:
            if answer.anabranch_is_followed and not self.is_lost:
                self.is_told = True
                self._following.add(self._connection, self)
            else:
                # No broker will report changes: the end has to be asked for each time.
                self._following.note()
        return signed(at.ledgerId), signed(at.entryId)

    def told(self, ledger: int, entry: int, is_hiding: bool, kept: SegmentSize) -> None:
        """Sets its last entry, given in the protocol's form."""
        self.is_hiding, self.kept = is_hiding, kept
        self.end = BEGINNING if signed(ledger) < 0 else (ledger, signed(entry) + 1, 0)

    async def ask(self) -> MessagePosition:
        """The segment's present end."""
        await self.last()
        return self.end

    async def moved(self, wait_ms: int) -> tuple[Sequence[pb.AnabranchEnd], bool]:
        """The ends of segments followed on this connection that have moved since they were reported, and whether there
        are more of them: a broker reports a limited number at once."""
        answer = await ask(
            self._connection,
            C.GET_LAST_MESSAGE_ID,
            "getLastMessageId",
            consumer_id=self.number,
            anabranch_wait_ms=wait_ms,
        )
        return answer.anabranch_moved, answer.anabranch_has_more_moved

    async def ack_until(self, ledger: int, entry: int) -> None:
        """Acknowledges up to that entry; returns once that is stored."""
        await ask(
            self._connection,
            C.ACK,
            "ack",
            consumer_id=self.number,
            ack_type=pb.CommandAck.Cumulative,
            message_id=[pb.MessageIdData(ledgerId=ledger, entryId=entry)],
        )

    async def close(self) -> None:
        """Closes the consumer at the broker, unless its connection is gone."""
        self.detach()
        if not self.is_lost and not self._connection.is_closed:
            try:
                await ask(self._connection, C.CLOSE_CONSUMER, "close_consumer", consumer_id=self.number)
            except AnabranchError as error:
                log.debug("closing a reader failed: %s", error)

    def detach(self) -> None:
        self.is_told = False
        if self._following is not None:
            self._following.remove(self._connection, self)
        self._connection.detach(PartKind.CONSUMER, self.number)

    # -- events of the connection

    def received(self, kind: int, body: Any, payload: memoryview | None) -> None:
        if kind == C.CLOSE_CONSUMER:
            self.lost(ConnectionLost("the broker has closed it"))

    def lost(self, error: Exception) -> None:
        self.is_lost = True
        self.detach()
        if self._following is not None:
            self._following.note()
