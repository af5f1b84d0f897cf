"""The broker and the clients of `bench.sharing`: topics of one segment, and consumers that share it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from soak.broker import BrokerProcess

from anabranch.client import Client, Producer, StreamConsumer
from bench.waiting import Waiting

KEYS: Final = [f"key-{n:05d}" for n in range(20_000)]
KB: Final = b"x" * 1000
# How long one consumer waits in all, where consumers wait.
WAITS_S: Final = 10.0
GROUP: Final = "team"
Figures = dict[str, Any]


class Reader:
    """One sharer: its client, its consumer, and an application that handles one message after the other."""

    def __init__(
        self,
        client: Client,
        consumer: StreamConsumer,
        *,
        service_s: float = 0.0,
        ack_every: int = 1,
        stands: bool = False,
    ) -> None:
        self.client = client
        self.consumer = consumer
        self.received = 0
        self.first = asyncio.get_running_loop().create_future()
        # Cleared while the application stands.
        self.goes_on = asyncio.Event()
        if not stands:
            self.goes_on.set()
        self._service_s = service_s
        self._ack_every = ack_every
        self._work = asyncio.create_task(self._live())  # Ended by `close`.

    async def _live(self) -> None:
        while True:
            message = await self.consumer.receive()
            await self.goes_on.wait()
            if not self.first.done():
                self.first.set_result(time.perf_counter())
            if self._service_s:
                await asyncio.sleep(self._service_s)
            self.received += 1
            if self.received % self._ack_every == 0:
                await self.consumer.ack_cumulative(message)

    def stop(self) -> None:
        self._work.cancel()

    async def close(self) -> None:
        self.stop()
        await asyncio.gather(self._work, return_exceptions=True)
        await self.client.close()


class Lab:
    def __init__(
        self, broker: BrokerProcess, service_s: float, pulsar: Callable[[], tuple[str, int]] | None = None
    ) -> None:
        """`pulsar` starts Pulsar, and returns its address and the number of its process."""
        self.broker = broker
        self.pulsar = pulsar
        self.service_s = service_s
        # As many messages as make one consumer wait that long.
        self.messages = round(WAITS_S / service_s)
        self._count = 0

    async def rest(self, method: str, path: str, body: object = None) -> Any:
        return await asyncio.to_thread(self.broker.rest, method, path, body)

    async def topic(self) -> str:
        """A topic of one segment with four buckets, which changes only when told to."""
        self._count += 1
        path = f"public/default/shared-{self._count}"
        await self.rest("PUT", f"scalable/{path}?numInitialSegments=1")
        await self.rest("POST", f"scalable/{path}/autoScalePolicy", {"enabled": False})
        return path

    async def segment(self, path: str) -> int:
        layout = await self.rest("GET", f"scalable/{path}")
        [active] = [s["segmentId"] for s in layout["segments"].values() if s["state"] == "ACTIVE"]
        return int(active)

    async def subscribe(self, path: str, group: str = GROUP) -> None:
        await self.rest("PUT", f"scalable/{path}/subscriptions/{group}?type=STREAM")

    @contextlib.asynccontextmanager
    async def producer(self, path: str, **how: Any) -> AsyncIterator[Producer]:
        async with Client(self.broker.url) as client, await client.producer(f"topic://{path}", **how) as made:
            yield made

    def waiting(self, path: str, count: int) -> list[Waiting]:
        """Consumers that wait for each message, and acknowledge every twentieth."""
        return [
            Waiting(self.broker.url, path, GROUP, f"c{n}", self.service_s, 20, count) for n in range(count)
        ]

    async def read(self, path: str, name: str, *, group: str = GROUP, **how: Any) -> Reader:
        client = Client(self.broker.url)
        consumer = await client.stream_consumer(
            f"topic://{path}", group, consumer_name=name, start="earliest"
        )
        return Reader(client, consumer, **how)

    @contextlib.asynccontextmanager
    async def readers(self, path: str, count: int, **how: Any) -> AsyncIterator[list[Reader]]:
        """That many consumers, each with something of the segment."""
        made = [await self.read(path, f"c{n}", **how) for n in range(count)]
        try:
            if count > 1:
                await until(lambda: all("sharing" in repr(one.consumer) for one in made))
            await until(lambda: all(one.consumer.attached for one in made))
            yield made
        finally:
            for one in made:
                await one.close()


async def until(met: Callable[[], bool], within_s: float = 300.0) -> None:
    async with asyncio.timeout(within_s):
        while not met():  # noqa: ASYNC110 - what clients show has no event.
            await asyncio.sleep(0.002)


async def have_all(readers: Sequence[Reader], messages: int) -> None:
    await until(lambda: total(readers) >= messages)


def total(readers: Sequence[Reader]) -> int:
    return sum(one.received for one in readers)


async def post(producer: Producer, count: int, payload: bytes = KB, *, first: int = 0) -> None:
    for number in range(first, first + count):
        await producer.post(payload, key=KEYS[number * 7919 % len(KEYS)])
    await producer.flush()
