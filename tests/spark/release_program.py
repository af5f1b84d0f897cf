"""Source, sink and a pipeline in a process of their own, with whichever PySpark its path has. Prints what came of it.

Run by `test_release_before.py`: once, since a session takes its time.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main(told: dict[str, str]) -> None:
    import pyspark
    from pyspark.sql import SparkSession

    from anabranch.cli.main import main as run

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["ANABRANCH_SERVICE_URL"] = told["serviceUrl"]
    builder: Any = SparkSession.builder
    spark = (
        builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", f"{told['folder']}/warehouse")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    one, other = ({"serviceUrl": told["serviceUrl"], "topic": told[name]} for name in ("one", "other"))
    rows = spark.range(40).selectExpr("cast(id % 7 as string) key", "cast(id as string) value")
    rows.write.format("anabranch").mode("append").options(**one).save()
    stream = (
        spark.readStream.format("anabranch").options(**one, start="earliest", maxRowsPerTrigger="15").load()
    )
    writing = stream.select("key", "value").writeStream.format("anabranch").options(**other)
    writing = writing.option("checkpointLocation", f"{told['folder']}/checkpoint").trigger(availableNow=True)
    query = writing.start()
    query.awaitTermination()
    copied = spark.read.format("anabranch").options(**other).load()
    table = f"{told['folder']}/table"
    status = run(["pipeline", "to-parquet", told["one"], "--output", table])
    found = {
        "release": pyspark.__version__,
        "columns": copied.columns,
        "copied": sorted(int(row.value) for row in copied.select("value").collect()),
        "batches": [one["numInputRows"] for one in query.recentProgress],
        "status": status,
        "table": spark.read.parquet(table).count(),
    }
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
