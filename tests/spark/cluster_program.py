"""A driver of three executors, in a process of its own: writes a batch, then runs a stream.

Run by `test_sink_cluster.py`. Rows go through a shuffle, so a task that is tried again gets them in another order.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def failing_once(trace: Path) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The first try of a task fails when it has handed on some of its rows, and leaves a trace."""

    def fails_once(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            if number == 7 and context.partitionId() == 1 and context.attemptNumber() == 0:
                trace.touch()
                raise RuntimeError("the first try fails")
            yield batch

    return fails_once


def through_a_shuffle(spark: Any, told: dict[str, Any]) -> Any:
    """The stream, not started yet."""
    return (
        spark.readStream.format("text")
        .load(told["input"])
        .repartition(3)
        .writeStream.format("anabranch")
        .options(**told["stream"])
        .option("checkpointLocation", told["checkpoint"])
        .trigger(availableNow=True)
    )


def _home(spark: Path, folder: Path) -> Path:
    """Spark's folder under another name: its workers keep their files in there."""
    folder.mkdir()
    for part in spark.iterdir():
        if part.name != "work":
            (folder / part.name).symlink_to(part)
    return folder


def main(told: dict[str, Any]) -> None:
    import pyspark
    from pyspark.sql import SparkSession

    folder = Path(told["folder"])
    os.environ["SPARK_HOME"] = str(_home(Path(pyspark.__file__).parent, folder / "home"))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder: Any = SparkSession.builder
    spark = (
        builder.master("local-cluster[3,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.executor.memory", "512m")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .config("spark.sql.shuffle.partitions", "3")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "200")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.driver.extraJavaOptions", f"-Dderby.system.home={folder}")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.range(told["rows"], numPartitions=6).selectExpr("rpad(cast(id as string), 4000) value")
    rows = rows.repartition(3).mapInArrow(failing_once(folder / "failed"), "value string")
    rows.write.format("anabranch").mode("append").options(**told["batch"]).save()
    through_a_shuffle(spark, told).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
