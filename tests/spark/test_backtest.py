"""Backtests on a real Spark session: what tasks find is what the replay finds, made up or recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from anabranch.autoscale.policy import DEFAULT, ScalePolicy
from anabranch.cli.main import main
from anabranch.pipelines.backtest import BacktestPlan, columns_of, judged, over_fleet, over_history, summary
from anabranch.pipelines.replay.load_history_schema import COLUMNS, history_of, trace_of
from anabranch.pipelines.replay.replay import replay
from anabranch.pipelines.replay.synthetic import Fleet, make
from anabranch.pipelines.replay.trace import BadTrace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

PLAN = BacktestPlan({"default": DEFAULT, "small": ScalePolicy(max_segments=3)})
FIGURES = (
    "segment_hours",
    "hot_minutes",
    "over_minutes",
    "splits",
    "merges",
    "flaps",
    "segments_max",
    "reports",
)


def figures(rows: list[Any]) -> dict[tuple[str, str], tuple[object, ...]]:
    return {(row["topic"], row["policy"]): tuple(row[name] for name in FIGURES) for row in rows}


def recorded(spark: SparkSession, fleet: Fleet) -> DataFrame:
    """What brokers would have written of the fleet under the default policy."""
    import pyarrow as pa

    tables = []
    for number in range(fleet.topics):
        made = make(fleet, number)
        columns = history_of(made.trace, replay(made.trace, DEFAULT).lives)
        columns["at"] = columns["at"].astype("datetime64[ms]")
        names = pa.array([made.name] * len(columns["at"]))
        table = pa.table({"topic": names, **{name: columns[name] for name in COLUMNS if name != "topic"}})
        at = table.schema.get_field_index("at")
        tables.append(table.set_column(at, "at", table.column("at").cast(pa.timestamp("us", "UTC"))))
    return spark.createDataFrame(pa.concat_tables(tables))


def test_tasks_find_for_each_topic_and_policy_what_the_replay_finds(spark: SparkSession) -> None:
    fleet = Fleet(12, 0.1, seed=4, kind="bursts")
    rows = over_fleet(spark, fleet, PLAN).collect()
    wanted = []
    for number in range(fleet.topics):
        made = make(fleet, number)
        wanted += judged(PLAN, made.name, number, made.kind, made.trace)
    assert figures(rows) == figures(wanted)
    told = {(row["topic"], row["policy"]): [d["because"] for d in row["decisions"]] for row in rows}
    assert told == {(row["topic"], row["policy"]): [d["because"] for d in row["decisions"]] for row in wanted}


def test_recorded_topics_are_grouped_and_replayed(spark: SparkSession) -> None:
    fleet = Fleet(6, 0.05, seed=4, kind="flash-crowd")
    history = recorded(spark, fleet)
    rows = over_history(history.repartition(3), PLAN, 10_000).collect()
    assert len(rows) == fleet.topics * len(PLAN.policies)
    wanted = []
    for number in range(fleet.topics):
        name = fleet.name(number)
        trace = trace_of(columns_of(history.where(history.topic == name).toArrow()))
        wanted += judged(PLAN, name, 0, "recorded", trace)
    assert figures(rows) == figures(wanted)


def test_a_table_that_is_no_load_history_is_refused(spark: SparkSession) -> None:
    with pytest.raises(BadTrace, match="lacks segment, range_start"):
        over_history(spark.sql("select 't' topic, now() at"), PLAN, 10_000)


def test_sums_are_those_of_the_topics(spark: SparkSession) -> None:
    rows = over_fleet(spark, Fleet(10, 0.05, seed=1), PLAN).cache()
    found = summary(rows, PLAN)
    assert list(found.by_policy) == list(PLAN.policies)
    assert sum(found.topics.values()) == 10
    hours = sum(row["segment_hours"] for row in rows.collect() if row["policy"] == "small")
    assert found.by_policy["small"].segment_hours == pytest.approx(hours)
    rows.unpersist()


def test_the_command_leaves_tables_and_a_report(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, file = tmp_path / "out", tmp_path / "policies.json"
    file.write_text(json.dumps({"now": {}, "eight": {"maxSegments": 8}}))
    words = [
        "--topics",
        "20",
        "--days",
        "0.05",
        "--seed",
        "7",
        "--policies",
        str(file),
        "--output",
        str(output),
    ]
    assert main(["pipeline", "backtest", *words]) == 0
    said = capsys.readouterr().out
    assert "40 replays" in said
    assert str(output / "report.html") in said
    tables = {
        name: spark.read.parquet(str(output / name))
        for name in ("topics", "policies", "classes", "decisions")
    }
    assert tables["topics"].count() == 40
    assert {row["policy"] for row in tables["policies"].collect()} == {"now", "eight"}
    moves = tables["topics"].selectExpr("sum(splits + merges)").collect()[0][0]
    assert tables["decisions"].count() == moves
    assert (
        tables["classes"].where("is_recommended").count()
        == tables["classes"].select("topic_class").distinct().count()
    )
    assert "Which policy for which topics" in (output / "report.html").read_text()


def test_the_command_replays_recorded_history(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(spark, Fleet(3, 0.02, seed=2)).write.parquet(str(tmp_path / "history"))
    page = tmp_path / "page.html"
    words = ["--history", str(tmp_path / "history"), "--policy", "now:", "--report", str(page)]
    assert main(["pipeline", "backtest", *words, "--output", f"file://{tmp_path}/out"]) == 0
    assert "3 replays" in capsys.readouterr().out
    assert page.exists()
    assert (tmp_path / "out" / "topics" / "_SUCCESS").exists()


def test_history_that_makes_no_sense_is_told_in_one_line_and_leaves_nothing_behind(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = recorded(spark, Fleet(2, 0.01, seed=2)).selectExpr("* except (msg_rate_in)", "-1.0d msg_rate_in")
    bad.write.parquet(str(tmp_path / "history"))
    words = ["--history", str(tmp_path / "history"), "--policy", "now:", "--output", str(tmp_path / "out")]
    assert main(["pipeline", "backtest", *words]) == 1
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("anabranch: ")]
    assert len(told) == 1
    assert "topic://synthetic/fleet-2/" in told[0]
    assert "a rate that is negative" in told[0]
    assert not (tmp_path / "out").exists()
