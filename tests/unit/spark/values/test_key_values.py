"""Pairs of a key and a value, as Pulsar's clients write them, are columns."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from anabranch.spark.values.errors import NoColumns
from anabranch.spark.values.key_values import decoder_of
from anabranch.spark.values.types import value_schema
from anabranch.wire import pulsar_pb2 as pb

ROW = {"type": "record", "name": "Row", "fields": [{"name": "a", "type": "long"}]}
WIDER = {
    "type": "record",
    "name": "Row",
    "fields": [{"name": "z", "type": "string"}, {"name": "a", "type": "long"}],
}


def pairs(key: tuple[str, bytes], value: tuple[str, bytes], encoding: str = "INLINE") -> pb.Schema:
    """A schema as Java's client gives it to brokers."""
    data = b"".join(len(part).to_bytes(4, "big") + part for _, part in (key, value))
    made = pb.Schema(name="pairs", type=pb.Schema.KeyValue, schema_data=data)
    told: Any = made.properties
    for name, text in (
        ("key.schema.type", key[0]),
        ("value.schema.type", value[0]),
        ("kv.encoding.type", encoding),
    ):
        told.add(key=name, value=text)
    return made


def json_of(definition: Any) -> bytes:
    return json.dumps(definition).encode()


def inline(key: bytes | None, value: bytes | None) -> bytes:
    sized = ((-1 if part is None else len(part), part or b"") for part in (key, value))
    return b"".join(size.to_bytes(4, "big", signed=True) + part for size, part in sized)


def never(version: int) -> pb.Schema | None:
    raise AssertionError("no other version is needed")


def test_a_pair_is_one_column_with_the_types_of_its_halves() -> None:
    found = value_schema(pairs(("STRING", b""), ("JSON", json_of(ROW))))
    assert found.columns("v_") == [
        pa.field("v_value", pa.struct([("key", pa.string()), ("value", pa.struct([("a", pa.int64())]))]))
    ]
    assert not found.is_separated
    assert not found.needs_versions


def test_inline_pairs_are_taken_apart_and_may_have_null_halves() -> None:
    decoder = decoder_of(value_schema(pairs(("STRING", b""), ("JSON", json_of(ROW)))), never)
    values = [inline(b"x", b'{"a": 1}'), None, inline(None, b'{"a": 2}'), inline("ä".encode(), None)]
    found, bad = decoder.decode(pa.array(values, pa.binary()))
    assert bad == []
    assert found.to_pylist() == [
        {"key": "x", "value": {"a": 1}},
        None,
        {"key": None, "value": {"a": 2}},
        {"key": "ä", "value": None},
    ]


def test_a_row_that_is_no_pair_or_has_a_bad_half_is_told_and_the_others_come() -> None:
    decoder = decoder_of(value_schema(pairs(("STRING", b""), ("INT32", b""))), never)
    values = [inline(b"x", b"\0\0\0\7"), b"short", inline(b"y", b"\0"), inline(b"\xff", b"\0\0\0\1"), b""]
    found, bad = decoder.decode(pa.array(values, pa.binary()))
    assert found.to_pylist() == [{"key": "x", "value": 7}, None, None, None, None]
    assert [row for row, _ in bad] == [1, 2, 3, 4]
    assert bad[0][1] == "5 bytes, which are no pair of a key and a value"
    assert bad[1][1] == "its value: 1 bytes, where 4 are expected"
    assert bad[2][1].startswith("its key: ")


def test_separated_pairs_have_the_key_of_their_message() -> None:
    decoder = decoder_of(value_schema(pairs(("INT64", b""), ("STRING", b""), "SEPARATED")), never)
    keys = pa.array([(5).to_bytes(8, "big"), None], pa.binary())
    found, bad = decoder.decode(pa.array([b"five", b"none"], pa.binary()), None, keys)
    assert bad == []
    assert found.to_pylist() == [{"key": 5, "value": "five"}, {"key": None, "value": "none"}]


def test_halves_in_avro_are_read_by_the_version_that_they_were_written_with() -> None:
    schema = value_schema(pairs(("STRING", b""), ("AVRO", json_of(ROW))), 4)
    assert schema.needs_versions
    decoder = decoder_of(schema, {3: pairs(("STRING", b""), ("AVRO", json_of(WIDER)))}.get)
    values = pa.array([inline(b"x", b"\x02"), inline(b"y", b"\x04ab\x06")], pa.binary())
    found, bad = decoder.decode(values, np.array([4, 3], np.int64))
    assert bad == []
    assert found.to_pylist() == [{"key": "x", "value": {"a": 1}}, {"key": "y", "value": {"a": 3}}]


def test_halves_that_are_not_known_are_refused() -> None:
    with pytest.raises(NoColumns, match="its value is of type PROTOBUF"):
        value_schema(pairs(("STRING", b""), ("PROTOBUF", b"")))
    cut = pb.Schema(type=pb.Schema.KeyValue, schema_data=b"\0\0\0\x09abc")
    with pytest.raises(NoColumns, match="cannot be read"):
        value_schema(cut)


def test_a_reason_to_refuse_makes_every_row_with_a_value_bad() -> None:
    decoder = decoder_of(value_schema(pb.Schema(type=pb.Schema.String)), never, "another kind")
    found, bad = decoder.decode(pa.array([b"a", None, b"b"], pa.binary()))
    assert found.to_pylist() == [None, None, None]
    assert bad == [(0, "another kind"), (2, "another kind")]
