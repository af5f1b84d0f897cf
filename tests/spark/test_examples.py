"""Every example does what it says: run from top to bottom on a real broker, in one Spark session."""

from __future__ import annotations

import ast
import json
import runpy
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.broker_process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def run(name: str, monkeypatch: pytest.MonkeyPatch, broker: BrokerProcess, *arguments: str) -> dict[str, Any]:
    """As `python examples/name URL` would, but for the session, which is there; its variables."""
    path = EXAMPLES / name
    monkeypatch.setattr(sys, "argv", [str(path), broker.url, *arguments])
    return runpy.run_path(str(path), run_name="__main__")


@pytest.mark.usefixtures("spark", "folder")
def test_sessions_of_a_clickstream(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("clickstream.py", monkeypatch, broker)
    assert "200 sessions with 20000 clicks" in capsys.readouterr().out


def test_the_clickstream_is_short_enough_to_be_read_at_a_glance() -> None:
    tree = ast.parse((EXAMPLES / "clickstream.py").read_text(encoding="utf-8"))
    lines = {node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt)}
    assert len(lines) <= 25


@pytest.mark.usefixtures("spark", "folder")
def test_the_notebook_runs_cell_by_cell(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    notebook = json.loads((EXAMPLES / "clickstream.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    for number, cell in enumerate(cells):
        source = "".join(cell["source"]).replace("pulsar://127.0.0.1:6650", broker.url)
        exec(compile(source, f"cell {number}", "exec"), names)
    assert "200 sessions with 20000 clicks" in capsys.readouterr().out


@pytest.mark.usefixtures("spark", "folder")
def test_a_wheel_producer_feeds_a_spark_job(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run("wheel_to_spark.py", monkeypatch, broker)
    rows = names["minutes"].collect()
    assert [row.orders for row in rows] == [600] * 5
    assert sum(row.revenue for row in rows) == sum(5 + n % 20 for n in range(3_000))


@pytest.mark.usefixtures("folder")
def test_a_card_that_was_tried_and_charged_is_alarmed_about(
    spark: SparkSession, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = run("fraud.py", monkeypatch, broker, "20000")
    assert [row.card for row in names["found"]] == [f"card-{card:04d}" for card in range(0, 1000, 100)]
    assert {row.amount for row in names["found"]} == {900.0}
    assert spark.conf.get("spark.sql.streaming.stateStore.providerClass", "") != names["ROCKS"]


@pytest.mark.usefixtures("spark", "folder")
def test_a_backfill_and_the_stream_behind_it_have_every_row_once(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("backfill.py", monkeypatch, broker)
    assert "50000 rows of the past, 10000 since, 60000 different ones together" in capsys.readouterr().out


def test_one_query_over_a_topics_table_and_its_tail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"tablesUrl": tmp_path / "tables", "tablesCommitSeconds": 0.5}
    with BrokerProcess(tmp_path, settings, brokers=1) as broker:
        run("tables.py", monkeypatch, broker, f"http://127.0.0.1:{broker.http_port}")
    told = capsys.readouterr().out
    assert "60000 rides" in told
    assert "100 rides since" in told


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_every_example_says_how_to_run_it_and_is_run_here(path: Path) -> None:
    told = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert f"python examples/{path.name}" in " ".join(told.split())
    assert f'"{path.name}"' in Path(__file__).read_text(encoding="utf-8")
