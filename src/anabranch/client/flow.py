"""What a producer has under way: its lanes, the segments they go to, receipts, seals, time-outs. The shell of `lanes`.

Each segment in use has an attached producer. When its connection is lost it attaches again and sends its whole lane
again; the broker drops what it has already if deduplication is on. A segment that turns out to be sealed is asked for
its last sequence id first wherever a receipt may have been lost, so that nothing is stored twice; then the rest of its
lane is cut again for its children.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from anabranch.client.batching import Batching
from anabranch.client.budget import MemoryBudget
from anabranch.client.connections import Connections, Trouble
from anabranch.client.entries import Encrypts, Entries
from anabranch.client.errors import RequestRefused, TopicDeleted
from anabranch.client.gathering import Gathering
from anabranch.client.lanes import NOWHERE, Lane, Lanes, Routing, is_synthetic
from anabranch.client.layout_watch import LayoutWatch
from anabranch.client.receipts import fail, store
from anabranch.client.runs import Limits, Run
from anabranch.client.segment_producer import Attaching, SegmentProducer
from anabranch.client.writes import Write
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import SegmentId
from anabranch.wire import pulsar_pb2 as pb

SEND_TIMEOUT_S: Final = 30.0
# For so long a classic topic that takes no more may be on its way to a scalable one.
TERMINATED_AFTER_S = 3.0
# Timers may fire this much early.
CLOCK_GRAIN_S: Final = 0.001
UNBATCHED: Final = Limits(1, 0)


class Encodes(Protocol):
    """A schema, as far as a producer needs it."""

    def encode(self, value: Any) -> bytes: ...

    def info(self) -> pb.Schema | None: ...


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """How a producer behaves. `Client.producer` says what each means."""

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

    @property
    def limits(self) -> Limits:
        return (
            UNBATCHED
            if self.batching is None
            else Limits(self.batching.messages_max, self.batching.bytes_max)
        )


class Flow:
    """All that a producer was given and that has no receipt. `error` is what ended it."""

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
        self.lanes = Lanes(watch.layout, settings.routing, settings.limits)
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
        # The segments that may hold something of this producer.
        self.topics_written: set[str] = set()
        self.error: Exception | None = None
        # What went wrong since the last receipt.
        self.trouble = Trouble()
        self._budget = budget
        self._timeout_s = settings.send_timeout_s
        self._loop = asyncio.get_running_loop()
        delay_s = settings.batching.delay_ms / 1000 if settings.batching is not None else 0.0
        self._gathering = Gathering(self._loop, delay_s, self._due)
        self._segments: dict[SegmentId, SegmentProducer] = {}
        # Messages without a receipt. Whoever puts one into a lane adds it here.
        self.pending = 0
        # The first message that failed and that nobody has been told of.
        self._unreported: Exception | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self._timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.TimerHandle | None = None
        self._stop_listening = watch.listen(self._layout_changed)

    # -- what comes in

    async def room(self, size: int, *, is_begun: bool = False) -> None:
        """Returns once that many bytes are charged to the budget."""
        self.cut_all()
        await self._budget.take(size, is_begun=is_begun)
        if self.error is not None:
            self._budget.release(size)
            raise self.error

    def begin(self, lane: Lane) -> None:
        """The first message of a run was gathered."""
        self._mark(lane)
        if lane.segment != NOWHERE:
            self._gathering.begun(lane, is_idle=not lane.runs)

    def add(self, lane: Lane, run: Run) -> None:
        """A run that is complete, behind everything else; `cut` before it is made."""
        lane.add(run)
        if lane.segment != NOWHERE:
            self.segment(lane.segment).send(run)

    def now(self, lane: Lane) -> float:
        """The time, for a run that is made at once. What is being gathered in its lane goes before it."""
        self.cut(lane)
        self._mark(lane)
        return lane.since

    def _mark(self, lane: Lane) -> None:
        """Something was handed in just now."""
        lane.since = self._loop.time()
        if self._timer is None and self._timeout_s is not None:
            self._timer = self._loop.call_later(self._timeout_s, self._time_out)
        if self._empty.is_set():
            self._empty.clear()

    def cut(self, lane: Lane) -> None:
        """What is gathered in the lane leaves."""
        run = lane.cut()
        if run is not None and lane.segment != NOWHERE:
            self.segment(lane.segment).send(run)

    def _due(self, lane: Lane) -> None:
        """What is gathered in the lane has waited long enough. Without a connection it may go on growing."""
        one = self.segment(lane.segment)
        if one.is_attached:
            self.cut(lane)
        elif lane.items:
            one.open()

    def cut_all(self) -> None:
        for segment in self.lanes.segments:
            lane = self.lanes.lane(segment)
            if lane is not None:
                self.cut(lane)

    # -- the end

    async def flush(self) -> None:
        self.cut_all()
        await self._empty.wait()
        error, self._unreported = self.error or self._unreported, None
        if error is not None:
            raise error

    def reported(self, error: Exception) -> None:
        """Somebody was told of that failure."""
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
        """Nothing more is taken in, and what is under way fails."""
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

    # -- what happens

    def _layout_changed(self) -> None:
        if self.watch.is_deleted:
            self.end(TopicDeleted(f"{self.watch.shown_topic} was deleted"))
            return
        self.lanes.learned(self.watch.layout)
        for number, one in list(self._segments.items()):
            if self.watch.is_over(number):
                self._open_children(number)
                if self.lanes.first_number(number) is None and one.retire():
                    del self._segments[number]
        self._dispatch()

    def _open_children(self, number: SegmentId) -> None:
        """Those of a segment that was in use will be, too: attached while the last answers of the parent come in."""
        known = self.watch.layout.segments.get(number)
        for child in known.children if known is not None else ():
            if not self.watch.is_over(child):
                self.segment(child).open()

    def _dispatch(self) -> None:
        for lane, run in self.lanes.ready():
            self.segment(lane.segment).send(run)

    def segment(self, number: SegmentId) -> SegmentProducer:
        """The producer of that segment; made when it is first asked for."""
        found = self._segments.get(number)
        if found is None:
            found = self._segments[number] = SegmentProducer(self, number)
        return found

    def settled(self, segment: SegmentId, upto: int, ledger: int, entry: int) -> None:
        """The segment holds everything up to a sequence id; the last run of it lies at that place, if one is given."""
        self.trouble.last = None
        for run in self.lanes.settled(segment, upto):
            is_it = run.last == upto
            store(run, segment, ledger if is_it else -1, entry if is_it else -1)
            self._answered(run)
        lane = self.lanes.lane(segment)
        if lane is not None and lane.items and not lane.runs:
            self.cut(lane)
        self._after_change(segment)

    def refused(self, segment: SegmentId, number: int, error: Exception) -> None:
        """The segment will not have that one run."""
        run = self.lanes.dropped(segment, number)
        if run is not None:
            self._fail(run, error)
        self._after_change(segment)

    def attached(self, segment: SegmentId) -> None:
        lane = self.lanes.lane(segment)
        if lane is not None:
            self.cut(lane)

    def sealed(self, segment: SegmentId) -> None:
        """What the segment did not take goes to its children, at once or when they are known."""
        self.lanes.sealed(segment)
        self._segments.pop(segment, None)
        self._dispatch()
        layout = self.watch.layout
        if self._ending is None and is_synthetic(layout) and not self.watch.is_over(segment):
            # Terminated by hand, or for a migration: then a layout with children is on its way.
            self._ending = self._loop.call_later(TERMINATED_AFTER_S, self._look_for_children, layout)

    def _look_for_children(self, layout: SegmentLayout) -> None:
        self._ending = None
        if self.watch.layout.epoch == layout.epoch and is_synthetic(self.watch.layout):
            self.end(
                RequestRefused(
                    pb.TopicTerminatedError,
                    f"{self.watch.shown_topic} was terminated: it can be read, and takes no more messages. Publish to "
                    "another topic, or delete this one and make it anew",
                )
            )

    def _after_change(self, segment: SegmentId) -> None:
        if self.watch.is_over(segment) and self.lanes.first_number(segment) is None:
            one = self._segments.get(segment)
            if one is not None and one.retire():
                del self._segments[segment]
            self._dispatch()

    def failed(self, error: Exception) -> None:
        self.end(error)

    def _answered(self, run: Run) -> None:
        self._budget.release(run.cost)
        self.pending -= run.count
        if self.pending == 0:
            self._empty.set()

    def _fail(self, run: Run, error: Exception) -> None:
        if self._unreported is None:
            self._unreported = error
        fail(run, error)
        self._answered(run)

    def _time_out(self) -> None:
        """Once the oldest message has waited too long, all fail that are behind it: what is sent later must not be
        stored without what was sent before."""
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
