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

    from anabranch.spark.columns.rows import COLUMNS

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


def test_filters_of_one_scan_do_not_reach_the_others_where_spark_pushes_filters(
    spark: SparkSession, river: River
) -> None:
    """Spark shares what one scan has pushed with all scans of the DataFrame, so nothing is to be pushed."""
    river.publish(46)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        whole = read(spark, river, columns="key,position")
        some = whole.where("key = cast('key-3' as binary)")
        assert [whole.count(), some.count(), whole.count()] == [46, 2, 46]
        assert whole.join(some.selectExpr("position", "1 found"), "position", "left").count() == 46
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_frame_stays_as_it_was_at_its_first_use_and_a_new_load_is_as_the_topic_is(
    spark: SparkSession, river: River
) -> None:
    """As docs/spark.md says under "What Spark does not let a Python source do"."""
    river.publish(20)
    frame = read(spark, river, columns="value")
    assert frame.count() == 20
    river.publish(5)
    assert frame.count() == 20
    assert read(spark, river, columns="value").count() == 25


def test_times_are_instants_whatever_a_timestamp_is_to_the_session(spark: SparkSession, river: River) -> None:
    river.publish(3)
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        frame = read(spark, river)
        assert dict(frame.dtypes)["publish_time"] == "timestamp"
        assert frame.where("publish_time > timestamp_ltz '2026-01-01 00:00:00'").count() == 3
    finally:
        spark.conf.unset("spark.sql.timestampType")


def test_sql_reads_a_topic_by_a_view_and_a_table_is_refused(spark: SparkSession, river: River) -> None:
    from pyspark.errors import PySparkException

    river.publish(3)
    options = f"OPTIONS (serviceUrl '{river.broker.url}', topic '{river.topic}')"
    with pytest.raises(PySparkException, match=r"CREATE TABLE … USING anabranch is not possible"):
        spark.sql(f"CREATE TABLE of_a_topic USING anabranch {options}")
    spark.sql(f"CREATE TEMPORARY VIEW of_a_topic USING anabranch {options}")
    try:
        assert spark.sql("SELECT count(*) FROM of_a_topic").collect()[0][0] == 3
    finally:
        spark.catalog.dropTempView("of_a_topic")
