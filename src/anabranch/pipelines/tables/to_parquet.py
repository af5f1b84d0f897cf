"""Topics as tables of Parquet files, one folder for each day: the work that Spark does.

`tables.log` explains how a batch gets into the table exactly once, `core.compaction` which files become one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

from anabranch.errors import AnabranchError
from anabranch.pipelines.tables.core.compaction import TableFile, groups, is_closed
from anabranch.pipelines.tables.core.names import day_of, file_of, is_ours
from anabranch.pipelines.tables.core.schema import merged
from anabranch.pipelines.tables.files import TableStorage
from anabranch.pipelines.tables.log import TableDamaged, TableLog

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

DAY_US: Final = 86_400_000_000
# No reader accepts years of more than four digits.
YEARS_END_US: Final = 253_402_300_800_000_000
# Rows on their way between tasks take more room than in Parquet files, by about this factor.
SHUFFLED_BYTES: Final = 3
COMPACTED_EVERY_S: Final = 600.0


class RunFinished(AnabranchError):
    """The run is ending, and accepts no more batches."""


class BadTable(AnabranchError):
    """The requested table cannot be made from these rows."""


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The form of a table."""

    time: str = "publish_time"  # The column whose day a row belongs to.
    date: str = "date"  # The name of the column with that day.
    compression: str = "zstd"
    file_bytes: int = 128 << 20


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """The result of a batch."""

    batch: int
    rows: int
    files: int
    bytes: int
    days: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compacted:
    day: str
    files: int
    into: int


def dated(frame: DataFrame, plan: TablePlan) -> DataFrame:
    """The rows with the day of each, in UTC. BadTable for columns that are missing, or whose name is taken."""
    names = frame.columns
    if plan.date.lower() in (name.lower() for name in names):
        raise BadTable(f"the rows have a column {plan.date} of their own: give --date-column another name")
    if plan.time not in names:
        times = [name for name, kind in frame.dtypes if kind in ("timestamp", "timestamp_ntz", "date")]
        raise BadTable(
            f"--time {plan.time}: there is no such column; columns with a time are {', '.join(times)}"
        )
    day = _day(frame, plan.time)
    if plan.time != "publish_time" and "publish_time" in names:
        from pyspark.sql import functions as f

        # A row without that time, or with an invalid date, still has a publish time.
        day = f.coalesce(day, _day(frame, "publish_time"))
    return frame.withColumn(plan.date, day)


def _day(frame: DataFrame, name: str) -> Column:
    from pyspark.sql import functions as f

    kind = dict(frame.dtypes)[name]
    column = f.col(f"`{name}`")
    if kind in ("date", "timestamp_ntz"):
        return f.when((f.year(column) > 0) & (f.year(column) < 10_000), column.cast("date"))
    if kind != "timestamp":
        raise BadTable(f"--time {name}: it is a column of type {kind}, and times are needed")
    # By arithmetic: Spark's own conversion to a day depends on the time zone of the session.
    micros = f.unix_micros(column)
    days = ((micros - f.pmod(micros, f.lit(DAY_US))) / DAY_US).cast("int")
    first = -62_135_596_800_000_000
    return f.when((micros >= first) & (micros < YEARS_END_US), f.date_from_unix_date(days))


