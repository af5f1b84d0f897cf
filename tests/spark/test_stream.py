"""`spark.readStream.format("anabranch")` on a real session: every row once, in the order of its key, by batch."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.broker_process import until
from spark.conftest import River, assert_in_order, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WITHIN_S = 60.0


class Sink:
    """Keeps the rows of each batch. A batch that runs again takes the place of its first attempt."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint = folder / "checkpoint"
        self.batches: dict[int, list[tuple[Any, str, int]]] = {}
        self.on_batch: Callable[[int], None] = lambda _: None
        self.attempts: list[int] = []

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.attempts.append(batch)
        rows = frame.select("position", "key", "value").collect()
        found = [(tuple(row.position), row.key.decode(), int(row.value)) for row in rows]
        if batch in self.batches:
            assert sorted(found) == self.batches[batch]
        self.batches[batch] = sorted(found)
        self.on_batch(batch)

    @property
    def rows(self) -> list[tuple[str, int]]:
        """By batch, then by position."""
        return [(key, number) for batch in sorted(self.batches) for _, key, number in self.batches[batch]]


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return Sink(tmp_path)


def start(
    spark: SparkSession, river: River, sink: Sink, trigger: dict[str, Any] | None = None, /, **options: object
) -> StreamingQuery:
    frame = spark.readStream.format("anabranch").options(**river.options(**options)).load()
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(sink.checkpoint))
    return writer.trigger(**(trigger or {"availableNow": True})).start()


def run(spark: SparkSession, river: River, sink: Sink, **options: object) -> StreamingQuery:
    """All that is available now."""
    query = start(spark, river, sink, None, **options)
    query.awaitTermination()
    return query


def test_what_is_available_is_read_and_a_restart_goes_on_through_splits_and_merges(
    spark: SparkSession, river: River, sink: Sink
) -> None:
    river.publish(300)
    river.split(0)
    river.publish(300)
    run(spark, river, sink, start="earliest")
    assert_in_order(sink.rows, 600)
    # While the query is down.
    river.split(1)
    river.publish(300)
    river.merge(4, 2)
    river.publish(300)
    run(spark, river, sink, start="earliest")
    assert_in_order(sink.rows, 1200)
    for rows in sink.batches.values():
        # 0, then 1 and 2, then 3 and 4, then 5: none together with an ancestor.
        segments = {position[0] for position, *_ in rows}
        assert not {0} < segments
        assert not {1, 3} <= segments
        assert not {4, 5} <= segments


def test_rows_per_trigger_are_limited(spark: SparkSession, river: River, sink: Sink) -> None:
    river.publish(250)
    river.split(0)
    river.publish(250)
    query = run(spark, river, sink, start="earliest", maxRowsPerTrigger=100)
    assert_in_order(sink.rows, 500)
    assert max(map(len, sink.batches.values())) == 100
    last = query.lastProgress
    assert last is not None


def test_a_running_query_follows_splits_and_merges_and_moves_its_cursor(
    spark: SparkSession, river: River, sink: Sink
) -> None:
    changes: list[Callable[[], None]] = [lambda: river.split(0), lambda: river.merge(1, 2), lambda: None]
    query = start(spark, river, sink, {"processingTime": "0 seconds"}, start="earliest", subscription="table")
    try:
        for change in changes:
            river.publish(100)
            until(lambda: query.exception() or len(sink.rows) == river.published, WITHIN_S)
            change()
        assert query.exception() is None
        assert_in_order(sink.rows, 300)
        # Also of the last batch, which Spark does not commit.
        stats = f"{river.path}/stats"
        until(lambda: backlog(river.broker.get(stats)) == 0, WITHIN_S)
        progress = query.lastProgress
        assert progress is not None
        assert "entriesBehind" in str(progress["sources"][0]["latestOffset"])
    finally:
        query.stop()


def backlog(stats: Any) -> int:
    return int(stats["subscriptions"]["table"]["msgBacklog"])


def test_a_start_at_the_latest_is_kept_before_any_row_is_read(
    spark: SparkSession, river: River, sink: Sink
) -> None:
    river.publish(50)
    run(spark, river, sink)
    assert sink.rows == []
    river.split(0)
    river.publish(50)
    run(spark, river, sink)
    assert sorted(number for _, number in sink.rows) == list(range(50, 100))


def crash(batch: int) -> Callable[[int], None]:
    """A sink that loses its power once it has the rows of that batch."""

    def on_batch(number: int) -> None:
        if number == batch:
            raise RuntimeError("the power is gone")

    return on_batch


def run_into(spark: SparkSession, river: River, sink: Sink, **options: object) -> str:
    """The error that ends the query."""
    from pyspark.errors import StreamingQueryException

    with pytest.raises(StreamingQueryException) as found:
        run(spark, river, sink, **options)
    return str(found.value)


def test_a_crash_in_the_first_batch_does_not_move_a_start_at_the_latest(
    spark: SparkSession, river: River, sink: Sink
) -> None:
    river.publish(20)
    sink.on_batch = crash(0)
    assert "the power is gone" in run_into(spark, river, sink)
    river.publish(20)
    river.split(0)
    river.publish(20)
    sink.on_batch = lambda _: None
    run(spark, river, sink)
    assert sorted(number for _, number in sink.rows) == list(range(20, 60))


