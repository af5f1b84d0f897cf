"""Data plane. Decodes values of a topic with a schema to columns of the types of `anabranch.spark.values.types`.

    decoder = Decoder(schema, writer_of)
    decoder.decode(values, versions)      # an Arrow array of schema.type, and which rows could not be decoded

The schema is the one that was declared when the query was analysed. Rows that were written with another version are
resolved into it: fields that they lack are null (with Avro, the declared default), further ones are left out. Whether a
row can be decoded depends on that row alone, so a batch that fails as a whole is halved until the rows are found.

Rows per core and second: JSON, which Arrow reads, a million; JSON with maps or bytes in it, by msgspec, half a million;
Avro, by fastavro, a quarter of a million. Plain numbers, times and text are columns already, for NumPy and Arrow to
process.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from typing import Annotated, Any, Final, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.errors import AnabranchError
from anabranch.spark.values.types import ValueSchema, numbers, with_times
from anabranch.wire import pulsar_pb2 as pb

Column = Any  # pa.Array; pyarrow ships no types.
Versions = npt.NDArray[np.int64]
Engine = Callable[
    [Column], Column
]  # Turns values into an array of the schema's type; raises if any cannot be decoded.

# The errors of an engine: pyarrow's and msgspec's are kinds of ValueError, fastavro's are raised as mismatches.
_FAULTS: Final = (ValueError, TypeError, OverflowError, AnabranchError, pa.ArrowException)


class BadSchemaValue(AnabranchError, ValueError):
    """A value does not fit the schema of its topic."""


class Decoder:
    """`writer_of` returns a version of the topic's schema; it is called once for each version that rows name."""

    def __init__(self, schema: ValueSchema, writer_of: Callable[[int], pb.Schema | None]) -> None:
        self._schema = schema
        self._writer_of = writer_of
        self._engines: dict[int, Engine] = {}

    def decode(
        self, values: Column, versions: Versions | None = None, keys: Column = None
    ) -> tuple[Column, list[tuple[int, str]]]:
        """The array, null where a message has no value or cannot be decoded; and for the latter the row and the
        reason."""
        if versions is None or not self._schema.needs_versions or not len(versions):
            return _tolerant(self._engine(self._schema.version), values, self._schema.type)
        found = np.unique(versions)
        if len(found) == 1:
            return _tolerant(self._engine(int(found[0])), values, self._schema.type)
        parts: list[Column] = []
        bad: list[tuple[int, str]] = []
        places = [np.flatnonzero(versions == version) for version in found]
        for version, rows in zip(found.tolist(), places, strict=True):
            part, faults = _tolerant(self._engine(version), values.take(pa.array(rows)), self._schema.type)
            parts.append(part)
            bad += [(int(rows[row]), why) for row, why in faults]
        back = np.argsort(np.concatenate(places), kind="stable")
        return pa.concat_arrays(parts).take(pa.array(back)), sorted(bad)

    def _engine(self, version: int) -> Engine:
        if version not in self._engines:
            asks = self._schema.needs_versions and version not in (-1, self._schema.version)
            writer = self._writer_of(version) if asks else None
            try:
                self._engines[version] = _engine_of(self._schema, writer)
            except _FAULTS as error:
                # A version that cannot be read makes bad rows, like bytes that cannot be read.
                self._engines[version] = _refusing(str(error))
        return self._engines[version]


def _engine_of(schema: ValueSchema, writer: pb.Schema | None) -> Engine:
    if schema.kind == pb.Schema.Avro:
        return _avro(schema, writer)
    if schema.kind == pb.Schema.Json:
        return _json_by_msgspec(schema) if _has_odd(schema.stored) else _json(schema)
    if schema.kind == pb.Schema.ProtobufNative:
        return _protobuf(schema)
    if schema.kind == pb.Schema.String:
        return lambda values: values.cast(pa.string())
    return _FIXED[schema.kind](schema.type) if schema.kind in _FIXED else lambda values: values


def _refusing(why: str) -> Engine:
    def decode(values: Column) -> Column:
        raise BadSchemaValue(why)

    return decode


def _tolerant(engine: Engine, values: Column, kind: Any) -> tuple[Column, list[tuple[int, str]]]:
    """The engine's result, with nulls for the rows that it raises for."""
    try:
        return engine(values), []
    except _FAULTS as error:
        if len(values) == 1:
            return pa.nulls(1, kind), [(0, str(error))]
    half = len(values) // 2
    one, bad = _tolerant(engine, values[:half], kind)
    other, more = _tolerant(engine, values[half:], kind)
    return pa.concat_arrays([one, other]), [*bad, *((half + row, why) for row, why in more)]


