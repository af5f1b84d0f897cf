"""A topic's schema as columns: which Arrow type, hence which Spark type, each part of it has. Pure.

The source decodes values into these types, and the sink encodes them from the same types.

    json, avro of a record    a column for each field
    any other schema          one column, `value`

Everything may be null, such as a field that an older version of the schema lacks. Avro's definitions describe JSON as
well, as Pulsar's clients send them to brokers; there bytes are Base64 text.

    boolean, int, long, float, double     boolean, int, bigint, float, double
    string, enum, uuid                    string
    bytes, fixed                          binary
    decimal                               decimal
    date                                  date
    timestamp-millis, -micros             timestamp
    local-timestamp-millis, -micros       timestamp_ntz
    time-millis, time-micros, *-nanos     the whole number that is stored
    record, array, map                    struct, array, map<string, …>
    a union with null                     the other type
    a union of whole numbers, of floats   the widest of them
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from anabranch.spark.values.errors import NoColumns
from anabranch.wire import pulsar_pb2 as pb

Json = Any
VALUE: Final = "value"
_UTC: Final = pa.timestamp("us", "UTC")
_ZONELESS: Final = pa.timestamp("us")
_UTC_MS: Final = pa.timestamp("ms", "UTC")

_PLAIN: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
_LOGICAL: Final[Mapping[tuple[str, str], pa.DataType]] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): _UTC_MS,
    ("long", "timestamp-micros"): _UTC,
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): _ZONELESS,
}
# The type that holds all members of a union: the first of these rows that has every member.
_WIDER: Final[Sequence[tuple[frozenset[str], pa.DataType]]] = (
    (frozenset({"int", "long"}), pa.int64()),
    (frozenset({"int", "float", "double"}), pa.float64()),
    (frozenset({"string", "enum"}), pa.string()),
)

# Schemas that are one value, whose bytes Pulsar's clients define.
PRIMITIVES: Final[Mapping[int, pa.DataType]] = {
    pb.Schema.String: pa.string(),
    pb.Schema.Bool: pa.bool_(),
    pb.Schema.Int8: pa.int8(),
    pb.Schema.Int16: pa.int16(),
    pb.Schema.Int32: pa.int32(),
    pb.Schema.Int64: pa.int64(),
    pb.Schema.Float: pa.float32(),
    pb.Schema.Double: pa.float64(),
    pb.Schema.Date: _UTC,
    pb.Schema.Timestamp: _UTC,
    pb.Schema.Instant: _UTC,
    pb.Schema.LocalDate: pa.date32(),
    pb.Schema.LocalDateTime: _ZONELESS,
    pb.Schema.Time: pa.int64(),
    pb.Schema.LocalTime: pa.int64(),
}


# Java's names in the properties of a schema of pairs.
_KINDS: Final[Mapping[str, Any]] = {
    "BYTES": pb.Schema.Type.Value("None"),
    "BOOLEAN": pb.Schema.Bool,
    "LOCAL_DATE": pb.Schema.LocalDate,
    "LOCAL_TIME": pb.Schema.LocalTime,
    "LOCAL_DATE_TIME": pb.Schema.LocalDateTime,
    "PROTOBUF_NATIVE": pb.Schema.ProtobufNative,
    **{pb.Schema.Type.Name(kind).upper(): kind for kind in (*PRIMITIVES, pb.Schema.Json, pb.Schema.Avro)},
}


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """A topic's schema, and its types in Arrow. Picklable."""

    kind: int  # pb.Schema.Type
    type: pa.DataType  # A struct for a record.
    definition: Json = None  # Avro's definition, for JSON and Avro.
    version: int = -1  # The topic's version; -1 if it has no schema.
    stored: pa.DataType = None  # Like `type`, with times in the unit of the definition.
    parts: tuple[ValueSchema, ValueSchema] | None = None  # Keys and values, for pairs.
    is_separated: bool = False  # Whether the first part is the message's key.

    @property
    def is_record(self) -> bool:
        return self.definition is not None and pa.types.is_struct(self.type)

    @property
    def needs_versions(self) -> bool:
        """Whether rows cannot be read without the schema that they were written with."""
        return self.kind == pb.Schema.Avro or any(one.needs_versions for one in self.parts or ())

    def columns(self, prefix: str = "", taken: Sequence[str] = ()) -> list[pa.Field]:
        """The named columns; raises NoColumns if a name is in use. Names are compared in any case, as Spark does."""
        found = list(self.type) if self.is_record else [pa.field(VALUE, self.type)]
        named = [field.with_name(prefix + field.name) for field in found]
        used = {name.lower() for name in taken}
        clashes = [field.name for field in named if field.name.lower() in used]
        if clashes:
            raise NoColumns(
                f"the topic's schema has the field{'s' * (len(clashes) > 1)} {', '.join(clashes)}, and so has every "
                'message: set another prefix for decoded columns, such as .option("decodePrefix", "value_")'
            )
        return named


