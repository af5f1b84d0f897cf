"""A client's end of one connection: matches requests with their answers, and passes everything else to its owner.

It never reconnects: a lost connection fails its requests and parts, and its owner decides what to do then.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final, Protocol, TypeVar, cast
from urllib.parse import urlsplit

from anabranch.client.errors import AccessFailed, ConnectionLost, ConnectRefused, refusal
from anabranch.client.security import NOBODY, TLS_SCHEME, Security
from anabranch.errors import PeerError
from anabranch.version import __version__
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.connection import Beat, Connection, Role
from anabranch.wire.frames import Buffer, Frame

C = pb.BaseCommand
log = logging.getLogger(__name__)

DEFAULT_PORTS = {"pulsar": 6650, TLS_SCHEME: 6651}
CONNECT_MAX_S = 10.0
TICK_S = 5.0
WRITE_BUFFER_BYTES = 1 << 20


class PartKind(Enum):
    """The kinds of parts on a connection. A consumer's registration with a controller counts as a consumer, as its id
    does."""

    PRODUCER = "producer_id"
    CONSUMER = "consumer_id"
    WATCH = "session_id"
    NAMESPACE_WATCH = "watch_id"


class ConnectionPart(Protocol):
    """A producer, consumer or watch of this connection."""

    def received(self, kind: int, body: Any, payload: memoryview | None) -> None: ...

    def lost(self, error: Exception) -> None: ...


P = TypeVar("P", bound=ConnectionPart)

# Commands that answer no request but are for one of the parts: (field of the command, name of the part's id in it).
_TO_PART = {
    C.SEND_RECEIPT: ("send_receipt", PartKind.PRODUCER.value),
    C.SEND_ERROR: ("send_error", PartKind.PRODUCER.value),
    C.CLOSE_PRODUCER: ("close_producer", PartKind.PRODUCER.value),
    C.MESSAGE: ("message", PartKind.CONSUMER.value),
    C.CLOSE_CONSUMER: ("close_consumer", PartKind.CONSUMER.value),
    C.REACHED_END_OF_TOPIC: ("reachedEndOfTopic", PartKind.CONSUMER.value),
    C.ACTIVE_CONSUMER_CHANGE: ("active_consumer_change", PartKind.CONSUMER.value),
    C.SCALABLE_TOPIC_ASSIGNMENT_UPDATE: ("scalableTopicAssignmentUpdate", PartKind.CONSUMER.value),
    C.SCALABLE_TOPIC_UPDATE: ("scalableTopicUpdate", PartKind.WATCH.value),
    C.WATCH_SCALABLE_TOPICS_UPDATE: ("watchScalableTopicsUpdate", PartKind.NAMESPACE_WATCH.value),
}
# The commands that close a part at the broker.
_CLOSING = {
    PartKind.PRODUCER.value: (C.CLOSE_PRODUCER, "close_producer"),
    PartKind.CONSUMER.value: (C.CLOSE_CONSUMER, "close_consumer"),
}
_MESSAGE: Final[int] = C.MESSAGE
_ANSWERS = {
    field.number: field.name
    for field in C.DESCRIPTOR.fields
    if field.number not in _TO_PART
    and field.message_type is not None
    and "request_id" in field.message_type.fields_by_name
}


def host_and_port(service_url: str) -> tuple[str, int]:
    try:
        url = urlsplit(service_url)
        host, port = url.hostname, url.port
    except ValueError:  # Such as an invalid port.
        host = port = None
    if not host or url.scheme not in DEFAULT_PORTS:
        raise ConnectionLost(f"{service_url!r} is no service URL: expected pulsar://host:port")
    return host, port or DEFAULT_PORTS[url.scheme]


class ClientConnection(asyncio.BufferedProtocol):
    """Made by `open`. Bound to the loop it was opened on."""

    def __init__(self, security: Security = NOBODY, proof: bytes = b"", broker: str = "") -> None:
        """`broker`: the `host:port` of the broker that is meant, where another one accepts the connection."""
        self._loop = asyncio.get_running_loop()
        self._security = security
        self._proof = proof
        self._broker = broker
        self._wire = Connection(Role.CLIENT, now=self._loop.time(), is_of_peer=security.is_of_peer)
        self._transport: asyncio.Transport
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._next_request = 0
        self._parts: dict[int, ConnectionPart] = {}  # Numbers are unique over all kinds.
        self._next_part = 0
        self._connected: asyncio.Future[None] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._writable = asyncio.Event()
        self._writable.set()
        # Called once the socket accepts more.
        self._held_back: list[Callable[[], None]] = []
        self._ticking: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls, service_url: str, security: Security = NOBODY, *, through: str = ""
    ) -> ClientConnection:
        """`through`: the service URL to connect to instead, where the broker of `service_url` is asked for by name."""
        broker = urlsplit(service_url).netloc if through else ""
        service_url = through or service_url
        host, port = host_and_port(service_url)
        loop = asyncio.get_running_loop()
        tls = security.tls() if urlsplit(service_url).scheme == TLS_SCHEME else None
        # Once, and here: the caller must get its errors, which a callback would lose.
        proof = security.proof()
        try:
            async with asyncio.timeout(CONNECT_MAX_S):
                _, self = await loop.create_connection(
                    lambda: cls(security, proof, broker),
                    host,
                    port,
                    ssl=tls,
                    server_hostname=host if tls else None,
                )
                try:
                    await asyncio.shield(self._connected)
                except BaseException:
                    self.abort()
                    raise
        except ConnectionLost:
            raise ConnectionLost(
                f"{service_url} ended the connection without an answer"
                + ("" if tls else "; a port that speaks TLS needs pulsar+ssl://")
            ) from None
        except TimeoutError:
            raise ConnectionLost(f"no answer from {service_url} within {CONNECT_MAX_S:.0f} s") from None
        except ssl.SSLCertVerificationError as error:
            is_name = "mismatch" in error.verify_message
            fix = "connect to a name that it has" if is_name else "name its authority as tls_trust_certs_file"
            raise AccessFailed(
                f"{service_url} shows a certificate that is not trusted: {error.verify_message.rstrip('.')}; {fix}"
            ) from None
        except ssl.SSLError as error:
            if error.reason == "WRONG_VERSION_NUMBER":
                raise AccessFailed(
                    f"{service_url}: that port does not speak TLS; name the one that does (6651), or use pulsar://"
                ) from None
            raise ConnectionLost(f"{service_url}: TLS failed: {error.reason or error}") from None
        except OSError as error:
            cause = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or error
            raise ConnectionLost(f"cannot connect to {service_url}: {cause}") from None
        except UnicodeError as error:  # A name that no host can have.
            raise ConnectionLost(f"cannot connect to {service_url}: {error}") from None
        except PeerError as error:
            raise type(error)(
                f"{service_url} does not speak Pulsar's protocol ({error}): name the binary port, 6650"
            ) from None
        return self

    # -- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: uvloop's transports have no class of asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        features = pb.FeatureFlags(supports_scalable_topics=True, supports_auth_refresh=True)
        # Enough for the next turns of the loop; producers hold back more than that.
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        proof: dict[str, Any] = {}
        if self._security.method != "none":
            proof = {"auth_method_name": self._security.method, "auth_data": self._proof}
        if self._broker:
            proof["proxy_to_broker_url"] = self._broker
        transport.write(self._wire.connect(f"Anabranch-{__version__}", feature_flags=features, **proof))
        self._ticking = self._loop.call_later(TICK_S, self._tick)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._wire.writable()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._wire.received(nbytes, self._loop.time()):
                self._act(frame)
        except PeerError as error:
            self._fail(error)
            self._transport.abort()
            return
        if owed := self._wire.to_send():
            self._transport.write(owed)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
        held_back, self._held_back = self._held_back, []
        for go_on in held_back:
            go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wire.close()
        if self._ticking is not None:
            self._ticking.cancel()
        self._writable.set()
        self._fail(ConnectionLost(f"the connection was lost{f': {exc}' if exc else ''}"))
        self._closed.set_result(None)

    def _tick(self) -> None:
        match self._wire.tick(self._loop.time()):
            case Beat.DEAD:
                self._transport.abort()
                return
            case Beat.PROBE:
                self._transport.write(self._wire.to_send())
        self._ticking = self._loop.call_later(TICK_S, self._tick)

    def _fail(self, error: Exception) -> None:
        waiting, self._requests = self._requests, {}
        for future in (*waiting.values(), self._connected):
            if not future.done():
                future.set_exception(error)
                # It is no mistake if no task waits any more.
                future.exception()
        parts, self._parts = self._parts, {}
        for part in parts.values():
            _tell_lost(part, error)

    async def close(self) -> None:
        self._transport.close()
        await asyncio.shield(self._closed)

    async def close_within(self, seconds: float) -> None:
        """Closes the connection; drops it if that takes longer: the broker does not read what it was sent."""
        try:
            async with asyncio.timeout(seconds):
                await self.close()
        except TimeoutError:
            self.abort()

    def abort(self) -> None:
        """Drops the connection without closing it properly, and all unwritten bytes."""
        self._transport.abort()

    @property
    def peer_name(self) -> str:
        """The broker's own name and release."""
        return self._wire.peer_name

    @property
    def is_ours(self) -> bool:
        """Whether the broker is Anabranch, and not Pulsar."""
        return self._wire.peer_name.startswith("Anabranch")

    @property
    def http_url(self) -> str:
        """The address for admin requests; "" if the broker does not give it."""
        return self._wire.peer_http_url

    @property
    def supports_scalable_topics(self) -> bool:
        """Whether the broker supports layouts and watches on them."""
        return bool(self._wire.peer_features.supports_scalable_topics)

    @property
    def has_one_port(self) -> bool:
        """Whether the broker's port is that of all brokers."""
        return self._wire.peer_has_one_port

    @property
    def is_closed(self) -> bool:
        return self._transport.is_closing()

    # -- frames

    def _act(self, frame: Frame) -> None:
        kind, command, payload = frame
        if kind == _MESSAGE:  # By far the most frequent command.
            body = command.message
            part = self._parts.get(body.consumer_id)
            if part is not None:
                try:
                    part.received(kind, body, payload)
                except Exception as error:
                    self._part_failed(body.consumer_id, PartKind.CONSUMER.value, error)
        elif kind == C.CONNECTED:
            self._connected.set_result(None)
        elif kind == C.AUTH_CHALLENGE:
            self._prove_again(command.authChallenge.challenge.auth_data)
        elif kind in _TO_PART:
            field, whose = _TO_PART[kind]
            body = getattr(command, field)
            number = getattr(body, whose)
            part = self._parts.get(number)
            if part is not None:
                try:
                    part.received(kind, body, payload)
                except Exception as error:
                    self._part_failed(number, whose, error)
        elif kind == C.ERROR and not self._connected.done():
            self._connected.set_exception(ConnectRefused(command.error.error, command.error.message))
        elif kind in _ANSWERS:
            body = getattr(command, _ANSWERS[kind])
            if kind == C.PRODUCER_SUCCESS and not body.producer_ready:
                return  # The producer waits for others to leave; a second answer follows.
            waiter = self._requests.pop(body.request_id, None)
            if waiter is not None and not waiter.done():
                _settle(waiter, kind, body)

    def _part_failed(self, number: int, whose: str, error: Exception) -> None:
        """A part of the connection failed to process a command: only that part is lost."""
        log.error(
            "processing what the broker sent to %s %d failed, closing it", whose, number, exc_info=error
        )
        part = self._parts.pop(number, None)
        if whose in _CLOSING and not self._transport.is_closing():
            kind, field = _CLOSING[whose]
            self.tell(kind, field, **{whose: number})
        if part is not None:
            _tell_lost(part, ConnectionLost(f"processing what the broker sent failed: {error!r}"))

    def _prove_again(self, challenge: bytes) -> None:
        """The broker asks for more; or the credentials have expired, and a token from a file or a function may be newer
        by now."""
        try:
            proof = self._security.answer(challenge)
        except Exception as error:
            if not self._connected.done():
                self._connected.set_exception(error)
                return
            log.warning("no new token for %s, which will close this connection: %s", self.peer_name, error)
            return
        answer = C(type=C.AUTH_RESPONSE)
        answer.authResponse.client_version = f"Anabranch-{__version__}"
        answer.authResponse.protocol_version = self._wire.version
        answer.authResponse.response.auth_method_name = self._security.method
        answer.authResponse.response.auth_data = proof
        self._transport.write(self._wire.send(answer))

    # -- sending

    async def request(self, kind: int, field: str, **fields: Any) -> Any:
        """The answer to a request; raises RequestRefused if it is an error."""
        request_id = self._next_request
        waiter = self.begin(kind, field, **fields)
        try:
            return await waiter
        finally:
            self._requests.pop(request_id, None)

    def begin(self, kind: int, field: str, **fields: Any) -> asyncio.Future[Any]:
        """Like `request`, for callers that do not wait."""
        request_id = self._next_request
        self._next_request += 1
        self.send(kind, field, request_id=request_id, **fields)
        waiter = self._requests[request_id] = self._loop.create_future()
        return waiter

    def tell(self, kind: int, field: str, **fields: Any) -> None:
        """Sends a request whose answer is not awaited."""
        self._next_request += 1
        self.send(kind, field, request_id=self._next_request - 1, **fields)

    def send(self, kind: int, field: str, **fields: Any) -> None:
        if self._transport.is_closing():
            raise ConnectionLost("the connection is closed")
        command = C(type=kind)  # type: ignore[arg-type]  # An int of the enum.
        body = getattr(command, field)
        body.SetInParent()
        body.MergeFrom(type(body)(**fields))
        self._transport.write(self._wire.send(command))

    async def write(self, frame: bytes) -> None:
        """Sends bytes, waiting while too many are queued for the socket."""
        await self._writable.wait()
        self.write_now(frame)

    async def writable(self) -> None:
        """Waits while too many bytes are queued for the socket."""
        await self._writable.wait()

    def write_now(self, frame: bytes) -> None:
        """Sends bytes at once, for callers that bound the amount themselves."""
        if self._transport.is_closing():
            raise ConnectionLost("the connection is closed")
        self._transport.write(frame)

    def write_pieces(self, pieces: Iterable[Buffer]) -> None:
        """Like `write_now`, for a frame in several pieces."""
        if self._transport.is_closing():
            raise ConnectionLost("the connection is closed")
        self._transport.writelines(pieces)

    @property
    def is_writable(self) -> bool:
        """False while more bytes are queued for the socket than is useful."""
        return self._writable.is_set()

    def when_writable(self, go_on: Callable[[], None]) -> None:
        """Calls `go_on` once, when the socket accepts more; never if the connection is lost."""
        self._held_back.append(go_on)

    @property
    def message_bytes_max(self) -> int:
        """The largest message that the broker accepts."""
        return self._wire.message_bytes_max

    def attach(self, kind: PartKind, make: Callable[[int], P]) -> P:
        """Gives a new producer, consumer or watch its id on this connection."""
        number = self._next_part
        self._next_part += 1
        part = self._parts[number] = make(number)
        return part

    def detach(self, kind: PartKind, number: int) -> None:
        self._parts.pop(number, None)


_WITH_ERROR = {
    C.LOOKUP_RESPONSE,
    C.PARTITIONED_METADATA_RESPONSE,
    C.ACK_RESPONSE,
    C.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE,
}


def _tell_lost(part: ConnectionPart, error: Exception) -> None:
    """Notifies a part of the loss; its errors must not keep the others from being notified."""
    try:
        part.lost(error)
    except Exception:
        log.exception("a producer or consumer failed when it was notified of its lost connection")


def _settle(waiter: asyncio.Future[Any], kind: int, body: Any) -> None:
    """Errors come in several forms: a separate command, or fields of the usual answer."""
    if kind == C.ERROR or (kind in _WITH_ERROR and body.HasField("error")):
        waiter.set_exception(refusal(body.error, body.message))
    else:
        waiter.set_result(body)
