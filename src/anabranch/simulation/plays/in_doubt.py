"""Producers in doubt: a producer's connections are cut and its segment is sealed before it is back.

`Bursts` has that happen to a producer that fills the batches of several entry buckets at once, so that what is stored
has gaps in its numbers. Beside it are producers that know nothing of buckets.
"""

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
from anabranch.simulation.world.older import Knowledge
from anabranch.simulation.world.world import TOPIC, World

# The bytes of a message are under way for about this long.
FLIGHT_MAX_S = 0.003


class InDoubt(Play):
    """Has no clients of its own; subclasses call `trouble` after what they send."""

    def __init__(self, world: World, faults: Faults) -> None:
        super().__init__(world, faults)
        self.history = world.history  # The messages go to the subscriptions of the main load.
        self._under_way: set[asyncio.Task[None]] = set()

    def left(self) -> str | None:
        # The run itself checks what is owed to the subscriptions.
        return next((f"{task.get_name()} is not done" for task in self._tasks if not task.done()), None)

    def trouble(self, name: str, key: str) -> None:
        """Now and then, part of what was sent is stored, and the segment is sealed before the producer is back."""
        if not self.world.is_calm and self.chance.random() < 0.4:
            # The task runs on another machine than the producer's. It is not awaited: it ends by itself.
            task = self.world.loop.create_task(self._cut_and_seal(name, key), context=context_of(None))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _cut_and_seal(self, name: str, key: str) -> None:
        record = self.world.record
        if record is not None:
            segment = record.layout.segment(segment_for(record.layout, SentKeys()[key][0], Routing.HIGH))
            await asyncio.gather(workload.seal_one(self.world, segment), self._cut(name))

    async def _cut(self, name: str) -> None:
        world = self.world
        await asyncio.sleep(self.chance.uniform(0.0, FLIGHT_MAX_S))
        # Repeated, so that the producer does not return before the segment is sealed.
        for _ in range(self.chance.randint(1, 8)):
            world.note(f"the connections of {name} are cut while it sends")
            world.network.cut(world.network.links_of(name))
            await asyncio.sleep(self.chance.uniform(0.0, 0.02))


class Bursts(InDoubt):
    kind: ClassVar = TroubleKind.CROWD

    def start(self) -> None:
        for n, knowledge in enumerate((Knowledge.ALL, self.chance.choice(list(Knowledge)))):
            self.client(f"bursts-{n}", self._produce(f"bursts-{n}", knowledge))

    async def _produce(self, name: str, knowledge: Knowledge) -> None:
        world, chance = self.world, self.chance
        client = world.client(knowledge)
        producer = await self.until_done(
            f"{name} is open",
            lambda: client.producer(TOPIC, name=name, create=False, send_timeout_s=None),
        )
        number = 0
        for _ in range(chance.randint(5, 15)):
            for _ in range(chance.randint(2, 8)):
                key = chance.choice(workload.KEYS)
                self.history.sent(name, number, key)
                receipt = await producer.post(workload.payload_of(name, number), key=key)
                receipt.add_done_callback(workload.receipt_of(world, name, number))
                number += 1
                await asyncio.sleep(chance.choice((0.0, 0.0, 0.001)))
            self.trouble(name, key)
            if not world.is_calm:
                await asyncio.sleep(chance.expovariate(1 / (2 * world.pace_s)))
        await producer.flush()
        await client.close()
