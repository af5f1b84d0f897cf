"""Data plane. Reads one slice of a segment from the log's files or objects, as Arrow record batches. Blocking; runs in
a task.

The segment's owner says where the entries lie and takes no further part. Where files do not suffice, it raises the
errors of `anabranch.client.reading.failures` and `anabranch.client.reading.plans`; `at` is then where to continue by
other means.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from anabranch.client.reading.direct import record_batches
from anabranch.client.reading.failures import NeedsClientError
from anabranch.client.reading.plans import Planner
from anabranch.model import position
from anabranch.model.cut import BEGINNING, MessagePosition
from anabranch.spark.plan.task import Task
from anabranch.spark.task import loss
from anabranch.storage.core.read_plan import TopicPlan

# The limits of a record batch. Spark does not cut batches again. A quarter of it took a third more CPU to decode and
# send.
BATCH_BYTES: Final = 4 << 20
ROWS_MAX: Final = 1 << 17
# How long to keep asking for a plan while brokers are away: a client waits better, and continues where it was.
PLAN_RETRY_S: Final = 10.0
POOL_BYTES: Final = 64 << 20


@cache
def _pool() -> Any:
    """Memory for columns, reused by the process's later tasks."""
    from anabranch.columns import Pool

    return Pool(POOL_BYTES)


class DirectReader:
    """Reads from a position (None: the earliest entry) to the slice's end."""

    def __init__(self, task: Task, start: MessagePosition | None) -> None:
        self._task = task
        self._planner = Planner(
            task.admin_url,
            task.segment_topic,
            security=task.security,
            timeout_s=task.timeout_s,
            retry_s=min(PLAN_RETRY_S, task.timeout_s),
            topic_id=task.topic_id,
            signed=task.object_access == "signed",
        )
        self.at = start
        """Everything before it has been returned."""

    def batches(self) -> Iterator[Any]:
        """The batches, with the columns of `anabranch.columns.SCHEMA`; none is empty."""
        from anabranch.spark.columns.rows import between

        start, end = self.at, self._task.slice.end
        try:
            for piece in record_batches(
                self._plan,
                start and start[:2],
                None if end is None else _behind(end),
                pool=_pool(),
                bytes_max=BATCH_BYTES,
                rows_max=ROWS_MAX,
                versions=self._task.versions,
                unpacked_bytes_max=self._task.message_bytes_max,
                wanted=self._task.wanted,
                may_lose=True,  # `_plan` checks it.
                may_pass_end=True,  # A position that is still empty: everything before it exists.
            ):
                rows = between(piece.batch, start, end)
                self._reach(piece.end)
                if rows.num_rows:
                    yield rows
        except NeedsClientError as error:
            self._reach(error.position)
            raise

    def _plan(self, start: position.Position | None, end: position.Position | None) -> TopicPlan:
        plan = self._planner(start, end)
        if plan.has_lost:
            loss.lost(self._task, start and (*start, 0))
        return plan

    def _reach(self, behind: position.Position) -> None:
        self.at = max(self.at or BEGINNING, (*behind, 0))


def _behind(end: MessagePosition) -> position.Position:
    """One past the last entry that has any message before `end`."""
    ledger, entry, index = end
    return (ledger, entry + 1) if index else (ledger, entry)
