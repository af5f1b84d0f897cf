"""A scalable topic with a few segments of several entry buckets, and a group of consumers that share them.

The members are killed, leave, come back and take long breaks; segments are split, merged and replaced by ones with
other numbers of buckets. The broker is killed by whoever runs this beside another load.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from anabranch.client import Message, QueueConsumer, StreamConsumer
from soak.broker import REST_ERRORS, BrokerProcess
from soak.scalable_clients import Member, Producing, World

TOPIC = "public/river/lagoon"
GROUP = "sharers"
BUDGET = 4
BUCKETS = (1, 2, 4, 7)
MEMBERS = 5
ACTIVE_MAX = 2
RESHAPE_SECONDS = 6.0
BREAK_CHANCE = 0.002
BREAK_SECONDS = (0.5, 4.0)


class Sharer(Member):
    """A member that takes a break now and then; what comes meanwhile waits for it."""

    def __init__(self, world: World, name: str, shared: Callable[[], None]) -> None:
        super().__init__(world, GROUP, name, is_stream=True)
        self._shared = shared

    async def _take(self, consumer: StreamConsumer | QueueConsumer, message: Message) -> None:
        if "sharing " in repr(consumer):
            self._shared()
        await super()._take(consumer, message)
        if not self._world.is_calm and self._world.chance.random() < BREAK_CHANCE:
            await asyncio.sleep(self._world.chance.uniform(*BREAK_SECONDS))


class Sharers:
    def __init__(
        self, broker: BrokerProcess, seed: int, note: Callable[[str], None], per_second: float
    ) -> None:
        self.world = World(broker.url, f"topic://{TOPIC}", random.Random(f"{seed} sharers"), note=note)
        self._broker = broker
        self._per_second = per_second
        self._living: list[asyncio.Task[None]] = []
        self._sending: list[asyncio.Task[None]] = []
        self._shared = self._reshaped = 0

    async def _rest(self, method: str, path: str, body: object = None) -> object:
        return await asyncio.to_thread(self._broker.rest, method, path, body)

    async def prepare(self) -> None:
        """In a namespace with deduplication."""
        await self._rest("PUT", f"scalable/{TOPIC}?numInitialSegments=1")
        # Consumers would have segments split for them, until each has one of its own.
        await self._rest("POST", f"scalable/{TOPIC}/autoScalePolicy", {"enabled": False})
        await self._rest("PUT", f"scalable/{TOPIC}/subscriptions/{GROUP}?type=STREAM")
        self.world.history.subscribed(GROUP, keeps_order=True)

    def start(self) -> None:
        members = [Sharer(self.world, f"{GROUP}-{n}", self._count) for n in range(MEMBERS)]
        producers = [
            Producing(self.world, f"sender-{n}", self._per_second, is_restless=n == 0) for n in range(2)
        ]
        self._living = [asyncio.create_task(one.live()) for one in members]
        self._living.append(asyncio.create_task(self._reshape()))
        self._sending = [asyncio.create_task(one.live()) for one in producers]

    def _count(self) -> None:
        self._shared += 1

    async def _reshape(self) -> None:
        while True:
            await asyncio.sleep(self.world.chance.expovariate(1 / RESHAPE_SECONDS))
            if self.world.is_calm:
                return
            try:
                await self._reshape_once()
            except REST_ERRORS as error:
                self.world.note(f"{TOPIC} was not changed: {error!r}")

    async def _reshape_once(self) -> None:
        chance = self.world.chance
        layout = await self._rest("GET", f"scalable/{TOPIC}")
        assert isinstance(layout, dict)
        active = sorted(
            (s["hashRange"]["start"], s["segmentId"], len(s.get("entryBucketSplits") or ()) + 1)
            for s in layout["segments"].values()
            if s["state"] == "ACTIVE"
        )
        _, number, buckets = chance.choice(active)
        if chance.random() < 0.5:
            others = [count for count in BUCKETS if count != buckets]
            await self._rest("POST", f"scalable/{TOPIC}/rebucket/{number}?buckets={chance.choice(others)}")
        elif len(active) < ACTIVE_MAX:
            await self._rest("POST", f"scalable/{TOPIC}/split/{number}")
        else:
            await self._rest("POST", f"scalable/{TOPIC}/merge/{active[0][1]}/{active[1][1]}")
        self._reshaped += 1

    async def sent(self) -> None:
        """Once the world is calm: returns when every message has its receipt."""
        await asyncio.gather(*self._sending)

    async def end(self) -> None:
        for task in (*self._living, *self._sending):
            task.cancel()
        await asyncio.gather(*self._living, *self._sending, return_exceptions=True)

    def check(self) -> list[str]:
        """The violations; one of them is that nothing was ever shared."""
        found = self.world.history.check()
        if not self._shared:
            found.append(f"{TOPIC}: no consumer ever shared a segment")
        return found

    def summary(self) -> str:
        sent, receipted, delivered = self.world.history.figures
        return (
            f"{TOPIC}: {self._reshaped} changes of segments, {sent:,} sent, {receipted:,} receipts, {delivered:,} "
            f"delivered, {self._shared:,} of them while shared, {self.world.leaves} members left, "
            f"{self.world.crashes} crashed"
        )
