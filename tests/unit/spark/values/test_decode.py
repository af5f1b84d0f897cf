"""Values of a topic with a schema, decoded into columns."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch import AvroSchema, AvroType
from anabranch.client.schema.schemas import JsonSchema
from anabranch.spark.values.decode import Decoder
from anabranch.spark.values.types import value_schema
from anabranch.wire import pulsar_pb2 as pb


def decoder(schema: pb.Schema | None, *writers: pb.Schema) -> Decoder:
    """For a topic whose first version is `schema`, and whose later ones are the others."""
    return Decoder(value_schema(schema, 0), lambda version: [schema, *writers][version])


def decode(of: Decoder, values: list[bytes | None], versions: list[int] | None = None) -> list[Any]:
    made, bad = of.decode(pa.array(values, pa.binary()), None if versions is None else np.array(versions))
    assert bad == []
    return list(made.to_pylist())


def definition(kind: pb.Schema.Type, *fields: tuple[str, Any]) -> pb.Schema:
    whole = {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields]}
    return pb.Schema(name="R", type=kind, schema_data=json.dumps(whole).encode())


@dataclass
class Line:
    item: str
    count: int = 1


@dataclass
class Order:
    number: int
    made: Annotated[datetime, AvroType({"type": "long", "logicalType": "timestamp-millis"})]
    price: Annotated[Decimal, AvroType.decimal(12, 2)]
    day: date
    lines: list[Line] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    note: str | None = None


ORDER = Order(
    7, datetime(2026, 5, 1, 12, 30, tzinfo=UTC), Decimal("3.50"), date(2026, 5, 2), [Line("tea", 2)], {"a": 1}
)
PLAIN = {
    "number": 7,
    "price": Decimal("3.50"),
    "day": date(2026, 5, 2),
    "lines": [{"item": "tea", "count": 2}],
    "labels": [("a", 1)],
    "note": None,
}


def test_avro_records_are_structs_with_times_and_decimals() -> None:
    schema = AvroSchema(Order)
    (row, missing) = decode(decoder(schema.info()), [schema.encode(ORDER), None])
    assert row == {**PLAIN, "made": ORDER.made}
    assert missing is None


def test_avro_of_other_versions_is_resolved_into_the_declared_one() -> None:
    declared = definition(pb.Schema.Avro, ("a", "long"), ("b", ["null", "string"]))
    declared_text = json.loads(declared.schema_data)
    declared_text["fields"][1]["default"] = None
    declared.schema_data = json.dumps(declared_text).encode()
    older = definition(pb.Schema.Avro, ("a", "int"))
    newer = definition(pb.Schema.Avro, ("c", "string"), ("b", "string"), ("a", "long"))
    write = {
        n: AvroSchema(definition=one.schema_data.decode()).encode
        for n, one in enumerate((declared, older, newer))
    }
    values = [write[0]({"a": 1, "b": "x"}), write[1]({"a": 2}), write[2]({"c": "?", "b": "y", "a": 3})]
    rows = decode(decoder(declared, older, newer), [*values, *values], [0, 1, 2, 0, 1, 2])
    assert rows == [{"a": 1, "b": "x"}, {"a": 2, "b": None}, {"a": 3, "b": "y"}] * 2


@dataclass
class Reading:
    sensor: str
    level: float
    at: int
    parts: list[Line] = field(default_factory=list)


def test_json_records_are_structs_and_what_the_schema_lacks_is_left_out() -> None:
    of = decoder(JsonSchema(Reading).info())
    assert decode(
        of,
        [
            b'{"sensor":"a","level":1,"at":5,"parts":[{"item":"x","count":3,"more":0}]}',
            b'{\n  "level": 2.5,\n  "other": [1, {"x": {}}]\n}',
            b"null",
            None,
        ],
    ) == [
        {"sensor": "a", "level": 1.0, "at": 5, "parts": [{"item": "x", "count": 3}]},
        {"sensor": None, "level": 2.5, "at": None, "parts": None},
        None,
        None,
    ]
    assert decode(of, []) == []


def test_json_with_maps_and_bytes_and_times_as_numbers() -> None:
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    of = decoder(
        definition(pb.Schema.Json, ("m", {"type": "map", "values": "long"}), ("b", "bytes"), ("t", millis))
    )
    assert decode(of, [b'{"m":{"x":1},"b":"aGk=","t":1000,"z":1}', b"{}"]) == [
        {"m": [("x", 1)], "b": b"hi", "t": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)},
        {"m": None, "b": None, "t": None},
    ]
    times = decoder(definition(pb.Schema.Json, ("t", millis), ("d", {"type": "int", "logicalType": "date"})))
    assert decode(times, [b'{"t":1000,"d":1}']) == [
        {"t": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "d": date(1970, 1, 2)}
    ]


@pytest.mark.parametrize("with_map", [False, True])
@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"{",
        b'{"a":"text"}',
        b'{"a":1.5}',
        b'{"a":99999999999999999999}',
        b'{"a":1}{"a":2}',
        b'{"a":1}\n{"a":2}',
        b'{"a":1}}\n{"v":{"a":2}',
        b'{"s":"\xff"}',
        b"[]",
        b"7",
    ],
)
def test_json_that_does_not_fit_is_found_among_good_rows(bad: bytes, with_map: bool) -> None:
    more = [("m", {"type": "map", "values": "long"})] if with_map else []
    of = decoder(definition(pb.Schema.Json, ("a", "long"), ("s", "string"), *more))
    good = b'{"a":1,"s":"x"}'
    values = [good] * 9 + [bad] + [good] * 4 + [bad] + [good]
    made, faults = of.decode(pa.array(values, pa.binary()))
    assert [row for row, _ in faults] == [9, 14]
    assert [row for row, one in enumerate(made.to_pylist()) if one is None] == [9, 14]
    assert [one["a"] for one in made.to_pylist() if one] == [1] * 14


_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abs"), inner, max_size=3),
    max_leaves=4,
)


@given(st.lists(st.binary(max_size=6) | _JSON.map(lambda one: json.dumps(one).encode()), max_size=6))
def test_whether_json_is_decoded_does_not_depend_on_its_neighbours(values: list[bytes]) -> None:
    of = decoder(definition(pb.Schema.Json, ("a", "long"), ("b", "double"), ("s", "string")))
    made, bad = of.decode(pa.array(values, pa.binary()))
    alone = [of.decode(pa.array([one], pa.binary())) for one in values]
    assert made.to_pylist() == [one.to_pylist()[0] for one, _ in alone]
    assert [row for row, _ in bad] == [row for row, (_, faults) in enumerate(alone) if faults]


@pytest.mark.parametrize(
    ("kind", "pack", "value"),
    [
        (pb.Schema.Bool, lambda v: struct.pack(">?", v), True),
        (pb.Schema.Int8, lambda v: struct.pack(">b", v), -3),
        (pb.Schema.Int16, lambda v: struct.pack(">h", v), -300),
        (pb.Schema.Int32, lambda v: struct.pack(">i", v), -70_000),
        (pb.Schema.Int64, lambda v: struct.pack(">q", v), -5_000_000_000),
        (pb.Schema.Float, lambda v: struct.pack(">f", v), 1.5),
        (pb.Schema.Double, lambda v: struct.pack(">d", v), 1.1),
        (pb.Schema.String, str.encode, "Fluß"),
        (pb.Schema.Timestamp, lambda v: struct.pack(">q", int(v.timestamp() * 1000)), ORDER.made),
        (pb.Schema.Date, lambda v: struct.pack(">q", int(v.timestamp() * 1000)), ORDER.made),
        (pb.Schema.Instant, lambda v: struct.pack(">qi", int(v.timestamp()), 0), ORDER.made),
        (pb.Schema.LocalDate, lambda v: struct.pack(">q", (v - date(1970, 1, 1)).days), ORDER.day),
        (
            pb.Schema.LocalDateTime,
            lambda _: struct.pack(">qq", 1, 2_000_000_000),
            datetime(1970, 1, 2, 0, 0, 2),
        ),
        (pb.Schema.LocalTime, lambda v: struct.pack(">q", v), 1_000),
    ],
)
def test_plain_values_are_read_as_pulsars_clients_write_them(
    kind: pb.Schema.Type, pack: Callable[[Any], bytes], value: Any
) -> None:
    of = decoder(pb.Schema(name="x", type=kind, schema_data=b""))
    packed = pack(value)
    assert decode(of, [packed, None, packed, packed]) == [value, None, value, value]
    assert decode(of, [None]) == [None]
    made, bad = of.decode(pa.array([packed, b"\xff\xff\xff", packed], pa.binary()).slice(1))
    assert [row for row, _ in bad] == [0]
    assert made.to_pylist() == [None, value]


def test_a_topic_without_a_schema_has_bytes() -> None:
    assert decode(decoder(None), [b"x", None]) == [b"x", None]


def test_avro_that_was_cut_off_is_a_bad_row() -> None:
    schema = AvroSchema(Order)
    made, bad = decoder(schema.info()).decode(pa.array([schema.encode(ORDER), b"\x02"], pa.binary()))
    assert [row for row, _ in bad] == [1]
    assert made.to_pylist()[1] is None


def test_rows_of_a_version_that_is_no_avro_any_more_are_bad_rows() -> None:
    schema = AvroSchema(Order)
    of = decoder(schema.info(), JsonSchema(Reading).info() or pb.Schema())
    made, bad = of.decode(pa.array([schema.encode(ORDER), b"{}"], pa.binary()), np.array([0, 1]))
    assert [row for row, _ in bad] == [1]
    assert "now it is Json" in bad[0][1]
    assert made.to_pylist()[0]["number"] == 7
