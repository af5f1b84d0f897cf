"""Data plane. Values of a topic whose schema is of pairs: a column of structs with a key and a value.

A pair is in the payload, each half behind its size; or the key is the message's, and the payload is the value. Each
half has its own schema, and a row is bad if one of its halves is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from anabranch.spark.values.decode import Column, Decoder, Versions
from anabranch.spark.values.types import ValueSchema, parts_of
from anabranch.wire import pulsar_pb2 as pb

Bad = list[tuple[int, str]]


class AnyDecoder(Protocol):
    def decode(
        self, values: Column, versions: Versions | None = None, keys: Column = None
    ) -> tuple[Column, Bad]:
        """An array of the schema's type, null where a message has no value or cannot be decoded; and for the latter the
        row and the reason."""


def decoder_of(
    schema: ValueSchema, writer_of: Callable[[int], pb.Schema | None], refused: str = ""
) -> AnyDecoder:
    """The decoder of a schema; with `refused`, one for which all rows are bad, for that reason."""
    if refused:
        return _Refusing(schema, refused)
    return Decoder(schema, writer_of) if schema.parts is None else PairDecoder(schema, writer_of)


class _Refusing:
    def __init__(self, schema: ValueSchema, why: str) -> None:
        self._schema = schema
        self._why = why

    def decode(
        self, values: Column, versions: Versions | None = None, keys: Column = None
    ) -> tuple[Column, Bad]:
        rows = values.is_valid().to_pylist()
        return pa.nulls(len(values), self._schema.type), [
            (n, self._why) for n, is_there in enumerate(rows) if is_there
        ]


class PairDecoder:
    """`keys` are those of the messages, needed where the schema is of separated pairs."""

    def __init__(self, schema: ValueSchema, writer_of: Callable[[int], pb.Schema | None]) -> None:
        assert schema.parts is not None
        self._schema = schema
        self._halves = [
            Decoder(part, _half_of(writer_of, number)) for number, part in enumerate(schema.parts)
        ]

    def decode(
        self, values: Column, versions: Versions | None = None, keys: Column = None
    ) -> tuple[Column, Bad]:
        bad: dict[int, str] = {}
        if self._schema.is_separated:
            assert keys is not None
            halves = [keys, values]
        else:
            halves, bad = _taken_apart(values)
        made: list[Any] = []
        for name, half, decoder in zip(("key", "value"), halves, self._halves, strict=True):
            found, faults = decoder.decode(half, versions)
            made.append(found)
            bad |= {row: f"its {name}: {why}" for row, why in faults if row not in bad}
        missing = pa.array([row in bad for row in range(len(values))]) if bad else None
        if not self._schema.is_separated:
            # Without a payload there is no pair.
            there = values.is_null()
            missing = there if missing is None else pa.compute.or_(missing, there)
        return pa.StructArray.from_arrays(made, fields=list(self._schema.type), mask=missing), sorted(
            bad.items()
        )


def _half_of(writer_of: Callable[[int], pb.Schema | None], number: int) -> Callable[[int], pb.Schema | None]:
    def half(version: int) -> pb.Schema | None:
        found = writer_of(version)
        return None if found is None or found.type != pb.Schema.KeyValue else parts_of(found)[number]

    return half


def _taken_apart(values: Column) -> tuple[list[Column], dict[int, str]]:
    """The halves of payloads: a size of four bytes, which is -1 for null, and so many bytes, twice."""
    keys: list[bytes | None] = []
    rest: list[bytes | None] = []
    bad: dict[int, str] = {}
    for row, data in enumerate(values.to_pylist()):
        one = other = None
        if data is not None:
            size = int.from_bytes(data[:4], "big", signed=True)
            middle = 4 + max(0, size)
            last = int.from_bytes(data[middle : middle + 4], "big", signed=True)
            end = middle + 4 + max(0, last)
            if end != len(data) or size < -1 or last < -1:
                bad[row] = f"{len(data)} bytes, which are no pair of a key and a value"
            else:
                one = None if size < 0 else data[4:middle]
                other = None if last < 0 else data[middle + 4 :]
        keys.append(one)
        rest.append(other)
    return [pa.array(keys, pa.binary()), pa.array(rest, pa.binary())], bad
