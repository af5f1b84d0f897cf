"""Producers and consumers that cost next to nothing, so that brokers have all that they can do.

Each topic has a connection for its producer and one for its consumer, however many brokers there are. A producer sends
the same prepared bytes again and again, a burst of messages with each write; a consumer reads large pieces and
acknowledges every message of a piece by its id, all in one command, as Java's client does. The next burst of a topic
follows when the consumer has got as many messages: what is under way is the same at any moment, and consumers never
fall behind. The protocol is that of `bench.wire`.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Final, cast

from bench import wire

PAYLOAD: Final = bytes(1024)
# Messages in one write, and the most that are published and not delivered, of each topic.
BURST: Final = 100
UNDER_WAY: Final = 1_000
PERMITS: Final = 4 * UNDER_WAY
NUMBER: Final = 1  # Of every producer and consumer: each is alone on its connection.

_size = struct.Struct(">I").unpack_from
# Where a frame has these, if its numbers are small: the command's kind; the tags of its body, of the consumer's number
# and of the message id, whose length and bytes follow.
_KIND, _BODY, _CONSUMER, _ID = 9, 10, 12, 14
_ID_IN_ACK: Final = b"\x1a"


class _Link(asyncio.BufferedProtocol):
    """Cuts what the broker sends into frames, in place."""

    def __init__(self, flood: Flood) -> None:
        self._flood = flood
        self._buffer = bytearray(2 << 20)
        self._view = memoryview(self._buffer)
        self._filled = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._flood.failed(f"connection lost: {error}")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        at, filled, view = 0, self._filled, self._view
        while at + 10 <= filled:
            stop = at + 4 + _size(view, at)[0]
            if stop > filled:
                break
            self.frame(view[at + _KIND], at)
            at = stop
        if at:
            self._buffer[: filled - at] = view[at:filled]
            self._filled -= at
        self.piece_ended()

    def frame(self, kind: int, at: int) -> None:
        """A whole frame, which begins at `at`."""
        if kind == wire.PING:
            self.transport.write(wire.frame(wire.PONG, b""))
        else:
            _, start, end = wire.command(self._view, at + 4)
            self._flood.failed(f"command {kind} of the broker: {wire.explain(self._view, start, end)}")

    def piece_ended(self) -> None:
        """All whole frames of one read have been taken."""


class FloodProducer(_Link):
    def __init__(self, flood: Flood, name: str) -> None:
        super().__init__(flood)
        self._burst = b"".join(wire.send(NUMBER, sequence, name, PAYLOAD) for sequence in range(BURST))
        self._under_way = 0
        self.receipts = 0

    def frame(self, kind: int, at: int) -> None:
        if kind == wire.SEND_RECEIPT:
            self.receipts += 1
        else:
            super().frame(kind, at)

    @property
    def is_idle(self) -> bool:
        return not self._under_way

    def delivered(self, count: int) -> None:
        """So many messages have reached the consumer: sends as many as there is room for."""
        self._under_way -= count
        if not self._flood.is_stopped:
            while self._under_way + BURST <= UNDER_WAY:
                self._under_way += BURST
                self.transport.write(self._burst)


class FloodConsumer(_Link):
    def __init__(self, flood: Flood, producer: FloodProducer) -> None:
        super().__init__(flood)
        self._producer = producer
        self._ids: list[bytes] = []
        self._granted = 0
        self.messages = 0

    def grant(self) -> None:
        self.transport.write(wire.flow(NUMBER, PERMITS - self._granted))
        self._granted = PERMITS

    def frame(self, kind: int, at: int) -> None:
        if kind != wire.MESSAGE:
            super().frame(kind, at)
            return
        view = self._view
        assert (view[at + _BODY], view[at + _CONSUMER], view[at + _ID]) == (0x4A, 0x08, 0x12), (
            "a longer number"
        )
        self._ids.append(_ID_IN_ACK + view[at + _ID + 1 : at + _ID + 2 + view[at + _ID + 1]])

    def piece_ended(self) -> None:
        if count := len(self._ids):
            self.transport.write(_acks(b"".join(self._ids)))
            self._ids.clear()
            self.messages += count
            self._granted -= count
            if self._granted < PERMITS // 2:
                self.grant()
            self._producer.delivered(count)


def _acks(ids: bytes) -> bytes:
    return wire.frame(wire.ACK, wire.number(1, NUMBER) + wire.number(2, 0) + ids)


class Flood:
    """Raises nothing while it runs: `errors` has what went wrong."""

    def __init__(self) -> None:
        self._producers: list[FloodProducer] = []
        self._consumers: list[FloodConsumer] = []
        self.is_stopped = False
        self.errors: list[str] = []

    async def open(self, topic: str, port: int) -> None:
        """A producer and a consumer of the topic, which the broker at that port owns."""
        link = wire.Blocking(port)
        body, start, end = link.ask(wire.producer(topic, NUMBER, 1), wire.PRODUCER_SUCCESS)
        name = next(bytes(body[a:b]).decode() for part, a, b in wire.fields(body, start, end) if part == 2)
        producer = FloodProducer(self, name)
        await _serve(producer, link)
        link = wire.Blocking(port)
        link.ask(wire.subscribe(topic, "flood", NUMBER, 1), wire.SUCCESS)
        consumer = FloodConsumer(self, producer)
        await _serve(consumer, link)
        self._producers.append(producer)
        self._consumers.append(consumer)

    def begin(self) -> None:
        for consumer, producer in zip(self._consumers, self._producers, strict=True):
            consumer.grant()
            producer.delivered(0)

    async def stop(self) -> None:
        """Sends no more and waits until everything is delivered and has its receipt."""
        self.is_stopped = True
        async with asyncio.timeout(60):
            while not self.errors and not self._is_settled():  # noqa: ASYNC110 - polled: the links have other things to do.
                await asyncio.sleep(0.01)
        for link in (*self._producers, *self._consumers):
            link.transport.abort()

    def _is_settled(self) -> bool:
        return all(
            one.receipts == other.messages and one.is_idle
            for one, other in zip(self._producers, self._consumers, strict=True)
        )

    def failed(self, what: str) -> None:
        if not self.is_stopped:
            self.errors.append(what)

    @property
    def receipts(self) -> int:
        return sum(one.receipts for one in self._producers)

    @property
    def delivered(self) -> int:
        return sum(one.messages for one in self._consumers)


async def _serve(protocol: _Link, link: wire.Blocking) -> None:
    """The connection is the event loop's from now on."""
    link.sock.setblocking(False)
    await asyncio.get_running_loop().create_connection(lambda: protocol, sock=link.sock)
