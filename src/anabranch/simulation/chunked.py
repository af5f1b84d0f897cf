"""Chunked messages on the scalable topic, whose connection is cut and whose segment is split between two chunks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

from anabranch.client.lanes import Routing, segment_for
from anabranch.client.singles import Keys
from anabranch.simulation import workload
from anabranch.simulation.kinds import Kind
from anabranch.simulation.loop import context_of
from anabranch.simulation.plays import Play

if TYPE_CHECKING:
    from anabranch.simulation.run import World

# The bytes of a message are under way for about so long.
FLIGHT_MAX_S = 0.003


class Chunked(Play):
    kind: ClassVar = Kind.CHUNKS

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.history = world.history  # The messages go to the subscriptions of the main load.
        self._under_way: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        name = f"{workload.CHUNKING}-0"
        count = self.chance.randint(8, 20)
        self.client(
            name, workload.produce(self.world, name, count, on_post=lambda key: self._trouble(name, key))
        )

    def left(self) -> str | None:
        # What is owed to the subscriptions the run itself says.
        return next((f"{task.get_name()} is not done" for task in self._tasks if not task.done()), None)

    def _trouble(self, name: str, key: str) -> None:
        if not self.world.is_calm and self.chance.random() < 0.4:
            # Not on the producer's machine. Nobody waits for it: it ends by itself.
            task = self.world.loop.create_task(self._cut_and_split(name, key), context=context_of(None))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _cut_and_split(self, name: str, key: str) -> None:
        """Some of the chunks are stored, and the segment is sealed before the producer is back."""
        world, record = self.world, self.world.record
        if record is None:
            return
        segment = segment_for(record.layout, Keys()(key)[0], Routing.HIGH)
        splitting = workload.split_one(world, segment)
        await asyncio.gather(splitting, self._cut(name))

    async def _cut(self, name: str) -> None:
        world = self.world
        await asyncio.sleep(self.chance.uniform(0.0, FLIGHT_MAX_S))
        # Again and again, so that the producer is not back before the segment is sealed.
        for _ in range(self.chance.randint(1, 8)):
            world.note(f"the connections of {name} are cut in the middle of a message")
            world.network.cut(world.network.links_of(name))
            await asyncio.sleep(self.chance.uniform(0.0, 0.02))
