"""Load history on Spark: writes the brokers' records to tables, and reads those tables for the backtest.

One streaming query reads the brokers' topic and writes a table for each kind of record, a folder for each day. A batch
writes to a folder of its own below the day's (`date=2026-05-01/batch=7`), which a repeated batch replaces: Spark's log
fixes the messages of a batch, so every record is in the tables exactly once, whatever fails. The query's checkpoint
lies beside the tables, since each is useless without the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from anabranch.autoscale.policy import ScalePolicy, problems
from anabranch.broker.scalable.load.history_records import HISTORY_TOPIC, VERSION
from anabranch.pipelines.replay.load_history_schema import COLUMNS, NO_SEGMENT, RATE_COLUMNS, SECONDS, UNKNOWN
from anabranch.pipelines.replay.replay import Timing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CHECKPOINT: Final = "_checkpoint"
# A stretch lasts a heartbeat's time at most. No broker wrote a record that claims more.
SAMPLES_MAX: Final = 100_000
_MS: Final = "unix_millis(at) - unix_millis(load.since)"

# The columns of the records of each table. A stretch is first divided into its samples.
TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "loads": (
        *(f"load.{name}" for name in ("topic", "segment", "range_start", "range_end")),
        f"timestamp_millis(cast(unix_millis(load.since) + round(({_MS}) * n / samples) as bigint)) at",
        f"({_MS}) / 1000D / samples {SECONDS}",
        *(f"load.{name}" for name in RATE_COLUMNS),
        *("load.backlog", "load.producers", "load.consumers attached", "broker"),
    ),
    "decisions": (
        *("decision.topic", "at"),
        *(f"decision.{name}" for name in ("kind", "rule", "segments", "because", "no_split", "no_merge")),
        *(
            "decision.no_rebucket",
            "decision.buckets",
            "decision.policy",
            "decision.active",
            "decision.epoch",
            "broker",
        ),
    ),
    "consumers": (
        *("consumers.topic", "at", "consumers.subscriptions"),
        "coalesce(array_max(map_values(consumers.subscriptions)), 0) most",
        "aggregate(map_values(consumers.subscriptions), 0, (sum, one) -> sum + one) total",
        "broker",
    ),
    "heartbeats": ("at", "heartbeat.*", "broker"),
    # The load balancer's. Reports and decisions are recorded by the leader, bundles by their owner.
    "broker_loads": ("at", "broker_load.*", "broker leader"),
    "bundle_loads": ("at", "broker", "inline(bundle_loads.bundles)"),
    "sheds": ("at", "shed.*", "broker leader"),
    "moves": ("at", "moved.*", "broker leader"),
    "bundle_splits": ("at", "bundle_split.*", "broker"),
}
_RECORDS: Final = {
    "loads": "load",
    "decisions": "decision",
    "consumers": "consumers",
    "heartbeats": "heartbeat",
    "broker_loads": "broker_load",
    "bundle_loads": "bundle_loads",
    "sheds": "shed",
    "moves": "moved",
    "bundle_splits": "bundle_split",
}


@dataclass(frozen=True, slots=True)
class HistoryBatch:
    """The result of a batch: the number of records by table, and of messages that are no records or are of a later
    release."""

    batch: int
    records: Mapping[str, int]
    unreadable: int


def stream(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """The brokers' records from the beginning on. `options` are options of the source: `serviceUrl` at least."""
    usual = {"topic": str(HISTORY_TOPIC), "start": "earliest"}
    fixed = {"decode": "true", "decodeErrors": "null", "columns": "value"}
    return spark.readStream.format("anabranch").options(**{**usual, **options, **fixed}).load()


def start(
    records: DataFrame,
    output: str,
    written: Callable[[HistoryBatch], None],
    *,
    every: str | None = None,
) -> StreamingQuery:
    """Writes the present records and ends; with `every` (`5 minutes`) it continues. `written` is called after each
    batch."""

    def write(batch: DataFrame, number: int) -> None:
        written(write_batch(batch, number, output))

    writer = records.writeStream.foreachBatch(write).option("checkpointLocation", f"{output}/{CHECKPOINT}")
    writer = writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=every)
    return writer.queryName("load-history").start()


def write_batch(batch: DataFrame, number: int, output: str) -> HistoryBatch:
    from pyspark.sql import functions as f

    batch.persist()
    try:
        known = batch.where(f.col("version") <= VERSION)
        # A topic that only brokers of an earlier release wrote to has fewer kinds of records.
        kinds = {table: field for table, field in _RECORDS.items() if field in batch.columns}
        counts = batch.agg(
            f.count("*").alias("all"),
            *(
                f.count(f.when(f.col("version") <= VERSION, f.col(field))).alias(table)
                for table, field in kinds.items()
            ),
        ).first()
        assert counts is not None
        found = {table: int(counts[table]) for table in kinds}
        for table in kinds:
            if found[table]:
                _write(rows(known, table), f"{output}/{table}", number)
        return HistoryBatch(number, found, int(counts["all"]) - sum(found.values()))
    finally:
        batch.unpersist()


