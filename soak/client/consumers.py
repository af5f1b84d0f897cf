"""Members of subscriptions, of one topic or a namespace, that leave, crash and come back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anabranch.client import Client, Message
from anabranch.simulation.world.history import Sent
from soak.client.world import (
    EXPECTED,
    OPEN_SECONDS_MAX,
    WHO,
    Sabotage,
    World,
    place_of,
    sent_of,
)

CLOSE_SECONDS_MAX = 60.0
RECEIVE_S = 0.05
NACKED = 0.004
VANISHED = 0.2
SLOW = 0.25
SLOW_S = (0.02, 0.4)


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription of a topic, or of all topics of the world's namespace with the given properties."""

    name: str
    is_stream: bool
    topic: str | None = None
    filters: Mapping[str, str] | None = None


class Member:
    """Lives until it is cancelled. It acknowledges, returns, or still holds at its end whatever it received."""

    def __init__(
        self,
        world: World,
        subscription: Subscription,
        name: str,
        life_s: tuple[float, float],
        *,
        is_faithful: bool = False,
    ) -> None:
        """`is_faithful`: it reconnects only under its own name."""
        self._world = world
        self._is_faithful = is_faithful or not world.has_new_names
        self._subscription = subscription
        self._name = name
        self._life_s = life_s
        self._lives = 0
        self._id = ""
        # Received and not acknowledged.
        self._held: list[tuple[Sent, Message]] = []
        # Acknowledged, and not known to be stored.
        self._asked: list[Sent] = []
        self._withheld: dict[tuple[str, str | None], Message] = {}

    async def live(self) -> None:
        world = self._world
        while True:
            self._lives += 1
            # It comes back under the same name, or under another.
            is_same = self._is_faithful or world.chance.random() < 0.6
            name = self._name if is_same else f"{self._name}-{self._lives}"
            self._id = f"{name}#{self._lives}"
            WHO.set(self._id)
            world.history.joined(self._subscription.name, self._id)
            world.note(f"{self._id} begins")
            try:
                await self._one_life(name)
            except EXPECTED as error:
                world.note(f"{self._id}: {error!r}")
            finally:
                world.note(f"{self._id} ends")
                world.history.ended(self._id)
            await asyncio.sleep(world.chance.uniform(0.05, 0.6))

    async def _one_life(self, name: str) -> None:
        world, chance = self._world, self._world.chance
        self._held, self._asked, self._withheld = [], [], {}
        consumer = await self._open(name)
        ends = time.monotonic() + chance.uniform(*self._life_s)
        try:
            while world.is_calm or time.monotonic() < ends:
                try:
                    message = await consumer.receive(timeout_s=RECEIVE_S)
                except TimeoutError:
                    # Messages held back at the end of a sealed segment would keep its children from all consumers.
                    await self._acknowledge(consumer)
                    await self._flush(consumer)
                    continue
                await self._take(consumer, message)
        except BaseException:
            await self._fall(consumer)
            raise
        await self._part(consumer)

    async def _fall(self, consumer: Any) -> None:
        """Ends this life after an error, or when the run is over."""
        consumer.crash()

    async def _part(self, consumer: Any) -> None:
        """Ends this life as planned."""
        world = self._world
        if world.chance.random() < 0.4:
            world.counts["crashes"] += 1
            consumer.crash()
            return
        world.counts["leaves"] += 1
        async with asyncio.timeout(CLOSE_SECONDS_MAX):
            await self._client.close()

    async def _open(self, name: str) -> Any:
        self._client = self._world.client()
        try:
            return await self._open_with(self._client, name)
        except BaseException:
            self._client.crash()
            raise

    async def _open_with(self, client: Client, name: str) -> Any:
        world, subscription = self._world, self._subscription
        how: Any = client.stream_consumer if subscription.is_stream else client.queue_consumer
        options: dict[str, Any] = {"create": False}
        if subscription.topic is None:
            options = {"namespace": world.namespace, "property_filters": subscription.filters}
        async with asyncio.timeout(OPEN_SECONDS_MAX):
            return await how(
                subscription.topic, subscription.name, consumer_name=name, start="earliest", **options
            )

    # -- messages

    async def _take(self, consumer: Any, message: Message) -> None:
        world = self._world
        lane = (message.producer, message.key)
        withheld = self._withheld.pop(lane, None)
        if withheld is not None:
            await self._deal_with(consumer, message)
            await self._deal_with(consumer, withheld)
        elif self._subscription.is_stream and world.spoils(Sabotage.ORDER):
            self._withheld[lane] = message
        elif world.spoils(Sabotage.LOSS):
            if not self._subscription.is_stream:
                await consumer.ack(message)
        else:
            await self._deal_with(consumer, message)

    async def _deal_with(self, consumer: Any, message: Message) -> None:
        world = self._world
        try:
            sent = sent_of(message)
        except ValueError as error:
            world.history.fail(f"{self._id}: {error}")
            return
        world.counts["received"] += 1
        how = f"{message.id} after {message.redeliveries}"
        for _ in range(2 if world.spoils(Sabotage.REPEAT) else 1):
            world.history.took(self._id, sent, message.key or "", place_of(message), how)
        if not self._subscription.is_stream:
            await self._deal_with_queued(consumer, sent, message)
            return
        self._held.append((sent, message))
        if len(self._held) >= world.chance.randint(1, 200):
            await self._acknowledge(consumer)
            if world.chance.random() < 0.3:
                await self._flush(consumer)

    async def _deal_with_queued(self, consumer: Any, sent: Sent, message: Message) -> None:
        world = self._world
        if world.chance.random() < NACKED:
            world.counts["given back"] += 1
            world.history.gave_back(self._id, sent, place_of(message))
            await consumer.nack(message)
            return
        world.history.acking(self._id, [sent])
        await consumer.ack(message)
        self._asked.append(sent)
        if len(self._asked) >= 200:
            await self._flush(consumer)

    async def _acknowledge(self, consumer: Any) -> None:
        if self._held:
            held, self._held = self._held, []
            all_sent = [sent for sent, _ in held]
            self._world.history.acking(self._id, all_sent)
            await consumer.ack_cumulative(held[-1][1])
            self._asked += all_sent

    async def _flush(self, consumer: Any) -> None:
        asked, self._asked = self._asked, []
        if not asked:
            return
        if await consumer.flush():
            self._world.history.acknowledged(self._subscription.name, asked)
        else:
            self._world.counts["flushes in vain"] += 1


