"""Values as the topic's own schema has them, whatever it is."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from anabranch.client.errors import SchemaMismatch, TimedOut
from anabranch.client.schema.any import VERSIONS_MAX, AnySchema, NumberSchema
from anabranch.wire import pulsar_pb2 as pb

S = pb.Schema


def schema(kind: Any, data: bytes = b"") -> pb.Schema:
    return pb.Schema(name="x", schema_data=data, type=kind)


@pytest.mark.parametrize(
    ("kind", "payload", "value"),
    [
        (S.String, "ü".encode(), "ü"),
        (S.Json, b'{"a": [1]}', {"a": [1]}),
        (S.Int8, b"\xff", -1),
        (S.Int64, struct.pack(">q", 2**40), 2**40),
        (S.Double, struct.pack(">d", 1.5), 1.5),
        (S.Bool, b"\x01", True),
        (S.Timestamp, struct.pack(">q", 86_400_000), datetime(1970, 1, 2, tzinfo=UTC)),
        (S.Protobuf, b"\x08\x01", b"\x08\x01"),
    ],
)
def test_each_kind_is_decoded_by_its_version(kind: Any, payload: bytes, value: object) -> None:
    own = AnySchema().for_topic()
    assert not own.knows(b"\x01")
    own.learn(b"\x01", schema(kind))
    assert own.knows(b"\x01")
    assert own.decode(payload, b"\x01") == value
    assert own.decode(payload, b"") == payload


@pytest.mark.parametrize(
    ("kind", "payload"), [(S.Int32, b"\x01"), (S.Json, b"{"), (S.Timestamp, b"\x7f" * 8)]
)
def test_payloads_that_do_not_fit_are_refused(kind: Any, payload: bytes) -> None:
    own = AnySchema()
    own.learn(b"\x01", schema(kind))
    with pytest.raises(SchemaMismatch):
        own.decode(payload, b"\x01")


def test_a_schema_that_cannot_be_read_is_told_at_its_values_only() -> None:
    """Learning it must not fail: a consumer would wait for the schema for ever."""
    own = AnySchema()
    own.learn(b"\x01", schema(S.Avro, b"no definition"))
    own.refuse(b"\x02", TimedOut("no answer"))
    for version in (b"\x01", b"\x02"):
        assert own.knows(version)
        with pytest.raises(SchemaMismatch):
            own.decode(b"x", version)


def test_versions_that_are_remembered_are_bounded() -> None:
    own = AnySchema()
    for number in range(3 * VERSIONS_MAX):
        own.learn(number.to_bytes(8, "big"), None)
    assert len(own._known) <= VERSIONS_MAX + 1
    assert own.knows(b"x" * 100)


@pytest.mark.parametrize(
    ("kind", "value"), [(S.Int8, 128), (S.Int8, 1.5), (S.Int32, True), (S.Bool, 1), (S.Double, "x")]
)
def test_numbers_are_not_cut_to_fit(kind: Any, value: object) -> None:
    with pytest.raises(SchemaMismatch):
        NumberSchema(kind).encode(value)


LINKED = {"type": "record", "name": "A", "fields": [{"name": "a", "type": ["null", "A"]}]}


@pytest.mark.parametrize(
    ("definition", "payload"),
    [(LINKED, b"\x02" * 1_000_000), ({"type": "array", "items": "null"}, b"\x80\x80\x80\x80\x80\x20\0")],
)
def test_an_avro_message_of_a_stranger_does_not_end_the_process(definition: Any, payload: bytes) -> None:
    pytest.importorskip("fastavro")
    code = (
        "import sys; from anabranch.client.schema.any import AnySchema; from anabranch.wire import pulsar_pb2 as pb;"
        "found = AnySchema(); payload = sys.stdin.buffer.read();"
        "found.learn(b'1', pb.Schema(name='x', type=pb.Schema.Avro, schema_data=sys.argv[1].encode()))\n"
        "try: found.decode(payload, b'1')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(definition)], input=payload, capture_output=True, check=True
    )
    assert done.stdout.startswith(b"SchemaMismatch the payload does not fit the schema")
