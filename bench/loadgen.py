"""A light load generator for many topics and many consumers, on one event loop.

Each publish is one unbatched entry of 1 KB, a fixed number are outstanding, and every consumer gets and acknowledges
what it is due. Costs per entry should stay flat as topics or consumers grow; what this generator itself costs per entry
does not depend on either, because connections are shared. Prints the JSON lines of the Java load client.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import uvloop

from bench import wire

PERMITS = 1_000
PAYLOAD = bytes(range(256)) * 4


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


class Link(asyncio.BufferedProtocol):
    """One connection. Answers to requests are awaited; receipts and messages are handed to callbacks."""

    def __init__(self, on_receipt: Callable[[int], None], on_message: Callable[[], None]) -> None:
        self._on_receipt, self._on_message = on_receipt, on_message
        self._buffer = bytearray(4 * 1024 * 1024)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._granted: dict[int, int] = {}
        self._requests = 0
        self.failure: str = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"connection lost: {error}")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        at = 0
        while at + 12 <= self._filled:
            stop = at + 4 + int.from_bytes(self._view[at : at + 4], "big")
            if stop > self._filled:
                break
            self._take(at + 4, stop)
            at = stop
        if at:
            self._buffer[: self._filled - at] = self._view[at : self._filled]
            self._filled -= at

    def _take(self, at: int, stop: int) -> None:
        kind, start, end = wire.command(self._view, at)
        if kind == wire.SEND_RECEIPT:
            self._on_receipt(
                next(value for field, value, _ in wire.fields(self._view, start, end) if field == 1)
            )
        elif kind == wire.MESSAGE:
            self._message(start, end)
        elif kind == wire.PING:
            self.transport.write(wire.frame(wire.PONG, b""))
        elif kind in (wire.CONNECTED, wire.SUCCESS, wire.PRODUCER_SUCCESS, wire.LOOKUP_RESPONSE):
            # The request id is the first field of these, except for lookups, where it is the fourth.
            wanted = 4 if kind == wire.LOOKUP_RESPONSE else 1
            number = 0
            if kind != wire.CONNECTED:
                number = next(v for field, v, _ in wire.fields(self._view, start, end) if field == wanted)
            self._waiting.pop(number).set_result(bytes(self._view[start:end]))
        elif kind in (wire.ERROR, wire.SEND_ERROR, wire.CLOSE_PRODUCER, wire.CLOSE_CONSUMER):
            self._fail(f"command {kind}: {wire.explain(self._view, start, end)}")

    def _message(self, start: int, end: int) -> None:
        consumer = 0
        message_id = b""
        for field, value, stop in wire.fields(self._view, start, end):
            if field == 1:
                consumer = value
            elif field == 2:
                message_id = bytes(self._view[value:stop])
        self.transport.write(wire.ack(consumer, message_id))
        self._granted[consumer] -= 1
        if self._granted[consumer] < PERMITS // 2:
            self._granted[consumer] += PERMITS // 2
            self.transport.write(wire.flow(consumer, PERMITS // 2))
        self._on_message()

    def _fail(self, why: str) -> None:
        self.failure = self.failure or why
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(wire.BrokerRefused(why))
        self._waiting.clear()

    async def ask(self, build: Callable[[int], bytes], number: int | None = None) -> bytes:
        """Sends the request built with a new request id and waits for its answer."""
        if number is None:
            self._requests += 1
            number = self._requests
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self.transport.write(build(number))
        return await future

    async def consumer(self, topic: str, subscription: str, number: int, kind: int) -> None:
        await self.ask(lambda request: wire.subscribe(topic, subscription, number, request, kind))
        self._granted[number] = PERMITS
        self.transport.write(wire.flow(number, PERMITS))

    async def producer(self, topic: str, number: int) -> str:
        await self.ask(lambda request: wire.lookup(topic, request))
        answer = await self.ask(lambda request: wire.producer(topic, number, request))
        return next(answer[a:b].decode() for field, a, b in wire.fields(answer, 0, len(answer)) if field == 2)


@dataclass(slots=True)
class Publisher:
    link: Link
    number: int
    name: str
    sequence: int = 0


class Load:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.links: list[Link] = []
        self.publishers: list[Publisher] = []
        self.latencies: list[float] = []
        self._sent: dict[int, list[float]] = {}
        self._to_send = self._turn = self._confirmed = 0
        self._due = self.delivered = 0
        self._done = asyncio.Event()

    async def open(self) -> None:
        """Connects, then makes producers and consumers, some hundred requests at a time."""
        loop = asyncio.get_running_loop()
        for _ in range(self.args.links):
            _, link = await loop.create_connection(
                lambda: Link(self._receipt, self._message), "127.0.0.1", self.args.port
            )
            await link.ask(lambda _: wire.connect(), 0)
            self.links.append(link)
        limit = asyncio.Semaphore(200)
        async with asyncio.TaskGroup() as group:
            for number in range(self.args.topics):
                group.create_task(self._open_topic(number, limit))
        self.publishers.sort(key=lambda publisher: publisher.number)

    async def _open_topic(self, number: int, limit: asyncio.Semaphore) -> None:
        topic = f"persistent://public/default/{self.args.prefix}-{number}"
        link = self.links[number % len(self.links)]
        async with limit:
            self.publishers.append(Publisher(link, number, await link.producer(topic, number)))
            self._sent[number] = []
            for each in range(self.args.consumers):
                shared = self.args.kind == "shared"
                name = "shared" if shared else f"own-{each}"
                reader = self.links[each % len(self.links)]
                identity = number * self.args.consumers + each
                await reader.consumer(topic, name, identity, wire.SHARED if shared else wire.EXCLUSIVE)

    async def run(self, entries: int) -> None:
        """Publishes that many entries round the topics and waits until all are confirmed and delivered."""
        copies = 0 if not self.args.consumers else 1 if self.args.kind == "shared" else self.args.consumers
        self._to_send = entries
        self._confirmed = self.delivered = 0
        self._due = entries * copies
        self._wanted = entries
        self.latencies.clear()
        self._done.clear()
        for _ in range(min(self.args.pending, entries)):
            self._send_one()
        while not self._done.is_set():
            try:
                await asyncio.wait_for(self._done.wait(), 1)
            except TimeoutError:
                failures = [link.failure for link in self.links if link.failure]
                if failures:
                    raise wire.BrokerRefused(failures[0]) from None

    def _send_one(self) -> None:
        if not self._to_send:
            return
        self._to_send -= 1
        publisher = self.publishers[self._turn % len(self.publishers)]
        self._turn += 1
        self._sent[publisher.number].append(time.perf_counter())
        entry = wire.send(publisher.number, publisher.sequence, publisher.name, PAYLOAD)
        publisher.sequence += 1
        publisher.link.transport.write(entry)

    def _receipt(self, producer: int) -> None:
        # Receipts of one producer come in the order of its sends.
        self.latencies.append(time.perf_counter() - self._sent[producer].pop(0))
        self._confirmed += 1
        self._send_one()
        self._settle()

    def _message(self) -> None:
        self.delivered += 1
        self._settle()

    def _settle(self) -> None:
        if self._confirmed == self._wanted and self.delivered >= self._due:
            self._done.set()


async def measure(args: argparse.Namespace) -> None:
    load = Load(args)
    await load.open()
    await load.run(max(args.entries // 4, args.topics))
    say(event="begin")
    started = time.perf_counter()
    cpu = resource.getrusage(resource.RUSAGE_SELF)
    await load.run(args.entries)
    seconds = time.perf_counter() - started
    used = resource.getrusage(resource.RUSAGE_SELF)
    say(event="end")
    ordered = sorted(load.latencies)
    say(
        event="result",
        messages=max(args.entries, load.delivered),
        entries=args.entries,
        delivered=load.delivered,
        seconds=seconds,
        per_second=max(args.entries, load.delivered) / seconds,
        p50_ms=ordered[len(ordered) // 2] * 1e3,
        p99_ms=ordered[len(ordered) * 99 // 100] * 1e3,
        client_cpu_seconds=used.ru_utime + used.ru_stime - cpu.ru_utime - cpu.ru_stime,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--prefix", default="growth")
    parser.add_argument("--topics", type=int, default=1)
    parser.add_argument("--consumers", type=int, default=1, help="per topic")
    parser.add_argument(
        "--kind", choices=("shared", "own"), default="own", help="one subscription or one each"
    )
    parser.add_argument("--entries", type=int, default=20_000)
    parser.add_argument("--pending", type=int, default=200)
    parser.add_argument("--links", type=int, default=4)
    uvloop.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
