"""Random splits and merges of a scalable topic under load, on a real broker that is killed now and then.

Producers keep hundreds of messages in flight, consumers of every kind join, leave and crash, subscriptions are made and
deleted meanwhile. In the end every message with a receipt must have reached every subscription, each key's in order,
none stored twice.
"""

from __future__ import annotations

import asyncio
import random
import time
import urllib.error
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soak.broker import REST_ERRORS, BrokerProcess
from soak.kill import cut_log
from soak.scalable_clients import (
    CHUNKING,
    EXPECTED,
    MESSAGE_BYTES_MAX,
    LoneReader,
    Member,
    Producing,
    World,
)
from soak.scalable_sharers import BUDGET, Sharers

NAMESPACE = "public/river"
TOPIC = f"{NAMESPACE}/delta"
ACTIVE_MAX = 12
# Each reads everything that is retained, so more of them would be too much load.
EXTRA_MAX = 2
SLOW_SECONDS = 1.0
CHUNKED_PER_SECOND = 15.0
SETTINGS = {
    "scalableTopicConsumerSessionGracePeriodSeconds": 3,
    "scalableTopicEntryBucketBudget": BUDGET,
    "retentionCheckIntervalInSeconds": 1,
    "logFileBytes": 8 << 20,
    "defaultRetentionTimeInMinutes": 0,
    "logLingerSeconds": 0,
    "maxMessageSize": MESSAGE_BYTES_MAX,
}


@dataclass(frozen=True, slots=True)
class Options:
    operations: int
    seed: int
    folder: Path
    # Between two operations, on average.
    pause_s: float = 0.12
    # Operations per kill, on average; 0 for no kills.
    operations_per_kill: int = 70
    per_second: float = 60.0
    # How long nothing may come in the end before what is missing counts as lost.
    quiet_s: float = 60.0
    # Cuts the end off the log after each kill, which must not go unnoticed: it tests the judge.
    sabotage: bool = False


@dataclass
class Figures:
    splits: int = 0
    merges: int = 0
    refused: int = 0
    kills: int = 0
    made: int = 0
    deleted: int = 0
    operation_s: list[float] = field(default_factory=list)
    serving_again_s: list[float] = field(default_factory=list)


