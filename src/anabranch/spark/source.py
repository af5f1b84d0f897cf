"""The readers of the data source `anabranch`: pass on Spark's calls on the driver and in tasks.

Light to import, as Spark loads it in every process that plans or reads: modules that only one of them needs are
imported there.

Filters are not pushed down, on purpose: no reader here has `pushFilters`. Spark keeps the read plan of a DataFrame in
one place that all its scans share, so a filter that is pushed into one scan filters the others as well (docs/spark.md,
"What Spark does not let a Python source do").
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from anabranch.spark.options.source import Options
from anabranch.spark.plan.limit import UNLIMITED, Limit
from anabranch.spark.plan.offsets import Offset, check_is_of, initial
from anabranch.spark.plan.task import Task, Tasks

if TYPE_CHECKING:
    from anabranch.spark.driver.driver import Driver
    from anabranch.spark.driver.loop_thread import LoopThread
    from anabranch.spark.values.analysed_schema import Declared
    from anabranch.wire import pulsar_pb2 as pb

log = logging.getLogger(__name__)


class SlicePartition(InputPartition):
    """The slices of a task."""

    def __init__(self, tasks: Tasks) -> None:
        super().__init__(tasks)


def _read(tasks: Tasks, declared: Declared | None) -> Iterator[Any]:
    return chain.from_iterable(_read_one(task, declared) for task in tasks)


def _read_one(task: Task, declared: Declared | None) -> Iterator[Any]:
    from anabranch.spark.task.read_slice import read

    if declared is None:
        return read(task)
    from anabranch.spark.values.analysed_schema import fetched

    def fetch(version: int | None) -> pb.Schema | None:
        return fetched(task.service_url, task.topic, version, task.timeout_s, task.security)[0]

    batches = read(replace(task, versions=declared.needs_versions))
    return declared.decoded(batches, task.topic, fetch)


class BatchReader(DataSourceReader):
    """The reader of `spark.read`. Spark plans it once for each `load()`, at the DataFrame's first use, and keeps the
    plan: only the next `load()` sees later rows."""

    def __init__(self, options: Options, declared: Declared | None) -> None:
        self._options = options
        self._declared = declared

    def partitions(self) -> Sequence[InputPartition]:
        from anabranch.spark.driver.loop_thread import LoopThread

        loop = LoopThread()
        try:
            return [SlicePartition(tasks) for tasks in loop.call(self._plan())]
        finally:
            loop.stop()

    async def _plan(self) -> list[Tasks]:
        from anabranch.spark.driver.driver import Driver

        driver = Driver(self._options)
        try:
            await driver.open()
            return await driver.batch()
        finally:
            await driver.close()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # Spark makes a partition up where there is nothing to read.
        return iter(()) if partition.value is None else _read(partition.value, self._declared)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One lives on the driver for as long as the query runs; copies of it, which only `read`, live in the tasks."""

    def __init__(self, options: Options, declared: Declared | None) -> None:
        self._options = options
        self._declared = declared
        self._loop: LoopThread | None = None
        self._driver: Driver | None = None
        # The last request, if the answer was that nothing is new.
        self._quiet: tuple[dict[str, Any], ReadLimit] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loop": None, "_driver": None, "_quiet": None}

    def _opened(self) -> tuple[LoopThread, Driver]:
        if self._loop is None or self._driver is None:
            from anabranch.spark.driver.driver import Driver
            from anabranch.spark.driver.loop_thread import LoopThread

            loop, driver = LoopThread(), Driver(self._options)
            try:
                loop.call(driver.open())
            except BaseException:
                loop.call(driver.close())
                loop.stop()
                raise
            self._loop, self._driver = loop, driver
            if self._options.subscription is None:
                # Spark gives a source neither its query's id nor its checkpoint: a subscription cannot be named
                # automatically.
                log.warning(
                    "%s: without the option subscription, what this query has not read is held by the retention of "
                    "its topics alone, a week unless their policies say otherwise",
                    self._options.choice,
                )
        return self._loop, self._driver

    @property
    def _initial(self) -> Offset:
        start = self._options.start
        return initial(self._options.choice, "latest" if start is None else start)

    def _read(self, offset: dict[str, Any]) -> Offset:
        read = Offset.decode(offset)
        check_is_of(self._options.choice, read)
        return read

    # -- offsets

    def initialOffset(self) -> dict[str, Any]:
        return self._initial.encode()

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark knows only one limit; the other is added below.
        limit = self._options.limit
        if limit.rows is not None:
            return ReadMaxRows(limit.rows)
        return ReadAllAvailable() if limit.bytes is None else ReadMaxBytes(limit.bytes)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        loop, driver = self._opened()
        if (start, limit) == self._quiet and not loop.call(driver.has_news()):
            return start
        begin = self._read(start)
        end = loop.call(driver.next_end(begin, self._limit(limit)))
        self._quiet = (start, limit) if end == begin else None
        # The same text if nothing is new.
        return start if end == begin else end.encode()

    def _limit(self, limit: ReadLimit) -> Limit:
        if isinstance(limit, ReadAllAvailable):
            return UNLIMITED
        own = self._options.limit
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else own.rows
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else own.bytes
        return Limit(rows, size)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._driver is None else self._driver.lags

    def prepareForTriggerAvailableNow(self) -> None:
        loop, driver = self._opened()
        self._quiet = None
        loop.call(driver.fix_target())

    # -- batches

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        loop, driver = self._opened()
        planned = loop.call(driver.tasks(self._read(start), self._read(end)))
        return [SlicePartition(tasks) for tasks in planned]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(partition.value, self._declared)

    def commit(self, end: dict[str, Any]) -> None:
        loop, driver = self._opened()
        cuts = self._read(end).cuts

        async def release() -> None:
            driver.release(cuts)

        loop.call(release())

    def stop(self) -> None:
        if self._loop is not None and self._driver is not None:
            self._loop.call(self._driver.close())
            self._loop.stop()
            self._loop = self._driver = None
