"""The release of Spark before the locked one: source, sink, stream and pipelines run on it as well.

It is in `.spark-4.2`, where `make spark-4.2` has put it; without it these tests are left out, as fetching it takes
minutes. Delta's jars are fetched by Maven, and only if DELTA_PACKAGE names them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from anabranch.spark.columns.rows import COLUMNS
from harness.broker_process import BrokerProcess
from spark.conftest import River

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".spark-4.2"
DELTA = os.environ.get("DELTA_PACKAGE")

pytestmark = [
    pytest.mark.skipif(not (FOLDER / "pyspark").exists(), reason="PySpark 4.2 is fetched by make spark-4.2"),
    pytest.mark.timeout(600),
]


def run(*words: str, more: Mapping[str, str] | None = None) -> str:
    paths = os.pathsep.join([str(FOLDER), str(ROOT / "src"), str(ROOT / "tests")])
    env = {**os.environ, "PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable, **(more or {})}
    env.pop("SPARK_HOME", None)
    done = subprocess.run(
        [sys.executable, *words], env=env, capture_output=True, text=True, timeout=550, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_source_sink_stream_and_pipeline_run_on_the_release_before(
    broker: BrokerProcess, river: River, tmp_path: Path
) -> None:
    told = {
        "serviceUrl": broker.url,
        "folder": str(tmp_path),
        "one": river.topic,
        "other": f"{river.topic}-copy",
    }
    program = Path(__file__).with_name("release_program.py")
    found = json.loads(run(str(program), json.dumps(told)).splitlines()[-1])
    assert found.pop("release").startswith("4.2.")
    sizes = found.pop("batches")
    assert (sum(sizes), max(sizes)) == (40, 15), f"limits of a batch are kept: {sizes}"
    assert found == {
        "columns": list(COLUMNS.names),
        "copied": list(range(40)),
        "status": 0,
        "table": 40,
    }


@pytest.mark.skipif(DELTA is None, reason="DELTA_PACKAGE names no jars: make spark-4.2 does")
def test_a_topic_becomes_a_delta_table_on_the_release_before(
    broker: BrokerProcess, river: River, tmp_path: Path
) -> None:
    river.publish(40)
    words = ["-m", "anabranch.cli", "pipeline", "to-parquet", river.topic, "--output", f"{tmp_path}/table"]
    words += ["--format", "delta", "--packages", str(DELTA), "--master", "local[2]"]
    said = run(*words, more={"ANABRANCH_SERVICE_URL": broker.url})
    assert "/table: 40 rows; " in said
    # Nothing was ever taken out of the table, so all its files count.
    files = [str(path) for path in (tmp_path / "table").glob("date=*/*.parquet")]
    values = ds.dataset(files).to_table(columns=["value"])["value"].to_pylist()
    assert sorted(map(int, values)) == list(range(40))
    assert list((tmp_path / "table" / "_delta_log").glob("*.json"))