def rows(records: DataFrame, table: str) -> DataFrame:
    """The rows of the records for one table. Each sample of a stretch has a row of its own."""
    from pyspark.sql import functions as f

    chosen = records.where(f.col(_RECORDS[table]).isNotNull())
    if table == "loads":
        # A foreign writer may claim no samples, and a division by zero would end the query at each start.
        samples = f.least(f.greatest("load.samples", f.lit(1)), f.lit(SAMPLES_MAX))
        chosen = chosen.withColumn("samples", samples)
        chosen = chosen.withColumn("n", f.explode(f.sequence(f.lit(1), f.col("samples"))))
    return chosen.selectExpr(*TABLES[table]).selectExpr("*", "to_date(at) date")


def _write(frame: DataFrame, path: str, number: int) -> None:
    from pyspark.sql import functions as f

    (
        frame.withColumn("batch", f.lit(number))
        .coalesce(1)
        .sortWithinPartitions("date", "at")
        .write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .partitionBy("date", "batch")
        .parquet(path)
    )


# -- for the backtest


@dataclass(frozen=True, slots=True)
class Recorded:
    """Load history with the settings of its brokers, as far as they are known."""

    rows: DataFrame
    timing: Timing | None = None
    step_ms: int | None = None
    policy: ScalePolicy | None = None
    # The policies of topics that lived under another one than their brokers', as they were last.
    of_topics: Mapping[str, ScalePolicy] = field(default_factory=dict)


def read_history(spark: SparkSession, path: str) -> Recorded:
    """Reads a folder that `load-history` has written, or a table of `COLUMNS` from any other source."""
    loads = _table(spark, path, "loads")
    if loads is None:
        return Recorded(spark.read.parquet(path))
    beats, consumers = _table(spark, path, "heartbeats"), _table(spark, path, "consumers")
    found = _joined(loads, consumers, beats)
    if beats is None:
        return Recorded(found)
    last = beats.orderBy("at", ascending=False).first()
    assert last is not None
    look_ms = int(last["look_ms"])
    timing = Timing(look_ms, look_ms, int(last["window_ms"]), float(last["change"]))
    policy = ScalePolicy.of_json(json.loads(last["policy"]))
    return Recorded(
        found, timing, int(last["interval_ms"]), policy, _of_topics(_table(spark, path, "decisions"))
    )


def _of_topics(decisions: DataFrame | None) -> Mapping[str, ScalePolicy]:
    """The policy of each topic whose last evaluation was under one of its own. Earlier releases did not record it."""
    from pyspark.sql import functions as f

    if decisions is None or "policy" not in decisions.columns:
        return {}
    # What operators do is noted without an evaluation.
    last = decisions.where("rule <> 'manual'").groupBy("topic").agg(f.max_by("policy", "at").alias("policy"))
    policies: dict[str, ScalePolicy | None] = {}
    found = {}
    for row in last.where("policy is not null").collect():
        text = row["policy"]
        if text not in policies:
            policies[text] = _readable(text)
        if (policy := policies[text]) is not None:
            found[row["topic"]] = policy
    return found


def _readable(text: str) -> ScalePolicy | None:
    """The policy; None for what a foreign writer has put there. A live broker leaves a topic alone whose policy
    contradicts itself."""
    try:
        policy = ScalePolicy.of_json(json.loads(text))
        return ScalePolicy(enabled=False) if problems(policy) else policy
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _table(spark: SparkSession, path: str, name: str) -> DataFrame | None:
    from pyspark.errors import AnalysisException

    try:
        # Files of earlier releases lack columns that were added since.
        return spark.read.option("mergeSchema", "true").parquet(f"{path.rstrip('/')}/{name}")
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return None
        raise


def _joined(loads: DataFrame, consumers: DataFrame | None, beats: DataFrame | None) -> DataFrame:
    """Unites the rows of load, of consumers and of the end of the record; tasks tell them apart."""
    from pyspark.sql import functions as f

    names = [*COLUMNS, SECONDS]
    nothing = {
        **dict.fromkeys((*RATE_COLUMNS, SECONDS), 0.0),
        "segment": NO_SEGMENT,
        "range_start": 0,
        "range_end": 0,
    }
    found = loads.withColumn("consumers", f.lit(UNKNOWN)).select(*names)
    if consumers is not None:
        told = consumers.withColumn("consumers", f.col("most"))
        found = found.unionByName(told.withColumns({k: f.lit(v) for k, v in nothing.items()}).select(*names))
    if beats is not None:
        ends = loads.select("topic").distinct().crossJoin(beats.agg(f.max("at").alias("at")))
        ends = ends.withColumns({**{k: f.lit(v) for k, v in nothing.items()}, "consumers": f.lit(UNKNOWN)})
        found = found.unionByName(ends.select(*names))
    return found
