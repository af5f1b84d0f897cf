"""Rows of decoded tables, by versions of a schema that are written down here."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from anabranch.table_writer.decoding import Decoding
from anabranch.tables.core.schema import RAW
from anabranch.wire import pulsar_pb2 as pb


def record(**fields: Any) -> pb.Schema:
    told = [{"name": name, "type": kind} for name, kind in fields.items()]
    data = json.dumps({"type": "record", "name": "r", "fields": told}).encode()
    return pb.Schema(type=pb.Schema.Json, schema_data=data)


LONG = ["null", "long"]
TEXT = ["null", "string"]
VERSIONS = [
    record(a=LONG),
    record(a=LONG, b=TEXT),
    record(a=TEXT, b=TEXT),
    pb.Schema(type=pb.Schema.Json, schema_data=b"this is no definition"),
]


def decoding() -> Decoding:
    def fetch(version: int | None) -> tuple[pb.Schema | None, int]:
        number = 1 if version is None else version
        return (VERSIONS[number], number) if number < len(VERSIONS) else (None, -1)

    return Decoding(fetch)


def rows(*given: tuple[int, bytes | None]) -> pa.RecordBatch:
    made = [
        {"value": value, "schema_version": version, "entry": n, "segment": 0}
        for n, (version, value) in enumerate(given)
    ]
    return pa.RecordBatch.from_pylist(made, schema=RAW)


def decoded(of: Decoding, given: pa.RecordBatch) -> tuple[list[dict[str, Any]], int]:
    schema = of.schema_for(RAW, given)
    found, count = of.rows(given, schema)
    assert found.schema == schema
    wanted = ["entry", "value", "undecoded", *schema.names[len(RAW) :]]
    return found.select(wanted).to_pylist(), count


def test_rows_are_decoded_by_the_version_that_each_names_and_keep_their_order() -> None:
    given = rows((1, b'{"a":1,"b":"x"}'), (0, b'{"a":2}'), (-1, b'{"a":3,"b":null}'), (1, None))
    found, count = decoded(decoding(), given)
    assert [(row["entry"], row["a"], row["b"]) for row in found] == [
        (0, 1, "x"),
        (1, 2, None),
        (2, 3, None),
        (3, None, None),
    ]
    assert all(row["value"] is None and row["undecoded"] is None for row in found)
    assert count == 0


def test_what_does_not_fit_keeps_its_bytes_and_the_rest_of_the_row() -> None:
    given = rows(
        (0, b'{"a":1}'),
        (0, b"no JSON"),
        (2, b'{"a":"text","b":"y"}'),
        (2, b'{"a":null,"b":"z"}'),
        (3, b"anything"),
    )
    found, count = decoded(decoding(), given)
    assert [(row["a"], row["b"], row["undecoded"]) for row in found] == [
        (1, None, None),
        (None, None, b"no JSON"),
        (None, "y", b'{"a":"text","b":"y"}'),
        (None, "z", None),
        (None, None, b"anything"),
    ]
    assert count == 3


def test_messages_without_a_schema_have_their_bytes_in_value() -> None:
    found, count = decoded(decoding(), rows((9, b"bytes"), (9, None)))
    assert [row["value"] for row in found] == [b"bytes", None]
    assert count == 0
