"""Real brokers over one memory medium and one memory store, and a test that plays the controller.

A broker of somebody else's holds the leadership of every topic that is stored here, so nothing happens to segments but
what the test asks for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from anabranch.broker.assembly.balance_parts import LoadSources
from anabranch.broker.broker import Broker
from anabranch.broker.catalog.owners import BrokerAddress, OwnersListener
from anabranch.broker.catalog.resources import Resources
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.peers.topic_moves import CallsOfMoves
from anabranch.broker.policy.namespace import ClusterRecord as ClusterRecord
from anabranch.broker.rest import create_app
from anabranch.broker.security.rights import Authorizer
from anabranch.client import ClientConnection
from anabranch.client.transport.connection import PartKind
from anabranch.controller.ports import Segments
from anabranch.metadata.memory import MemoryMetadata, MemoryStore
from anabranch.model.buckets import BucketBudget, Splits
from anabranch.model.bundles import bundle_ranges
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import TopicName
from anabranch.model.position import Incarnation
from anabranch.model.scalable import (
    InitialPosition,
    PlanKind,
    ReshapePlan,
    ScalableTopic,
    SubscriptionKind,
    SubscriptionRecord,
    controller_path,
    subscription_path,
    topic_path,
)
from anabranch.model.segments import Segment, SegmentId
from anabranch.storage.memory import MemoryLogStore, MemoryMedium
from anabranch.wire import pulsar_pb2 as pb
from harness.simple_client import Client

NOW_MS = 1_700_000_000_000
# The broker with this number has no https.
WITHOUT_TLS = 2
ELSEWHERE = "pulsar://elsewhere:6650"
TOPIC = TopicName.parse("topic://public/default/orders")


@dataclass
class Assigned:
    """Implements `Owners` for one broker: the first owns all, except what is moved."""

    brokers: list[BrokerAddress]
    mine: int
    moved: dict[TopicName, int] = field(default_factory=dict)
    listeners: list[OwnersListener] = field(default_factory=list)

    def owner(self, topic: TopicName) -> BrokerAddress:
        return self.brokers[self.moved.get(topic, 0)]

    async def resolve(self, topic: TopicName) -> BrokerAddress:
        return self.owner(topic)

    def is_mine(self, topic: TopicName) -> bool:
        return self.moved.get(topic, 0) == self.mine

    def on_change(self, callback: OwnersListener) -> Callable[[], None]:
        self.listeners.append(callback)
        return lambda: self.listeners.remove(callback)


@dataclass
class Node:
    """One broker, with a REST client and a wire client of its own."""

    broker: Broker
    http: httpx.AsyncClient
    client: Client
    metadata: MemoryStore

    async def rest(self, method: str, path: str, **options: object) -> httpx.Response:
        return await self.http.request(method, f"/admin/v2/{path}", **options)  # type: ignore[arg-type]

    async def publish(self, topic: TopicName, *payloads: bytes, name: str | None = None) -> None:
        producer = await self.client.producer(str(topic), name)
        receipts = [await producer.send(payload) for payload in payloads]
        await asyncio.gather(*receipts)
        await producer.close()

    async def read(self, topic: TopicName, subscription: str, count: int, *, ack: bool = True) -> list[bytes]:
        consumer = await self.client.consumer(str(topic), subscription, earliest=True)
        found = [await consumer.receive() for _ in range(count)]
        if ack:
            for message in found:
                await consumer.ack(message)
        await consumer.close()
        return [message.payload for message in found]


@dataclass
class Cluster:
    store: MemoryMetadata
    metadata: MemoryStore  # Somebody else's session.
    nodes: list[Node]
    owners: list[Assigned]
    connections: list[ClientConnection] = field(default_factory=list)

    @property
    def first(self) -> Node:
        return self.nodes[0]

    @property
    def segments(self) -> Segments:
        return self.first.broker.segments

    def move(self, topic: TopicName, to: int) -> None:
        """Another broker owns the topic from now on."""
        for owners in self.owners:
            owners.moved[topic] = to
        for owners in self.owners:
            for told in list(owners.listeners):
                told(frozenset([bundle_ranges().of(topic)]))

    # -- what a controller stores

    async def record(self, topic: TopicName = TOPIC) -> ScalableTopic:
        found = await self.metadata.get(topic_path(topic))
        assert found is not None
        return ScalableTopic.decode(found.value)

    async def put(self, record: ScalableTopic, topic: TopicName = TOPIC) -> ScalableTopic:
        await self.metadata.put(topic_path(topic), record.encode())
        return record

    async def change(self, change: Callable[[ScalableTopic], ScalableTopic]) -> ScalableTopic:
        return await self.put(change(await self.record()))

    async def topic(
        self,
        segments: int = 1,
        *,
        generation: int = 7,
        topic: TopicName = TOPIC,
        made: bool = True,
        buckets: int = 1,
        splits: Splits = (),
    ) -> list[Segment]:
        """A topic with so many segments, which exist unless `made` is false, and so many entry buckets in all, or with
        those splits in each segment."""
        layout = SegmentLayout.initial(segments, NOW_MS, budget=BucketBudget(buckets))
        if splits:
            shared = {number: replace(one, bucket_splits=splits) for number, one in layout.segments.items()}
            layout = replace(layout, segments=shared)
        await self.put(ScalableTopic(layout, generation), topic)
        if await self.metadata.get(controller_path(topic)) is None:
            await self.metadata.create(controller_path(topic), ELSEWHERE.encode(), ephemeral=True)
        if made:
            for segment in layout.active:
                await self.segments.create(topic, segment, ())
        return list(layout.active)

    async def plan_split(self, number: int = 0) -> ReshapePlan:
        """A split whose plan is stored and which has not gone further."""
        record = await self.record()
        plan = ReshapePlan(PlanKind.SPLIT, (SegmentId(number),), record.layout.split(number, NOW_MS))
        await self.put(record.planned(plan))
        return plan

    async def publish_plan(self) -> None:
        await self.change(lambda record: record.published())

    async def split(self, number: int = 0, subscriptions: Iterable[str] = ()) -> tuple[Segment, ...]:
        """A whole split; the children."""
        plan = await self.plan_split(number)
        for child in plan.children:
            await self.segments.create(TOPIC, child, list(subscriptions))
        parent = (await self.record()).layout.segments[SegmentId(number)]
        await self.segments.seal(TOPIC, parent)
        await self.publish_plan()
        return plan.children

    async def subscription(
        self,
        name: str,
        *,
        kind: SubscriptionKind = SubscriptionKind.STREAM,
        initial: InitialPosition | None = InitialPosition.EARLIEST,
        is_deleting: bool = False,
        topic: TopicName = TOPIC,
    ) -> None:
        generation = (await self.record(topic)).generation
        stored = SubscriptionRecord(name, kind, generation, initial, is_deleting)
        await self.metadata.put(subscription_path(topic, name), stored.encode())

    async def reader(self, topic: TopicName, name: str, start: pb.MessageIdData | None = None) -> Reader:
        connection = await ClientConnection.open(self.first.broker.service_url)
        self.connections.append(connection)
        reader = connection.attach(PartKind.CONSUMER, lambda number: Reader(connection, number))
        await connection.request(
            pb.BaseCommand.SUBSCRIBE,
            "subscribe",
            topic=str(topic),
            subscription=f"reader-{name}",
            subType=pb.CommandSubscribe.Exclusive,
            consumer_id=reader.id,
            consumer_name=name,
            durable=False,
            initialPosition=pb.CommandSubscribe.Earliest,
            start_message_id=start or pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1),
        )
        connection.send(pb.BaseCommand.FLOW, "flow", consumer_id=reader.id, messagePermits=1000)
        return reader

    async def stored_subscription(self, name: str) -> SubscriptionRecord | None:
        found = await self.metadata.get(subscription_path(TOPIC, name))
        return None if found is None else SubscriptionRecord.decode(found.value)


class Reader:
    """A consumer without a durable cursor, as Pulsar's readers are: it acknowledges everything up to a message."""

    def __init__(self, connection: ClientConnection, number: int) -> None:
        self.id = number
        self.connection = connection
        self.messages: asyncio.Queue[pb.MessageIdData] = asyncio.Queue()
        self.is_at_end = asyncio.Event()

    def received(self, kind: int, body: Any, payload: memoryview | None) -> None:
        if kind == pb.BaseCommand.MESSAGE:
            self.messages.put_nowait(body.message_id)
        elif kind == pb.BaseCommand.REACHED_END_OF_TOPIC:
            self.is_at_end.set()

    def lost(self, error: Exception) -> None: ...

    async def ack(self, at: pb.MessageIdData) -> None:
        await self.connection.request(
            pb.BaseCommand.ACK,
            "ack",
            consumer_id=self.id,
            ack_type=pb.CommandAck.Cumulative,
            message_id=[at],
        )

    async def close(self) -> None:
        await self.connection.request(pb.BaseCommand.CLOSE_CONSUMER, "close_consumer", consumer_id=self.id)


