"""The producers of the run: thousands of messages in flight, and lives that end in the middle of them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from anabranch.client import Client, MessageId, Producer
from anabranch.simulation.world.history import HistoryPlace
from soak.client.world import (
    EXPECTED,
    FLUSH_SECONDS_MAX,
    OPEN_SECONDS_MAX,
    WHO,
    Sabotage,
    World,
    key_of,
    payload_of,
)

PAUSE_MAX_S = 0.5


@dataclass(frozen=True, slots=True)
class Manner:
    """How a producer sends."""

    per_second: float
    burst_max: int
    # Under its own name in every life, with the application's own sequence ids: its next life sends again everything
    # from the first message without a receipt, and nothing is stored twice.
    is_named: bool = False
    # How long a life lasts before it crashes; None for one life.
    life_s: tuple[float, float] | None = None
    large_bytes: int = 0
    compression: str = "none"


class Producing:
    def __init__(self, world: World, topic: str, name: str, manner: Manner) -> None:
        self.name = name
        self._world = world
        self._topic = topic
        self._manner = manner
        self._lives = 0
        self._sent = 0
        self._receipted: set[int] = set()
        self._first_open = 0
        # Sequence ids of a producer that sends one twice, for the judge to notice.
        self._added = 0
        self._client: Client | None = None
        self._crashed = 0  # The last life that did.

    async def live(self) -> None:
        """Runs until the world is calm and everything has its receipt."""
        world = self._world
        while not (world.is_calm and self._first_open == self._sent):
            self._lives += 1
            WHO.set(f"{self.name}#{self._lives}")
            producer = await self._open()
            try:
                if await self._one_life(producer):
                    assert self._client is not None
                    await self._client.close()
                    return
                world.counts["producer crashes"] += 1
            except EXPECTED as error:
                world.note(f"{self.name}: {error!r}")
                if not self._manner.is_named:
                    # Its next life has another name, under which repetitions cannot be recognised.
                    world.may_double.add(self.name)
            self._crashed = self._lives
            producer.crash()

    async def _one_life(self, producer: Producer) -> bool:
        """One life; returns whether everything is sent, and the world calm."""
        world, manner = self._world, self._manner
        number = self._first_open
        lasts = world.chance.uniform(*manner.life_s) if manner.life_s else 1e9
        ends = time.monotonic() + lasts
        while time.monotonic() < ends or world.is_calm:
            # Small ones without a pause, so that every change of the layout meets some, and now and then thousands.
            is_large = world.chance.random() < 0.1
            burst = world.chance.randint(
                1, manner.burst_max if is_large else int(manner.per_second * 0.1) + 1
            )
            for _ in range(burst):
                if world.is_calm and number >= self._sent:
                    async with asyncio.timeout(FLUSH_SECONDS_MAX):
                        await producer.flush()
                    return True
                await self._post(producer, number)
                number += 1
            await asyncio.sleep(min(PAUSE_MAX_S, burst / manner.per_second))
        return False

    async def _open(self) -> Producer:
        world, manner = self._world, self._manner
        options: dict[str, Any] = {"compression": manner.compression, "chunking": bool(manner.large_bytes)}
        while True:
            self._client = world.client()
            try:
                async with asyncio.timeout(OPEN_SECONDS_MAX):
                    opened: Producer = await self._client.producer(
                        self._topic,
                        name=self.name if manner.is_named else None,
                        create=False,
                        send_timeout_s=None,
                        routing=world.routing,
                        **options,
                    )
                    return opened
            except EXPECTED as error:
                self._client.crash()
                world.note(f"{self.name} cannot open: {error!r}")
                await asyncio.sleep(0.2)

    async def _post(self, producer: Producer, number: int) -> None:
        world, manner = self._world, self._manner
        key = key_of(self.name, number)
        if number >= self._sent:
            world.history.sent(self.name, number, key)
            self._sent = number + 1
        payload = payload_of(self.name, number, manner.large_bytes)
        if manner.is_named and world.spoils(Sabotage.DOUBLE):
            await producer.post(payload, key=key, sequence_id=number + self._added)
            self._added += 1
        sequence_id = number + self._added if manner.is_named else None
        receipt = await producer.post(payload, key=key, sequence_id=sequence_id)
        receipt.add_done_callback(partial(self._answered, self._lives, number))

    def _answered(self, life: int, number: int, receipt: asyncio.Future[MessageId]) -> None:
        if receipt.cancelled() or (life <= self._crashed and receipt.exception() is not None):
            return
        if (error := receipt.exception()) is not None:
            # There is no time-out, and no fault that explains it.
            self._world.history.fail(f"{self.name}: number {number} was given up: {error!r}")
            return
        self._world.history.stored(self.name, number, HistoryPlace(*receipt.result()))
        self._receipted.add(number)
        while self._first_open in self._receipted:
            self._receipted.discard(self._first_open)
            self._first_open += 1
