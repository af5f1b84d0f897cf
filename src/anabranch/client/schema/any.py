"""Values as the topic itself describes them: each payload is decoded by the version of the topic's schema that it was
written with.

For tools that show messages of any topic. JSON and Avro become plain values, text and numbers themselves; what has no
schema, or one of another kind, stays bytes.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from anabranch.client.errors import BadArgument, SchemaMismatch
from anabranch.client.schema.avro import AvroSchema
from anabranch.client.schema.schemas import JsonSchema, Schema, StringSchema
from anabranch.errors import AnabranchError
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.avro_bounds import AvroBounds, AvroLimits

# Versions that are remembered. A topic has few; but producers may name versions that it never had.
VERSIONS_MAX: Final = 1000
VERSION_BYTES_MAX: Final = 64

# Numbers as Pulsar's clients write them: big-endian, of that size.
_NUMBERS: Final[Mapping[pb.Schema.Type, struct.Struct]] = {
    pb.Schema.Int8: struct.Struct(">b"),
    pb.Schema.Int16: struct.Struct(">h"),
    pb.Schema.Int32: struct.Struct(">i"),
    pb.Schema.Int64: struct.Struct(">q"),
    pb.Schema.Float: struct.Struct(">f"),
    pb.Schema.Double: struct.Struct(">d"),
    pb.Schema.Bool: struct.Struct(">?"),
}
_MILLISECONDS: Final = struct.Struct(">q")
_TIMES: Final = frozenset({pb.Schema.Date, pb.Schema.Timestamp})

_AVRO_LIMITS: Final = AvroLimits(schema_bytes=8 << 20, body_bytes=64 << 20, values=2_000_000, depth=200)

Decode = Callable[[bytes], Any]


class NumberSchema(Schema[Any]):
    """Numbers and truth values as Pulsar's clients write them."""

    def __init__(self, kind: pb.Schema.Type) -> None:
        self._kind = kind
        self._form = _NUMBERS[kind]

    def encode(self, value: Any) -> bytes:
        is_whole = self._form.format in (">b", ">h", ">i", ">q")
        is_bool = isinstance(value, bool)
        if is_bool != (self._kind == pb.Schema.Bool) or (is_whole and not isinstance(value, int)):
            raise SchemaMismatch(f"{value!r} is no {pb.Schema.Type.Name(self._kind)}")
        try:
            return self._form.pack(value)
        except (struct.error, OverflowError) as error:
            raise SchemaMismatch(f"{value!r} is no {pb.Schema.Type.Name(self._kind)}: {error}") from None

    def decode(self, payload: bytes, version: bytes = b"") -> Any:
        return _unpacked(self._form, payload, self._kind)

    def info(self) -> pb.Schema | None:
        name = pb.Schema.Type.Name(self._kind)
        return pb.Schema(name=name, schema_data=b"", type=self._kind)


def _unpacked(form: struct.Struct, payload: bytes, kind: int) -> Any:
    if len(payload) != form.size:
        raise SchemaMismatch(
            f"{len(payload)} bytes are no {pb.Schema.Type.Name(kind)}, which has {form.size}"
        )
    return form.unpack(payload)[0]


class AnySchema(Schema[Any]):
    """Decodes what a topic holds, whatever its schema is. It is for consumers: nothing is sent with it."""

    def __init__(self) -> None:
        # None for versions whose payloads are bytes.
        self._known: dict[bytes, Decode | None] = {b"": None}

    def encode(self, value: Any) -> bytes:
        raise SchemaMismatch("which schema values are to be written with is not told: give one")

    def decode(self, payload: bytes, version: bytes = b"") -> Any:
        decode = self._known.get(version)
        return payload if decode is None else decode(payload)

    # -- versions of one topic

    def for_topic(self) -> Schema[Any]:
        return AnySchema()

    def knows(self, version: bytes) -> bool:
        return version in self._known or len(version) > VERSION_BYTES_MAX

    def learn(self, version: bytes, writer: pb.Schema | None) -> None:
        try:
            self._remember(version, None if writer is None else decoder_of(writer))
        except AnabranchError as error:
            # Not raised: the payloads can be shown, whether or not their schema can be read here.
            self.refuse(version, error)

    def refuse(self, version: bytes, why: AnabranchError) -> None:
        text = f"how version {version.hex()} of the topic's schema was written cannot be told: {why}"

        def refused(payload: bytes) -> Any:
            raise SchemaMismatch(text)

        self._remember(version, refused)

    def _remember(self, version: bytes, decode: Decode | None) -> None:
        if len(self._known) > VERSIONS_MAX:
            del self._known[next(known for known in self._known if known)]
        self._known[version] = decode


def decoder_of(writer: pb.Schema) -> Decode | None:
    """How payloads of that schema are read; None for those that stay bytes. Raises Unsupported without the package for
    Avro, BadArgument for a definition that is none."""
    kind = writer.type
    if kind == pb.Schema.Json:
        return JsonSchema().decode
    if kind == pb.Schema.Avro:
        return _avro(writer.schema_data)
    if kind == pb.Schema.String:
        return StringSchema().decode
    if kind in _NUMBERS:
        return NumberSchema(kind).decode
    if kind in _TIMES:
        return _time
    return None


def _avro(definition: bytes) -> Decode:
    # The schema and the payload are strangers' here: together they could end the process.
    try:
        bounds = AvroBounds(definition, _AVRO_LIMITS)
    except Exception as error:
        raise BadArgument(f"not an Avro definition that is used here: {error}") from error
    schema = AvroSchema(definition=definition.decode())

    def decode(payload: bytes) -> Any:
        try:
            bounds.check(payload)
        except Exception as error:  # Damaged bytes can raise anything.
            raise SchemaMismatch(f"the payload does not fit the schema: {error}") from error
        return schema.decode(payload)

    return decode


def _time(payload: bytes) -> datetime.datetime:
    milliseconds = _unpacked(_MILLISECONDS, payload, pb.Schema.Timestamp)
    try:
        return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
    except (OverflowError, OSError, ValueError):
        raise SchemaMismatch(
            f"{milliseconds} milliseconds since 1970 are no time in a year that is known"
        ) from None
