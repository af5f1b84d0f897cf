"""Messages of Protobuf as Arrow: the types of a schema that carries its descriptors, and a reader of its bytes.

    bool, int32, int64, float, double    boolean, int, bigint, float, double
    uint32; uint64                       bigint; decimal(20, 0)
    string, bytes; enum                  string, binary; its name, or its number where it has none
    message; repeated; map               struct; array; map
    google.protobuf.Timestamp            timestamp

A field that is not set is null if Protobuf can distinguish that (messages, `optional` and those of a oneof), else its
default.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from anabranch.spark.values.errors import NoColumns

Definition = Mapping[str, str]  # In the form of Pulsar's clients, in JSON.
Read = Callable[[Any], Any]
_F = FieldDescriptor
_TIMESTAMP: Final = "google.protobuf.Timestamp"

_PLAIN: Final[Mapping[int, pa.DataType]] = {
    _F.CPPTYPE_INT32: pa.int32(),
    _F.CPPTYPE_INT64: pa.int64(),
    _F.CPPTYPE_UINT32: pa.int64(),
    _F.CPPTYPE_UINT64: pa.decimal128(20, 0),
    _F.CPPTYPE_DOUBLE: pa.float64(),
    _F.CPPTYPE_FLOAT: pa.float32(),
    _F.CPPTYPE_BOOL: pa.bool_(),
    _F.CPPTYPE_ENUM: pa.string(),
}


def definition_of(data: bytes) -> Definition:
    """Reads a schema's definition. Raises NoColumns if the schema is not one of Protobuf."""
    try:
        found = json.loads(data)
        return {name: str(found[name]) for name in ("fileDescriptorSet", "rootMessageTypeName")}
    except (ValueError, KeyError, TypeError) as error:
        raise NoColumns(f"the topic's schema has no descriptors of Protobuf: {error!r}") from None


def descriptor_of(definition: Definition) -> Descriptor:
    """The descriptor of the message type of the values."""
    files = descriptor_pb2.FileDescriptorSet()
    root = definition["rootMessageTypeName"]
    try:
        files.ParseFromString(base64.b64decode(definition["fileDescriptorSet"]))
        pool = descriptor_pool.DescriptorPool()
        waiting = {one.name: one for one in files.file}

        def add(one: descriptor_pb2.FileDescriptorProto) -> None:
            for name in one.dependency:
                if (other := waiting.pop(name, None)) is not None:
                    add(other)
            pool.Add(one)

        while waiting:
            add(waiting.pop(next(iter(waiting))))
        return pool.FindMessageTypeByName(root)
    except (DecodeError, ValueError, TypeError, KeyError) as error:
        raise NoColumns(f"the topic's schema has no usable description of {root}: {error}") from None


def protobuf_type(definition: Definition) -> pa.DataType:
    return _struct(descriptor_of(definition), ())


def _struct(message: Descriptor, within: tuple[str, ...]) -> pa.DataType:
    if message.full_name in within:
        raise NoColumns(
            f"the message {message.full_name} contains itself, which Spark has no type for: read the topic without "
            "decode=true, and decode the column `value` yourself"
        )
    inside = (*within, message.full_name)
    return pa.struct([pa.field(one.name, _field_type(one, inside)) for one in message.fields])


def _field_type(field: FieldDescriptor, within: tuple[str, ...]) -> pa.DataType:
    if (pair := _pair(field)) is not None:
        key, value = (pair.fields_by_name[name] for name in ("key", "value"))
        return pa.map_(_one_type(key, within), _one_type(value, within))
    one = _one_type(field, within)
    return pa.list_(pa.field("element", one)) if _is_repeated(field) else one


def _one_type(field: FieldDescriptor, within: tuple[str, ...]) -> pa.DataType:
    if (message := field.message_type) is not None:
        is_time = message.full_name == _TIMESTAMP
        return pa.timestamp("us", "UTC") if is_time else _struct(message, within)
    if field.cpp_type == _F.CPPTYPE_STRING:
        return pa.binary() if field.type == _F.TYPE_BYTES else pa.string()
    return _PLAIN[field.cpp_type]


def _is_repeated(field: Any) -> bool:
    """Whether a field is repeated. Protobuf before 6.31 says it by the label only, which later releases remove."""
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)


def _pair(field: FieldDescriptor) -> Descriptor | None:
    """The message of a map's entries; None if the field is no map."""
    message = field.message_type if _is_repeated(field) else None
    return message if message is not None and message.GetOptions().map_entry else None


# -- reading


def reader_of(definition: Definition) -> Callable[[bytes], dict[str, Any]]:
    """A function from bytes to the Python form of a row. It raises ValueError for bytes that are no such message."""
    message = descriptor_of(definition)
    made = message_factory.GetMessageClass(message)
    read = _message_reader(message)

    def decode(data: bytes) -> dict[str, Any]:
        try:
            return read(made.FromString(data))  # type: ignore[no-any-return]
        except DecodeError as error:
            raise ValueError(f"no message {message.full_name}: {error}") from None

    return decode


def _message_reader(message: Descriptor) -> Read:
    if message.full_name == _TIMESTAMP:
        return lambda found: found.seconds * 1_000_000 + found.nanos // 1000
    fields = [(one.name, _field_reader(one)) for one in message.fields]
    return lambda found: {name: read(found) for name, read in fields}


def _field_reader(field: FieldDescriptor) -> Read:
    name = field.name
    if (pair := _pair(field)) is not None:
        value = _one_reader(pair.fields_by_name["value"])
        # By key: a map's messages are created on access.
        return lambda found: [(key, value(getattr(found, name)[key])) for key in getattr(found, name)]
    one = _one_reader(field)
    if _is_repeated(field):
        return lambda found: list(map(one, getattr(found, name)))
    if field.has_presence:
        return lambda found: one(getattr(found, name)) if found.HasField(name) else None
    return lambda found: one(getattr(found, name))


def _one_reader(field: FieldDescriptor) -> Read:
    if field.message_type is not None:
        return _message_reader(field.message_type)
    if field.enum_type is not None:
        names = {number: one.name for number, one in field.enum_type.values_by_number.items()}
        return partial(_name_of, names)
    return _same


def _name_of(names: Mapping[int, str], number: int) -> str:
    return names.get(number, str(number))


def _same(value: Any) -> Any:
    return value