def test_a_batch_that_crashed_has_the_same_rows_again_after_a_split_and_a_merge(
    spark: SparkSession, river: River, sink: Sink
) -> None:
    river.publish(100)
    sink.on_batch = crash(1)
    assert "the power is gone" in run_into(spark, river, sink, start="earliest", maxRowsPerTrigger=30)
    river.split(0)
    river.publish(100)
    river.merge(1, 2)
    river.publish(100)
    sink.on_batch = lambda _: None
    # The sink compares the attempts.
    run(spark, river, sink, start="earliest", maxRowsPerTrigger=30)
    assert sink.attempts.count(1) == 2
    assert_in_order(sink.rows, 300)


def test_ten_generations_are_caught_up_with_one_after_the_other(
    spark: SparkSession, river: River, sink: Sink
) -> None:
    newest = 0
    for _ in range(5):
        river.publish(40)
        river.split(newest)
        river.publish(40)
        river.merge(newest + 1, newest + 2)
        newest += 3
    river.publish(40)
    run(spark, river, sink, start="earliest")
    assert_in_order(sink.rows, 440)


def test_a_broker_that_restarts_is_waited_for(spark: SparkSession, river: River, sink: Sink) -> None:
    query = start(spark, river, sink, {"processingTime": "0 seconds"}, start="earliest")
    try:
        river.publish(50)
        until(lambda: query.exception() or len(sink.rows) == 50, WITHIN_S)
        river.broker.restart()
        river.publish(50)
        until(lambda: query.exception() or len(sink.rows) == 100, WITHIN_S)
        assert query.exception() is None
        assert_in_order(sink.rows, 100)
    finally:
        query.stop()


def test_bytes_per_trigger_are_limited_together_with_rows(
    spark: SparkSession, river: River, sink: Sink
) -> None:
    for _ in range(20):
        river.publish(10)
    run(spark, river, sink, start="earliest", maxRowsPerTrigger=1000, maxBytesPerTrigger=1000)
    assert_in_order(sink.rows, 200)
    assert len(sink.batches) >= 5


def test_without_order_children_do_not_wait_for_their_parents(
    spark: SparkSession, river: River, sink: Sink
) -> None:
    river.publish(100)
    river.split(0)
    river.publish(100)
    run(spark, river, sink, start="earliest", ordering="none")
    (rows,) = (rows for rows in sink.batches.values() if rows)
    assert sorted(number for *_, number in rows) == list(range(200))


def test_a_stream_may_start_at_a_time(spark: SparkSession, river: River, sink: Sink) -> None:
    river.publish(30)
    river.split(0)
    times = read(spark, river).selectExpr("max(publish_time) + interval 1 millisecond as t").collect()
    until(lambda: datetime.now(UTC).replace(tzinfo=None) > times[0].t)
    river.publish(30)
    run(spark, river, sink, start=times[0].t.replace(tzinfo=UTC).isoformat())
    assert sorted(number for _, number in sink.rows) == list(range(30, 60))


def assert_power_is_all_it_lacked(query: StreamingQuery) -> None:
    until(lambda: not query.isActive, WITHIN_S)
    error = query.exception()
    assert error is None or "the power is gone" in str(error), error


@pytest.mark.parametrize("seed", [1, 2])
def test_any_history_between_batches_and_crashes_gives_every_row_once(
    spark: SparkSession, river: River, sink: Sink, seed: int
) -> None:
    chance = random.Random(seed)
    for _ in range(5):
        for _ in range(chance.randrange(4)):
            river.publish(chance.randrange(60))
            river.change(chance)
        sink.on_batch = crash(max(sink.batches, default=-1) + chance.randrange(1, 4))
        limit = {"maxRowsPerTrigger": chance.randrange(20, 90)} if chance.random() < 0.6 else {}
        query = start(spark, river, sink, None, start="earliest", subscription="table", **limit)
        assert_power_is_all_it_lacked(query)
    sink.on_batch = lambda _: None
    river.publish(10)
    run(spark, river, sink, start="earliest", subscription="table")
    assert_in_order(sink.rows, river.published)


@pytest.mark.parametrize(
    ("trigger", "mode", "said"),
    [
        ({"continuous": "1 second"}, "append", "does not support continuous processing"),
        ({"realTime": "5 minutes"}, "update", "not supported in Real-time Mode"),
    ],
)
def test_spark_refuses_triggers_below_a_micro_batch_for_a_python_source(
    spark: SparkSession, river: River, tmp_path: Path, trigger: dict[str, str], mode: str, said: str
) -> None:
    """Spark's own, as docs/spark.md says: nothing is read, and nothing is passed over in silence."""
    from pyspark.errors import PySparkException

    river.publish(10)
    frame = spark.readStream.format("anabranch").options(**river.options(start="earliest")).load()
    writer: Any = frame.select("value").writeStream.format("console").outputMode(mode)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(PySparkException, match=said):
        writer.trigger(**trigger).start().processAllAvailable()


def test_spark_itself_refuses_a_checkpoint_with_leftovers_and_no_first_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Whatever the source is: here one of Spark's own. Without the leftovers, as docs/spark.md advises, it starts."""
    from pyspark.errors import StreamingQueryException

    leftover = tmp_path / "offsets" / ".0.0d2e9d6e.tmp"
    leftover.parent.mkdir()
    leftover.write_text("cut short")

    def start() -> StreamingQuery:
        numbers = spark.readStream.format("rate").load()
        return numbers.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()

    with pytest.raises(StreamingQueryException, match="STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY"):
        start().processAllAvailable()
    leftover.unlink()
    query = start()
    query.processAllAvailable()
    query.stop()
