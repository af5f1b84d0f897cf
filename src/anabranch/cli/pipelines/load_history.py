"""`anabranch pipeline load-history`: the brokers' own records of loads, decisions and consumers, as Parquet tables.

Its folder then has `loads`, `decisions`, `consumers`, `heartbeats` and the balancer's tables, each once it has rows;
and the position where the next run continues.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from anabranch.broker.config import units
from anabranch.broker.scalable.load.history_records import HISTORY_TOPIC
from anabranch.cli.parsing.access import spark_options
from anabranch.cli.parsing.options import UsageError, pairs
from anabranch.cli.pipelines.spark_errors import JobFailed, told
from anabranch.cli.pipelines.stopping import JobStopping, without_interrupts
from anabranch.pipelines.load_history import CHECKPOINT, TABLES, HistoryBatch, start, stream
from anabranch.pipelines.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOKED_EVERY_S: Final = 0.5
# How long the present batch may take to finish after Ctrl-C. An interrupted batch is written again.
FINISHED_S: Final = 60.0

_FIXED: Final = frozenset({"decode", "decodeerrors", "columns", "serviceurl"})
# The names of the records of each table, singular and plural.
_NAMES: Final = {
    "loads": ("stretch of load", "stretches of load"),
    "decisions": ("decision", "decisions"),
    "consumers": ("change of consumers", "changes of consumers"),
    "heartbeats": ("heartbeat", "heartbeats"),
    "broker_loads": ("report of a broker", "reports of brokers"),
    "bundle_loads": ("record of bundles", "records of bundles"),
    "sheds": ("decision about shedding", "decisions about shedding"),
    "moves": ("move by hand", "moves by hand"),
    "bundle_splits": ("decision about a bundle", "decisions about bundles"),
}


def run(arguments: argparse.Namespace) -> int:
    """Runs the command. All invalid options are refused before Spark is started."""
    options = pairs(arguments.option, "--option")
    if taken := sorted(name for name in options if name.lower() in _FIXED):
        raise UsageError(f"--option {taken[0]}: that is set by the pipeline itself")
    settings = pairs(arguments.conf, "--conf")
    if arguments.packages:
        settings["spark.jars.packages"] = arguments.packages
    every = _every(arguments.every) if arguments.follow else None
    output = str(arguments.output).rstrip("/")
    _check_place(output)
    source = {"serviceUrl": arguments.service_url, **spark_options(arguments, options), **options}
    with ExitStack() as stack:
        with without_interrupts():
            spark = stack.enter_context(session("anabranch load-history", arguments.master, settings))
        return _Run(spark, source, output, every, arguments.quiet).run()


def _every(text: str) -> str:
    try:
        seconds = units.seconds(text)
    except ValueError as error:
        raise UsageError(f"--every {text}: {error}") from None
    if seconds <= 0:
        raise UsageError(f"--every {text}: give a time above 0")
    return f"{round(seconds * 1000)} milliseconds"


def _check_place(output: str) -> None:
    """Refuses tables without the checkpoint of their query: another query would count from 0 and replace them."""
    if "://" in output or Path(output, CHECKPOINT).exists():
        return
    if there := [name for name in TABLES if Path(output, name).exists()]:
        raise UsageError(
            f"{output} has tables ({', '.join(there)}) and no {CHECKPOINT}, which says how far they go; "
            "give --output another folder"
        )


class _Run:
    def __init__(
        self, spark: SparkSession, options: dict[str, str], output: str, every: str | None, is_quiet: bool
    ) -> None:
        self._spark, self._options, self._output, self._every = spark, options, output, every
        self._is_quiet = is_quiet
        self._sums: Counter[str] = Counter()
        self._unreadable = 0

    def run(self) -> int:
        """Returns the exit code: Ctrl-C is the normal end of following, and interrupts a single run."""
        from pyspark.errors import PySparkException

        with JobStopping() as stopping:
            try:
                query = start(
                    stream(self._spark, self._options), self._output, self._written, every=self._every
                )
                self._wait(query, stopping)
            except PySparkException as error:
                raise JobFailed(self._told(error)) from error
        self._summary()
        return 128 + stopping.number if stopping.number and self._every is None else 0

    def _wait(self, query: StreamingQuery, stopping: JobStopping) -> None:
        """Waits until the query ends, or is to end: then until its batch is done, if that is soon."""
        waiting: Any = query  # Spark's own hint says int.
        try:
            while not waiting.awaitTermination(LOOKED_EVERY_S):
                if stopping.number and (not query.status["isTriggerActive"] or stopping.is_late(FINISHED_S)):
                    return
        finally:
            query.stop()

    def _told(self, error: BaseException) -> str:
        why = told(error)
        if "does not exist" not in why and "has no schema" not in why:
            return why
        return (
            f"there is no load history at {self._options['serviceUrl']} yet: brokers publish it within a minute of "
            "their start, unless loadHistoryEnabled=false is set"
        )

    def _written(self, batch: HistoryBatch) -> None:
        self._sums.update(batch.records)
        self._unreadable += batch.unreadable
        if not self._is_quiet and self._every is not None:
            print(f"batch {batch.batch}: {_counted(batch.records)}", file=sys.stderr, flush=True)

    def _summary(self) -> None:
        if self._unreadable:
            print(
                f"anabranch: {self._unreadable:,} messages of {HISTORY_TOPIC} are no records that this release knows, "
                "and were left out",
                file=sys.stderr,
            )
        if not self._is_quiet:
            print(f"{self._output}: {_counted(self._sums) or 'nothing new'}")


def _counted(records: Mapping[str, int]) -> str:
    return ", ".join(
        f"{count:,} {_NAMES[table][count != 1]}" for table in TABLES if (count := records.get(table, 0))
    )
