"""Spark in processes of its own: a driver that is killed, and a client of Spark Connect."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark.conftest import River
from spark.test_stream import Sink, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITHIN_S = 240.0


def python(source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a program with Spark; what it wrote."""
    environ = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(source), *arguments],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        env=environ,
        check=False,
    )


KILLED_IN_BATCH_0 = """
    import json, os, signal, sys
    from pyspark.sql import SparkSession

    options, checkpoint = json.loads(sys.argv[1]), sys.argv[2]
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()


    def die(frame, batch):
        # The offset log has the batch, the commit log has not.
        assert batch == 0
        os.kill(jvm, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


    frame = spark.readStream.format("anabranch").options(**options).load()
    query = frame.writeStream.foreachBatch(die).option("checkpointLocation", checkpoint).start()
    query.awaitTermination()
"""


def test_a_driver_killed_in_its_first_batch_has_not_moved_the_start_at_the_latest(
    spark: SparkSession, river: River, tmp_path: Path
) -> None:
    sink = Sink(tmp_path)
    river.publish(20)
    died = python(KILLED_IN_BATCH_0, json.dumps(river.options(subscription="table")), str(sink.checkpoint))
    assert died.returncode == -signal.SIGKILL, died.stderr[-3000:]
    assert (sink.checkpoint / "offsets" / "0").exists()
    assert not (sink.checkpoint / "commits" / "0").exists()
    river.publish(20)
    river.split(0)
    river.publish(20)
    run(spark, river, sink, subscription="table")
    assert sorted(number for _, number in sink.rows) == list(range(20, 60))


CONNECT = """
    import json, sys
    from pyspark.sql import SparkSession

    options, folder = json.loads(sys.argv[1]), sys.argv[2]
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    batch = spark.read.format("anabranch").options(**options).load()
    numbers = sorted(int(row.value) for row in batch.select("value").collect())
    frame = spark.readStream.format("anabranch").options(**options, start="earliest").load()
    writer = frame.selectExpr("cast(value as string) value").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True)
    writer.start(folder + "/table").awaitTermination()
    streamed = spark.read.parquet(folder + "/table").count()
    print("FOUND", json.dumps([type(spark).__module__, numbers, streamed]))
    spark.stop()
"""


def test_a_client_of_spark_connect_reads_batches_and_streams(river: River, tmp_path: Path) -> None:
    pytest.importorskip("grpc_status", reason="Spark Connect needs pyspark[connect]")
    river.publish(60)
    river.split(0)
    river.publish(60)
    ended = python(CONNECT, json.dumps(river.options()), str(tmp_path))
    line = next((one for one in ended.stdout.splitlines() if one.startswith("FOUND ")), None)
    assert line is not None, ended.stderr[-3000:]
    module, numbers, streamed = json.loads(line.removeprefix("FOUND "))
    assert module == "pyspark.sql.connect.session"
    assert numbers == list(range(120))
    assert streamed == 120
