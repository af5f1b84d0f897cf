"""A topic as a table: one query over its history in Parquet and its newest messages in the log.

The broker needs a place for tables (`anabranch standalone --set tablesUrl=/tmp/tables`); then: `python
examples/tables.py [pulsar://host:port]`. It needs `pip install '.[tables]' duckdb`.
"""

import sys
import time
import urllib.request

import duckdb
import pyarrow as pa

from anabranch import blocking

broker = sys.argv[1] if sys.argv[1:] else "pulsar://127.0.0.1:6650"
admin = sys.argv[2] if sys.argv[2:] else "http://127.0.0.1:8080"
name = f"rides-{time.time_ns()}"  # One for each run.
topic = f"topic://public/default/{name}"


def rides(start: int, end: int) -> pa.Table:
    numbers = range(start, end)
    return pa.table(
        {"key": [f"taxi-{n % 40}" for n in numbers], "value": [b"%d" % (5 + n % 20) for n in numbers]}
    )


client = blocking.connect(broker)
producer = client.producer(topic)
# What `anabranch tables enable` does.
path = f"{admin}/admin/v2/scalable/public/default/{name}/table"
urllib.request.urlopen(
    urllib.request.Request(path, b'"raw"', {"Content-Type": "application/json"}, method="POST")
).close()
producer.send_batch(rides(0, 50_000), key="key", value="value")
while not client.table(topic).files:
    time.sleep(0.2)  # A table writer commits once a minute, unless it is told otherwise.
producer.send_batch(rides(50_000, 60_000), key="key", value="value")

rows = client.table(topic)
connection = duckdb.connect()
rows.duckdb(connection, "rides")
count, fares = connection.execute("select count(*), sum(value::varchar::bigint) from rides").fetchone()
print(f"{count} rides, {fares} in fares; {len(rows.tail)} of them were in no file yet")

# Each ride once, also of those that come later: the answer says where it ends.
producer.send_batch(rides(60_000, 60_100), key="key", value="value")
with client.checkpoint_consumer(topic, start=rows.cut) as consumer:
    news = 0
    while news < 100:
        news += consumer.receive_arrow(timeout_s=20).num_rows
print(f"{news} rides since")
client.close()
