"""The actions of clients and operators in a run: produce, consume, reshape the topic, make and delete subscriptions.

All of them go on through errors, as real ones would, and record the answers. Once `world.is_calm` they only finish what
they have begun.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from anabranch.broker.broker import Broker
from anabranch.client.consuming.queue import QueueConsumer
from anabranch.client.consuming.stream import StreamConsumer
from anabranch.client.message import Message
from anabranch.client.message_id import MessageId
from anabranch.client.producing.batching import Batching
from anabranch.controller.core.errors import NotLeader, SubscriptionMissing
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName
from anabranch.model.scalable import InitialPosition, ScalableTopic, SubscriptionKind
from anabranch.model.segments import Segment, SegmentId
from anabranch.simulation.machine.loop import context_of
from anabranch.simulation.machine.store import void
from anabranch.simulation.world.history import History, HistoryPlace, Sent
from anabranch.simulation.world.kinds import BUDGETS
from anabranch.simulation.world.older import Knowledge
from anabranch.simulation.world.world import NAME, TOPIC, Stuck, World

T = TypeVar("T")

# A callback of a receipt.
Noted = Callable[[asyncio.Future[MessageId]], None]
KEYS: Final = tuple(f"key-{n}" for n in range(7))
IN_FLIGHT: Final = 10
ASK_MAX_S: Final = 12.0
CLOSING_MAX_S: Final = 60.0
EXPECTED: Final = (AnabranchError, TimeoutError, OSError)


# -- messages: their content follows from producer and number, so that a received message can be compared

CHUNKING: Final = "chunker"
# Some are as small as other producers' messages, some need several chunks.
CHUNKED_BYTES: Final = (0, 12_000, 20_000, 40_000, 60_000)
BATCH_BYTES_MAX: Final = 14_000


def payload_of(producer: str, number: int) -> bytes:
    head = f"{producer}:{number}:".encode()
    if not producer.startswith(CHUNKING):
        return head
    mixed = zlib.crc32(head)
    return head + mixed.to_bytes(4, "big") * (CHUNKED_BYTES[mixed % len(CHUNKED_BYTES)] // 4)


def sent_of(payload: bytes) -> tuple[Sent, bool]:
    """Which message it is, and whether it is complete and unchanged."""
    producer, number, _ = payload.split(b":", 2)
    sent = Sent(producer.decode(), int(number))
    return sent, payload == payload_of(*sent)


async def produce(
    world: World,
    name: str,
    count: int,
    *,
    on_post: Callable[[str], None] = void,
    knowledge: Knowledge = Knowledge.ALL,
) -> None:
    """Sends `count` messages, several at a time, and waits for all receipts. `on_post` is called with each one's
    key."""
    chance, history = world.chance, world.history
    client = world.client(knowledge)
    # Batches of several kinds, so that runs of every length are cut again.
    batching: Batching | bool = chance.choice(
        (True, Batching(messages_max=3), Batching(delay_ms=50.0), False)
    )
    if knowledge is not Knowledge.ALL:
        # Entries with keys of several buckets.
        batching = Batching(delay_ms=50.0)
    is_chunking = name.startswith(CHUNKING)
    if is_chunking and batching:
        # No batch is larger than a broker accepts; a larger message stays out of batches and is cut into chunks.
        batching = Batching(bytes_max=BATCH_BYTES_MAX)
    while True:
        try:
            producer = await client.producer(
                TOPIC,
                name=name,
                create=False,
                batching=batching,
                chunking=is_chunking,
                send_timeout_s=None,
            )
            break
        except EXPECTED as error:
            world.note(f"{name} cannot open yet: {error}")
            await asyncio.sleep(chance.uniform(0.05, 0.3))
    waiting: list[asyncio.Future[MessageId]] = []
    for number in range(count):
        key = chance.choice(KEYS)
        history.sent(name, number, key)
        receipt = await producer.post(payload_of(name, number), key=key)
        receipt.add_done_callback(receipt_of(world, name, number))
        on_post(key)
        waiting.append(receipt)
        waiting = [one for one in waiting if not one.done()]
        if len(waiting) >= IN_FLIGHT:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not world.is_calm and chance.random() < 0.5:
            await asyncio.sleep(chance.expovariate(0.5 / world.pace_s))
    await producer.flush()
    await client.close()


def receipt_of(world: World, name: str, number: int, history: History | None = None) -> Noted:
    """Records the result of a message, in the history of the main load unless another is given."""

    def done(future: asyncio.Future[MessageId]) -> None:
        if future.cancelled() or future.exception() is not None:
            world.note(f"{name} {number} failed: {future}")
        else:
            (history or world.history).receipt(name, number)

    return done


class RoamingReader:
    """A consumer that comes and goes, each time on a machine of its own, which may die.

    With `is_stream` it reads in order and acknowledges cumulatively; else it acknowledges one by one.
    """

    def __init__(
        self,
        world: World,
        subscription: str,
        name: str,
        *,
        is_stream: bool,
        topic: str = TOPIC,
        history: History | None = None,
        knowledge: Knowledge = Knowledge.ALL,
    ) -> None:
        self._world = world
        self._knowledge = knowledge
        self._topic = topic
        self._history = history or world.history
        self._subscription = subscription
        self._name = name
        self._is_stream = is_stream
        self._lives = 0
        self._held: list[tuple[Sent, Message]] = []

    async def live(self) -> None:
        world = self._world
        while True:
            self._lives += 1
            host = world.host(f"{self._name}.{self._lives}")
            world.client_hosts[self._name] = host.name
            life = world.loop.create_task(self._one_life(), name=host.name, context=context_of(host))
            try:
                await life
            except EXPECTED as error:
                world.note(f"{host.name} gives up: {error!r}")
            world.leave(host.name)
            await asyncio.sleep(world.chance.uniform(0.02, 0.4))

    async def _one_life(self) -> None:
        world, chance = self._world, self._world.chance
        # After a crash the same name comes back, or another in its place.
        name = self._name if chance.random() < 0.6 else f"{self._name}-{self._lives}"
        self._id = f"{name}#{self._lives}"
        self._held = []
        self._history.opened(self._id)
        consumer = await self._open(name)
        await self._read(consumer, world.loop.time() + chance.uniform(1.0, 8.0))
        if chance.random() < 0.5:
            world.note(f"{self._id} crashes")
            return
        world.note(f"{self._id} leaves")
        async with asyncio.timeout(CLOSING_MAX_S):
            await self._client.close()

    async def _read(self, consumer: StreamConsumer | QueueConsumer, ends: float) -> None:
        while self._world.is_calm or self._world.loop.time() < ends:
            await self._receive(consumer)

    async def _receive(self, consumer: StreamConsumer | QueueConsumer) -> None:
        try:
            async with asyncio.timeout(0.25):
                message = await consumer.receive()
        except TimeoutError:
            # An acknowledgement held back at the end of a sealed segment would keep its children from all consumers.
            await self._acknowledge(consumer)
        else:
            await self._take(consumer, message)
            takes_s = self._world.crowd.takes_s
            if takes_s and self._is_stream and not self._world.is_calm:
                await asyncio.sleep(self._world.chance.uniform(0.0, takes_s))

    async def _open(self, name: str) -> StreamConsumer | QueueConsumer:
        client = self._client = self._world.client(self._knowledge)
        open_ = client.stream_consumer if self._is_stream else client.queue_consumer
        async with asyncio.timeout(20):
            return await open_(
                self._topic, self._subscription, consumer_name=name, start="earliest", create=False
            )

    async def _take(self, consumer: StreamConsumer | QueueConsumer, message: Message) -> None:
        world = self._world
        sent, is_whole = sent_of(message.payload)
        place = HistoryPlace(message.segment, message.ledger, message.entry)
        self._history.received(
            self._subscription,
            self._id,
            sent,
            message.key or "",
            place,
            keeps_order=self._is_stream,
            is_whole=is_whole,
        )
        if world.is_traced:
            got = f"{sent.producer}:{sent.number} {message.key}"
            world.note(f"{self._id} got {got} from segment {message.segment}")
        self._held.append((sent, message))
        if not self._is_stream or world.is_calm or world.chance.random() < 0.5:
            await self._acknowledge(consumer)

    async def _acknowledge(self, consumer: StreamConsumer | QueueConsumer) -> None:
        """Acknowledges the last received message, and in a stream everything before it."""
        if not self._held:
            return
        held, self._held = self._held, []
        message = held[-1][1]
        if isinstance(consumer, QueueConsumer):
            await consumer.ack(message)
        else:
            await consumer.ack_cumulative(message)
        if await consumer.flush():
            self._history.acknowledged(self._subscription, [sent for sent, _ in held])


# -- operators


async def ask(world: World, call: Callable[[Broker], Awaitable[T]]) -> T:
    """Asks any broker, and then the one it names as the leader."""
    cluster = world.cluster
    node = world.chance.choice(cluster.up or cluster.nodes)
    for _ in range(5):
        if not node.is_up:
            raise TimeoutError(f"{node} is down")
        try:
            return await cluster.ask(node, call, ASK_MAX_S)
        except NotLeader as error:
            found = cluster.node_at(error.leader) if error.leader else None
            if found is None:
                raise
            node = found
    raise TimeoutError("no leader was found")


async def reshape(world: World) -> None:
    """Splits, merges and rebuckets at random."""
    while not world.is_calm:
        await asyncio.sleep(world.chance.expovariate(1 / 0.6))
        if not world.is_calm:
            await reshape_once(world)


async def reshape_once(world: World) -> None:
    chance, record = world.chance, world.record
    if record is None:
        return
    active = record.layout.active
    if chance.random() < 0.2:
        await rebucket_one(world, chance.choice(active))
        return
    if len(active) < world.crowd.active_max and (len(active) == 1 or chance.random() < 0.55):
        await split_one(world, chance.choice(active).id)
        return
    at = chance.randrange(len(active) - 1)
    one, other = active[at].id, active[at + 1].id
    world.note(f"merge of {one} and {other} is asked for")
    try:
        layout = await ask(world, lambda b: world.service(b).merge(NAME, one, other))
    except EXPECTED as error:
        world.note(f"reshaping failed: {error}")
    else:
        world.reshapings += 1
        world.note(f"done, epoch {layout.epoch}")


async def reshape_any(
    world: World, name: TopicName, record: ScalableTopic, chance: random.Random, active_max: int
) -> None:
    """Splits, merges or rebuckets another topic than that of the main load."""
    active = record.layout.active
    one = chance.choice(active)
    others = [other for other in active if other.range.start == one.range.end + 1]
    buckets = chance.choice([n for n in BUDGETS[1:] if n != one.bucket_count])
    draw = chance.random()

    async def change(broker: Broker) -> None:
        service = world.service(broker)
        if draw < 0.4:
            await service.rebucket(name, one.id, buckets)
        elif others:
            await service.merge(name, one.id, others[0].id)
        elif len(active) < active_max:
            await service.split(name, one.id)

    try:
        await ask(world, change)
    except EXPECTED as error:
        world.note(f"reshaping {name} failed: {error}")


async def rebucket_one(world: World, segment: Segment) -> None:
    buckets = world.chance.choice([n for n in BUDGETS if n != segment.bucket_count])
    world.note(f"rebucket of {segment.id} to {buckets} is asked for")
    try:
        layout = await ask(world, lambda b: world.service(b).rebucket(NAME, segment.id, buckets))
    except EXPECTED as error:
        world.note(f"reshaping failed: {error}")
    else:
        world.reshapings += 1
        world.rebuckets += 1
        world.note(f"done, epoch {layout.epoch}")


async def seal_one(world: World, segment: Segment) -> None:
    """Splits the segment, or replaces it where there are enough."""
    record = world.record
    if record is not None and len(record.layout.active) < world.crowd.active_max:
        await split_one(world, segment.id)
    else:
        await rebucket_one(world, segment)


async def split_one(world: World, number: SegmentId) -> None:
    world.note(f"split {number} is asked for")
    try:
        layout = await ask(world, lambda b: world.service(b).split(NAME, number))
    except EXPECTED as error:
        world.note(f"reshaping failed: {error}")
    else:
        world.reshapings += 1
        world.note(f"done, epoch {layout.epoch}")


async def make_subscriptions(world: World) -> None:
    """Makes and deletes subscriptions while the topic is reshaped."""
    chance = world.chance
    number = 0
    while not world.is_calm:
        await asyncio.sleep(chance.expovariate(1 / 1.5))
        if world.is_calm:
            return
        if world.extra and chance.random() < 0.5:
            await delete_subscription(world, chance.choice(sorted(world.extra)))
            continue
        number += 1
        name = f"extra-{number}"
        kind = chance.choice((SubscriptionKind.STREAM, SubscriptionKind.QUEUE))
        if await make_subscription(world, name, kind):
            world.extra[name] = kind


async def make_subscription(world: World, name: str, kind: SubscriptionKind) -> bool:
    try:
        await ask(
            world,
            lambda b: world.service(b).create_subscription(NAME, name, kind, InitialPosition.EARLIEST),
        )
    except EXPECTED as error:
        world.note(f"making {name} failed: {error}")
        world.doubtful.add(name)
        return False
    world.note(f"subscription {name} is there")
    world.history.subscribed(name, keeps_order=kind is SubscriptionKind.STREAM)
    return True


async def delete_subscription(world: World, name: str) -> bool:
    world.history.doomed(name)
    world.extra.pop(name, None)
    world.doubtful.add(name)
    try:
        await ask(world, lambda b: world.service(b).delete_subscription(NAME, name))
    except SubscriptionMissing:
        pass
    except EXPECTED as error:
        world.note(f"deleting {name} failed: {error}")
        return False
    world.note(f"subscription {name} is deleted")
    world.history.deleted(name)
    world.doubtful.discard(name)
    world.gone.add(name)
    return True


async def subscribe(world: World, name: str, kind: SubscriptionKind) -> None:
    """Makes the subscription; retries until that succeeds."""
    for _ in range(100):
        if await make_subscription(world, name, kind):
            return
        await asyncio.sleep(0.1)
    raise Stuck(f"subscription {name} cannot be made")
