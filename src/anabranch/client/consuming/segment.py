"""One segment's part of a consumer: subscribed where the segment is served, again after each loss, until it is closed.

Entries go into the inbox that all segments of a consumer share. Each new subscription starts a new life: entries that
earlier lives left in the inbox are dropped, because the broker sends them again, and after a seek it may send others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from anabranch.client.acking.core.state import Until, bits_of
from anabranch.client.acking.sender import AckSender, LostAckTally
from anabranch.client.consuming import reader_place
from anabranch.client.consuming.chunk_reader import ChunkReader
from anabranch.client.consuming.core.permits import Window
from anabranch.client.consuming.inbox import Inbox
from anabranch.client.errors import BadCheckpoint, ConnectionLost, RequestRefused, TopicDeleted
from anabranch.client.message import Decryption, EntryOrigin, ReceivedEntry, read_entry
from anabranch.client.schema.schemas import Schema
from anabranch.client.schema.versions import VersionGate
from anabranch.client.transport.attachment import Backoff, keep_trying
from anabranch.client.transport.connection import ClientConnection, PartKind
from anabranch.client.transport.core.refusals import Meaning, RefusedPart, meaning
from anabranch.client.transport.pool import CLOSE_MAX_S, Connections, ask
from anabranch.errors import AnabranchError
from anabranch.model.cut import MessagePosition
from anabranch.model.segments import HashRange, SegmentId
from anabranch.model.wanted import Wanted
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.extensions import (
    OWED_FROM,
    TOPIC_ID,
    WANTED_HASHES,
    hashes_text,
    position_text,
)
from anabranch.wire.stamps import span_of

log = logging.getLogger(__name__)

C = pb.BaseCommand

ATTACH_MAX_S: Final = 2.0

# What brokers answer while other consumers hold a segment, or read it in the other way.
_HELD: Final = frozenset({pb.ConsumerBusy, pb.ConsumerAssignError})
# So often, a subscription that others hold is asked for again after a short pause.
QUICK_TIMES: Final = 20
QUICK_S: Final = 0.1
# The types that no controller assigns, as the answers of our brokers and of Pulsar's name them.
_OF_OTHERS: Final = re.compile(r"(?:\bis |\btype of ')(?:Shared|Failover)\b")


@dataclass(frozen=True, slots=True)
class SubscribeOptions:
    """How a consumer subscribes to its segments. A reader that starts at a position is not durable.

    `is_assigned`: a controller says who reads the segment, and how. With `bucket_ranges`, other consumers read it too:
    these are all of its entry buckets, and the broker knows whose each of them is.
    """

    name: str
    kind: int
    consumer_name: str
    earliest: bool = False
    is_durable: bool = True
    is_assigned: bool = False
    bucket_ranges: tuple[HashRange, ...] = ()


@dataclass(frozen=True, slots=True)
class ValueReading:
    """How entries are decoded to values."""

    schema: Schema[Any] | None = None  # Remembers the versions of one topic: `Schema.for_topic`.
    decryption: Decryption | None = None


class SegmentConsumer:
    """`open` starts it. It calls `restarted` whenever earlier deliveries must be acknowledged now or never, and `ended`
    once the segment is sealed and acknowledged to its end, or gone."""

    def __init__(
        self,
        connections: Connections,
        segment: SegmentId,
        topic: str,
        shown_topic: str,
        subscription: SubscribeOptions,
        inbox: Inbox,
        *,
        chance: random.Random,
        url: str = "",
        topic_id: str = "",
        start: MessagePosition | None = None,
        chunks_from: tuple[int, int] | None = None,
        ended: Callable[[SegmentConsumer], None] = lambda _: None,
        restarted: Callable[[SegmentConsumer], None] = lambda _: None,
        may_be_gone: Callable[[SegmentId], bool] = lambda _: False,
        lost: Callable[[SegmentConsumer, bool], AnabranchError | None] | None = None,
        reading: ValueReading | None = None,
        tally: LostAckTally | None = None,
        failed: Callable[[Exception], None] | None = None,
        is_wanted: Callable[[ReceivedEntry], bool] = lambda _: True,
        wanted: Wanted | None = None,
    ) -> None:
        reading = reading or ValueReading()
        self._failed = failed or inbox.fail
        # Called for each entry that was sent before, when the application gets to it.
        self.is_wanted = is_wanted
        self.segment = segment
        self.topic = topic
        self.has_ended = False
        self.acks = AckSender(topic, tally or LostAckTally())
        # The life whose messages may be acknowledged. It survives a lost connection, but not a close by the broker.
        self.acking: object = None
        self._origin = EntryOrigin(
            shown_topic, segment=segment, schema=reading.schema, decryption=reading.decryption
        )
        # Where a reader starts; None is the earliest message. It moves as messages arrive.
        self.position = start if chunks_from is None else (*chunks_from, 0)
        # Messages before this one are joined only for the sake of later ones, and not given out.
        self._given_until = None if chunks_from is None else start
        # What a reader is to have, where other readers have the rest of the segment.
        self._wanted = wanted
        # The id of the topic that a reader is to read: another topic of the same name refuses it.
        self._topic_id = topic_id
        self._lost = lost
        self._connections = connections
        self._subscription = subscription
        self._inbox = inbox
        self._schema = None if reading.schema is None else reading.schema.info()
        self._gate: VersionGate | None = None
        if reading.schema is not None:
            self._gate = VersionGate(reading.schema, connections, topic, inbox.put, Backoff(chance))
        self._url = url
        self._ended = ended
        self._restarted = restarted
        self._may_be_gone = may_be_gone
        self._backoff = Backoff(chance, limit_s=1.0)
        self._life: _Life | None = None
        self._queued = 0
        self._is_closing = False
        self._quick = QUICK_TIMES
        self._chunks: ChunkReader | None = None
        self._living: asyncio.Task[None] | None = None
        self._refused: Exception | None = None
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        inbox.segments += 1

    def open(self) -> None:
        self._living = asyncio.create_task(self._live_or_fail())  # Awaited by `close`.

    @property
    def is_attached(self) -> bool:
        return self._life is not None

    @property
    def is_shared(self) -> bool:
        """Whether other consumers of the subscription read the segment too."""
        return bool(self._subscription.bucket_ranges)

    @property
    def passed(self) -> tuple[MessagePosition | None, tuple[int, int] | None]:
        """How far a reader has come once the application has taken everything: what lies before it is not to be read
        again, but for chunks from the second place on."""
        return self.position, None if self._chunks is None else self._chunks.first

    @property
    def queued(self) -> int:
        """Messages in the inbox."""
        return self._queued + self._inbox.ready_of(self)

    async def attached(self) -> None:
        """Returns once it has been subscribed, has ended or is closed; raises if it will never be subscribed."""
        await self._settled.wait()
        if self._refused is not None:
            raise self._refused

    # -- lives

    async def _live_or_fail(self) -> None:
        try:
            await self._live()
        except Exception as error:
            # An error of our own. The application gets it, rather than waiting for messages that never come.
            log.exception("%s: the consumer ends because of an error", self.topic)
            self._give_up(error)

    async def _live(self) -> None:
        try:
            await keep_trying(
                self._live_once, self._backoff, f"the consumer on {self.topic}", self._ends, wake=self._wake
            )
        except TopicDeleted as gone:
            log.debug("%s: the topic was deleted: %s", self.topic, gone)
            self.end()
        except AnabranchError as error:
            self._give_up(error)

    async def _live_once(self) -> None:
        """Returns once it is closed; raises if the subscription is refused or lost."""
        # A subscription that has moved is followed at once, one that moves on from there after a pause.
        for _ in range(2):
            if self._is_closing:
                return
            connection = await self._connect()
            self._life = life = await self._subscribe(connection)
            self._settled.set()
            self._backoff.reset()
            self._quick = QUICK_TIMES
            await life.over
            await self._leave(life)
            self._life = None
            self._url = life.moved_to
            if not life.moved_to:
                break
        if not self._is_closing:
            raise ConnectionLost("the subscription was lost")

    def _ends(self, error: AnabranchError) -> AnabranchError | bool:
        """The error that it fails with, TopicDeleted if the segment was deleted as planned; False if it tries again."""
        if not isinstance(error, RequestRefused):
            return isinstance(error, BadCheckpoint)
        if self._subscription.is_assigned and error.error in _HELD:
            self._hasten()
        is_new = not self._settled.is_set()
        is_first = is_new and self._subscription.is_durable
        match meaning(error, RefusedPart.NEW_SUBSCRIPTION if is_first else RefusedPart.CONSUMER):
            case Meaning.FINAL:
                return True
            # A consumer that was subscribed before waits, as those that took its place may leave.
            case Meaning.OTHER_TYPE if is_new and not self._is_passing(error):
                return self._of_other_type(error)
            case Meaning.OTHER_TOPIC:
                return reader_place.made_again(self._origin.topic)
            case Meaning.UNKNOWN_POSITION if self.position is not None:
                return reader_place.unknown(self.topic, self.position)
            case Meaning.DATA_LOST:
                return self._loss(is_gone=False) or False
            case Meaning.GONE if self._may_be_gone(self.segment):
                return self._loss(is_gone=True) or TopicDeleted(str(error))
        return False

    def _hasten(self) -> None:
        """Those who hold the segment leave it soon: the controller has told them, too."""
        if self._quick:
            self._quick -= 1
            self._backoff.hasten(QUICK_S)

    def _is_passing(self, refused: RequestRefused) -> bool:
        """Whether those of another type are members of the same group, who change as the controller tells them."""
        return self._subscription.is_assigned and not _OF_OTHERS.search(str(refused))

    def _loss(self, *, is_gone: bool) -> AnabranchError | None:
        """The error for lost data, if the segment is gone or its next data was deleted."""
        return self._lost(self, is_gone) if self._lost is not None and self._is_owed else None

    @property
    def _is_owed(self) -> bool:
        """Whether a reader may have messages left to read."""
        return self.position is not None and not self.has_ended

    def _give_up(self, error: Exception) -> None:
        """Reports that it will never be subscribed again."""
        self._refused = error
        self._settled.set()
        self._failed(error)

    def _of_other_type(self, refused: RequestRefused) -> RequestRefused:
        """The error that is raised when the consumer is opened."""
        return RequestRefused(
            refused.error,
            f"subscription {self._subscription.name} of {self._origin.topic} has consumers of another type: use their "
            f"type, or another name, or close them first. The broker says: {refused}",
        )

    async def _connect(self) -> ClientConnection:
        """Connects to the broker that was named, by the watch or by the last broker, once; else it looks the broker
        up."""
        url, self._url = self._url, ""
        return await (self._connections.to(url) if url else self._connections.owner(self.topic))

    def assigned(self, body: pb.CommandCloseConsumer) -> str:
        return self._connections.assigned(body)

    async def _subscribe(self, connection: ClientConnection) -> _Life:
        life = connection.attach(PartKind.CONSUMER, lambda number: _Life(self, connection, number))
        how = self._subscription
        fields: dict[str, Any] = {}
        if not how.is_durable:
            fields["start_message_id"] = reader_place.behind(self.position)
            owed = "earliest" if self.position is None else position_text(*self.position[:2])
            fields["metadata"] = [pb.KeyValue(key=OWED_FROM, value=owed)]
            if self._wanted is not None:
                text = hashes_text(self._wanted.ranges)
                fields["metadata"].append(pb.KeyValue(key=WANTED_HASHES, value=text))
            if self._topic_id:
                fields["metadata"].append(pb.KeyValue(key=TOPIC_ID, value=self._topic_id))
        if self._schema is not None:
            fields["schema"] = self._schema
        if how.bucket_ranges:
            fields["keySharedMeta"] = pb.KeySharedMeta(
                keySharedMode=pb.STICKY,
                hashRanges=[pb.IntRange(start=one.start, end=one.end) for one in how.bucket_ranges],
                entryBucketDispatch=True,
            )
        try:
            await ask(
                connection,
                C.SUBSCRIBE,
                "subscribe",
                topic=self.topic,
                subscription=how.name,
                subType=how.kind,
                consumer_id=life.number,
                consumer_name=how.consumer_name,
                initialPosition=pb.CommandSubscribe.Earliest if how.earliest else pb.CommandSubscribe.Latest,
                durable=how.is_durable,
                force_topic_creation=False,
                **fields,
            )
        except RequestRefused:
            life.detach()
            raise
        except BaseException:
            life.withdraw()
            raise
        try:
            if not how.is_durable and self.position is not None:
                await reader_place.check(connection, life.number, self.topic, self.position)
            self._restarted(self)
            self.acking = None
            if self.is_shared:
                await self.acks.check_shared_place(connection, life.number)
            else:
                await self.acks.check_place(connection, life.number)
        except BaseException:
            life.withdraw()
            raise
        if self._is_closing:
            life.finish()
        if not life.over.done():
            self.acking = life
            # Acknowledgements first, before the broker redelivers their messages.
            self.acks.attach(connection, life.number)
            self._refill(life)
        return life

    def life_is_over(self, life: _Life, *, by_broker: bool) -> None:
        """Drops what this life left in the inbox: a durable subscription receives everything unacknowledged again.
        `by_broker`: the broker closed it, and not because the topic has moved.

        A reader continues behind what has arrived.
        """
        if self._subscription.is_durable:
            self._drop()
            if self._chunks is not None:
                self._chunks.clear()
        self.acks.detach(is_lost=not by_broker)
        if by_broker and self.acking is life:
            self._restarted(self)
            self.acking = None
            self.acks.forget()

    def _drop(self) -> None:
        if self._gate is not None:
            self._gate.drop()
        self._inbox.drop(self)
        self._queued = 0

    async def _leave(self, life: _Life) -> None:
        """Closes the consumer at the broker, unless the broker has closed it or the connection is lost."""
        life.detach()
        if life.is_lost or life.connection.is_closed:
            return
        try:
            await ask(life.connection, C.CLOSE_CONSUMER, "close_consumer", consumer_id=life.number)
        except AnabranchError as error:
            log.debug("%s: closing the consumer failed: %s", self.topic, error)

    def stop(self) -> None:
        """From here on none of its messages reaches the application; `close` must follow."""
        if not self._is_closing:
            self._is_closing = True
            self._inbox.segments -= 1
            self._drop()

    def withdraw(self) -> None:
        """Withdraws a subscription that the broker has not granted: it may answer only when others have left. `close`
        must follow."""
        if self._life is None and self._living is not None:
            self._living.cancel()

    async def close(self) -> None:
        """Frees the segment: returns once the broker has released it, or cannot be reached.

        Acknowledgements are sent first, and are confirmed by then or given up.
        """
        self.stop()
        self.acks.close()
        self._wake.set()
        self._settled.set()
        if self._life is not None:
            self._life.finish()
        if self._living is not None:
            await asyncio.gather(self._living, return_exceptions=True)
        if self._chunks is not None:
            self._chunks.close()
        if self._gate is not None:
            await self._gate.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_MAX_S):
                await self.acks.settled()
        self.acks.give_up()

    def abort(self) -> None:
        """Stops at once, without notifying the broker."""
        self._is_closing = True
        self._drop()
        self.acks.give_up()
        if self._chunks is not None:
            self._chunks.close()
        if self._gate is not None:
            self._gate.abort()
        if self._living is not None:
            self._living.cancel()

    # -- messages

    def arrived(self, body: pb.CommandMessage, payload: memoryview, life: _Life) -> None:
        if self._is_closing:
            return
        entry = read_entry(self._origin, body, payload, self, life)
        if entry.in_batch and body.ack_set:
            entry.want(bits_of(body.ack_set))
        sent = entry.waiting
        life.window.arrived(sent)
        whole: ReceivedEntry | None = entry
        if not self._subscription.is_durable and not (self._is_news(entry) and self._may_have_wanted(entry)):
            # Brokers send the message before the first one too, and send batches whole.
            self.acks.add_until(Until(entry.ledger, entry.entry))
            whole = None
        elif entry.metadata.num_chunks_from_msg > 1:
            whole = self._put_together(entry)
        if whole is not None and self._chunks is not None:
            whole.resume = self._chunks.first
        if whole is not None and self._given_until is not None and self._was_given(whole):
            whole = None
        if whole is not None and self._wanted is not None:
            at = (whole.ledger, whole.entry)
            whole.chooses = None if self._wanted.has_all(span_of(whole.metadata), at) else self._wanted
        waiting = 0 if whole is None else whole.waiting
        if waiting < sent:
            life.window.taken(sent - waiting)
            self._refill(life)
        if whole is not None:
            self._queued += waiting
            self._put(whole)

    def _put(self, entry: ReceivedEntry) -> None:
        if self._gate is None:
            self._inbox.put(entry)
        else:
            self._gate.put(entry)

    def _put_together(self, chunk: ReceivedEntry) -> ReceivedEntry | None:
        if self._chunks is None:
            self._chunks = ChunkReader(self._put_fault, self.acks.add, self._is_idle)
        return self._chunks.add(chunk)

    def _put_fault(self, entry: ReceivedEntry) -> None:
        self._queued += 1
        self._put(entry)

    def _is_idle(self) -> bool:
        """Whether the broker could send more, and the application has taken everything."""
        return self._life is not None and not self._life.over.done() and not self.queued

    def _is_news(self, entry: ReceivedEntry) -> bool:
        """Whether an entry has messages that a reader has not had; the others are removed from it."""
        at = (entry.ledger, entry.entry)
        if self.position is not None:
            if at < self.position[:2]:
                return False
            index = self.position[2]
            if at == self.position[:2] and index:
                if index >= entry.count:
                    return False
                entry.want(reader_place.bits_from(index, entry.count))
        self.position = (entry.ledger, entry.entry + 1, 0)
        return True

    def _may_have_wanted(self, entry: ReceivedEntry) -> bool:
        """Whether an entry may have messages that a reader is to have, as far as its stamp tells."""
        return self._wanted is None or self._wanted.meets(span_of(entry.metadata))

    def _was_given(self, entry: ReceivedEntry) -> bool:
        """Whether the application had all of an entry before; messages that it had are removed from it."""
        assert self._given_until is not None
        ledger, number, index = self._given_until
        at = (entry.ledger, entry.entry)
        if at < (ledger, number) or (at == (ledger, number) and index >= entry.count):
            return True
        if at == (ledger, number) and index:
            entry.want(reader_place.bits_from(index, entry.count))
        self._given_until = None
        return False

    def taken(self, entry: ReceivedEntry, messages: int) -> None:
        """An entry left the inbox: the broker may send more."""
        self._queued -= messages
        life = self._life
        if life is not None and entry.life is life and life.window.taken(messages) and not life.over.done():
            self._refill(life)

    def ask_for_more(self) -> None:
        """The inbox has room again."""
        if self._life is not None and not self._life.over.done():
            self._refill(self._life)

    def _refill(self, life: _Life) -> None:
        if not self._inbox.has_room(self):
            life.window.shrink()
        elif (permits := life.window.refill(self._inbox.share)) and not life.connection.is_closed:
            life.connection.send(C.FLOW, "flow", consumer_id=life.number, messagePermits=permits)

    def end(self) -> None:
        self.has_ended = True
        self._settled.set()
        self._ended(self)

    # -- acknowledgements

    def redeliver(self, entries: list[ReceivedEntry]) -> None:
        """Asks for entries to be sent again, if they are of the present life: the broker resends others unasked."""
        life = self._life
        if life is None or life.over.done() or life.connection.is_closed:
            return
        places = [
            pb.MessageIdData(ledgerId=ledger, entryId=number)
            for entry in entries
            if entry.life is life
            for ledger, number in entry.chunks or ((entry.ledger, entry.entry),)
        ]
        if places:
            # The broker must not redeliver acknowledged messages of their batches.
            self.acks.send()
            life.connection.send(
                C.REDELIVER_UNACKNOWLEDGED_MESSAGES,
                "redeliverUnacknowledgedMessages",
                consumer_id=life.number,
                message_ids=places,
            )

    def ack_entry(self, entry: ReceivedEntry) -> None:
        """Acknowledges all of an entry, whichever consumer has its messages."""
        for place in entry.chunks or ((entry.ledger, entry.entry),):
            self.acks.add(place)


async def attached(segments: Iterable[SegmentConsumer]) -> None:
    """Waits for all of them, but not long: another consumer may be slow to release a segment."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ATTACH_MAX_S):
            for one in list(segments):
                await one.attached()


