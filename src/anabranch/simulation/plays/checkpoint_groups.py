"""Members of a checkpoint group that share segments by entry buckets, and die, while the topic is reshaped.

Brokers keep no cursor of theirs: each member keeps its own checkpoint, one for each message. Now and then all of the
checkpoints are merged, and afterwards a lone reader begins there. It must get exactly what the members had not received
by then. No member gets a message twice in its life, and what is news to the group comes to each member in the order of
its key. A group that loses all of its sessions in an outage begins again, so what others had may come late.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import ClassVar, Final

from anabranch.broker.broker import Broker
from anabranch.broker.catalog.resources import Conflict
from anabranch.broker.policy.namespace import NamespacePolicies, Retention
from anabranch.client.consuming.checkpoint import CheckpointConsumer
from anabranch.client.consuming.core.checkpoint import Start, merge_checkpoints
from anabranch.client.producing.batching import Batching
from anabranch.controller.core.errors import TopicExists
from anabranch.model.cut import Cut
from anabranch.model.names import NamespaceName, TopicName
from anabranch.model.scalable import ScalableTopic, topic_path
from anabranch.simulation.cluster.sharing import GroupFigures
from anabranch.simulation.machine.loop import context_of
from anabranch.simulation.plays.play import Play
from anabranch.simulation.world import workload
from anabranch.simulation.world.faults import Faults
from anabranch.simulation.world.history import HistoryPlace, Sent
from anabranch.simulation.world.kinds import TroubleKind
from anabranch.simulation.world.older import Knowledge
from anabranch.simulation.world.workload import CLOSING_MAX_S
from anabranch.simulation.world.world import World

NAMESPACE: Final = NamespaceName("public", "kept")
TOPIC: Final = f"topic://{NAMESPACE}/ledger"
NAME: Final = TopicName.parse(TOPIC)
# Everything is kept: no cursor holds what the group has not read.
POLICIES: Final = NamespacePolicies(retention_policies=Retention(minutes=-1, megabytes=-1))
GROUP: Final = "auditors"
MEMBERS: Final = 3
ACTIVE_MAX: Final = 2
CUTS_MAX: Final = 3
LIVES_S: Final = (0.5, 4.0)


@dataclass(slots=True)
class ReaderLife:
    """What one reader received, from its opening to its end, and its last checkpoint."""

    name: str
    received: set[Sent] = field(default_factory=set)
    newest: dict[tuple[str, str], int] = field(default_factory=dict)
    checkpoint: bytes = b""


class CheckpointGroups(Play):
    kind: ClassVar = TroubleKind.CHECKPOINTS

    def __init__(self, world: World, faults: Faults) -> None:
        super().__init__(world, faults)
        self.figures: GroupFigures = world.report.groups
        self.lives: list[ReaderLife] = []
        # A merged checkpoint, and what the group had received by then.
        self._cuts: list[tuple[bytes, set[Sent]]] = []
        self._lone: list[tuple[ReaderLife, set[Sent]]] = []

    async def prepare(self) -> None:
        async def make_namespace(broker: Broker) -> None:
            try:
                await broker.resources.create_namespace(NAMESPACE, POLICIES)
            except Conflict:
                return  # Created, though no client got the answer.

        async def make_topic(broker: Broker) -> None:
            try:
                await self.world.service(broker).create(NAME, 1)
            except TopicExists:
                return

        await self.until_done(f"{NAMESPACE} is made", lambda: workload.ask(self.world, make_namespace))
        await self.until_done(f"{TOPIC} is made", lambda: workload.ask(self.world, make_topic))
        self.history.subscribed(GROUP, keeps_order=False)

    def start(self) -> None:
        # In half of the runs some entries have no range of hashes, or one over several buckets.
        known = (Knowledge.ALL, self.chance.choice((Knowledge.ALL, *Knowledge)))
        for number, knowledge in enumerate(known):
            name = f"ledger-{number}"
            self.client(name, self._produce(name, knowledge))
        for number in range(MEMBERS):
            self._readers.append(self.world.loop.create_task(self._member(f"auditor-{number}")))
        self.task(self._reshape())

    # -- the load

    async def _produce(self, name: str, knowledge: Knowledge) -> None:
        client = self.world.client(knowledge)
        batching = knowledge is Knowledge.ALL or Batching(delay_ms=50.0)
        producer = await self.until_done(
            f"{name} is open",
            lambda: client.producer(TOPIC, name=name, create=False, batching=batching, send_timeout_s=None),
        )
        number = 0
        while not self.world.is_calm:
            key = self.chance.choice(workload.KEYS)
            self.history.sent(name, number, key)
            receipt = await producer.post(workload.payload_of(name, number), key=key)
            receipt.add_done_callback(self._note_receipt(name, number))
            number += 1
            await asyncio.sleep(self.chance.expovariate(1 / 0.2))
        await producer.flush()
        await client.close()

    def _note_receipt(self, name: str, number: int) -> workload.Noted:
        return workload.receipt_of(self.world, name, number, self.history)

    async def _reshape(self) -> None:
        while not self.world.is_calm:
            await asyncio.sleep(self.chance.expovariate(1 / 1.5))
            value = self.world.cluster.metadata.peek(topic_path(NAME))
            if value is None or self.world.is_calm:
                continue
            await workload.reshape_any(self.world, NAME, ScalableTopic.decode(value), self.chance, ACTIVE_MAX)

    # -- readers

    async def _member(self, name: str) -> None:
        world, number = self.world, 0
        while True:
            number += 1
            host = world.host(f"{name}.{number}")
            world.client_hosts[name] = host.name
            life = ReaderLife(f"{name}#{number}")
            self.lives.append(life)
            work = self._one_life(life, name, "earliest", GROUP)
            try:
                await world.loop.create_task(work, name=host.name, context=context_of(host))
            except workload.EXPECTED as error:
                world.note(f"{host.name} gives up: {error!r}")
            world.leave(host.name)
            await asyncio.sleep(self.chance.uniform(0.02, 0.4))

    async def _one_life(self, life: ReaderLife, name: str, start: Start, group: str | None) -> None:
        world = self.world
        client = world.client()
        self.history.opened(life.name)
        async with asyncio.timeout(20):
            consumer = await client.checkpoint_consumer(
                TOPIC, start=start, group=group, consumer_name=name, create=False
            )
        world.note(f"{life.name} has joined")
        ends = world.loop.time() + self.chance.uniform(*LIVES_S)
        while world.is_calm or world.loop.time() < ends:
            await self._receive(life, consumer, is_member=group is not None)
        if self.chance.random() < 0.5:
            world.note(f"{life.name} crashes")
            return
        async with asyncio.timeout(CLOSING_MAX_S):
            await client.close()
        world.note(f"{life.name} has left")

    async def _receive(self, life: ReaderLife, consumer: CheckpointConsumer, *, is_member: bool) -> None:
        try:
            async with asyncio.timeout(0.25):
                message = await consumer.receive()
        except TimeoutError:
            life.checkpoint = consumer.checkpoint()
            return
        sent, is_whole = workload.sent_of(message.payload)
        key = message.key or ""
        place = HistoryPlace(message.segment, message.ledger, message.entry)
        is_news = not (is_member and any(sent in other.received for other in self.lives))
        if is_member:
            self.figures.again += not is_news
            self.history.received(GROUP, life.name, sent, key, place, keeps_order=False, is_whole=is_whole)
        if sent in life.received:
            self.world.wrong(f"{life.name} received {sent} twice")
        newest = life.newest.get((sent.producer, key), -1)
        if is_news and newest > sent.number:
            self.world.wrong(f"{life.name} received {sent} of {key} after number {newest}")
        life.newest[sent.producer, key] = max(newest, sent.number)
        life.received.add(sent)
        if is_member:
            life.checkpoint = consumer.checkpoint()
            self._look(life)

    def _look(self, life: ReaderLife) -> None:
        by_bucket = any(len(place.at) > 1 for place in Cut.decode(life.checkpoint).places)
        self.figures.shared += by_bucket
        if not self.world.is_calm and len(self._cuts) < CUTS_MAX and self.chance.random() < 0.05:
            self._cuts.append(self._merged())

    def _merged(self) -> tuple[bytes, set[Sent]]:
        kept = [one.checkpoint for one in self.lives if one.checkpoint]
        self.figures.merged += 1
        return merge_checkpoints(kept), set().union(*(one.received for one in self.lives))

    # -- the end

    def left(self) -> str | None:
        left = super().left()
        if left is not None:
            return left
        if not self._lone:
            # The group has received everything.
            for number, (cut, had) in enumerate([*self._cuts, self._merged()]):
                name = f"lone-{number}"
                life = ReaderLife(name)
                self._lone.append((life, had))
                self._readers.append(self.world.on_host(name, self._one_life(life, name, cut, None)))
        for life, had in self._lone:
            if missing := self.history.receipted - had - life.received:
                return (
                    f"{len(missing)} messages behind a merged checkpoint never came, such as {min(missing)}"
                )
        return None

    async def check(self) -> None:
        for life, had in self._lone:
            if again := life.received & had:
                self.world.wrong(
                    f"{life.name} began behind {len(again)} messages and got them, as {min(again)}"
                )
