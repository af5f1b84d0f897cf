"""Backtests of the load balancer on a real Spark session: what tasks find is what the replay finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from anabranch.balance.core.settings import BalanceSettings
from anabranch.broker.scalable.load.balance_records import BundleSample, BundlesMeasured
from anabranch.broker.scalable.load.history_records import VERSION, HistoryRecord
from anabranch.cli.main import main
from anabranch.pipelines.balancer_backtest import (
    BalancerPlan,
    balancer_records,
    judged_cluster,
    over_clusters,
)
from anabranch.pipelines.clusters.recorded_decisions import decided_again
from anabranch.pipelines.clusters.synthetic_clusters import ClusterSpec, made_cluster
from anabranch.pipelines.replay.trace import BadTrace
from unit.pipelines.clusters.live_cluster import LiveCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

PLAN = BalancerPlan({"simple": None, "default": BalanceSettings()})


def test_tasks_find_for_each_cluster_and_policy_what_the_replay_finds(spark: SparkSession) -> None:
    specs = [ClusterSpec(kind, 4, 32, 0.5, seed=2) for kind in ("skewed", "hot-bundle")]
    rows = over_clusters(spark, specs, PLAN).collect()
    wanted = [judged_cluster(made_cluster(one), policy, PLAN) for one in specs for policy in PLAN.policies]
    assert len(rows) == len(wanted) == 4
    lists = ("move_list", "split_list", "series")
    for row, one in zip(rows, wanted, strict=True):
        found = row.asDict(recursive=True)
        assert {name: value for name, value in found.items() if name not in lists} == {
            name: value for name, value in one.items() if name not in lists
        }
        assert [(m["bundle"], m["destination"], m["because"]) for m in found["move_list"]] == [
            (m["bundle"], m["destination"], m["because"]) for m in one["move_list"]
        ]
        assert [m["at"].timestamp() for m in found["series"]] == [m["at"] / 1e6 for m in one["series"]]


def test_the_command_leaves_tables_and_says_what_each_policy_buys(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    words = [
        "--kind",
        "skewed",
        "--brokers",
        "4",
        "--bundles",
        "32",
        "--hours",
        "0.5",
        "--output",
        str(output),
    ]
    assert main(["pipeline", "backtest-balancer", *words]) == 0
    said = capsys.readouterr().out
    assert "3 replays" in said
    for policy in ("simple", "default", "eager"):
        assert policy in said
    clusters, moves, loads = (
        spark.read.parquet(str(output / name)) for name in ("clusters", "moves", "loads")
    )
    figures = {row["policy"]: row for row in clusters.collect()}
    assert figures["default"]["std_last"] < 0.25 < figures["simple"]["std_last"]
    assert moves.count() == sum(row["moves"] + row["moves_after_loss"] for row in figures.values())
    assert loads.count() == 3 * 30


async def recorded(folder: Path) -> LiveCluster:
    """What live brokers record, in the tables that `load-history` makes of it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    made = made_cluster(ClusterSpec("skewed", 4, 32, 0.5, seed=2))
    live = LiveCluster(replace(made, base=np.round(made.base), topics=np.minimum(made.topics, 3)))
    await live.run()
    # The owners' figures, as their rounds of splitting record them.
    for minute in range(30):
        top = [one for found in live.tops.values() for one in found.bundles]
        told = BundlesMeasured(0, 1, tuple(map(BundleSample.of, top)))
        at_ms = made.start_ms + 60_000 * minute
        live.records.append(HistoryRecord(VERSION, made.brokers[0], at_ms, bundle_loads=told))
    rows: dict[str, list[dict[str, Any]]] = {"broker_loads": [], "bundle_loads": [], "sheds": []}
    for record in live.records:
        base = {"at": record.at * 1_000}
        if record.broker_load is not None:
            told_load = msgspec.to_builtins(record.broker_load)
            rows["broker_loads"].append({**base, **told_load, "leader": record.broker})
        elif record.bundle_loads is not None:
            for one in record.bundle_loads.bundles:
                rows["bundle_loads"].append({**base, "broker": record.broker, **msgspec.to_builtins(one)})
        elif record.shed is not None:
            rows["sheds"].append({**base, **msgspec.to_builtins(record.shed), "leader": record.broker})
    texts = pa.list_(pa.string())
    for table, found in rows.items():
        frame = pa.Table.from_pylist(found)
        kinds = {"at": pa.timestamp("us", "UTC"), "unowned": texts, "failed": texts}
        fields = [pa.field(one.name, kinds.get(one.name, one.type)) for one in frame.schema]
        (folder / table).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(found, pa.schema(fields)), folder / table / "one.parquet")
    return live


async def test_recorded_decisions_come_out_the_same_from_tables_of_load_history(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = await recorded(tmp_path / "history")
    again = list(decided_again(balancer_records(spark, str(tmp_path / "history"))))
    assert live.moved
    assert [one.difference for one in again] == [None] * 29
    assert sum(len(one.verdict.moves) for one in again) == len(live.moved)
    words = ["--history", str(tmp_path / "history"), "--policy", "now:", "--output", str(tmp_path / "out")]
    assert main(["pipeline", "backtest-balancer", *words]) == 0
    said = capsys.readouterr().out
    assert "28 of 28 recorded decisions come out the same again" in said
    assert "recorded" in said
    with pytest.raises(BadTrace, match="no records of a load balancer"):
        balancer_records(spark, str(tmp_path / "nothing"))
