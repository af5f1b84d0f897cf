"""Pulsar's own Python client produces, Spark reads: what a shop takes in, minute by minute.

The producer is the `pulsar-client` wheel as any application uses it, on a classic topic; nothing in it knows of
Spark. Start a broker (`anabranch standalone`), then: `python examples/wheel_to_spark.py [pulsar://host:port]`. It
needs `pip install '.[spark]' pulsar-client` and a Java runtime.
"""

import json
import os
import sys
import tempfile

import pulsar
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

os.environ.setdefault(
    "PYSPARK_PYTHON", sys.executable
)  # Spark's workers are this Python, whatever is on the PATH.
broker = sys.argv[1] if sys.argv[1:] else "pulsar://127.0.0.1:6650"
folder = tempfile.mkdtemp(prefix="orders-")
topic = f"persistent://public/default/{os.path.basename(folder)}"  # One for each run.
ORDERS = 3_000

client = pulsar.Client(broker)
producer = client.create_producer(topic, batching_type=pulsar.BatchingType.KeyBased, block_if_queue_full=True)
for n in range(ORDERS):
    order = {"order": n, "price": 5 + n % 20}
    at = 1_800_000_000_000 + n * 100  # Ten a second.
    producer.send_async(
        json.dumps(order).encode(), lambda *_: None, partition_key=f"customer-{n % 30}", event_timestamp=at
    )
# One that comes much later: the watermark passes the last minute.
producer.send(b'{"order": -1, "price": 0}', partition_key="~closing", event_timestamp=1_800_009_999_999)
client.close()

builder = SparkSession.builder.appName("orders")
spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()  # The usual 200 are for clusters.
orders = spark.readStream.format("anabranch").options(serviceUrl=broker, topic=topic, start="earliest").load()
per_minute = (
    orders.withColumn("body", F.from_json(F.col("value").cast("string"), "order bigint, price double"))
    .withWatermark("event_time", "10 seconds")
    .groupBy(F.window("event_time", "1 minute"))
    .agg(F.count("*").alias("orders"), F.sum("body.price").alias("revenue"))
    .selectExpr("window.start as minute", "orders", "revenue")
)
query = per_minute.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
query.trigger(availableNow=True).start(f"{folder}/minutes").awaitTermination()

minutes = spark.read.parquet(f"{folder}/minutes").orderBy("minute")
minutes.show()
