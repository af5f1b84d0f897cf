"""Which schemas may follow which, under each strategy."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from anabranch.broker.catalog.schema_compat import consumer_objection, defect, is_same, objection
from anabranch.broker.catalog.schemas import StoredSchema
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


# -- what a hostile schema costs


def union_of_records(depth: int, ending: Any) -> list[Any]:
    """Each record has a union of two records, and so on: as many ways through it as 2 to the power of the depth."""
    if depth == 0:
        return [{"type": "record", "name": name, "fields": [field("x", ending)]} for name in ("A0", "B0")]
    inner = union_of_records(depth - 1, ending)
    again = [one["name"] for one in inner]
    return [
        {"type": "record", "name": f"A{depth}", "fields": [field("f", inner)]},
        {"type": "record", "name": f"B{depth}", "fields": [field("f", again)]},
    ]


def chain_of_records(depth: int) -> Any:
    inner: Any = {"type": "record", "name": "W0", "fields": [field("x", "int")]}
    for number in range(1, depth + 1):
        inner = {"type": "record", "name": f"W{number}", "fields": [field("f", inner)]}
    return inner


@pytest.mark.parametrize(("ending", "fits"), [("string", False), ("int", True)])
def test_unions_of_records_within_each_other_are_compared_once(ending: str, fits: bool) -> None:
    old = record(field("f", chain_of_records(100)))
    new = record(field("f", union_of_records(100, ending)))
    assert (objection([old], new, "BACKWARD") is None) is fits


def mutual(count: int, ending: str) -> StoredSchema:
    """Records that all refer to all others."""
    names = [f"R{number}" for number in range(count)]
    inner: Any = "int"
    for name in reversed(names):
        fields = [field(f"to{other}", ["null", other]) for other in names[: names.index(name) + 1]]
        inner = {"type": "record", "name": name, "fields": [*fields, field("next", inner)]}
    return record(field("all", inner), field("x", ending))


def test_records_that_all_refer_to_each_other_are_compared_once() -> None:
    assert allowed(mutual(60, "int"), mutual(60, "int"), "FULL")
    assert not allowed(mutual(60, "int"), mutual(60, "string"), "FULL")


def test_a_success_that_rests_on_a_comparison_which_fails_does_not_count() -> None:
    """`inner` fits only as long as `outer` does, and `outer` does not: the second branch must look again."""

    def outer(name: str, bad: str) -> dict[str, Any]:
        inner = {"type": "record", "name": f"{name}Inner", "fields": [field("back", ["null", name])]}
        return {"type": "record", "name": name, "fields": [field("inner", inner), field("bad", bad)]}

    old = record(field("u", outer("W", "int")))
    holder = {"type": "record", "name": "H", "fields": [field("inner", "AInner"), field("bad", "int")]}
    new = record(field("u", [outer("A", "string"), holder]))
    # W can be read as H only if its inner part can be read as AInner, which refers back to A.
    assert not allowed(old, new, "BACKWARD")


def test_schemas_that_take_too_long_to_compare_are_refused() -> None:
    """Each record of one fits the last record of the other only, so that all are tried."""

    def many(prefix: str, count: int, endings: str) -> StoredSchema:
        names = [f"{prefix}{n}" for n in range(count)]
        branches = [
            {"type": "record", "name": name, "fields": [field("y", endings if name != names[-1] else "int")]}
            for name in names
        ]
        return record(field("u", branches))

    assert allowed(many("W", 50, "int"), many("R", 50, "string"), "BACKWARD")
    reason = objection([many("W", 800, "int")], many("R", 800, "string"), "BACKWARD")
    assert reason is not None
    assert "too complex" in reason


def names_types_at_length(count: int) -> tuple[StoredSchema, StoredSchema]:
    """Each field of the new one is compared with a branch that takes long to be told, before another one fits."""
    slow = record(field("u", [{"type": "array", "items": ["int"] * 80_000}, "string"]), name="Slow")
    small = [record(field("u", "string"), name=f"W{n}") for n in range(count)]
    new = [field("f0", json.loads(slow.data)), *(field(f"f{n}", "Slow") for n in range(1, count))]
    return record(*(field(f"f{n}", json.loads(w.data)) for n, w in enumerate(small))), record(*new)


def unlike_a_large_record(count: int) -> tuple[StoredSchema, StoredSchema]:
    large = record(*(field(f"a{n}", "int") for n in range(20_000)), name="W")
    small = [json.loads(record(field("q", "int"), name=f"R{n}").data) for n in range(count)]
    return record(field("x", json.loads(large.data))), record(field("x", small))


def unlike_a_large_enum(count: int) -> tuple[StoredSchema, StoredSchema]:
    large = {"type": "enum", "name": "W", "symbols": [f"a{n}" for n in range(60_000)]}
    small = [{"type": "enum", "name": f"R{n}", "symbols": ["q"]} for n in range(count)]
    return record(field("x", large)), record(field("x", small))


def called_by_many_names(count: int) -> tuple[StoredSchema, StoredSchema]:
    many = field("q", "int", aliases=[f"a{n}" for n in range(100_000)], default=0)
    new = [
        field("f0", json.loads(record(many, name="R").data)),
        *(field(f"f{n}", "R") for n in range(1, count)),
    ]
    old = [field(f"f{n}", json.loads(record(name=f"W{n}").data)) for n in range(count)]
    return record(*old), record(*new)


@pytest.mark.parametrize(
    "made", [names_types_at_length, unlike_a_large_record, unlike_a_large_enum, called_by_many_names]
)
def test_what_schemas_take_to_compare_is_counted_whatever_they_are_made_of(
    made: Callable[[int], tuple[StoredSchema, StoredSchema]],
) -> None:
    """Within a second or two of the processor's time; some of them took minutes."""
    old, new = made(2000)
    assert len(old.data) < 2_000_000 > len(new.data)
    before_s = time.thread_time()
    objection([old], new, "BACKWARD")
    assert time.thread_time() - before_s < 20


def test_a_name_that_is_put_together_again_and_again_has_an_end() -> None:
    long = record(name=f"{'x' * 100_000}.R")
    reason = objection([record()], long, "BACKWARD")
    assert reason is not None
    assert "characters" in reason


@pytest.mark.parametrize(
    "type",
    [
        {"type": "enum", "name": "E"},
        {"type": "enum", "name": "E", "symbols": 3},
        {"type": "fixed", "name": "F"},
        {"type": "fixed", "name": "F", "size": float("inf")},
        {"type": "fixed", "name": "F", "size": [16]},
    ],
)
def test_types_without_what_makes_them_are_refused_not_fatal(type: Any) -> None:
    wrong = record(field("a", type))
    assert defect(wrong) is not None
    assert objection([wrong], wrong, "FULL") is not None


@pytest.mark.parametrize("depth", [200, 5000])
def test_schemas_that_are_nested_too_deeply_are_refused_not_fatal(depth: int) -> None:
    nested = '{"type": "array", "items": ' * depth + '"int"' + "}" * depth
    schema = StoredSchema(type=pb.Schema.Avro, name="", data=nested.encode())
    other = StoredSchema(type=pb.Schema.Avro, name="", data=nested.replace('"int"', '"string"').encode())
    assert objection([schema], other, "FULL") is not None
    assert not is_same(schema, other)


def test_a_refusal_does_not_show_all_of_a_large_type() -> None:
    many = [{"type": "record", "name": f"LongName{n}", "fields": []} for n in range(1000)]
    reason = objection([record(A_INT)], record(field("a", many)), "BACKWARD")
    assert reason is not None
    assert len(reason) < 600
