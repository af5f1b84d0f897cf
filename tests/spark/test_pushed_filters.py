"""Filters that Spark pushes into a batch read, where its setting is on. All other tests run with it off."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from harness.broker_process import until
from spark.conftest import River, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PUSHING = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(PUSHING, "true")
    yield
    spark.conf.unset(PUSHING)


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in frame.select("value").collect())


@pytest.mark.usefixtures("pushing")
def test_filters_choose_segments_and_rows(spark: SparkSession, river: River) -> None:
    river.publish(46)
    between = datetime.now(UTC) + timedelta(milliseconds=5)
    until(lambda: datetime.now(UTC) > between + timedelta(milliseconds=5))
    river.split(0)
    river.publish(46)
    whole = read(spark, river)
    late = whole.where(f"publish_time > timestamp '{between:%Y-%m-%d %H:%M:%S.%f}'")
    assert numbers(late.where("value is not null")) == list(range(46, 92))
    one = whole.where("key = cast('key-3' as binary) and segment in (1, 2)")
    assert numbers(one) == [49, 72]
    assert one.rdd.getNumPartitions() == 1, (
        "the other child cannot have the key, and the parent is not asked for"
    )
    assert numbers(whole.where(f"topic = '{river.topic}x'")) == []
