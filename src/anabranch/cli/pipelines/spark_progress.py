"""The progress of a job on Spark: a bar on standard error if that is a terminal, else a line now and then.

A thread asks Spark's own tracker, so the thread that waits for the job needs to do nothing.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from anabranch.cli.render.progress import is_terminal

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

REDRAWN_EVERY_S: Final = 0.5
LINE_EVERY_S: Final = 20.0
# A query that finds nothing new never reports a batch.
BEGINS_WITHIN_S: Final = 15.0


@contextmanager
def progress(spark: SparkSession, doing: str) -> Iterator[None]:
    """A context around the jobs that this thread starts."""
    group = f"anabranch-{doing}"
    context: Any = spark.sparkContext
    context.setJobGroup(group, doing)
    watch = _Watch(spark, group, doing)
    watch.start()
    try:
        yield
    finally:
        watch.is_over.set()
        watch.join()
        for name in ("spark.jobGroup.id", "spark.job.description"):
            context.setLocalProperty(name, None)


def until_begun(query: StreamingQuery, within_s: float = BEGINS_WITHIN_S) -> None:
    """Returns once a query has reported a batch, or has ended, or the time is over: then another one may be started.

    Two queries on one Python source that are its first and start at the same moment may damage Spark for good
    (docs/spark.md, "What Spark does not let a Python source do").
    """
    deadline = time.monotonic() + within_s
    while query.isActive and query.lastProgress is None and time.monotonic() < deadline:
        time.sleep(0.05)


def tasks(tracker: StatusTracker, jobs: Iterable[int]) -> tuple[int, int]:
    """The number of finished tasks, and of known tasks."""
    done = known = 0
    for job in jobs:
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            if (found := tracker.getStageInfo(stage)) is not None:
                done += found.numCompletedTasks
                known += found.numTasks
    return done, known


class _Watch(threading.Thread):
    def __init__(self, spark: SparkSession, group: str, doing: str) -> None:
        super().__init__(name="progress", daemon=True)
        self._tracker = spark.sparkContext.statusTracker()
        self._group = group
        self._doing = doing
        self._began = time.monotonic()
        self.is_over = threading.Event()

    def run(self) -> None:
        if is_terminal():
            self._draw()
        else:
            self._tell()

    def _tasks(self) -> tuple[int, int]:
        return tasks(self._tracker, self._tracker.getJobIdsForGroup(self._group))

    def _draw(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(None),
            TextColumn("{task.completed:.0f} of {task.total:.0f} tasks"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(file=sys.stderr), transient=True, expand=True) as bar:
            task = bar.add_task(self._doing, total=1)
            while not self.is_over.wait(REDRAWN_EVERY_S):
                done, known = self._tasks()
                bar.update(task, completed=done, total=max(known, 1))

    def _tell(self) -> None:
        while not self.is_over.wait(LINE_EVERY_S):
            done, known = self._tasks()
            seconds = time.monotonic() - self._began
            print(f"{self._doing}: {done} of {known} tasks in {seconds:,.0f} s", file=sys.stderr, flush=True)
