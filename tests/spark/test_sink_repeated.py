"""Batches that are run again, or by somebody else: written once if they are the same, and never dropped in silence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark.conftest import River, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Each = Callable[["DataFrame", int], None]


class Numbers:
    """A folder of files with numbers, each of them a micro-batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.put_so_far = 0
        (folder / "in").mkdir()

    def put(self, count: int) -> None:
        part = self.folder / f"part-{self.put_so_far:05d}"
        part.write_text("\n".join(map(str, range(self.put_so_far, self.put_so_far + count))))
        part.rename(self.folder / "in" / part.name)
        self.put_so_far += count

    def frame(self, files_max: int = 1) -> DataFrame:
        source = self.spark.readStream.format("text").option("maxFilesPerTrigger", files_max)
        return source.load(str(self.folder / "in")).selectExpr("value")

    def run(self, writer: Any, checkpoint: str = "checkpoint") -> None:
        query = (
            writer.option("checkpointLocation", str(self.folder / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def run_each(self, each: Each, checkpoint: str = "checkpoint") -> None:
        self.run(self.frame().writeStream.foreachBatch(each), checkpoint)

    def fails(self, said: str, run: Callable[[], None]) -> None:
        from pyspark.errors import StreamingQueryException

        with pytest.raises(StreamingQueryException, match=said):
            run()


@pytest.fixture
def numbers(spark: SparkSession, tmp_path: Path) -> Numbers:
    return Numbers(spark, tmp_path)


def save(df: DataFrame, river: River, **options: object) -> None:
    df.write.format("anabranch").mode("append").options(**river.options(**options)).save()


def found(spark: SparkSession, river: River) -> list[int]:
    return sorted(int(row.value) for row in read(spark, river).select("value").collect())


def test_for_each_batch_writes_a_batch_once_and_those_of_another_query_too(
    spark: SparkSession, river: River, numbers: Numbers
) -> None:
    other = River(river.broker, f"{river.topic.rpartition('/')[2]}-other")
    numbers.put(10)
    runs: list[int] = []

    def each(df: DataFrame, batch: int) -> None:
        save(df, river)
        runs.append(batch)
        if runs == [0]:
            raise RuntimeError("the driver ends here")
        save(df, other)

    numbers.fails("the driver ends here", lambda: numbers.run_each(each))
    numbers.put(5)
    numbers.run_each(each)
    assert runs == [0, 0, 1]
    assert found(spark, river) == found(spark, other) == list(range(15))
    # A query of its own counts its batches from 0 on, too.
    numbers.run_each(each, "another checkpoint")
    assert found(spark, river) == sorted([*range(15), *range(15)])
    other.close()


def test_two_writes_of_a_batch_to_one_topic_are_refused_unless_they_are_named(
    spark: SparkSession, river: River, numbers: Numbers
) -> None:
    numbers.put(10)

    def twice(df: DataFrame, batch: int) -> None:
        save(df, river)
        save(df, river)

    for _ in range(
        2
    ):  # Run again it finds the first of them decided by another run, and the same rows in both.
        numbers.fails("foreachBatch writes twice to one topic", lambda: numbers.run_each(twice))

    def named(df: DataFrame, batch: int) -> None:
        query = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        save(df, river)
        save(df, river, writeId=f"{query}/{batch}/late")

    numbers.run_each(named)
    assert found(spark, river) == sorted([*range(10), *range(10)])


def test_a_write_id_that_comes_again_with_other_rows_fails(
    spark: SparkSession, river: River, numbers: Numbers
) -> None:
    numbers.put(10)
    numbers.put(10)

    def each(df: DataFrame, batch: int) -> None:
        save(df, river, writeId="always the same")

    numbers.fails("was written before with 10 other rows", lambda: numbers.run_each(each))
    assert found(spark, river) == list(range(10))


def test_a_copied_checkpoint_does_not_lose_what_the_copy_reads(
    spark: SparkSession, river: River, numbers: Numbers
) -> None:
    def run(checkpoint: str, files_max: int, **options: object) -> None:
        writer = numbers.frame(files_max).writeStream.format("anabranch").options(**river.options(**options))
        numbers.run(writer, checkpoint)

    numbers.put(10)
    run("checkpoint", 1)
    shutil.copytree(numbers.folder / "checkpoint", numbers.folder / "copy")
    numbers.put(10)
    run("checkpoint", 1)
    numbers.put(10)
    numbers.fails("with 10 rows, and this run has 20", lambda: run("copy", 2))
    assert found(spark, river) == list(range(20))
    # As users may have it who know that their rows change.
    run("copy", 2, failOnOtherRows="false")
    assert found(spark, river) == list(range(20))
