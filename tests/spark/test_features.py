"""What Spark builds on streams, on ours: windows, sessions, state, joins, watermarks, catching up without loss."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from anabranch import blocking
from harness.broker_process import BrokerProcess, until
from spark.conftest import River, assert_in_order

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_numbers = itertools.count(1)
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


class Creek(River):
    """A topic whose messages have event times."""

    def at(self, *events: tuple[str, float], value: bytes = b"") -> None:
        """Publishes (key, seconds after noon)."""
        with (
            blocking.connect(self.broker.url) as client,
            client.producer(self.topic) as producer,
        ):
            for key, seconds in events:
                producer.post(value, key=key, event_time=NOON + timedelta(seconds=seconds))
            producer.flush()


@pytest.fixture
def creeks(broker: BrokerProcess) -> Iterator[list[Creek]]:
    made = [Creek(broker, f"creek-{next(_numbers)}") for _ in range(2)]
    yield made
    for one in made:
        one.close()


@pytest.fixture
def rocks(spark: SparkSession) -> Iterator[None]:
    name = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(name, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    yield
    spark.conf.unset(name)


def stream(spark: SparkSession, river: River, **options: object) -> DataFrame:
    given = river.options(start="earliest", columns="key,value,publish_time,event_time,position", **options)
    return spark.readStream.format("anabranch").options(**given).load()


def drained(frame: DataFrame, folder: Path, mode: str = "append") -> tuple[list[Any], list[Any]]:
    """The rows that come of all that is there, and the query's progress."""
    rows: list[Any] = []

    def keep(batch: DataFrame, _: int) -> None:
        rows.extend(batch.collect())

    writer = frame.writeStream.foreachBatch(keep).outputMode(mode).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    query.awaitTermination()
    return rows, [one.jsonValue if hasattr(one, "jsonValue") else one for one in query.recentProgress]


def test_sessions_close_when_the_watermark_passes_them(
    spark: SparkSession, creeks: list[Creek], rocks: None, tmp_path: Path
) -> None:
    from pyspark.sql import functions as F

    creek = creeks[0]
    creek.at(("a", 0), ("a", 4), ("b", 1), ("a", 8))
    creek.split(0)
    creek.at(("a", 30), ("b", 60), ("a", 60))
    sessions = (
        stream(spark, creek)
        .withWatermark("event_time", "10 seconds")
        .groupBy(F.session_window("event_time", "5 seconds"), F.col("key").cast("string").alias("key"))
        .count()
    )
    rows, _ = drained(sessions, tmp_path)
    found = sorted((row.key, row.session_window.start.second, row["count"]) for row in rows)
    # Those at 60 s are open.
    assert found == [("a", 0, 3), ("a", 30, 1), ("b", 1, 1)]


