"""The demo's two Structured Streaming queries, and their progress.

One writes every row to Parquet, the other each visitor's sessions, once the watermark has passed them. Both are plain
queries as any user would write them; nothing here depends on segments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from anabranch.cli.demo.core.clickstream import Clickstream
from anabranch.cli.pipelines.spark_progress import until_begun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# No later batch has rows that are older than this, so a watermark that is further behind drops none.
SKEW: Final = "5s"
WATERMARK_S: Final = 10
# Rows that a query wrote before it failed count anyway.
RESTARTS_MAX: Final = 3
# Spark's error: it waits ten seconds for a Python process to start, which is too short on a very busy machine.
SLOW_START: Final = "failed to connect back"
SLOW_STARTS_MAX: Final = 60
EVENT: Final = "number bigint, step bigint, page string"


@dataclass(frozen=True, slots=True)
class Progress:
    """One micro-batch."""

    batch: int
    at_ms: int  # The time of its trigger.
    took_ms: int
    rows: int
    state_rows: int
    dropped: int


@dataclass
class Followed:
    """A query and the micro-batches that it has reported."""

    name: str
    start: Callable[[], Any]
    query: Any = None
    progress: dict[int, Progress] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.progress.values())

    @property
    def latest(self) -> Progress | None:
        return self.progress[max(self.progress)] if self.progress else None

    def look(self) -> None:
        """Reads the progress. A failed query continues from its checkpoint; raises its error once it has failed too
        often."""
        if (told := self.query.lastProgress) is not None:
            known = max(self.progress, default=-1)
            # Reading all of them costs a call each; it is needed only where one was missed.
            for one in [told] if told["batchId"] <= known + 1 else self.query.recentProgress:
                self._take(progress_of(one))
        if self.query.isActive:
            return
        error = self.query.exception()
        why = str(error).strip().splitlines()[0] if error is not None else "it has ended by itself"
        self.failures.append(f"query {self.name} failed: {why}")
        if len(self.failures) > (SLOW_STARTS_MAX if SLOW_START in why else RESTARTS_MAX):
            raise RuntimeError(self.failures[-1])
        self.query = self.start()

    def _take(self, made: Progress) -> None:
        """Keeps the larger report: Spark reports an idle trigger under the number of the next batch, which then
        replaces it."""
        before = self.progress.get(made.batch)
        if before is None or made.rows >= before.rows:
            self.progress[made.batch] = made


def progress_of(told: Mapping[str, Any]) -> Progress:
    """Converts Spark's report of a micro-batch."""
    operators = told.get("stateOperators") or []
    at = datetime.fromisoformat(told["timestamp"])
    return Progress(
        batch=told["batchId"],
        at_ms=round(at.timestamp() * 1000),
        took_ms=int((told.get("durationMs") or {}).get("triggerExecution", 0)),
        rows=told["numInputRows"],
        state_rows=sum(one["numRowsTotal"] for one in operators),
        dropped=sum(one.get("numRowsDroppedByWatermark", 0) for one in operators),
    )


class DemoQueries:
    """Both queries on one topic."""

    def __init__(
        self, spark: SparkSession, service_url: str, topic: str, stream: Clickstream, folder: Path
    ) -> None:
        self._spark = spark
        self._options = {"serviceUrl": service_url, "topic": topic, "start": "earliest", "maxTimeSkew": SKEW}
        self._stream = stream
        self._folder = folder
        self.queries: list[Followed] = []

    def table(self, name: str) -> Path:
        return self._folder / name

    def start(self) -> None:
        self.queries = [
            self._followed("raw", self._raw(), "1 second"),
            self._followed("sessions", self._sessions(), "1 second"),
        ]
        for one in self.queries:
            one.query = one.start()
            if one is self.raw:
                until_begun(one.query)

    @property
    def raw(self) -> Followed:
        return self.queries[0]

    @property
    def sessions(self) -> Followed:
        return self.queries[1]

    def look(self) -> None:
        for query in self.queries:
            query.look()

    def stop(self) -> None:
        for one in self.queries:
            if one.query is not None:
                one.query.stop()

    @property
    def failures(self) -> list[str]:
        return [told for one in self.queries for told in one.failures]

    def _clicks(self, subscription: str) -> Any:
        reader = self._spark.readStream.format("anabranch").options(
            **self._options, subscription=subscription
        )
        return reader.load()

    def _raw(self) -> Any:
        from pyspark.sql import functions as F

        event = F.from_json(F.col("value").cast("string"), EVENT)
        return (
            self._clicks("raw")
            .withColumn("event", event)
            .select(F.col("key").cast("string"), "event.*", "event_time", "publish_time", "position")
        )

    def _sessions(self) -> Any:
        from pyspark.sql import functions as F

        gap = f"{self._stream.gap_ms} milliseconds"
        return (
            self._clicks("sessions")
            .select(F.col("key").cast("string"), "event_time")
            .withWatermark("event_time", f"{WATERMARK_S} seconds")
            .groupBy(F.session_window("event_time", gap), "key")
            .agg(F.count("*").alias("clicks"))
            .selectExpr("key", "session_window.start", "session_window.end", "clicks")
        )

    def _followed(self, name: str, frame: Any, every: str) -> Followed:
        writer = (
            frame.writeStream.format("parquet")
            .queryName(name)
            .option("checkpointLocation", str(self._folder / f"{name}-checkpoint"))
            .trigger(processingTime=every)
        )
        return Followed(name, lambda: writer.start(str(self.table(name))))
