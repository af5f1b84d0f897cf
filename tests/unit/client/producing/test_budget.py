"""The memory of all producers of a client: waiting, refusing, fairness, and nothing lost to cancellation."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.client import BadArgument, Client, MemoryFull
from anabranch.client.producing.budget import MemoryBudget
from unit.client.scripted import ScriptedBroker

TOPIC = "topic://public/default/t"
ROOT = "segment://public/default/t/0000-ffff-0"


async def start(budget: MemoryBudget, *sizes: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(budget.take(size)) for size in sizes]
    await asyncio.sleep(0)
    return tasks


async def test_who_asks_first_is_served_first_whatever_the_size() -> None:
    budget = MemoryBudget(100)
    await budget.take(80)
    large, small = await start(budget, 60, 10)
    await asyncio.sleep(0)
    assert not small.done()
    budget.release(30)
    assert not small.done()
    budget.release(10)
    await large
    assert not small.done()
    budget.release(40)
    await small
    assert budget.used == 70


async def test_a_message_larger_than_the_budget_passes_alone() -> None:
    budget = MemoryBudget(100)
    await budget.take(1000)
    (waiting,) = await start(budget, 1)
    assert not waiting.done()
    budget.release(1000)
    await waiting
    assert budget.used == 1


async def test_a_full_budget_refuses_if_so_chosen() -> None:
    budget = MemoryBudget(100, "refuse")
    await budget.take(100)
    with pytest.raises(MemoryFull, match="memory_bytes_max"):
        await budget.take(1)
    assert budget.used == 100


@pytest.mark.parametrize("is_served", [False, True])
async def test_a_cancelled_wait_takes_nothing_and_lets_the_next_pass(is_served: bool) -> None:
    budget = MemoryBudget(100)
    await budget.take(100)
    first, second = await start(budget, 90, 20)
    if is_served:
        budget.release(90)
    first.cancel()
    if not is_served:
        budget.release(20)
    await second
    await asyncio.wait([first])
    assert first.cancelled()
    assert budget.used == (30 if is_served else 100)


async def test_two_waits_cancelled_at_once_leave_no_trace() -> None:
    budget = MemoryBudget(100)
    await budget.take(100)
    tasks = await start(budget, 90, 20, 5)
    tasks[0].cancel()
    tasks[1].cancel()
    budget.release(100)
    await asyncio.wait(tasks)
    assert budget.used == 5


@given(st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=30))
def test_whatever_is_cancelled_everything_is_given_back(sizes: list[tuple[int, bool]]) -> None:
    async def play() -> None:
        budget = MemoryBudget(100)

        async def use(size: int) -> None:
            await budget.take(size)
            try:
                await asyncio.sleep(0)
            finally:
                budget.release(size)

        tasks = [asyncio.create_task(use(size)) for size, _ in sizes]
        for task, (_, is_cancelled) in zip(tasks, sizes, strict=True):
            if is_cancelled:
                await asyncio.sleep(0)
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert budget.used == 0

    asyncio.run(play())


def test_settings_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(BadArgument):
        MemoryBudget(0)
    with pytest.raises(BadArgument, match="refuse"):
        MemoryBudget(1, "drop")  # type: ignore[arg-type]


# -- as producers use it


async def test_posts_wait_for_receipts_when_the_clients_memory_is_full(script: ScriptedBroker) -> None:
    script.receipts = False
    async with Client(script.url, memory_bytes_max=2000) as client:
        one, other = await client.producer(TOPIC, batching=False), await client.producer(TOPIC)
        await one.post(bytes(1200))
        waiting = asyncio.create_task(other.post(bytes(1200)))
        await script.until(lambda: script.sent)
        assert not waiting.done()
        script.receipts = True
        script.receipt(ROOT, 0)
        await (await waiting)


async def test_posts_are_refused_when_the_clients_memory_is_full_if_so_chosen(script: ScriptedBroker) -> None:
    async with (
        Client(script.url, memory_bytes_max=2000, when_full="refuse") as client,
        client.producer(TOPIC) as producer,
    ):
        receipt = await producer.post(bytes(1200))
        with pytest.raises(MemoryFull):
            await producer.post(bytes(1200))
        await receipt
        await producer.send(bytes(1200))


async def test_every_byte_is_given_back_whatever_becomes_of_a_message(script: ScriptedBroker) -> None:
    """The budget holds one message at a time: one that was not given back would stop everything."""
    async with (
        Client(script.url, memory_bytes_max=700) as client,
        client.producer(TOPIC, chunking=True) as producer,
    ):
        async with asyncio.timeout(20):
            for _ in range(5):
                await producer.post(bytes(300), key="k", properties={"a": "b" * 50})
                await producer.post(bytes(300), deliver_at=1)
                await producer.post(bytes(300), sequence_id=producer.last_sequence_id + 1, event_time=1)
                await producer.post(None, key=b"bytes")
                with pytest.raises(BadArgument):
                    await producer.post(bytes(300), event_time=-1)
                with pytest.raises(BadArgument):
                    await producer.post(bytes(300), sequence_id=0)
            await producer.flush()