class Conductor:
    """Splits, merges and kills at random: the operator and the faults of the run."""

    def __init__(self, options: Options, broker: BrokerProcess, world: World) -> None:
        self.options = options
        self.broker = broker
        self.world = world
        self.figures = Figures()
        self._chance = random.Random(f"{options.seed} conductor")
        self._extra: dict[str, asyncio.Task[None]] = {}
        # Subscriptions whose deletion was requested and not answered: requested again until it is. A leftover would
        # keep every segment.
        self._doomed: set[str] = set()
        self._extra_count = 0

    async def rest(self, method: str, path: str, body: object = None) -> Any:
        return await asyncio.to_thread(self.broker.rest, method, path, body)

    async def prepare(self) -> None:
        await self.rest("PUT", f"namespaces/{NAMESPACE}", {})
        await self.rest("POST", f"namespaces/{NAMESPACE}/deduplication", True)
        keep = {"retentionTimeInMinutes": 1, "retentionSizeInMB": -1}
        await self.rest("POST", f"namespaces/{NAMESPACE}/retention", keep)
        await self.rest("PUT", f"scalable/{TOPIC}?numInitialSegments=2")
        for name, kind in (("stream", "STREAM"), ("queue", "QUEUE")):
            await self.rest("PUT", f"scalable/{TOPIC}/subscriptions/{name}?type={kind}")
            self.world.history.subscribed(name, keeps_order=kind == "STREAM")
        self.world.history.subscribed(LoneReader.NAME, keeps_order=True)

    # -- splits and merges

    @property
    def done(self) -> int:
        return self.figures.splits + self.figures.merges

    async def reshape(self) -> None:
        """Runs until there have been enough operations. The broker may die in the middle of any."""
        told = shown = 0
        while self.done < self.options.operations:
            await asyncio.sleep(self._chance.expovariate(1 / self.options.pause_s))
            killing = asyncio.create_task(self._perhaps_kill())  # Awaited below.
            try:
                await self._reshape_once()
            except urllib.error.HTTPError as error:
                self.figures.refused += 1
                self.world.note(f"refused: {error.code} {error.read()[:200]!r}")
            except REST_ERRORS as error:
                self.world.note(f"operation failed: {error!r}")
            await killing
            if self.done >= told + max(1, self.options.operations // 20):
                told = self.done
                print(f"{self.done}/{self.options.operations} operations; {self.summary()}", flush=True)
            # At once: who watches a long run need not wait for its end.
            found = self.world.history.violations
            for violation in found[shown:]:
                print(f"VIOLATION {violation}", flush=True)
            shown = len(found)

    async def _reshape_once(self) -> None:
        layout = await self.rest("GET", f"scalable/{TOPIC}")
        active = sorted(
            (s["hashRange"]["start"], s["segmentId"], s["hashRange"]["end"])
            for s in layout["segments"].values()
            if s["state"] == "ACTIVE"
        )
        began = time.monotonic()
        if len(active) == 1 or (len(active) < ACTIVE_MAX and self._chance.random() < 0.55):
            start, number, end = self._chance.choice(active)
            if start == end:
                return
            await self.rest("POST", f"scalable/{TOPIC}/split/{number}")
            self.figures.splits += 1
        else:
            at = self._chance.randrange(len(active) - 1)
            await self.rest("POST", f"scalable/{TOPIC}/merge/{active[at][1]}/{active[at + 1][1]}")
            self.figures.merges += 1
        took = time.monotonic() - began
        self.figures.operation_s.append(took)
        if took > SLOW_SECONDS:
            self.world.note(f"an operation on {len(layout['segments'])} segments took {took:.2f} s")

    async def _perhaps_kill(self) -> None:
        """kill -9 now and then, at any moment of the operation that begins now."""
        every = self.options.operations_per_kill
        is_overdue = self.figures.kills == 0 and self.done >= self.options.operations // 2
        if every and (is_overdue or self._chance.random() < 1 / every):
            await asyncio.sleep(self._chance.uniform(0.0, 0.06))
            await asyncio.to_thread(self.kill_once)

    def kill_once(self) -> None:
        self.broker.kill()
        if self.options.sabotage:
            cut_log(self.broker.data)
        self.figures.serving_again_s.append(self.broker.start())
        self.figures.kills += 1

    # -- subscriptions that come and go

    async def subscribe(self) -> None:
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / 3.0))
            if self._doomed:
                await self._delete(min(self._doomed))
            elif self._extra and self._chance.random() < 0.5:
                await self._delete(self._chance.choice(sorted(self._extra)))
            elif len(self._extra) < EXTRA_MAX:
                await self._make()

    async def _make(self) -> None:
        self._extra_count += 1
        name, kind = f"extra-{self._extra_count}", self._chance.choice(("STREAM", "QUEUE"))
        try:
            await self.rest("PUT", f"scalable/{TOPIC}/subscriptions/{name}?type={kind}")
        except REST_ERRORS as error:
            self.world.note(f"{name} was perhaps not made: {error!r}")
            self._doomed.add(name)
            return
        self.figures.made += 1
        self.world.history.subscribed(name, keeps_order=kind == "STREAM")
        member = Member(self.world, name, f"{name}-m", is_stream=kind == "STREAM")
        self._extra[name] = asyncio.create_task(member.live())  # Ended by `_delete` or `end`.

    async def _delete(self, name: str) -> None:
        """Its consumer leaves first: one that stays would create the subscription again."""
        # Before anything that the end of the run may interrupt: nothing is owed to it from here on.
        self.world.history.doomed(name)
        self._doomed.add(name)
        if name in self._extra:
            await cancel(self._extra.pop(name))
        try:
            await self.rest("DELETE", f"scalable/{TOPIC}/subscriptions/{name}")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                self.world.note(f"{name} was not deleted: {error!r}")
                return
        except REST_ERRORS as error:
            self.world.note(f"{name} was perhaps not deleted: {error!r}")
            return
        self._doomed.discard(name)
        self.figures.deleted += 1
        self.world.history.deleted(name)

    async def end(self) -> None:
        for task in self._extra.values():
            await cancel(task)

    def summary(self) -> str:
        sent, receipted, delivered = self.world.history.figures
        took = sorted(self.figures.operation_s) or [0.0]
        return (
            f"{self.figures.kills} kills, {sent:,} sent, {receipted:,} receipts, {delivered:,} delivered, "
            f"{self.world.leaves} left, {self.world.crashes} crashed, {len(self.world.history.violations)} violations; "
            f"operation p50 {took[len(took) // 2] * 1000:.0f} ms"
        )


