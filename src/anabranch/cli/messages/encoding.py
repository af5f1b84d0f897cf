"""What messages of `anabranch produce` are encoded with: nothing, or a schema that is given, or the topic's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from anabranch.cli.messages.fitting import Misfit, fitted, names_of
from anabranch.cli.parsing.options import UsageError
from anabranch.client import AvroSchema, StringSchema
from anabranch.client.schema.any import NumberSchema
from anabranch.client.schema.schemas import Schema, WrittenSchema
from anabranch.errors import AnabranchError
from anabranch.wire import pulsar_pb2 as pb

TOPICS_OWN: Final = "topic"
_NUMBERS: Final[Mapping[str, pb.Schema.Type]] = {
    "int8": pb.Schema.Int8,
    "int16": pb.Schema.Int16,
    "int32": pb.Schema.Int32,
    "int64": pb.Schema.Int64,
    "float": pb.Schema.Float,
    "double": pb.Schema.Double,
    "bool": pb.Schema.Bool,
}
WORDS: Final = (TOPICS_OWN, "string", *_NUMBERS)

# A value that JSON or a table can hold, to a payload.
Encode = Callable[[Any], bytes]


class Encoding:
    """How values become payloads. `info` is the schema that the broker is told; None for bytes."""

    def __init__(self, info: pb.Schema | None = None) -> None:
        """Raises UsageError for a schema that values cannot be written with here."""
        self.info = info
        self._encode: Encode | None = None if info is None else _encode_of(info)
        self._is_text = info is not None and info.type == pb.Schema.String

    @property
    def written(self) -> Schema[Any] | None:
        """The schema for a producer whose payloads are encoded already."""
        return None if self.info is None else WrittenSchema(self.info)

    @property
    def is_plain(self) -> bool:
        """Whether payloads are the bytes that are given."""
        return self._encode is None

    def of_text(self, text: bytes) -> bytes:
        """The payload of a line: JSON, where the schema is not of text. Raises Misfit."""
        if self._encode is None:
            return text
        try:
            value = text.decode() if self._is_text else msgspec.json.decode(text)
        except UnicodeDecodeError:
            raise Misfit("the text is not UTF-8") from None
        except msgspec.DecodeError as error:
            raise Misfit(f"the text is no JSON: {error}") from None
        return self._encoded(value)

    def of_record(self, record: Mapping[str, Any]) -> bytes:
        """The payload of an object: as JSON, without a schema. Raises Misfit."""
        if self._encode is None:
            return msgspec.json.encode(record, enc_hook=str)
        return self._encoded(record)

    def _encoded(self, value: Any) -> bytes:
        assert self._encode is not None
        try:
            return self._encode(value)
        except AnabranchError as error:
            raise Misfit(str(error)) from None


def _encode_of(info: pb.Schema) -> Encode:
    kind = info.type
    if kind == pb.Schema.String:
        return StringSchema().encode
    if kind in _NUMBERS.values():
        return NumberSchema(kind).encode
    if kind not in (pb.Schema.Avro, pb.Schema.Json):
        name = pb.Schema.Type.Name(kind)
        raise UsageError(f"messages of a topic with a schema of type {name} cannot be written from here")
    try:
        definition = json.loads(info.schema_data)
    except ValueError as error:
        raise UsageError(f"the schema is no Avro definition: {error}") from None
    names = names_of(definition)
    if kind == pb.Schema.Json:
        return lambda value: msgspec.json.encode(fitted(value, definition, names, is_plain=True))
    avro: AvroSchema[dict[str, Any]] = AvroSchema(definition=info.schema_data.decode())
    return lambda value: avro.encode(fitted(value, definition, names, is_plain=False))


def given_schema(what: str, kind: str | None) -> pb.Schema:
    """The schema that `--schema` names, other than the topic's own."""
    if what == "string":
        return pb.Schema(name="String", schema_data=b"", type=pb.Schema.String)
    if what in _NUMBERS:
        return NumberSchema(_NUMBERS[what]).info() or pb.Schema()
    try:
        text = Path(what).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"--schema {what}: neither {', '.join(WORDS)} nor a file that can be read: {reason}"
        ) from None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--schema {what} is no JSON: {error}") from None
    properties: Mapping[str, str] = {}
    if isinstance(found, dict) and isinstance(found.get("schema"), str):
        # As Pulsar's tools write it, and `schemas get --json`.
        kind, text, properties = (
            kind or str(found.get("type", "")),
            found["schema"],
            found.get("properties") or {},
        )
    kinds = {"avro": pb.Schema.Avro, "json": pb.Schema.Json}
    number = kinds.get((kind or "avro").lower())
    if number is None:
        raise UsageError(f"--schema {what} is of type {kind}: only avro and json can be written from here")
    info = pb.Schema(name=_name(text), schema_data=text.encode(), type=number)
    for name, value in properties.items():
        info.properties.add(key=str(name), value=str(value))
    return info


def _name(text: str) -> str:
    try:
        return str(json.loads(text).get("name", ""))
    except (ValueError, AttributeError):
        return ""


def encoding(what: str | None, kind: str | None, of_topic: pb.Schema | None, topic: str) -> Encoding:
    if what is None:
        return Encoding()
    if what == TOPICS_OWN:
        if of_topic is None:
            raise UsageError(f"{topic} has no schema: --schema FILE gives it one")
        return Encoding(of_topic)
    return Encoding(given_schema(what, kind))