async def until(claim: Callable[[], object]) -> None:
    """Returns once the claim is true. What is waited for is in a broker, which has no event for it."""
    async with asyncio.timeout(20):
        while not claim():  # noqa: ASYNC110 - only the loop knows of the turns.
            await asyncio.sleep(0)


def name_of(segment: Segment, topic: TopicName = TOPIC) -> TopicName:
    return segment.topic(topic)


@contextlib.asynccontextmanager
async def running(
    brokers: int = 1,
    config: BrokerConfig | None = None,
    authorizer: Authorizer | None = None,
    *,
    is_shared: bool = False,
    moves: Callable[[list[Node]], CallsOfMoves | None] = lambda nodes: None,
    measured: Callable[[Broker, LoadSources], LoadSources] = lambda broker, found: found,
    brokers_expected: int = 0,
) -> AsyncIterator[Cluster]:
    """With `is_shared` the brokers share the topics as they do in production, all know all of them, and nothing can be
    moved by `move`. Each is told to expect `brokers_expected`."""
    store, medium = MemoryMetadata(lambda: NOW_MS), MemoryMedium()
    known: list[BrokerAddress] = []
    owners: list[Assigned] = []
    nodes: list[Node] = []

    async with contextlib.AsyncExitStack() as stack:
        metadata = await store.connect()
        stack.push_async_callback(metadata.close)
        for number in range(brokers):
            assigned = None if is_shared else Assigned(known, number)
            if assigned is not None:
                owners.append(assigned)
            node = await stack.enter_async_context(
                _node(
                    number,
                    store,
                    medium,
                    assigned,
                    moves(nodes),
                    config or BrokerConfig(),
                    authorizer,
                    measured,
                    brokers_expected,
                )
            )
            known.append(node.broker.registry.me.address)
            nodes.append(node)
        cluster = Cluster(store, metadata, nodes, owners)
        if is_shared:
            await until(lambda: all(len(node.broker.registry.living()) == brokers for node in nodes))
        yield cluster
        for connection in cluster.connections:
            await connection.close()


