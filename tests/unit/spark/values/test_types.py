"""Which columns a topic's schema is."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from anabranch.spark.values.errors import NoColumns
from anabranch.spark.values.types import BYTES, arrow_type, value_schema
from anabranch.wire import pulsar_pb2 as pb


def record(*fields: tuple[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields], **more}


def schema(definition: Any, kind: pb.Schema.Type = pb.Schema.Avro) -> pb.Schema:
    return pb.Schema(name="R", type=kind, schema_data=json.dumps(definition).encode())


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ("boolean", pa.bool_()),
        ("int", pa.int32()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("string", pa.string()),
        ("bytes", pa.binary()),
        ({"type": "string"}, pa.string()),
        (["null", "long"], pa.int64()),
        (["long", "null", "int"], pa.int64()),
        (["float", "double"], pa.float64()),
        (["null"], pa.string()),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, pa.string()),
        ({"type": "fixed", "name": "F", "size": 4}, pa.binary()),
        ({"type": "int", "logicalType": "date"}, pa.date32()),
        ({"type": "long", "logicalType": "timestamp-millis"}, pa.timestamp("us", "UTC")),
        ({"type": "long", "logicalType": "timestamp-micros"}, pa.timestamp("us", "UTC")),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, pa.timestamp("us")),
        ({"type": "long", "logicalType": "time-micros"}, pa.int64()),
        ({"type": "string", "logicalType": "uuid"}, pa.string()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}, pa.decimal128(12, 2)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2}, pa.binary()),
        ({"type": "array", "items": "int"}, pa.list_(pa.field("element", pa.int32()))),
        ({"type": "map", "values": ["null", "string"]}, pa.map_(pa.string(), pa.string())),
    ],
)
def test_each_type_of_avro_has_one_of_arrow(definition: Any, expected: Any) -> None:
    assert arrow_type(definition).equals(expected)


def test_a_named_type_is_found_again_within_its_namespace() -> None:
    inner = record(("n", "long"), name="Inner")
    outer = record(("a", inner), ("b", "Inner"), ("c", "org.x.Inner"), name="Outer", namespace="org.x")
    kind = pa.struct([("n", pa.int64())])
    assert arrow_type(outer).equals(pa.struct([("a", kind), ("b", kind), ("c", kind)]))


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        (record(("next", ["null", "R"])), r"the value\.next: the record R contains itself"),
        (
            record(("u", ["string", "long"])),
            r"the value\.u is one of string, long, which Spark has no type for",
        ),
        (record(("u", "Unheard")), r"the value\.u: the type Unheard is not defined"),
        ({"kind": 1}, "is not an Avro definition"),
    ],
)
def test_what_spark_has_no_type_for_says_where_it_is_and_what_to_do(definition: Any, why: str) -> None:
    with pytest.raises(NoColumns, match=why):
        arrow_type(definition)


def test_a_record_is_a_column_for_each_field_and_anything_else_is_one() -> None:
    order = value_schema(schema(record(("id", "long"), ("item", "string"))), 3)
    assert order.version == 3
    assert [field.name for field in order.columns()] == ["id", "item"]
    text = value_schema(pb.Schema(name="String", type=pb.Schema.String, schema_data=b""))
    assert text.columns() == [pa.field("value", pa.string())]
    assert value_schema(None) == BYTES
    assert BYTES.columns() == [pa.field("value", pa.binary())]


def test_a_field_with_the_name_of_a_message_column_needs_a_prefix() -> None:
    order = value_schema(schema(record(("Topic", "long"), ("key", "long"), ("item", "string"))))
    with pytest.raises(NoColumns, match=r"fields Topic, key.*decodePrefix"):
        order.columns(taken=["key", "topic"])
    names = [field.name for field in order.columns("v_", taken=["key", "topic"])]
    assert names == ["v_Topic", "v_key", "v_item"]


@pytest.mark.parametrize("kind", [pb.Schema.Protobuf, pb.Schema.AutoConsume])
def test_a_schema_that_is_not_decoded_says_how_to_read_the_topic(kind: pb.Schema.Type) -> None:
    with pytest.raises(NoColumns, match=r"without decode=true"):
        value_schema(pb.Schema(name="x", type=kind, schema_data=b""))


def test_a_definition_that_is_no_json_is_told() -> None:
    with pytest.raises(NoColumns, match="not an Avro definition"):
        value_schema(pb.Schema(name="x", type=pb.Schema.Avro, schema_data=b"{"))
