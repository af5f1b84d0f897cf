"""A live broker on simulated time, with a trace flowing through one of its topics.

Broker, load reporter, automatic scaler, controller and log are the real ones; only the loop, the clock and the stores
are simulated. What flows is published to whichever segments are there.

A broker's ticks and its rounds of measuring begin together, so that every sixth round would coincide with a tick, and
which of both comes first would be anybody's guess. Here the broker is held up for a moment, which sets them apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from anabranch.autoscale.decisions import DecisionKind
from anabranch.broker.broker import Broker
from anabranch.broker.catalog.resources import Resources
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.config.listeners import Addresses
from anabranch.broker.policy.namespace import ClusterRecord as ClusterData
from anabranch.broker.scalable.load.history_records import HISTORY_TOPIC, HistoryRecord
from anabranch.broker.topic.producer import AttachedProducer
from anabranch.controller.ports import Assignment
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import TopicName
from anabranch.model.position import Incarnation
from anabranch.model.scalable import SubscriptionKind
from anabranch.model.segments import HashRange, Segment, SegmentId
from anabranch.pipelines.replay.replay import Timing
from anabranch.pipelines.replay.trace import Consumers, KeyShares, Trace, TraceStream
from anabranch.simulation.machine.loop import Host, SimLoop, context_of
from anabranch.storage.memory import MemoryLogStore, MemoryMedium
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import messages
from anabranch.wire.frames import SEND

TOPIC = TopicName.parse("topic://public/default/t")
BOOT_S, HELD_S, START_MS = 1_000.0, 1_009.0, 1_013_000
MINUTE = 60_000
SECOND = 1_000

# When, what, which segments, by which rule, and the sentence that explains it.
Event = tuple[int, str, tuple[int, ...], str, str]


class Link:
    """The far end of producers and consumers; it wants no answers."""

    is_open = True
    address = client_version = "test"

    def send(self, command: pb.BaseCommand) -> None:
        """Nobody reads it."""

    def write(self, pieces: object) -> None:
        """Receipts; nobody reads them."""

    def send_assignment(self, topic: TopicName, consumer_id: int, assignment: Assignment) -> None:
        """The consumers of this test take no messages."""

    def awaits_producer(self, producer: AttachedProducer) -> bool:
        return True

    def attach_producer(self, producer: AttachedProducer) -> None:
        """Publishes come straight to the topic."""

    def producer_closed(self, producer: AttachedProducer, moved_to: Addresses | None = None) -> None:
        """Its segment was sealed."""

    async def is_alive(self) -> bool:
        return True

    def hold(self, seconds: float) -> None: ...

    def owes(self, count: int) -> None: ...

    def answered(self, count: int) -> None: ...


def entry_of(at_ms: int, size: int) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=at_ms).SerializeToString()
    entry = len(metadata).to_bytes(4, "big") + metadata
    assert not size or size >= len(entry)
    return entry.ljust(size, b"x")


async def started(config: BrokerConfig) -> Broker:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    metadata = await MemoryMetadata(loop.now_ms).connect()
    resources = Resources(metadata)
    await resources.start()
    await resources.bootstrap(ClusterData(service_url="http://b", broker_service_url="pulsar://b:6650"))
    broker = Broker(
        config,
        metadata,
        MemoryLogStore(MemoryMedium(), incarnation=Incarnation("b")),
        resources,
        service_url="pulsar://b:6650",
        http_url="http://b:8080",
        now_ms=loop.now_ms,
    )
    await broker.start()
    return broker


@dataclass
class Live:
    """A topic of one broker, with the trace flowing through it second by second."""

    trace: Trace
    broker: Broker
    is_sized: bool  # Whether entries have the trace's size. Else they are small, and no limit is about bytes.
    policy: Mapping[str, Any] | None = None  # The topic's own.
    producers: dict[SegmentId, AttachedProducer] = field(default_factory=dict)
    links: dict[tuple[str, int], Link] = field(default_factory=dict)
    seconds: dict[HashRange, npt.NDArray[np.int_]] = field(default_factory=dict)
    events: dict[tuple[int, str], Event] = field(default_factory=dict)

    async def run(self) -> list[Event]:
        assert self.broker.scalable is not None
        topics = self.broker.scalable
        record = await topics.create(TOPIC, self.trace.segments)
        for segment in record.layout.active:
            await self.broker.topic(segment.topic(TOPIC))
        controller = await topics.leading(TOPIC)
        if self.policy is not None:
            await topics.update(TOPIC, lambda record: replace(record, auto_scale=self.policy))
            await controller.read_record()
        waiting = list(self.trace.consumers)
        for at_ms in range(START_MS, self.trace.end_ms, SECOND):
            if waiting and waiting[0][0] == at_ms:
                await self.have(waiting.pop(0)[1])
            await asyncio.sleep(0.5)
            for segment in self.layout.active:
                await self.flow(segment, at_ms)
            await asyncio.sleep(0.5)
            if at_ms % (10 * MINUTE) == 0:
                await self.gather()
        # The very last moment is looked at, too.
        await asyncio.sleep(0.25)
        await self.gather()
        return list(self.events.values())

    @property
    def layout(self) -> SegmentLayout:
        assert self.broker.scalable is not None
        state = self.broker.scalable.controllers[TOPIC].state
        assert state is not None
        return state.topic.layout

    async def flow(self, segment: Segment, at_ms: int) -> None:
        """What the trace has for that second: a tenth of its sample, in whole messages and bytes."""
        if segment.range not in self.seconds:
            counts = self.trace.counts(self.trace.shares(segment.range), 0, self.trace.samples + 1)
            tenths = np.diff(counts[:2], axis=1) / 10
            assert (tenths == np.floor(tenths)).all()
            self.seconds[segment.range] = tenths.astype(int)
        messages, size = self.seconds[segment.range][:, (at_ms - START_MS) // self.trace.step_ms].tolist()
        if not messages:
            return
        topic = await self.broker.topic(segment.topic(TOPIC))
        producer = self.producers.get(segment.id)
        if producer is None:
            producer = self.producers[segment.id] = AttachedProducer(segment.id, f"p{segment.id}", Link())
        entry = entry_of(at_ms, size if self.is_sized else 0)
        topic.publishing.publish(producer, [(SEND, producer.id, at_ms, messages, at_ms, 0, entry)])

    async def have(self, wanted: Consumers) -> None:
        assert self.broker.scalable is not None
        for name, count in wanted.items():
            for number in range(count):
                if (name, number) not in self.links:
                    link = self.links[name, number] = Link()
                    await self.broker.scalable.register(
                        TOPIC, name, f"c{number}", SubscriptionKind.STREAM, 1, link
                    )
        for (name, number), link in list(self.links.items()):
            if number >= wanted.get(name, 0):
                await self.broker.scalable.leave(TOPIC, name, f"c{number}", link)
                del self.links[name, number]

    async def gather(self) -> None:
        """The log of decisions is bounded, so it is read now and then."""
        for one in (await self.broker.autoscaler.explain(TOPIC)).decisions.decisions:
            if one.kind is not DecisionKind.STAY:
                event = one.at_ms, one.kind.value, tuple(map(int, one.segments)), one.rule, one.because
                self.events[one.at_ms, one.because] = event


# Ticks are a minute apart from when the broker was started.
TIMING = Timing(first_tick_ms=int(BOOT_S * SECOND) + MINUTE - START_MS)


async def published(broker: Broker) -> list[HistoryRecord]:
    """Everything in the topic of load history."""
    assert broker.scaling is not None
    if broker.scaling.history is None:
        return []
    await broker.scaling.history.flush()
    topic = await broker.topic(HISTORY_TOPIC)
    await asyncio.sleep(1)  # Of simulated time: until it is confirmed.
    found: list[HistoryRecord] = []
    at = topic.log.first
    while at < topic.log.end:
        ledger, entries = await topic.log.read(at, 1000, 1 << 20)
        for number, _, entry in entries:
            found += [
                msgspec.json.decode(bytes(payload), type=HistoryRecord) for _, payload in messages(entry)
            ]
            at = topic.log.after((ledger, number))
    return found


def live(trace: Trace, config: BrokerConfig, *, is_sized: bool = False) -> list[Event]:
    return lived(trace, config, is_sized=is_sized)[0]


def lived(
    trace: Trace, config: BrokerConfig, *, is_sized: bool = False, policy: Mapping[str, Any] | None = None
) -> tuple[list[Event], list[HistoryRecord]]:
    """What was decided, and what was published of it, but for the stretches that were not over."""
    host, loop = Host("b"), SimLoop(BOOT_S)

    async def scenario() -> tuple[list[Event], list[HistoryRecord]]:
        broker = await loop.create_task(started(config), context=context_of(host))
        await asyncio.sleep(HELD_S - loop.time())
        host.is_paused = True
        await asyncio.sleep(START_MS / SECOND - loop.time())
        loop.resume(host)
        await asyncio.sleep(0)
        try:
            return await Live(trace, broker, is_sized, policy).run(), await published(broker)
        finally:
            await broker.close()

    try:
        found: tuple[list[Event], list[HistoryRecord]] = loop.run_until_complete(scenario())
        return found
    finally:
        loop.close()


def stream(pieces: Sequence[tuple[float, int]], keys: KeyShares | None = None, size: int = 1) -> TraceStream:
    """Messages a second, each for so many seconds. Whole for every range that six splits in a row can make."""
    rates = np.concatenate([np.full(seconds // 10, level) for level, seconds in pieces])
    messages = np.round(rates / 64) * 640
    return TraceStream.of(np.array([messages, messages * size, 0 * messages, 0 * messages]), keys)


def trace(*streams: TraceStream, consumers: Mapping[int, Consumers] | None = None) -> Trace:
    changes = [(START_MS + at_s * SECOND, found) for at_s, found in (consumers or {}).items()]
    return Trace(START_MS, streams, changes)