@contextlib.asynccontextmanager
async def _node(
    number: int,
    store: MemoryMetadata,
    medium: MemoryMedium,
    owners: Assigned | None,
    moves: CallsOfMoves | None,
    config: BrokerConfig,
    authorizer: Authorizer | None,
    measured: Callable[[Broker, LoadSources], LoadSources],
    brokers_expected: int,
) -> AsyncIterator[Node]:
    metadata = await store.connect()
    resources = Resources(metadata)
    await resources.start()
    http_url = f"http://broker-{number}:8080"
    await resources.bootstrap(
        ClusterRecord(service_url=http_url), me="" if owners is not None else f"broker-{number}"
    )
    log = MemoryLogStore(medium, incarnation=Incarnation(f"broker-{number}"))
    await log.start()
    made: list[Broker] = []
    server = await asyncio.get_running_loop().create_server(lambda: made[0].new_session(), "127.0.0.1", 0)
    url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    broker = Broker(
        config,
        metadata,
        log,
        resources,
        service_url=url,
        http_url=http_url,
        http_url_tls=f"https://broker-{number}:8443" if number != WITHOUT_TLS else "",
        now_ms=lambda: NOW_MS,
        owners=owners,
        in_cluster=owners is None,
        moves=moves,
        authorizer=authorizer,
        measured=measured,
        brokers_expected=brokers_expected,
    )
    made.append(broker)
    await broker.start()
    transport = httpx.ASGITransport(create_app(broker.admin_services(), broker.page))
    async with httpx.AsyncClient(transport=transport, base_url=http_url) as http, Client(url) as client:
        yield Node(broker, http, client, metadata)
    server.close()
    if not broker.is_closing:
        await broker.close()
    await resources.close()
    await metadata.close()


def deleting(record: ScalableTopic) -> ScalableTopic:
    return replace(record, is_deleting=True)
