"""Avro definitions of Python classes: dataclasses and pydantic models, and the types of their fields. Pure.

There are two flavours. Avro's own has types for dates, decimals and identifiers. The flavour for JSON describes the
JSON text, where those are strings; Pulsar's clients give it to the broker with JSON schemas.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

from anabranch.client.errors import BadArgument, SchemaMismatch

_PLAIN: Final[dict[Any, str]] = {
    bool: "boolean",
    int: "long",
    float: "double",
    str: "string",
    bytes: "bytes",
    type(None): "null",
}
_LOGICAL: Final[dict[Any, dict[str, Any]]] = {
    datetime: {"type": "long", "logicalType": "timestamp-micros"},
    date: {"type": "int", "logicalType": "date"},
    time: {"type": "long", "logicalType": "time-micros"},
    UUID: {"type": "string", "logicalType": "uuid"},
}
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ARRAYS: Final[dict[Any, Callable[[Any], Any]]] = {
    list: list,
    Sequence: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
}


@dataclass(frozen=True, slots=True)
class AvroType:
    """A custom definition: `Annotated[Decimal, AvroType.decimal(12, 2)]`, `Annotated[int, AvroType("int")]`."""

    definition: str | Mapping[str, Any]

    @classmethod
    def decimal(cls, precision: int, scale: int) -> AvroType:
        """A decimal of `precision` digits, `scale` of them behind the point."""
        return cls({"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale})


Convert = Callable[[Any], Any]


class Shape(NamedTuple):
    """A type's definition, and how its values are converted for Avro and back; None where no conversion is needed."""

    definition: Any
    write: Convert | None = None
    read: Convert | None = None


def is_model(cls: type) -> bool:
    """Whether the class is a pydantic model, without importing pydantic."""
    return hasattr(cls, "model_fields") and hasattr(cls, "model_validate_json")


def is_record(cls: type) -> bool:
    return dataclasses.is_dataclass(cls) or is_model(cls)


def definition_of(cls: type) -> dict[str, Any]:
    """The Avro definition that describes the JSON of a dataclass or pydantic model."""
    return typing.cast("dict[str, Any]", _record_shape(cls, as_json=True).definition)


def avro_shape_of(cls: type) -> Shape:
    return _record_shape(cls, as_json=False)


def _record_shape(cls: type, *, as_json: bool) -> Shape:
    if not (isinstance(cls, type) and is_record(cls)):
        raise BadArgument(f"{cls!r} has no fields: give a dataclass or a pydantic model")
    return _Walk(as_json)._shape(cls, (), cls.__name__)


class _Field(NamedTuple):
    name: str
    in_json: str
    kind: Any
    notes: Sequence[Any]
    default: Any  # `_MISSING` if there is none.


_MISSING: Final = object()


def _fields(cls: type) -> list[_Field]:
    if is_model(cls):
        return [
            _Field(
                name,
                one.serialization_alias or one.alias or name,
                one.annotation,
                one.metadata,
                _default_of_model(one),
            )
            for name, one in typing.cast(Any, cls).model_fields.items()
        ]
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise BadArgument(f"{cls.__name__}: {error}; define the class at the top of a module") from None
    return [
        _Field(one.name, one.name, hints[one.name], (), _default_of(one))
        for one in dataclasses.fields(cls)
        if one.init
    ]


def _default_of(one: dataclasses.Field[Any]) -> Any:
    if one.default is not dataclasses.MISSING:
        return one.default
    return one.default_factory() if one.default_factory is not dataclasses.MISSING else _MISSING


def _default_of_model(one: Any) -> Any:
    if one.is_required():
        return _MISSING
    if one.default_factory is None:
        return one.default
    try:
        return one.default_factory()
    except TypeError:  # A factory that needs the other fields' values.
        return _MISSING


