"""Which simulated broker owns a topic, and how brokers reach the segments of each other.

Every broker works it out by itself from the brokers it sees registered, so for a while after a change two may disagree:
what keeps that harmless is the log's fence.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import zlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from anabranch.broker.owners import BROKERS, Owner
from anabranch.broker.scalable.owner import SegmentOwner
from anabranch.controller.ports import SegmentStatus, SegmentUnavailable
from anabranch.metadata.errors import MetadataError
from anabranch.metadata.port import MetadataStore
from anabranch.model.names import TopicName
from anabranch.model.scalable import InitialPosition
from anabranch.model.segments import Segment
from anabranch.simulation.loop import HOST, SimLoop, context_of

if TYPE_CHECKING:
    from anabranch.simulation.cluster import Cluster

T = TypeVar("T")

RETRY_S: Final = 0.2
CALL_MAX_S: Final = 8.0


class RegisteredOwners:
    """Implements `Owners`: each topic goes to the registered broker whose name and the topic's hash highest."""

    def __init__(self, metadata: MetadataStore, me: Owner) -> None:
        self._metadata = metadata
        self._me = me
        self._known: dict[str, Owner] = {me.service_url: me}
        self._callbacks: list[Callable[[], None]] = []

    def start(self) -> None:
        watch = self._metadata.watch(BROKERS)
        # Ends with its host.
        self._following = asyncio.get_running_loop().create_task(self._follow(watch))

    async def _follow(self, watch: object) -> None:
        await self._read()
        async for _ in watch:  # type: ignore[attr-defined]  # A Watch.
            await self._read()

    async def _read(self) -> None:
        while True:
            with contextlib.suppress(MetadataError):
                found: dict[str, Owner] = {}
                for name in await self._metadata.children(BROKERS):
                    node = await self._metadata.get(f"{BROKERS}/{name}")
                    if node is not None and node.value:
                        value = json.loads(node.value)
                        url = value["pulsarServiceUrl"]
                        found[url] = Owner(url, value["webServiceUrl"])
                break
            await asyncio.sleep(RETRY_S)
        if found.keys() != self._known.keys():
            self._known = found
            for callback in list(self._callbacks):
                callback()

    def owner(self, topic: TopicName) -> Owner:
        if not self._known:
            return self._me
        name = str(topic)
        best = max(sorted(self._known), key=lambda url: zlib.crc32(f"{url} {name}".encode()))
        return self._known[best]

    def is_mine(self, topic: TopicName) -> bool:
        return self.owner(topic).service_url == self._me.service_url

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback) if callback in self._callbacks else None


class RemoteSegments:
    """Implements `Segments` for another broker's segments: over the network, so any call may fail, before or after."""

    def __init__(self, cluster: Cluster, owner: Owner) -> None:
        self._cluster = cluster
        self._owner = owner

    async def _call(self, call: Callable[[SegmentOwner], Awaitable[T]]) -> T:
        network, chance = self._cluster.network, self._cluster.chance
        here = HOST.get()
        await asyncio.sleep(network.delay())
        node = self._cluster.node_at(self._owner.service_url)
        is_parted = node is not None and here is not None and network.is_parted(here.name, node.name)
        if node is None or is_parted or chance.random() < self._cluster.call_loss:
            raise SegmentUnavailable(f"{self._owner.service_url} cannot be reached")
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        # It runs over there: held while that broker is paused, lost if it dies, and not stopped if the caller does.
        work = loop.create_task(_run(call(node.broker.segment_owner)), context=context_of(node.host))
        # Perhaps nobody waits for it in the end: the caller may be dead.
        work.add_done_callback(lambda task: task.cancelled() or task.exception(), context=context_of(None))
        done, _ = await asyncio.wait([work], timeout=CALL_MAX_S)
        await asyncio.sleep(network.delay())
        if not done or chance.random() < self._cluster.call_loss:
            raise SegmentUnavailable(f"{self._owner.service_url} did not answer")
        return work.result()

    async def create(self, topic: TopicName, segment: Segment, subscriptions: Sequence[str]) -> None:
        await self._call(lambda owner: owner.create(topic, segment, subscriptions))

    async def seal(self, topic: TopicName, segment: Segment) -> None:
        await self._call(lambda owner: owner.seal(topic, segment))

    async def delete(self, topic: TopicName, segment: Segment) -> None:
        await self._call(lambda owner: owner.delete(topic, segment))

    async def create_subscription(
        self, topic: TopicName, segment: Segment, subscription: str, initial: InitialPosition
    ) -> None:
        await self._call(lambda owner: owner.create_subscription(topic, segment, subscription, initial))

    async def delete_subscription(self, topic: TopicName, segment: Segment, subscription: str) -> None:
        await self._call(lambda owner: owner.delete_subscription(topic, segment, subscription))

    async def seek(self, topic: TopicName, segment: Segment, subscription: str, timestamp_ms: int) -> None:
        await self._call(lambda owner: owner.seek(topic, segment, subscription, timestamp_ms))

    async def skip_all(self, topic: TopicName, segment: Segment, subscription: str) -> None:
        await self._call(lambda owner: owner.skip_all(topic, segment, subscription))

    async def status(self, topic: TopicName, segment: Segment) -> SegmentStatus:
        return await self._call(lambda owner: owner.status(topic, segment))


async def _run(work: Awaitable[T]) -> T:
    return await work
