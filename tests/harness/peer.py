"""A client made of a socket and protobuf, for what no well-behaved client library can send or show."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from crc32c import crc32c

from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.encode import encode_command

C = pb.BaseCommand
Received = tuple[pb.BaseCommand, bytes]


class PeerClosed(ConnectionError):
    """The broker closed the connection."""


class Peer:
    """One connection. Blocking; every wait has a deadline."""

    def __init__(self, port: int, *, receive_buffer_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(10)
        self.socket.connect(("127.0.0.1", port))
        self._buffer = bytearray()
        self._requests = 0
        self._unread: list[Received] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    # -- sending

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, command: pb.BaseCommand) -> None:
        self.send_bytes(encode_command(command))

    def send_message(
        self,
        payload: bytes,
        *,
        producer_id: int = 1,
        sequence_id: int = 0,
        spoil_checksum: bool = False,
        transaction: int | None = None,
        **metadata: Any,
    ) -> bytes:
        """A SEND; returns the entry (checksum, metadata, payload) as it should come back."""
        filled = pb.MessageMetadata(
            producer_name="peer", sequence_id=sequence_id, publish_time=int(time.time() * 1000), **metadata
        ).SerializeToString()
        body = struct.pack(">I", len(filled)) + filled + payload
        entry = struct.pack(">HI", 0x0E01, crc32c(body) ^ (1 if spoil_checksum else 0)) + body
        command = C(type=C.SEND)
        command.send.producer_id = producer_id
        command.send.sequence_id = sequence_id
        command.send.num_messages = int(metadata.get("num_messages_in_batch", 1))
        if transaction is not None:
            command.send.txnid_least_bits, command.send.txnid_most_bits = transaction, 0
        head = command.SerializeToString()
        self.send_bytes(struct.pack(">II", 4 + len(head) + len(entry), len(head)) + head + entry)
        return entry

    # -- receiving

    def receive(self, within_s: float = 60.0) -> Received:
        """The next command and, for messages, its entry. Raises TimeoutError or PeerClosed."""
        if self._unread:
            return self._unread.pop(0)
        return self._read_frame(time.monotonic() + within_s)

    def wait_for(self, wanted: Callable[[pb.BaseCommand], bool], within_s: float = 60.0) -> Received:
        """The next command that is `wanted`; others are kept for later."""
        for at, (command, _) in enumerate(self._unread):
            if wanted(command):
                return self._unread.pop(at)
        deadline = time.monotonic() + within_s
        while True:
            received = self._read_frame(deadline)
            if wanted(received[0]):
                return received
            self._unread.append(received)

    def receive_kind(self, kind: int, within_s: float = 60.0) -> Received:
        return self.wait_for(lambda command: command.type == kind, within_s)

    def is_closed(self, within_s: float = 60.0) -> bool:
        """True once the broker has closed the connection, whatever it sends before."""
        deadline = time.monotonic() + within_s
        try:
            while True:
                self._read_frame(deadline)
        except (PeerClosed, ConnectionError):
            return True
        except TimeoutError:
            return False

    def _read_frame(self, deadline: float) -> Received:
        size = struct.unpack(">I", self._exactly(4, deadline))[0]
        frame = self._exactly(size, deadline)
        length = struct.unpack_from(">I", frame)[0]
        return pb.BaseCommand.FromString(frame[4 : 4 + length]), frame[4 + length :]

    def _exactly(self, count: int, deadline: float) -> bytes:
        while len(self._buffer) < count:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the broker sent nothing in time")
            self.socket.settimeout(left)
            data = self.socket.recv(1 << 16)
            if not data:
                raise PeerClosed("the broker closed the connection")
            self._buffer += data
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    # -- conversations

    def request_id(self) -> int:
        self._requests += 1
        return self._requests

    def connect(self, protocol_version: int = 21) -> pb.CommandConnected:
        command = C(type=C.CONNECT)
        command.connect.client_version = "peer"
        command.connect.protocol_version = protocol_version
        self.send(command)
        return self.receive_kind(C.CONNECTED)[0].connected

    def ask(self, kind: int, field: str, **values: Any) -> pb.BaseCommand:
        """Sends a request and returns its answer, whatever it is."""
        command = C(type=kind)  # type: ignore[arg-type]  # An int of Type by construction.
        request = getattr(command, field)
        number = request.request_id = self.request_id()
        for name, value in values.items():
            if isinstance(value, list):
                getattr(request, name).extend(value)
            else:
                setattr(request, name, value)
        self.send(command)
        return self.answer(number)

    def pong(self) -> None:
        """Waits for the broker's PING, and answers it."""
        self.receive_kind(C.PING)
        self.send(C(type=C.PONG, pong=pb.CommandPong()))

    def answer(self, request_id: int) -> pb.BaseCommand:
        return self.wait_for(lambda command: _request_id(command) == request_id)[0]

    def produce_to(self, topic: str, producer_id: int = 1, **values: Any) -> pb.BaseCommand:
        return self.ask(C.PRODUCER, "producer", topic=_full(topic), producer_id=producer_id, **values)

    def subscribe_to(
        self, topic: str, subscription: str, consumer_id: int = 1, subType: int = 0, **values: Any
    ) -> pb.BaseCommand:
        return self.ask(
            C.SUBSCRIBE,
            "subscribe",
            topic=_full(topic),
            subscription=subscription,
            consumer_id=consumer_id,
            subType=subType,
            **values,
        )

    def flow(self, permits: int, consumer_id: int = 1) -> None:
        command = C(type=C.FLOW)
        command.flow.consumer_id = consumer_id
        command.flow.messagePermits = permits
        self.send(command)

    def ping(self) -> None:
        """Returns once the broker has answered: everything sent before has then been read."""
        self.send(C(type=C.PING, ping=pb.CommandPing()))
        self.receive_kind(C.PONG)


def _request_id(command: pb.BaseCommand) -> int | None:
    for field, value in command.ListFields():
        if field.message_type is not None and "request_id" in field.message_type.fields_by_name:
            number: int = value.request_id
            return number
    return None


def _full(topic: str) -> str:
    return topic if "://" in topic else f"persistent://public/default/{topic}"
