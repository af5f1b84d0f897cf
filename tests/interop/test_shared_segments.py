"""Stream consumers that share the segments of a real broker process by entry buckets: joining, leaving, dying."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

import pytest

from anabranch.client import Client, Closed, ConnectionLost, Producer, StreamConsumer
from harness.broker_process import BrokerProcess

pytestmark = pytest.mark.interop

WITHIN_S = 30.0
KEYS = 40
SETTINGS = {"scalableTopicEntryBucketBudget": 4, "scalableTopicConsumerSessionGracePeriodSeconds": 1}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("shared"), SETTINGS) as process:
        yield process


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
                assert message.key is not None
                self.received += 1
                self._history.add(message.key, int(message.payload))
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


async def all_receive(*members: Member) -> None:
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
                receipts.append(await producer.post(b"%d" % number, key=f"key-{number % KEYS}"))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(is_over.wait(), 0.01)
        await asyncio.gather(*receipts)

    task = asyncio.create_task(send())
    try:
        yield
    finally:
        is_over.set()
        await task


def make(broker: BrokerProcess, name: str) -> str:
    """A topic with one segment, which keeps it."""
    path = f"scalable/public/default/{name}"
    broker.put(f"{path}?numInitialSegments=1")
    broker.post(f"{path}/autoScalePolicy", {"enabled": False})
    return f"topic://public/default/{name}"


@pytest.mark.parametrize("every", [1, 7])
async def test_keys_keep_their_order_over_sharers_that_join_leave_and_die(
    shared: BrokerProcess, topic: str, every: int
) -> None:
    name, history = make(shared, topic), History()
    async with Client(shared.url) as client, await client.producer(name) as producer:
        async with sending(producer, history):
            first = await Member.join(shared, name, "first", history, every)
            await all_receive(first)
            second = await Member.join(shared, name, "second", history, every)
            await all_receive(first, second)
            assert "sharing 0" in repr(first.consumer)
            third = await Member.join(shared, name, "third", history, every)
            await all_receive(first, second, third)
            await first.leave()
            await all_receive(second, third)
            await second.die()
            await until(lambda: "sharing" not in repr(third.consumer))
            await all_receive(third)
            fourth = await Member.join(shared, name, "fourth", history, every)
            await all_receive(third, fourth)
        await until(lambda: history.is_whole)
        history.assert_in_order()
        for member in (third, fourth):
            await member.leave()


async def test_sharers_wait_at_the_same_time(shared: BrokerProcess, topic: str) -> None:
    """Four applications that take their time over each message are four times as quick as one."""
    name, history, pause_s = make(shared, topic), History(), 0.005

    async def work(consumer: StreamConsumer) -> None:
        with contextlib.suppress(Closed):
            while True:
                message = await consumer.receive()
                await asyncio.sleep(pause_s)
                assert message.key is not None
                history.add(message.key, int(message.payload))
                await consumer.ack_cumulative(message)

    clients = [Client(shared.url) for _ in range(5)]
    try:
        consumers = [
            await client.stream_consumer(name, "team", consumer_name=f"c{number}", start="earliest")
            for number, client in enumerate(clients[:4])
        ]
        await until(
            lambda: all("sharing 0" in repr(consumer) and consumer.attached for consumer in consumers)
        )
        producer = await clients[4].producer(name)
        history.sent = 1600
        receipts = [await producer.post(b"%d" % n, key=f"key-{n % KEYS}") for n in range(history.sent)]
        await asyncio.gather(*receipts)
        started = time.monotonic()
        working = [asyncio.create_task(work(consumer)) for consumer in consumers]
        await until(lambda: history.is_whole)
        took = time.monotonic() - started
        for task in working:
            task.cancel()
        await asyncio.wait(working)
        # Keys are not spread evenly: the fullest of four buckets has more than a quarter of 40 keys.
        assert took < 0.7 * history.sent * pause_s
        history.assert_in_order()
    finally:
        for client in clients:
            await client.close()
