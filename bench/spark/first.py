"""`python -m bench.spark.first URL TOPIC FOLDER`: how long the first query of our source takes in a session that has
run other queries, in seconds; without a topic (""), that of a Python source that has nothing to load. A process of its
own, so that it is the first.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from bench.spark.ready import ReadySource
from bench.spark.session import session


def main(url: str, topic: str, folder: str) -> None:
    spark = session([], Path(folder))
    spark.range(1_000_000).selectExpr("sum(id)").collect()
    if topic:
        reader = spark.read.format("anabranch").options(serviceUrl=url, topic=topic)
    else:
        spark.dataSource.register(ReadySource)
        reader = spark.read.format("ready").options(rows="10000", size="64", parts="4")
    start = time.perf_counter()
    rows = reader.load().count()
    seconds = time.perf_counter() - start
    assert rows, f"{topic} has no rows"
    print(f"first query: {seconds:.3f}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
