"""Checkpoint consumers of the run: each life continues from a checkpoint, which may be some messages old."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from anabranch.client import CheckpointConsumer, DataLost, merge_checkpoints
from soak.client.history import Progress, merged
from soak.client.world import EXPECTED, OPEN_SECONDS_MAX, WHO, Sabotage, World, sent_of

RECEIVE_S = 0.5
MEMBERS_MAX = 3


class Kept(NamedTuple):
    """A checkpoint, and the progress it stands for."""

    place: bytes
    progress: Progress


class Reader:
    """One life of a checkpoint consumer."""

    def __init__(
        self, world: World, topic: str, who: str, start: Kept | None, group: str | None = None
    ) -> None:
        self.who = who
        self._world = world
        self._topic = topic
        self._start = start
        self._group = group
        self._consumer: CheckpointConsumer | None = None
        self._is_ending = False
        self._last: Kept | None = None  # Taken before it left.
        world.history.reads(who, start.progress if start else {}, group)

    async def live(self, life_s: float = 1e9) -> None:
        """Runs until its time is over or `end` is called, then leaves; crashes if it is cancelled or anything fails."""
        world = self._world
        WHO.set(self.who)
        client = world.client()
        try:
            async with asyncio.timeout(OPEN_SECONDS_MAX):
                self._consumer = await client.checkpoint_consumer(
                    self._topic,
                    start=self._start.place if self._start else "earliest",
                    group=self._group,
                    consumer_name=self.who.replace("#", "-"),
                    create=False,
                )
            ends = time.monotonic() + life_s
            while not self._is_ending and (world.is_calm or time.monotonic() < ends):
                await self._read(self._consumer)
        except BaseException:
            client.crash()
            if self._consumer is not None:
                self._consumer.crash()
            raise
        if world.chance.random() < 0.4 and not self._is_ending:
            self._consumer.crash()
            world.counts["crashes"] += 1
        else:
            self._last = self.keep()
            await client.close()
            world.counts["leaves"] += 1

    def end(self) -> None:
        """Makes it leave in a moment."""
        self._is_ending = True

    def keep(self) -> Kept | None:
        """A checkpoint of this moment, with its progress."""
        if self._consumer is None or self._last is not None:
            return self._last
        return Kept(self._consumer.checkpoint(), self._world.history.progress(self.who))

    async def _read(self, consumer: CheckpointConsumer) -> None:
        world = self._world
        try:
            message = await consumer.receive(timeout_s=RECEIVE_S)
        except TimeoutError:
            return
        try:
            sent = sent_of(message)
        except ValueError as error:
            world.history.fail(f"{self.who}: {error}")
            return
        world.counts["received"] += 1
        if world.spoils(Sabotage.LOSS):
            return
        for _ in range(2 if world.spoils(Sabotage.REPEAT) else 1):
            world.history.read(self.who, sent, message.key or "")


class LoneReader:
    """Comes back again and again."""

    def __init__(self, world: World, topic: str, name: str, life_s: tuple[float, float]) -> None:
        self._world = world
        self._topic = topic
        self._name = name
        self._life_s = life_s
        self._kept: Kept | None = None
        self.reader = ""

    async def live(self) -> None:
        world = self._world
        for life in range(1, 1_000_000):
            reader = Reader(world, self._topic, f"{self._name}#{life}", self._kept)
            self.reader = reader.who
            keeping = asyncio.create_task(self._keep(reader))  # Cancelled below.
            try:
                await reader.live(world.chance.uniform(*self._life_s))
            except DataLost as error:
                world.history.fail(f"{reader.who}: {error}")
            except EXPECTED as error:
                world.note(f"{reader.who}: {error!r}")
            finally:
                keeping.cancel()
            await asyncio.sleep(world.chance.uniform(0.05, 0.5))

    async def _keep(self, reader: Reader) -> None:
        while True:
            await asyncio.sleep(self._world.chance.uniform(0.01, 0.6))
            self._kept = reader.keep() or self._kept


class Group:
    """Members that come and go. When one fails, all of them start again from the group's last checkpoint.

    A group that starts again has another name: what its members had finished counts as long as it has one.
    """

    def __init__(self, world: World, topic: str, name: str, life_s: tuple[float, float]) -> None:
        self._world = world
        self._topic = topic
        self._name = name
        self._life_s = life_s
        self._kept: Kept | None = None
        self._made = 0
        self._members: dict[Reader, asyncio.Task[None]] = {}
        self.reader = ""

    async def live(self) -> None:
        world = self._world
        for generation in range(1, 1_000_000):
            name = f"{self._name}-{generation}"
            try:
                await self._one_life(name)
            except DataLost as error:
                world.history.fail(f"{name}: {error}")
            except EXPECTED as error:
                world.note(f"{name}: {error!r}")
            finally:
                for task in self._members.values():
                    task.cancel()
                await asyncio.gather(*self._members.values(), return_exceptions=True)
                self._members.clear()
            await asyncio.sleep(world.chance.uniform(0.05, 0.5))

    async def _one_life(self, name: str) -> None:
        """Ends after its time, or when a member does that was not told to."""
        world, chance = self._world, self._world.chance
        ends = time.monotonic() + chance.uniform(*self._life_s)
        self._join(name)
        while world.is_calm or time.monotonic() < ends:
            await asyncio.sleep(chance.uniform(0.05, 0.8))
            self._keep()
            for reader, task in list(self._members.items()):
                if task.done():
                    del self._members[reader]
                    task.result()
            if len(self._members) < MEMBERS_MAX and chance.random() < 0.5:
                self._join(name)
            elif len(self._members) > 1 and chance.random() < 0.2 and not world.is_calm:
                await self._leave(chance.choice(list(self._members)))

    def _join(self, name: str) -> None:
        self._keep()
        self._made += 1
        reader = Reader(self._world, self._topic, f"{name}#{self._made}", self._kept, group=name)
        self.reader = reader.who
        self._members[reader] = asyncio.create_task(reader.live())  # Ended by `live`.

    async def _leave(self, reader: Reader) -> None:
        reader.end()
        await self._members[reader]
        self._keep()
        del self._members[reader]

    def _keep(self) -> None:
        kept = [one for one in (self._kept, *(reader.keep() for reader in self._members)) if one is not None]
        if kept:
            place = merge_checkpoints(one.place for one in kept)
            self._kept = Kept(place, merged(one.progress for one in kept))