class Lodger(Member):
    """One of several members that share a client, as tasks of one application do, and stay connected when one leaves.

    It comes back under its name. Some of its lives are slow, and some vanish, over a connection of their own.
    """

    def __init__(
        self, world: World, subscription: Subscription, name: str, life_s: tuple[float, float], house: Client
    ) -> None:
        super().__init__(world, subscription, name, life_s, is_faithful=True)
        self._house = house
        self._vanishes = False
        self._is_slow = False

    async def _open(self, name: str) -> Any:
        chance = self._world.chance
        self._vanishes, self._is_slow = chance.random() < VANISHED, chance.random() < SLOW
        if self._vanishes:
            return await super()._open(name)
        if self._world.sabotage is Sabotage.STALL:
            name = f"{name}-{self._lives}"  # Under its own name it would get its segments back.
        return await self._open_with(self._house, name)

    async def _take(self, consumer: Any, message: Message) -> None:
        await super()._take(consumer, message)
        if self._is_slow and not self._world.is_calm:
            await asyncio.sleep(self._world.chance.uniform(*SLOW_S))

    async def _fall(self, consumer: Any) -> None:
        if self._vanishes:
            await super()._fall(consumer)
        else:
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await consumer.close()

    async def _part(self, consumer: Any) -> None:
        world = self._world
        if self._vanishes:
            world.counts["vanished"] += 1
            consumer.crash()
        elif world.sabotage is Sabotage.STALL:
            world.counts["left open"] += 1
        else:
            world.counts["closes"] += 1
            await self._acknowledge(consumer)
            if world.chance.random() < 0.5:
                await self._flush(consumer)
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await consumer.close()
