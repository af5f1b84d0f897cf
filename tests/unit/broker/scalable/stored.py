"""What a watch needs around it, on the memory store: topics that are nothing but their records, and a client's end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from anabranch.broker.catalog.owners import BrokerAddress, OwnersListener
from anabranch.broker.errors import NotReadyError
from anabranch.controller.core.errors import TopicMissing
from anabranch.controller.feed import TopicFeed
from anabranch.metadata.errors import AlreadyExists
from anabranch.metadata.port import MetadataStore
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import TopicName
from anabranch.model.scalable import ScalableTopic, controller_path, topic_path
from anabranch.wire import pulsar_pb2 as pb

NOW_MS = 1_700_000_000_000
ME = BrokerAddress("pulsar://me:6650", "http://me:8080", "pulsar+ssl://me:6651")
OTHER = BrokerAddress("pulsar://other:6650", "http://other:8080", "pulsar+ssl://other:6651")


@dataclass
class StoredTopics:
    """Implements `Layouts`: the first broker touched leads."""

    metadata: MetadataStore
    feed: TopicFeed
    classic: dict[TopicName, list[str]] = field(default_factory=dict)
    leads_when_touched: bool = True
    touched: list[TopicName] = field(default_factory=list)
    reads: int = 0
    # Called in the middle of every read: after the value was taken, before the reader has it.
    during_read: Callable[[], None] | None = None
    failure: Exception | None = None
    failures: asyncio.Queue[Exception] = field(default_factory=asyncio.Queue)
    _electing: set[asyncio.Task[None]] = field(default_factory=set)

    async def get(self, topic: TopicName) -> ScalableTopic | None:
        self.reads += 1
        if self.failure is not None:
            self.failures.put_nowait(self.failure)
            raise self.failure
        found = await self.metadata.get(topic_path(topic))
        if self.during_read is not None:
            act, self.during_read = self.during_read, None
            act()
            await asyncio.sleep(0)
        return ScalableTopic.decode(found.value) if found is not None and found.value else None

    async def view(self, topic: TopicName) -> ScalableTopic:
        record = await self.get(topic)
        if record is not None:
            return record
        partitions = self.classic.get(topic)
        if partitions is None:
            raise TopicMissing(f"{topic} does not exist")
        # The time differs at every look, as it may.
        return ScalableTopic(SegmentLayout.synthetic(partitions, NOW_MS + self.reads), generation=0)

    async def leader(self, topic: TopicName) -> str:
        found = await self.metadata.get(controller_path(topic))
        return "" if found is None else found.value.decode()

    def touch(self, topic: TopicName) -> None:
        self.touched.append(topic)
        if self.leads_when_touched:
            task = asyncio.get_running_loop().create_task(self.elect(topic, ME))
            self._electing.add(task)
            task.add_done_callback(self._electing.discard)

    async def elect(self, topic: TopicName, who: BrokerAddress) -> None:
        with contextlib.suppress(AlreadyExists):
            await self.metadata.create(controller_path(topic), who.service_url.encode(), ephemeral=True)

    async def resign(self, topic: TopicName) -> None:
        await self.metadata.delete(controller_path(topic))

    async def store(self, topic: TopicName, layout: SegmentLayout, generation: int = 7) -> None:
        await self.put(topic, ScalableTopic(layout, generation))

    async def put(self, topic: TopicName, record: ScalableTopic) -> None:
        await self.metadata.put(topic_path(topic), record.encode())

    async def remove(self, topic: TopicName) -> None:
        """As a topic with leftovers goes: the record first, the rest some time later."""
        await self.metadata.put(topic_path(topic), b"")


@dataclass
class MovingOwners:
    """Everything is mine, except what has moved."""

    moved: dict[TopicName, BrokerAddress] = field(default_factory=dict)
    missing: set[TopicName] = field(default_factory=set)

    def owner(self, topic: TopicName) -> BrokerAddress | None:
        return None if topic in self.missing else self.moved.get(topic, ME)

    async def resolve(self, topic: TopicName) -> BrokerAddress:
        found = self.owner(topic)
        if found is None:
            raise NotReadyError(f"{topic} has no owner yet")
        return found

    def is_mine(self, topic: TopicName) -> bool:
        return self.owner(topic) is ME

    def on_change(self, callback: OwnersListener) -> Callable[[], None]:
        return lambda: None


class TwoBrokers:
    async def find(self, service_url: str) -> BrokerAddress | None:
        return {owner.service_url: owner for owner in (ME, OTHER)}.get(service_url)


class Updates:
    """The client's end: updates in the order they come."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[pb.CommandScalableTopicUpdate] = asyncio.Queue()

    def send(self, command: pb.BaseCommand) -> None:
        assert command.type == pb.BaseCommand.SCALABLE_TOPIC_UPDATE
        copy = pb.BaseCommand.FromString(command.SerializeToString())
        self.queue.put_nowait(copy.scalableTopicUpdate)

    async def next(self) -> pb.CommandScalableTopicUpdate:
        async with asyncio.timeout(10):
            return await self.queue.get()

    @property
    def waiting(self) -> int:
        return self.queue.qsize()
