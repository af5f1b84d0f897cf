"""`anabranch pipeline to-parquet`: topics as tables, partitioned by day; run again, it continues where it stopped."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from anabranch.cli.parsing.access import spark_options
from anabranch.cli.parsing.options import UsageError, pairs
from anabranch.cli.pipelines.spark_errors import JobFailed, quiet, told
from anabranch.cli.pipelines.spark_progress import until_begun
from anabranch.cli.pipelines.stopping import JobStopping, without_interrupts
from anabranch.cli.pipelines.table_progress import TableProgress
from anabranch.errors import AnabranchError
from anabranch.pipelines.session import session
from anabranch.pipelines.tables.core.names import beside, folder_of
from anabranch.pipelines.tables.formats import FormatTable, check, settings_for, why_not
from anabranch.pipelines.tables.hadoop_files import files_for
from anabranch.pipelines.tables.log import TableLog
from anabranch.pipelines.tables.to_parquet import ParquetTable, Sink, TablePlan, WrittenBatch, dated
from anabranch.pipelines.topic_names import topic_names
from anabranch.spark.options.source import Options, parse
from anabranch.spark.options.values import duration_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BATCH_BYTES: Final = 1 << 30
LOOKED_EVERY_S: Final = 0.5
TIMES: Final = {"publish": "publish_time", "event": "event_time"}
# Batches of a topic are larger than the rows of other pipelines.
_SETTINGS: Final = {"spark.sql.execution.arrow.maxRecordsPerBatch": "10000"}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)i?b?", re.IGNORECASE)
_SETTINGS_FILE: Final = re.compile(r"(.*)/settings/\d+\.json")
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, slots=True)
class Asked:
    """The parsed command line."""

    source: Mapping[str, str]
    parsed: Options | None  # None: no topic is read.
    plan: TablePlan
    output: str
    work: str
    format: str
    is_split_up: bool  # One table for each topic.
    every_ms: int | None  # None: one run over the present messages.
    compacts: bool
    is_quiet: bool

    @property
    def only_compacts(self) -> bool:
        return self.parsed is None

    @property
    def chosen(self) -> Options:
        assert self.parsed is not None
        return self.parsed


def run(arguments: argparse.Namespace) -> int:
    """Runs the command. All invalid options are refused before Spark is started."""
    asked = read(arguments)
    settings = {**_SETTINGS, **settings_for(asked.format, asked.output), **pairs(arguments.conf, "--conf")}
    if arguments.packages:
        settings["spark.jars.packages"] = arguments.packages
    topics = [] if asked.only_compacts else topic_names(asked.chosen)
    if asked.is_split_up and not topics and not asked.only_compacts:
        raise UsageError(f"{asked.chosen.choice}: no such topics exist")
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    with ExitStack() as stack:
        with without_interrupts():
            spark = stack.enter_context(session("anabranch to-parquet", arguments.master, settings))
        quiet(spark)
        try:
            check(spark, asked.format)
            return _Run(spark, asked, topics).run()
        except (Py4JError, PySparkException, ConnectionError) as error:
            raise why_not(spark, asked.format, error) or JobFailed(told(error)) from error


# -- the command line


def read(arguments: argparse.Namespace) -> Asked:
    output = _place(arguments.output)
    source = {} if arguments.compact else _source(arguments)
    plan = TablePlan(
        time=TIMES.get(arguments.time, arguments.time),
        date=_column(arguments.date_column),
        compression=arguments.compression,
        file_bytes=_bytes(arguments.file_size, "--file-size"),
    )
    parsed: Options | None
    if arguments.compact:
        parsed = None
    elif arguments.table_per_topic:
        # The columns of each topic are read at its turn.
        parsed = parse(
            {name: value for name, value in source.items() if not name.startswith("decode")}, "stream"
        )
    else:
        parsed = parse(source, "stream")
    return Asked(
        source,
        parsed,
        plan,
        output,
        beside(output) if arguments.checkpoint is None else _place(arguments.checkpoint),
        arguments.format,
        arguments.table_per_topic,
        _milliseconds(arguments.every) if arguments.follow else None,
        not arguments.no_compact,
        arguments.quiet,
    )


def _source(arguments: argparse.Namespace) -> dict[str, str]:
    """The options of the source: those of the command line, and defaults that suit tables."""
    source = pairs(arguments.option, "--option")
    given = {name.lower() for name in source}
    chosen = {
        "topic" if len(arguments.topic) == 1 else "topics": ",".join(arguments.topic),
        "topicsPattern": arguments.pattern,
        "namespace": arguments.namespace,
        "propertyFilters": ",".join(arguments.filter),
        "serviceUrl": arguments.service_url,
        "subscription": arguments.subscription,
        "start": arguments.start,
        "decode": "true" if arguments.decode else None,
    }
    for name, value in chosen.items():
        if value:
            if name.lower() in given and name != "serviceUrl":
                raise UsageError(
                    f"--option {name}=… is given twice: it has an option of its own here, see --help"
                )
            source.setdefault(name, value)
    source |= spark_options(arguments, given)
    if not {"topic", "topics", "topicspattern", "namespace"} & {name.lower() for name in source}:
        raise UsageError(
            "which topics? name some, or give --namespace tenant/namespace or --pattern tenant/namespace/REGEX"
        )
    defaults = {"start": "earliest", "ordering": "none"}
    if not {"maxrowspertrigger", "maxbytespertrigger"} & given:
        defaults["maxBytesPerTrigger"] = str(_bytes(arguments.batch_size, "--batch-size"))
    for name, value in defaults.items():
        if name.lower() not in given:
            source.setdefault(name, value)
    return source


def _place(text: str) -> str:
    """An absolute path for paths of this machine, wherever the job's processes are started; URLs unchanged."""
    if re.fullmatch(r"\w+://[^/]*/*", text):
        raise UsageError(f"{text}: give a folder in there, as in {text.rstrip('/')}/table")
    return text.rstrip("/") if "://" in text else str(Path(text).absolute())


