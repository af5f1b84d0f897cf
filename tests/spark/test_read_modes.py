"""From files or through brokers: a query's rows and batches are the same, on a real session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from anabranch import blocking
from spark.conftest import River, assert_in_order, read
from spark.test_stream import Sink, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rows_by(spark: SparkSession, river: River, mode: str) -> list[Any]:
    return read(spark, river, readMode=mode).orderBy("position").collect()


def test_every_row_and_column_is_the_same_by_each_mode(spark: SparkSession, river: River) -> None:
    with blocking.connect(river.broker.url) as client:
        producer = client.producer(river.topic, compression="lz4")
        for number in range(200):
            producer.post(b"%d" % number, key=None if number % 3 else "k", properties={"n": str(number)})
        producer.flush()
        river.split(0)
        river.publish(200)
        direct = rows_by(spark, river, "direct")
        assert len(direct) == 400
        assert direct == rows_by(spark, river, "broker") == rows_by(spark, river, "auto")
        large = client.producer(river.topic, chunking=True, batching=False)
        large.send(bytes(6 << 20), key="k")
    mixed = rows_by(spark, river, "auto")
    assert len(mixed) == 401
    assert mixed == rows_by(spark, river, "broker")
    with pytest.raises(Exception, match=r"readMode=direct: .* is a piece of a message.*readMode=auto"):
        rows_by(spark, river, "direct")


def test_columns_that_are_not_wanted_are_not_there(spark: SparkSession, river: River) -> None:
    river.publish(20)
    some = read(spark, river, columns="value, key")
    assert some.columns == ["value", "key"]
    assert sorted(int(row.value) for row in some.collect()) == list(range(20))


@pytest.mark.parametrize("mode", ["direct", "broker"])
def test_limits_hold_whoever_counts_the_rows(
    spark: SparkSession, river: River, tmp_path: Path, mode: str
) -> None:
    sink = Sink(tmp_path)
    river.publish(250)
    river.split(0)
    river.publish(250)
    run(spark, river, sink, start="earliest", maxRowsPerTrigger=70, readMode=mode)
    assert_in_order(sink.rows, 500)
    sizes = [len(rows) for _, rows in sorted(sink.batches.items()) if rows]
    assert max(sizes) <= 70
    assert sizes.count(70) >= 6
