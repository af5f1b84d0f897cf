"""The Java client of Pulsar's master, which knows entry buckets, shares segments beside ours.

Opt-in (`make interop` with PULSAR_CHECKOUT, the path of a checkout): see `java_master.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from anabranch.client import Client
from harness.broker_process import BrokerProcess
from interop import java_master, java_program
from interop.java_worker import JavaWorker
from interop.sharers import (
    KEYS,
    SETTINGS,
    History,
    Member,
    all_receive,
    group,
    make,
    sending,
    sharing,
    until,
)

pytestmark = [pytest.mark.interop, pytest.mark.java, pytest.mark.timeout(1500)]

# Starts a program with the history for what it receives, and its arguments.
Start: TypeAlias = Callable[..., Coroutine[Any, Any, JavaWorker]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    java_master.checkout()
    java_program.build()
    settings = SETTINGS | {"brokerDeduplicationEnabled": True}
    with BrokerProcess(tmp_path_factory.mktemp("master"), settings) as process:
        yield process


@pytest.fixture
async def start(broker: BrokerProcess, tmp_path: Path) -> AsyncIterator[Start]:
    """Programs of the checkout; whatever a test leaves running is ended."""
    path = await asyncio.to_thread(lambda: java_master.classpath(java_master.checkout()))
    started: list[JavaWorker] = []

    async def one(history: History, *arguments: str) -> JavaWorker:
        worker = await JavaWorker.start(
            broker, history, *arguments, complaints=tmp_path / "stderr", classpath=path
        )
        started.append(worker)
        return worker

    yield one
    for worker in started:
        await worker.die()


@contextlib.asynccontextmanager
async def ours_send(broker: BrokerProcess, name: str, history: History) -> AsyncIterator[None]:
    async with Client(broker.url) as client, await client.producer(name) as producer:
        async with sending(producer, history):
            yield
        await until(lambda: history.is_whole)
    history.assert_in_order()


@contextlib.asynccontextmanager
async def theirs_send(sender: JavaWorker, history: History) -> AsyncIterator[None]:
    """Keeps the checkout's producer at work."""
    is_over = asyncio.Event()

    async def send() -> None:
        while not is_over.is_set():
            await sender.send(KEYS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(is_over.wait(), 0.02)

    task = asyncio.create_task(send())
    try:
        yield
    finally:
        is_over.set()
        await task
    await until(lambda: history.is_whole)
    history.assert_in_order()


async def test_two_share_a_segment_and_no_key_is_split(
    broker: BrokerProcess, topic: str, start: Start
) -> None:
    name = make(broker, topic)
    histories = History(), History()
    one, two = [await start(history, "stream", name, "team", f"c{n}") for n, history in enumerate(histories)]
    await until(lambda: sharing(broker, name) == 2)
    whole = History()
    async with (
        Client(broker.url) as client,
        await client.producer(name) as producer,
        sending(producer, whole),
    ):
        await all_receive(one, two)
    await until(lambda: sum(len(history.seen) for history in histories) == whole.sent)
    keys = [{key for key, _ in history.received} for history in histories]
    assert not keys[0] & keys[1]
    assert len(keys[0] | keys[1]) == KEYS
    for history in histories:
        history.assert_in_order()


async def test_a_second_and_a_third_join_in_the_middle_of_the_traffic_and_leave(
    broker: BrokerProcess, topic: str, start: Start
) -> None:
    name, history = make(broker, topic), History()
    async with ours_send(broker, name, history):
        one = await start(history, "stream", name, "team", "one")
        await all_receive(one)
        two = await start(history, "stream", name, "team", "two")
        await all_receive(one, two)
        three = await start(history, "stream", name, "team", "three")
        await all_receive(one, two, three)
        assert sharing(broker, name) == 3
        await two.close()
        await one.close()
        await all_receive(three)


async def test_acknowledgements_that_are_slow_when_it_comes_to_be_shared_hold_it_up_and_cost_nothing(
    broker: BrokerProcess, topic: str, start: Start
) -> None:
    name, history = make(broker, topic), History()
    async with ours_send(broker, name, history):
        one = await start(history, "stream", name, "team", "one")
        await all_receive(one)
        await one.tell("hold")
        await all_receive(one)
        two = asyncio.create_task(start(history, "stream", name, "team", "two"))
        await until(lambda: group(broker, name) == {"one", "two"})
        # The second is told to share, and waits: the first has not let go.
        assert sharing(broker, name) == 0
        await one.tell("ack")
        await all_receive(one, await two)


async def test_one_that_leaves_with_pending_acknowledgements_loses_nothing(
    broker: BrokerProcess, topic: str, start: Start
) -> None:
    name, history = make(broker, topic), History()
    async with ours_send(broker, name, history):
        one = await start(history, "stream", name, "team", "one")
        two = await start(history, "stream", name, "team", "two")
        await all_receive(one, two)
        await two.tell("hold")
        await all_receive(one, two)
        await two.tell("leave", "left")
        await all_receive(one)


async def test_its_producer_tells_the_ranges_and_ours_share(
    broker: BrokerProcess, topic: str, start: Start
) -> None:
    """With deduplication."""
    name, history = make(broker, topic), History()
    sender = await start(history, "produce", name, str(KEYS))
    members = [await Member.join(broker, name, f"m{n}", history) for n in range(3)]
    async with theirs_send(sender, history):
        await all_receive(*members)
        await members[0].leave()
        await all_receive(*members[1:])
    for member in members[1:]:
        await member.leave()


async def test_its_clients_and_ours_share_in_one_group(
    broker: BrokerProcess, topic: str, start: Start
) -> None:
    name, history = make(broker, topic), History()
    async with ours_send(broker, name, history):
        ours = await Member.join(broker, name, "ours", history)
        theirs = await start(history, "stream", name, "team", "theirs")
        await all_receive(ours, theirs)
        assert sharing(broker, name) == 2
        await ours.leave()
        await all_receive(theirs)


async def test_what_it_sends_without_keys_comes_to_its_sharers(
    broker: BrokerProcess, topic: str, start: Start
) -> None:
    name, history = make(broker, topic), History()
    sender = await start(history, "produce", name, "0")
    one = await start(history, "stream", name, "team", "one")
    two = await start(history, "stream", name, "team", "two")
    await until(lambda: sharing(broker, name) == 2)
    for _ in range(10):
        await sender.send(50)
    await until(lambda: history.is_whole)
    assert one.received + two.received >= history.sent
