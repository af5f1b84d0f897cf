"""`spark.readStream.format("anabranch")` on a real session: every row once, in the order of its key, by batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.broker_process import until
from spark.conftest import River, assert_in_order

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

    def __call__(self, frame: DataFrame, batch: int) -> None:
        rows = frame.select("position", "key", "value").collect()
        self.on_batch(batch)
        found = [(tuple(row.position), row.key.decode(), int(row.value)) for row in rows]
        if batch in self.batches:
            assert sorted(found) == self.batches[batch]
        self.batches[batch] = sorted(found)

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
