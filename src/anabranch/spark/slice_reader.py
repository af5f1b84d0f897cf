"""Reads one slice of a segment through its broker, as record batches for Spark. Runs in a task, on a loop of its own.

It is over when everything before the slice's end has arrived, whether or not there were messages in it. A broker that
goes away is waited for; one that is silent for too long fails the task, which Spark runs again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from anabranch.client.connections import Connections
from anabranch.client.errors import DataLost, TimedOut
from anabranch.client.inbox import Inbox
from anabranch.client.resolving import position_of
from anabranch.client.segment_consumer import SegmentConsumer, Subscription
from anabranch.errors import AnabranchError
from anabranch.model.cut import BEGINNING, Position
from anabranch.model.resuming import Gap
from anabranch.model.segments import HashRange
from anabranch.spark.plan import SegmentSlice
from anabranch.wire import pulsar_pb2 as pb

log = logging.getLogger(__name__)

# Of a record batch: Spark does not cut them again.
ROWS_MAX: Final = 65_536
# How often to look whether all has arrived, if the last of it holds no messages.
LOOK_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Task:
    """All that a task needs to know."""

    service_url: str
    topic: str  # As users name it.
    segment_topic: str
    range: HashRange
    slice: SegmentSlice
    fail_on_data_loss: bool = True
    timeout_s: float = 60.0


def read(task: Task) -> Iterator[Any]:
    """The record batches of a slice."""
    with asyncio.Runner() as runner:
        reader = SliceReader(task)
        runner.run(reader.open())
        try:
            while (batch := runner.run(reader.next())) is not None:
                yield batch
        finally:
            runner.run(reader.close())


class SliceReader:
    """`open`, `next` until it gives None, `close`."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._slice = task.slice
        self._end: Position = BEGINNING
        self._chance = random.Random()
        self._connections = Connections(task.service_url)
        self._inbox = Inbox()
        self._segment: SegmentConsumer | None = None
        self._arrow: Any = None

    async def open(self) -> None:
        """Finds the end of a slice that goes to its segment's, and starts to read."""
        from anabranch.client.arrow_reader import ArrowReader

        self._arrow = ArrowReader(self._inbox, keeps=False)
        end = self._slice.end
        if end is None:
            end = await self._found_end()
        if end is None:
            self._lost(DataLost.of(self._task.topic, [self._gap()]))
            return
        self._end = end
        if end > (self._slice.start or BEGINNING):
            self._read_from(self._slice.start)

    async def _found_end(self) -> Position | None:
        """Of a sealed segment, which does not change any more; None if it is gone."""
        try:
            async with asyncio.timeout(self._task.timeout_s):
                return await position_of(self._connections, self._task.segment_topic, None, self._chance)
        except TimeoutError:
            raise self._too_slow() from None

    def _read_from(self, start: Position | None) -> None:
        name = f"spark-{self._chance.getrandbits(32):08x}"
        self._segment = SegmentConsumer(
            self._connections,
            self._slice.segment,
            self._task.segment_topic,
            self._task.topic,
            Subscription(name, pb.CommandSubscribe.Exclusive, name, is_durable=False),
            self._inbox,
            chance=self._chance,
            start=start,
            chunks_from=self._slice.chunks_from,
            may_be_gone=lambda _: True,
            lost=lambda reader, _: DataLost.of(self._task.topic, [self._gap(reader.position)]),
        )
        self._segment.open()

    # -- rows

    async def next(self) -> Any:
        """A record batch with at least a row; None at the end."""
        from anabranch.spark.rows import between, for_spark

        silent_since = time.monotonic()
        while self._segment is not None:
            # Looked at first: nothing that has arrived by then is missed below.
            has_all = (self._segment.position or BEGINNING) >= self._end
            if (has_all or self._segment.has_ended) and not self._segment.queued:
                if not has_all:
                    self._lost(DataLost.of(self._task.topic, [self._gap(self._segment.position)]))
                return None
            try:
                batch, _ = await self._arrow.read(ROWS_MAX, LOOK_S)
            except TimedOut:
                if time.monotonic() - silent_since > self._task.timeout_s:
                    raise self._too_slow() from None
                continue
            except DataLost as error:
                await self._go_on_without(error)
                continue
            rows = between(batch, self._slice.start, self._end)
            if rows.num_rows:
                return for_spark(rows, self._task.topic, self._slice.segment)
        return None

    async def _go_on_without(self, error: DataLost) -> None:
        """Reads what there still is, if the user wants that."""
        self._lost(error)
        assert self._segment is not None
        await self._segment.close()
        self._inbox = Inbox()
        from anabranch.client.arrow_reader import ArrowReader

        self._arrow = ArrowReader(self._inbox, keeps=False)
        self._slice = replace(self._slice, chunks_from=None)
        self._read_from(None)

    def _lost(self, error: DataLost) -> None:
        if self._task.fail_on_data_loss:
            raise type(error)(f"{error}. Or, to go on without them, set failOnDataLoss=false", error.gaps)
        log.warning("%s", error)

    def _gap(self, position: Position | None = None) -> Gap:
        at = position or self._slice.start or BEGINNING
        return Gap(self._slice.segment, self._task.range, at)

    def _too_slow(self) -> AnabranchError:
        return TimedOut(
            f"{self._task.segment_topic}: nothing came for {self._task.timeout_s:g} s before "
            f"{self._end}; are the brokers at {self._task.service_url} up? timeoutSeconds allows more time"
        )

    async def close(self) -> None:
        if self._segment is not None:
            await self._segment.close()
        await self._connections.close()
