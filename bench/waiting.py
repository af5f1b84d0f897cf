"""Consumers that wait for each message, each in a process of its own, for `bench.sharing`.

In one process they would wait for each other's processor time too, and four of them would look slower than they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
from collections.abc import AsyncIterator
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from typing import Any, Final

import uvloop

from anabranch.client import Client

JOIN_MAX_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """What one of them does. With `among` others, it begins once it shares the segment."""

    url: str
    topic: str
    group: str
    name: str
    service_s: float
    ack_every: int
    among: int


class WaitingConsumers:
    """The processes. `joined` counts the consumers that have something to read, `received` the messages."""

    def __init__(self, each: list[Waiting], *, stands: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self._go = context.Event()
        if not stands:
            self._go.set()
        self._counts = [context.Value("l", -1, lock=False) for _ in each]
        self._processes = [
            context.Process(target=_live, args=(one, count, self._go), daemon=True)
            for one, count in zip(each, self._counts, strict=True)
        ]
        for process in self._processes:
            process.start()

    def go(self) -> None:
        self._go.set()

    @property
    def joined(self) -> int:
        return sum(count.value >= 0 for count in self._counts)

    @property
    def received(self) -> list[int]:
        return [max(0, count.value) for count in self._counts]

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


@contextlib.asynccontextmanager
async def waiting(each: list[Waiting], *, stands: bool = False) -> AsyncIterator[WaitingConsumers]:
    """With `stands`, they all have joined, and wait for `go`."""
    made = WaitingConsumers(each, stands=stands)
    try:
        if stands:
            async with asyncio.timeout(JOIN_MAX_S):
                while made.joined < len(each):  # noqa: ASYNC110 - other processes have no event.
                    await asyncio.sleep(0.01)
        yield made
    finally:
        made.end()


def _live(one: Waiting, count: Synchronized[int], go: Event) -> None:
    uvloop.run(_read(one, count, go))


async def _read(one: Waiting, count: Any, go: Event) -> None:
    async with Client(one.url) as client:
        consumer = await client.stream_consumer(
            f"topic://{one.topic}", one.group, consumer_name=one.name, start="earliest"
        )
        while not go.is_set() and (  # noqa: ASYNC110 - what a client shows has no event.
            not consumer.attached or (one.among > 1 and "sharing" not in repr(consumer))
        ):
            await asyncio.sleep(0.005)
        count.value = 0
        await asyncio.to_thread(go.wait)
        while True:
            message = await consumer.receive()
            if one.service_s:
                await asyncio.sleep(one.service_s)
            count.value += 1
            if count.value % one.ack_every == 0:
                await consumer.ack_cumulative(message)
