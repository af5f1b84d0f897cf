"""As much of Pulsar's binary protocol as a load generator needs, written out by hand.

It shares no code with the broker on purpose: a mistake there must not be hidden by the same mistake here. Commands
are protobuf, and in this protocol a command's type number is also the number of the field that holds its body.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

import crc32c

CONNECT, CONNECTED, SUBSCRIBE, PRODUCER, SEND, SEND_RECEIPT, SEND_ERROR, MESSAGE, ACK, FLOW = range(2, 12)
SUCCESS, ERROR, CLOSE_PRODUCER, CLOSE_CONSUMER, PRODUCER_SUCCESS, PING, PONG = range(13, 20)
LOOKUP, LOOKUP_RESPONSE = 23, 24
EXCLUSIVE, SHARED = 0, 1
EARLIEST = 1
MAGIC = b"\x0e\x01"
FRAME_BYTES_MAX = 5 * 1024 * 1024 + 10 * 1024


class BrokerRefused(Exception):
    """The broker answered with an error; the run has no result."""


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(raw)) + raw


def frame(kind: int, body: bytes) -> bytes:
    """A whole frame holding one command without a payload."""
    command = number(1, kind) + text(kind, body)
    return struct.pack(">II", len(command) + 4, len(command)) + command


def connect() -> bytes:
    return frame(CONNECT, text(1, "anabranch-bench") + number(4, 21))


def lookup(topic: str, request: int) -> bytes:
    return frame(LOOKUP, text(1, topic) + number(2, request))


def producer(topic: str, producer_id: int, request: int) -> bytes:
    return frame(PRODUCER, text(1, topic) + number(2, producer_id) + number(3, request))


def subscribe(topic: str, name: str, consumer_id: int, request: int, kind: int = EXCLUSIVE) -> bytes:
    body = text(1, topic) + text(2, name) + number(3, kind) + number(4, consumer_id) + number(5, request)
    return frame(SUBSCRIBE, body + number(13, EARLIEST))


def flow(consumer_id: int, permits: int) -> bytes:
    return frame(FLOW, number(1, consumer_id) + number(2, permits))


def ack(consumer_id: int, message_id: bytes, cumulative: bool = False) -> bytes:
    """Acknowledges the message whose encoded id came in a MESSAGE command."""
    return frame(ACK, number(1, consumer_id) + number(2, int(cumulative)) + text(3, message_id))


def send(producer_id: int, sequence: int, producer_name: str, payload: bytes) -> bytes:
    """A SEND frame of one unbatched message."""
    command = number(1, SEND) + text(SEND, number(1, producer_id) + number(2, sequence))
    metadata = text(1, producer_name) + number(2, sequence) + number(3, int(time.time() * 1000))
    checked = struct.pack(">I", len(metadata)) + metadata + payload
    tail = MAGIC + struct.pack(">I", crc32c.crc32c(checked)) + checked
    return struct.pack(">II", 4 + len(command) + len(tail), len(command)) + command + tail


def fields(data: bytes | bytearray | memoryview, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Each protobuf field as (number, value or start of the value, end of the value; 0 for a plain number)."""
    while at < end:
        key, at = read_varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = read_varint(data, at)
            yield key >> 3, value, 0
        elif kind == 2:
            size, at = read_varint(data, at)
            yield key >> 3, at, at + size
            at += size
        else:
            at += 8 if kind == 1 else 4


def read_varint(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def command(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int, int]:
    """(kind, start, end) of the command body in the frame whose size field ends at `at`."""
    size = int.from_bytes(data[at : at + 4], "big")
    kind = start = end = 0
    for field, value, stop in fields(data, at + 4, at + 4 + size):
        if field == 1:
            kind = value
        elif field == kind:
            start, end = value, stop
    return kind, start, end


def explain(data: bytes | bytearray | memoryview, start: int, end: int) -> str:
    """The readable parts of an error command."""
    parts = (bytes(data[a:b]).decode(errors="replace") for _, a, b in fields(data, start, end) if b)
    return "; ".join(parts)


class Blocking:
    """A connection that sends a command and waits for its answer: enough to open, subscribe and publish once."""

    def __init__(self, port: int, timeout: float = 30.0) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.ask(connect(), CONNECTED)

    def ask(self, request: bytes, wanted: int) -> tuple[bytes, int, int]:
        """Sends, then reads frames until the wanted kind comes; (frame, start, end) of its body."""
        self.sock.sendall(request)
        while True:
            size = int.from_bytes(self.exactly(4), "big")
            data = self.exactly(size)
            kind, start, end = command(data, 0)
            if kind == wanted:
                return data, start, end
            if kind == PING:
                self.sock.sendall(frame(PONG, b""))
            if kind in (ERROR, SEND_ERROR):
                raise BrokerRefused(explain(data, start, end))

    def exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.sock.recv(size - len(data))
            if not part:
                raise ConnectionError("the broker closed the connection")
            data += part
        return bytes(data)

    def lookup(self, topic: str) -> None:
        """Makes the broker own the topic; on one node the answer itself is always this node."""
        data, start, end = self.ask(lookup(topic, 1), LOOKUP_RESPONSE)
        found = {field: value for field, value, _ in fields(data, start, end)}
        if found.get(3) != 1:
            raise BrokerRefused("lookup: " + explain(data, start, end))

    def publish(self, topic: str, payload: bytes) -> None:
        self.lookup(topic)
        data, start, end = self.ask(producer(topic, 1, 2), PRODUCER_SUCCESS)
        name = next(bytes(data[a:b]).decode() for field, a, b in fields(data, start, end) if field == 2)
        self.ask(send(1, 0, name, payload), SEND_RECEIPT)

    def close(self) -> None:
        self.sock.close()


def first_publish(port: int, topic: str, patience: float, every: float = 0.01) -> float:
    """Tries until a broker on `port` confirms one message; returns the boot clock at that moment."""
    deadline = time.monotonic() + patience
    while True:
        try:
            link = Blocking(port)
            try:
                link.publish(topic, b"first")
                return time.clock_gettime(time.CLOCK_BOOTTIME)
            finally:
                link.close()
        except (OSError, BrokerRefused) as not_yet:
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing published within {patience:.0f} s") from not_yet
            time.sleep(every)
