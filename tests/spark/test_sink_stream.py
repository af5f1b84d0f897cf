"""`df.writeStream.format("anabranch")` on a real session: exactly once, whatever fails between writing and showing."""

from __future__ import annotations

import contextlib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.broker_process import BrokerProcess, until
from spark.conftest import River, read
from spark.gate import Gate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Query:
    """Numbers from files, each a micro-batch, to a topic; run to the end of what there is, again and again."""

    def __init__(self, spark: SparkSession, river: River, folder: Path, gate: Gate | None = None) -> None:
        self.spark = spark
        self.river = river
        self.folder = folder
        self.gate = gate
        self.written = 0
        (folder / "in").mkdir()

    def put(self, count: int) -> None:
        numbers = range(self.written, self.written + count)
        part = self.folder / f"part-{self.written:05d}"
        part.write_text("\n".join(map(str, numbers)))
        part.rename(self.folder / "in" / part.name)
        self.written += count

    def run(self, **options: object) -> None:
        rows = (
            self.spark.readStream.format("text")
            .option("maxFilesPerTrigger", 1)
            .load(str(self.folder / "in"))
            .selectExpr("value", "concat('key-', cast(value as int) % 17) key")
        )
        given = self.river.options(timeoutSeconds=3, **options)
        if self.gate is not None:
            given["adminUrl"] = self.gate.url
        query = (
            rows.writeStream.format("anabranch")
            .options(**given)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def fails(self, said: str, **options: object) -> None:
        from pyspark.errors import StreamingQueryException

        with pytest.raises(StreamingQueryException, match=said):
            self.run(**options)

    def found(self) -> list[int]:
        return sorted(int(row.value) for row in read(self.spark, self.river).select("value").collect())

    def check(self) -> None:
        """Everything is there once. What a dead attempt has left in the way goes within seconds."""
        wanted = list(range(self.written))
        until(lambda: len(self.found()) >= len(wanted), within_s=30, every_s=0.5)
        assert self.found() == wanted


@pytest.fixture
def gate(broker: BrokerProcess) -> Iterator[Gate]:
    with Gate(broker) as made:
        yield made


@pytest.fixture
def query(spark: SparkSession, river: River, tmp_path: Path, gate: Gate) -> Query:
    return Query(spark, river, tmp_path, gate)


def test_a_stream_goes_on_where_it_was_stopped(query: Query) -> None:
    query.put(100)
    query.put(100)
    query.run()
    query.check()
    query.put(100)
    query.run()
    query.check()


def test_a_batch_that_was_decided_and_not_shown_is_finished_and_not_written_again(
    query: Query, gate: Gate
) -> None:
    query.put(100)
    gate.closed.add("/reveal/")
    query.fails("the gate is closed")
    assert gate.counted("PUT", "/writes/") == 1
    gate.closed.clear()
    query.put(50)
    query.run()
    query.check()
    # Each batch is decided once: the first run's decision is read by the second.
    assert gate.counted("PUT", "/writes/") == 2


@pytest.mark.parametrize("first", ["topic", "persistent"])
def test_a_decided_batch_is_finished_by_a_query_that_spells_the_topic_otherwise(
    query: Query, gate: Gate, first: str
) -> None:
    one = query.river.topic.replace("topic:", f"{first}:")
    other = query.river.topic.replace("topic:", "persistent:" if first == "topic" else "topic:")
    query.put(100)
    gate.closed.add("/reveal/")
    query.fails("the gate is closed", topic=one)
    gate.closed.clear()
    query.run(topic=other)
    query.check()


def test_a_batch_that_was_written_and_not_decided_is_written_again(query: Query, gate: Gate) -> None:
    query.put(100)
    gate.closed.add("/writes/")
    query.fails("the gate is closed")
    assert query.found() == []
    gate.closed.clear()
    query.run()
    query.check()


def test_a_split_and_a_merge_between_the_attempts_of_a_batch(query: Query, gate: Gate, river: River) -> None:
    query.put(100)
    gate.closed.add("/writes/")
    query.fails("the gate is closed")
    river.split(0)
    query.fails("the gate is closed")
    river.merge(1, 2)
    gate.closed.clear()
    query.put(100)
    query.run()
    query.check()


def test_a_split_between_deciding_and_showing(query: Query, gate: Gate, river: River) -> None:
    query.put(100)
    gate.closed.add("/reveal/")
    query.fails("the gate is closed")
    river.split(0)
    gate.closed.clear()
    query.put(100)
    query.run()
    query.check()


def test_complete_mode_is_refused(spark: SparkSession, river: River, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    rows = spark.readStream.format("rate").load().groupBy("value").count()
    rows = rows.selectExpr("cast(count as string) value")
    with pytest.raises(StreamingQueryException, match="Output mode complete is refused"):
        started(rows, river, tmp_path, "complete").awaitTermination(60)


def test_a_stream_with_a_bad_column_fails_before_it_writes(
    spark: SparkSession, river: River, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    rows = spark.readStream.format("rate").load()
    with pytest.raises(StreamingQueryException, match="column 'timestamp' is none that is written"):
        started(rows, river, tmp_path, "append").awaitTermination(60)


def started(rows: DataFrame, river: River, folder: Path, mode: str) -> Any:
    return (
        rows.writeStream.format("anabranch")
        .options(**river.options())
        .option("checkpointLocation", str(folder / "checkpoint"))
        .outputMode(mode)
        .start()
    )


def test_a_broker_that_dies_while_tasks_write_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "broker").mkdir()
    with BrokerProcess(tmp_path / "broker") as broker, Gate(broker) as gate:
        river = River(broker, "dying", segments=2)

        def die() -> None:
            broker.kill()
            broker.start()

        gate.events["/die"] = die
        url = f"{gate.url}/die"

        def slowly(batches: Iterator[Any]) -> Iterator[Any]:
            for number, batch in enumerate(batches):
                yield batch
                if number == 1:
                    with contextlib.suppress(urllib.error.HTTPError):
                        urllib.request.urlopen(url)

        rows = spark.range(0, 40_000, numPartitions=1).selectExpr("rpad(cast(id as string), 1000) value")
        rows = rows.mapInArrow(slowly, "value string")
        rows.write.format("anabranch").mode("append").options(**river.options()).save()
        found = read(spark, river).selectExpr("cast(trim(cast(value as string)) as int) n").collect()
        assert sorted(row.n for row in found) == list(range(40_000))
        river.close()
