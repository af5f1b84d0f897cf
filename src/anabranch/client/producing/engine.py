"""What a producer has under way: its lanes, their segments, receipts, seals, time-outs. The shell of `lanes`.

Each segment in use has an attached producer. When its connection is lost, the producer attaches again and sends its
lanes there again; the broker drops messages that it already has if deduplication is on. A segment that turns out to be
sealed is asked for its last sequence ids first wherever a receipt may have been lost, so that nothing is stored twice;
then the rest of its lanes is cut again for its children.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from anabranch.client.errors import RequestRefused, TopicDeleted
from anabranch.client.hidden_writes.write import Write
from anabranch.client.producing.batching import Batching
from anabranch.client.producing.budget import MemoryBudget
from anabranch.client.producing.core.lanes import NOWHERE, Lane, Lanes, Placed, Routing, is_synthetic
from anabranch.client.producing.core.last_ids import LastIds
from anabranch.client.producing.core.runs import BatchLimits, MessageRun
from anabranch.client.producing.entries import Encrypts, Entries
from anabranch.client.producing.gathering import Gathering
from anabranch.client.producing.receipts import fail, store
from anabranch.client.producing.segment import Attaching, SegmentProducer
from anabranch.client.transport.attachment import Trouble
from anabranch.client.transport.layout_watch import LayoutWatch
from anabranch.client.transport.pool import Connections
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import SegmentId
from anabranch.wire import pulsar_pb2 as pb

SEND_TIMEOUT_S: Final = 30.0
# How long a classic topic that accepts no more messages may be about to become a scalable one.
TERMINATED_AFTER_S = 3.0
# Timers may fire this much early.
CLOCK_GRAIN_S: Final = 0.001
UNBATCHED: Final = BatchLimits(1, 0)


class Encodes(Protocol):
    """The part of a schema that a producer needs."""

    def encode(self, value: Any) -> bytes: ...

    def info(self) -> pb.Schema | None: ...


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """How a producer behaves. `Client.producer` documents each setting."""

    routing: Routing = Routing.HIGH
    batching: Batching | None = field(default_factory=Batching)
    compression: int = pb.NONE
    is_chunking: bool = False
    access_mode: int = pb.Shared
    schema: Encodes | None = None
    encryption: Encrypts | None = None
    send_timeout_s: float | None = SEND_TIMEOUT_S
    properties: Mapping[str, str] = field(default_factory=dict)
    is_named: bool = False
    write: Write | None = None

    def limits(self, layout: SegmentLayout) -> BatchLimits:
        """The limits of an entry on a topic of that layout. On a scalable topic encrypted messages are not joined: no
        broker could part them again by keys."""
        if self.batching is None or (self.encryption is not None and not is_synthetic(layout)):
            return UNBATCHED
        return BatchLimits(self.batching.messages_max, self.batching.bytes_max)


class Flow:
    """All messages of a producer without a receipt. `error` is what ended the producer."""

    def __init__(
        self,
        connections: Connections,
        watch: LayoutWatch,
        name: str,
        settings: ProducerSettings,
        *,
        chance: random.Random,
        now_ms: Callable[[], int],
        budget: MemoryBudget,
    ) -> None:
        self.name = name
        self.watch = watch
        self.connections = connections
        self.chance = chance
        self.lanes = Lanes(watch.layout, settings.routing, settings.limits(watch.layout))
        self.entries = Entries(
            name,
            now_ms,
            compression=settings.compression,
            encryption=settings.encryption,
            is_chunking=settings.is_chunking,
            write=settings.write,
        )
        self.attaching = Attaching(
            settings.access_mode,
            settings.schema.info() if settings.schema is not None else None,
            tuple(settings.properties.items()),
            settings.encryption is not None,
            settings.write,
        )
        # The segments that may hold messages of this producer.
        self.topics_written: set[str] = set()
        self.error: Exception | None = None
        # The errors since the last receipt.
        self.trouble = Trouble()
        self._settings = settings
        self._budget = budget
        self._timeout_s = settings.send_timeout_s
        self._loop = asyncio.get_running_loop()
        delay_s = settings.batching.delay_ms / 1000 if settings.batching is not None else 0.0
        self._gathering = Gathering(self._loop, delay_s, self._due)
        self._segments: dict[SegmentId, SegmentProducer] = {}
        # The lanes that may have messages being gathered.
        self._begun: dict[Lane, None] = {}
        # The number of messages without a receipt. Code that puts a message into a lane adds it here.
        self.pending = 0
        # The first failure that was not reported to the application yet.
        self._unreported: Exception | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self._timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.TimerHandle | None = None
        # Told of new limits: a classic topic may become a scalable one.
        self.limits_changed: Callable[[BatchLimits], None] = lambda _: None
        self._stop_listening = watch.listen(self._layout_changed)

    # -- input

    async def room(self, size: int, *, is_begun: bool = False) -> None:
        """Returns once that many bytes are charged to the budget."""
        self.cut_all()
        await self._budget.take(size, is_begun=is_begun)
        if self.error is not None:
            self._budget.release(size)
            raise self.error

    def begin(self, lane: Lane) -> None:
        """Notes that the first message of a run was gathered."""
        self._mark(lane)
        if lane.segment != NOWHERE:
            self._begun[lane] = None
            self._gathering.begun(lane, is_idle=not lane.runs)

    def add(self, runs: Iterable[Placed]) -> None:
        """Adds complete runs, each behind everything else in its lane, whose messages must be cut before."""
        found: dict[SegmentId, list[Placed]] = {}
        for lane, run in runs:
            lane.add(run)
            found.setdefault(lane.segment, []).append((lane, run))
        self._send(found)

    def _send(self, runs: dict[SegmentId, list[Placed]]) -> None:
        for number, placed in runs.items():
            if number != NOWHERE:
                self.segment(number).send(placed)

    def now(self, lane: Lane) -> float:
        """The time, for a run that is made at once. Messages being gathered in its lane are sent before it."""
        self.cut(lane)
        self._mark(lane)
        return lane.since

    def _mark(self, lane: Lane) -> None:
        """Notes that a message was handed in just now."""
        lane.since = self._loop.time()
        if self._timer is None and self._timeout_s is not None:
            self._timer = self._loop.call_later(self._timeout_s, self._time_out)
        if self._empty.is_set():
            self._empty.clear()

    def cut(self, lane: Lane) -> None:
        """Sends the messages gathered in the lane."""
        run = lane.cut()
        if run is not None and lane.segment != NOWHERE:
            self._begun.pop(lane, None)
            self.segment(lane.segment).send([(lane, run)])

    def _due(self, lane: Lane) -> None:
        """The messages gathered in the lane have waited long enough. Without a connection the batch may keep
        growing."""
        if not lane.items:
            return
        one = self.segment(lane.segment)
        if one.is_attached:
            self.cut(lane)
        else:
            one.open()

    def cut_all(self) -> None:
        for lane in list(self._begun):
            self.cut(lane)
        self._begun.clear()

    # -- the end

    async def flush(self) -> None:
        self.cut_all()
        await self._empty.wait()
        error, self._unreported = self.error or self._unreported, None
        if error is not None:
            raise error

    def reported(self, error: Exception) -> None:
        """Notes that the application got that failure."""
        if error is self._unreported:
            self._unreported = None

    async def close(self) -> None:
        await asyncio.gather(*(one.close() for one in self._segments.values()))
        await self.watch.close()

    def abort(self) -> None:
        for one in self._segments.values():
            one.abort()
        self.connections.abort()

    def end(self, error: Exception) -> None:
        """Stops accepting messages, and fails those under way."""
        if self.error is None:
            self.error = error
        self._stop_listening()
        self._gathering.close()
        for timer in (self._timer, self._ending):
            if timer is not None:
                timer.cancel()
        self._timer = self._ending = None
        for run in self.lanes.clear():
            self._fail(run, self.error)
        self._empty.set()

    # -- events

    def _layout_changed(self) -> None:
        if self.watch.is_deleted:
            self.end(TopicDeleted(f"{self.watch.shown_topic} was deleted"))
            return
        self.lanes.limits = self._settings.limits(self.watch.layout)
        self.limits_changed(self.lanes.limits)
        self.lanes.learned(self.watch.layout)
        for number, one in list(self._segments.items()):
            if self.watch.is_over(number):
                self._open_children(number)
                if not self.lanes.holds(number) and one.retire():
                    del self._segments[number]
        self._dispatch()

    def _open_children(self, number: SegmentId) -> None:
        """The children of a segment in use will be used too: they attach while the parent's last answers come in."""
        known = self.watch.layout.segments.get(number)
        for child in known.children if known is not None else ():
            if not self.watch.is_over(child):
                self.segment(child).open()

    def _dispatch(self) -> None:
        found: dict[SegmentId, list[Placed]] = {}
        for lane, run in self.lanes.ready():
            found.setdefault(lane.segment, []).append((lane, run))
        self._send(found)

    def segment(self, number: SegmentId) -> SegmentProducer:
        """The producer of that segment; made on first use."""
        found = self._segments.get(number)
        if found is None:
            found = self._segments[number] = SegmentProducer(self, number)
        return found

    def stored(self, lane: Lane, run: MessageRun, ledger: int, entry: int) -> None:
        """The segment holds that run, at that place."""
        self.trouble.last = None
        if not self.lanes.stored(lane, run):
            return
        store(run, lane.segment, ledger, entry)
        self._answered(run)
        if lane.items and not lane.runs:
            self.cut(lane)
        self._after_change(lane.segment)

    def held(self, segment: SegmentId, last: LastIds) -> None:
        """The sealed segment holds everything up to those sequence ids; where, it does not say."""
        self.trouble.last = None
        for lane in self.lanes.of(segment):
            for run in self.lanes.settled(segment, lane.bucket, last.of(lane.bucket)):
                store(run, segment, -1, -1)
                self._answered(run)
        self._after_change(segment)

    def refused(self, lane: Lane, run: MessageRun, error: Exception) -> None:
        """The segment refuses that one run."""
        if self.lanes.dropped(lane, run):
            self._fail(run, error)
        self._after_change(lane.segment)

    def attached(self, segment: SegmentId) -> None:
        for lane in self.lanes.of(segment):
            self.cut(lane)

    def sealed(self, segment: SegmentId) -> None:
        """Messages that the segment did not accept go to its children, at once or when they are known."""
        for lane in self.lanes.of(segment):
            self._begun.pop(lane, None)
        self.lanes.sealed(segment)
        self._segments.pop(segment, None)
        self._dispatch()
        layout = self.watch.layout
        if self._ending is None and is_synthetic(layout) and not self.watch.is_over(segment):
            # Terminated by hand, or for a migration: in that case a layout with children will follow.
            self._ending = self._loop.call_later(TERMINATED_AFTER_S, self._look_for_children, layout)

    def _look_for_children(self, layout: SegmentLayout) -> None:
        self._ending = None
        if self.watch.layout.epoch == layout.epoch and is_synthetic(self.watch.layout):
            self.end(
                RequestRefused(
                    pb.TopicTerminatedError,
                    f"{self.watch.shown_topic} was terminated: it can be read, and takes no more messages. Publish to "
                    "another topic, or delete this one and create it again",
                )
            )

    def _after_change(self, segment: SegmentId) -> None:
        if self.watch.is_over(segment) and not self.lanes.holds(segment):
            one = self._segments.get(segment)
            if one is not None and one.retire():
                del self._segments[segment]
            self._dispatch()

    def failed(self, error: Exception) -> None:
        self.end(error)

    def _answered(self, run: MessageRun) -> None:
        self._budget.release(run.cost)
        self.pending -= run.count
        if self.pending == 0:
            self._empty.set()

    def _fail(self, run: MessageRun, error: Exception) -> None:
        if self._unreported is None:
            self._unreported = error
        fail(run, error)
        self._answered(run)

    def _time_out(self) -> None:
        """Once the oldest message has waited too long, all later ones fail with it: a later message must not be stored
        without the earlier ones."""
        self._timer = None
        limit_s = self._timeout_s
        oldest_s = self.lanes.oldest_s()
        if limit_s is None or oldest_s is None:
            return
        left_s = oldest_s + limit_s - self._loop.time()
        if left_s > CLOCK_GRAIN_S:
            self._timer = self._loop.call_later(left_s, self._time_out)
            return
        error = self.trouble.timed_out(
            f"no receipt from {self.watch.shown_topic} within {limit_s:g} s, the message may be stored or not",
            "send_timeout_s allows more time",
        )
        for run in self.lanes.clear():
            self._fail(run, error)
        for one in self._segments.values():
            one.forget()