def counter() -> Any:
    """How many rows each key has had. Made here, so that it is pickled as it is: workers have no tests to import."""
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import LongType, StructField, StructType

    class Counter(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._seen = handle.getValueState("seen", StructType([StructField("n", LongType())]))

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            seen = (self._seen.get()[0] if self._seen.exists() else 0) + sum(1 for _ in rows)
            self._seen.update((seen,))
            yield Row(key=key[0], seen=seen)

        def close(self) -> None:
            pass

    return Counter()


def test_state_of_ones_own_survives_a_restart_and_a_merge(
    spark: SparkSession, creeks: list[Creek], rocks: None, tmp_path: Path
) -> None:
    creek = creeks[0]
    frame = (
        stream(spark, creek)
        .selectExpr("cast(key as string) key")
        .groupBy("key")
        .transformWithState(
            statefulProcessor=counter(),
            outputStructType="key string, seen bigint",
            outputMode="update",
            timeMode="none",
        )
    )
    creek.publish(50, keys=5)
    first, _ = drained(frame, tmp_path, "update")
    assert {row.key: row.seen for row in first} == {f"key-{n}": 10 for n in range(5)}
    creek.split(0)
    creek.publish(50, keys=5)
    creek.merge(1, 2)
    creek.publish(50, keys=5)
    then, _ = drained(frame, tmp_path, "update")
    assert max(row.seen for row in then if row.key == "key-3") == 30


def test_two_streams_and_a_table_are_joined(spark: SparkSession, creeks: list[Creek], tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    orders, payments = creeks
    orders.at(*((f"o-{n}", n) for n in range(20)))
    payments.at(*((f"o-{n}", n + 3) for n in range(0, 20, 2)), ("o-1", 500))
    orders.split(0)
    orders.at(("late", 700))
    payments.at(("late", 700))

    def side(creek: Creek, name: str) -> DataFrame:
        frame = stream(spark, creek).selectExpr(f"cast(key as string) {name}_key", f"event_time {name}_time")
        return frame.withWatermark(f"{name}_time", "10 seconds")

    prices = spark.createDataFrame([(f"o-{n}", n * 10) for n in range(20)], "key string, price int")
    joined = (
        side(orders, "order")
        .join(
            side(payments, "paid"),
            F.expr(
                "order_key = paid_key and paid_time between order_time and order_time + interval 5 seconds"
            ),
        )
        .join(prices, F.col("order_key") == F.col("key"))
    )
    rows, _ = drained(joined, tmp_path)
    assert sorted((row.order_key, row.price) for row in rows) == sorted(
        (f"o-{n}", n * 10) for n in range(0, 20, 2)
    )


def pass_time(seconds: float) -> None:
    """Publish times are those of the clock."""
    later = time.time() + seconds
    until(lambda: time.time() > later)


def ten_generations(river: River) -> None:
    """One half of the keys is split and merged again and again while the other half stays in one segment.

    Read segment by segment, the quiet half is at its end long before the other: a watermark would be there too.
    """
    river.publish(20)
    river.split(0)
    busy, newest = 1, 2
    for _ in range(5):
        river.publish(40)
        pass_time(0.25)
        river.split(busy)
        river.publish(40)
        river.merge(newest + 1, newest + 2)
        busy = newest = newest + 3
    river.publish(40)


@pytest.mark.parametrize("options", [{}, {"maxRowsPerTrigger": 60}], ids=["unlimited", "limited"])
def test_catching_up_through_ten_generations_drops_no_row_at_the_watermark(
    spark: SparkSession, creeks: list[Creek], tmp_path: Path, options: dict[str, object]
) -> None:
    creek = creeks[0]
    ten_generations(creek)

    def counted(folder: Path, **more: object) -> tuple[int, int]:
        from pyspark.sql import functions as F

        windows = (
            stream(spark, creek, **options, **more)
            .withWatermark("publish_time", "200 milliseconds")
            .groupBy(F.window("publish_time", "50 milliseconds"))
            .count()
        )
        rows, progress = drained(windows, folder, "update")
        last = {row.window.start: row["count"] for row in rows}
        dropped = sum(one["stateOperators"][0]["numRowsDroppedByWatermark"] for one in progress)
        return sum(last.values()), dropped

    kept, dropped = counted(tmp_path / "with", maxTimeSkew="200ms")
    assert (kept, dropped) == (creek.published, 0)
    if not options:
        # It is the option that does it.
        assert counted(tmp_path / "without")[1] > 0


def test_a_split_and_a_merge_while_a_batch_is_read_change_nothing(
    spark: SparkSession, creeks: list[Creek], tmp_path: Path
) -> None:
    creek = creeks[0]
    creek.publish(120)
    rows: list[tuple[str, int]] = []

    def keep(batch: DataFrame, number: int) -> None:
        # The batch is planned and nothing of it is read.
        if number == 1:
            creek.split(0)
            creek.publish(60)
        elif number == 3:
            creek.merge(1, 2)
            creek.publish(60)
        found = batch.orderBy("position").collect()
        rows.extend((row.key.decode(), int(row.value)) for row in found)

    query = (
        stream(spark, creek, maxRowsPerTrigger=50)
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        until(lambda: query.exception() or len(rows) == 240, 120.0)
        assert query.exception() is None
        assert_in_order(rows, 240)
    finally:
        query.stop()
