"""`anabranch pipeline backtest-balancer`: replays clusters under several settings of the load balancer, and says what
each would have moved and what that would have bought.

Its folder then has: `clusters` (a row for each cluster and policy), `moves` and `splits` (a row each), and `loads` (the
deviation and the highest load, minute by minute), all Parquet.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from anabranch.balance.core.settings import KEYS, BalanceSettings, SplitAlgorithm, problems
from anabranch.cli.parsing.options import UsageError, pairs
from anabranch.pipelines.balancer_backtest import BalancerPlan, balancer_records, exploded, over_clusters
from anabranch.pipelines.clusters.cluster_trace import ClusterTrace
from anabranch.pipelines.clusters.recorded_cluster import recorded_cluster
from anabranch.pipelines.clusters.recorded_decisions import decided_again
from anabranch.pipelines.clusters.replayed_cluster import ClusterTiming
from anabranch.pipelines.clusters.synthetic_clusters import CLUSTER_KINDS, ClusterSpec
from anabranch.pipelines.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIMPLE: Final = "simple"
USUAL_POLICIES: Final = (
    "simple:simple",
    "default:",
    "eager:loadBalancerSheddingConditionHitCountThreshold=0",
)
# The figures that are shown, by their columns.
SHOWN: Final = {
    "moves": ("moves", "{:,}"),
    "splits": ("splits", "{:,}"),
    "paused_topic_seconds": ("topic-s paused", "{:,.0f}"),
    "std_first": ("std at first", "{:.2f}"),
    "std_last": ("at last", "{:.2f}"),
    "std_mean": ("mean", "{:.2f}"),
    "unbalanced_minutes": ("min above 0.25", "{:,.0f}"),
    "worst": ("worst broker", "{:.0%}"),
    "over_minutes": ("broker min over 100 %", "{:,.0f}"),
    "repeats": ("repeats", "{:,}"),
    "returns": ("returns", "{:,}"),
}
_BY_KEY: Final = {key: name for name, key in KEYS.items()}


def balancer_policies(texts: Sequence[str]) -> dict[str, BalanceSettings | None]:
    """Settings by name, as users write them: `NAME:KEY=VALUE,…`, or `NAME:simple` for the placement by hash."""
    found: dict[str, BalanceSettings | None] = {}
    for text in texts or USUAL_POLICIES:
        name, colon, rest = text.partition(":")
        if not name.strip() or not colon or name in found:
            raise UsageError(
                f"--policy {text!r}: expected NAME:KEY=VALUE,… with a name of its own, such as "
                "calm:loadBalancerSheddingConditionHitCountThreshold=5 (NAME: alone is the defaults, NAME:simple the "
                "placement by hash)"
            )
        found[name] = None if rest.strip() == SIMPLE else _settings(name, rest)
    return found


def _settings(policy: str, text: str) -> BalanceSettings:
    settings = BalanceSettings()
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        field = _BY_KEY.get(key)
        if field is None or not equals:
            raise UsageError(f"policy {policy!r}: {part!r} is no KEY=VALUE of the load balancer")
        try:
            known: dict[str, Any] = {field: _parsed(getattr(settings, field), value)}
        except ValueError:
            raise UsageError(f"policy {policy!r}: {key} cannot be {value!r}") from None
        settings = replace(settings, **known)
    if wrong := problems(settings):
        raise UsageError(f"policy {policy!r}: {wrong[0]}")
    return settings


def _parsed(usual: Any, value: str) -> Any:
    match usual:
        case bool():
            if value not in ("true", "false"):
                raise ValueError(value)
            return value == "true"
        case SplitAlgorithm():
            return SplitAlgorithm(value)
        case frozenset():
            return frozenset(value.split("+"))
        case int() | float():
            return type(usual)(value)
        case _:
            raise ValueError(value)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command. All invalid options are refused before Spark is started."""
    timing = ClusterTiming(arguments.move_ms, arguments.pause_ms)
    plan = BalancerPlan(balancer_policies(arguments.policy), timing)
    output = str(arguments.output).rstrip("/")
    is_here = "://" not in output
    if is_here and Path(output).exists():
        raise UsageError(f"{output} exists already; give --output a folder that does not, or remove it")
    specs = [] if arguments.history is not None else _specs(arguments)
    with session("anabranch backtest-balancer", arguments.master, pairs(arguments.conf, "--conf")) as spark:
        clusters: list[ClusterSpec | ClusterTrace] = [*specs]
        if arguments.history is not None:
            clusters.append(_recorded(spark, arguments.history))
        try:
            rows = _replayed(spark, clusters, plan, output)
        except BaseException:
            if is_here:
                shutil.rmtree(output, ignore_errors=True)
            raise
        show_clusters(rows, plan)
        print(f"\n{len(clusters) * len(plan.policies):,} replays. Tables in {output}")
    return 0


def _specs(arguments: argparse.Namespace) -> list[ClusterSpec]:
    kinds = arguments.kind or list(CLUSTER_KINDS)
    numbers = range(arguments.seed, arguments.seed + arguments.clusters)
    if not len(numbers):
        raise UsageError(f"--clusters {arguments.clusters}: expected one at least")
    return [
        ClusterSpec(kind, arguments.brokers, arguments.bundles, arguments.hours, seed)
        for kind in kinds
        for seed in numbers
    ]


def _recorded(spark: SparkSession, place: str) -> ClusterTrace:
    records = balancer_records(spark, place)
    again = [one for one in decided_again(records) if not one.is_first]
    if again:
        same = sum(one.difference is None for one in again)
        print(f"{same:,} of {len(again):,} recorded decisions come out the same again.")
    return recorded_cluster(place, records)


def _replayed(
    spark: SparkSession, clusters: Sequence[ClusterSpec | ClusterTrace], plan: BalancerPlan, output: str
) -> DataFrame:
    from anabranch.cli.pipelines.spark_progress import progress

    with progress(spark, "replaying clusters"):
        over_clusters(spark, clusters, plan).write.parquet(f"{output}/clusters")
    rows = spark.read.parquet(f"{output}/clusters")
    with progress(spark, "writing moves"):
        for table, column in (("moves", "move_list"), ("splits", "split_list"), ("loads", "series")):
            exploded(rows, column).coalesce(1).write.parquet(f"{output}/{table}")
    return rows


def show_clusters(rows: DataFrame, plan: BalancerPlan) -> None:
    """A line for each kind and policy: the mean of its clusters, and of the worst broker the highest."""
    from pyspark.sql import functions as f
    from rich.console import Console
    from rich.table import Table

    sums = [f.max(name) if name == "worst" else f.avg(name) for name in SHOWN]
    found = {
        (row["kind"], row["policy"]): row
        for row in rows.groupBy("kind", "policy")
        .agg(*(one.alias(name) for one, name in zip(sums, SHOWN, strict=True)))
        .collect()
    }
    table = Table(title="What each policy moves, and what that buys", title_justify="left")
    for name in ("kind", "policy"):
        table.add_column(name)
    for title, _ in SHOWN.values():
        table.add_column(title, justify="right")
    order = [*CLUSTER_KINDS, "recorded"]
    for kind in sorted({kind for kind, _ in found}, key=order.index):
        for policy in plan.policies:
            row = found[kind, policy]
            figures = (
                form.format(round(row[name]) if form == "{:,}" else row[name])
                for name, (_, form) in SHOWN.items()
            )
            table.add_row(kind, policy, *figures)
    Console(width=None if Console().is_terminal else 200).print(table)
