"""`df.write.format("anabranch")` on a real session: what is written is what is read, once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from anabranch import AvroSchema, JsonSchema, blocking
from harness.broker_process import BrokerProcess
from spark.conftest import River, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def save(df: DataFrame, river: River, **options: object) -> None:
    df.write.format("anabranch").mode("append").options(**river.options(**options)).save()


def values(spark: SparkSession, river: River) -> list[str]:
    return sorted(row.value.decode() for row in read(spark, river).select("value").collect())


def test_a_batch_is_read_as_it_was_written(spark: SparkSession, river: River) -> None:
    noon = datetime(2026, 5, 1, 12, 0, 0, 123000)
    rows = [
        ("k1", bytearray(b"v1"), {"a": "1", "b": ""}, noon),
        ("k2", bytearray(b""), {}, None),
        (None, bytearray(b"v3"), None, noon),
        ("", None, {"a": None}, None),
    ]
    schema = "key string, value binary, properties map<string,string>, event_time timestamp"
    save(spark.createDataFrame(rows, schema), river)
    found = {(row.key, row.value): (row.properties, row.event_time) for row in read(spark, river).collect()}
    assert found == {
        (b"k1", b"v1"): ({"a": "1", "b": ""}, noon),
        (b"k2", b""): ({}, None),
        (None, b"v3"): ({}, noon),
        (b"", None): ({}, None),
    }


def test_binary_keys_and_text_values_and_compression(spark: SparkSession, river: River) -> None:
    df = spark.range(1000).selectExpr(
        "cast(cast(id % 7 as string) as binary) key", "cast(id as string) value"
    )
    save(df, river, compression="zlib", batchBytes=4096)
    assert values(spark, river) == sorted(map(str, range(1000)))


def test_rows_may_name_their_topics_which_are_made_on_demand(
    spark: SparkSession, broker: BrokerProcess, river: River
) -> None:
    topics = [f"{river.topic}-{n}" for n in range(3)]
    df = spark.range(90).selectExpr(f"concat('{river.topic}-', id % 3) topic", "cast(id as string) value")
    df.write.format("anabranch").mode("append").option("serviceUrl", broker.url).save()
    for number, topic in enumerate(topics):
        found = spark.read.format("anabranch").option("serviceUrl", broker.url).option("topic", topic).load()
        assert sorted(int(row.value) for row in found.collect()) == list(range(number, 90, 3))


def test_a_write_id_is_written_once_however_often_it_is_repeated(spark: SparkSession, river: River) -> None:
    df = spark.range(100).selectExpr("cast(id as string) value").repartition(3)
    for _ in range(2):
        save(df, river, writeId="nightly 2026-05-01")
    assert values(spark, river) == sorted(map(str, range(100)))
    save(df, river, writeId="nightly 2026-05-02")
    assert len(values(spark, river)) == 200


def test_a_job_that_fails_leaves_nothing_behind(spark: SparkSession, river: River) -> None:
    """Some tasks are done and some are not: none of it shows, and readers need not wait for it."""
    df = spark.range(100, numPartitions=2).selectExpr(
        "if(id = 99, raise_error('broken'), cast(id as string)) value"
    )
    with pytest.raises(Exception, match="broken"):
        save(df, river)
    save(spark.range(5).selectExpr("cast(id as string) value"), river)
    assert values(spark, river) == list("01234")


def test_what_cannot_be_written_fails_when_it_is_planned(spark: SparkSession, river: River) -> None:
    from pyspark.errors import AnalysisException

    df = spark.range(3).selectExpr("id value")
    with pytest.raises(AnalysisException, match="column 'value' is bigint: it must be binary or string"):
        save(df, river)
    text = df.selectExpr("cast(value as string) value")
    with pytest.raises(AnalysisException, match=r"'kafka\.acks' is unknown"):
        save(text, river, **{"kafka.acks": "all"})
    with pytest.raises(AnalysisException, match="messages are only added"):
        text.write.format("anabranch").mode("overwrite").options(**river.options()).save()


def test_messages_of_other_producers_wait_and_come_in_the_order_of_the_log(
    spark: SparkSession, river: River
) -> None:
    river.publish(10)
    save(spark.range(10, 20).selectExpr("cast(id as string) value"), river)
    river.publish(10)
    found = [int(row.value) for row in read(spark, river).orderBy("position").collect()]
    assert sorted(found[:10]) == list(range(10))
    assert sorted(found[10:20]) == list(range(10, 20))
    assert sorted(found[20:]) == list(range(10, 20))


@dataclass
class Order:
    id: int
    name: str | None
    price: float
    key: str | None = None


@pytest.mark.parametrize("kind", [JsonSchema, AvroSchema])
def test_columns_are_encoded_by_the_topics_schema(spark: SparkSession, river: River, kind: Any) -> None:
    with blocking.connect(river.broker.url) as client:
        with client.producer(river.topic, schema=kind(Order)) as producer:
            producer.send(Order(0, "zero", 0.5))
        rows = spark.range(1, 4).selectExpr(
            "cast(id as int) v_id",
            "if(id = 2, null, cast(id as string)) v_name",
            "cast(id / 2 as float) v_price",
            "'k' key",
        )
        options = {"encode": "true", "encodePrefix": "v_"}
        save(rows, river, **options)
        with pytest.raises(Exception, match="no column for 'price', which the topic's schema needs"):
            save(rows.drop("v_price"), river, **options)
        consumer = client.stream_consumer(river.topic, "s", start="earliest", schema=kind(Order))
        found = [consumer.receive(timeout_s=20) for _ in range(4)]
    assert sorted((message.value.id, message.value.name, message.value.price) for message in found) == [
        (0, "zero", 0.5),
        (1, "1", 0.5),
        (2, None, 1.0),
        (3, "3", 1.5),
    ]
    assert {message.key for message in found} == {None, "k"}
