"""Counts rows for limited batches: inspects segments ahead of tasks, on the driver, and keeps the sizes of entries.

Files are inspected where that is possible (`file_row_counts.py`). Otherwise a segment is read once, as far ahead as one
batch may go, and all but the counts is dropped. Brokers report no row counts, so this is the cost of an exact limit:
the data crosses the network twice. So files are tried again: behind the entries that need a client, as tasks do
(`anabranch.spark.task.read_slice`), or a while after they could not be inspected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from anabranch.client.consuming.inbox import Inbox
from anabranch.client.consuming.segment import SegmentConsumer, SubscribeOptions
from anabranch.client.errors import DataLost, TimedOut
from anabranch.client.message import ReceivedEntry
from anabranch.client.reading.failures import NeedsClientError
from anabranch.client.transport.layout_watch import LayoutWatch
from anabranch.client.transport.pool import Connections
from anabranch.model import position
from anabranch.model.cut import BEGINNING, MessagePosition
from anabranch.model.resuming import Gap
from anabranch.model.segments import SegmentId
from anabranch.spark.driver.counted import Counted
from anabranch.spark.driver.file_row_counts import CANNOT, FileMeter
from anabranch.spark.plan.limit import Limit, Step, Steps
from anabranch.spark.plan.plan import SegmentRun
from anabranch.spark.plan.task import ObjectAccess
from anabranch.wire import pulsar_pb2 as pb

log = logging.getLogger(__name__)

_ALL: Final = 1 << 40
LOOK_S: Final = 0.2
# How many entries a client counts before files are tried again, and the limit of its growth if files soon fail again.
FIRST_STRETCH: Final = 64
STRETCH_MAX: Final = 1 << 20
# How long files are not tried after there was no plan of them, or no file.
FIRST_PAUSE_S: Final = 5.0
PAUSE_MAX_S: Final = 300.0
GROWTH: Final = 8


@dataclass(frozen=True, slots=True)
class Detour:
    """Why files are not inspected: until the batch begins behind a position, or until a time."""

    stretch: int = 0
    until: tuple[int, int] = (-1, -1)
    pause_s: float = 0.0
    ends: float = 0.0

    def is_over(self, start: MessagePosition, now: float) -> bool:
        return start[:2] >= self.until and now >= self.ends

    @staticmethod
    def of(error: Exception, last: Detour | None, now: float) -> Detour:
        """A detour around the error that has just kept files from being counted: longer than the last one, unless files
        were readable for at least as long as the last one took."""
        if isinstance(error, NeedsClientError):
            ledger, entry = error.position
            stretch = FIRST_STRETCH
            if last is not None and last.until[0] == ledger and entry - last.until[1] < last.stretch:
                stretch = min(STRETCH_MAX, last.stretch * GROWTH)
            return Detour(stretch, (ledger, entry + stretch))
        pause_s = FIRST_PAUSE_S
        if last is not None and now - last.ends < last.pause_s:
            pause_s = min(PAUSE_MAX_S, last.pause_s * GROWTH)
        return Detour(pause_s=pause_s, ends=now + pause_s)


class Meters:
    """One meter for each segment that is being read. Call `measure` before each batch, `close` at the end."""

    def __init__(
        self,
        connections: Connections,
        watch: LayoutWatch,
        chance: random.Random,
        *,
        fails_on_data_loss: bool,
        object_access: ObjectAccess = "signed",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admin_url = ""
        self._clock = clock
        self._detours: dict[SegmentId, Detour] = {}
        self._fails_on_data_loss = fails_on_data_loss
        self._signed = object_access == "signed"
        self._connections = connections
        self._watch = watch
        self._chance = chance
        self._meters: dict[SegmentId, _Meter | FileMeter] = {}

    async def measure(
        self,
        possible: Sequence[SegmentRun],
        limit: Limit,
        admin_url: str = "",
        only: Collection[SegmentId] | None = None,
    ) -> dict[SegmentId, Steps]:
        """The steps of each run, or of those in `only`: to its bound, or as many as the limit has room for."""
        self._admin_url = admin_url
        there = {run.segment.id for run in possible}
        for number in [n for n in self._meters if n not in there]:
            await self._meters.pop(number).close()
            self._detours.pop(number, None)
        wanted = [run for run in possible if only is None or run.segment.id in only]
        found = await asyncio.gather(*(self._measured(run, limit) for run in wanted))
        return {run.segment.id: steps for run, steps in zip(wanted, found, strict=True)}

    async def _measured(self, run: SegmentRun, limit: Limit) -> Steps:
        meter, start = self._meters.get(run.segment.id), run.place.first
        may_return = isinstance(meter, _Meter) and self._may_look(run.segment.id, start)
        if may_return:
            log.info("rows of segment %d are counted from files again", run.segment.id)
        if meter is None or may_return or not meter.can_go_on(start):
            meter = await self._anew(run, start)
        try:
            return await self._steps(meter, run, limit)
        except DataLost:
            if self._fails_on_data_loss:
                raise
            return await self._steps(await self._anew(run, BEGINNING), run, limit)

    async def _steps(self, meter: _Meter | FileMeter, run: SegmentRun, limit: Limit) -> Steps:
        try:
            return await meter.steps(run, limit)
        except CANNOT as error:
            number, start = run.segment.id, run.place.first
            log.info("rows of segment %d are counted by a client: %s", number, error)
            self._detours[number] = Detour.of(error, self._detours.get(number), self._clock())
            if isinstance(meter, FileMeter) and isinstance(error, NeedsClientError):
                # Entries before it are counted, unless a message with missing chunks began there.
                before = meter.counted if run.place.chunks_from is None else Counted()
                return await self._go_on_from(run, error.position, before).steps(run, limit)
            return await (await self._anew(run, start)).steps(run, limit)

    def _go_on_from(self, run: SegmentRun, at: position.Position, before: Counted) -> _Meter:
        """A client that counts from there on; from the run's start if nothing before is counted."""
        start = run.place.first
        begin = max(start, (*at, 0)) if len(before) else start
        meter = self._meters[run.segment.id] = self._opened(run, begin, before)
        return meter

    async def _anew(self, run: SegmentRun, start: MessagePosition) -> _Meter | FileMeter:
        known = self._meters.get(run.segment.id)
        if known is not None:
            await known.close()
        meter = self._of_files(run, start) or self._opened(run, start)
        self._meters[run.segment.id] = meter
        return meter

    def _may_look(self, number: SegmentId, start: MessagePosition) -> bool:
        """Whether files may be inspected, as far as is known."""
        detour = self._detours.get(number)
        return bool(self._admin_url) and (detour is None or detour.is_over(start, self._clock()))

    def _of_files(self, run: SegmentRun, start: MessagePosition) -> FileMeter | None:
        if not self._may_look(run.segment.id, start):
            return None
        topic = self._watch.topic_of(run.segment.id)
        name, security = str(self._watch.topic), self._connections.security
        return FileMeter(self._admin_url, topic, name, start, security, signed=self._signed)

    def _opened(self, run: SegmentRun, start: MessagePosition, before: Counted | None = None) -> _Meter:
        number, topic = run.segment.id, str(self._watch.topic)

        def lost(reader: SegmentConsumer, _: bool) -> DataLost:
            return DataLost.of(topic, [Gap(number, run.place.range, reader.position)])

        name = f"spark-meter-{self._chance.getrandbits(32):08x}"
        inbox = Inbox()
        inbox.enlarge()
        segment = SegmentConsumer(
            self._connections,
            number,
            self._watch.topic_of(number),
            topic,
            SubscribeOptions(name, pb.CommandSubscribe.Exclusive, name, is_durable=False),
            inbox,
            chance=self._chance,
            start=None if start == BEGINNING else start,
            chunks_from=run.place.chunks_from,
            may_be_gone=lambda _: True,
            lost=lost,
        )
        segment.open()
        return _Meter(segment, inbox, run.place.first if before else start, start, before)

    async def close(self) -> None:
        await asyncio.gather(*(meter.close() for meter in self._meters.values()))
        self._meters.clear()


