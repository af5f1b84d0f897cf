"""`anabranch pipeline backtest`: replays topics under several policies, and reports the cost of each.

Its folder then has: `topics` (a row for each topic and policy, including the decisions), `decisions` (a row each),
`classes` and `policies` (sums), all Parquet; and `report.html`.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from anabranch.autoscale.policy import ScalePolicy
from anabranch.cli.parsing.options import UsageError, pairs
from anabranch.cli.pipelines.backtest_policies import policies, recorded_names
from anabranch.model.buckets import BucketBudget
from anabranch.pipelines.backtest import (
    BacktestPlan,
    columns_of,
    decisions,
    over_fleet,
    over_history,
    summary,
)
from anabranch.pipelines.load_history import Recorded, read_history
from anabranch.pipelines.replay.load_history_schema import trace_of
from anabranch.pipelines.replay.outcomes import Summary, Weights, front, recommend
from anabranch.pipelines.replay.replay import Timing, replay
from anabranch.pipelines.replay.report import Example, Told, report
from anabranch.pipelines.replay.synthetic import Fleet, make
from anabranch.pipelines.replay.trace import STEP_MS, BadTrace, Trace
from anabranch.pipelines.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPICS: Final = 1000
EXAMPLES: Final = 4


def run(arguments: argparse.Namespace) -> int:
    """Runs the command. All invalid options are refused before Spark is started."""
    plan = BacktestPlan(policies(arguments.policy, arguments.policies), _timing(arguments.buckets))
    live = recorded_names(arguments.policy)
    if live and arguments.history is None:
        raise UsageError(f"--policy {live[0]}:recorded is that of the brokers of --history; give that too")
    weights = Weights.of(
        {name: _number(name, text) for name, text in pairs(arguments.cost, "--cost").items()}
    )
    settings = pairs(arguments.conf, "--conf")
    output = str(arguments.output)
    if _is_here(output) and Path(output).exists():
        raise UsageError(f"{output} exists already; give --output a folder that does not, or remove it")
    fleet = _fleet(arguments)
    place = arguments.history
    if place is not None and _is_here(place) and not Path(place).exists():
        raise UsageError(f"there is no load history at {place}")
    began = time.monotonic()
    with session("anabranch backtest", arguments.master, settings) as spark:
        try:
            history = None if arguments.history is None else read_history(spark, arguments.history)
            _Run(spark, _settled(plan, live, history), weights, fleet, history, arguments).run(began)
        except BaseException as error:
            # Incomplete tables would only hinder the next try.
            if _is_here(output):
                shutil.rmtree(output, ignore_errors=True)
            if (why := _told_by_task(error)) is not None:
                raise UsageError(why) from error
            raise
    return 0


def _timing(buckets: int | None) -> Timing:
    if buckets is not None and buckets < 1:
        raise UsageError(f"--buckets {buckets}: a topic has at least 1")
    return Timing(buckets=None if buckets is None else BucketBudget(buckets))


def _settled(plan: BacktestPlan, live: list[str], history: Recorded | None) -> BacktestPlan:
    """The plan with the brokers' settings that the history recorded."""
    if history is None:
        return plan
    known = dict(plan.policies)
    for name in live:
        if history.policy is None:
            raise UsageError(
                f"--policy {name}:recorded: this history does not say what policy its brokers had"
            )
        known[name] = history.policy
    timing = replace(history.timing or plan.timing, buckets=plan.timing.buckets)
    return replace(plan, policies=known, timing=timing, recorded=tuple(live), of_topics=history.of_topics)


def _is_here(place: str) -> bool:
    """Whether it is a path of this machine, and no URL."""
    return "://" not in place


def _told_by_task(error: BaseException) -> str | None:
    """A task's own error about its input, extracted from Spark's long error."""
    name = f"{BadTrace.__module__}.{BadTrace.__qualname__}: "
    lines = [line for line in str(error).splitlines() if line.startswith(name)]
    return lines[0].removeprefix(name) if lines else None


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--cost {name}={text}: expected a number") from None


def _fleet(arguments: argparse.Namespace) -> Fleet | None:
    if arguments.history is None:
        topics = TOPICS if arguments.topics is None else arguments.topics
        return Fleet(topics, arguments.days, arguments.seed, arguments.kind)
    if arguments.topics is not None or arguments.kind is not None:
        raise UsageError("--history brings its own topics; leave out --topics and --kind")
    if arguments.sample is not None and not arguments.sample > 0:
        raise UsageError(f"--sample {arguments.sample:g}: expected seconds, above 0")
    return None