async def cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def run(options: Options) -> int:
    """Returns the exit code: 0 if nothing was violated."""
    options.folder.mkdir(parents=True, exist_ok=True)
    broker = BrokerProcess(options.folder / "data", SETTINGS)
    print(
        f"soak: {options.operations} splits and merges, seed {options.seed}, data in {options.folder}",
        flush=True,
    )
    try:
        broker.start()
        return asyncio.run(_run(options, broker))
    finally:
        if broker.is_running:
            broker.kill()


async def _run(options: Options, broker: BrokerProcess) -> int:
    chance = random.Random(f"{options.seed} clients")
    with (options.folder / "notes.log").open("w", buffering=1) as notes:
        began = time.monotonic()

        def note(text: str) -> None:
            notes.write(f"{time.monotonic() - began:9.3f} {text}\n")

        world = World(broker.url, f"topic://{TOPIC}", chance, note=note)
        conductor = Conductor(options, broker, world)
        sharers = Sharers(broker, options.seed, note, options.per_second)
        await conductor.prepare()
        await sharers.prepare()
        sharers.start()
        consumers = [
            *(Member(world, "stream", f"stream-{n}", is_stream=True).live() for n in range(3)),
            *(Member(world, "queue", f"queue-{n}", is_stream=False).live() for n in range(2)),
            LoneReader(world).live(),
        ]
        producers = [
            Producing(world, f"producer-{n}", options.per_second, is_restless=n == 0) for n in range(3)
        ]
        # One lives through everything, the other dies with chunks in flight and comes back.
        producers += [
            Producing(world, f"{CHUNKING}-{n}", CHUNKED_PER_SECOND, is_restless=n == 0) for n in range(2)
        ]
        living = [asyncio.create_task(one) for one in consumers]
        sending = [asyncio.create_task(one.live()) for one in producers]
        subscribing = asyncio.create_task(conductor.subscribe())
        try:
            await conductor.reshape()
            await cancel(subscribing)
            world.is_calm = sharers.world.is_calm = True
            await asyncio.gather(*sending, sharers.sent())
            await asyncio.gather(settle(world, options.quiet_s), settle(sharers.world, options.quiet_s))
        except EXPECTED as error:
            world.history.violations.append(f"the run did not end: {error!r}")
        finally:
            await conductor.end()
            await sharers.end()
            for task in (*living, *sending, subscribing):
                await cancel(task)
        return _report(options, conductor, sharers, time.monotonic() - began)


async def settle(world: World, quiet_s: float) -> None:
    """Waits until every expected message has come, as long as anything still comes from one look to the next."""
    before, changed = -1, time.monotonic()
    while True:
        began = time.monotonic()
        owed = sum(len(world.history.owed(name)) for name in world.history.subscriptions)
        looked = time.monotonic()
        if owed == 0:
            return
        if owed != before:
            before, changed = owed, looked
        elif looked - changed >= quiet_s:
            return
        # Looking through a long history takes seconds, in which nobody can receive anything.
        await asyncio.sleep(max(0.25, 4 * (looked - began)))


def _report(options: Options, conductor: Conductor, sharers: Sharers, took_s: float) -> int:
    figures, world = conductor.figures, conductor.world
    violations = [*world.history.check(), *sharers.check()]
    took = sorted(figures.operation_s) or [0.0]
    print(
        f"\n{figures.splits} splits and {figures.merges} merges in {took_s:.0f} s, seed {options.seed}: "
        f"{conductor.summary()}, p99 {took[len(took) * 99 // 100] * 1000:.0f} ms, {figures.refused} refused, "
        f"{figures.made} subscriptions made and {figures.deleted} deleted meanwhile, "
        f"slowest restart {max(figures.serving_again_s, default=0.0):.2f} s, "
        f"{world.history.unanswered} without a receipt\n{sharers.summary()}"
    )
    for violation in violations:
        print(f"VIOLATION {violation}")
    if violations:
        print(f"FAILED with seed {options.seed}; see {options.folder}")
        return 1
    print("nothing acked was lost, no key's order was broken, nothing was stored twice")
    return 0
