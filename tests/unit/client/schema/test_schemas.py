"""Schemas: what values become, what brokers are told, and how versions are read. Pulsar's own client is in interop."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NewType, cast
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from anabranch.client.errors import BadArgument, RequestRefused, SchemaMismatch
from anabranch.client.message import EntryOrigin, ReceivedEntry
from anabranch.client.schema.avro import UNKNOWN_MAX, AvroSchema
from anabranch.client.schema.schemas import BytesSchema, JsonSchema, Schema, StringSchema, schema_of
from anabranch.client.schema.types import AvroType
from anabranch.client.schema.versions import VersionGate
from anabranch.client.transport.attachment import Backoff
from anabranch.wire import pulsar_pb2 as pb

Cents = NewType("Cents", int)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Line:
    item: str
    count: int = 1


@dataclass
class Order:
    """One of everything."""

    number: int
    paid: bool
    weight: float
    raw: bytes
    colour: Colour
    made: datetime
    day: date
    at: time
    id: UUID
    price: Annotated[Decimal, AvroType.decimal(12, 2)]
    small: Annotated[int, AvroType("int")]
    cents: Cents
    kind: Literal["old", "new"]
    lines: list[Line]
    by_name: dict[str, Line]
    tags: tuple[str, ...]
    best: Line | None
    note: str | None = None
    label: str | None = "none"
    colours: list[Colour] = field(default_factory=list)
    mixed: int | str | None = None


class LineModel(BaseModel):
    item: str
    count: int = 1


class OrderModel(BaseModel):
    number: int
    colour: Colour = Colour.RED
    made: datetime
    price: Decimal = Field(max_digits=12, decimal_places=2)
    lines: list[LineModel] = []
    best: LineModel | None = None
    from_: str = Field(default="", alias="from")


ORDER = Order(
    number=7,
    paid=True,
    weight=1.5,
    raw=b"\x00\xff",
    colour=Colour.BLUE,
    made=datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC),
    day=date(2024, 5, 6),
    at=time(1, 2, 3, 4),
    id=UUID(int=5),
    price=Decimal("12.34"),
    small=3,
    cents=Cents(1234),
    kind="new",
    lines=[Line("tea", 2), Line("milk")],
    by_name={"a": Line("x")},
    tags=("a", "b"),
    best=Line("tea"),
    colours=[Colour.RED],
    mixed="text",
)
MODEL = OrderModel(
    number=7,
    colour=Colour.BLUE,
    made=datetime(2024, 5, 6, tzinfo=UTC),
    price=Decimal("1.20"),
    lines=[LineModel(item="tea")],
    **{"from": "me"},  # type: ignore[arg-type]
)


def definition(schema: Schema[Any]) -> Any:
    info = schema.info()
    assert info is not None
    return json.loads(info.schema_data)


def fields(schema: Schema[Any]) -> dict[str, Any]:
    return {one["name"]: one for one in definition(schema)["fields"]}


# -- what does not fit is refused when it is sent


@pytest.mark.parametrize("make", [JsonSchema, AvroSchema])
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"number": "7"}, "number"),
        ({"number": 1.5}, "number"),
        ({"number": True}, "number"),
        ({"paid": "no"}, "paid"),
        ({"weight": "heavy"}, "weight"),
        ({"made": None}, ""),
        ({"colour": "green"}, ""),
        ({"lines": [Line("tea", cast(int, "two"))]}, "count"),
        ({"lines": ["tea"]}, ""),
        ({"by_name": {"a": 1}}, ""),
        ({"best": "tea"}, ""),
        ({"note": 1}, "note"),
    ],
)
def test_a_field_of_another_type_is_refused(make: Any, changed: dict[str, Any], told: str) -> None:
    with pytest.raises(SchemaMismatch, match=f"does not fit the schema.*{told}|was sent where"):
        make(Order).encode(dataclasses.replace(ORDER, **changed))


def test_a_model_that_was_made_without_its_checks_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="does not fit the schema"):
        JsonSchema(LineModel).encode(LineModel.model_construct(item=cast(str, 7)))


# -- values there and back


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (BytesSchema(), b"\x00x"),
        (StringSchema(), "grün"),
        (JsonSchema(), {"a": [1, None, "x"]}),
        (JsonSchema(Order), ORDER),
        (JsonSchema(OrderModel), MODEL),
        (AvroSchema(Order), ORDER),
        (AvroSchema(OrderModel), MODEL),
        (
            AvroSchema(
                definition='{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'
            ),
            {"a": 1},
        ),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_value_comes_back_as_it_was(schema: Schema[Any], value: Any) -> None:
    assert schema.decode(schema.encode(value)) == value


LINES = st.builds(Line, st.text(), st.integers(0, 9))
SCHEMAS = (AvroSchema(Order), JsonSchema(Order))


@settings(max_examples=50)
@given(
    st.builds(
        Order,
        number=st.integers(-(2**63), 2**63 - 1),
        weight=st.floats(allow_nan=False, allow_infinity=False),
        made=st.datetimes(timezones=st.just(UTC)),
        price=st.decimals(-(10**9), 10**9, places=2),
        small=st.integers(-(2**31), 2**31 - 1),
        cents=st.integers(-(2**63), 2**63 - 1),
        lines=st.lists(LINES, max_size=3),
        by_name=st.dictionaries(st.text(), LINES, max_size=2),
        best=st.none() | LINES,
        tags=st.lists(st.text(), max_size=2).map(tuple),
        mixed=st.none() | st.text() | st.integers(-(2**63), 2**63 - 1),
    )
)
def test_every_order_comes_back_as_it_was(order: Order) -> None:
    for schema in SCHEMAS:
        assert schema.decode(schema.encode(order)) == order


@dataclass
class Tree:
    name: str
    left: Tree | None = None
    right: Tree | None = None


def test_a_class_may_hold_its_own_kind() -> None:
    tree = Tree("a", Tree("b"), Tree("c", Tree("d")))
    for schema in (AvroSchema(Tree), JsonSchema(Tree)):
        assert schema.decode(schema.encode(tree)) == tree


@dataclass
class Circle:
    radius: float


@dataclass
class Square:
    side: float


@dataclass
class Drawing:
    shapes: list[Circle | Square | None]


def test_a_union_of_classes_keeps_them_apart() -> None:
    schema = AvroSchema(Drawing)
    drawing = Drawing([Circle(1.0), Square(1.0), None])
    assert schema.decode(schema.encode(drawing)) == drawing


# -- what brokers are told


def test_plain_bytes_name_no_schema() -> None:
    assert BytesSchema().info() is None
    assert JsonSchema().info() is None


def test_the_broker_is_told_type_name_and_properties() -> None:
    info = JsonSchema(Line, properties={"owner": "me"}).info()
    assert info is not None
    assert (info.type, info.name) == (pb.Schema.Json, "Line")
    assert [(one.key, one.value) for one in info.properties] == [("owner", "me")]  # type: ignore[attr-defined]
    text = StringSchema().info()
    assert text is not None
    assert (text.type, text.schema_data) == (pb.Schema.String, b"")


def test_avro_has_types_of_its_own() -> None:
    kinds = {name: one["type"] for name, one in fields(AvroSchema(Order)).items()}
    assert kinds["number"] == "long"
    assert kinds["weight"] == "double"
    assert kinds["raw"] == "bytes"
    assert kinds["colour"] == {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}
    assert kinds["made"] == {"type": "long", "logicalType": "timestamp-micros"}
    assert kinds["day"] == {"type": "int", "logicalType": "date"}
    assert kinds["id"] == {"type": "string", "logicalType": "uuid"}
    assert kinds["price"] == {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
    assert kinds["small"] == "int"
    assert kinds["cents"] == "long"
    assert kinds["kind"] == "string"
    assert kinds["lines"]["items"]["name"] == "Line"
    assert kinds["by_name"] == {"type": "map", "values": "Line"}
    assert kinds["best"] == ["null", "Line"]
    assert kinds["mixed"] == ["null", "long", "string"]
    assert kinds["price"] == fields(AvroSchema(OrderModel))["price"]["type"]


def test_the_definition_of_json_says_what_stands_in_the_json() -> None:
    kinds = {name: one["type"] for name, one in fields(JsonSchema(Order)).items()}
    assert kinds["made"] == kinds["price"] == kinds["id"] == "string"
    assert kinds["colour"] == {"type": "enum", "name": "Colour", "symbols": ["red", "blue"]}


def test_defaults_are_told_and_what_may_be_null_may_be_left_out() -> None:
    found = fields(AvroSchema(Order))
    assert "default" not in found["number"]
    assert found["best"]["default"] is None
    assert found["note"] == {"name": "note", "type": ["null", "string"], "default": None}
    assert found["label"] == {"name": "label", "type": ["string", "null"], "default": "none"}
    assert found["colours"]["default"] == []
    assert fields(AvroSchema(OrderModel))["colour"]["default"] == "RED"
    assert fields(JsonSchema(OrderModel))["colour"]["default"] == "red"
    assert "from" in fields(JsonSchema(OrderModel))


# -- what does not fit


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (BytesSchema(), "text"),
        (StringSchema(), b"bytes"),
        (JsonSchema(Line), Tree("x")),
        (JsonSchema(), object()),
        (AvroSchema(Line), Tree("x")),
        (AvroSchema(Line), Line("x", 2**63)),
        (AvroSchema(Line), Line(5)),  # type: ignore[arg-type]
        (AvroSchema(Tree), Tree("x", Line("y"))),  # type: ignore[arg-type]
    ],
)
def test_a_value_that_does_not_fit_is_refused(schema: Schema[Any], value: Any) -> None:
    with pytest.raises(SchemaMismatch):
        schema.encode(value)


def test_a_time_without_a_zone_is_refused() -> None:
    @dataclass
    class Event:
        at: datetime

    # Hints of a local class cannot be looked up by name.
    Event.__annotations__["at"] = datetime
    with pytest.raises(SchemaMismatch, match="no time zone"):
        AvroSchema(Event).encode(Event(datetime(2024, 1, 1)))


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        (StringSchema(), b"\xff"),
        (JsonSchema(Line), b'{"count": 1}'),
        (JsonSchema(LineModel), b'{"count": 1}'),
        (JsonSchema(Line), b"no json"),
        (AvroSchema(Line), b""),
        (AvroSchema(Order), b"\xff" * 20),
    ],
)
def test_a_payload_that_does_not_fit_is_refused(schema: Schema[Any], payload: bytes) -> None:
    with pytest.raises(SchemaMismatch):
        schema.decode(payload)


class _Plain:
    pass


def holding(kind: Any) -> type:
    cls = type("Holder", (), {"__annotations__": {"x": kind}, "__module__": __name__})
    return dataclass(cls)


@pytest.mark.parametrize(
    ("cls", "says"),
    [
        (_Plain, "give a dataclass or a pydantic model"),
        (holding(_Plain), "Holder.x: a schema cannot hold"),
        (holding(Any), "Holder.x: a schema cannot hold"),
        (holding(list), "say of what"),
        (holding(dict[int, str]), "must be str"),
        (holding(tuple[int, str]), "tuple"),
        (holding(Decimal), "AvroType.decimal"),
        (holding(list[int] | list[str]), "apart"),
        (holding(Literal["a", 1]), "one plain type"),
    ],
)
def test_a_class_that_avro_cannot_hold_is_refused_and_the_field_named(cls: type, says: str) -> None:
    with pytest.raises(BadArgument, match=says):
        AvroSchema(cls)


def test_a_union_that_json_does_not_tell_apart_is_refused() -> None:
    with pytest.raises(BadArgument, match="Drawing"):
        JsonSchema(Drawing)


def test_a_class_whose_annotations_cannot_be_found_is_refused() -> None:
    with pytest.raises(BadArgument, match="top of a module"):
        AvroSchema(holding("Nowhere"))


def test_two_classes_of_one_name_are_refused() -> None:
    other: Any = dataclass(type("Line", (), {"__annotations__": {"x": int}}))
    with pytest.raises(BadArgument, match="two classes are named Line"):
        AvroSchema(holding(dict[str, other] | Line))


def test_what_is_no_schema_is_refused_and_shorthands_are_not() -> None:
    assert isinstance(schema_of(None), BytesSchema)
    assert isinstance(schema_of(bytes), BytesSchema)
    assert isinstance(schema_of(str), StringSchema)
    assert isinstance(schema_of(Line), JsonSchema)
    assert isinstance(schema_of(LineModel), JsonSchema)
    given = AvroSchema(Line)
    assert schema_of(given) is given
    for wrong in (int, "json", _Plain):
        with pytest.raises(BadArgument, match="JsonSchema"):
            schema_of(wrong)  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="class or of a definition"):
        AvroSchema()  # type: ignore[call-overload]
    with pytest.raises(BadArgument, match="not an Avro definition"):
        AvroSchema(definition="{")
    with pytest.raises(BadArgument, match="not an Avro definition"):
        AvroSchema(definition={"type": "nonsense"})


# -- versions


def record(*given: Mapping[str, Any], name: str = "Line", namespace: str | None = None) -> dict[str, Any]:
    made = {"type": "record", "name": name, "fields": list(given)}
    return made | ({"namespace": namespace} if namespace else {})


def stored(of: Any) -> pb.Schema:
    return pb.Schema(name="x", type=pb.Schema.Avro, schema_data=json.dumps(of).encode())


ITEM = {"name": "item", "type": "string"}


def test_an_older_version_takes_the_defaults_and_a_newer_one_leaves_fields_out() -> None:
    older, newer = (
        record(ITEM),
        record({"name": "extra", "type": "long"}, ITEM, {"name": "count", "type": "int"}),
    )
    schema = AvroSchema(Line).for_topic()
    assert not schema.knows(b"\0")
    schema.learn(b"\0", stored(older))
    schema.learn(b"\1", stored(newer))
    assert schema.knows(b"\0")
    assert schema.decode(AvroSchema(definition=older).encode({"item": "a"}), b"\0") == Line("a", 1)
    was = AvroSchema(definition=newer).encode({"extra": 5, "item": "a", "count": 7})
    assert schema.decode(was, b"\1") == Line("a", 7)


def test_what_a_class_is_called_elsewhere_does_not_matter() -> None:
    """A Java class in a package, with a nested one."""
    line = record(ITEM, {"name": "count", "type": "long"}, name="Line", namespace="com.example.Shop$")
    theirs = record(
        {"name": "shapes", "type": {"type": "array", "items": ["null", line]}},
        {"name": "first", "type": "com.example.Shop$.Line"},
        name="Basket",
        namespace="com.example",
    )

    @dataclass
    class Cart:
        first: Line

    Cart.__annotations__["first"] = Line
    schema = AvroSchema(Cart).for_topic()
    schema.learn(b"\0", stored(theirs))
    one = {"item": "a", "count": 1}
    was = AvroSchema(definition=theirs).encode({"shapes": [one, None], "first": one})
    assert schema.decode(was, b"\0") == Cart(Line("a"))


def test_versions_of_one_topic_are_not_those_of_another() -> None:
    schema = AvroSchema(Line)
    here, there = schema.for_topic(), schema.for_topic()
    here.learn(b"\0", stored(record(ITEM)))
    assert not there.knows(b"\0")


def test_a_version_that_the_topic_no_longer_has_is_read_as_ours() -> None:
    schema = AvroSchema(Line).for_topic()
    schema.learn(b"\0", None)
    assert schema.knows(b"\0")
    assert schema.decode(schema.encode(Line("a", 3)), b"\0") == Line("a", 3)


def test_a_definition_that_cannot_be_resolved_says_so() -> None:
    schema = AvroSchema(Line).for_topic()
    schema.learn(b"\0", stored(record({"name": "other", "type": "long"})))
    with pytest.raises(SchemaMismatch, match="item"):
        schema.decode(b"\x02", b"\0")
    with pytest.raises(SchemaMismatch, match="cannot be read"):
        schema.learn(b"\1", stored({"type": "nonsense"}))


def test_a_version_that_nobody_can_tell_anything_of_is_not_read_as_ours() -> None:
    schema = AvroSchema(Line).for_topic()
    with pytest.raises(SchemaMismatch, match="cannot be read"):
        schema.learn(b"\0", pb.Schema(name="x", type=pb.Schema.Avro, schema_data=b"no JSON"))
    with pytest.raises(SchemaMismatch, match="cannot be read"):
        schema.learn(b"\0", pb.Schema(name="x", type=pb.Schema.Avro, schema_data=b"\xff"))
    schema.refuse(b"\0", RequestRefused(pb.AuthorizationError, "not you"))
    assert schema.knows(b"\0")
    with pytest.raises(SchemaMismatch, match="not you"):
        schema.decode(schema.encode(Line("a", 3)), b"\0")


def test_versions_that_a_topic_never_had_take_no_memory_without_end() -> None:
    schema = AvroSchema(Line).for_topic()
    why = RequestRefused(pb.UnknownError, "no such version")
    for number in range(2 * UNKNOWN_MAX):
        schema.learn(b"n%d" % number, None)
        schema.refuse(b"r%d" % number, why)
    known = [schema.knows(b"%b%d" % (kind, n)) for kind in (b"n", b"r") for n in range(2 * UNKNOWN_MAX)]
    assert sum(known) == 2 * UNKNOWN_MAX
    with pytest.raises(SchemaMismatch):
        schema.decode(schema.encode(Line("a", 3)), b"r0")
    assert schema.knows(b"x" * 1000)
    assert schema.decode(schema.encode(Line("a", 3))) == Line("a", 3)


class Answers:
    """A broker's connection that answers questions for schemas, in turn."""

    def __init__(self, *answers: pb.CommandGetSchemaResponse) -> None:
        self.answers = list(answers)

    async def service(self) -> Answers:
        return self

    async def request(self, kind: int, field: str, **fields: Any) -> pb.CommandGetSchemaResponse:
        return self.answers.pop(0)