class _Run:
    def __init__(
        self,
        spark: SparkSession,
        plan: BacktestPlan,
        weights: Weights,
        fleet: Fleet | None,
        history: Recorded | None,
        arguments: argparse.Namespace,
    ) -> None:
        self._spark, self._plan, self._weights, self._fleet = spark, plan, weights, fleet
        self._history: str | None = arguments.history
        self._recorded = history
        self._step_ms = STEP_MS
        if arguments.sample is not None:
            self._step_ms = round(arguments.sample * 1000)
        elif history is not None and history.step_ms is not None:
            self._step_ms = history.step_ms
        self._output: str = arguments.output.rstrip("/")
        beside = Path(self._output) if _is_here(self._output) else Path()
        self._report = Path(arguments.report or beside / "report.html")

    def run(self, began: float) -> None:
        from anabranch.cli.pipelines.spark_progress import progress

        with progress(self._spark, "replaying topics"):
            self._replayed().write.parquet(self._table("topics"))
        rows = self._spark.read.parquet(self._table("topics"))
        with progress(self._spark, "summing up"):
            found = summary(rows, self._plan)
            if not found.topics:
                raise UsageError(f"{self._history} holds no rows: there is nothing to replay")
            decisions(rows).write.parquet(self._table("decisions"))
            self._write_sums(found)
            examples = self._examples(rows)
        seconds = time.monotonic() - began
        told = Told(
            "Backtest of automatic splits and merges",
            self._facts(found, seconds),
            self._plan.policies,
            found,
            self._weights,
            examples,
        )
        self._report.write_text(report(told), encoding="utf-8")
        show(found, self._weights, self._plan.policies)
        print(f"\n{told.facts[-1]} Tables in {self._output}, report: {self._report}")

    def _table(self, name: str) -> str:
        return f"{self._output}/{name}"

    def _replayed(self) -> DataFrame:
        if self._fleet is not None:
            return over_fleet(self._spark, self._fleet, self._plan)
        assert self._recorded is not None
        return over_history(self._recorded.rows, self._plan, self._step_ms)

    def _facts(self, found: Summary, seconds: float) -> list[str]:
        topics = sum(found.topics.values())
        names = len(self._plan.policies)
        if self._fleet is None:
            what = f"{topics:,} recorded topics ({self._history})"
        else:
            fleet = self._fleet
            kind = f" of kind {fleet.kind}" if fleet.kind else ""
            span = "1 day" if fleet.days == 1 else f"{fleet.days:g} days"
            what = f"{topics:,} made-up topics{kind}, {span} each, seed {fleet.seed}"
        return [
            f"{what}, replayed under {names} {'policy' if names == 1 else 'policies'}.",
            f"{topics * names:,} replays in {seconds:,.0f} s.",
        ]

    def _write_sums(self, found: Summary) -> None:
        rows: list[dict[str, Any]] = []
        best = {one.topic_class: one.policy for one in self._recommended(found)}
        for topic_class, outcomes in found.by_class.items():
            for name, one in outcomes.items():
                cost = self._weights.cost(one)
                row = {
                    "topic_class": topic_class,
                    "policy": name,
                    "topics": found.topics[topic_class],
                    **asdict(one),
                }
                rows.append({**row, "cost": cost, "is_recommended": best[topic_class] == name})
        self._write("classes", rows)
        on_front = front(found.by_policy)
        self._write(
            "policies",
            [
                {
                    "policy": name,
                    **asdict(one),
                    "cost": self._weights.cost(one),
                    "is_on_front": name in on_front,
                }
                for name, one in found.by_policy.items()
            ],
        )

    def _recommended(self, found: Summary) -> list[Any]:
        return recommend(found.by_class, found.topics, self._weights)

    def _write(self, name: str, rows: list[dict[str, Any]]) -> None:
        import pyarrow as pa

        table = self._spark.createDataFrame(pa.Table.from_pylist(rows))
        table.coalesce(1).write.parquet(self._table(name))

    def _examples(self, rows: DataFrame) -> list[Example]:
        """The topic with the most operations of each class, for the classes with the most operations."""
        from pyspark.sql import functions as f

        moved = rows.groupBy("topic_class", "topic", "number").agg(f.sum(f.size("decisions")).alias("moves"))
        most = moved.groupBy("topic_class").agg(
            f.max_by(f.struct("topic", "number"), "moves").alias("t"), f.max("moves").alias("moves")
        )
        found = []
        for row in most.where("moves > 0").orderBy(f.desc("moves")).limit(EXAMPLES).collect():
            trace = self._trace(row["t"]["topic"], row["t"]["number"])
            policies = self._plan.policies_of(row["t"]["topic"])
            replayed = {name: replay(trace, policy, self._plan.timing) for name, policy in policies.items()}
            found.append(Example(row["t"]["topic"], row["topic_class"], trace, replayed))
        return found

    def _trace(self, topic: str, number: int) -> Trace:
        if self._fleet is not None:
            return make(self._fleet, number).trace
        from pyspark.sql import functions as f

        assert self._recorded is not None
        table = self._recorded.rows.where(f.col("topic") == topic).toArrow()
        return trace_of(columns_of(table), self._step_ms)


def show(found: Summary, weights: Weights, known: Mapping[str, ScalePolicy]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title="Policies", title_justify="left")
    for name in (
        "policy",
        "segment h",
        "overload min",
        "splits",
        "merges",
        "rebuckets",
        "flaps",
        "cost",
        "front",
    ):
        table.add_column(name, justify="left" if name == "policy" else "right")
    by_policy = found.by_policy
    best = front(by_policy)
    for name in known:
        one = by_policy[name]
        operations = (one.splits, one.merges, one.rebuckets, one.flaps)
        figures = (one.segment_hours, one.over_minutes, *operations, weights.cost(one))
        table.add_row(name, *(f"{value:,.0f}" for value in figures), "yes" if name in best else "")
    console.print(table)
    table = Table(title="Which policy for which topics", title_justify="left")
    for name in ("class", "topics", "policy", "saves"):
        table.add_column(name, justify="right" if name in ("topics", "saves") else "left")
    for chosen in recommend(found.by_class, found.topics, weights):
        saved = 1 - chosen.cost / chosen.cost_of_first if chosen.cost_of_first else 0.0
        table.add_row(
            chosen.topic_class, f"{chosen.topics:,}", chosen.policy, f"{saved:.1%}" if saved > 0 else ""
        )
    console.print(table)