# -- JSON


def _json(schema: ValueSchema) -> Engine:
    """Decodes with Arrow's reader of JSON lines. Each value stands in its own object, so an empty value is an error; a
    value that contains several, or the end of a line, changes the number of rows or is an error: neither shifts the
    others."""
    from pyarrow import json as lines

    wire = with_times(schema.stored, numbers)
    parsing = lines.ParseOptions(
        explicit_schema=pa.schema([("v", wire)]), newlines_in_values=False, unexpected_field_behavior="ignore"
    )

    def decode(values: Column) -> Column:
        parts = (pa.scalar(b'{"v":'), _on_a_line(values), pa.scalar(b"}\n"), pa.scalar(b""))
        joined = pc.binary_join_element_wise(*parts, null_handling="replace", null_replacement=b"null")
        if not len(values):
            return pa.array([], schema.type)
        data = joined.buffers()[2]
        reading = lines.ReadOptions(use_threads=False, block_size=data.size + 1)
        table = lines.read_json(pa.BufferReader(data), read_options=reading, parse_options=parsing)
        if table.num_rows != len(values):
            raise BadSchemaValue("more than one JSON value")
        found = _one(table.column("v"))
        found.validate(full=True)  # The reader accepts any bytes as text.
        return _timed(found, schema)

    return decode


def _on_a_line(values: Column) -> Column:
    """Replaces line ends by blanks, which mean the same in JSON, where they are allowed at all."""
    if not pc.any(pc.match_substring(values, "\n")).as_py():
        return values
    return pc.replace_substring(values, "\n", " ")


