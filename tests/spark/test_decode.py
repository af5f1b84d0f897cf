"""`decode=true` on a real session: the topic's schema as columns, fixed when the query starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pytest

from anabranch import AvroSchema, AvroType, blocking
from spark.conftest import River, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Line:
    item: str
    count: int = 1


@dataclass
class Order:
    number: int
    price: Annotated[Decimal, AvroType.decimal(12, 2)]
    made: datetime
    day: date
    lines: list[Line] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    note: str | None = None


@dataclass
class Reading:
    sensor: str
    level: float
    parts: list[Line] = field(default_factory=list)


@dataclass
class Clash:
    topic: str


def order(number: int) -> Order:
    made = datetime(2026, 5, 1, 12, number % 60, tzinfo=UTC)
    return Order(
        number, Decimal(number) / 4, made, date(2026, 5, 1), [Line("tea", number)], {"n": str(number)}
    )


class Schools:
    """Publishes values of schemas to a topic."""

    def __init__(self, river: River) -> None:
        self.river = river
        self._client = blocking.connect(river.broker.url)

    def send(self, schema: Any, *values: Any) -> None:
        with self._client.producer(self.river.topic, schema=schema) as producer:
            for number, value in enumerate(values):
                producer.post(value, key=f"key-{number % 5}")
            producer.flush()

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def school(river: River) -> Iterator[Schools]:
    made = Schools(river)
    yield made
    made.close()


def test_avro_fields_are_columns_beside_those_of_the_message(spark: SparkSession, school: Schools) -> None:
    school.send(AvroSchema(Order), *map(order, range(100)))
    found = read(spark, school.river, decode="true")
    assert found.schema.simpleString().startswith(
        "struct<key:binary,number:bigint,price:decimal(12,2),made:timestamp,day:date,"
        "lines:array<struct<item:string,count:bigint>>,labels:map<string,string>,note:string,properties:"
    )
    rows = found.orderBy("number").collect()
    assert [row.number for row in rows] == list(range(100))
    one = rows[7]
    assert (one.key, one.price, one.day) == (b"key-2", Decimal("1.75"), date(2026, 5, 1))
    assert one.made == datetime(2026, 5, 1, 12, 7)
    assert (one.lines[0].item, one.lines[0]["count"], one.labels, one.note) == ("tea", 7, {"n": "7"}, None)
    assert one.position.segment == 0


def test_later_versions_of_the_schema_are_resolved_into_the_one_at_the_start(
    spark: SparkSession, school: Schools
) -> None:
    def version(*fields: tuple[str, Any]) -> AvroSchema[dict[str, Any]]:
        made = [{"name": n, "type": ["null", t], "default": None} for n, t in fields]
        return AvroSchema(definition={"type": "record", "name": "Row", "fields": made})

    school.send(version(("a", "long"), ("b", "string")), {"a": 1, "b": "x"})
    found = read(spark, school.river, decode="true")
    school.send(version(("c", "string"), ("a", "long")), {"a": 2, "c": "y"})
    rows = found.orderBy("position").select("a", "b").collect()
    assert [tuple(row) for row in rows] == [(1, "x"), (2, None)]
    later = read(spark, school.river, decode="true").orderBy("position").select("c", "a").collect()
    assert [tuple(row) for row in later] == [(None, 1), ("y", 2)]


def test_json_is_streamed_as_columns_into_a_table(
    spark: SparkSession, school: Schools, tmp_path: Path
) -> None:
    school.send(Reading, *(Reading(f"s-{n}", n / 2, [Line("x", n)]) for n in range(200)))
    school.river.split(0)
    school.send(Reading, *(Reading(f"s-{n}", n / 2) for n in range(200, 300)))
    options = school.river.options(decode="true", decodePrefix="v_", start="earliest")
    stream = spark.readStream.format("anabranch").options(**options).load()
    query = (
        stream.select("position", "v_sensor", "v_level", "v_parts")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "table"))
    )
    query.awaitTermination()
    table = spark.read.parquet(str(tmp_path / "table"))
    rows = table.orderBy("v_level").collect()
    assert [row.v_level for row in rows] == [n / 2 for n in range(300)]
    assert rows[3].v_sensor == "s-3"
    assert rows[3].v_parts[0].item == "x"


def test_rows_that_do_not_fit_fail_the_query_or_are_nulls_that_keep_their_bytes(
    spark: SparkSession, school: Schools
) -> None:
    from pyspark.errors import PySparkException

    school.send(Reading, Reading("a", 1.0))
    school.river.publish(1)
    school.send(Reading, Reading("b", 2.0))
    with pytest.raises(PySparkException, match=r"does not fit the topic's schema.*decodeErrors=null"):
        read(spark, school.river, decode="true").collect()
    rows = read(spark, school.river, decode="true", decodeErrors="null").orderBy("position").collect()
    assert [(row.sensor, row.level, row.undecoded) for row in rows] == [
        ("a", 1.0, None),
        (None, None, b"0"),
        ("b", 2.0, None),
    ]


def test_a_schema_that_cannot_be_columns_is_told_at_analysis(spark: SparkSession, school: Schools) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match="has no schema"):
        read(spark, school.river, decode="true")
    school.send(Clash, Clash("x"))
    with pytest.raises(AnalysisException, match=r"field topic.*decodePrefix"):
        read(spark, school.river, decode="true")
    assert (
        read(spark, school.river, decode="true", decodePrefix="v_").select("v_topic").collect()[0][0] == "x"
    )


def test_text_is_one_column(spark: SparkSession, school: Schools) -> None:
    school.send(str, "one", "zwölf")
    rows = read(spark, school.river, decode="true").orderBy("position").collect()
    assert [row.value for row in rows] == ["one", "zwölf"]
