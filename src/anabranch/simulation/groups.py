"""Members of one client that leave a stream's group and come back under their names, while the topic is reshaped.

Their connections stay: nothing that a member leaves behind goes away by itself.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar, Final

from anabranch.client.client import Client
from anabranch.client.stream_consumer import StreamConsumer
from anabranch.model.scalable import SubscriptionKind
from anabranch.simulation import workload
from anabranch.simulation.kinds import Kind
from anabranch.simulation.plays import Play
from anabranch.simulation.workload import CLOSING_MAX_S, TOPIC, Reader

if TYPE_CHECKING:
    from anabranch.simulation.run import World

GROUP: Final = "group"
MEMBERS: Final = 3
LIVES_S: Final = (0.3, 3.0)


class Member(Reader):
    """A consumer of a client that it shares with others. It leaves properly, and the client stays."""

    def __init__(self, world: World, client: Client, name: str) -> None:
        super().__init__(world, GROUP, name, is_stream=True)
        self._shared = client
        self._is_over = False

    async def live(self) -> None:
        while True:
            self._lives += 1
            try:
                await self._stay()
            except workload.EXPECTED as error:
                self._world.note(f"{self._name} gives up: {error!r}")
            await asyncio.sleep(self._world.chance.uniform(0.02, 0.4))

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
            await self._read(consumer, world.loop.time() + world.chance.uniform(*LIVES_S))
        finally:
            async with asyncio.timeout(CLOSING_MAX_S):
                await consumer.close()
            world.note(f"{self._id} has left")


class Group(Play):
    kind: ClassVar = Kind.GROUP

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.history = world.history

    async def prepare(self) -> None:
        await self.world.subscribe(GROUP, SubscriptionKind.STREAM)

    def start(self) -> None:
        self._readers.append(self.world.on_host("group", self._live()))

    async def _live(self) -> None:
        client = self.world.client()
        members = [Member(self.world, client, f"m{n}") for n in range(MEMBERS)]
        await asyncio.gather(*(member.live() for member in members))

    def left(self) -> str | None:
        for task in self._readers:
            if task.done():
                task.result()
        return None  # The messages are those of the main load.
