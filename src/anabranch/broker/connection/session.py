"""Data plane: one client's connection. Bytes in, publishes and requests out; answers and messages back.

The session owns the socket's flow in both directions. `reading.py` decides when reading stops; dispatch stops while the
socket's buffer is over its limit. Malformed bytes cost the peer its own connection and nothing else. `commands.py`
performs the requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from anabranch.broker.config.listeners import Addresses
from anabranch.broker.connection.early_acks import EarlyAcks
from anabranch.broker.connection.followed_ends import FollowedEnds
from anabranch.broker.connection.reading import ReadGate
from anabranch.broker.connection.request_tasks import RequestTasks
from anabranch.broker.connection.topic_list_watch import TopicListWatch
from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.errors import NotAllowedError
from anabranch.broker.peers.handshake import AcceptingHandshake
from anabranch.broker.policy.limits import BURST_BYTES
from anabranch.broker.scalable.sessions.consumer_session import ConsumerSession
from anabranch.broker.scalable.watch.dag_watch import DagWatch
from anabranch.broker.scalable.watch.namespace_watch import ServedNamespaceWatch
from anabranch.broker.security.authentication import NOBODY, Identity
from anabranch.broker.topic.producer import AttachedProducer
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

log = logging.getLogger(__name__)

SEND = pb.BaseCommand.SEND
# A peer that sends and never reads its answers or receipts is disconnected when this many times the bytes at which
# dispatch pauses are queued for it, or this many of the largest messages.
UNREAD_BUFFERS_MAX = 8
UNREAD_MESSAGES_MAX = 4
# The same for another broker.
PEER_UNREAD_BYTES_MAX = 256 << 20
PEER_ALIVE_TIMEOUT_S = 5.0
# About a millisecond's worth of small entries: a connection that sends without pause leaves others their turns.
FRAMES_PER_READ = 350
_READ_BYTES_MIN = 16 * 1024
# How many consumers of a lost connection are removed per turn: each may take a fifth of a millisecond, its entries
# more.
REMOVED_PER_TURN = 50


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The configuration of each connection."""

    message_bytes_max: int
    keep_alive_s: float
    write_buffer_bytes: int
    unanswered_publishes_max: int  # 0: no limit.


class Surroundings(Protocol):
    """What a session needs of the other connections of its broker; `ServedConnections` implements it."""

    @property
    def is_congested(self) -> bool:
        """Whether the log has so much to confirm that publishers must not be read."""

    def opened(self, session: ClientSession) -> None:
        """NotAllowedError if there are too many connections. Else it may set `excess`."""

    def became_peer(self, session: ClientSession) -> None:
        """The session is the link of another broker."""

    def closed(self, session: ClientSession) -> None: ...

    def refused(self) -> None:
        """Counts a peer that is disconnected before its handshake is done."""

    def pause(self, session: ClientSession) -> None:
        """Pauses reading from the session until the log has made progress."""


class Commands(Protocol):
    """Performs a client's commands; `Requests` implements it."""

    def perform(self, session: ClientSession, kind: int, command: pb.BaseCommand) -> None:
        """Performs the command. Raises PeerError if it breaks the protocol."""

    def connection_lost(self, session: ClientSession) -> None: ...

    def link_writable(self, session: ClientSession) -> None:
        """The client reads again: sends what its watches held back."""


