"""The driver of the soak, a process of its own: `python -m soak.spark.driver '{"url": …}'`.

Two queries read the topic for as long as it lives. One puts each micro-batch into a folder of its own, as Parquet,
replacing what an earlier attempt of the batch left; the other writes to a topic. A third reads whatever topics match a
pattern, into folders as the first does. A query that fails ends all.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FAILED = 3
# A JVM lives for seconds here, and starts in half the time if it compiles little.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"


@dataclass(frozen=True, slots=True)
class Setup:
    """The arguments of a driver. Its folder has the table, the checkpoints and its log."""

    url: str
    topic: str
    copy: str  # The topic that the sink writes to; "" for none.
    pattern: str  # Of the topics that come and go.
    folder: str
    master: str
    rows_max: int

    def text(self) -> str:
        return json.dumps(asdict(self))

    def path(self, name: str) -> Path:
        return Path(self.folder) / name

    @property
    def queries(self) -> tuple[str, ...]:
        return ("table", "copy", "parts") if self.copy else ("table", "parts")

    def source(self, query: str) -> dict[str, str]:
        # A query that was killed cannot know that it had read all of a deleted topic: it continues anyway.
        parts = {"topicsPattern": self.pattern, "failOnDataLoss": "false"}
        return {
            "serviceUrl": self.url,
            **(parts if query == "parts" else {"topic": self.topic}),
            "start": "earliest",
            "subscription": query,
            "maxRowsPerTrigger": str(self.rows_max),
            "timeoutSeconds": "120",
        }


def _home(setup: Setup) -> Path:
    """Spark's folder under another name: a cluster's workers keep their files in there."""
    import pyspark

    folder = setup.path("home")
    folder.mkdir(exist_ok=True)
    for part in Path(pyspark.__file__).parent.iterdir():
        if part.name != "work" and not (folder / part.name).exists():
            (folder / part.name).symlink_to(part)
    return folder


def session(setup: Setup) -> Any:
    from pyspark.sql import SparkSession

    os.environ["SPARK_HOME"] = str(_home(setup))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    java = f"{QUICK} -Djava.io.tmpdir={setup.path('scratch')}"
    builder: Any = SparkSession.builder
    made = (
        builder.master(setup.master)
        .appName("anabranch soak")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.executor.memory", "512m")
        .config("spark.executorEnv.PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        .config("spark.driver.extraJavaOptions", java)
        .config("spark.executor.extraJavaOptions", java)
        .config("spark.task.maxFailures", "8")
        .config("spark.deploy.maxExecutorRetries", "-1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.warehouse.dir", str(setup.path("warehouse")))
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("WARN")
    return made


def start_table(rows: Any, setup: Setup, name: str) -> Any:
    table = setup.path(name)

    def put(frame: Any, batch: int) -> None:
        # Overwriting makes a second attempt replace the first instead of adding to it.
        frame.write.mode("overwrite").parquet(str(table / f"batch={batch:06d}"))

    return (
        rows.selectExpr("position", "cast(key as string) key", "cast(cast(value as string) as bigint) number")
        .writeStream.foreachBatch(put)
        .option("checkpointLocation", str(setup.path(f"{name}-checkpoint")))
        .trigger(processingTime="0 seconds")
        .start()
    )


def start_copy(rows: Any, setup: Setup, name: str) -> Any:
    return (
        rows.select("key", "value")
        .writeStream.format("anabranch")
        .option("serviceUrl", setup.url)
        .option("topic", setup.copy)
        .option("checkpointLocation", str(setup.path(f"{name}-checkpoint")))
        .trigger(processingTime="0 seconds")
        .start()
    )


def main() -> int:
    setup = Setup(**json.loads(sys.argv[1]))
    spark = session(setup)
    try:
        for name in setup.queries:
            rows = spark.readStream.format("anabranch").options(**setup.source(name)).load()
            (start_copy if name == "copy" else start_table)(rows, setup, name)
        print("driver: queries run", flush=True)
        spark.streams.awaitAnyTermination()
    except Exception as error:  # Whatever the error is, the next driver continues where this one stopped.
        print(f"driver: {error}", flush=True)
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
