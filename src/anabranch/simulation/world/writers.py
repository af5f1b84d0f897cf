"""Jobs that write hidden entries: tasks with several attempts, and a driver that decides which attempt counts.

Only the winning attempt is recorded as sent, at the moment of the decision: the entries of a loser were never sent, and
the history reports any delivery of them. A driver may die right after its decision; then it notifies no topic, and the
topics must find out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from anabranch.broker.broker import Broker
from anabranch.client.hidden_writes.write import Write
from anabranch.model.hidden_writes import WriteBatch
from anabranch.model.names import TopicName
from anabranch.simulation.machine.loop import context_of
from anabranch.simulation.world import workload
from anabranch.simulation.world.history import History
from anabranch.simulation.world.world import World

_TASK_MAX_S: Final = 8.0


@dataclass(slots=True)
class WriterJob:
    """The target of a job. A slow driver takes `slow_s` at most between the last task and its decision."""

    name: str
    topic: str
    history: History
    slow_s: float = 0.0
    # Called before each task, to create its topic.
    make_topic: Callable[[], Awaitable[None]] | None = None


async def write_batches(world: World, job: WriterJob, batches: int) -> None:
    chance = world.chance
    for number in range(batches):
        batch = WriteBatch(job.name, number)
        tries = 0
        won: tuple[UUID, str, list[str], frozenset[str]] | None = None
        # Several attempts may finish; the last one counts.
        while won is None or chance.random() < 0.4:
            tries += 1
            attempt = UUID(int=chance.getrandbits(128), version=4)
            task = f"{job.name}.{number}.{tries}"
            keys = [chance.choice(workload.KEYS) for _ in range(chance.randint(2, 6))]
            written = await _try(world, job, batch, attempt, task, keys)
            if written is not None:
                won = attempt, task, keys, written
            elif won is None:
                await asyncio.sleep(chance.uniform(0.05, 0.5))
        if job.slow_s:
            await asyncio.sleep(chance.uniform(0.0, job.slow_s))
        await _commit(world, job, batch, *won)
        await asyncio.sleep(chance.expovariate(1 / 0.5) if not world.is_calm else 0.01)


async def _try(
    world: World, job: WriterJob, batch: WriteBatch, attempt: UUID, task: str, keys: list[str]
) -> frozenset[str] | None:
    """Makes one attempt; returns the topics written to, or None if it has failed or was given up half-way."""
    world.note(f"{task} is attempt {attempt.hex} at {batch}")
    if job.make_topic is not None:
        await _until_done(world, f"{job.topic} is there", job.make_topic)
    host = world.host(task)
    world.client_hosts["task"] = task
    work = world.loop.create_task(
        _write(world, job, Write(batch.write, batch.batch, attempt), task, keys), context=context_of(host)
    )
    try:
        return await work
    except workload.EXPECTED as error:
        world.note(f"{task} has failed: {error}")
        return None
    finally:
        # Each task has a machine of its own, and its connections end with it.
        world.leave(task)


async def _write(
    world: World, job: WriterJob, write: Write, task: str, keys: list[str]
) -> frozenset[str] | None:
    client = world.client()
    gives_up = world.chance.random() < 0.2
    async with asyncio.timeout(_TASK_MAX_S):
        producer = await client.producer(
            job.topic, create=False, batching=world.chance.random() < 0.5, write=write
        )
        receipts = [await producer.post(workload.payload_of(task, n), key=key) for n, key in enumerate(keys)]
        if gives_up:
            return None
        done = await asyncio.gather(*receipts, return_exceptions=True)
        for error in done:
            if isinstance(error, BaseException):
                raise error
        written = producer.topics_written
        if world.chance.random() < 0.5:
            await client.close()
        return written


async def _commit(
    world: World,
    job: WriterJob,
    batch: WriteBatch,
    attempt: UUID,
    task: str,
    keys: list[str],
    topics: frozenset[str],
) -> None:
    for number, key in enumerate(keys):
        job.history.sent(task, number, key)
    await _until_done(
        world,
        f"{batch} is decided",
        lambda: workload.ask(world, lambda b: b.write_records.decide(batch, [attempt.hex], sorted(topics))),
    )
    for number in range(len(keys)):
        job.history.receipt(task, number)
    if world.chance.random() < 0.3:
        world.note(f"the driver of {batch} is gone")
        return
    for topic in sorted(topics):
        await _until_done(world, f"{batch} is shown by {topic}", partial(_reveal, world, job, topic, batch))


async def _until_done(world: World, what: str, call: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await call()
        except workload.EXPECTED as error:
            world.note(f"not yet: {what}: {error}")
            await asyncio.sleep(world.chance.uniform(0.05, 0.3))
        else:
            world.note(what)
            return


async def _reveal(world: World, job: WriterJob, topic: str, batch: WriteBatch) -> None:
    name = TopicName.parse(topic)

    async def there(broker: Broker) -> None:
        if not broker.owners.is_mine(name):
            raise TimeoutError(f"{topic} is another broker's")
        if await broker.resources.topic_exists(name):
            await (await broker.topic(name)).hidden.reveal(batch)
        elif name.is_classic:
            # Not for a segment, which may have been read and deleted since its entries were shown.
            job.history.vanished(topic, str(batch))

    await workload.ask(world, there)
