"""Counts a segment's rows from the log's files or objects: entries are inspected on the driver and not decoded.

Raises the errors of `client.reading.failures` and `client.reading.plans` where files cannot answer; then a client
counts. Chunks are such a case: their rows are unknown before the last chunk.
"""

from __future__ import annotations

import asyncio
from typing import Final

from anabranch.client.errors import DataLost
from anabranch.client.reading.direct import WINDOW_BYTES, facts
from anabranch.client.reading.failures import FilesUnreachableError, NeedsClientError, PlanOutdatedError
from anabranch.client.reading.plans import NoPlanError, Planner, PlanRefusedError
from anabranch.client.security import NOBODY, Security
from anabranch.model import position
from anabranch.model.cut import BEGINNING, MessagePosition
from anabranch.model.resuming import Gap
from anabranch.spark.driver.counted import Counted
from anabranch.spark.plan.limit import Limit, Step, Steps
from anabranch.spark.plan.plan import SegmentRun
from anabranch.storage.core.read_plan import TopicPlan

CANNOT: Final = (PlanRefusedError, NoPlanError, FilesUnreachableError, PlanOutdatedError, NeedsClientError)
# The sizes of a plan, and of one read: all entries of a window are held, so it is not much more than a few rows need.
PLAN_BYTES_MIN, PLAN_BYTES_MAX = 1 << 20, 1 << 30
WINDOW_BYTES_MIN: Final = 64 << 10
# The assumed size of a row, before one is seen.
ROW_BYTES: Final = 256
# A client waits better: it is notified when a broker is back.
RETRY_S: Final = 2.0


class FileMeter:
    """Counts one segment, from a position on."""

    def __init__(
        self,
        admin_url: str,
        segment_topic: str,
        topic: str,
        start: MessagePosition,
        security: Security = NOBODY,
        *,
        signed: bool = True,
    ) -> None:
        self._planner = Planner(
            admin_url, segment_topic, security=security, timeout_s=RETRY_S, retry_s=RETRY_S, signed=signed
        )
        self._topic = topic
        self._start = start  # Steps before it are forgotten.
        self._until = start
        self.counted = Counted()
        self._is_counting = False

    def can_go_on(self, start: MessagePosition) -> bool:
        return not self._is_counting and self._start <= start <= self._until

    async def steps(self, run: SegmentRun, limit: Limit) -> Steps:
        """Steps to the run's bound, or as many as the limit has room for. Raises DataLost if data to count is gone."""
        self._start = run.place.first
        self.counted.forget_before(self._start)
        if not self.counted.is_enough(limit) and self._until < run.bound:
            # A thread whose caller was cancelled continues: its results are not used.
            self._is_counting = True
            await asyncio.to_thread(self._count, run, limit)
            self._is_counting = False
        return self.counted.steps(self._until)

    def _count(self, run: SegmentRun, limit: Limit) -> None:
        expected = max(limit.bytes or 0, ROW_BYTES * (limit.rows or 0))
        size = min(PLAN_BYTES_MAX, max(PLAN_BYTES_MIN, 4 * expected))
        window = min(WINDOW_BYTES, max(WINDOW_BYTES_MIN, expected))

        def plan(start: position.Position | None, end: position.Position | None) -> TopicPlan:
            found = self._planner(start, end, size)
            if found.has_lost:
                at = self._until if start is None else (*start, 0)
                raise DataLost.of(self._topic, [Gap(run.segment.id, run.place.range, at)])
            return found

        ledger, entry, index = run.bound
        end = (ledger, entry + 1) if index else (ledger, entry)
        first = None if self._until == BEGINNING else self._until[:2]
        for some in facts(plan, first, end, may_lose=True, may_pass_end=True, window_bytes=window):
            for at, rows, size_bytes, time_ms in zip(
                some.positions, some.messages, some.bytes, some.times_ms, strict=True
            ):
                self.counted.add(Step((*at, 0), rows, size_bytes, time_ms))
            self._until = (*some.end, 0)
            if self.counted.is_enough(limit):
                return
        self._until = max(self._until, run.bound)

    async def close(self) -> None:
        pass