class _Life:
    """A segment's subscription on one connection."""

    __slots__ = ("_segment", "connection", "is_lost", "moved_to", "number", "over", "window")

    def __init__(self, segment: SegmentConsumer, connection: ClientConnection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.window = Window()
        self.is_lost = False
        self.moved_to = ""  # The broker that the last one named when it closed the subscription.
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._segment = segment

    def received(self, kind: int, body: Any, payload: memoryview | None) -> None:
        if kind == C.MESSAGE and payload is not None:
            self._segment.arrived(body, payload, self)
        elif kind == C.REACHED_END_OF_TOPIC:
            self._segment.end()
        elif kind == C.CLOSE_CONSUMER:
            self.moved_to = self._segment.assigned(body)
            self.detach()
            # A topic that moves is no reason to forget acknowledgements: its new broker gets them.
            self._over(by_broker=not self.moved_to)

    def lost(self, error: Exception) -> None:
        self._over(by_broker=False)

    def _over(self, *, by_broker: bool) -> None:
        self.is_lost = True
        self._segment.life_is_over(self, by_broker=by_broker)
        self.finish()

    def finish(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def detach(self) -> None:
        self.connection.detach(PartKind.CONSUMER, self.number)

    def withdraw(self) -> None:
        """Withdraws a subscription that does not begin. The broker may have attached it, or may do so later, and only
        this call closes it there."""
        self.detach()
        if not self.is_lost and not self.connection.is_closed:
            self.connection.tell(C.CLOSE_CONSUMER, "close_consumer", consumer_id=self.number)