class _Walk:
    """Walks through one class and all the types of its fields. A named type is defined where it occurs first."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._named: dict[str, tuple[type, Shape]] = {}

    def _shape(self, kind: Any, notes: Sequence[Any], where: str) -> Shape:
        while not isinstance(kind, type) and hasattr(kind, "__supertype__"):
            kind = kind.__supertype__  # A NewType.
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is typing.Annotated:
            return self._shape(arguments[0], [*notes, *arguments[1:]], where)
        own = next((note for note in notes if isinstance(note, AvroType)), None)
        if own is not None and not self._as_json:
            return Shape(own.definition)
        if origin in (typing.Union, types.UnionType):
            return self._union(arguments, notes, where)
        if origin is typing.Literal:
            return self._one_of({type(value) for value in arguments}, where)
        if kind in _PLAIN:
            return Shape(_PLAIN[kind])
        if kind is Decimal or kind in _LOGICAL:
            return self._logical(kind, notes, where)
        container = origin or kind
        if container in _ARRAYS:
            return self._array(container, arguments, where)
        if container in (dict, Mapping):
            return self._map(arguments, where)
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return self._enum(kind, where)
        if isinstance(kind, type) and is_record(kind):
            return self._record(kind)
        raise BadArgument(f"{where}: a schema cannot hold {kind!r}")

    def _logical(self, kind: Any, notes: Sequence[Any], where: str) -> Shape:
        if self._as_json:
            return Shape("string")
        if kind is datetime:
            return Shape(_LOGICAL[datetime], write=_aware)
        if kind is not Decimal:
            return Shape(_LOGICAL[kind])
        digits, places = _digits(notes)
        if digits is None:
            raise BadArgument(
                f"{where}: Avro must know a decimal's digits: Annotated[Decimal, AvroType.decimal(precision, scale)]"
            )
        return Shape(AvroType.decimal(digits, places).definition)

    def _one_of(self, kinds: set[type], where: str) -> Shape:
        if len(kinds) != 1 or (only := kinds.pop()) not in _PLAIN:
            raise BadArgument(f"{where}: the values of a Literal must be of one plain type")
        return Shape(_PLAIN[only])

    def _array(self, container: Any, arguments: tuple[Any, ...], where: str) -> Shape:
        if container is tuple and (len(arguments) != 2 or arguments[1] is not Ellipsis):
            raise BadArgument(f"{where}: of the tuples, a schema can hold tuple[T, ...] only")
        item = self._shape(arguments[0], (), where) if arguments else self._untyped(where)
        make = _ARRAYS[container]
        write, read = item.write, item.read
        return Shape(
            {"type": "array", "items": item.definition},
            None if write is None and make is list else lambda value: list(map(write or _same, value)),
            None if read is None and make is list else lambda value: make(map(read or _same, value)),
        )

    def _map(self, arguments: tuple[Any, ...], where: str) -> Shape:
        if not arguments:
            return self._untyped(where)
        if arguments[0] is not str:
            raise BadArgument(f"{where}: the keys of a dict must be str")
        value = self._shape(arguments[1], (), where)
        write, read = value.write, value.read
        return Shape(
            {"type": "map", "values": value.definition},
            None if write is None else lambda found: {key: write(one) for key, one in found.items()},
            None if read is None else lambda found: {key: read(one) for key, one in found.items()},
        )

    def _untyped(self, where: str) -> Shape:
        raise BadArgument(f"{where}: say of what: list[int], dict[str, float]")

    def _enum(self, kind: type[enum.Enum], where: str) -> Shape:
        members = list(kind)
        if self._as_json:
            values = {type(one.value) for one in members}
            if values != {str} or not all(_NAME.fullmatch(one.value) for one in members):
                return self._one_of(values, where)
            symbols = [one.value for one in members]
        else:
            symbols = [one.name for one in members]
        shape = Shape(
            {"type": "enum", "name": kind.__name__, "symbols": symbols},
            lambda value: value.name if isinstance(value, kind) else _mismatch(value, kind),
            lambda name: kind[name],
        )
        return self._name(kind, shape) or shape

    def _union(self, arguments: tuple[Any, ...], notes: Sequence[Any], where: str) -> Shape:
        # Null first: null is the default of an optional field, and a default belongs to the first branch.
        kinds = sorted(arguments, key=lambda kind: kind is not type(None))
        shapes = [self._shape(kind, notes, where) for kind in kinds]
        definition = [one.definition for one in shapes]
        if len({_branch(one) for one in definition}) < len(definition):
            raise BadArgument(f"{where}: Avro cannot tell the types of {arguments} apart")
        if all(one.write is None and one.read is None for one in shapes):
            return Shape(definition)
        if len(shapes) == 2 and kinds[0] is type(None):
            return _optional(definition, shapes[1])
        return _choice(definition, kinds, shapes, where)

    def _record(self, cls: type) -> Shape:
        known = self._named.get(cls.__name__)
        if known is not None:
            return self._again(cls, known)
        definition: dict[str, Any] = {"type": "record", "name": cls.__name__, "fields": []}
        writers: dict[str, Convert | None] = {}
        readers: dict[str, Convert] = {}
        keys = _keys_of(cls)

        def write(value: Any) -> dict[str, Any]:
            if not isinstance(value, cls):
                _mismatch(value, cls)
            return {
                name: getattr(value, name) if convert is None else convert(getattr(value, name))
                for name, convert in writers.items()
            }

        def read(found: dict[str, Any]) -> Any:
            for name, convert in readers.items():
                found[name] = convert(found[name])
            return cls(**({keys[name]: value for name, value in found.items()} if keys else found))

        shape = Shape(definition, write, read)
        self._named[cls.__name__] = (cls, shape)  # Before its fields, which may have its own type.
        for one in _fields(cls):
            field = self._shape(one.kind, one.notes, f"{cls.__name__}.{one.name}")
            definition["fields"].append(_field_definition(one, field, as_json=self._as_json))
            writers[one.name] = field.write
            if field.read is not None:
                readers[one.name] = field.read
        return shape

    def _name(self, kind: type, shape: Shape) -> Shape | None:
        known = self._named.get(kind.__name__)
        if known is not None:
            return self._again(kind, known)
        self._named[kind.__name__] = (kind, shape)
        return None

    def _again(self, kind: type, known: tuple[type, Shape]) -> Shape:
        if known[0] is not kind:
            raise BadArgument(f"two classes are named {kind.__name__}: Avro tells them apart by name only")
        return known[1]._replace(definition=kind.__name__)


def _same(value: Any) -> Any:
    return value


def _mismatch(value: Any, cls: type) -> Any:
    raise SchemaMismatch(f"a {type(value).__name__} was sent where {cls.__name__} is")


def _aware(value: datetime) -> datetime:
    if isinstance(value, datetime) and value.tzinfo is None:
        raise SchemaMismatch(f"{value} has no time zone: say datetime.now(timezone.utc) and the like")
    return value


def _digits(notes: Sequence[Any]) -> tuple[int | None, int]:
    """The digits that pydantic's `Field(max_digits=…, decimal_places=…)` gives."""
    inner = [one for note in notes for one in getattr(note, "metadata", ())]
    for note in (*notes, *inner):
        digits = getattr(note, "max_digits", None)
        if digits is not None:
            return digits, getattr(note, "decimal_places", None) or 0
    return None, 0


