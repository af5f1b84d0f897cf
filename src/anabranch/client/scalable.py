"""The client of scalable topics: producers, and stream, queue and checkpoint consumers, on any event loop.

Every producer and consumer has its own connections, so one that crashes takes nothing along. Chance and the clock are
passed in; time-outs and pauses follow the event loop's clock.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from anabranch.client.checkpoint import Edge, Start
from anabranch.client.checkpoint_consumer import CheckpointConsumer
from anabranch.client.connections import Backoff, Connections
from anabranch.client.layout_watch import LayoutWatch
from anabranch.client.queue_consumer import QueueConsumer
from anabranch.client.reroute import Routing
from anabranch.client.scalable_producer import PENDING_MAX, ScalableProducer
from anabranch.client.stream_consumer import StreamConsumer


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class ScalableClient:
    """Holds nothing open itself: close what it makes."""

    def __init__(
        self,
        service_url: str,
        *,
        chance: random.Random | None = None,
        now_ms: Callable[[], int] = _wall_ms,
    ) -> None:
        self._url = service_url
        self._chance = chance or random.Random()
        self._now_ms = now_ms

    async def _watch(self, topic: str, *, create: bool) -> tuple[Connections, LayoutWatch]:
        connections = Connections(self._url)
        watch = LayoutWatch(connections, topic, Backoff(self._chance))
        try:
            await watch.open(create=create)
        except BaseException:
            await connections.close()
            raise
        return connections, watch

    def _name(self, what: str) -> str:
        return f"{what}-{self._chance.getrandbits(40):010x}"

    async def producer(
        self,
        topic: str,
        *,
        name: str | None = None,
        routing: Routing = Routing.HIGH,
        pending_max: int = PENDING_MAX,
        create: bool = True,
    ) -> ScalableProducer:
        """With a name, sequence ids go on behind what the topic holds of it, and nothing of that is stored again."""
        connections, watch = await self._watch(topic, create=create)
        producer = ScalableProducer(
            connections,
            watch,
            name or self._name("producer"),
            chance=self._chance,
            now_ms=self._now_ms,
            routing=routing,
            pending_max=pending_max,
        )
        if name is not None:
            try:
                await producer.recall()
            except BaseException:
                await producer.close(flush=False)
                raise
        return producer

    async def stream_consumer(
        self,
        topic: str,
        subscription: str,
        *,
        consumer_name: str | None = None,
        earliest: bool = False,
        create: bool = True,
    ) -> StreamConsumer:
        """In order, acknowledged cumulatively; several of one subscription share its segments."""
        connections, watch = await self._watch(topic, create=create)
        consumer = StreamConsumer(
            connections,
            watch,
            subscription,
            consumer_name or self._name("stream"),
            earliest=earliest,
            chance=self._chance,
        )
        try:
            await consumer.open()
        except BaseException:
            await consumer.close()
            raise
        return consumer

    async def queue_consumer(
        self,
        topic: str,
        subscription: str,
        *,
        consumer_name: str | None = None,
        earliest: bool = False,
        create: bool = True,
    ) -> QueueConsumer:
        """Without order, acknowledged one by one; several of one subscription share every segment."""
        connections, watch = await self._watch(topic, create=create)
        consumer = QueueConsumer(
            connections,
            watch,
            subscription,
            consumer_name or self._name("queue"),
            earliest=earliest,
            chance=self._chance,
        )
        try:
            await consumer.open()
        except BaseException:
            await consumer.close()
            raise
        return consumer

    async def checkpoint_consumer(
        self,
        topic: str,
        *,
        start: Start = Edge.LATEST,
        group: str | None = None,
        consumer_name: str | None = None,
        create: bool = True,
    ) -> CheckpointConsumer:
        """In order, from a checkpoint on or an end of the topic; in a group, its share of the segments."""
        connections, watch = await self._watch(topic, create=create)
        consumer = CheckpointConsumer(
            connections,
            watch,
            consumer_name or self._name("checkpoint"),
            group=group,
            start=start,
            chance=self._chance,
        )
        try:
            await consumer.open()
        except BaseException:
            await consumer.close()
            raise
        return consumer
