"""The clients of the run on a scalable topic: producers and consumers of every kind, which come, go and crash.

All of them live in one process, so that one history holds what they saw in the order in which it happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from anabranch.client import (
    CheckpointConsumer,
    Client,
    Message,
    MessageId,
    Producer,
    QueueConsumer,
    StreamConsumer,
)
from anabranch.client.consuming.core.checkpoint import Start
from anabranch.errors import AnabranchError
from anabranch.simulation.world.history import History, HistoryPlace, Sent

KEYS = 40
IN_FLIGHT = 400
# The broker's limit: small, so that messages of some hundred KB are chunked.
MESSAGE_BYTES_MAX = 256 * 1024
OPEN_SECONDS_MAX = 60.0
FLUSH_SECONDS_MAX = 120.0
EXPECTED = (AnabranchError, TimeoutError, OSError)


@dataclass
class World:
    """What all clients share. Once `is_calm`, they neither leave nor crash any more, and producers end."""

    url: str
    topic: str
    chance: random.Random
    history: History = field(default_factory=History)
    is_calm: bool = False
    note: Callable[[str], None] = lambda text: None
    crashes: int = 0
    leaves: int = 0

    def client(self) -> Client:
        return Client(self.url, chance=random.Random(self.chance.getrandbits(64)))


@contextlib.contextmanager
def crashed_unless_done(client: Client) -> Iterator[None]:
    """A client whose opening or closing fails, or is cancelled, leaves no connection behind."""
    try:
        yield
    except BaseException:
        client.crash()
        raise


# -- messages: a key follows from producer and number, so that they can be made again


def key_of(producer: str, number: int) -> str:
    return f"k{zlib.crc32(f'{producer} {number}'.encode()) % KEYS}"


# Producers of this name send messages of up to three chunks, fewer of them at a time.
CHUNKING = "chunker"
CHUNKED_BYTES_MAX = 3 * MESSAGE_BYTES_MAX
CHUNKED_IN_FLIGHT = 8


def payload_of(producer: str, number: int) -> bytes:
    head = f"{producer}|{number}|".encode()
    size_max = CHUNKED_BYTES_MAX if producer.startswith(CHUNKING) else 400
    return head + b"." * (zlib.crc32(head) % size_max)


class Producing:
    """Sends in bursts. With `is_restless` it has a fixed name and crashes now and then with messages in flight; its
    next life sends again everything from the first message without a receipt, under the same sequence ids."""

    def __init__(self, world: World, name: str, per_second: float, *, is_restless: bool) -> None:
        self.name = name
        self._world = world
        self._per_second = per_second
        self._is_restless = is_restless
        self._sent = 0
        self._receipted: set[int] = set()
        self._first_open = 0
        self._is_chunking = name.startswith(CHUNKING)

    async def live(self) -> None:
        world = self._world
        while not (world.is_calm and self._first_open == self._sent):
            producer = await self._open()
            number = self._first_open
            ends = time.monotonic() + (world.chance.uniform(2.0, 8.0) if self._is_restless else 1e9)
            try:
                while time.monotonic() < ends or world.is_calm:
                    burst = world.chance.randint(1, CHUNKED_IN_FLIGHT if self._is_chunking else IN_FLIGHT)
                    for _ in range(burst):
                        if world.is_calm and number >= self._sent:
                            break
                        await self._send(producer, number)
                        number += 1
                    if world.is_calm and number >= self._sent:
                        async with asyncio.timeout(FLUSH_SECONDS_MAX):
                            await producer.flush()
                        await self._client.close()
                        return
                    await asyncio.sleep(burst / self._per_second)
            except EXPECTED as error:
                world.note(f"{self.name}: {error!r}")
            else:
                world.crashes += 1
            finally:
                producer.crash()

    async def _open(self) -> Producer:
        while True:
            self._client = self._world.client()
            try:
                with crashed_unless_done(self._client):
                    async with asyncio.timeout(OPEN_SECONDS_MAX):
                        return await self._client.producer(
                            self._world.topic,
                            name=self.name if self._is_restless else None,
                            create=False,
                            chunking=self._is_chunking,
                            send_timeout_s=None,
                        )
            except EXPECTED as error:
                self._world.note(f"{self.name} cannot open: {error!r}")
                await asyncio.sleep(0.2)

    async def _send(self, producer: Producer, number: int) -> None:
        key = key_of(self.name, number)
        if number >= self._sent:
            self._world.history.sent(self.name, number, key)
            self._sent = number + 1
        receipt = await producer.post(
            payload_of(self.name, number),
            key=key,
            sequence_id=number if self._is_restless else None,
        )
        receipt.add_done_callback(partial(self._answered, number))

    def _answered(self, number: int, receipt: asyncio.Future[MessageId]) -> None:
        if receipt.cancelled() or receipt.exception() is not None:
            return
        self._world.history.receipt(self.name, number)
        self._receipted.add(number)
        while self._first_open in self._receipted:
            self._receipted.discard(self._first_open)
            self._first_open += 1


def sent_of(message: Message) -> tuple[Sent, bool]:
    """The producer and number of a message, and whether it is complete and unchanged."""
    producer, number, _ = message.payload.split(b"|", 2)
    sent = Sent(producer.decode(), int(number))
    return sent, message.payload == payload_of(*sent)


class Member:
    """A consumer of a subscription that leaves, crashes and comes back, under its own name or a new one."""

    def __init__(
        self,
        world: World,
        subscription: str,
        name: str,
        *,
        is_stream: bool,
        life_s: tuple[float, float] = (2.0, 12.0),
    ) -> None:
        self._world = world
        self._subscription = subscription
        self._name = name
        self._is_stream = is_stream
        self._life_s = life_s
        self._lives = 0
        self._held: list[tuple[Sent, Message]] = []
        self._acks: set[asyncio.Task[None]] = set()

    async def live(self) -> None:
        while True:
            self._lives += 1
            try:
                await self._one_life()
            except EXPECTED as error:
                self._world.note(f"{self._name}: {error!r}")
            await asyncio.sleep(self._world.chance.uniform(0.05, 1.0))

    async def _one_life(self) -> None:
        world, chance = self._world, self._world.chance
        name = self._name if chance.random() < 0.6 else f"{self._name}-{self._lives}"
        self._id = f"{name}#{self._lives}"
        self._held = []
        world.history.opened(self._id)
        consumer = await self._open(name)
        ends = time.monotonic() + chance.uniform(*self._life_s)
        try:
            while world.is_calm or time.monotonic() < ends:
                try:
                    async with asyncio.timeout(0.05):
                        message = await consumer.receive()
                except TimeoutError:
                    # Messages held back at the end of a sealed segment would keep its children from all consumers.
                    await self._acknowledge(consumer)
                    continue
                await self._take(consumer, message)
        except BaseException:
            consumer.crash()
            raise
        finally:
            for ack in self._acks:
                ack.cancel()
        if chance.random() < 0.4:
            world.crashes += 1
            consumer.crash()
            return
        world.leaves += 1
        with crashed_unless_done(self._client):
            async with asyncio.timeout(30):
                await self._client.close()

    async def _open(self, name: str) -> StreamConsumer | QueueConsumer:
        client = self._client = self._world.client()
        how = client.stream_consumer if self._is_stream else client.queue_consumer
        with crashed_unless_done(client):
            async with asyncio.timeout(OPEN_SECONDS_MAX):
                return await how(
                    self._world.topic, self._subscription, consumer_name=name, start="earliest", create=False
                )

    async def _take(self, consumer: StreamConsumer | QueueConsumer, message: Message) -> None:
        sent, is_whole = sent_of(message)
        self._world.history.received(
            self._subscription,
            self._id,
            sent,
            message.key or "",
            HistoryPlace(message.segment, message.ledger, message.entry),
            keeps_order=self._is_stream,
            is_whole=is_whole,
        )
        if isinstance(consumer, QueueConsumer):
            # Many acknowledgements under way at once, as an application with workers has.
            ack = asyncio.create_task(self._acknowledge_one(consumer, sent, message))
            self._acks.add(ack)  # Cancelled at the end of this life.
            ack.add_done_callback(self._acks.discard)
            if len(self._acks) > 100:
                await asyncio.wait(self._acks, return_when=asyncio.FIRST_COMPLETED)
            return
        self._held.append((sent, message))
        if len(self._held) >= self._world.chance.randint(1, 200):
            await self._acknowledge(consumer)

    async def _acknowledge_one(self, consumer: QueueConsumer, sent: Sent, message: Message) -> None:
        await consumer.ack(message)
        if await consumer.flush():
            self._world.history.acknowledged(self._subscription, [sent])

    async def _acknowledge(self, consumer: StreamConsumer | QueueConsumer) -> None:
        if not self._held or not isinstance(consumer, StreamConsumer):
            return
        held, self._held = self._held, []
        last = held[-1][1]
        await consumer.ack_cumulative(last)
        if await consumer.flush():
            # In the segment of that message all before it are certainly acknowledged; other segments may have moved
            # away.
            stored = [sent for sent, message in held if message.segment == last.segment]
            self._world.history.acknowledged(self._subscription, stored)


class LoneReader:
    """A checkpoint consumer that starts again from its last checkpoint, which may be some messages old."""

    NAME = "lone"

    def __init__(self, world: World) -> None:
        self._world = world
        self._lives = 0
        self._kept: bytes | None = None

    async def live(self) -> None:
        while True:
            self._lives += 1
            try:
                await self._one_life()
            except EXPECTED as error:
                self._world.note(f"{self.NAME}: {error!r}")
            await asyncio.sleep(self._world.chance.uniform(0.05, 0.5))

    async def _one_life(self) -> None:
        world, chance = self._world, self._world.chance
        who = f"{self.NAME}#{self._lives}"
        world.history.opened(who)
        start: Start = "earliest" if self._kept is None else self._kept
        client = world.client()
        with crashed_unless_done(client):
            async with asyncio.timeout(OPEN_SECONDS_MAX):
                consumer = await client.checkpoint_consumer(world.topic, start=start, create=False)
        ends = time.monotonic() + chance.uniform(3.0, 15.0)
        try:
            await self._read(consumer, who, ends)
        finally:
            consumer.crash()
        world.crashes += 1

    async def _read(self, consumer: CheckpointConsumer, who: str, ends: float) -> None:
        world = self._world
        while world.is_calm or time.monotonic() < ends:
            try:
                async with asyncio.timeout(0.5):
                    message = await consumer.receive()
            except TimeoutError:
                continue
            place = HistoryPlace(message.segment, message.ledger, message.entry)
            (sent, is_whole), key = sent_of(message), message.key or ""
            world.history.received(self.NAME, who, sent, key, place, keeps_order=True, is_whole=is_whole)
            if world.chance.random() < 0.01:
                self._kept = consumer.checkpoint()