class _Meter:
    """Counts with a consumer. Steps before the first message that the consumer gets may be known already."""

    def __init__(
        self,
        segment: SegmentConsumer,
        inbox: Inbox,
        start: MessagePosition,
        until: MessagePosition,
        before: Counted | None = None,
    ) -> None:
        self._segment = segment
        self._inbox = inbox
        self._start = start  # Steps before it are forgotten.
        self._until = until
        self._counted = Counted() if before is None else before

    def can_go_on(self, start: MessagePosition) -> bool:
        return self._start <= start <= self._until

    async def steps(self, run: SegmentRun, limit: Limit) -> Steps:
        """Waits until the limit is reached, or the bound, or the segment is gone."""
        self._start = run.place.first
        self._counted.forget_before(self._start)
        while True:
            self._take()
            is_all = self._until >= run.bound or self._segment.has_ended
            if is_all or self._counted.is_enough(limit):
                return self._counted.steps(self._until)
            with contextlib.suppress(TimedOut):
                await self._inbox.rows(1, LOOK_S)

    def _take(self) -> None:
        # Nothing is awaited between the two: everything up to the position has been taken.
        self._until = max(self._until, self._segment.position or BEGINNING)
        for entry in self._inbox.take_whole(_ALL):
            self._counted.add(_step(entry))
            self._until = max(self._until, (entry.ledger, entry.entry + 1, 0))

    async def close(self) -> None:
        await self._segment.close()


def _step(entry: ReceivedEntry) -> Step:
    first = 0 if entry.wanted < 0 else (entry.wanted & -entry.wanted).bit_length() - 1
    at = (entry.ledger, entry.entry, first)
    return Step(at, entry.waiting, len(entry.raw), entry.metadata.publish_time)
