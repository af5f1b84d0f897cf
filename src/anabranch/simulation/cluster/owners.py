"""Which simulated broker owns a topic, and how brokers reach each other's segments.

Every broker computes the owners from the brokers that it sees registered, so for a while after a change two may
disagree: the log's fence keeps that harmless.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import zlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeVar

from anabranch.broker.catalog.owners import BrokerAddress, OwnersListener
from anabranch.broker.catalog.registry import BROKERS
from anabranch.broker.scalable.owner.segments import SegmentOwner
from anabranch.controller.core.errors import SegmentUnavailable
from anabranch.controller.ports import SegmentStatus
from anabranch.metadata.errors import MetadataError
from anabranch.metadata.port import MetadataStore
from anabranch.model.bundles import BundleName
from anabranch.model.names import NamespaceName, TopicName
from anabranch.model.scalable import InitialPosition
from anabranch.model.segments import Segment
from anabranch.simulation.cluster.node import Node
from anabranch.simulation.machine.loop import HOST, SimLoop, context_of
from anabranch.simulation.machine.network import Network

T = TypeVar("T")

RETRY_S: Final = 0.2
CALL_MAX_S: Final = 8.0


class RegisteredOwners:
    """Implements `Owners`: a topic belongs to the registered broker for which the hash of both names is highest."""

    def __init__(self, metadata: MetadataStore, me: BrokerAddress) -> None:
        self._metadata = metadata
        self._me = me
        self._known: dict[str, BrokerAddress] = {me.service_url: me}
        self._spaces: set[NamespaceName] = set()  # Those that owners were asked for.
        self._callbacks: list[OwnersListener] = []

    def start(self) -> None:
        watch = self._metadata.watch(BROKERS)
        # The task ends with its host.
        self._following = asyncio.get_running_loop().create_task(self._follow(watch))

    async def _follow(self, watch: object) -> None:
        await self._read()
        async for _ in watch:  # type: ignore[attr-defined]  # A Watch.
            await self._read()

    async def _read(self) -> None:
        while True:
            with contextlib.suppress(MetadataError):
                found: dict[str, BrokerAddress] = {}
                for name in await self._metadata.children(BROKERS):
                    node = await self._metadata.get(f"{BROKERS}/{name}")
                    if node is not None and node.value:
                        value = json.loads(node.value)
                        url = value["pulsarServiceUrl"]
                        found[url] = BrokerAddress(url, value["webServiceUrl"])
                break
            await asyncio.sleep(RETRY_S)
        if found.keys() != self._known.keys():
            self._known = found
            for callback in list(self._callbacks):
                callback(frozenset(BundleName(space, "0x00000000_0xffffffff") for space in self._spaces))

    def owner(self, topic: TopicName) -> BrokerAddress:
        self._spaces.add(topic.namespace)
        if not self._known:
            return self._me
        name = str(topic)
        best = max(sorted(self._known), key=lambda url: zlib.crc32(f"{url} {name}".encode()))
        return self._known[best]

    async def resolve(self, topic: TopicName) -> BrokerAddress:
        return self.owner(topic)

    def is_mine(self, topic: TopicName) -> bool:
        return self.owner(topic).service_url == self._me.service_url

    def on_change(self, callback: OwnersListener) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback) if callback in self._callbacks else None


class BrokerCalls(Protocol):
    """The calls from one broker to another."""

    network: Network
    chance: random.Random
    # The chance that a call is lost, on its way there or back.
    call_loss: float

    def node_at(self, service_url: str) -> Node | None:
        """The machine with that address; None if it is down."""
        ...


class RemoteSegments:
    """Implements `Segments` for another broker's segments: over the network, so any call may fail, before or after."""

    def __init__(self, calls: BrokerCalls, owner: BrokerAddress) -> None:
        self._calls = calls
        self._owner = owner

    async def _call(self, call: Callable[[SegmentOwner], Awaitable[T]]) -> T:
        network, chance = self._calls.network, self._calls.chance
        here = HOST.get()
        await asyncio.sleep(network.delay())
        node = self._calls.node_at(self._owner.service_url)
        is_parted = node is not None and here is not None and network.is_parted(here.name, node.name)
        if node is None or is_parted or chance.random() < self._calls.call_loss:
            raise SegmentUnavailable(f"{self._owner.service_url} cannot be reached")
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        # The work runs on the other broker: it is held while that broker is paused, lost if it dies, and not stopped if
        # the caller dies.
        work = loop.create_task(_run(call(node.broker.segment_owner)), context=context_of(node.host))
        # Perhaps no caller awaits it in the end: the caller may be dead.
        work.add_done_callback(lambda task: task.cancelled() or task.exception(), context=context_of(None))
        done, _ = await asyncio.wait([work], timeout=CALL_MAX_S)
        await asyncio.sleep(network.delay())
        if not done or chance.random() < self._calls.call_loss:
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
