"""Stream consumers that share the segments of a real broker process by entry buckets: joining, leaving, dying."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from anabranch.client import Client, Closed, StreamConsumer
from harness.broker_process import BrokerProcess
from interop.sharers import KEYS, SETTINGS, History, Member, all_receive, make, sending, until

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("shared"), SETTINGS) as process:
        yield process


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
    """Four applications that take their time over each message are at it together: the first message of each is
    acknowledged only once all four have one."""
    name, history, all_have_one = make(shared, topic), History(), asyncio.Barrier(4)

    async def work(consumer: StreamConsumer) -> None:
        is_first = True
        with contextlib.suppress(Closed):
            while True:
                message = await consumer.receive()
                if is_first:
                    await all_have_one.wait()
                    is_first = False
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
        working = [asyncio.create_task(work(consumer)) for consumer in consumers]
        await until(lambda: history.is_whole)
        for task in working:
            task.cancel()
        await asyncio.wait(working)
        history.assert_in_order()
    finally:
        for client in clients:
            await client.close()
