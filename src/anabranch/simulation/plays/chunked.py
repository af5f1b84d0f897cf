"""Chunked messages on the scalable topic: their connection is cut and their segment is split between two chunks."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from anabranch.client.producing.core.lanes import Routing, segment_for
from anabranch.client.producing.singles import SentKeys
from anabranch.simulation.machine.loop import context_of
from anabranch.simulation.plays.play import Play
from anabranch.simulation.world import workload
from anabranch.simulation.world.faults import Faults
from anabranch.simulation.world.kinds import TroubleKind
from anabranch.simulation.world.world import World

# The bytes of a message are under way for about this long.
FLIGHT_MAX_S = 0.003


class Chunked(Play):
    kind: ClassVar = TroubleKind.CHUNKS

    def __init__(self, world: World, faults: Faults) -> None:
        super().__init__(world, faults)
        self.history = world.history  # The messages go to the subscriptions of the main load.
        self._under_way: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        name = f"{workload.CHUNKING}-0"
        count = self.chance.randint(8, 20)
        self.client(
            name, workload.produce(self.world, name, count, on_post=lambda key: self._trouble(name, key))
        )

    def left(self) -> str | None:
        # The run itself checks what is owed to the subscriptions.
        return next((f"{task.get_name()} is not done" for task in self._tasks if not task.done()), None)

    def _trouble(self, name: str, key: str) -> None:
        if not self.world.is_calm and self.chance.random() < 0.4:
            # The task runs on another machine than the producer's. It is not awaited: it ends by itself.
            task = self.world.loop.create_task(self._cut_and_split(name, key), context=context_of(None))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _cut_and_split(self, name: str, key: str) -> None:
        """Some of the chunks are stored, and the segment is sealed before the producer is back."""
        world, record = self.world, self.world.record
        if record is None:
            return
        segment = segment_for(record.layout, SentKeys()(key)[0], Routing.HIGH)
        splitting = workload.split_one(world, segment)
        await asyncio.gather(splitting, self._cut(name))

    async def _cut(self, name: str) -> None:
        world = self.world
        await asyncio.sleep(self.chance.uniform(0.0, FLIGHT_MAX_S))
        # Repeated, so that the producer does not return before the segment is sealed.
        for _ in range(self.chance.randint(1, 8)):
            world.note(f"the connections of {name} are cut in the middle of a message")
            world.network.cut(world.network.links_of(name))
            await asyncio.sleep(self.chance.uniform(0.0, 0.02))
