"""One segment's part of a consumer: subscribed where the segment is served, again after each loss, until it is closed.

Messages go into the inbox that all segments of a consumer share. Each new subscription starts a new life: what earlier
lives left in the inbox is dropped, because the broker sends it again, and after a seek it may be something else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from anabranch.client.connection import ClientConnection, PartKind
from anabranch.client.connections import Backoff, Connections, ask
from anabranch.client.errors import ConnectionLost, RequestRefused
from anabranch.client.message import Message, signed, take_apart
from anabranch.errors import AnabranchError
from anabranch.model.segments import SegmentId
from anabranch.wire import pulsar_pb2 as pb

log = logging.getLogger(__name__)

C = pb.BaseCommand

RECEIVE_QUEUE: Final = 500
# Where a reader of everything starts.
BEFORE_ALL: Final = (-1, -1, -1)
ATTACH_MAX_S: Final = 2.0
_WHOLE_ENTRY: Final = 2**31 - 1
_UNSIGNED: Final = (1 << 64) - 1
# Coming back will not help.
FINAL_ERRORS: Final = frozenset({pb.AuthenticationError, pb.AuthorizationError, pb.InvalidTopicName})


@dataclass(frozen=True, slots=True)
class Subscription:
    """How a consumer subscribes to each of its segments. Not durable: a reader that starts behind a position."""

    name: str
    kind: int
    consumer_name: str
    earliest: bool = False
    is_durable: bool = True


class Inbox:
    """What the segments of one consumer have received and its application has not yet taken, in order of arrival."""

    def __init__(self) -> None:
        self.arrived = 0
        self._items: deque[tuple[SegmentConsumer, _Life, Message] | Exception] = deque()
        self._something = asyncio.Event()

    def put(self, segment: SegmentConsumer, life: _Life, message: Message) -> None:
        self._items.append((segment, life, message))
        self._something.set()

    def fail(self, error: Exception) -> None:
        """`take` raises it once everything before it is taken, and from then on."""
        self._items.append(error)
        self._something.set()

    def wake(self) -> None:
        self._something.set()

    def _next(self) -> tuple[SegmentConsumer, Message] | None:
        while self._items:
            first = self._items[0]
            if isinstance(first, Exception):
                raise first
            self._items.popleft()
            segment, life, message = first
            segment.queued -= 1
            if segment.is_current(life):
                return segment, message
        return None

    async def take(self, idle: Callable[[], None] = lambda: None) -> tuple[SegmentConsumer, Message]:
        """The next message and its segment. `idle` is called whenever there is none yet."""
        while True:
            found = self._next()
            if found is not None:
                found[0].taken()
                return found
            idle()
            self._something.clear()
            await self._something.wait()


class SegmentConsumer:
    """`open` starts it. It calls `restarted` at each new life, and `ended` once the segment is sealed and acknowledged
    to its end, or gone."""

    def __init__(
        self,
        connections: Connections,
        segment: SegmentId,
        topic: str,
        shown_topic: str,
        subscription: Subscription,
        inbox: Inbox,
        *,
        chance: random.Random,
        url: str = "",
        start: tuple[int, int, int] | None = None,
        ended: Callable[[SegmentConsumer], None] = lambda _: None,
        restarted: Callable[[SegmentConsumer], None] = lambda _: None,
        may_be_gone: Callable[[SegmentId], bool] = lambda _: False,
    ) -> None:
        self.segment = segment
        self.topic = topic
        self.has_ended = False
        self.queued = 0  # Messages in the inbox, those that will be dropped there included.
        # Behind which message a reader starts: (ledger, entry, batch index). Moves as messages arrive.
        self._start = start
        self._shown_topic = shown_topic
        self._connections = connections
        self._subscription = subscription
        self._inbox = inbox
        self._url = url
        self._ended = ended
        self._restarted = restarted
        self._may_be_gone = may_be_gone
        self._backoff = Backoff(chance, limit_s=1.0)
        self._life: _Life | None = None
        self._is_closing = False
        self._living: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()

    def open(self) -> None:
        self._living = asyncio.create_task(self._live())  # Awaited by `close`.

    @property
    def is_attached(self) -> bool:
        return self._life is not None

    async def attached(self) -> None:
        """Returns once it has been subscribed, has ended or is closed."""
        await self._settled.wait()

    def is_current(self, life: _Life) -> bool:
        """Whether messages of that life are still to be given to the application.

        A reader goes on behind what has arrived; a durable subscription is sent everything not acknowledged again.
        """
        return not self._is_closing and (life is self._life or not self._subscription.is_durable)

    # -- lives

    async def _live(self) -> None:
        while not self._is_closing:
            try:
                connection = await self._connect()
                self._life = await self._subscribe(connection)
                self._settled.set()
                self._backoff.reset()
                await self._life.over
            except RequestRefused as refused:
                if refused.error in FINAL_ERRORS:
                    self._inbox.fail(refused)
                    return
                if refused.error == pb.TopicNotFound and self._may_be_gone(self.segment):
                    log.debug("%s is gone: %s", self.topic, refused)
                    self.end()
                    return
                log.debug("consumer on %s refused, tried again: %s", self.topic, refused)
            except AnabranchError as error:
                log.debug("consumer on %s tried again: %s", self.topic, error)
            if self._life is not None:
                await self._leave(self._life)
                self._life = None
            if not self._is_closing:
                await self._pause()

    async def _pause(self) -> None:
        """A back-off that `close` cuts short."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._backoff.next_s()):
                await self._wake.wait()

    async def _connect(self) -> ClientConnection:
        """The broker the watch named is tried once; after that, lookups."""
        url, self._url = self._url, ""
        return await (self._connections.to(url) if url else self._connections.owner(self.topic))

    async def _subscribe(self, connection: ClientConnection) -> _Life:
        life = connection.attach(PartKind.CONSUMER, lambda number: _Life(self, connection, number))
        how = self._subscription
        fields: dict[str, Any] = {}
        if not how.is_durable and self._start is not None:
            ledger, entry, index = self._start
            fields["start_message_id"] = pb.MessageIdData(
                ledgerId=ledger & _UNSIGNED, entryId=entry & _UNSIGNED, batch_index=index
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
            if not how.is_durable and self._start is None:
                await self._remember_start(life)
        except BaseException:
            life.detach()
            raise
        if self._is_closing:
            life.finish()
        self._restarted(self)
        if not life.over.done():
            life.flow(RECEIVE_QUEUE)
        return life

    async def _remember_start(self, life: _Life) -> None:
        """A reader that starts at the latest message must come back to the same place."""
        answer = await ask(
            life.connection, C.GET_LAST_MESSAGE_ID, "getLastMessageId", consumer_id=life.number
        )
        at = answer.consumer_mark_delete_position
        self._start = (signed(at.ledgerId), signed(at.entryId), _WHOLE_ENTRY)

    async def _leave(self, life: _Life) -> None:
        """Tells the broker, if it does not know."""
        life.detach()
        if life.is_lost or life.connection.is_closed:
            return
        try:
            await ask(life.connection, C.CLOSE_CONSUMER, "close_consumer", consumer_id=life.number)
        except AnabranchError as error:
            log.debug("closing the consumer on %s: %s", self.topic, error)

    async def close(self) -> None:
        """Frees the segment: returns once the broker has let go of it, or cannot be reached."""
        self._is_closing = True
        self._wake.set()
        self._settled.set()
        if self._life is not None:
            self._life.finish()
        if self._living is not None:
            await asyncio.gather(self._living, return_exceptions=True)

    def abort(self) -> None:
        """Without a word."""
        self._is_closing = True
        if self._living is not None:
            self._living.cancel()

    # -- messages

    def take_apart(self, body: pb.CommandMessage, payload: memoryview, life: _Life) -> None:
        try:
            messages = take_apart(
                self._shown_topic, body, payload, segment=self.segment, number=self._inbox.arrived
            )
        except (AnabranchError, ValueError) as error:
            self._inbox.fail(error)
            return
        self._inbox.arrived += len(messages)
        for message in messages:
            at = (message.ledger, message.entry, message.index)
            if not self._subscription.is_durable:
                if self._start is not None and at <= self._start:
                    # Brokers send the message to start behind too, and batches whole.
                    life.permits += 1
                    if message.is_last_of_entry:
                        self.tell_ack(message.ledger, message.entry)
                    continue
                self._start = at
            self.queued += 1
            self._inbox.put(self, life, message)

    def taken(self) -> None:
        """One message left the inbox: the broker may send another."""
        life = self._life
        if life is None or life.over.done():
            return
        life.permits += 1
        if life.permits >= RECEIVE_QUEUE // 2:
            life.flow(life.permits)
            life.permits = 0

    def end(self) -> None:
        self.has_ended = True
        self._settled.set()
        self._ended(self)

    def tell_ack(self, ledger: int, entry: int) -> None:
        """Acknowledges everything up to an entry without waiting for an answer; lost if there is no connection."""
        life = self._life
        if life is not None and not life.over.done() and not life.connection.is_closed:
            life.connection.send(C.ACK, "ack", **_ack(life.number, ledger, entry, is_cumulative=True))

    async def ack(self, ledger: int, entry: int, *, is_cumulative: bool) -> bool:
        """Whether the broker has stored it. If not, the message comes again."""
        life = self._life
        if life is None or life.over.done():
            return False
        try:
            await ask(life.connection, C.ACK, "ack", **_ack(life.number, ledger, entry, is_cumulative))
        except AnabranchError as error:
            log.debug("ack on %s: %s", self.topic, error)
            return False
        return True


async def attached(segments: Iterable[SegmentConsumer]) -> None:
    """Waits for all of them, but not long: a segment may be held by somebody who is slow to let go."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ATTACH_MAX_S):
            for one in list(segments):
                await one.attached()


class _Life:
    """A segment's subscription on one connection."""

    def __init__(self, segment: SegmentConsumer, connection: ClientConnection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.permits = 0
        self.is_lost = False
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._segment = segment

    def flow(self, permits: int) -> None:
        if not self.connection.is_closed:
            self.connection.send(C.FLOW, "flow", consumer_id=self.number, messagePermits=permits)

    def received(self, kind: int, body: Any, payload: memoryview | None) -> None:
        if kind == C.MESSAGE and payload is not None:
            self._segment.take_apart(body, payload, self)
        elif kind == C.REACHED_END_OF_TOPIC:
            self._segment.end()
        elif kind == C.CLOSE_CONSUMER:
            self.detach()
            self.lost(ConnectionLost("the broker closed the consumer"))

    def lost(self, error: Exception) -> None:
        self.is_lost = True
        self.finish()

    def finish(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def detach(self) -> None:
        self.connection.detach(PartKind.CONSUMER, self.number)


def _ack(consumer: int, ledger: int, entry: int, is_cumulative: bool) -> dict[str, Any]:
    return {
        "consumer_id": consumer,
        "ack_type": pb.CommandAck.Cumulative if is_cumulative else pb.CommandAck.Individual,
        "message_id": [pb.MessageIdData(ledgerId=ledger, entryId=entry)],
    }