async def test_a_broker_that_cannot_answer_now_does_not_make_a_version_ours() -> None:
    """Avro does not say what it is: read by another definition, the values would be others."""
    theirs = record({"name": "count", "type": "int"}, ITEM)
    schema = AvroSchema(Line).for_topic()
    found: list[Any] = []
    done = asyncio.Event()

    def put(entry: ReceivedEntry) -> None:
        found.append(schema.decode(entry.data, b"\0"))
        done.set()

    not_now = pb.CommandGetSchemaResponse(request_id=0, error_code=pb.MetadataError, error_message="not now")
    brokers = Answers(not_now, pb.CommandGetSchemaResponse(request_id=0, schema=stored(theirs)))
    gate = VersionGate(schema, cast(Any, brokers), "t", put, Backoff(random.Random(1)))
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, schema_version=b"\0")
    payload = AvroSchema(definition=theirs).encode({"count": 1, "item": "a"})
    gate.put(ReceivedEntry(EntryOrigin("t"), 1, 1, metadata, payload))
    async with asyncio.timeout(10):
        await done.wait()
    assert found == [Line("a", 1)]
    await gate.close()


def test_other_schemas_know_every_version() -> None:
    for schema in (BytesSchema(), StringSchema(), JsonSchema(Line)):
        assert schema.for_topic() is schema
        assert schema.knows(b"\x07")
