"""Avro schemas: values of a dataclass or pydantic model, or dicts of a definition, in Avro's binary form.

Messages written with an older or newer version of the topic's schema are read by Avro's rules: fields that the reader
lacks are left out, fields that the writer lacked take their defaults.
"""

from __future__ import annotations

import copy
import importlib
import io
import json
from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast, overload

from anabranch.client.errors import BadArgument, SchemaMismatch, Unsupported
from anabranch.client.schema.schemas import Schema, schema_info
from anabranch.client.schema.types import Shape, avro_shape_of
from anabranch.errors import AnabranchError
from anabranch.wire import pulsar_pb2 as pb

T = TypeVar("T")

# How many versions that the topic does not have, or whose schema cannot be fetched, are remembered.
UNKNOWN_MAX: Final = 1000
VERSION_BYTES_MAX: Final = 64


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError:
        raise Unsupported("Avro schemas need the package `fastavro`: pip install anabranch[avro]") from None
    return fastavro


def _validation() -> Any:
    return importlib.import_module("fastavro.validation")


class AvroSchema(Schema[T]):
    """The schema of a dataclass or pydantic model; or of an Avro definition, as JSON text or the same as a dict, with
    dict values.

    Integers are `long`, `float` is `double`, enumerations are written by name; dates, times, identifiers and decimals
    have Avro's types for them. `Annotated[int, AvroType("int")]` gives a field another type.
    """

    @overload
    def __init__(
        self: AvroSchema[dict[str, Any]],
        cls: None = None,
        *,
        definition: str | Mapping[str, Any],
        properties: Mapping[str, str] | None = None,
    ) -> None: ...

    @overload
    def __init__(self, cls: type[T], *, properties: Mapping[str, str] | None = None) -> None: ...

    def __init__(
        self,
        cls: type[T] | None = None,
        *,
        definition: str | Mapping[str, Any] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        if (cls is None) == (definition is None):
            raise BadArgument("an Avro schema is of a class or of a definition: give one of them")
        avro = _fastavro()
        if cls is not None:
            self._shape = avro_shape_of(cls)
        elif isinstance(definition, str):
            self._shape = Shape(_parsed_json(definition))
        else:
            self._shape = Shape(definition)
        self._properties = dict(properties or {})
        try:
            self._own = avro.parse_schema(_unqualified(self._shape.definition))
        except Exception as error:  # fastavro's own errors say what is wrong with the definition.
            raise BadArgument(f"not an Avro definition: {error}") from error
        self._names = {"return_record_name": True, "return_record_name_override": True} if cls else {}
        self._write = avro.schemaless_writer
        self._check = _validation().validate
        self._read = avro.schemaless_reader
        # The writer's schema for each version of the topic; None if it is the same as ours, an error if it cannot be
        # known.
        self._writers: dict[bytes, Any] = {b"": None}
        self._of_others: SchemaMismatch | None = None  # The same for versions that are not remembered.

    def encode(self, value: T) -> bytes:
        buffer = io.BytesIO()
        try:
            datum = value if self._shape.write is None else self._shape.write(value)
            # The writer would cut 1.5 to 1 and make "no" true.
            self._check(datum, self._own, raise_errors=True)
            self._write(buffer, self._own, datum)
        except SchemaMismatch:
            raise
        except Exception as error:  # fastavro passes on any error of the value.
            # The check's error lists what is wrong, as JSON of several lines.
            why = "; ".join(str(one) for one in getattr(error, "errors", ())) or error
            raise SchemaMismatch(f"a {type(value).__name__} does not fit the schema: {why}") from error
        return buffer.getvalue()

    def decode(self, payload: bytes, version: bytes = b"") -> T:
        writer = self._writers.get(version, self._of_others)
        if isinstance(writer, SchemaMismatch):
            raise SchemaMismatch(str(writer))
        try:
            if writer is None:
                found = self._read(io.BytesIO(payload), self._own, None, **self._names)
            else:
                found = self._read(io.BytesIO(payload), writer, self._own, **self._names)
            return cast(T, found if self._shape.read is None else self._shape.read(found))
        except Exception as error:  # Damaged bytes can raise anything.
            raise SchemaMismatch(f"the payload does not fit the schema: {error}") from error

    def info(self) -> pb.Schema | None:
        return schema_info(pb.Schema.Avro, self._shape.definition, self._properties)

    # -- versions

    def for_topic(self) -> Schema[T]:
        own = copy.copy(self)
        own._writers = {b"": None}
        return own

    def knows(self, version: bytes) -> bool:
        # Any producer may name a version that the topic never had; the topic's own versions have eight bytes.
        return version in self._writers or len(version) > VERSION_BYTES_MAX

    def learn(self, version: bytes, writer: pb.Schema | None) -> None:
        if writer is None or writer.type != pb.Schema.Avro:
            self._as_ours(version)
            return
        try:
            definition = _unqualified(_parsed_json(writer.schema_data.decode()))
            if isinstance(definition, dict) and isinstance(self._own, dict) and "name" in self._own:
                # The names of classes may differ; their fields matter.
                definition["name"] = self._own["name"]
            parsed = _fastavro().parse_schema(definition)
        except Exception as error:  # As above, or any error of a text that is no definition.
            raise SchemaMismatch(f"the topic's schema cannot be read: {error}") from error
        self._writers[version] = None if _same(parsed, self._own) else parsed

    def refuse(self, version: bytes, why: AnabranchError) -> None:
        error = SchemaMismatch(
            f"how version {version.hex()} of the topic's schema was written cannot be told: {why}"
        )
        refused = [known for known, writer in self._writers.items() if isinstance(writer, SchemaMismatch)]
        if len(refused) >= UNKNOWN_MAX:
            del self._writers[refused[0]]
            self._of_others = error
        self._writers[version] = error

    def _as_ours(self, version: bytes) -> None:
        ours = [known for known, writer in self._writers.items() if writer is None and known]
        if len(ours) >= UNKNOWN_MAX:
            # Unknown versions are read in the same way, and asked for again.
            del self._writers[ours[0]]
        self._writers[version] = None


def _parsed_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadArgument(f"not an Avro definition: {error}") from error


def _same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True, default=str) == json.dumps(other, sort_keys=True, default=str)


