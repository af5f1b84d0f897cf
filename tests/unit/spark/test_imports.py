"""What Spark's processes load: each starts once per query at least, so every module counts."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SOURCE = "from pyspark_anabranch import DefaultSource"
_ANALYSED = f"{_SOURCE}; DefaultSource({{'serviceUrl': 'pulsar://a:1', 'topic': 'a'}}).schema()"
# Rows of every column, of a part of what was read, of a range.
_ROWS = """
from anabranch.columns import Pool
from anabranch.columns.decode import Entry, decode
from anabranch.model.segments import HashRange
from anabranch.spark.plan.ranges import Ranges
from anabranch.spark.columns.row_filter import wanted
from anabranch.spark.columns.rows import between, for_spark
from anabranch.wire import pulsar_pb2 as pb
metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=5, partition_key="k").SerializeToString()
data = len(metadata).to_bytes(4, "big") + metadata + b"value"
batch = decode(Pool(), [Entry(7, n, data) for n in range(3)], verify=False).batch
rows = wanted(between(batch, (7, 1, 0), None), Ranges(0, 9, None, (HashRange(0, 0xFFFF),)))
made = for_spark(rows, "topic://public/default/t", 3)
assert (made.num_rows, made.column("topic")[1].as_py()) == (2, "topic://public/default/t")
"""


@pytest.mark.parametrize(
    ("work", "unwanted"),
    [
        (
            _ANALYSED,
            ["numba", "pyarrow", "asyncio", "anabranch.client.client", "anabranch.spark.driver.driver"],
        ),
        (
            f"{_SOURCE}; import anabranch.spark.task.read_slice",
            ["anabranch.client.client", "anabranch.spark.driver.driver", "anabranch.spark.task.read_broker"],
        ),
        (_ROWS, ["pandas"]),
    ],
    ids=["analysing a query", "reading files", "making rows"],
)
def test_does_not_load(work: str, unwanted: list[str]) -> None:
    before = "import pyspark.sql.datasource, pyspark.sql.streaming.datasource, sys; before = {*sys.modules}"
    told = f"print(*({{*sys.modules}} - before) & {{*{unwanted!r}}})"
    found = subprocess.run(
        [sys.executable, "-c", "\n".join([before, work, told])], check=True, capture_output=True, text=True
    )
    assert found.stdout.split() == []
