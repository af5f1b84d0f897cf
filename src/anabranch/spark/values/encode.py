"""Data plane. Encodes columns to values of a topic's schema: the mirror of `anabranch.spark.values.decode`, by the same
types.

    encoder = encoder_of(schema, [("id", "id", pa.int64()), …])        # BadColumn for columns that do not fit
    encoder(table)                                                     # the table with a column `value` of payloads

The driver makes the encoder, with the topic's schema at that time, and sends it to the tasks. Fields that a DataFrame
lacks are left out if the schema allows that. JSON and Avro are made row by row, by msgspec and fastavro; plain numbers,
times and text by NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.client.schema.schemas import Schema
from anabranch.errors import AnabranchError
from anabranch.spark.columns.sink_columns import VALUE, BadColumn
from anabranch.spark.values.types import ValueSchema, numbers, value_schema, with_times
from anabranch.wire import pulsar_pb2 as pb

Column = Any  # pa.ChunkedArray; pyarrow ships no types.


# Kinds of schemas that the source decodes and the sink does not encode.
_ONLY_READ: Final[Mapping[int, str]] = {
    pb.Schema.KeyValue: "KeyValue",
    pb.Schema.ProtobufNative: "ProtobufNative",
}


class TopicSchema(Schema[bytes]):
    """The topic's own schema, sent to the broker again unchanged; payloads are made elsewhere."""

    def __init__(self, info: pb.Schema) -> None:
        self._info = info

    def info(self) -> pb.Schema | None:
        return self._info


@dataclass(frozen=True, slots=True)
class Encoder:
    """Picklable: the driver sends it to the tasks."""

    topic_schema: bytes  # pb.Schema
    fields: tuple[tuple[str, str], ...]  # Columns, and the schema's fields; without a record: one.
    required: frozenset[str]  # Columns that must not be null.

    @property
    def schema(self) -> TopicSchema:
        return TopicSchema(pb.Schema.FromString(self.topic_schema))

    def __call__(self, table: Any) -> Any:
        """The table with the payloads as its column `value`, in place of the columns that they are made of."""
        made = value_schema(pb.Schema.FromString(self.topic_schema))
        for column in sorted(self.required):
            if table[column].null_count:
                raise BadColumn(
                    f"column {column!r} is null in a row, which the topic's schema does not allow"
                )
        taken = table.select([column for column, _ in self.fields]).combine_chunks()
        try:
            payloads = _payloads(taken, [name for _, name in self.fields], made)
        except (pa.ArrowException, ValueError, TypeError, OverflowError, AnabranchError) as error:
            raise BadColumn(f"a row does not fit the topic's schema: {error}") from error
        rest = table.drop_columns([column for column, _ in self.fields])
        return rest.append_column(VALUE, payloads)


def encoder_of(info: pb.Schema, columns: Sequence[tuple[str, str, Any]]) -> Encoder:
    """`columns` are the DataFrame's, with the fields' names and their types in Arrow. The text of BadColumn names the
    mistake."""
    schema = value_schema(info)
    if schema.kind in _ONLY_READ:
        raise BadColumn(
            f"option encode=true: a topic with a {_ONLY_READ[schema.kind]} schema is only read by it: write bytes in a "
            "column 'value', without encode"
        )
    wanted = {field.name: field.type for field in schema.type} if schema.is_record else {VALUE: schema.type}
    by_case = {name.lower(): name for name in wanted}
    fields: list[tuple[str, str]] = []
    for column, given, kind in columns:
        name = by_case.get(given.lower())
        if name is None:
            raise BadColumn(
                f"column {column!r} is no field of the topic's schema: there are {', '.join(wanted)}; drop it"
            )
        if not fits(kind, wanted[name]):
            raise BadColumn(
                f"column {column!r} is {kind}: the topic's schema has {wanted[name]} there; cast it"
            )
        fields.append((column, name))
    needed = _needed(schema)
    missing = [name for name in needed if name not in {field for _, field in fields}]
    if missing or not fields:
        raise BadColumn(f"no column for {(missing or list(wanted))[0]!r}, which the topic's schema needs")
    required = frozenset(column for column, name in fields if name in needed and not _has_null(schema, name))
    return Encoder(info.SerializeToString(), tuple(fields), required if schema.is_record else frozenset())


# -- compatible types


def fits(given: Any, wanted: Any) -> bool:
    """Whether every value of the given type is a value of the wanted type."""
    kinds = pa.types
    if given == wanted:
        return True
    if kinds.is_integer(given) and kinds.is_integer(wanted):
        return bool(given.bit_width <= wanted.bit_width)
    if kinds.is_float64(wanted):
        return bool(kinds.is_float32(given) or (kinds.is_integer(given) and given.bit_width <= 32))
    if kinds.is_decimal(given) and kinds.is_decimal(wanted):
        whole = wanted.precision - wanted.scale >= given.precision - given.scale
        return bool(whole and wanted.scale >= given.scale)
    if kinds.is_timestamp(given) and kinds.is_timestamp(wanted):
        return (given.tz is None) == (wanted.tz is None)
    if kinds.is_struct(given) and kinds.is_struct(wanted):
        names = [field.name for field in given] == [field.name for field in wanted]
        return names and all(fits(one.type, other.type) for one, other in zip(given, wanted, strict=True))
    if kinds.is_list(given) and kinds.is_list(wanted):
        return fits(given.value_type, wanted.value_type)
    if kinds.is_map(given) and kinds.is_map(wanted):
        return fits(given.key_type, wanted.key_type) and fits(given.item_type, wanted.item_type)
    return False


