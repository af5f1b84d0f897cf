"""Backtests on Spark: thousands of topics, each replayed under every policy by one task.

Recorded topics are grouped by name; synthetic topics are generated where they are replayed, so that only their numbers
go to the tasks. The result is a row for each topic and policy, including the decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from anabranch.autoscale.load import Load
from anabranch.autoscale.policy import SPLIT_OVER, ScalePolicy
from anabranch.pipelines.replay.load_history_schema import COLUMNS, SECONDS, missing_columns, trace_of
from anabranch.pipelines.replay.outcomes import SUMMED, PolicyOutcome, Summary, classify, outcome
from anabranch.pipelines.replay.replay import Timing, replay
from anabranch.pipelines.replay.synthetic import Fleet, make
from anabranch.pipelines.replay.trace import BadTrace, Trace

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

TOPICS_PER_TASK: Final = 250
DECISION: Final = (
    "struct<at:timestamp,kind:string,segments:array<bigint>,rule:string,because:string,range_start:int,range_end:int,"
    "active:int>"
)
SCHEMA: Final = (
    "topic string, number bigint, kind string, topic_class string, policy string, segment_hours double, "
    "hot_minutes double, over_minutes double, splits bigint, merges bigint, rebuckets bigint, flaps bigint, "
    f"segments_max bigint, evaluations bigint, reports bigint, decisions array<{DECISION}>"
)


@dataclass(frozen=True)
class BacktestPlan:
    """The settings that every topic is replayed with."""

    policies: Mapping[str, ScalePolicy]
    timing: Timing = field(default_factory=Timing)
    limits: Load = SPLIT_OVER  # The limits of a segment, the same for all policies.
    # The names of policies that stand for the recorded one, and the topics that lived under one of their own.
    recorded: Collection[str] = ()
    of_topics: Mapping[str, ScalePolicy] = field(default_factory=dict)

    def policies_of(self, topic: str) -> Mapping[str, ScalePolicy]:
        """The policies to replay this topic under."""
        own = self.of_topics.get(topic) if self.recorded else None
        if own is None:
            return self.policies
        return {name: own if name in self.recorded else policy for name, policy in self.policies.items()}


def judged(plan: BacktestPlan, topic: str, number: int, kind: str, trace: Trace) -> list[dict[str, Any]]:
    """Replays one topic; returns a row for each policy."""
    found = []
    topic_class = classify(trace, plan.limits)
    for name, policy in plan.policies_of(topic).items():
        replayed = replay(trace, policy, plan.timing)
        one = outcome(trace, replayed, policy.split, plan.limits)
        decisions = [
            {
                "at": decided.at_ms * 1000,
                "kind": decided.kind,
                "segments": list(decided.segments),
                "rule": decided.rule,
                "because": decided.because,
                "range_start": decided.span.start,
                "range_end": decided.span.end,
                "active": decided.active,
            }
            for decided in replayed.decisions
        ]
        row = {"topic": topic, "number": number, "kind": kind, "topic_class": topic_class, "policy": name}
        found.append({**row, **asdict(one), "decisions": decisions})
    return found


# -- in tasks


def replayed_numbers(
    fleet: Fleet, plan: BacktestPlan
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow` over numbers of topics."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows: list[dict[str, Any]] = []
            for number in batch.column(0).to_pylist():
                made = make(fleet, number)
                rows += judged(plan, made.name, number, made.kind, made.trace)
            yield from _batches(rows)

    return run


def replayed_history(plan: BacktestPlan, step_ms: int) -> Callable[[pa.Table], pa.Table]:
    """The function for `applyInArrow` over the rows of one topic."""

    def run(table: pa.Table) -> pa.Table:
        import pyarrow as pa

        topic = table.column("topic")[0].as_py()
        columns = columns_of(table)
        if not (columns["segment"] >= 0).any():
            return arrow_schema().empty_table()  # The rows have consumers, but no load.
        try:
            trace = trace_of(columns, step_ms)
        except BadTrace as error:
            raise BadTrace(f"{topic}: {error}") from None
        return pa.Table.from_batches(_batches(judged(plan, topic, 0, "recorded", trace)), arrow_schema())

    return run


def columns_of(table: pa.Table) -> dict[str, Any]:
    """The columns in the form that `trace_of` needs."""
    import pyarrow as pa

    found: dict[str, Any] = {}
    for name in (*COLUMNS, SECONDS):
        if name == "topic" or name not in table.column_names:
            continue
        column = table.column(name)
        if name == "at":
            column = column.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
        values = column.to_numpy(zero_copy_only=False)
        found[name] = np.nan_to_num(values) if name == "consumers" else values
    return found


def arrow_schema() -> pa.Schema:
    """`SCHEMA` as an Arrow schema."""
    import pyarrow as pa

    time = pa.timestamp("us", "UTC")
    kinds = {
        "string": pa.string(),
        "bigint": pa.int64(),
        "double": pa.float64(),
        "int": pa.int32(),
        "timestamp": time,
    }
    inner = []
    for part in DECISION.removeprefix("struct<").removesuffix(">").split(","):
        name, _, kind = part.partition(":")
        inner.append((name, pa.list_(pa.int64()) if kind.startswith("array") else kinds[kind]))
    fields = [
        (name, kinds[kind]) for name, kind in (part.split() for part in SCHEMA.split(", ") if "<" not in part)
    ]
    return pa.schema([*fields, ("decisions", pa.list_(pa.struct(inner)))])


def _batches(rows: list[dict[str, Any]]) -> list[pa.RecordBatch]:
    import pyarrow as pa

    return pa.Table.from_pylist(rows, schema=arrow_schema()).combine_chunks().to_batches()  # type: ignore[no-any-return]


# -- on the driver


def over_fleet(spark: SparkSession, fleet: Fleet, plan: BacktestPlan) -> DataFrame:
    cores = spark.sparkContext.defaultParallelism
    tasks = max(min(fleet.topics, 2 * cores), -(-fleet.topics // TOPICS_PER_TASK))
    numbers = spark.range(0, fleet.topics, 1, tasks)
    return numbers.mapInArrow(replayed_numbers(fleet, plan), SCHEMA)


def over_history(history: DataFrame, plan: BacktestPlan, step_ms: int) -> DataFrame:
    if absent := missing_columns(history.columns):
        raise BadTrace(
            f"that is no load history: it lacks {', '.join(absent)}; `anabranch pipeline load-history` writes one"
        )
    chosen = history.select(*COLUMNS, *(name for name in (SECONDS,) if name in history.columns))
    return chosen.groupBy("topic").applyInArrow(replayed_history(plan, step_ms), SCHEMA)


def summary(rows: DataFrame, plan: BacktestPlan) -> Summary:
    """Sums up the table of topics."""
    from pyspark.sql import functions as f

    sums = [f.sum(name).alias(name) for name in SUMMED]
    table = rows.groupBy("topic_class", "policy").agg(
        f.count("*").alias("topics"), f.max("segments_max").alias("segments_max"), *sums
    )
    topics: dict[str, int] = {}
    found: dict[str, dict[str, PolicyOutcome]] = {}
    for row in table.collect():
        values = row.asDict()
        topic_class, policy = values.pop("topic_class"), values.pop("policy")
        topics[topic_class] = values.pop("topics")
        found.setdefault(topic_class, {})[policy] = PolicyOutcome(**values)
    ordered = {name: {policy: found[name][policy] for policy in plan.policies} for name in sorted(found)}
    return Summary(topics, ordered)


def decisions(rows: DataFrame) -> DataFrame:
    """One row for each decision."""
    from pyspark.sql import functions as f

    return rows.select("topic", "topic_class", "policy", f.explode("decisions").alias("d")).select(
        "topic", "topic_class", "policy", "d.*"
    )