def _unqualified(definition: Any) -> Any:
    """A copy without namespaces: those of Java's classes are packages, which Python's classes do not have."""
    names: dict[str, str] = {}
    _collect_names(definition, "", names)
    if len(set(names.values())) < len(names):
        return copy.deepcopy(definition)  # Two names differ only in their namespaces.
    return _renamed(definition, names)


def _collect_names(definition: Any, namespace: str, names: dict[str, str]) -> None:
    if isinstance(definition, list):
        for one in definition:
            _collect_names(one, namespace, names)
    elif isinstance(definition, Mapping):
        namespace = definition.get("namespace", namespace)
        if definition.get("type") in ("record", "enum", "fixed", "error"):
            name = definition["name"]
            full = name if "." in name or not namespace else f"{namespace}.{name}"
            names[full] = full.rpartition(".")[2]
            namespace = full.rpartition(".")[0]
        for part in ("items", "values", "type"):
            if isinstance(definition.get(part), (Mapping, list)):
                _collect_names(definition[part], namespace, names)
        for field in definition.get("fields", ()):
            _collect_names(field["type"], namespace, names)


def _renamed(definition: Any, names: Mapping[str, str]) -> Any:
    if isinstance(definition, str):
        return names.get(definition, definition)
    if isinstance(definition, list):
        return [_renamed(one, names) for one in definition]
    if not isinstance(definition, Mapping):
        return definition
    made = {key: value for key, value in definition.items() if key != "namespace"}
    if "name" in made and "type" in made:
        made["name"] = made["name"].rpartition(".")[2]
    for part in ("items", "values", "type"):
        if part in made:
            made[part] = _renamed(made[part], names)
    if "fields" in made:
        made["fields"] = [{**field, "type": _renamed(field["type"], names)} for field in made["fields"]]
    return made
