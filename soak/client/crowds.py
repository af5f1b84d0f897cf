"""Crowds: several clients that open the same new topic at once, one of which disconnects while the others wait.

The first one creates the topic, its first leader, its subscription; the others wait for the outcome. None of them may
wait for one that has disconnected.
"""

from __future__ import annotations

import asyncio
from typing import Any

from anabranch.client import Client
from soak.client.world import EXPECTED, World

HEADS = 5
# From the first byte of a connection to a subscription that is stored.
BREAKS_AFTER_S = (0.0, 0.06)
OPEN_WITHIN_S = 60.0


class Crowd:
    """Runs one crowd after the other until it is cancelled."""

    def __init__(self, world: World, every_s: float) -> None:
        self._world = world
        self._every_s = every_s
        self._crowds = 0

    async def live(self) -> None:
        while True:
            await asyncio.sleep(self._world.chance.expovariate(1 / self._every_s))
            self._crowds += 1
            await self._gather(self._world.topic(f"crowd-{self._crowds}"))

    async def _gather(self, topic: str) -> None:
        clients = [self._world.client() for _ in range(HEADS)]
        heads = [asyncio.create_task(self._want(client, topic, n)) for n, client in enumerate(clients)]
        try:
            await asyncio.sleep(self._world.chance.uniform(*BREAKS_AFTER_S))
            heads[0].cancel()
            clients[0].crash()
            await asyncio.gather(heads[0], return_exceptions=True)
            _, late = await asyncio.wait(heads[1:], timeout=OPEN_WITHIN_S)
            if late:
                self._world.history.fail(f"{topic}: {len(late)} clients cannot open it after one broke off")
            self._world.counts["crowds"] += 1
        finally:
            for head in heads:
                head.cancel()
            await asyncio.gather(*heads, return_exceptions=True)
            for client in clients:
                client.crash()

    async def _want(self, client: Client, topic: str, number: int) -> None:
        """Opens a producer or consumer of it, and keeps trying while connections are lost."""
        while True:
            try:
                part: Any
                if number % 2:
                    part = await client.stream_consumer(topic, "crowd", consumer_name=f"head-{number}")
                else:
                    part = await client.producer(topic)
                await part.close()
                return
            except EXPECTED as error:
                self._world.note(f"{topic}: {number} tries again: {error!r}")
            await asyncio.sleep(0.1)
