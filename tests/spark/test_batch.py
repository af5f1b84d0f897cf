"""`spark.read.format("anabranch")` on a real session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark.conftest import River, assert_in_order, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def numbers(rows: list[object]) -> list[tuple[str, int]]:
    return [(row.key.decode(), int(row.value)) for row in rows]  # type: ignore[attr-defined]


def test_the_columns_are_what_spark_makes_of_the_schema(spark: SparkSession, river: River) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    from anabranch.spark.rows import COLUMNS

    assert to_arrow_schema(read(spark, river).schema, timezone="UTC").equals(COLUMNS)


def test_a_topic_is_read_through_splits_and_merges_in_the_order_of_position(
    spark: SparkSession, river: River
) -> None:
    river.publish(500)
    river.split(0)
    river.publish(500)
    river.split(1)
    river.publish(500)
    river.merge(4, 2)
    river.publish(500)
    rows = read(spark, river).orderBy("position").collect()
    assert_in_order(numbers(list(rows)), 2000)
    one = rows[0]
    assert one.topic == river.topic
    assert one.segment == one.position.segment == 0
    assert one.position.ledger == one.message_id.ledger
    assert one.properties == {"n": one.value.decode()}
    assert one.event_time is None
    assert one.publish_time.year >= 2026
    assert {row.segment for row in rows} == {0, 1, 2, 3, 4, 5}


def test_a_batch_ends_where_it_is_told_and_starts_at_a_checkpoint(spark: SparkSession, river: River) -> None:
    from anabranch import blocking

    river.publish(100)
    river.split(0)
    river.publish(100)
    with blocking.connect(river.broker.url) as client:
        consumer = client.checkpoint_consumer(river.topic, start="earliest")
        for _ in range(137):
            consumer.receive(timeout_s=20)
        checkpoint = consumer.checkpoint().decode()
    first = read(spark, river, end=checkpoint).orderBy("position").collect()
    rest = read(spark, river, start=checkpoint).orderBy("position").collect()
    assert (len(first), len(rest)) == (137, 63)
    assert_in_order(numbers([*first, *rest]), 200)


def test_bad_options_fail_at_analysis_and_say_what_is_allowed(spark: SparkSession, river: River) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match=r"ordering='total': give 'key' or 'none'"):
        read(spark, river, ordering="total")
    with pytest.raises(AnalysisException, match=r"startingoffsets.* is unknown"):
        read(spark, river, startingOffsets="latest")