def _fields(schema: ValueSchema) -> Mapping[str, Any]:
    return {field["name"]: field for field in schema.definition["fields"]} if schema.is_record else {}


def _has_null(schema: ValueSchema, name: str) -> bool:
    kind = _fields(schema)[name]["type"]
    return isinstance(kind, list) and "null" in kind


def _needed(schema: ValueSchema) -> list[str]:
    """The fields of a record that are neither optional nor have a default."""
    return [
        name
        for name, field in _fields(schema).items()
        if "default" not in field and not _has_null(schema, name)
    ]


# -- payloads


def _payloads(table: Any, names: Sequence[str], schema: ValueSchema) -> Column:
    if not schema.is_record:
        return _single(table.column(0), schema)
    stored = {field.name: field.type for field in schema.stored}
    arrays = [_plain(table.column(at), stored[name]) for at, name in enumerate(names)]
    rows = pa.table(arrays, names=list(names)).to_pylist(maps_as_pydicts="strict")
    encode = _row_encoder(schema)
    return pa.array([encode(row) for row in rows], pa.binary())


def _plain(column: Column, stored: Any) -> Column:
    """The column in its stored form: times as numbers of the schema's unit."""
    if column.type != stored:
        column = column.cast(stored, safe=False)  # Loses only what the unit of a time cannot hold.
    bare = with_times(stored, numbers)
    return column if bare == stored else column.cast(bare)


def _row_encoder(schema: ValueSchema) -> Callable[[Any], bytes]:
    if schema.kind == pb.Schema.Avro:
        from anabranch.client.schema.avro import AvroSchema
        from anabranch.spark.values.decode import plain_definition

        return AvroSchema(definition=plain_definition(schema.definition)).encode
    import msgspec

    return msgspec.json.Encoder().encode


def _single(column: Column, schema: ValueSchema) -> Column:
    """Encodes a column for a schema that is one value."""
    if schema.kind in (pb.Schema.Json, pb.Schema.Avro):
        encode = _row_encoder(schema)
        values = _plain(column, schema.stored).to_pylist(maps_as_pydicts="strict")
        return pa.array([None if one is None else encode(one) for one in values], pa.binary())
    if schema.kind not in _FIXED:
        return column
    layout, parts = _FIXED[schema.kind]
    there = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    there = pa.concat_arrays(there.chunks) if isinstance(there, pa.ChunkedArray) else there
    found = np.zeros(len(there), np.dtype(layout))
    parts(found, there.cast(schema.type, safe=False))
    kind = pa.binary(found.dtype.itemsize)
    made = pa.FixedSizeBinaryArray.from_buffers(kind, len(found), [None, pa.py_buffer(found.tobytes())])
    made = made.cast(pa.binary())
    return pc.if_else(there.is_valid(), made, pa.scalar(None, pa.binary())) if there.null_count else made


# Values of a fixed size, in the form of Pulsar's clients: big end first.
Parts = Callable[[Any, Any], None]


def _number(unit: Any = None) -> Parts:
    def fill(found: Any, column: Any) -> None:
        plain = column if unit is None else column.cast(unit, safe=False).cast(pa.int64())
        found[:] = plain.fill_null(0).to_numpy(zero_copy_only=False)

    return fill


def _truth(found: Any, column: Any) -> None:
    found[:] = column.fill_null(False).to_numpy(zero_copy_only=False)


def _days(found: Any, column: Any) -> None:
    found[:] = column.cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False)


def _composed(unit_us: int) -> Parts:
    """Two numbers: of `unit_us` microseconds, and of nanoseconds."""

    def fill(found: Any, column: Any) -> None:
        micros = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        found["first"] = micros // unit_us
        found["nanos"] = micros % unit_us * 1000

    return fill


_MILLIS: Final = pa.timestamp("ms", "UTC")
_FIXED: Final[Mapping[int, tuple[Any, Parts]]] = {
    pb.Schema.Bool: ("u1", _truth),
    pb.Schema.Int8: ("i1", _number()),
    pb.Schema.Int16: (">i2", _number()),
    pb.Schema.Int32: (">i4", _number()),
    pb.Schema.Int64: (">i8", _number()),
    pb.Schema.Float: (">f4", _number()),
    pb.Schema.Double: (">f8", _number()),
    pb.Schema.Date: (">i8", _number(_MILLIS)),
    pb.Schema.Timestamp: (">i8", _number(_MILLIS)),
    pb.Schema.Time: (">i8", _number()),
    pb.Schema.LocalTime: (">i8", _number()),
    pb.Schema.LocalDate: (">i8", _days),
    pb.Schema.Instant: ([("first", ">i8"), ("nanos", ">i4")], _composed(1_000_000)),
    pb.Schema.LocalDateTime: ([("first", ">i8"), ("nanos", ">i8")], _composed(86_400_000_000)),
}
