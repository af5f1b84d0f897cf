"""Sessions of a clickstream: an Arrow table into a topic, a Spark query with `session_window` out of it, to Parquet.

The core of `make demo`. Start a broker (`anabranch standalone`), then: `python examples/clickstream.py
[pulsar://host:port]`. It needs `pip install '.[spark]'` and a Java runtime, and takes half a minute.
"""

import os
import sys
import tempfile

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from anabranch import blocking

os.environ.setdefault(
    "PYSPARK_PYTHON", sys.executable
)  # Spark's workers are this Python, whatever is on the PATH.
broker = sys.argv[1] if sys.argv[1:] else "pulsar://127.0.0.1:6650"
folder = tempfile.mkdtemp(prefix="clicks-")
topic = f"topic://public/default/{os.path.basename(folder)}"  # One for each run.

# 20,000 clicks of 50 visitors, and a closing one that comes long after: it pushes the watermark past all sessions.
clicks = pa.table(
    {
        "key": [f"visitor-{n % 50}" for n in range(20_000)] + ["~closing"],
        "value": [b"/item/%d" % (n % 7) for n in range(20_000)] + [b""],
        "at": [1_800_000_000_000 + n + n // 5_000 * 60_000 for n in range(20_000)] + [1_800_009_999_999],
    }
)
with blocking.connect(broker) as client, client.producer(topic) as producer:
    producer.send_batch(clicks, key="key", value="value", event_time="at")

builder = SparkSession.builder.appName("clickstream")
spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()  # The usual 200 are for clusters.
source = spark.readStream.format("anabranch").options(serviceUrl=broker, topic=topic, start="earliest").load()
sessions = (
    source.withWatermark("event_time", "10 seconds")
    .groupBy(F.session_window("event_time", "30 seconds"), F.col("key").cast("string").alias("visitor"))
    .agg(F.count("*").alias("clicks"))
)
query = sessions.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
query.trigger(availableNow=True).start(f"{folder}/sessions").awaitTermination()

found = spark.read.parquet(f"{folder}/sessions")
total = found.agg(F.count("*").alias("sessions"), F.sum("clicks").alias("clicks")).first()
print(f"{total.sessions} sessions with {total.clicks} clicks in {folder}/sessions")
