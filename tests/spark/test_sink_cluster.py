"""The sink on a cluster of three executors, where what is tried again comes in another order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.broker_process import BrokerProcess, until
from spark.cluster_program import through_a_shuffle
from spark.conftest import River, read
from spark.gate import Gate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
ROWS = 6_000
RUN_MAX_S = 400


class Driver:
    """The program in a session of its own, so that it is killed with all its executors."""

    def __init__(self, told: dict[str, Any]) -> None:
        paths = [str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("cluster_program.py")), json.dumps(told)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self) -> tuple[int, str]:
        try:
            output, _ = self._process.communicate(timeout=RUN_MAX_S)
        except subprocess.TimeoutExpired:
            self.kill()
            output, _ = self._process.communicate()
        return self._process.returncode, output.decode(errors="replace")


@pytest.mark.timeout(RUN_MAX_S + 100)
def test_tasks_tried_again_and_a_driver_killed_between_deciding_and_showing(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    batch, stream = River(broker, "cluster-batch", segments=2), River(broker, "cluster-stream", segments=2)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "numbers").write_text("\n".join(map(str, range(ROWS))))
    with Gate(broker) as gate:
        told = {
            "folder": str(tmp_path),
            "input": str(tmp_path / "in"),
            "checkpoint": str(tmp_path / "checkpoint"),
            "rows": ROWS,
            "batch": batch.options(writeId="cluster"),
            "stream": stream.options(adminUrl=gate.url),
        }
        first = Driver(told)
        gate.events["/reveal/"] = first.kill
        status, output = first.wait()
        assert status == -signal.SIGKILL, output[-4000:]
        assert (tmp_path / "failed").exists()
        # The stream's batch is decided: it runs again, here in another order, writes and decides nothing.
        through_a_shuffle(spark, told).start().awaitTermination()
        assert gate.counted("PUT", "/writes/") == 1
    for river in (batch, stream):
        until(partial(has_all, spark, river), within_s=30, every_s=0.5)
        assert numbers(spark, river) == list(range(ROWS))
        river.close()


def numbers(spark: SparkSession, river: River) -> list[int]:
    rows = read(spark, river).selectExpr("cast(trim(cast(value as string)) as int) n").collect()
    return sorted(row.n for row in rows)


def has_all(spark: SparkSession, river: River) -> bool:
    return len(numbers(spark, river)) >= ROWS
