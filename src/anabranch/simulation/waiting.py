"""Several clients ask for the same new subscription at once, and some of their connections break before the answer.

Whoever is told that the subscription is made relies on it, whatever becomes of the others, and of the broker in the
next moment. Beside them come readers whose SUBSCRIBE is refused, or who are gone before they are answered.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar, Final

from anabranch.broker.broker import Broker
from anabranch.client.connection import ClientConnection, PartKind
from anabranch.client.connections import Connections
from anabranch.model.names import TopicName
from anabranch.simulation import workload
from anabranch.simulation.kinds import Kind
from anabranch.simulation.loop import context_of
from anabranch.simulation.plays import Play
from anabranch.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from anabranch.simulation.run import World

C = pb.BaseCommand

TOPIC: Final = "persistent://public/default/waits"
NAME: Final = TopicName.parse(TOPIC)
ANSWER_MAX_S: Final = 5.0
# For so long clients connect, before they ask all at once.
CONNECTED_S: Final = 0.05
# A place behind every message.
LATEST: Final = pb.MessageIdData(ledgerId=(1 << 64) - 1, entryId=(1 << 64) - 1)


class Listener:
    """A consumer that asks for nothing."""

    def __init__(self, number: int) -> None:
        self.number = number

    def received(self, kind: int, body: Any, payload: memoryview | None) -> None:
        """It has given no permits, and is told at most that it is closed."""

    def lost(self, error: Exception) -> None:
        """Whoever waits for an answer hears of it there."""


class Waiting(Play):
    kind: ClassVar = Kind.WAITING

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._rounds = 0
        self._are_read = False

    async def prepare(self) -> None:
        await self.make_topic(NAME)

    def start(self) -> None:
        self.task(self._play())

    def left(self) -> str | None:
        if not self._are_read and all(task.done() for task in self._tasks):
            self._are_read = True
            self.task(self._read_all())
        return super().left()

    async def _play(self) -> None:
        while not self.world.is_calm:
            await self._round()
            await asyncio.sleep(self.chance.expovariate(1 / 0.5))
        # Once more: what is left behind now no restart takes away.
        await self._round()

    async def _round(self) -> None:
        chance, world = self.chance, self.world
        self._rounds += 1
        is_slow = world.cluster.disks.sync_max_s == 0.0 and not world.is_calm
        if is_slow:
            world.cluster.disks.sync_max_s = chance.choice((0.0, 0.1, 0.5))
        names = [f"waiter-{self._rounds}-{n}" for n in range(3)]
        waiters = [
            world.on_host(name, self._subscribe(f"waited-{self._rounds}", name, is_first=n == 0))
            for n, name in enumerate(names)
        ]
        names.append(f"refused-{self._rounds}")
        waiters.append(world.on_host(names[-1], self._come_and_go(self._rounds)))
        await asyncio.wait(waiters)
        for task, name in zip(waiters, names, strict=True):
            task.result()
            world.leave(name)
        if is_slow:
            world.cluster.disks.sync_max_s = 0.0
        await self._publish()

    async def _subscribe(self, subscription: str, name: str, *, is_first: bool) -> None:
        """The first one makes it, and is often gone before the answer; the others wait for the same."""
        chance, world = self.chance, self.world
        connections = Connections(world.cluster.service_url)
        began = world.loop.time()
        try:
            async with asyncio.timeout(ANSWER_MAX_S):
                connection = await connections.owner(TOPIC)
                # All of them are connected by then, and ask within a few milliseconds of each other.
                await asyncio.sleep(max(0.0, began + CONNECTED_S - world.loop.time()))
                if is_first and chance.random() < 0.7:
                    world.loop.call_later(chance.uniform(0.005, 0.1), connection.abort)
                else:
                    await asyncio.sleep(chance.uniform(0.0, 0.02))
                await self._ask(connection, subscription, pb.CommandSubscribe.Shared)
        except workload.EXPECTED as error:
            world.note(f"{name} was not told of {subscription}: {error}")
            return
        world.note(f"{name} was told that {subscription} is made")
        self.history.subscribed(subscription, keeps_order=False)
        if not world.is_calm and chance.random() < 0.2:
            world.loop.call_soon(self._crash_owner, context=context_of(None))

    def _crash_owner(self) -> None:
        for node in self.world.cluster.up:
            if node.broker.owners.is_mine(NAME):
                self.world.faults.crash(node)

    @staticmethod
    async def _ask(connection: ClientConnection, subscription: str, kind: int, **fields: Any) -> None:
        listener = connection.attach(PartKind.CONSUMER, Listener)
        await connection.request(
            C.SUBSCRIBE,
            "subscribe",
            topic=TOPIC,
            subscription=subscription,
            subType=kind,
            consumer_id=listener.number,
            initialPosition=pb.CommandSubscribe.Latest,
            **fields,
        )

    async def _come_and_go(self, number: int) -> None:
        """A reader that is refused for what it asks, and one that does not wait for its answer."""
        chance, world = self.chance, self.world
        connections = Connections(world.cluster.service_url)
        try:
            async with asyncio.timeout(ANSWER_MAX_S):
                connection = await connections.owner(TOPIC)
                world.loop.call_later(chance.uniform(0.0, 0.01), connection.abort)
                asking = self._ask(
                    connection,
                    f"reader-{number}",
                    pb.CommandSubscribe.Exclusive,
                    durable=False,
                    start_message_id=LATEST,
                )
                await asyncio.gather(asking, return_exceptions=True)
                connection = await connections.owner(TOPIC)
                without_ranges = pb.KeySharedMeta(keySharedMode=pb.STICKY)
                await self._ask(
                    connection,
                    f"sticky-{number}",
                    pb.CommandSubscribe.Key_Shared,
                    durable=False,
                    start_message_id=LATEST,
                    keySharedMeta=without_ranges,
                )
        except workload.EXPECTED as error:
            world.note(f"a reader was refused: {error}")

    async def _publish(self) -> None:
        """Some messages that everybody who was told before must have."""
        name = f"waited-for-{self._rounds}"
        await self.world.on_host(name, self._produce(name))
        self.world.leave(name)

    async def _produce(self, name: str) -> None:
        client = self.world.client()
        try:
            async with asyncio.timeout(ANSWER_MAX_S):
                producer = await client.producer(TOPIC, create=False, send_timeout_s=None)
                for number in range(self.chance.randint(1, 3)):
                    self.history.sent(name, number, "k")
                    await producer.send(workload.payload_of(name, number), key="k")
                    self.history.receipt(name, number)
        except workload.EXPECTED as error:
            self.world.note(f"{name} gives up: {error!r}")

    async def _read_all(self) -> None:
        """Those that were promised must be there before anybody comes who would make them again."""

        async def there(broker: Broker) -> frozenset[str]:
            topic = await broker.topic(NAME)
            # What is stored counts, and not what an owner remembers that does not know yet that another has the topic.
            await broker.open_topics.close_if_taken(topic)
            if topic.is_closed:
                raise TimeoutError(f"{NAME} is opened again")
            return frozenset(topic.subscriptions)

        found = await self.until_done("the subscriptions are listed", lambda: self.ask_owner(NAME, there))
        for subscription in self.history.subscriptions:
            if subscription not in found:
                self.history.missing(TOPIC, subscription)
            else:
                self.read(subscription, f"late-{subscription}", TOPIC, is_stream=False)
