"""Several clients ask for the same new subscription at once, and some of their connections break before the answer.

A client that gets the answer relies on the subscription, whatever happens to the other clients, and to the broker in
the next moment. Beside them come readers whose SUBSCRIBE is refused, or that leave before the answer.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

from anabranch.broker.broker import Broker
from anabranch.client.transport.connection import ClientConnection, PartKind
from anabranch.client.transport.pool import Connections
from anabranch.model.names import TopicName
from anabranch.simulation.machine.loop import context_of
from anabranch.simulation.plays.play import Play
from anabranch.simulation.world import workload
from anabranch.simulation.world.faults import Faults
from anabranch.simulation.world.kinds import TroubleKind
from anabranch.simulation.world.world import World
from anabranch.wire import pulsar_pb2 as pb

C = pb.BaseCommand

TOPIC: Final = "persistent://public/default/waits"
NAME: Final = TopicName.parse(TOPIC)
ANSWER_MAX_S: Final = 5.0
# The time in which clients connect, before they all ask at once.
CONNECTED_S: Final = 0.05
# A position after every message.
LATEST: Final = pb.MessageIdData(ledgerId=(1 << 64) - 1, entryId=(1 << 64) - 1)


class IdleConsumer:
    """A consumer that requests no messages."""

    def __init__(self, number: int) -> None:
        self.number = number

    def received(self, kind: int, body: Any, payload: memoryview | None) -> None:
        """The consumer has given no permits, so at most a close arrives."""

    def lost(self, error: Exception) -> None:
        """The waiting call gets the error itself."""


class Waiting(Play):
    kind: ClassVar = TroubleKind.WAITING

    def __init__(self, world: World, faults: Faults) -> None:
        super().__init__(world, faults)
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
        # One more round: no restart removes its leftovers.
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
        """The first client creates the subscription, and often leaves before the answer; the others wait for the
        same."""
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
                self.faults.crash(node)

    @staticmethod
    async def _ask(connection: ClientConnection, subscription: str, kind: int, **fields: Any) -> None:
        listener = connection.attach(PartKind.CONSUMER, IdleConsumer)
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
        """A reader whose request is refused, and one that does not wait for its answer."""
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
        """Publishes some messages that every client with an earlier answer must get."""
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
        """Promised subscriptions must exist before any client comes that would make them again."""

        async def there(broker: Broker) -> frozenset[str]:
            topic = await broker.topic(NAME)
            # The stored state counts, not the memory of an owner that has not yet noticed the loss of the topic.
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
