"""Columns become payloads of the topic's schema that the source decodes into the same columns."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from anabranch.spark.columns.sink_columns import BadColumn
from anabranch.spark.values.decode import Decoder
from anabranch.spark.values.encode import Encoder, encoder_of
from anabranch.spark.values.types import PRIMITIVES, value_schema
from anabranch.wire import pulsar_pb2 as pb
from unit.spark.values.test_key_values import pairs
from unit.spark.values.test_protobuf import native, orders

NOON = datetime(2026, 5, 1, 12, 0, 0, 123000, tzinfo=UTC)
RECORD = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "sizes", "type": ["null", {"type": "map", "values": "int"}]},
        {"name": "raw", "type": ["null", "bytes"]},
        {
            "name": "price",
            "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}],
        },
        {
            "name": "inner",
            "type": [
                "null",
                {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "double"}]},
            ],
        },
    ],
}
FULL: dict[str, Any] = {
    "id": 1,
    "name": "a",
    "at": NOON,
    "day": date(2026, 5, 1),
    "tags": ["x", "y"],
    "sizes": [("s", 1)],
    "raw": b"\x00\xff",
    "price": Decimal("12.50"),
    "inner": {"x": 0.5},
}
BARE: dict[str, Any] = {**dict.fromkeys(FULL), "id": 2, "at": NOON, "tags": []}


def record(kind: int) -> pb.Schema:
    return pb.Schema(name="Order", schema_data=json.dumps(RECORD).encode(), type=kind)  # type: ignore[arg-type]


def planned(info: pb.Schema, table: pa.Table) -> Encoder:
    made = encoder_of(info, [(field.name, field.name, field.type) for field in table.schema])
    return pickle.loads(pickle.dumps(made))  # type: ignore[no-any-return]


def decoded(info: pb.Schema, table: pa.Table) -> list[Any]:
    array, bad = Decoder(value_schema(info), lambda _: None).decode(table["value"].combine_chunks())
    assert bad == []
    return array.to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [pb.Schema.Json, pb.Schema.Avro])
def test_a_record_is_decoded_as_it_was_encoded(kind: int) -> None:
    info = record(kind)
    table = pa.Table.from_pylist([FULL, BARE], schema=pa.schema(list(value_schema(info).type)))
    assert decoded(info, planned(info, table)(table)) == [FULL, BARE]


@pytest.mark.parametrize("kind", [pb.Schema.Json, pb.Schema.Avro])
def test_fields_that_may_be_missing_are_left_out_and_narrow_columns_widened(kind: int) -> None:
    info = record(kind)
    table = pa.table(
        {"ID": pa.array([1, 2], pa.int16()), "at": pa.array([NOON, NOON], pa.timestamp("us", "UTC"))}
    )
    found = decoded(info, planned(info, table)(table))
    assert [(row["id"], row["at"], row["name"]) for row in found] == [(1, NOON, None), (2, NOON, None)]


def test_other_columns_stay() -> None:
    info = record(pb.Schema.Json)
    table = pa.table({"id": [1], "at": pa.array([NOON], pa.timestamp("us", "UTC"))})
    made = planned(info, table)(table.append_column("key", pa.array(["k"])))
    assert made.column_names == ["key", "value"]


@pytest.mark.parametrize("kind", sorted(PRIMITIVES))
def test_a_schema_of_one_value_is_decoded_as_it_was_encoded(kind: int) -> None:
    info = pb.Schema(name="one", schema_data=b"", type=kind)  # type: ignore[arg-type]
    arrow = PRIMITIVES[kind]
    value: Any = {"string": "text", "bool": True, "float": 0.5, "double": 0.25}.get(str(arrow), -7)
    if pa.types.is_timestamp(arrow):
        value = NOON if arrow.tz else NOON.replace(tzinfo=None)
    elif pa.types.is_date(arrow):
        value = date(1969, 12, 30)
    table = pa.table({"value": pa.array([value, None, value], arrow)})
    assert decoded(info, planned(info, table)(table)) == [value, None, value]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"id": pa.int64()}, "no column for 'at', which the topic's schema needs"),
        ({"id": pa.string(), "at": pa.timestamp("us", "UTC")}, "column 'id' is string: .* has int64 there"),
        ({"id": pa.int64(), "at": pa.timestamp("us")}, "column 'at' is timestamp"),
        ({"id": pa.int64(), "colour": pa.int64()}, "column 'colour' is no field .* there are id, name"),
        ({}, "no column for 'id'"),
    ],
)
def test_what_does_not_fit_is_named_when_it_is_planned(columns: dict[str, Any], said: str) -> None:
    with pytest.raises(BadColumn, match=said):
        encoder_of(record(pb.Schema.Avro), [(name, name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize("kind", [pb.Schema.Json, pb.Schema.Avro])
def test_a_null_where_the_schema_allows_none_names_its_column(kind: int) -> None:
    table = pa.table({"id": pa.array([1, None], pa.int64()), "at": pa.array([NOON, NOON])})
    with pytest.raises(BadColumn, match="column 'id' is null in a row"):
        planned(record(kind), table)(table)


@pytest.mark.parametrize("kind", ["KeyValue", "ProtobufNative"])
def test_schemas_that_are_only_read_are_told(kind: str) -> None:
    schemas = {
        "KeyValue": pairs(("STRING", b""), ("INT32", b"")),
        "ProtobufNative": native(orders(), "shop.Order"),
    }
    with pytest.raises(BadColumn, match=f"a topic with a {kind} schema is only read by it: write bytes"):
        encoder_of(schemas[kind], [("value", "value", pa.string())])
