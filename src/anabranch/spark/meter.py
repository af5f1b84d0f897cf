"""Counts rows for limited batches: looks at segments ahead of tasks, on the driver, and keeps how large entries are.

Files are looked at where that is possible (`anabranch.spark.file_meter`). Else a segment is read once, as far ahead as
one batch may go, and all but the counts is dropped. Brokers tell no row counts, so this is what an exact limit costs:
the data crosses the network twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Sequence
from typing import Final

from anabranch.client.connections import Connections
from anabranch.client.errors import DataLost, TimedOut
from anabranch.client.inbox import Inbox
from anabranch.client.layout_watch import LayoutWatch
from anabranch.client.message import Entry
from anabranch.client.segment_consumer import SegmentConsumer, Subscription
from anabranch.model.cut import BEGINNING, Position
from anabranch.model.resuming import Gap
from anabranch.model.segments import SegmentId
from anabranch.spark.file_meter import CANNOT, FileMeter
from anabranch.spark.plan import Run
from anabranch.spark.spending import Limit, Step, Steps
from anabranch.wire import pulsar_pb2 as pb

log = logging.getLogger(__name__)

_ALL: Final = 1 << 40
LOOK_S: Final = 0.2


class Meters:
    """One meter for each segment that is being read. `measure` before each batch, `close` in the end."""

    def __init__(
        self,
        connections: Connections,
        watch: LayoutWatch,
        chance: random.Random,
        *,
        fails_on_data_loss: bool,
    ) -> None:
        self._admin_url = ""
        self._unreachable: set[SegmentId] = set()
        self._fails_on_data_loss = fails_on_data_loss
        self._connections = connections
        self._watch = watch
        self._chance = chance
        self._meters: dict[SegmentId, _Meter | FileMeter] = {}

    async def measure(
        self, possible: Sequence[Run], limit: Limit, admin_url: str = ""
    ) -> dict[SegmentId, Steps]:
        """The steps of each run: to its bound, or as many as the limit has room for."""
        self._admin_url = admin_url
        wanted = {run.segment.id for run in possible}
        for number in [n for n in self._meters if n not in wanted]:
            await self._meters.pop(number).close()
        found = await asyncio.gather(*(self._measured(run, limit) for run in possible))
        return {run.segment.id: steps for run, steps in zip(possible, found, strict=True)}

    async def _measured(self, run: Run, limit: Limit) -> Steps:
        meter, start = self._meters.get(run.segment.id), run.place.at[0]
        if meter is None or not meter.can_go_on(start):
            meter = await self._anew(run, start)
        try:
            return await self._steps(meter, run, limit)
        except DataLost:
            if self._fails_on_data_loss:
                raise
            return await self._steps(await self._anew(run, BEGINNING), run, limit)

    async def _steps(self, meter: _Meter | FileMeter, run: Run, limit: Limit) -> Steps:
        try:
            return await meter.steps(run, limit)
        except CANNOT as error:
            log.info("rows of segment %d are counted by a client: %s", run.segment.id, error)
            self._unreachable.add(run.segment.id)
            return await (await self._anew(run, run.place.at[0])).steps(run, limit)

    async def _anew(self, run: Run, start: Position) -> _Meter | FileMeter:
        known = self._meters.get(run.segment.id)
        if known is not None:
            await known.close()
        meter = self._of_files(run, start) or self._opened(run, start)
        self._meters[run.segment.id] = meter
        return meter

    def _of_files(self, run: Run, start: Position) -> FileMeter | None:
        if not self._admin_url or run.segment.id in self._unreachable:
            return None
        topic = self._watch.topic_of(run.segment.id)
        return FileMeter(self._admin_url, topic, str(self._watch.topic), start, self._connections.security)

    def _opened(self, run: Run, start: Position) -> _Meter:
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
            Subscription(name, pb.CommandSubscribe.Exclusive, name, is_durable=False),
            inbox,
            chance=self._chance,
            start=None if start == BEGINNING else start,
            chunks_from=run.place.chunks_from,
            may_be_gone=lambda _: True,
            lost=lost,
        )
        segment.open()
        return _Meter(segment, inbox, start)

    async def close(self) -> None:
        await asyncio.gather(*(meter.close() for meter in self._meters.values()))
        self._meters.clear()


class _Meter:
    def __init__(self, segment: SegmentConsumer, inbox: Inbox, start: Position) -> None:
        self._segment = segment
        self._inbox = inbox
        self._start = start  # Steps before it are forgotten.
        self._until = start
        self._steps: deque[Step] = deque()

    def can_go_on(self, start: Position) -> bool:
        return self._start <= start <= self._until

    async def steps(self, run: Run, limit: Limit) -> Steps:
        """Waits until the limit is reached, or the bound, or the segment is gone."""
        self._start = run.place.at[0]
        while self._steps and self._steps[0].behind(self._steps[0].rows) <= self._start:
            self._steps.popleft()
        while True:
            self._take()
            rows, size = sum(s.rows for s in self._steps), sum(s.bytes for s in self._steps)
            is_enough = (limit.rows is not None and rows > limit.rows) or (
                limit.bytes is not None and size > limit.bytes
            )
            if is_enough or self._until >= run.bound or self._segment.has_ended:
                return Steps(tuple(self._steps), self._until)
            with contextlib.suppress(TimedOut):
                await self._inbox.rows(1, LOOK_S)

    def _take(self) -> None:
        # Nothing is awaited between the two: all up to the position has been taken.
        self._until = max(self._until, self._segment.position or BEGINNING)
        for entry in self._inbox.take_whole(_ALL):
            self._steps.append(_step(entry))
            self._until = max(self._until, (entry.ledger, entry.entry + 1, 0))

    async def close(self) -> None:
        await self._segment.close()


def _step(entry: Entry) -> Step:
    first = 0 if entry.wanted < 0 else (entry.wanted & -entry.wanted).bit_length() - 1
    at = (entry.ledger, entry.entry, first)
    return Step(at, entry.waiting, len(entry.raw), entry.metadata.publish_time)
