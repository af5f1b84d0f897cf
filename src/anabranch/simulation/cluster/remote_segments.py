"""How simulated brokers reach each other's segments."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeVar

from anabranch.broker.catalog.owners import BrokerAddress
from anabranch.broker.scalable.owner.segments import SegmentOwner
from anabranch.controller.core.errors import SegmentUnavailable
from anabranch.controller.ports import SegmentStatus
from anabranch.model.names import TopicName
from anabranch.model.scalable import InitialPosition
from anabranch.model.segments import Segment
from anabranch.simulation.cluster.node import Node
from anabranch.simulation.machine.loop import HOST, SimLoop, context_of
from anabranch.simulation.machine.network import Network

T = TypeVar("T")

CALL_MAX_S: Final = 8.0


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
