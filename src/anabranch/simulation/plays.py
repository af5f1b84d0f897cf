"""What some runs hold beside their main load: clients with topics of their own, and a history of what they saw.

Each play is of one `Kind`. It does its worst while there are faults, finishes once the world is calm, and says what is
still owed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from anabranch.broker.broker import Broker
from anabranch.model.names import TopicName
from anabranch.simulation import workload
from anabranch.simulation.cluster import Node
from anabranch.simulation.history import History
from anabranch.simulation.kinds import Kind
from anabranch.simulation.workload import Reader

if TYPE_CHECKING:
    from anabranch.simulation.run import World

T = TypeVar("T")


class Play:
    """`prepare` before there are faults, `start`, and once all is calm `check` when nothing is `left`."""

    kind: ClassVar[Kind]

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = random.Random(f"{world.seed} {self.kind.name}")
        self.history = History()
        self._tasks: list[asyncio.Task[None]] = []
        self._readers: list[asyncio.Task[None]] = []

    async def prepare(self) -> None:
        """Makes what the play needs."""

    def start(self) -> None:
        """Sends its clients out."""
        raise NotImplementedError

    def left(self) -> str | None:
        """What is still to be done; None when all is."""
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
        """Looks at what must hold in the end; violations go into the history."""

    # -- for plays

    def client(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """A client that comes to an end by itself, on a machine of its own."""
        self._tasks.append(self.world.on_host(name, work))

    def task(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(self.world.loop.create_task(work))

    def read(self, subscription: str, name: str, topic: str, *, is_stream: bool) -> None:
        reader = Reader(
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
        """The broker that takes itself for the topic's owner; TimeoutError if there is none now."""
        for node in self.world.cluster.up:
            if node.broker.owners.is_mine(name):
                return node
        raise TimeoutError(f"nobody owns {name}")

    async def ask_owner(self, name: TopicName, call: Callable[[Broker], Awaitable[T]]) -> T:
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
