"""Members of one client that leave a stream's group and come back under their names, while the topic is reshaped.

Their connections stay, so the leftovers of a member do not vanish by themselves. A cut connection would remove them, so
the members go on for a while after the faults have ended, and so do the splits and merges.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final

from anabranch.client.client import Client
from anabranch.client.consuming.stream import StreamConsumer
from anabranch.model.scalable import SubscriptionKind
from anabranch.simulation.plays.play import Play
from anabranch.simulation.world import workload
from anabranch.simulation.world.faults import Faults
from anabranch.simulation.world.kinds import TroubleKind
from anabranch.simulation.world.workload import CLOSING_MAX_S, RoamingReader
from anabranch.simulation.world.world import TOPIC, World

GROUP: Final = "group"
MEMBERS: Final = 3
LIVES_S: Final = (0.1, 2.0)
# The time after the faults have ended.
RESHAPED_S: Final = 5.0


class Member(RoamingReader):
    """A consumer of a client that it shares with others. It leaves properly, and the client stays."""

    def __init__(self, world: World, client: Client, name: str, group: GroupPlay) -> None:
        super().__init__(world, GROUP, name, is_stream=True)
        self._shared = client
        self._group = group

    async def live(self) -> None:
        while True:
            self._lives += 1
            try:
                await self._stay()
            except workload.EXPECTED as error:
                self._world.note(f"{self._name} gives up: {error!r}")
            await asyncio.sleep(self._world.chance.uniform(0.0, 0.3))

    async def _stay(self) -> None:
        world = self._world
        self._id = f"{self._name}#{self._lives}"
        self._held = []
        self._history.opened(self._id)
        async with asyncio.timeout(20):
            consumer: StreamConsumer = await self._shared.stream_consumer(
                TOPIC, GROUP, consumer_name=self._name, start="earliest", create=False
            )
        world.note(f"{self._id} has joined")
        try:
            ends = world.loop.time() + world.chance.uniform(*LIVES_S)
            while self._group.is_over or world.loop.time() < ends:
                await self._receive(consumer)
        finally:
            async with asyncio.timeout(CLOSING_MAX_S):
                await consumer.close()
            world.note(f"{self._id} has left")


class GroupPlay(Play):
    kind: ClassVar = TroubleKind.GROUP

    def __init__(self, world: World, faults: Faults) -> None:
        super().__init__(world, faults)
        self.history = world.history  # Its messages go to the subscriptions of the main load, too.
        self.is_over = False

    async def prepare(self) -> None:
        await workload.subscribe(self.world, GROUP, SubscriptionKind.STREAM)

    def start(self) -> None:
        self._readers.append(self.world.on_host("group", self._live()))
        self.client("grouped", self._produce("grouped"))
        self.task(self._reshape())

    async def _live(self) -> None:
        client = self.world.client()
        members = [Member(self.world, client, f"m{n}", self) for n in range(MEMBERS)]
        await asyncio.gather(*(member.live() for member in members))

    async def _reshape(self) -> None:
        world = self.world
        ends = None
        while ends is None or world.loop.time() < ends:
            await asyncio.sleep(self.chance.expovariate(1 / 0.5))
            if world.is_calm:
                ends = ends or world.loop.time() + RESHAPED_S
                await workload.reshape_once(world)
        self.is_over = True

    async def _produce(self, name: str) -> None:
        client = self.world.client()
        producer = await self.until_done(
            f"{name} is open",
            lambda: client.producer(TOPIC, name=name, create=False, send_timeout_s=None),
        )
        number = 0
        while not self.is_over:
            key = self.chance.choice(workload.KEYS)
            self.history.sent(name, number, key)
            receipt = await producer.post(workload.payload_of(name, number), key=key)
            receipt.add_done_callback(workload.receipt_of(self.world, name, number))
            number += 1
            await asyncio.sleep(self.chance.expovariate(1 / 0.15))
        await producer.flush()
        await client.close()

    def left(self) -> str | None:
        for task in self._readers:
            if task.done():
                task.result()
        # The run itself checks what is owed to the subscriptions.
        return next((f"{task.get_name()} is not done" for task in self._tasks if not task.done()), None)
