"""One connection's protocol state, for either end: bytes in, frames out; commands in, bytes out.

It decides which commands are legal when, which version is spoken, how large a frame may be, when to probe a silent peer
and when to give it up. It holds no socket and no clock: `now`, in seconds on any clock that never runs back, is passed
in. The owner of the connection acts on the commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from operator import itemgetter
from typing import Any, Final

from anabranch.errors import IllegalCommand
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.encode import encode_command
from anabranch.wire.frames import (
    FRAME_OVERHEAD_BYTES,
    MESSAGE_BYTES_MAX,
    PEER_FRAME_BYTES_MAX,
    Buffer,
    Frame,
    FrameDecoder,
)

PROTOCOL_VERSION: Final = 21
KEEP_ALIVE_S: Final = 30.0

# An error with this request id answers no request: clients take it as an error of the whole connection.
NO_REQUEST: Final = (1 << 64) - 1

_Type = pb.BaseCommand.Type
PING_FRAME: Final = encode_command(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()))
PONG_FRAME: Final = encode_command(pb.BaseCommand(type=pb.BaseCommand.PONG, pong=pb.CommandPong()))


class Role(Enum):
    BROKER = "broker"
    CLIENT = "client"


class State(Enum):
    START = "start"  # Nothing exchanged. Only a client may speak, and only CONNECT.
    HANDSHAKE = "handshake"  # CONNECT is on its way; the broker may ask for more authentication data.
    READY = "ready"
    PEER = "peer"  # Ready, and both ends are brokers: they exchange requests of brokers and nothing else.
    CLOSED = "closed"


class Beat(Enum):
    """What `tick` asks its caller to do."""

    QUIET = "quiet"
    PROBE = "probe"  # `to_send` holds a PING.
    DEAD = "dead"  # Close the socket: the peer did not answer, or never finished its handshake.


NEXT: Final[Mapping[State, frozenset[State]]] = {
    State.START: frozenset({State.HANDSHAKE, State.CLOSED}),
    State.HANDSHAKE: frozenset({State.READY, State.PEER, State.CLOSED}),
    State.READY: frozenset({State.CLOSED}),
    State.PEER: frozenset({State.CLOSED}),
    State.CLOSED: frozenset(),
}

_EITHER: Final = frozenset({"PING", "PONG", "CLOSE_PRODUCER", "CLOSE_CONSUMER"})
_REQUESTS: Final = _EITHER | {
    *("AUTH_RESPONSE", "PARTITIONED_METADATA", "LOOKUP", "PRODUCER", "SEND"),
    *("SUBSCRIBE", "FLOW", "ACK", "REDELIVER_UNACKNOWLEDGED_MESSAGES", "SEEK", "GET_LAST_MESSAGE_ID"),
    *("CONSUMER_STATS", "UNSUBSCRIBE", "GET_SCHEMA", "GET_OR_CREATE_SCHEMA", "GET_TOPICS_OF_NAMESPACE"),
    *("WATCH_TOPIC_LIST", "WATCH_TOPIC_LIST_CLOSE", "SCALABLE_TOPIC_LOOKUP", "SCALABLE_TOPIC_CLOSE"),
    *("SCALABLE_TOPIC_SUBSCRIBE", "WATCH_SCALABLE_TOPICS", "WATCH_SCALABLE_TOPICS_CLOSE"),
    *("TC_CLIENT_CONNECT_REQUEST", "NEW_TXN", "ADD_PARTITION_TO_TXN", "ADD_SUBSCRIPTION_TO_TXN", "END_TXN"),
    *(
        "END_TXN_ON_PARTITION",
        "END_TXN_ON_SUBSCRIPTION",
        "WATCH_TC_ASSIGNMENTS",
        "WATCH_TC_ASSIGNMENTS_CLOSE",
    ),
}
_OF_BROKERS: Final = frozenset({"ANABRANCH_PEER", "ANABRANCH_PEER_RESPONSE"})
_OPEN: Final = (State.READY, State.PEER)


def _types(names: Iterable[str]) -> frozenset[int]:
    return frozenset(_Type.Value(name) for name in names)


# What each end may receive in each state, and so what the other end may send.
MAY_RECEIVE: Final[Mapping[tuple[Role, State], frozenset[int]]] = {
    (Role.BROKER, State.START): _types({"CONNECT"}),
    (Role.BROKER, State.HANDSHAKE): _types({"AUTH_RESPONSE", "PING", "PONG"}),
    (Role.BROKER, State.READY): _types(_REQUESTS),
    (Role.BROKER, State.PEER): _types({"ANABRANCH_PEER", "PING", "PONG"}),
    (Role.BROKER, State.CLOSED): frozenset(),
    (Role.CLIENT, State.START): frozenset(),
    (Role.CLIENT, State.HANDSHAKE): _types({"CONNECTED", "AUTH_CHALLENGE", "ERROR", "PING", "PONG"}),
    (Role.CLIENT, State.READY): _types(
        {*_Type.keys()} - _REQUESTS - _OF_BROKERS - {"CONNECT", "CONNECTED"} | _EITHER,
    ),
    (Role.CLIENT, State.PEER): _types({"ANABRANCH_PEER_RESPONSE", "ERROR", "PING", "PONG"}),
    (Role.CLIENT, State.CLOSED): frozenset(),
}

# CONNECT with the longest token that is accepted, and room to spare.
GREETING_BYTES_MAX: Final = 256 * 1024
_GREETINGS: Final = _types({"CONNECT", "CONNECTED"})
_OWN: Final = _GREETINGS | _types({"PING", "PONG"})  # Commands that this class handles itself.
_kind = itemgetter(0)


class Connection:
    """The state of one connection. A PeerError from any method means: close it, nothing else is lost."""

    def __init__(
        self,
        role: Role,
        *,
        now: float,
        keep_alive_s: float = KEEP_ALIVE_S,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        decoder: FrameDecoder | None = None,
        is_of_peer: bool = False,
    ) -> None:
        """`is_of_peer`: this client is a broker that connects to another one."""
        self.role = role
        self.state = State.START
        self.version = 0  # The lower of both ends' protocol versions, once known.
        self.peer_name = ""  # What the peer calls itself and its release.
        self.peer_http_url = ""  # Where a broker answers admin requests, if it says so.
        self.peer_has_one_port = (
            False  # Whether the broker's port is that of all brokers, which are named in CONNECT.
        )
        self.peer_features = pb.FeatureFlags()
        self.message_bytes_max = message_bytes_max
        self._keep_alive_s = keep_alive_s
        self._opened_at = self._heard_at = now
        self._probed_at: float | None = None
        self._out: list[bytes] = []
        self._is_of_peer = is_of_peer
        self._plain: frozenset[int] = frozenset()
        self._decoder = decoder or FrameDecoder(frame_bytes_max=message_bytes_max + FRAME_OVERHEAD_BYTES)
        self._frame_bytes_max = self._decoder.frame_bytes_max
        if role is Role.BROKER:
            # The peer is still unknown: it gets no more memory than a greeting takes.
            self._decoder.frame_bytes_max = min(self._frame_bytes_max, GREETING_BYTES_MAX)
        # The shell's path to the buffer, without a call in between: see FrameDecoder.writable.
        self.writable = self._decoder.writable

    def received(self, count: int, now: float) -> Iterable[Frame]:
        """The frames completed by `count` bytes in `writable()`, less those answered here (PING, PONG).

        Pull them one by one and act on each before the next: whether a command is legal depends on
        what was done about the one before it.
        """
        self._heard_at = now
        frames = self._decoder.received(count)
        # In steady state no command needs a check, and this test runs in C.
        return frames if self._plain.issuperset(map(_kind, frames)) else self._guard(frames)

    def feed(self, data: Buffer, now: float) -> Iterable[Frame]:
        """As `received`, for callers with bytes in hand. Payloads are copies and stay valid."""
        self._heard_at = now
        return self._guard(self._decoder.feed(data))

    def to_send(self) -> bytes:
        """Bytes that this class itself has to send to the peer, each returned once."""
        if not self._out:
            return b""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def send(self, command: pb.BaseCommand) -> bytes:
        """The frame of a command, if it may be sent now. Greetings have methods of their own."""
        other = Role.BROKER if self.role is Role.CLIENT else Role.CLIENT
        allowed = MAY_RECEIVE[other, self.state] - _GREETINGS
        if command.type not in allowed:
            raise IllegalCommand(f"{self._say(command.type)} may not be sent in state {self.state.value}")
        return encode_command(command)

    def connect(self, client_version: str, **fields: Any) -> bytes:
        """A client's CONNECT frame; `fields` are further fields of CommandConnect."""
        self._enter(State.HANDSHAKE)
        fields.setdefault("protocol_version", PROTOCOL_VERSION)
        connect = pb.CommandConnect(client_version=client_version, **fields)
        return encode_command(pb.BaseCommand(type=pb.BaseCommand.CONNECT, connect=connect))

    def accept(
        self,
        server_version: str,
        features: pb.FeatureFlags | None = None,
        http_url: str | None = None,
        *,
        has_one_port: bool = False,
        is_peer: bool = False,
    ) -> bytes:
        """A broker's answer to CONNECT. From here on every command of a client is legal, or of a peer."""
        self._enter(State.PEER if is_peer else State.READY)
        self._decoder.frame_bytes_max = self._frame_bytes_max
        if is_peer:
            self._decoder.frame_bytes_max = max(self._frame_bytes_max, PEER_FRAME_BYTES_MAX)
            # The body of a request is one field, which is cheap to read.
            self._decoder.lift_command_limits()
        connected = pb.CommandConnected(
            server_version=server_version,
            protocol_version=self.version,
            max_message_size=self.message_bytes_max,
            feature_flags=features,
            anabranch_http_url=http_url,
            anabranch_has_one_port=has_one_port or None,
        )
        return encode_command(pb.BaseCommand(type=pb.BaseCommand.CONNECTED, connected=connected))

    def refuse(self, code: int, message: str) -> bytes:
        """A broker's last frame: the reason why it refuses the connection. The caller sends it and closes."""
        self._enter(State.CLOSED)
        error = pb.CommandError(request_id=NO_REQUEST, error=pb.ServerError.Name(code), message=message)
        return encode_command(pb.BaseCommand(type=pb.BaseCommand.ERROR, error=error))

    def close(self) -> None:
        """Marks the connection as closed: the socket is gone, or about to be. May be called twice."""
        if self.state is not State.CLOSED:
            self._enter(State.CLOSED)

    def tick(self, now: float, *, reading: bool = True) -> Beat:
        """Checks the timers; to be called a few times per keep-alive interval.

        `reading` is False while the shell has paused the socket: an answer may wait unread in it, so silence proves
        nothing then.
        """
        if self.state is State.CLOSED:
            return Beat.QUIET
        if self.state not in _OPEN:
            return Beat.DEAD if now - self._opened_at >= self._keep_alive_s else Beat.QUIET
        if now - self._heard_at < self._keep_alive_s:
            self._probed_at = None
            return Beat.QUIET
        if self._probed_at is not None and self._heard_at < self._probed_at:
            return Beat.DEAD if reading and now - self._probed_at >= self._keep_alive_s else Beat.QUIET
        self._decoder.release()
        if self.version < 1:  # Older peers do not know PING.
            return Beat.QUIET
        self._probed_at = now
        self._out.append(PING_FRAME)
        return Beat.PROBE

    def _guard(self, frames: list[Frame]) -> Iterator[Frame]:
        for frame in frames:
            kind = frame[0]
            if kind not in MAY_RECEIVE[self.role, self.state]:
                raise IllegalCommand(f"{self._say(kind)} came in state {self.state.value}")
            if kind == pb.BaseCommand.PING:
                self._out.append(PONG_FRAME)
                continue
            if kind == pb.BaseCommand.PONG:
                continue
            if kind == pb.BaseCommand.CONNECT:
                connect = frame[1].connect
                self._enter(State.HANDSHAKE)
                self._meet(connect.protocol_version, connect.client_version, connect.feature_flags)
            elif kind == pb.BaseCommand.CONNECTED:
                connected = frame[1].connected
                self._enter(State.PEER if self._is_of_peer else State.READY)
                self._meet(connected.protocol_version, connected.server_version, connected.feature_flags)
                self.peer_http_url = connected.anabranch_http_url
                self.peer_has_one_port = connected.anabranch_has_one_port
                if connected.max_message_size > 0:
                    self.message_bytes_max = connected.max_message_size
                    self._decoder.frame_bytes_max = connected.max_message_size + FRAME_OVERHEAD_BYTES
                if self._is_of_peer:
                    self._decoder.frame_bytes_max = max(self._decoder.frame_bytes_max, PEER_FRAME_BYTES_MAX)
            yield frame

    def _meet(self, version: int, name: str, features: pb.FeatureFlags) -> None:
        self.version = min(PROTOCOL_VERSION, max(version, 0))
        self.peer_name = name
        self.peer_features = features

    def _enter(self, state: State) -> None:
        if state not in NEXT[self.state]:
            raise IllegalCommand(f"no transition from {self.state.value} to {state.value}")
        self.state = state
        self._plain = MAY_RECEIVE[self.role, state] - _OWN if state in _OPEN else frozenset()

    @staticmethod
    def _say(kind: int) -> str:
        return _Type.Name(kind)