class ClientSession(asyncio.BufferedProtocol):
    """Implements `ConsumerLink`, `ProducerLink` and `ScalableLink`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: SessionSettings,
        surroundings: Surroundings,
        commands: Commands,
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._surroundings = surroundings
        self._commands = commands
        self.producers: dict[int, AttachedProducer | None] = {}
        self.consumers: dict[int, AttachedConsumer | None] = {}
        # The request for each producer or consumer that is still being created. A client that gives up waiting closes
        # it and asks again with the same id, while the first request is still under way.
        self.producers_asked: dict[int, pb.CommandProducer] = {}
        self.consumers_asked: dict[int, pb.CommandSubscribe] = {}
        # Acknowledgements for consumers that are still being created.
        self.early_acks = EarlyAcks()
        # For scalable topics: watched layouts and namespaces, and consumers registered with controllers, which share
        # the id space of `consumers`.
        self.watches: dict[int, DagWatch] = {}
        self.namespace_watches: dict[int, ServedNamespaceWatch] = {}
        self.sessions: dict[int, ConsumerSession] = {}
        # Watches of lists of classic topics by pattern.
        self.topic_watches: dict[int, TopicListWatch] = {}
        # Ends of topics that the client follows.
        self.followed = FollowedEnds(loop)
        self.address = ""
        self.host = ""
        self.identity = NOBODY
        self.challenged_s: float | None = None
        # For another broker's connection: its handshake, and its id once that is done.
        self.peering: AcceptingHandshake | None = None
        self.peer = ""
        # Why the connection is one too many, unless it is another broker's.
        self.excess: NotAllowedError | None = None
        self.is_open = False
        self.is_writable = True
        self._decoder = FrameDecoder(
            frame_bytes_max=settings.message_bytes_max + FRAME_OVERHEAD_BYTES,
            frames_max=FRAMES_PER_READ,
            command_bytes_max=COMMAND_BYTES_MAX,
            command_items_max=COMMAND_ITEMS_MAX,
        )
        self.connection = Connection(
            Role.BROKER,
            now=loop.time(),
            keep_alive_s=settings.keep_alive_s,
            message_bytes_max=settings.message_bytes_max,
            decoder=self._decoder,
        )
        # asyncio asks for a buffer before each read: it gets the decoder's own.
        self._writable = self.connection.writable
        self._transport: asyncio.Transport
        self._alive: list[asyncio.Future[bool]] = []
        gate = self._gate = ReadGate(loop, settings.unanswered_publishes_max)
        # Bound methods of the gate, without a call in between: topics call the first two for each run of publishes.
        self.owes, self.answered = gate.owes, gate.answered
        self.hold, self.work_begun, self.work_ended = gate.hold, gate.work_begun, gate.work_ended
        self.pause_reading, self.resume_reading = gate.pause, gate.resume
        self._requests = RequestTasks(loop, gate)
        # Plus a burst of dispatch, which begins while the buffer has room and may end far beyond it.
        self._unread_bytes_max = BURST_BYTES + max(
            UNREAD_BUFFERS_MAX * settings.write_buffer_bytes,
            UNREAD_MESSAGES_MAX * settings.message_bytes_max,
        )

    @property
    def role(self) -> str:
        return self.identity.role

    @property
    def peer_certificate(self) -> Mapping[str, Any] | None:
        """The client certificate that TLS has verified, if any."""
        found: Mapping[str, Any] | None = self._transport.get_extra_info("peercert")
        return found

    @property
    def has_tls(self) -> bool:
        return self._transport.get_extra_info("ssl_object") is not None

    def become_peer(self, peer: str) -> None:
        """The connection belongs to the broker of that id, which is trusted with larger answers."""
        self.peer = peer
        self._surroundings.became_peer(self)
        self._unread_bytes_max = max(self._unread_bytes_max, PEER_UNREAD_BYTES_MAX)

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
        high = self._settings.write_buffer_bytes
        self._transport.set_write_buffer_limits(high=high, low=high // 4)
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if peer else "local"
        self.host = str(peer[0]) if peer else ""
        self.is_open = True
        self._gate.open(self._transport)
        try:
            self._surroundings.opened(self)
        except NotAllowedError as error:
            self.refuse(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self.is_writable = False
        self.connection.close()
        self._gate.close()
        self._requests.cancel()
        for waiter in self._alive:
            if not waiter.done():
                waiter.set_result(False)
        # First, because a client that has closed its consumers before has left, and one that still has them will
        # return.
        self._commands.connection_lost(self)
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
        self._surroundings.closed(self)

    def _remove(self, consumers: list[AttachedConsumer]) -> None:
        """Removes some in each turn: nothing is sent to the others meanwhile, as a lost connection is not writable."""
        for consumer in consumers[:REMOVED_PER_TURN]:
            consumer.subscription.remove_consumer(consumer)
        if rest := consumers[REMOVED_PER_TURN:]:
            self._loop.call_soon(self._remove, rest)

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
            for frame in self.connection.received(nbytes, self._loop.time()):
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
                self._commands.perform(self, frame[0], frame[1])
            if sends:
                self._publish(sends)
        except PeerError as error:
            self.refuse(error)
            return
        if self._decoder.was_filled:
            self._gate.rest()
        if owed := self.connection.to_send():
            self._transport.write(owed)
        if self._surroundings.is_congested:
            self._surroundings.pause(self)
        if not self.is_writable:
            self._check_unread()

    def _publish(self, sends: list[Frame]) -> None:
        producer = self.producers.get(sends[0][1])
        # A SEND may still be on its way when its producer is closed: the client sends it again.
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
        if self.namespace_watches or self.topic_watches:
            self._commands.link_writable(self)

    @property
    def read_bytes(self) -> int:
        """The most bytes that the next read may bring."""
        return max(self._decoder.buffer_bytes, _READ_BYTES_MIN)

    @property
    def owes_too_much(self) -> bool:
        """Whether reading is paused because too many publishes are unanswered."""
        return self._gate.owes_too_much

    def refuse(self, error: AnabranchError) -> None:
        """The peer broke the protocol: sends it the error if the connection is still open, and disconnects it."""
        log.warning("closing connection from %s: %s", self.address, error, extra={"client": self.address})
        if self.connection.state in (State.START, State.HANDSHAKE):
            self._surroundings.refused()
        if self.is_open and self.connection.state is not State.CLOSED:
            self._transport.write(self.connection.refuse(error.code or pb.UnknownError, str(error)))
            self.close()

    def close(self) -> None:
        if self.is_open:
            self._transport.close()
            # A peer that never reads would keep a closing transport, and its buffer, forever.
            self._loop.call_later(5, self._transport.abort)

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
        beat = self.connection.tick(now, reading=self._gate.is_reading)
        if beat is Beat.DEAD:
            log.info("closing connection from %s: it does not answer", self.address)
            self.abort()
        elif beat is Beat.PROBE:
            self.write((self.connection.to_send(),))

    async def is_alive(self) -> bool:
        if not self.is_open:
            return False
        waiter = self._loop.create_future()
        self._alive.append(waiter)
        self.write((PING_FRAME,))
        try:
            return await asyncio.wait_for(waiter, PEER_ALIVE_TIMEOUT_S)
        except TimeoutError:
            if not self._gate.is_reading:
                # The peer's answer may be waiting to be read.
                return True
            self.abort()
            return False

    # -- requests

    def spawn(self, request_id: int, work: Coroutine[Any, Any, None]) -> bool:
        """Runs a request that has to wait. Its failure is answered; it ends with the connection.

        Answers with an error and returns False if too many wait already."""
        return self._requests.start(self, request_id, work)

    def awaits_producer(self, producer: AttachedProducer) -> bool:
        return self.producers_asked.get(producer.id) is producer.asked

    def attach_producer(self, producer: AttachedProducer) -> None:
        self.producers_asked.pop(producer.id, None)
        self.producers[producer.id] = producer

    # -- closing by the broker

    def producer_closed(self, producer: AttachedProducer, moved_to: Addresses | None = None) -> None:
        producer.is_closed = True
        if self.producers.get(producer.id) is producer:
            del self.producers[producer.id]
        command = pb.BaseCommand(type=pb.BaseCommand.CLOSE_PRODUCER)
        command.close_producer.producer_id = producer.id
        command.close_producer.request_id = 0xFFFFFFFFFFFFFFFF
        _name_owner(command.close_producer, moved_to)
        self.send(command)

    def consumer_closed(self, consumer: AttachedConsumer, moved_to: Addresses | None = None) -> None:
        if self.consumers.get(consumer.id) is consumer:
            del self.consumers[consumer.id]
        command = pb.BaseCommand(type=pb.BaseCommand.CLOSE_CONSUMER)
        command.close_consumer.consumer_id = consumer.id
        command.close_consumer.request_id = 0xFFFFFFFFFFFFFFFF
        _name_owner(command.close_consumer, moved_to)
        self.send(command)


def _name_owner(close: pb.CommandCloseProducer | pb.CommandCloseConsumer, moved_to: Addresses | None) -> None:
    """Names the topic's new broker, to which clients then go without a lookup. Clients take the address that fits their
    own connection, with or without TLS, and look the topic up if there is none; older ones ignore both."""
    if moved_to is not None:
        if moved_to.service_url:
            close.assignedBrokerServiceUrl = moved_to.service_url
        if moved_to.service_url_tls:
            close.assignedBrokerServiceUrlTls = moved_to.service_url_tls