BYTES: Final = ValueSchema(pb.Schema.Type.Value("None"), pa.binary())


def value_schema(schema: pb.Schema | None, version: int = -1) -> ValueSchema:
    """A topic's schema in Arrow. None, for a topic without one, means bytes."""
    if schema is None or schema.type == BYTES.kind:
        return BYTES
    if schema.type in (pb.Schema.Json, pb.Schema.Avro):
        definition = _parsed(schema.schema_data)
        stored = stored_type(definition)
        return ValueSchema(schema.type, with_times(stored, micros), definition, version, stored)
    if schema.type in PRIMITIVES:
        return ValueSchema(schema.type, PRIMITIVES[schema.type], version=version)
    if schema.type == pb.Schema.KeyValue:
        return _pair(schema, version)
    if schema.type == pb.Schema.ProtobufNative:
        from anabranch.spark.values.protobuf import definition_of, protobuf_type

        definition = definition_of(schema.schema_data)
        stored = protobuf_type(definition)
        return ValueSchema(schema.type, stored, definition, version, stored)
    raise NoColumns(
        f"a topic with a {pb.Schema.Type.Name(schema.type)} schema is not decoded, but JSON, Avro, ProtobufNative, "
        f"KeyValue of these, {', '.join(map(pb.Schema.Type.Name, PRIMITIVES))} are: read it without decode=true, and "
        "decode the column `value` yourself"
    )


def _pair(schema: pb.Schema, version: int) -> ValueSchema:
    one, other = (value_schema(part, version) for part in parts_of(schema))
    kind = pa.struct([pa.field("key", one.type), pa.field("value", other.type)])
    separated = _told(schema).get("kv.encoding.type") == "SEPARATED"
    return ValueSchema(schema.type, kind, version=version, parts=(one, other), is_separated=separated)


def _told(schema: pb.Schema) -> dict[str, str]:
    pairs: Any = schema.properties  # The stub confuses the enum's KeyValue with the message.
    return {one.key: one.value for one in pairs}


def parts_of(schema: pb.Schema) -> tuple[pb.Schema, pb.Schema]:
    """The schemas of keys and of values. Their definitions stand one behind the other, each behind its size; properties
    give their kinds."""
    told = _told(schema)
    at, data, made = 0, schema.schema_data, []
    for part in ("key", "value"):
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        at += 4
        name = told.get(f"{part}.schema.type", "BYTES")
        if name not in _KINDS or at + max(0, size) > len(data):
            raise NoColumns(f"the topic's schema of pairs cannot be read: its {part} is of type {name}")
        made.append(pb.Schema(type=_KINDS[name], schema_data=data[at : at + max(0, size)]))
        at += max(0, size)
    return made[0], made[1]


def _parsed(data: bytes) -> Json:
    try:
        return json.loads(data)
    except ValueError as error:
        raise NoColumns(f"the topic's schema is not an Avro definition: {error}") from None


def arrow_type(definition: Json) -> pa.DataType:
    """The type of an Avro definition."""
    return with_times(stored_type(definition), micros)


def stored_type(definition: Json) -> pa.DataType:
    """The same, with times in the stored unit."""
    return _Walk().type(definition, "the value", "")


