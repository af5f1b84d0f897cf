"""A fraud alarm with state per card: a tiny payment that tries the card, and soon after it a large one.

`transformWithState` keeps, for each card, when it was last tried. A key's rows come in order through splits and
merges of the topic, so a rule about what came before what can be trusted; within a micro-batch Spark shuffles, so
rows are sorted by `position`. State in Python keeps up with some 30,000 rows a second on two cores:
`maxRowsPerTrigger` keeps micro-batches at that.

Start a broker (`anabranch standalone`), then: `python examples/fraud.py [pulsar://host:port]`. It needs `pip install
'.[spark]'` and a Java runtime.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.stateful_processor import TimerValues

from anabranch import blocking

os.environ.setdefault(
    "PYSPARK_PYTHON", sys.executable
)  # Spark's workers are this Python, whatever is on the PATH.
broker = sys.argv[1] if sys.argv[1:] else "pulsar://127.0.0.1:6650"
payments = int(sys.argv[2]) if sys.argv[2:] else 60_000
folder = tempfile.mkdtemp(prefix="fraud-")
topic = f"topic://public/default/{os.path.basename(folder)}"  # One for each run.
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class TriedThenCharged(StatefulProcessor):
    """An alarm for 500 or more within a minute after less than 1."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.tried = handle.getValueState("tried", "at bigint")

    def handleInputRows(self, key: tuple, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        tried = self.tried.get()[0] if self.tried.exists() else None
        before = tried
        for row in sorted(rows, key=lambda row: tuple(row.position.values())):
            if row.amount < 1:
                tried = row.at
            elif row.amount >= 500 and tried is not None and row.at - tried <= 60_000:
                yield Row(card=key[0], at=row.at, amount=row.amount)
        if tried != before:
            self.tried.update((tried,))

    def close(self) -> None:
        pass


# Cards pay 20 every second; each hundredth one is tried with 0.50 and charged 900 at some time.
cards, start = 1_000, 1_800_000_000_000
rows = [(n % cards, 20.0, start + n) for n in range(payments)]
for stolen in range(0, cards, 100):
    first = payments // 2 + stolen
    rows[first] = (stolen, 0.5, start + first)
    rows[first + cards] = (stolen, 900.0, start + first + cards)
table = pa.table(
    {
        "key": [f"card-{card:04d}" for card, _, _ in rows],
        "value": [f"{amount}".encode() for _, amount, _ in rows],
        "at": [at for _, _, at in rows],
    }
)
with blocking.connect(broker) as client, client.producer(topic) as producer:
    producer.send_batch(table, key="key", value="value", event_time="at")

builder = SparkSession.builder.appName("fraud")
spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()  # The usual 200 are for clusters.
spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKS)
options = {"serviceUrl": broker, "topic": topic, "start": "earliest", "maxRowsPerTrigger": "30000"}
alarms = (
    spark.readStream.format("anabranch")
    .options(**options)
    .load()
    .selectExpr(
        "cast(key as string) card",
        "unix_millis(event_time) at",
        "cast(cast(value as string) as double) amount",
        "position",
    )
    .groupBy("card")
    .transformWithState(
        statefulProcessor=TriedThenCharged(),
        outputStructType="card string, at bigint, amount double",
        outputMode="append",
        timeMode="none",
    )
)
began = time.monotonic()
query = alarms.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
query.trigger(availableNow=True).start(f"{folder}/alarms").awaitTermination()
seconds = time.monotonic() - began
spark.conf.unset("spark.sql.streaming.stateStore.providerClass")

found = spark.read.parquet(f"{folder}/alarms").orderBy("card").collect()
print(
    f"{len(found)} alarms in {payments:,} payments, {payments / seconds:,.0f} a second: {[row.card for row in found]}"
)