def _has_odd(kind: Any) -> bool:
    """Whether the type contains maps or bytes, which Arrow's reader of JSON does not support."""
    if pa.types.is_struct(kind):
        return any(_has_odd(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _has_odd(kind.value_type)
    return bool(pa.types.is_map(kind) or pa.types.is_binary(kind))


def _json_by_msgspec(schema: ValueSchema) -> Engine:
    import msgspec

    decoder = msgspec.json.Decoder(_python_type(with_times(schema.stored, numbers)))

    def decode(values: Column) -> Column:
        with _no_collecting():
            found = [None if one is None else decoder.decode(one) for one in values.to_pylist()]
            return _from_python(found, schema)

    return decode


def _python_type(kind: Any) -> Any:
    """The type for msgspec to check: dicts without the fields that were not asked for."""
    import msgspec

    if pa.types.is_struct(kind):
        fields = {field.name: _python_type(field.type) for field in kind}
        return TypedDict("Record", fields, total=False) | None  # type: ignore[operator]
    if pa.types.is_list(kind):
        return list[_python_type(kind.value_type)] | None  # type: ignore[misc]
    if pa.types.is_map(kind):
        return dict[str, _python_type(kind.item_type)] | None  # type: ignore[misc]
    if pa.types.is_integer(kind):
        most = 1 << (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-most, le=most - 1)] | None
    if pa.types.is_decimal(kind):
        return Decimal | None
    plain = {pa.bool_(): bool, pa.float32(): float, pa.float64(): float, pa.string(): str, pa.binary(): bytes}
    return plain[kind] | None


# -- Avro


def _avro(schema: ValueSchema, writer: pb.Schema | None) -> Engine:
    from anabranch.client.schema.avro import AvroSchema

    avro = AvroSchema(definition=plain_definition(schema.definition))
    if writer is not None:
        if writer.type != pb.Schema.Avro:
            name = pb.Schema.Type.Name(writer.type)
            raise BadSchemaValue(f"the topic's schema was Avro when the query began, and now it is {name}")
        plain = pb.Schema()
        plain.CopyFrom(writer)
        plain.schema_data = json.dumps(plain_definition(json.loads(writer.schema_data))).encode()
        avro.learn(b"w", plain)
    version = b"" if writer is None else b"w"

    def decode(values: Column) -> Column:
        read = avro.decode
        with _no_collecting():
            found = [None if one is None else read(one, version) for one in values.to_pylist()]
            return _from_python(found, schema)

    return decode


def plain_definition(definition: Any) -> Any:
    """The definition without logical types, except decimals: their values are numbers and text, which Arrow accepts
    unchanged."""
    if isinstance(definition, list):
        return [plain_definition(one) for one in definition]
    if not isinstance(definition, Mapping):
        return definition
    made = {key: value for key, value in definition.items()}
    if made.get("logicalType") != "decimal":
        made.pop("logicalType", None)
    for part in ("items", "values", "type"):
        if part in made:
            made[part] = plain_definition(made[part])
    if "fields" in made:
        made["fields"] = [{**field, "type": plain_definition(field["type"])} for field in made["fields"]]
    return made


# -- Protobuf


def _protobuf(schema: ValueSchema) -> Engine:
    from anabranch.spark.values.protobuf import reader_of

    read = reader_of(schema.definition)

    def decode(values: Column) -> Column:
        with _no_collecting():
            found = [None if one is None else read(one) for one in values.to_pylist()]
            return _from_python(found, schema)

    return decode


# -- values of a fixed size, in the form of Pulsar's clients: big end first


def _records(values: Column, layout: Any) -> npt.NDArray[Any]:
    """The rows that are not null, as NumPy records."""
    layout = np.dtype(layout)
    there = values.drop_null()
    sizes = pc.binary_length(there)
    if len(there) and not pc.all(pc.equal(sizes, layout.itemsize)).as_py():
        wrong = sizes.filter(pc.not_equal(sizes, layout.itemsize))[0].as_py()
        raise BadSchemaValue(f"{wrong} bytes, where {layout.itemsize} are expected")
    _, offsets, data = there.buffers()
    if not len(there):
        return np.zeros(0, layout)
    start = int(np.frombuffer(offsets, np.int32)[there.offset])
    return np.frombuffer(data, layout, len(there), start)


def _spread(made: Column, values: Column) -> Column:
    """Adds nulls where the values have them."""
    if not values.null_count:
        return made
    there = values.is_valid().to_numpy(zero_copy_only=False)
    return made.take(pa.array(np.cumsum(there) - 1, mask=~there))


def _number(layout: str, unit: Any = None) -> Callable[[Any], Engine]:
    def engine(kind: Any) -> Engine:
        def decode(values: Column) -> Column:
            found = _records(values, layout)
            made = pa.array(found.astype(found.dtype.newbyteorder("=")))
            return _spread((made if unit is None else made.cast(unit)).cast(kind), values)

        return decode

    return engine


def _boolean(kind: Any) -> Engine:
    return lambda values: _spread(pa.array(_records(values, "u1") != 0), values)


def _composed(first: str, second: str, unit: int, per_second: int) -> Callable[[Any], Engine]:
    """Two numbers: of `unit` microseconds, and of nanoseconds."""

    def engine(kind: Any) -> Engine:
        def decode(values: Column) -> Column:
            found = _records(values, [("first", first), ("nanos", second)])
            whole = found["first"].astype(np.int64)
            if len(whole) and max(abs(int(whole.min())), abs(int(whole.max()))) >= (1 << 62) // unit:
                raise BadSchemaValue("a time that is too far away")
            made = pa.array(whole * unit + found["nanos"].astype(np.int64) // per_second)
            return _spread(made.cast(kind), values)

        return decode

    return engine


_FIXED: Final[Mapping[int, Callable[[Any], Engine]]] = {
    pb.Schema.Bool: _boolean,
    pb.Schema.Int8: _number("i1"),
    pb.Schema.Int16: _number(">i2"),
    pb.Schema.Int32: _number(">i4"),
    pb.Schema.Int64: _number(">i8"),
    pb.Schema.Float: _number(">f4"),
    pb.Schema.Double: _number(">f8"),
    pb.Schema.Date: _number(">i8", pa.timestamp("ms", "UTC")),
    pb.Schema.Timestamp: _number(">i8", pa.timestamp("ms", "UTC")),
    pb.Schema.Time: _number(">i8"),
    pb.Schema.LocalTime: _number(">i8"),
    pb.Schema.LocalDate: _number(">i8", pa.int32()),
    pb.Schema.Instant: _composed(">i8", ">i4", 1_000_000, 1000),
    pb.Schema.LocalDateTime: _composed(">i8", ">i8", 86_400_000_000, 1000),
}


# -- common parts


def _from_python(found: list[Any], schema: ValueSchema) -> Column:
    return _timed(pa.array(found, with_times(schema.stored, numbers)), schema)


def _timed(found: Column, schema: ValueSchema) -> Column:
    """Converts numbers that are times to times."""
    if found.type != schema.stored:
        found = found.cast(schema.stored)
    return found if found.type == schema.type else found.cast(schema.type)


def _one(column: Any) -> Column:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


@contextmanager
def _no_collecting() -> Iterator[None]:
    """Turns the garbage collector off: looking for cycles among many short-lived objects takes longer than making
    them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