def with_times(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A type with each type of times and dates in it changed."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(with_times(field.type, change)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), with_times(kind.item_type, change))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(with_times(kind.value_type, change)))
    return change(kind) if pa.types.is_timestamp(kind) or pa.types.is_date(kind) else kind


def micros(kind: pa.DataType) -> pa.DataType:
    """Converts a type of times to microseconds, Spark's only unit."""
    return pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else kind


def numbers(kind: pa.DataType) -> pa.DataType:
    """The integer type that times and dates are stored as."""
    return pa.int64() if pa.types.is_timestamp(kind) else pa.int32()


class _Walk:
    """Walks through one definition. A named type is defined where it occurs first, and may be used after that."""

    def __init__(self) -> None:
        self._named: dict[str, pa.DataType | None] = {}  # None: its fields are being read.

    def type(self, of: Json, where: str, namespace: str) -> pa.DataType:
        match of:
            case str():
                return self._by_name(of, where, namespace)
            case list():
                return self._union(of, where, namespace)
            case {"logicalType": str(logical), "type": kind} if (
                found := _logical(kind, logical, of)
            ) is not None:
                self._define(of, namespace, found)
                return found
            case {"type": "record", "fields": list(fields)}:
                return self._record(of, fields, where, namespace)
            case {"type": "enum"}:
                return self._define(of, namespace, pa.string())
            case {"type": "fixed"}:
                return self._define(of, namespace, pa.binary())
            case {"type": "array", "items": items}:
                return pa.list_(pa.field("element", self.type(items, f"{where}[]", namespace)))
            case {"type": "map", "values": values}:
                return pa.map_(pa.string(), self.type(values, f"{where}{{}}", namespace))
            case {"type": inner}:
                return self.type(inner, where, namespace)
            case _:
                raise NoColumns(f"{where}: {json.dumps(of)[:200]} is not an Avro definition")

    def _by_name(self, name: str, where: str, namespace: str) -> pa.DataType:
        if name in _PLAIN:
            return _PLAIN[name]
        if name == "null":
            return pa.string()  # Always null, and tables have no type for that.
        full = _full_name(name, namespace)
        full = full if full in self._named else name
        if full not in self._named:
            raise NoColumns(f"{where}: the type {name} is not defined in the topic's schema")
        found = self._named[full]
        if found is None:
            raise NoColumns(
                f"{where}: the record {name} contains itself, which Spark has no type for: read the topic without "
                "decode=true, and decode the column `value` yourself"
            )
        return found

    def _record(self, of: Mapping[str, Any], fields: list[Any], where: str, namespace: str) -> pa.DataType:
        full = _full_name(str(of.get("name", "")), str(of.get("namespace", namespace)))
        self._named[full] = None
        inner = full.rpartition(".")[0]
        found = pa.struct(
            [pa.field(one["name"], self.type(one["type"], f"{where}.{one['name']}", inner)) for one in fields]
        )
        self._named[full] = found
        return found

    def _define(self, of: Mapping[str, Any], namespace: str, found: pa.DataType) -> pa.DataType:
        if "name" in of:
            self._named[_full_name(str(of["name"]), str(of.get("namespace", namespace)))] = found
        return found

    def _union(self, members: list[Any], where: str, namespace: str) -> pa.DataType:
        others = [one for one in members if one != "null"]
        if len(others) == 1:
            return self.type(others[0], where, namespace)
        if not others:
            return pa.string()
        kinds = [
            one["type"] if isinstance(one, dict) and one.get("type") == "enum" else one for one in others
        ]
        for together, widest in _WIDER:
            if all(isinstance(kind, str) and kind in together for kind in kinds):
                return widest
        names = ", ".join(
            one if isinstance(one, str) else str(one.get("name", one.get("type"))) for one in others
        )
        raise NoColumns(
            f"{where} is one of {names}, which Spark has no type for: read the topic without decode=true, and decode "
            "the column `value` yourself"
        )


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _logical(kind: Json, logical: str, of: Mapping[str, Any]) -> pa.DataType | None:
    """The type of a logical type; None to ignore the logical type."""
    if logical == "decimal":
        precision, scale = int(of.get("precision", 0)), int(of.get("scale", 0))
        # Spark's largest; a larger decimal stays bytes.
        return pa.decimal128(precision, scale) if 0 < precision <= 38 and 0 <= scale <= precision else None
    return _LOGICAL.get((kind, logical)) if isinstance(kind, str) else None
