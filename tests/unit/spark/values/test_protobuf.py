"""Messages of Protobuf become rows by the descriptors that their schema carries."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, message_factory, timestamp_pb2

from anabranch.spark.values.decode import Decoder
from anabranch.spark.values.errors import NoColumns
from anabranch.spark.values.protobuf import descriptor_of
from anabranch.spark.values.types import value_schema
from anabranch.wire import pulsar_pb2 as pb

F = descriptor_pb2.FieldDescriptorProto


def orders() -> descriptor_pb2.FileDescriptorSet:
    """What protoc makes of a file with a message Order; the file it needs comes last, as any order is allowed."""
    file = descriptor_pb2.FileDescriptorProto(
        name="shop/order.proto",
        package="shop",
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto"],
    )
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="PLAIN", number=0)
    kind.value.add(name="GIFT", number=1)
    line = file.message_type.add(name="Line")
    line.field.add(name="item", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    line.field.add(name="count", number=2, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    order.oneof_decl.add(name="_note")
    entry = order.nested_type.add(name="StockEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    entry.field.add(
        name="value", number=2, type=F.TYPE_MESSAGE, type_name=".shop.Line", label=F.LABEL_OPTIONAL
    )
    for number, (name, form, type_name, label) in enumerate(
        [
            ("number", F.TYPE_INT64, "", F.LABEL_OPTIONAL),
            ("large", F.TYPE_UINT64, "", F.LABEL_OPTIONAL),
            ("kind", F.TYPE_ENUM, ".shop.Kind", F.LABEL_OPTIONAL),
            ("made", F.TYPE_MESSAGE, ".google.protobuf.Timestamp", F.LABEL_OPTIONAL),
            ("lines", F.TYPE_MESSAGE, ".shop.Line", F.LABEL_REPEATED),
            ("stock", F.TYPE_MESSAGE, ".shop.Order.StockEntry", F.LABEL_REPEATED),
            ("raw", F.TYPE_BYTES, "", F.LABEL_OPTIONAL),
        ],
        1,
    ):
        order.field.add(name=name, number=number, type=form, type_name=type_name or None, label=label)
    order.field.add(
        name="note", number=8, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL, oneof_index=0, proto3_optional=True
    )
    files = descriptor_pb2.FileDescriptorSet(file=[file])
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    return files


def native(files: descriptor_pb2.FileDescriptorSet, root: str) -> pb.Schema:
    """A schema as Java's client gives it to brokers."""
    told = {
        "fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode(),
        "rootMessageTypeName": root,
        "rootFileDescriptorName": files.file[0].name,
    }
    return pb.Schema(name="Order", type=pb.Schema.ProtobufNative, schema_data=json.dumps(told).encode())


@pytest.fixture
def order() -> Any:
    schema = value_schema(native(orders(), "shop.Order"))
    return message_factory.GetMessageClass(descriptor_of(schema.definition))


def never(version: int) -> pb.Schema | None:
    raise AssertionError("Protobuf needs no other version")


def test_fields_are_columns_of_their_types() -> None:
    line = pa.struct([("item", pa.string()), ("count", pa.int32())])
    schema = value_schema(native(orders(), "shop.Order"))
    assert schema.is_record
    assert schema.columns() == [
        pa.field("number", pa.int64()),
        pa.field("large", pa.decimal128(20, 0)),
        pa.field("kind", pa.string()),
        pa.field("made", pa.timestamp("us", "UTC")),
        pa.field("lines", pa.list_(pa.field("element", line))),
        pa.field("stock", pa.map_(pa.string(), line)),
        pa.field("raw", pa.binary()),
        pa.field("note", pa.string()),
    ]


def test_messages_are_rows_and_what_is_not_set_is_null_or_its_default(order: Any) -> None:
    full = order(number=-5, large=2**64 - 1, kind=1, raw=b"\xff", note="")
    full.made.FromDatetime(datetime(2026, 5, 1, 12, 0, 0, 250, tzinfo=UTC))
    full.lines.add(item="tea", count=2)
    full.stock["rice"].count = 9
    values = [full.SerializeToString(), None, b"", order(kind=7).SerializeToString()]
    decoder = Decoder(value_schema(native(orders(), "shop.Order")), never)
    found, bad = decoder.decode(pa.array(values, pa.binary()))
    assert bad == []
    one, none, empty, odd = found.to_pylist()
    assert one == {
        "number": -5,
        "large": Decimal(2**64 - 1),
        "kind": "GIFT",
        "made": datetime(2026, 5, 1, 12, 0, 0, 250, tzinfo=UTC),
        "lines": [{"item": "tea", "count": 2}],
        "stock": [("rice", {"item": "", "count": 9})],
        "raw": b"\xff",
        "note": "",
    }
    assert none is None
    assert (empty["number"], empty["kind"], empty["made"], empty["note"]) == (0, "PLAIN", None, None)
    assert odd["kind"] == "7"


def test_bytes_that_are_no_such_message_are_told() -> None:
    decoder = Decoder(value_schema(native(orders(), "shop.Order")), never)
    found, bad = decoder.decode(pa.array([b"\xff\xff", b""], pa.binary()))
    assert found.is_valid().to_pylist() == [False, True]
    assert [row for row, _ in bad] == [0]
    assert "no message shop.Order" in bad[0][1]


def test_a_schema_without_usable_descriptors_is_refused() -> None:
    for data in (b"", b"{}", json.dumps({"fileDescriptorSet": "AAAA", "rootMessageTypeName": "x"}).encode()):
        with pytest.raises(NoColumns, match="the topic's schema has no"):
            value_schema(pb.Schema(type=pb.Schema.ProtobufNative, schema_data=data))
    with pytest.raises(NoColumns, match=r"no usable description of shop\.Nothing"):
        value_schema(native(orders(), "shop.Nothing"))


def test_a_message_that_contains_itself_is_refused() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="tree.proto", syntax="proto3")
    tree = file.message_type.add(name="Tree")
    tree.field.add(name="left", number=1, type=F.TYPE_MESSAGE, type_name=".Tree", label=F.LABEL_OPTIONAL)
    with pytest.raises(NoColumns, match="the message Tree contains itself"):
        value_schema(native(descriptor_pb2.FileDescriptorSet(file=[file]), "Tree"))


def test_other_kinds_of_schemas_are_refused_with_those_that_are_decoded() -> None:
    with pytest.raises(
        NoColumns, match=r"a Protobuf schema is not decoded, but JSON, Avro, ProtobufNative, KeyValue"
    ):
        value_schema(pb.Schema(type=pb.Schema.Protobuf, schema_data=b"{}"))
