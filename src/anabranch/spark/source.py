"""The data source `anabranch`: what Spark calls, handed on.

Light to import, as Spark loads it in every process that plans or reads: what only one of them needs is imported there.
Options are checked when Spark asks for the schema, that is when the query is analysed.

Filters are not pushed down, on purpose: no reader here has `pushFilters`. Spark keeps the read plan of a DataFrame in
one place that all its scans share, so what is pushed into one of them filters the others as well (docs/spark.md, "What
Spark does not let a Python source do").
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from anabranch.spark.offsets import Offset, check_is_of, initial
from anabranch.spark.options import COLUMNS, BadOption, Options, parse
from anabranch.spark.spending import UNLIMITED, Limit
from anabranch.spark.task import Task, Tasks

if TYPE_CHECKING:
    from anabranch.spark.declared import Declared
    from anabranch.spark.driver import Driver
    from anabranch.spark.loop_thread import LoopThread
    from anabranch.spark.sink import BatchWriter, StreamWriter
    from anabranch.wire import pulsar_pb2 as pb

log = logging.getLogger(__name__)

SCHEMA: Final = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())


class SlicePartition(InputPartition):
    """The slices of a task."""

    def __init__(self, tasks: Tasks) -> None:
        super().__init__(tasks)


class AnabranchSource(DataSource):
    """`.format("anabranch")` of `spark.read`, `spark.readStream`, `df.write` and `df.writeStream`."""

    @classmethod
    def name(cls) -> str:
        return "anabranch"

    _declared: Declared | None = None

    def schema(self) -> StructType | str:
        options = parse(self._given)
        if not options.decode:
            wanted = options.columns
            return SCHEMA if wanted is None else ", ".join(f"{name} {COLUMNS[name]}" for name in wanted)
        from pyspark.sql.pandas.types import from_arrow_schema

        declared = self._found_schema(options)
        assert declared is not None
        return from_arrow_schema(declared.columns())

    def _found_schema(self, options: Options) -> Declared | None:
        """Spark pickles the source once it is analysed, so what the topic's schema was then is known to the readers."""
        if options.decode and self._declared is None:
            from anabranch.spark.declared import declared

            self._declared = declared(options)
        return self._declared

    @property
    def _given(self) -> Mapping[str, str]:
        return dict(self.options)

    def reader(self, schema: Any) -> BatchReader:
        options = parse(self._given, "batch")
        return BatchReader(options, self._declared_as(schema, options))

    def streamReader(self, schema: Any) -> StreamReader:
        options = parse(self._given, "stream")
        return StreamReader(options, self._declared_as(schema, options))

    def _declared_as(self, schema: Any, options: Options) -> Declared | None:
        """The topic's schema. BadOption if users have given columns of their own with `.schema(…)`: Spark does not ask
        `schema()` then, so this is the first that is seen of them."""
        declared = self._found_schema(options)
        if declared is not None:
            from pyspark.sql.pandas.types import from_arrow_schema

            own = [(one.name, one.dataType.simpleString()) for one in from_arrow_schema(declared.columns())]
        else:
            names = tuple(COLUMNS) if options.columns is None else options.columns
            # What is written as `timestamp_ltz`, Spark shows as `timestamp`.
            own = [(name, COLUMNS[name].replace(" ", "").replace("_ltz", "")) for name in names]
        if [(one.name, one.dataType.simpleString()) for one in schema.fields] != own:
            raise BadOption(
                f".schema(…) is {schema.simpleString()}, and the source's columns are "
                f"{', '.join(f'{name} {kind}' for name, kind in own)}: leave .schema(…) out. The option columns "
                "chooses some, decode=true makes columns of the topic's schema, and select and cast do the rest"
            )
        return declared

    def writer(self, schema: Any, overwrite: bool) -> BatchWriter:
        from anabranch.spark.sink import BatchWriter, plan_of

        return BatchWriter(plan_of(self._given, schema, overwrite, "batch"))

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:
        from anabranch.spark.sink import StreamWriter, plan_of

        return StreamWriter(plan_of(self._given, schema, overwrite, "stream"))


def _read(tasks: Tasks, declared: Declared | None) -> Iterator[Any]:
    return chain.from_iterable(_read_one(task, declared) for task in tasks)


def _read_one(task: Task, declared: Declared | None) -> Iterator[Any]:
    from anabranch.spark.slice_reader import read

    if declared is None:
        return read(task)
    from anabranch.spark.declared import fetched

    def fetch(version: int | None) -> pb.Schema | None:
        return fetched(task.service_url, task.topic, version, task.timeout_s, task.security)[0]

    batches = read(replace(task, versions=declared.needs_versions))
    return declared.decoded(batches, task.topic, fetch)


class BatchReader(DataSourceReader):
    """Of `spark.read`. Spark plans it once for each `load()`, with the DataFrame's first use, and keeps the plan: rows
    that come later are seen by the next `load()` only."""

    def __init__(self, options: Options, declared: Declared | None) -> None:
        self._options = options
        self._declared = declared

    def partitions(self) -> Sequence[InputPartition]:
        from anabranch.spark.loop_thread import LoopThread

        loop = LoopThread()
        try:
            return [SlicePartition(tasks) for tasks in loop.call(self._plan())]
        finally:
            loop.stop()

    async def _plan(self) -> list[Tasks]:
        from anabranch.spark.driver import Driver

        driver = Driver(self._options)
        try:
            await driver.open()
            return await driver.batch()
        finally:
            await driver.close()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # Spark makes one up where there is nothing to read.
        return iter(()) if partition.value is None else _read(partition.value, self._declared)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One lives on the driver for as long as the query runs; copies of it, which only `read`, in the tasks."""

    def __init__(self, options: Options, declared: Declared | None) -> None:
        self._options = options
        self._declared = declared
        self._loop: LoopThread | None = None
        self._driver: Driver | None = None
        # What was last asked, if the answer was that nothing is new.
        self._quiet: tuple[dict[str, Any], ReadLimit] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loop": None, "_driver": None, "_quiet": None}

    def _opened(self) -> tuple[LoopThread, Driver]:
        if self._loop is None or self._driver is None:
            from anabranch.spark.driver import Driver
            from anabranch.spark.loop_thread import LoopThread

            loop, driver = LoopThread(), Driver(self._options)
            try:
                loop.call(driver.open())
            except BaseException:
                loop.call(driver.close())
                loop.stop()
                raise
            self._loop, self._driver = loop, driver
            if self._options.subscription is None:
                # Spark tells a source neither its query's id nor its checkpoint: there is no name for one by itself.
                log.warning(
                    "%s: there is no option subscription, so what this query has not read is held by the retention of "
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
        # Spark knows of one limit only; the other is added below.
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
