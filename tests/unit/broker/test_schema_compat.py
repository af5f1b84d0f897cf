"""Which schemas may follow which, under each strategy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from anabranch.broker.schema_compat import consumer_objection, is_same, objection
from anabranch.broker.schemas import StoredSchema
from anabranch.wire import pulsar_pb2 as pb


def record(*fields: Any, name: str = "R", type: int = pb.Schema.Avro) -> StoredSchema:
    definition = {"type": "record", "name": name, "fields": list(fields)}
    return StoredSchema(type=type, name="", data=json.dumps(definition).encode())


def field(name: str, type: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type, **more}


A_INT = field("a", "int")
A_LONG = field("a", "long")
A_STRING = field("a", ["null", "string"])
B_OPTIONAL = field("b", ["null", "int"], default=None)
B_REQUIRED = field("b", "int")


def allowed(old: StoredSchema, new: StoredSchema, strategy: str) -> bool:
    return objection([old], new, strategy) is None


def test_a_field_with_a_default_may_come_and_go_under_full() -> None:
    assert allowed(record(A_INT), record(A_INT, B_OPTIONAL), "FULL")
    assert allowed(record(A_INT, B_OPTIONAL), record(A_INT), "FULL")


def test_a_field_without_a_default_may_come_only_forward_and_go_only_backward() -> None:
    old, new = record(A_INT), record(A_INT, B_REQUIRED)
    assert allowed(old, new, "FORWARD")
    assert not allowed(old, new, "BACKWARD")
    assert not allowed(old, new, "FULL")
    assert allowed(new, old, "BACKWARD")
    assert not allowed(new, old, "FORWARD")


def test_a_number_may_widen_backward_only() -> None:
    assert allowed(record(A_INT), record(A_LONG), "BACKWARD")
    assert not allowed(record(A_LONG), record(A_INT), "BACKWARD")
    assert not allowed(record(A_INT), record(A_LONG), "FULL")


def test_a_field_that_changes_its_type_is_named_in_the_refusal() -> None:
    reason = objection([record(field("a", ["null", "int"]))], record(A_STRING), "FULL")
    assert reason is not None
    assert "a: " in reason


def test_the_type_of_a_topic_is_kept_unless_anything_goes() -> None:
    old, new = record(A_INT), record(A_INT, type=pb.Schema.Json)
    assert not allowed(old, new, "FULL")
    assert allowed(old, new, "ALWAYS_COMPATIBLE")
    assert not allowed(old, record(A_INT, B_OPTIONAL), "ALWAYS_INCOMPATIBLE")


def test_transitive_strategies_look_at_every_version() -> None:
    first, second = record(A_INT), record(A_INT, B_OPTIONAL)
    third = record(A_INT, field("b", ["null", "string"], default=None))
    assert objection([third, first], second, "FULL") is None
    assert objection([third, first], second, "FULL_TRANSITIVE") is not None


def test_a_consumer_must_be_able_to_read_the_latest_version() -> None:
    known = [record(A_INT, B_REQUIRED)]
    assert consumer_objection(known, record(A_INT), "FULL") is None
    assert consumer_objection(known, record(A_INT, field("c", "int")), "FULL") is not None
    assert consumer_objection([], record(A_INT), "FULL") is None


def test_renaming_a_record_changes_nothing() -> None:
    assert allowed(record(A_INT, name="Old"), record(A_INT, name="New"), "FULL")


def test_recursive_and_nested_records_are_compared_through() -> None:
    inner: dict[str, Any] = {"type": "record", "name": "I", "fields": [A_INT]}
    tree = field("next", ["null", "R"], default=None)
    items = field("items", {"type": "array", "items": inner})
    shelves = field("shelves", {"type": "map", "values": "I"})
    old = record(tree, items, shelves)
    assert allowed(old, record(tree, items, shelves, B_OPTIONAL), "FULL")
    changed: dict[str, Any] = {"type": "record", "name": "I", "fields": [A_STRING]}
    assert not allowed(
        old, record(tree, field("items", {"type": "array", "items": changed}), shelves), "FULL"
    )


def test_an_enum_may_grow_backward_only_unless_it_has_a_default() -> None:
    def enum(*symbols: str, **more: Any) -> StoredSchema:
        return record(field("e", {"type": "enum", "name": "E", "symbols": list(symbols), **more}))

    assert allowed(enum("A"), enum("A", "B"), "BACKWARD")
    assert not allowed(enum("A"), enum("A", "B"), "FORWARD")
    assert allowed(enum("A", default="A"), enum("A", "B"), "FORWARD")


def test_key_value_schemas_are_judged_part_by_part() -> None:
    def pair(value: StoredSchema) -> StoredSchema:
        data = (0).to_bytes(4, "big") + len(value.data).to_bytes(4, "big") + value.data
        types = {"key.schema.type": "STRING", "value.schema.type": "AVRO"}
        return StoredSchema(type=pb.Schema.KeyValue, name="", data=data, properties=types)

    assert allowed(pair(record(A_INT)), pair(record(A_INT, B_OPTIONAL)), "FULL")
    assert not allowed(pair(record(A_INT)), pair(record(A_STRING)), "FULL")


def test_a_native_protobuf_schema_keeps_its_root_message() -> None:
    def message(name: str) -> StoredSchema:
        data = json.dumps({"rootMessageTypeName": name}).encode()
        return StoredSchema(type=pb.Schema.ProtobufNative, name="", data=data)

    assert allowed(message("a.B"), message("a.B"), "FULL")
    assert not allowed(message("a.B"), message("a.C"), "FULL")


def test_spacing_and_member_order_make_no_new_version() -> None:
    one = StoredSchema(type=pb.Schema.Json, name="", data=b'{"type":"record","name":"R","fields":[]}')
    two = StoredSchema(type=pb.Schema.Json, name="", data=b'{"name": "R", "type": "record", "fields": []}')
    assert is_same(one, two)
    assert not is_same(one, record(A_INT, type=pb.Schema.Json))


@pytest.mark.parametrize("data", [b"", b"not json", b'{"type":"record"}', b'{"type":"nonsense"}', b"7"])
def test_a_definition_that_cannot_be_read_is_refused_not_fatal(data: bytes) -> None:
    broken = StoredSchema(type=pb.Schema.Avro, name="", data=data)
    assert objection([record(A_INT)], broken, "FULL") is not None
