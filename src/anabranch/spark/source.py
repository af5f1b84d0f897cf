"""The data source `anabranch`: what Spark calls, handed on.

Light to import: Spark loads it in every process that plans or reads. Options are checked when Spark asks for the
schema, that is when the query is analysed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from anabranch.client.checkpoint import Begin
from anabranch.model.cut import Cut
from anabranch.spark import offsets
from anabranch.spark.driver import Driver
from anabranch.spark.loop_thread import LoopThread
from anabranch.spark.options import COLUMNS, Options, check_kind, parse
from anabranch.spark.plan import UNLIMITED, Limit
from anabranch.spark.slice_reader import read
from anabranch.spark.task import Task

SCHEMA: Final = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())


class SlicePartition(InputPartition):
    """A task's slice."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)


class AnabranchSource(DataSource):
    """`spark.read.format("anabranch")` and `spark.readStream.format("anabranch")`."""

    @classmethod
    def name(cls) -> str:
        return "anabranch"

    def schema(self) -> str:
        wanted = parse(self._given).columns
        return SCHEMA if wanted is None else ", ".join(f"{name} {COLUMNS[name]}" for name in wanted)

    @property
    def _given(self) -> Mapping[str, str]:
        return dict(self.options)

    def reader(self, schema: Any) -> BatchReader:
        check_kind(self._given, "batch")
        return BatchReader(parse(self._given))

    def streamReader(self, schema: Any) -> StreamReader:
        check_kind(self._given, "stream")
        return StreamReader(parse(self._given))


class BatchReader(DataSourceReader):
    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        loop = LoopThread()
        try:
            return [SlicePartition(task) for task in loop.call(self._plan())]
        finally:
            loop.stop()

    async def _plan(self) -> list[Task]:
        driver = Driver(self._options)
        try:
            await driver.open()
            return await driver.batch()
        finally:
            await driver.close()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read(partition.value)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One lives on the driver for as long as the query runs; copies of it, which only `read`, in the tasks."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._loop: LoopThread | None = None
        self._driver: Driver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_loop": None, "_driver": None}

    def _opened(self) -> tuple[LoopThread, Driver]:
        if self._loop is None or self._driver is None:
            loop, driver = LoopThread(), Driver(self._options)
            loop.call(driver.open())
            self._loop, self._driver = loop, driver
            loop.call(driver.hold(self._begin))
        return self._loop, self._driver

    @property
    def _begin(self) -> Begin:
        return "latest" if self._options.start is None else self._options.start

    # -- offsets

    def initialOffset(self) -> dict[str, Any]:
        return offsets.encode(self._begin, self._options.topic)

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark knows of one limit only; the other is added below.
        limit = self._options.limit
        if limit.rows is not None:
            return ReadMaxRows(limit.rows)
        return ReadAllAvailable() if limit.bytes is None else ReadMaxBytes(limit.bytes)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        loop, driver = self._opened()
        begin = offsets.decode(start, self._options.topic)
        end = loop.call(driver.next_end(begin, self._limit(limit)))
        # The same text if nothing is new.
        return start if end == begin else offsets.encode(end, self._options.topic)

    def _limit(self, limit: ReadLimit) -> Limit:
        if isinstance(limit, ReadAllAvailable):
            return UNLIMITED
        own = self._options.limit
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else own.rows
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else own.bytes
        return Limit(rows, size)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        reached = None if self._driver is None else self._driver.reached
        if reached is None:
            return None
        return {"topics": {self._options.topic: {"segments": reached.lag()}}}

    def prepareForTriggerAvailableNow(self) -> None:
        loop, driver = self._opened()
        loop.call(driver.fix_target())

    # -- batches

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        loop, driver = self._opened()
        topic = self._options.topic
        tasks = loop.call(driver.tasks(offsets.decode(start, topic), offsets.decode(end, topic)))
        return [SlicePartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read(partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        loop, driver = self._opened()
        cut = offsets.decode(end, self._options.topic)
        if isinstance(cut, Cut):

            async def release() -> None:
                driver.release(cut)

            loop.call(release())

    def stop(self) -> None:
        if self._loop is not None and self._driver is not None:
            self._loop.call(self._driver.close())
            self._loop.stop()
            self._loop = self._driver = None
