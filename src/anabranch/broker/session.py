"""Data plane: one client's connection. Bytes in, publishes and requests out; answers and messages back.

The session owns the socket's flow in both directions. Reading stops while the log has too much unconfirmed; dispatch
stops while the socket's buffer is over its limit. Garbage costs the peer its own connection and nothing else.
What each request means is in `requests.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from anabranch.broker.authentication import Identity
from anabranch.broker.consumer import Consumer
from anabranch.broker.dispatch.base import BURST_BYTES
from anabranch.broker.early_acks import EarlyAcks
from anabranch.broker.errors import NotAllowedError
from anabranch.broker.followed_ends import FollowedEnds
from anabranch.broker.producer import Producer
from anabranch.broker.sign_in import NOBODY
from anabranch.errors import AnabranchError, PeerError
from anabranch.storage.port import Buffer
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.connection import PING_FRAME, Beat, Connection, Role, State
from anabranch.wire.encode import encode_command
from anabranch.wire.frames import (
    COMMAND_BYTES_MAX,
    COMMAND_ITEMS_MAX,
    FRAME_OVERHEAD_BYTES,
    Frame,
    FrameDecoder,
)

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.scalable.consumer_sessions import ConsumerSession
    from anabranch.broker.scalable.dag_watch import DagWatch
    from anabranch.broker.scalable.namespace_watch import NamespaceWatch
    from anabranch.broker.topic_lists import TopicListWatch

log = logging.getLogger(__name__)

SEND = pb.BaseCommand.SEND
# A peer that sends and never reads its answers or receipts is cut off when this many times the bytes at which dispatch
# pauses are queued for it, or this many of the largest messages.
UNREAD_BUFFERS_MAX = 8
UNREAD_MESSAGES_MAX = 4
PEER_ALIVE_TIMEOUT_S = 5.0
# For unanswered publishes, and never past the keep-alive: pings, acks and flow share the socket with them.
PAUSE_MAX_S = 5.0
# Requests under way on one connection: at the first number it is not read until half of them are answered. What one
# read has brought is still started, up to the second.
REQUESTS_HIGH = 1_000
REQUESTS_MAX = 20_000
# About a millisecond's worth of small entries: a connection that never pauses leaves others their turns.
FRAMES_PER_READ = 350
_READ_BYTES_MIN = 16 * 1024
# Consumers of a lost connection: each may take a fifth of a millisecond, and its entries more.
REMOVED_PER_TURN = 50


class Session(asyncio.BufferedProtocol):
    """Implements `ConsumerLink` and `ProducerLink`."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.producers: dict[int, Producer | None] = {}
        self.consumers: dict[int, Consumer | None] = {}
        # The request by which each one that is still being made was asked for. A client that waits no longer closes it
        # and asks again with the same id, and the one that it gave up is still on its way.
        self.producers_asked: dict[int, pb.CommandProducer] = {}
        self.consumers_asked: dict[int, pb.CommandSubscribe] = {}
        # For consumers that are still being made.
        self.early_acks = EarlyAcks()
        # Of scalable topics: layouts and namespaces that are watched, and consumers registered with controllers, which
        # share the id space of `consumers`.
        self.watches: dict[int, DagWatch] = {}
        self.namespace_watches: dict[int, NamespaceWatch] = {}
        self.sessions: dict[int, ConsumerSession] = {}
        # Lists of classic topics by pattern.
        self.topic_watches: dict[int, TopicListWatch] = {}
        # Ends of topics that are told as they move.
        self.followed = FollowedEnds(broker.loop)
        self.address = ""
        self.host = ""
        self.identity = NOBODY
        self.challenged_s: float | None = None
        self.is_open = False
        self.is_writable = True
        self._decoder = FrameDecoder(
            frame_bytes_max=broker.config.max_message_size + FRAME_OVERHEAD_BYTES,
            frames_max=FRAMES_PER_READ,
            command_bytes_max=COMMAND_BYTES_MAX,
            command_items_max=COMMAND_ITEMS_MAX,
        )
        self.connection = Connection(
            Role.BROKER,
            now=broker.loop.time(),
            keep_alive_s=broker.config.keep_alive_interval_seconds,
            message_bytes_max=broker.config.max_message_size,
            decoder=self._decoder,
        )
        # asyncio asks for a buffer before each read: straight to the decoder's own.
        self._writable = self.connection.writable
        self._transport: asyncio.Transport
        self._tasks: dict[asyncio.Task[None], None] = {}  # In the order of asking.
        self._alive: list[asyncio.Future[bool]] = []
        # Reasons not to read: the log has too much unconfirmed, too many of this connection's own publishes are
        # unanswered, too many requests are under way, a topic's rate is exceeded, it is the turn of others, or
        # a command is dealt with in several turns.
        self._is_paused = False
        self._is_busy = False
        self._is_held = False
        self._is_resting = False
        self._works = 0
        self.owes_too_much = False
        self._owed = 0
        self._owed_timer: asyncio.TimerHandle
        self._owed_max = broker.config.max_pending_publish_requests_per_connection
        self._is_reading = True
        # And a burst of dispatch, which begins while the buffer has room and may end far beyond it.
        self._unread_bytes_max = BURST_BYTES + max(
            UNREAD_BUFFERS_MAX * broker.config.connection_write_buffer_bytes,
            UNREAD_MESSAGES_MAX * broker.config.max_message_size,
        )

    @property
    def role(self) -> str:
        return self.identity.role

    @property
    def peer_certificate(self) -> Mapping[str, Any] | None:
        """What TLS has verified of the client, if it has."""
        found: Mapping[str, Any] | None = self._transport.get_extra_info("peercert")
        return found

    @property
    def has_tls(self) -> bool:
        return self._transport.get_extra_info("ssl_object") is not None

    def sign_in(self, identity: Identity) -> None:
        self.identity = identity
        self.challenged_s = None

    @property
    def client_version(self) -> str:
        return self.connection.peer_name

    # -- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface of asyncio.Transport without being one.
        self._transport = cast(asyncio.Transport, transport)
        high = self.broker.config.connection_write_buffer_bytes
        self._transport.set_write_buffer_limits(high=high, low=high // 4)
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if peer else "local"
        self.host = str(peer[0]) if peer else ""
        self.is_open = True
        try:
            self.broker.session_opened(self)
        except NotAllowedError as error:
            self.refuse(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self.is_writable = False
        self.connection.close()
        for task in list(self._tasks):
            task.cancel()
        for waiter in self._alive:
            if not waiter.done():
                waiter.set_result(False)
        # First: whoever has closed its consumers before has left, whoever has them still will come back.
        self.broker.requests.scalable.connection_lost(self)
        self.broker.requests.topic_lists.connection_lost(self)
        producers = [p for p in self.producers.values() if p is not None]
        consumers = [c for c in self.consumers.values() if c is not None]
        self.producers.clear()
        self.consumers.clear()
        self.producers_asked.clear()
        self.consumers_asked.clear()
        for producer in producers:
            producer.is_closed = True
            if producer.topic is not None:
                producer.topic.attached.remove(producer)
        self._remove(consumers)
        self.broker.session_closed(self)

    def _remove(self, consumers: list[Consumer]) -> None:
        """Some in each turn: nothing is sent to the others meanwhile, as a connection that is lost is not writable."""
        for consumer in consumers[:REMOVED_PER_TURN]:
            consumer.subscription.remove_consumer(consumer)
        if rest := consumers[REMOVED_PER_TURN:]:
            self.broker.loop.call_soon(self._remove, rest)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._writable()

    def buffer_updated(self, nbytes: int) -> None:
        if self._alive:
            for waiter in self._alive:
                if not waiter.done():
                    waiter.set_result(True)
            self._alive.clear()
        try:
            sends: list[Frame] = []
            for frame in self.connection.received(nbytes, self.broker.loop.time()):
                if frame[0] == SEND:
                    # A run of one producer is published at once: that halves the cost of small messages.
                    if sends and sends[0][1] != frame[1]:
                        self._publish(sends)
                        sends = []
                    sends.append(frame)
                    continue
                if sends:
                    self._publish(sends)
                    sends = []
                self.broker.requests.perform(self, frame[0], frame[1])
            if sends:
                self._publish(sends)
        except PeerError as error:
            self.refuse(error)
            return
        if self._decoder.was_filled:
            self._rest()
        if owed := self.connection.to_send():
            self._transport.write(owed)
        if not self._is_paused and self.broker.is_congested:
            self.broker.pause(self)
        if not self.is_writable:
            self._check_unread()

    def _publish(self, sends: list[Frame]) -> None:
        producer = self.producers.get(sends[0][1])
        # A SEND may still be on its way when its producer has been closed: the client sends it again.
        if producer is not None and not producer.is_closed:
            assert producer.topic is not None
            producer.topic.publish(producer, sends)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        for subscription in dict.fromkeys(c.subscription for c in self.consumers.values() if c is not None):
            subscription.link_writable(self)
        if self.namespace_watches:
            self.broker.requests.scalable.link_writable(self)
        if self.topic_watches:
            self.broker.requests.topic_lists.link_writable(self)

    def pause_reading(self) -> None:
        self._is_paused = True
        self._read_or_not()

    def resume_reading(self) -> None:
        self._is_paused = False
        self._read_or_not()

    @property
    def read_bytes(self) -> int:
        """How much its next read may bring."""
        return max(self._decoder.buffer_bytes, _READ_BYTES_MIN)

    def hold(self, seconds: float) -> None:
        if not self._is_held:
            self._is_held = True
            self._read_or_not()
            self.broker.loop.call_later(seconds, self._let_go)

    def owes(self, count: int) -> None:
        self._owed += count
        if self._owed > self._owed_max > 0 and not self.owes_too_much:
            self.owes_too_much = True
            self._read_or_not()
            self._owed_timer = self.broker.loop.call_later(PAUSE_MAX_S, self._read_on)

    def answered(self, count: int) -> None:
        self._owed -= count
        if self.owes_too_much and self._owed * 2 <= self._owed_max:
            self._read_on()

    def _read_on(self) -> None:
        self._owed_timer.cancel()
        self.owes_too_much = False
        self._read_or_not()

    def _rest(self) -> None:
        """Gives others a turn: where more is waiting, the loop would read it dozens of times in a row."""
        if not self._is_resting:
            self._is_resting = True
            self._read_or_not()
            self.broker.loop.call_soon(self._rested)

    def _rested(self) -> None:
        self._is_resting = False
        self._read_or_not()

    def work_begun(self) -> None:
        self._works += 1
        if self._works == 1:
            # Most work ends in the turn in which it has begun.
            self.broker.loop.call_soon(self._read_or_not)

    def work_ended(self) -> None:
        self._works -= 1
        if not self._works:
            self._read_or_not()

    def _let_go(self) -> None:
        self._is_held = False
        self._read_or_not()

    def _read_or_not(self) -> None:
        wanted = not (
            self._is_paused
            or self._is_busy
            or self._is_held
            or self._is_resting
            or self._works
            or self.owes_too_much
        )
        if self.is_open and wanted is not self._is_reading:
            self._is_reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def refuse(self, error: AnabranchError) -> None:
        """The peer broke the protocol: it is told why if it can still listen, and disconnected."""
        log.warning("closing connection from %s: %s", self.address, error, extra={"client": self.address})
        if self.connection.state in (State.START, State.HANDSHAKE):
            self.broker.connections_refused += 1
        if self.is_open and self.connection.state is not State.CLOSED:
            self._transport.write(self.connection.refuse(error.code or pb.UnknownError, str(error)))
            self.close()

    def close(self) -> None:
        if self.is_open:
            self._transport.close()
            # A peer that never reads would keep a closing transport, and its buffer, forever.
            self.broker.loop.call_later(5, self._transport.abort)

    def abort(self) -> None:
        if self.is_open:
            self._transport.abort()

    # -- sending

    def write(self, pieces: Sequence[Buffer]) -> None:
        if self.is_open:
            self._transport.writelines(pieces)
            if not self.is_writable:
                self._check_unread()

    def send(self, command: pb.BaseCommand) -> None:
        if self.is_open:
            self._transport.write(encode_command(command))
            if not self.is_writable:
                self._check_unread()

    def _check_unread(self) -> None:
        if self.is_open and self._transport.get_write_buffer_size() > self._unread_bytes_max:
            log.warning(
                "closing connection from %s: it does not read what it is sent",
                self.address,
                extra={"client": self.address},
            )
            self.abort()

    def send_error(self, request_id: int, error: BaseException) -> None:
        command = pb.BaseCommand(type=pb.BaseCommand.ERROR)
        command.error.request_id = request_id & 0xFFFFFFFFFFFFFFFF
        command.error.error = getattr(error, "code", None) or pb.UnknownError
        command.error.message = str(error) or type(error).__name__
        self.send(command)

    def send_success(self, request_id: int) -> None:
        command = pb.BaseCommand(type=pb.BaseCommand.SUCCESS)
        command.success.request_id = request_id
        self.send(command)

    def tick(self, now: float) -> None:
        """Probes a silent peer and gives up on one that stays silent."""
        beat = self.connection.tick(now, reading=self._is_reading)
        if beat is Beat.DEAD:
            log.info("closing connection from %s: it does not answer", self.address)
            self.abort()
        elif beat is Beat.PROBE:
            self.write((self.connection.to_send(),))

    async def is_alive(self) -> bool:
        if not self.is_open:
            return False
        waiter = self.broker.loop.create_future()
        self._alive.append(waiter)
        self.write((PING_FRAME,))
        try:
            return await asyncio.wait_for(waiter, PEER_ALIVE_TIMEOUT_S)
        except TimeoutError:
            if not self._is_reading:
                # Its answer may be waiting to be read.
                return True
            self.abort()
            return False

    # -- requests

    def spawn(self, request_id: int, work: Coroutine[Any, Any, None]) -> bool:
        """Runs a request that has to wait. Its failure is answered; it ends with the connection.

        False, and it is answered so, if too many wait already."""
        if len(self._tasks) >= REQUESTS_MAX:
            work.close()
            error = pb.BaseCommand(type=pb.BaseCommand.ERROR)
            error.error.request_id = request_id
            error.error.error = pb.TooManyRequests
            error.error.message = f"more than {REQUESTS_MAX} requests are waiting on this connection"
            self.send(error)
            return False
        # Held in `_tasks` and cancelled by `connection_lost`.
        task = self.broker.loop.create_task(self._run(request_id, work))
        self._tasks[task] = None
        task.add_done_callback(self._request_done)
        # A connection that is lost at once ends it before it has begun, and then nobody waits for the work.
        task.add_done_callback(lambda _: work.close())
        if not self._is_busy and len(self._tasks) >= REQUESTS_HIGH:
            self._is_busy = True
            self._read_or_not()
        return True

    def _request_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if self._is_busy and len(self._tasks) * 2 <= REQUESTS_HIGH:
            self._is_busy = False
            self._read_or_not()

    async def _run(self, request_id: int, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except AnabranchError as error:
            client = {"client": self.address}
            log.info("request %s from %s refused: %s", request_id, self.address, error, extra=client)
            self.send_error(request_id, error)
        except Exception as error:
            log.exception("request %s from %s failed", request_id, self.address)
            self.send_error(request_id, error)

    def awaits_producer(self, producer: Producer) -> bool:
        return self.producers_asked.get(producer.id) is producer.asked

    def attach_producer(self, producer: Producer) -> None:
        self.producers_asked.pop(producer.id, None)
        self.producers[producer.id] = producer

    # -- what the broker closes

    def producer_closed(self, producer: Producer) -> None:
        producer.is_closed = True
        if self.producers.get(producer.id) is producer:
            del self.producers[producer.id]
        command = pb.BaseCommand(type=pb.BaseCommand.CLOSE_PRODUCER)
        command.close_producer.producer_id = producer.id
        command.close_producer.request_id = 0xFFFFFFFFFFFFFFFF
        self.send(command)

    def consumer_closed(self, consumer: Consumer) -> None:
        if self.consumers.get(consumer.id) is consumer:
            del self.consumers[consumer.id]
        command = pb.BaseCommand(type=pb.BaseCommand.CLOSE_CONSUMER)
        command.close_consumer.consumer_id = consumer.id
        command.close_consumer.request_id = 0xFFFFFFFFFFFFFFFF
        self.send(command)