def _branch(definition: Any) -> str:
    """What must differ between the branches of a union: the name, or the type."""
    if isinstance(definition, str):
        return definition
    return str(definition.get("name") or definition["type"])


def _optional(definition: list[Any], shape: Shape) -> Shape:
    write, read = shape.write, shape.read
    return Shape(
        definition,
        None if write is None else lambda value: None if value is None else write(value),
        None if read is None else lambda value: None if value is None else read(value),
    )


def _choice(definition: list[Any], kinds: list[Any], shapes: list[Shape], where: str) -> Shape:
    """A union of several types: records carry their names, the others are distinguished by their types."""
    records: dict[str, Shape] = {}
    for kind, shape in zip(kinds, shapes, strict=True):
        if isinstance(kind, type) and is_record(kind):
            records[kind.__name__] = shape
        elif shape.write is not None or shape.read is not None:
            raise BadArgument(f"{where}: a union may hold classes and plain types, not {kind!r}")

    def write(value: Any) -> Any:
        shape = records.get(type(value).__name__)
        if shape is None or shape.write is None:
            return value
        return type(value).__name__, shape.write(value)

    def read(value: Any) -> Any:
        if isinstance(value, tuple):
            name, found = value
            return (records[name].read or _same)(found)
        if isinstance(value, dict) and len(records) == 1:
            return (next(iter(records.values())).read or _same)(value)
        return value

    return Shape(definition, write, read)


def _keys_of(cls: type) -> dict[str, str]:
    """The argument names of pydantic's constructors, which use a field's alias; empty if all fields use their names."""
    if not is_model(cls):
        return {}
    found = {name: one.alias or name for name, one in typing.cast(Any, cls).model_fields.items()}
    config = typing.cast(Any, cls).model_config
    by_name = config.get("populate_by_name") or config.get("validate_by_name")
    return {} if by_name or all(name == key for name, key in found.items()) else found


def _field_definition(one: _Field, shape: Shape, *, as_json: bool) -> dict[str, Any]:
    field: dict[str, Any] = {"name": one.in_json if as_json else one.name, "type": shape.definition}
    may_be_null = isinstance(shape.definition, list) and shape.definition[0] == "null"
    if one.default is _MISSING or one.default is None:
        # A nullable field may be absent, so that older messages can be read.
        return field | {"default": None} if may_be_null else field
    branch = shape.definition
    if may_be_null:
        # A default belongs to the first branch.
        branch = shape.definition[1]
        field["type"] = [*shape.definition[1:], "null"]
    default = _plain_default(one.default, as_json=as_json)
    return field if default is _MISSING or _is_logical(branch) else field | {"default": default}


def _plain_default(default: Any, *, as_json: bool) -> Any:
    if isinstance(default, enum.Enum):
        return default.value if as_json else default.name
    if isinstance(default, (bool, int, float, str)):
        return default
    if isinstance(default, (dict, list, tuple, set, frozenset)) and not default:
        return {} if isinstance(default, dict) else []
    return _MISSING


def _is_logical(definition: Any) -> bool:
    """Whether the type is logical: a default would have to be given in its encoded form, as numbers or bytes."""
    return isinstance(definition, list) or (isinstance(definition, dict) and "logicalType" in definition)