class ParquetTable:
    """One table; one run at a time writes to it."""

    def __init__(
        self,
        spark: SparkSession,
        files: TableStorage,
        log: TableLog,
        plan: TablePlan,
        today: Callable[[], date] = lambda: datetime.now(UTC).date(),
    ) -> None:
        self._spark = spark
        self._files = files
        self.log = log
        self.plan = plan
        self._today = today

    def check_shared(self) -> None:
        """Raises BadTable if tasks run on other machines with their own folder of that name: their files would not be
        found."""
        context = self._spark.sparkContext
        if "://" in self.log.table or str(context.master).startswith("local"):
            return
        probe = f"{self.log.work}/probe"
        self._files.remove(probe)
        self._files.create(probe, b"")
        seen = context.parallelize(range(context.defaultParallelism), context.defaultParallelism)
        is_shared = all(seen.map(lambda _: os.path.exists(probe)).collect())
        self._files.remove(probe)
        if not is_shared:
            raise BadTable(
                f"{self.log.table} is a folder of this machine, and tasks run on others: give --output a place that "
                "all of them share, such as hdfs://… or s3a://…, or a folder that is mounted everywhere"
            )

    def open(self, settings: Mapping[str, Any], schema: Mapping[str, Any] | None = None) -> None:
        """Finishes the work of the last run. TableDamaged, BadTable or SchemaChanged if this run does not fit the
        table."""
        self.log.recover()
        self.log.check()
        self.keep(settings, schema)

    def keep(self, settings: Mapping[str, Any], schema: Mapping[str, Any] | None = None) -> None:
        """Stores settings and schema. BadTable or SchemaChanged if the table was begun with others."""
        known = self.log.settings() or {}
        for name, value in settings.items():
            if name in known and known[name] != value:
                raise BadTable(
                    f"{self.log.table} was begun with {name} {known[name]}, not {value}: go on with that, or give "
                    "another --output"
                )
        known = {**known, **settings}
        if schema is not None:
            before = known.get("schema")
            known["schema"] = dict(schema) if before is None else merged(before, dict(schema))
        self.log.set(known)

    # -- a batch

    def write(self, frame: DataFrame, batch: int) -> WrittenBatch | None:
        """Writes a batch; None if the table has it already, or if it is empty."""
        if batch <= self.log.last.batch:
            return None
        staging = self.log.prepare()
        self._stage(frame, staging)
        parts = [part for part in self._files.parts(staging) if part.path.endswith(".parquet")]
        if not parts:
            self._files.remove(staging)
            return None
        rows = self._rows([staging])
        number = self.log.last.number + 1
        moves = {
            part.path: f"{part.path.rpartition('/')[0]}/{file_of(number, at)}"
            for at, part in enumerate(parts)
        }
        self.log.commit(moves, batch=batch, query=self.log.query())
        days = sorted({part.path.partition("/")[0].partition("=")[2] for part in parts})
        return WrittenBatch(batch, rows, len(parts), sum(part.bytes for part in parts), tuple(days))

    def _stage(self, frame: DataFrame, staging: str) -> None:
        session = frame.sparkSession
        # Spark plans a stream once and for all; with adaptive planning it sees the sizes and writes a batch as large
        # files.
        session.conf.set("spark.sql.adaptive.enabled", "true")
        session.conf.set(
            "spark.sql.adaptive.advisoryPartitionSizeInBytes", str(self.plan.file_bytes * SHUFFLED_BYTES)
        )
        session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        writer = self._in_order(frame.hint("rebalance", self.plan.date)).write.mode("overwrite")
        writer = writer.partitionBy(self.plan.date).option("compression", self.plan.compression)
        writer.parquet(staging)

    def _in_order(self, frame: DataFrame) -> DataFrame:
        """The rows of a file in the order of publishing: rows that are read together lie together."""
        order = [name for name in (self.plan.date, "topic", "position") if name in frame.columns]
        return frame.sortWithinPartitions(*(f"`{name}`" for name in order))

    def _rows(self, paths: list[str]) -> int:
        return self._spark.read.parquet(*paths).count()

    # -- compaction

    def compact(self, told: Callable[[Compacted], None] = lambda _: None) -> list[Compacted]:
        """Compacts many small files into few large ones, in the folders of past days."""
        done = []
        today = self._today()
        by_folder: dict[str, list[TableFile]] = {}
        for part in self._files.parts(self.log.table):
            if is_ours(part.path) and is_closed(day_of(part.path, self.plan.date), today):
                by_folder.setdefault(part.path.rpartition("/")[0], []).append(part)
        for folder, parts in sorted(by_folder.items()):
            if chosen := groups(parts, self.plan.file_bytes):
                done.append(self._compact(folder, chosen))
                told(done[-1])
        return done

    def _compact(self, folder: str, chosen: list[tuple[TableFile, ...]]) -> Compacted:
        staging = self.log.prepare()
        number = self.log.last.number + 1
        moves = {}
        for at, group in enumerate(chosen):
            self._merge([f"{self.log.table}/{part.path}" for part in group], f"{staging}/{at}")
            (made,) = (
                part for part in self._files.parts(f"{staging}/{at}") if part.path.endswith(".parquet")
            )
            moves[f"{at}/{made.path}"] = f"{folder}/{file_of(number, at)}"
        removes = [part.path for group in chosen for part in group]
        before = self._rows([f"{self.log.table}/{path}" for path in removes])
        after = self._rows([f"{staging}/{path}" for path in moves])
        if before != after:
            raise TableDamaged(f"{folder}: {before:,} rows became {after:,}; nothing was changed")
        self.log.commit(moves, removes=removes, guarded=folder)
        return Compacted(folder.partition("=")[2], len(removes), len(moves))

    def _merge(self, paths: list[str], into: str) -> None:
        self._spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        rows = self._spark.read.option("mergeSchema", "true").parquet(*paths).coalesce(1)
        self._in_order(rows).write.option("compression", self.plan.compression).parquet(into)


class Sink:
    """The function that Spark calls with each batch of the query; keeps the error that ended it."""

    def __init__(
        self, table: ParquetTable, *, compacts: bool, told: Callable[[WrittenBatch | Compacted], None]
    ) -> None:
        self._table = table
        self._compacts = compacts
        self._told = told
        self._compacted_at = time.monotonic()
        self._busy = threading.Lock()
        self._is_finished = False
        self.batch = -1  # The last finished batch.
        self.error: Exception | None = None

    def __call__(self, frame: DataFrame, batch: int) -> None:
        with self._busy:
            if self._is_finished:
                raise RunFinished(f"batch {batch} is left to the next run")
            try:
                self._write(frame, batch)
            except AnabranchError as error:
                self.error = error
                raise

    def _write(self, frame: DataFrame, batch: int) -> None:
        written = self._table.write(frame, batch)
        if written is not None:
            self._told(written)
        self.batch = batch
        if self._compacts and time.monotonic() - self._compacted_at > COMPACTED_EVERY_S:
            self._compacted_at = time.monotonic()
            self._table.compact(self._told)

    def finish(self) -> None:
        """Returns once the present batch is written; no other batch follows."""
        with self._busy:
            self._is_finished = True
