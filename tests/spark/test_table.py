"""`anabranch.spark.table`: Spark's own scan of files and the tail from the log, as one frame, each row once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import anabranch.spark
from anabranch import BadArgument, TopicMadeAgain, blocking
from anabranch.table_writer.settings import WriterSettings
from anabranch.tables.core.place import parse_place
from harness.broker_process import BrokerProcess
from tables.test_writing import write_all
from tables.topics import TabledTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_numbers = itertools.count(1)
Make = Callable[..., TabledTopic]


@pytest.fixture
def tabled(broker: BrokerProcess, tmp_path: Path) -> Any:
    with blocking.connect(broker.url) as client:
        yield lambda segments=1: TabledTopic(
            broker, client, tmp_path / "table", f"spark-table-{next(_numbers)}", segments
        )


def table(spark: SparkSession, topic: TabledTopic, **options: Any) -> DataFrame:
    return anabranch.spark.table(
        spark, topic.topic, serviceUrl=topic.broker.url, tableUrl=topic.table.url, **options
    )


def values(frame: DataFrame) -> list[bytes]:
    return sorted((bytes(row.value) for row in frame.select("value").collect()), key=int)


def rows(frame: DataFrame) -> list[Any]:
    return sorted((row.asDict(recursive=True) for row in frame.collect()), key=lambda row: int(row["value"]))


def source(spark: SparkSession, topic: TabledTopic) -> DataFrame:
    return spark.read.format("anabranch").options(serviceUrl=topic.broker.url, topic=topic.topic).load()


def test_rows_equal_the_topics_through_splits_merges_and_a_commit(spark: SparkSession, tabled: Make) -> None:
    topic = tabled(2)
    topic.publish(100)
    topic.split(0)
    topic.publish(50)
    topic.commit()
    topic.publish(30)
    topic.merge(2, 3)
    topic.publish(70)
    whole = anabranch.spark.stitched_table(
        spark, topic.topic, serviceUrl=topic.broker.url, tableUrl=topic.table.url
    )
    assert whole.frame.schema.simpleString() == source(spark, topic).schema.simpleString()
    assert rows(whole.frame) == rows(source(spark, topic))
    assert whole.history is not None
    assert whole.tail is not None
    assert (whole.history.count(), whole.tail.count()) == (150, 100)
    # The frame keeps its rows, and a stream goes on from its end.
    topic.publish(5)
    assert whole.frame.count() == 250
    assert values(table(spark, topic)) == topic.numbers


def test_without_a_tail_the_plan_is_sparks_own_scan(spark: SparkSession, tabled: Make) -> None:
    topic = tabled(2)
    topic.publish(60)
    topic.commit()
    whole = anabranch.spark.stitched_table(
        spark, topic.topic, serviceUrl=topic.broker.url, tableUrl=topic.table.url
    )
    assert whole.tail is None
    assert values(whole.frame) == topic.numbers
    # Fields of the structs are the files' own columns: they prune, and conditions on them reach the files.
    some = whole.frame.where("position.segment = 1 and position.entry < 5").select("key")
    plan = some._jdf.queryExecution().executedPlan().toString()
    assert (
        "PushedFilters: [IsNotNull(segment), IsNotNull(entry), EqualTo(segment,1), LessThan(entry,5)]" in plan
    )
    assert "ReadSchema: struct<key:binary,segment:bigint,entry:bigint>" in plan


def test_a_stream_goes_on_where_the_frame_ends(spark: SparkSession, tabled: Make, tmp_path: Path) -> None:
    topic = tabled(1)
    topic.publish(20)
    topic.commit()
    topic.publish(20)
    whole = anabranch.spark.stitched_table(
        spark, topic.topic, serviceUrl=topic.broker.url, tableUrl=topic.table.url
    )
    topic.split(0)
    topic.publish(20)
    query = (
        whole.follow()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "rows"))
    )
    query.awaitTermination()
    assert values(whole.frame.union(spark.read.parquet(str(tmp_path / "rows")))) == topic.numbers


def test_as_of_a_version_a_time_and_a_cut(spark: SparkSession, tabled: Make) -> None:
    topic = tabled(1)
    topic.publish(10)
    topic.commit()
    between = datetime.now(UTC)
    topic.publish(10)
    cut = topic.client.table(topic.topic, table_url=topic.table.url).cut
    topic.split(0)
    topic.publish(10)
    topic.commit()
    topic.publish(10)
    later = topic.client.table(topic.topic, table_url=topic.table.url).cut
    topic.publish(10)
    assert values(table(spark, topic, asOf=1)) == topic.numbers[:10]
    assert values(table(spark, topic, asOf=between)) == topic.numbers[:10]
    assert values(table(spark, topic, asOf=cut)) == topic.numbers[:20]
    assert values(table(spark, topic, asOf=later.decode())) == topic.numbers[:40]
    assert values(table(spark, topic, asOf=2)) == topic.numbers[:30]


@pytest.mark.parametrize(("part", "kept"), [("history", slice(0, 30)), ("tail", slice(30, 45))])
def test_one_part_alone(spark: SparkSession, tabled: Make, part: str, kept: slice) -> None:
    topic = tabled(2)
    topic.publish(30)
    topic.commit()
    topic.publish(15)
    assert values(table(spark, topic, part=part)) == topic.numbers[kept]


def test_ranges_and_columns_hold_for_both_parts(spark: SparkSession, tabled: Make) -> None:
    topic = tabled(2)
    topic.publish(100)
    topic.commit()
    noon = datetime.now(UTC)
    topic.publish(100)
    own = source(spark, topic)
    for options in (
        {"keys": "key-3,key-7"},
        {"keyRange": "0000-3fff,c000-cfff"},
        {"segments": "1"},
        {"startTime": noon.isoformat()},
        {"endTime": noon.isoformat()},
    ):
        expected = spark.read.format("anabranch").options(
            serviceUrl=topic.broker.url, topic=topic.topic, **options
        )
        assert values(table(spark, topic, **options)) == values(expected.load()), options
    some = table(spark, topic, columns="value,position")
    assert some.columns == ["value", "position"]
    assert rows(some) == rows(own.select("value", "position"))


def test_a_topic_made_again_and_a_table_of_another_are_refused(spark: SparkSession, tabled: Make) -> None:
    one = tabled(1)
    one.publish(10)
    one.commit()
    one.delete()
    one.broker.put(f"{one.path}?numInitialSegments=1")
    with pytest.raises(TopicMadeAgain, match="was deleted and made again: the table at"):
        table(spark, one)
    assert values(table(spark, one, part="history")) == one.numbers
    other = tabled(1)
    with pytest.raises(BadArgument, match="and not of"):
        anabranch.spark.table(
            spark, other.topic, serviceUrl=one.broker.url, tableUrl=one.table.url, part="history"
        )


def test_an_empty_table_and_options_that_are_not_for_tables(spark: SparkSession, tabled: Make) -> None:
    topic = tabled(1)
    assert table(spark, topic).count() == 0
    topic.publish(3)
    assert values(table(spark, topic)) == topic.numbers
    for options, says in (
        ({"start": "latest"}, "option start is not for tables: the rows begin with the topic"),
        ({"decode": True}, "option decode is not for tables"),
        ({"keyz": "a"}, "did you mean keys"),
    ):
        with pytest.raises(anabranch.AnabranchError, match=says):
            table(spark, topic, **options)


@dataclass
class Order:
    number: int
    item: str
    price: float


def test_decoded_columns_of_both_parts(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    topic = "topic://public/default/spark-table-decoded"
    settings = WriterSettings(broker.url, parse_place(str(tmp_path)))
    with blocking.connect(broker.url) as client, client.producer(topic, schema=Order) as producer:
        for number in range(10):
            producer.send(Order(number, "tea", number / 2), key=str(number))
        seen = asyncio.run(write_all(settings, topic, mode="decoded"))
        for number in range(10, 16):
            producer.send(Order(number, "rice", number / 2), key=str(number))
    whole = anabranch.spark.stitched_table(spark, topic, serviceUrl=broker.url, tableUrl=seen.url)
    assert whole.history is not None
    assert whole.tail is not None
    found = whole.frame.orderBy("number").selectExpr(
        "number", "item", "price", "value", "undecoded", "string(key) key"
    )
    assert [tuple(row) for row in found.collect()] == [
        (number, "tea" if number < 10 else "rice", number / 2, None, None, str(number))
        for number in range(16)
    ]
    assert whole.frame.columns == whole.history.columns
    assert whole.history.where("number >= 0").count() == 10
