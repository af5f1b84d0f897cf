"""Consumers that share segments by entry buckets, and what all of them together have received."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Protocol

from anabranch.client import Client, Closed, ConnectionLost, Producer, StreamConsumer
from harness.broker_process import BrokerProcess

WITHIN_S = 60.0
KEYS = 40
SETTINGS = {"scalableTopicEntryBucketBudget": 4, "scalableTopicConsumerSessionGracePeriodSeconds": 1}


@dataclass
class History:
    """What all consumers together received, in order, and what was sent."""

    received: list[tuple[str, int]] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    sent: int = 0

    def add(self, key: str, number: int) -> None:
        if number not in self.seen:
            self.seen.add(number)
            self.received.append((key, number))

    @property
    def is_whole(self) -> bool:
        return len(self.seen) == self.sent

    def assert_in_order(self) -> None:
        last: dict[str, int] = defaultdict(lambda: -1)
        for key, number in self.received:
            assert number > last[key], f"{key}: {number} came first after {last[key]}"
            last[key] = number


class Member:
    """A consumer with a client of its own, and an application that acknowledges every few messages."""

    def __init__(self, client: Client, consumer: StreamConsumer, history: History, every: int) -> None:
        self.client = client
        self.consumer = consumer
        self.received = 0
        self.keyless = 0  # Messages without a key: they are in no history.
        self._history = history
        self._every = every
        self._reading = asyncio.create_task(self._read())  # Ended by `leave` and `die`.

    @staticmethod
    async def join(broker: BrokerProcess, topic: str, name: str, history: History, every: int = 1) -> Member:
        client = Client(broker.url)
        consumer = await client.stream_consumer(topic, "team", consumer_name=name, start="earliest")
        return Member(client, consumer, history, every)

    async def _read(self) -> None:
        with contextlib.suppress(Closed, ConnectionLost):
            while True:
                message = await self.consumer.receive()
                if message.key is None:
                    self.keyless += 1
                    await self.consumer.ack_cumulative(message)
                    continue
                self.received += 1
                self._history.add(message.key, int(message.payload.rpartition(b":")[2]))
                if self.received % self._every == 0 or self._history.is_whole:
                    await self.consumer.ack_cumulative(message)

    async def leave(self) -> None:
        await self.consumer.close()
        await self._stop()
        await self.client.close()

    async def die(self) -> None:
        self.consumer.crash()
        await self._stop()

    async def _stop(self) -> None:
        self._reading.cancel()
        await asyncio.wait([self._reading])


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not met():  # noqa: ASYNC110 - what clients show has no event.
            await asyncio.sleep(0.01)


class Receives(Protocol):
    received: int


async def all_receive(*members: Receives) -> None:
    """Each of them gets messages from here on."""
    before = [member.received for member in members]
    await until(lambda: all(one.received > count + 20 for one, count in zip(members, before, strict=True)))


@contextlib.asynccontextmanager
async def sending(producer: Producer, history: History) -> AsyncIterator[None]:
    """Keyed messages at a steady pace until the block ends; then all are stored."""
    is_over = asyncio.Event()

    async def send() -> None:
        receipts = []
        while not is_over.is_set():
            for _ in range(20):
                number = history.sent
                history.sent += 1
                receipts.append(
                    await producer.post(f"key-{number % KEYS}:{number}".encode(), key=f"key-{number % KEYS}")
                )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(is_over.wait(), 0.01)
        await asyncio.gather(*receipts)

    task = asyncio.create_task(send())
    try:
        yield
    finally:
        is_over.set()
        await task


def make(broker: BrokerProcess, name: str, segments: int = 1) -> str:
    """A topic with that many segments, which keeps them."""
    path = f"scalable/public/default/{name}"
    broker.put(f"{path}?numInitialSegments={segments}")
    broker.post(f"{path}/autoScalePolicy", {"enabled": False})
    return f"topic://public/default/{name}"


def sharing(broker: BrokerProcess, topic: str) -> int:
    """How many consumers of the group are attached to segments that several share."""
    stats = broker.get(f"{topic.replace('topic://', 'scalable/')}/stats")
    attached = (one["subscriptions"].get("team", {}) for one in stats["segments"].values())
    return sum(count for one in attached if (count := one.get("consumerCount", 0)) > 1)


def group(broker: BrokerProcess, topic: str) -> set[str]:
    """The names of the group's consumers, as the controller knows them."""
    stats = broker.get(f"{topic.replace('topic://', 'scalable/')}/stats")
    return {one["consumerName"] for one in stats["subscriptions"]["team"]["consumers"]}
