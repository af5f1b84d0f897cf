"""Loads that some runs have beside their main load: clients with topics of their own, and a history of what they saw.

Each play is of one `TroubleKind`. It makes trouble while there are faults, finishes once the world is calm, and reports
what is still owed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ClassVar, TypeVar

from anabranch.broker.broker import Broker
from anabranch.model.names import TopicName
from anabranch.simulation.cluster.node import Node
from anabranch.simulation.world import workload
from anabranch.simulation.world.faults import Faults
from anabranch.simulation.world.history import History
from anabranch.simulation.world.kinds import TroubleKind
from anabranch.simulation.world.workload import RoamingReader
from anabranch.simulation.world.world import World

T = TypeVar("T")


class Play:
    """Call `prepare` before there are faults, then `start`; once the world is calm and nothing is `left`, call
    `check`."""

    kind: ClassVar[TroubleKind]

    def __init__(self, world: World, faults: Faults) -> None:
        self.world = world
        self.faults = faults
        self.chance = random.Random(f"{world.seed} {self.kind.name}")
        self.history = History()
        self._tasks: list[asyncio.Task[None]] = []
        self._readers: list[asyncio.Task[None]] = []

    async def prepare(self) -> None:
        """Creates what the play needs."""

    def start(self) -> None:
        """Starts its clients."""
        raise NotImplementedError

    def left(self) -> str | None:
        """What is still to be done; None when everything is done."""
        for task in self._readers:
            if task.done():
                task.result()
        for task in self._tasks:
            if not task.done():
                return f"{task.get_name()} is not done"
            task.result()
        for name in self.history.subscriptions:
            if owed := self.history.owed(name):
                return f"{len(owed)} messages never came to {name}, such as {min(owed)}"
        return None

    async def check(self) -> None:
        """Checks the final state; violations go into the history."""

    # -- for plays

    def client(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Runs a client that ends by itself, on a machine of its own."""
        self._tasks.append(self.world.on_host(name, work))

    def task(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(self.world.loop.create_task(work))

    def read(self, subscription: str, name: str, topic: str, *, is_stream: bool) -> None:
        reader = RoamingReader(
            self.world, subscription, name, is_stream=is_stream, topic=topic, history=self.history
        )
        self._readers.append(self.world.loop.create_task(reader.live(), name=name))

    async def until_done(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call()
            except workload.EXPECTED as error:
                self.world.note(f"not yet: {what}: {error}")
                await asyncio.sleep(self.chance.uniform(0.05, 0.3))

    def owner(self, name: TopicName) -> Node:
        """The broker that considers itself the topic's owner; TimeoutError if there is none now."""
        for node in self.world.cluster.up:
            if node.broker.owners.is_mine(name):
                return node
        raise TimeoutError(f"nobody owns {name}")

    async def ask_owner(self, name: TopicName, call: Callable[[Broker], Awaitable[T]]) -> T:
        """As an operator does: looks the owner up at any broker, and asks it."""
        if self.world.channel is not None:
            await workload.ask(self.world, lambda broker: broker.owners.resolve(name))
        return await self.world.cluster.ask(self.owner(name), call, workload.ASK_MAX_S)

    async def make_topic(self, name: TopicName) -> None:
        async def make(broker: Broker) -> None:
            await broker.topic(name, create=True)

        await self.until_done(f"{name} is made", lambda: self.ask_owner(name, make))

    async def make_subscription(self, name: TopicName, subscription: str, *, keeps_order: bool) -> None:
        async def make(broker: Broker) -> None:
            await (await broker.topic(name, create=True)).create_subscription(subscription, "earliest", {})

        await self.until_done(f"{subscription} is made", lambda: self.ask_owner(name, make))
        self.history.subscribed(subscription, keeps_order=keeps_order)
