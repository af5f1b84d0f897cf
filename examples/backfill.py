"""A backfill, then live: the past as one wide batch, and a stream that goes on from exactly there.

A checkpoint is one place in all segments of a topic. The batch reads up to it, as wide as the cluster is, the stream
from it on; together they have every row once. Start a broker (`anabranch standalone`), then: `python
examples/backfill.py [pulsar://host:port]`. It needs `pip install '.[spark]'` and a Java runtime.
"""

import os
import sys
import tempfile

import pyarrow as pa
from pyspark.sql import SparkSession

from anabranch import blocking

os.environ.setdefault(
    "PYSPARK_PYTHON", sys.executable
)  # Spark's workers are this Python, whatever is on the PATH.
broker = sys.argv[1] if sys.argv[1:] else "pulsar://127.0.0.1:6650"
folder = tempfile.mkdtemp(prefix="backfill-")
topic = f"topic://public/default/{os.path.basename(folder)}"  # One for each run.
options = {"serviceUrl": broker, "topic": topic}


def readings(start: int, end: int) -> pa.Table:
    numbers = range(start, end)
    return pa.table({"key": [f"sensor-{n % 40}" for n in numbers], "value": [b"%d" % n for n in numbers]})


client = blocking.connect(broker)
producer = client.producer(topic)
producer.send_batch(readings(0, 50_000), key="key", value="value")

with client.checkpoint_consumer(topic, start="latest") as consumer:
    here = consumer.checkpoint().decode()

# Life goes on while the past is read.
producer.send_batch(readings(50_000, 60_000), key="key", value="value")

spark = SparkSession.builder.appName("backfill").getOrCreate()
columns = ["cast(key as string) sensor", "cast(cast(value as string) as bigint) number", "position"]
past = spark.read.format("anabranch").options(**options, end=here).load()
past.selectExpr(*columns).write.parquet(f"{folder}/past")

live = spark.readStream.format("anabranch").options(**options, start=here).load().selectExpr(*columns)
query = live.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
# Without `availableNow` it would go on for as long as it is let.
query.trigger(availableNow=True).start(f"{folder}/live").awaitTermination()
client.close()

counts = [spark.read.parquet(f"{folder}/{name}").count() for name in ("past", "live")]
together = spark.read.parquet(f"{folder}/past").union(spark.read.parquet(f"{folder}/live"))
distinct = together.select("number").distinct().count()
print(f"{counts[0]} rows of the past, {counts[1]} since, {distinct} different ones together")