def _column(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z]\w*", name):
        raise UsageError(f"--date-column {name}: give a name of letters, digits and _, with a letter first")
    return name


def _bytes(text: str, option: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    count = int(float(found[1]) * _UNITS[found[2].lower()]) if found else 0
    if count < 1:
        raise UsageError(f"{option} {text}: give a size such as 64MB or 1GB")
    return count


def _milliseconds(text: str) -> int:
    try:
        return duration_ms(text)
    except ValueError as error:
        raise UsageError(f"--every {text}: give {error}") from None


# -- the run


class _Run:
    def __init__(self, spark: SparkSession, asked: Asked, topics: list[str]) -> None:
        self._spark = spark
        self._asked = asked
        self._topics = topics
        what = topics[0] if len(topics) == 1 else asked.output
        self._progress = TableProgress(spark, what, is_quiet=asked.is_quiet)

    def run(self) -> int:
        asked = self._asked
        with self._progress, JobStopping() as stopping:
            if asked.only_compacts:
                self._compact()
            elif asked.every_ms is None:
                self._once(stopping)
            else:
                self._follow(stopping)
        if not asked.is_quiet:
            print(f"{asked.output}: {self._progress.summary()}")
        if stopping.number and asked.every_ms is None:
            self._progress.say("stopped; the same command continues from here")
        elif asked.parsed and not (self._progress.rows or asked.parsed.subscription or self._has_rows()):
            self._progress.say(
                "there was nothing: brokers keep what a subscription holds (--subscription), or what the namespace's "
                "retention says"
            )
        return 128 + stopping.number if stopping.number and asked.every_ms is None else 0

    def _has_rows(self) -> bool:
        return any(table.has_rows for table in self._tables())

    def _tables(self) -> list[_Table]:
        return (
            [self._table(topic) for topic in self._topics] if self._asked.is_split_up else [self._table(None)]
        )

    def _table(self, topic: str | None) -> _Table:
        asked = self._asked
        if topic is None:
            return _Table(self._spark, asked, self._progress, (asked.output.rpartition("/")[2],))
        choices = {"topic", "topics", "topicspattern", "namespace", "propertyfilters"}
        source = {name: value for name, value in asked.source.items() if name.lower() not in choices}
        return self._in(folder_of(topic), replace(asked, source={**source, "topic": topic}))

    def _in(self, folder: str, asked: Asked) -> _Table:
        """A table of its own, in the folder of all tables."""
        own = replace(asked, output=f"{asked.output}/{folder}", work=f"{asked.work}/{folder}")
        return _Table(self._spark, own, self._progress, tuple(folder.split("/")))

    def _compact(self) -> None:
        """Compacts all tables that the job's folder lists, without asking a broker."""
        asked = self._asked
        paths = (f"/{part.path}" for part in files_for(self._spark, asked.work).parts(asked.work))
        found = {match[1] for path in paths if (match := _SETTINGS_FILE.fullmatch(path)) is not None}
        if not found:
            raise UsageError(f"there is no table at {asked.output}: {asked.work} knows of none")
        for folder in sorted(found):
            (self._in(folder.strip("/"), asked) if folder else self._table(None)).only_compact()

    def _once(self, stopping: JobStopping) -> None:
        for table in self._tables():
            if stopping.number:
                return
            with table.running() as query:
                table.wait(query, stopping)
            if self._asked.compacts and not stopping.number:
                table.compact()

    def _follow(self, stopping: JobStopping) -> None:
        """Runs several queries at once, if each topic has its table; topics that join get theirs."""
        asked = self._asked
        assert asked.every_ms is not None
        with ExitStack() as stack:
            running: dict[str | None, tuple[_Table, StreamingQuery]] = {}
            looked_at = time.monotonic()
            wanted: list[str | None] = [*self._topics] if asked.is_split_up else [None]
            while True:
                for topic in wanted:
                    if topic not in running:
                        table = self._table(topic)
                        running[topic] = table, stack.enter_context(table.running())
                        if len(running) == 1 and len(wanted) > 1:
                            until_begun(running[topic][1])
                if stopping.number:
                    return
                for table, query in running.values():
                    table.wait(query, stopping, at_most_s=LOOKED_EVERY_S / len(running))
                if asked.is_split_up and time.monotonic() - looked_at > max(asked.every_ms / 1000, 10):
                    looked_at = time.monotonic()
                    wanted = [*topic_names(asked.chosen)]


class _Table:
    """One table and the query that fills it."""

    def __init__(
        self, spark: SparkSession, asked: Asked, progress: TableProgress, name: tuple[str, ...]
    ) -> None:
        self._spark = spark
        self._asked = asked
        self._progress = progress
        self._name = name
        self._files = files_for(spark, asked.output)
        self._log = TableLog(self._files, asked.output, asked.work)
        self._parquet = ParquetTable(spark, self._files, self._log, asked.plan)
        self._sink = Sink(self._parquet, compacts=asked.compacts, told=progress.told)

    @property
    def _is_plain(self) -> bool:
        return self._asked.format == "parquet"

    @contextmanager
    def running(self) -> Iterator[StreamingQuery]:
        """The query; when the block ends, the query ends after its present batch."""
        with self._files.locked(f"{self._asked.work}/lock"):
            query = self._started()
            try:
                yield query
            finally:
                self._end(query)

    def _started(self) -> StreamingQuery:
        asked = self._asked
        try:
            rows = self._spark.readStream.format("anabranch").options(**asked.source).load()
        except Exception as error:
            raise _failed(error) from error
        frame = dated(rows, asked.plan)
        settings = {"format": asked.format, "time": asked.plan.time, "date-column": asked.plan.date}
        if self._is_plain:
            self._parquet.check_shared()
            self._parquet.open(settings, json.loads(frame.schema.json()))
            writer: Any = frame.writeStream.foreachBatch(self._sink)
        else:
            self._parquet.keep(settings)
            writer = self._format_table().writer(frame)
        every = asked.every_ms
        trigger = {"availableNow": True} if every is None else {"processingTime": f"{every} milliseconds"}
        query: StreamingQuery = (
            writer.option("checkpointLocation", self._log.checkpoint).trigger(**trigger).start()
        )
        return query

    def wait(self, query: StreamingQuery, stopping: JobStopping, at_most_s: float | None = None) -> None:
        """Waits until the query has ended, or is to end. Raises JobFailed, or our own code's error, if it fails."""
        until = None if at_most_s is None else time.monotonic() + at_most_s
        try:
            waiting: Any = query  # Spark's own hint says int.
            while not waiting.awaitTermination(LOOKED_EVERY_S if at_most_s is None else at_most_s):
                if stopping.number or (until is not None and time.monotonic() >= until):
                    return
        except Exception as error:
            raise _failed(self._sink.error or error) from error

    def _end(self, query: StreamingQuery) -> None:
        if query.isActive:
            if self._is_plain:
                self._sink.finish()
                _until(lambda: _is_seen(query, self._sink.batch), 10)
            else:
                _until(lambda: not query.status["isTriggerActive"], 60)
            query.stop()
        if not self._is_plain:
            for one in query.recentProgress:
                rows = int(one["numInputRows"])
                if rows:
                    self._progress.told(WrittenBatch(int(one["batchId"]), rows, 0, 0, ()))

    @property
    def has_rows(self) -> bool:
        return not self._is_plain or self._files.exists(self._asked.output)

    # -- compaction

    def compact(self) -> None:
        with self._files.locked(f"{self._asked.work}/lock"):
            if self._is_plain:
                self._parquet.compact(self._progress.told)
            else:
                self._format_table().compact(datetime.now(UTC).date().isoformat())

    def only_compact(self) -> None:
        known = self._log.settings() or {}
        plan = replace(self._asked.plan, time=known["time"], date=known["date-column"])
        self._asked = replace(self._asked, plan=plan)
        self._parquet = ParquetTable(self._spark, self._files, self._log, plan)
        with self._files.locked(f"{self._asked.work}/lock"):
            self._parquet.keep({"format": self._asked.format})
            if self._is_plain:
                self._parquet.open({})
        self.compact()

    def _format_table(self) -> FormatTable:
        asked = self._asked
        name = ".".join(re.sub(r"\W", "_", part) for part in self._name)
        return FormatTable(self._spark, asked.format, asked.output, name, asked.plan)


def _is_seen(query: StreamingQuery, batch: int) -> bool:
    """Whether Spark has noted that a batch is done: then the next run does not begin with it again."""
    last = query.lastProgress
    return batch < 0 or not query.isActive or (last is not None and int(last["batchId"]) >= batch)


def _until(met: Any, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not met() and time.monotonic() < deadline:
        time.sleep(0.05)


def _failed(error: BaseException) -> AnabranchError:
    return error if isinstance(error, AnabranchError) else JobFailed(told(error))
