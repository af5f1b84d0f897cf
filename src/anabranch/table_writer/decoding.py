"""Data plane. Rows of a decoded table: the fields of the topic's schema as columns, by the version that each row names.

A row whose version cannot be read, or whose bytes do not fit it, keeps its bytes in `undecoded`; and so does a row with
a value that does not fit the column of its name. Nothing here raises for what producers wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.spark.values.decode import BadSchemaValue
from anabranch.spark.values.errors import NoColumns
from anabranch.spark.values.key_values import AnyDecoder, decoder_of
from anabranch.spark.values.types import ValueSchema, value_schema
from anabranch.table_writer.core.widening import widened
from anabranch.tables.core.schema import DECODED, RAW, UNDECODED, VALUE
from anabranch.wire import pulsar_pb2 as pb

# A version of the topic's schema, None for the latest; and its number, -1 if there is none.
Fetch = Callable[[int | None], tuple[pb.Schema | None, int]]
LATEST: Final = -1


@dataclass(frozen=True, slots=True)
class _Version:
    fields: tuple[pa.Field, ...] = ()  # Its columns; none if it has none.
    decoder: AnyDecoder | None = None
    is_record: bool = False
    is_separated: bool = False
    has_schema: bool = True


class Decoding:
    """The versions of one topic's schema. Blocking: it asks a broker for those that it does not know yet."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._known: dict[int, _Version] = {}

    def refresh(self) -> None:
        """Asks again which version is the latest."""
        self._known.pop(LATEST, None)

    def schema_for(self, table: pa.Schema, rows: pa.RecordBatch) -> pa.Schema:
        """The table's columns with those that these rows, of `RAW`, need."""
        for number in self._versions(rows)[0].tolist():
            table = widened(table, self._version(number).fields).schema
        return table

    def rows(self, rows: pa.RecordBatch, schema: pa.Schema) -> tuple[pa.RecordBatch, int]:
        """The rows with exactly those columns, and how many of them keep bytes in `undecoded`."""
        numbers, of_row = self._versions(rows)
        if len(numbers) == 1:
            return self._part(rows, int(numbers[0]), schema)
        parts: list[pa.RecordBatch] = []
        places: list[Any] = []
        count = 0
        for at, number in enumerate(numbers.tolist()):
            found = np.flatnonzero(of_row == at)
            part, bad = self._part(rows.take(pa.array(found)), number, schema)
            parts.append(part)
            places.append(found)
            count += bad
        back = np.argsort(np.concatenate(places), kind="stable")
        together = pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
        return together.take(pa.array(back)), count

    def _versions(self, rows: pa.RecordBatch) -> tuple[Any, Any]:
        found = rows.column("schema_version").to_numpy(zero_copy_only=False)
        numbers, of_row = np.unique(np.maximum(found, LATEST), return_inverse=True)
        return (numbers, of_row) if len(numbers) else (np.array([LATEST]), of_row)

    def _version(self, number: int) -> _Version:
        if number not in self._known:
            self._known[number] = self._made(number)
        return self._known[number]

    def _made(self, number: int) -> _Version:
        schema, own = self._fetch(None if number == LATEST else number)
        if schema is None:
            return _Version(has_schema=False)
        try:
            found = value_schema(schema, own)
            if found.kind == pb.Schema.Type.Value("None"):
                return _Version(has_schema=False)
            decoder = decoder_of(found, lambda _: schema)
        except (NoColumns, BadSchemaValue, ValueError, KeyError):
            return _Version()
        return _Version(_fields(found), decoder, found.is_record, found.is_separated)

    def _part(self, rows: pa.RecordBatch, number: int, schema: pa.Schema) -> tuple[pa.RecordBatch, int]:
        """Rows of one version."""
        version, values = self._version(number), rows.column(VALUE)
        columns = {name: rows.column(name) for name in RAW.names}
        if not version.has_schema:
            return _filled(columns, schema, rows.num_rows), 0
        unfit = np.zeros(rows.num_rows, np.bool_)
        if version.decoder is None:
            unfit |= values.is_valid().to_numpy(zero_copy_only=False)
        else:
            # Each row is resolved into the version that it was written with.
            keys = rows.column("key") if version.is_separated else None
            found, bad = version.decoder.decode(values, None, keys)
            unfit[[row for row, _ in bad]] = True
            parts = found.flatten() if version.is_record else [found]
            wide = widened(schema, version.fields)
            for part, name in zip(parts, wide.columns, strict=True):
                # The files may have been begun without that column, or with a narrower one.
                has_room = name in schema.names and schema.field(name) == wide.schema.field(name)
                target = _fitted(part, schema.field(name).type) if has_room else None
                if name is None or target is None:
                    unfit |= part.is_valid().to_numpy(zero_copy_only=False)
                else:
                    columns[name] = target
        # An entry that could not be opened has its bytes there already.
        kept = pc.if_else(pa.array(unfit), values, pa.scalar(None, pa.binary()))
        columns[UNDECODED] = pc.coalesce(rows.column(UNDECODED), kept)
        unfit |= rows.column(UNDECODED).is_valid().to_numpy(zero_copy_only=False)
        columns[VALUE] = pa.nulls(rows.num_rows, pa.binary())
        return _filled(columns, schema, rows.num_rows), int(np.count_nonzero(unfit))


def _fields(found: ValueSchema) -> tuple[pa.Field, ...]:
    return tuple(found.type) if found.is_record else (pa.field(DECODED, found.type),)


def _fitted(part: Any, kind: pa.DataType) -> Any:
    """The values in the column's type; None if one of them cannot be."""
    if part.type == kind:
        return part
    try:
        if pa.types.is_time(part.type):
            part = part.view(pa.int64() if part.type.bit_width == 64 else pa.int32())
        if pa.types.is_timestamp(part.type) and part.type.tz is None and pa.types.is_timestamp(kind):
            part = part.cast(pa.timestamp("us")).view(pa.int64()).view(kind)
        return part.cast(kind)
    except (pa.ArrowException, ValueError):
        return None


def _filled(columns: dict[str, Any], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    made = [columns.get(field.name) for field in schema]
    arrays = [
        pa.nulls(rows, field.type) if one is None else one for one, field in zip(made, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
