"""Producers and consumers of many topics on one event loop, which follow their topics from broker to broker.

They behave as the clients do: a topic's owner is looked up; a producer or consumer that a broker closes goes to the
broker that the command names, without a lookup, or else looks its topic up again; what has no receipt is sent again.
They cost little, so that the brokers have the machine. The protocol is that of `bench.wire`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Self, cast

from bench import wire

PAYLOAD = bytes(1024)
PERMITS = 1_000
# As Java's client waits before it looks up again after a refusal.
AGAIN_S = 0.1
REDIRECT = 0


class Link(asyncio.BufferedProtocol):
    """One connection to one broker."""

    def __init__(self, swarm: Swarm, port: int) -> None:
        self._swarm, self.port = swarm, port
        self._buffer = bytearray(4 * 1024 * 1024)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._requests = 0
        self.is_open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(wire.BrokerRefused(f"connection lost: {error}"))
        self._swarm.lost(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        at = 0
        while at + 12 <= self._filled:
            stop = at + 4 + int.from_bytes(self._view[at : at + 4], "big")
            if stop > self._filled:
                break
            self._take(at + 4)
            at = stop
        if at:
            self._buffer[: self._filled - at] = self._view[at : self._filled]
            self._filled -= at

    def _take(self, at: int) -> None:
        kind, start, end = wire.command(self._view, at)
        if kind == wire.SEND_RECEIPT:
            found = {number: value for number, value, _ in wire.fields(self._view, start, end)}
            self._swarm.publishers[found[1]].receipt(found.get(2, 0))
        elif kind == wire.MESSAGE:
            self._message(start, end)
        elif kind == wire.PING:
            self.transport.write(wire.frame(wire.PONG, b""))
        elif kind in (wire.CLOSE_PRODUCER, wire.CLOSE_CONSUMER):
            found = {number: value for number, value, _ in wire.fields(self._view, start, end)}
            urls = [
                bytes(self._view[a:b]).decode()
                for number, a, b in wire.fields(self._view, start, end)
                if number == 3
            ]
            attached = self._swarm.publishers if kind == wire.CLOSE_PRODUCER else self._swarm.consumers
            attached[found[1]].closed(port_of(urls[0]) if urls else None)
        elif kind == wire.SEND_ERROR:
            self._swarm.errors.append(wire.explain(self._view, start, end))
        elif kind in (wire.CONNECTED, wire.SUCCESS, wire.PRODUCER_SUCCESS, wire.LOOKUP_RESPONSE, wire.ERROR):
            self._answered(kind, start, end)

    def _answered(self, kind: int, start: int, end: int) -> None:
        # The request id is the first field of these, except for lookups, where it is the fourth.
        wanted = 4 if kind == wire.LOOKUP_RESPONSE else 1
        number = 0
        if kind != wire.CONNECTED:
            number = next(v for field, v, _ in wire.fields(self._view, start, end) if field == wanted)
        future = self._waiting.pop(number, None)
        if future is None or future.done():
            return
        if kind == wire.ERROR:
            future.set_exception(wire.BrokerRefused(wire.explain(self._view, start, end)))
        else:
            future.set_result(bytes(self._view[start:end]))

    def _message(self, start: int, end: int) -> None:
        number, message_id = 0, b""
        for part, value, stop in wire.fields(self._view, start, end):
            if part == 1:
                number = value
            elif part == 2:
                message_id = bytes(self._view[value:stop])
        self._swarm.consumers[number].message(message_id)

    async def ask(self, build: Callable[[int], bytes], number: int | None = None) -> bytes:
        """Sends the request built with a new request id and waits for its answer."""
        if number is None:
            self._requests += 1
            number = self._requests
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self.transport.write(build(number))
        return await asyncio.wait_for(future, 30)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


@dataclass(eq=False, slots=True)
class Publisher:
    """Sends the next message `pace_s` after a receipt, with `window` messages under way. With a window of 0 it sends
    what it is told to.

    A topic that is closed while none is under way gets one at that moment: `waits` then has the whole time during which
    the topic took no messages, as the longest time from sending to the receipt.
    """

    swarm: Swarm
    topic: str
    number: int
    pace_s: float
    window: int
    link: Link | None = None
    name: str = ""
    sequence: int = 0
    receipts: int = 0
    moves: int = 0
    longest_wait_s: float = 0.0
    _in_flight: deque[tuple[int, float, bytes]] = field(default_factory=deque)
    _is_stopped: bool = False
    _is_pausing: bool = False

    async def attach(self, port: int | None) -> None:
        async def once(link: Link) -> None:
            body = await link.ask(self._wanted)
            self.name = next(
                body[a:b].decode() for part, a, b in wire.fields(body, 0, len(body)) if part == 2
            )
            self.link = link

        await self.swarm.attach(self.topic, port, once)
        assert self.link is not None
        for _, _, frame in self._in_flight:
            self.link.transport.write(frame)

    def _wanted(self, request: int) -> bytes:
        """PRODUCER, which keeps the name that the first broker gave it."""
        body = wire.text(1, self.topic) + wire.number(2, self.number) + wire.number(3, request)
        return wire.frame(wire.PRODUCER, body + (wire.text(4, self.name) if self.name else b""))

    def closed(self, port: int | None) -> None:
        self.link = None
        self.moves += 1
        if not self._in_flight and self.window:
            self.send()
        self.swarm.spawn(self.attach(port))

    def send(self) -> None:
        if self._is_stopped:
            return
        frame = wire.send(self.number, self.sequence, self.name, PAYLOAD)
        self._in_flight.append((self.sequence, time.perf_counter(), frame))
        self.sequence += 1
        if self.link is not None and self.link.is_open:
            self.link.transport.write(frame)

    def receipt(self, sequence: int) -> None:
        while self._in_flight and self._in_flight[0][0] <= sequence:
            _, sent, _ = self._in_flight.popleft()
            wait = time.perf_counter() - sent
            self.receipts += 1
            self.longest_wait_s = max(self.longest_wait_s, wait)
            if not self.window:
                continue
            if not self.pace_s:
                self.send()
            elif not self._is_pausing:
                # Once: a message that was sent because the topic was closed does not add to the rate.
                self._is_pausing = True
                asyncio.get_running_loop().call_later(self.pace_s, self._paced)

    def _paced(self) -> None:
        self._is_pausing = False
        for _ in range(self.window - len(self._in_flight)):
            self.send()

    def begin(self) -> None:
        for _ in range(self.window):
            self.send()

    def stop(self) -> None:
        self._is_stopped = True

    @property
    def is_idle(self) -> bool:
        return not self._in_flight


@dataclass(eq=False, slots=True)
class Receiver:
    swarm: Swarm
    topic: str
    number: int
    link: Link | None = None
    messages: int = 0
    _granted: int = 0

    async def attach(self, port: int | None) -> None:
        async def once(link: Link) -> None:
            await link.ask(lambda request: wire.subscribe(self.topic, "swarm", self.number, request))
            self.link = link
            self._granted = PERMITS
            link.transport.write(wire.flow(self.number, PERMITS))

        await self.swarm.attach(self.topic, port, once)

    def closed(self, port: int | None) -> None:
        self.link = None
        self.swarm.spawn(self.attach(port))

    def message(self, message_id: bytes) -> None:
        self.messages += 1
        if self.link is None:
            return
        self.link.transport.write(wire.ack(self.number, message_id))
        self._granted -= 1
        if self._granted < PERMITS // 2:
            self._granted += PERMITS // 2
            self.link.transport.write(wire.flow(self.number, PERMITS // 2))


class Swarm:
    def __init__(self, port: int) -> None:
        """`port` is where topics are looked up."""
        self._port = port
        self._links: dict[int, asyncio.Task[Link]] = {}
        self.publishers: dict[int, Publisher] = {}
        self.consumers: dict[int, Receiver] = {}
        self.errors: list[str] = []
        self.refusals = self.lookups = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._is_closed = True
        for task in list(self._tasks):
            task.cancel()
        for opening in self._links.values():
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                opening.result().transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs until it ends or the swarm is closed."""
        if self._is_closed:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.errors.append(repr(error))

    async def open(
        self, topics: list[str], *, pace_s: float, window: int = 1, consumers: bool = True
    ) -> None:
        """Makes a producer, and a consumer, of each topic, some at a time. `begin` of each producer starts it."""
        limit = asyncio.Semaphore(32)
        first = len(self.publishers)

        async def one(number: int, topic: str) -> None:
            async with limit:
                publisher = Publisher(self, topic, number, pace_s, window)
                self.publishers[number] = publisher
                await publisher.attach(None)
                if consumers:
                    self.consumers[number] = Receiver(self, topic, number)
                    await self.consumers[number].attach(None)

        await asyncio.gather(*(one(first + number, topic) for number, topic in enumerate(topics)))

    async def attach(
        self, topic: str, port: int | None, once: Callable[[Link], Coroutine[Any, Any, None]]
    ) -> None:
        """Attaches at that port, or where a lookup leads, until it succeeds."""
        while True:
            try:
                await once(await self.link(await self._found(topic) if port is None else port))
                return
            except (wire.BrokerRefused, OSError):
                self.refusals += 1
                port = None
                await asyncio.sleep(AGAIN_S)

    async def _found(self, topic: str) -> int:
        port = self._port
        for _ in range(5):
            self.lookups += 1
            body = await (await self.link(port)).ask(lambda request: wire.lookup(topic, request))
            found = {part: value for part, value, _ in wire.fields(body, 0, len(body))}
            urls = [body[a:b].decode() for part, a, b in wire.fields(body, 0, len(body)) if part == 1 and b]
            if found.get(3) not in (REDIRECT, 1) or not urls:
                raise wire.BrokerRefused(wire.explain(body, 0, len(body)))
            port = port_of(urls[0])
            if found[3] != REDIRECT:
                return port
        raise wire.BrokerRefused(f"{topic}: too many redirects")

    async def link(self, port: int) -> Link:
        opening = self._links.get(port)
        if opening is None:
            opening = self._links[port] = asyncio.get_running_loop().create_task(self._connect(port))
        try:
            return await asyncio.shield(opening)
        except OSError:
            self._links.pop(port, None)
            raise

    async def _connect(self, port: int) -> Link:
        _, link = await asyncio.get_running_loop().create_connection(
            lambda: Link(self, port), "127.0.0.1", port
        )
        await link.ask(lambda _: wire.connect(), 0)
        return link

    def lost(self, link: Link) -> None:
        if self._is_closed:
            return
        self._links.pop(link.port, None)
        for one in (*self.publishers.values(), *self.consumers.values()):
            if one.link is link:
                one.closed(None)

    async def at_port(self, numbers: list[int], port: int, within_s: float) -> None:
        """Waits until these producers and their consumers are attached at that port."""
        followed = [
            one
            for number in numbers
            for one in (self.publishers[number], self.consumers.get(number))
            if one is not None
        ]
        await self.until(
            lambda: all(one.link is not None and one.link.port == port for one in followed),
            within_s,
            f"producers and consumers of {len(numbers)} topics follow them",
        )

    async def quiet(self, within_s: float = 30.0) -> None:
        """Stops the producers and waits for their receipts."""
        for publisher in self.publishers.values():
            publisher.stop()
        await self.until(
            lambda: all(one.is_idle for one in self.publishers.values()), within_s, "the last receipts"
        )

    async def until(self, claim: Callable[[], bool], within_s: float, what: str) -> None:
        ends = time.monotonic() + within_s
        while not claim():
            if time.monotonic() > ends:
                raise TimeoutError(f"not within {within_s:.0f} s: {what}")
            await asyncio.sleep(0.01)
