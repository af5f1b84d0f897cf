"""Whether a topic's next schema may follow the earlier ones, by Pulsar's compatibility strategies. Pure.

Avro, JSON and Protobuf schemas are Avro records on the wire: two are compatible if a reader with one schema can read
what was written with the other (Avro specification, "Schema Resolution"). Records are matched by their fields, not by
their names: clients name a record after a class, and renaming a class changes no byte. Key/value schemas are compared
part by part, native Protobuf ones by their root message, and all others have only a type.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, Protocol

from anabranch.wire import pulsar_pb2 as pb

DEFAULT_STRATEGY: Final = "FULL"

# The most steps to compare a schema with all versions, about a second. A thousand fields take thousands.
STEPS_MAX: Final = 500_000
# The number of members of a set that are compared in the time of one step.
_MEMBERS_PER_STEP: Final = 16
# The most characters of a type that a refusal shows.
SHOWN_MAX: Final = 200
# The most characters of a type's name with its namespace: it is composed again wherever a schema refers to the type.
NAME_CHARS_MAX: Final = 10_000

# `None` is a keyword of Python.
TYPE_NONE: Final = pb.Schema.Type.Value("None")
_AVRO_TYPES: Final = frozenset({pb.Schema.Avro, pb.Schema.Json, pb.Schema.Protobuf})
_PROMOTIONS: Final = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "string": {"bytes"},
    "bytes": {"string"},
}
# Pulsar's names of the types in text; the protocol itself has other names for some.
TYPE_NAMES: Final = {number: name.upper() for name, number in pb.Schema.Type.items()} | {
    pb.Schema.Bool: "BOOLEAN",
    pb.Schema.KeyValue: "KEY_VALUE",
    pb.Schema.ProtobufNative: "PROTOBUF_NATIVE",
    pb.Schema.LocalDate: "LOCAL_DATE",
    pb.Schema.LocalTime: "LOCAL_TIME",
    pb.Schema.LocalDateTime: "LOCAL_DATE_TIME",
    pb.Schema.AutoConsume: "AUTO_CONSUME",
}
# Bytes have no schema on the wire. BOOL is what earlier versions of this broker wrote.
TYPE_NUMBERS: Final = {name: number for number, name in TYPE_NAMES.items()} | {
    "BYTES": TYPE_NONE,
    "BOOL": pb.Schema.Bool,
}


class Definition(Protocol):
    @property
    def type(self) -> int: ...

    @property
    def data(self) -> bytes: ...

    @property
    def properties(self) -> Mapping[str, str]: ...


class _Part(NamedTuple):
    """The key's or the value's schema inside a key/value schema."""

    type: int
    data: bytes
    properties: Mapping[str, str]


class Unreadable(ValueError):
    """The definition is not a schema of its type."""


def is_same(one: Definition, other: Definition) -> bool:
    """Whether both definitions are equal. Spacing and order of JSON members do not count."""
    return same_as(one)(other)


def same_as(one: Definition) -> Callable[[Definition], bool]:
    """`is_same` for many others: `one` is parsed once."""
    if one.type == pb.Schema.KeyValue:
        # Primitive parts have no definition: they differ only in their types.
        are_same = [same_as(part) for part in _parts(one)]
        return lambda other: (
            other.type == one.type
            and all(is_same(part) for is_same, part in zip(are_same, _parts(other), strict=True))
        )
    read = cache(lambda: json.loads(one.data))

    def is_it(other: Definition) -> bool:
        if one.type != other.type:
            return False
        if one.data == other.data:
            return True
        if one.type not in _AVRO_TYPES:
            return False
        try:
            return bool(read() == json.loads(other.data))
        except (ValueError, RecursionError):
            return False

    return is_it


def defect(schema: Definition) -> str | None:
    """Why the definition is not valid for its own type, or None if it is."""
    try:
        _check_definition(schema)
    except Unreadable as error:
        return str(error)
    return None


def _check_definition(schema: Definition) -> None:
    if schema.type == pb.Schema.KeyValue:
        for part in _parts(schema):
            if part.type < 0:
                raise Unreadable(
                    "a key/value schema names its parts in key.schema.type and value.schema.type"
                )
            _check_definition(part)
    elif schema.type == pb.Schema.ProtobufNative:
        _root_message(schema.data)
    elif schema.type == pb.Schema.Json:
        # Old clients wrote another kind of description than Avro's, and their schemas are still in use.
        try:
            is_object = isinstance(json.loads(schema.data), dict)
        except (ValueError, RecursionError):
            is_object = False
        if not is_object:
            raise Unreadable("a JSON schema is described by a JSON object")
    elif schema.type in _AVRO_TYPES:
        _parse(schema.data)


def objection(before: Sequence[Definition], new: Definition, strategy: str) -> str | None:
    """Why `new` may not follow the versions `before` (oldest first), or None if it may."""
    if strategy == "ALWAYS_COMPATIBLE" or not before:
        return None
    if strategy == "ALWAYS_INCOMPATIBLE":
        return "this namespace allows no change of a schema"
    compared = before if strategy.endswith("_TRANSITIVE") else before[-1:]
    direction = strategy.removesuffix("_TRANSITIVE")
    steps = _Steps()
    for old in compared:
        if old.type != new.type:
            return f"the topic's schema is of type {_name(old.type)}, not {_name(new.type)}"
        try:
            reason = _compare(old, new, direction, steps)
        except Unreadable as error:
            return str(error)
        except RecursionError:
            return "the schemas are nested too deeply to be compared"
        if reason is not None:
            return reason
    return None


def consumer_objection(before: Sequence[Definition], reader: Definition, strategy: str) -> str | None:
    """Why a consumer with this schema may not read the topic, or None if it may."""
    if strategy in ("BACKWARD_TRANSITIVE", "FULL_TRANSITIVE", "ALWAYS_COMPATIBLE", "ALWAYS_INCOMPATIBLE"):
        return objection(before, reader, strategy)
    return objection(before, reader, "BACKWARD")


def _name(type: int) -> str:
    return pb.Schema.Type.Name(type) if type in pb.Schema.Type.values() else str(type)


def _compare(old: Definition, new: Definition, direction: str, steps: _Steps) -> str | None:
    if old.type in _AVRO_TYPES:
        older, newer = _parse(old.data), _parse(new.data)
        reason = None
        if direction in ("BACKWARD", "FULL"):
            reason = _Comparison(steps).fault(newer, older)
        if reason is None and direction in ("FORWARD", "FULL"):
            reason = _Comparison(steps).fault(older, newer)
        return reason
    if old.type == pb.Schema.KeyValue:
        for old_part, new_part in zip(_parts(old), _parts(new), strict=True):
            if old_part.type != new_part.type:
                return f"a part of type {_name(old_part.type)} became {_name(new_part.type)}"
            reason = _compare(old_part, new_part, direction, steps)
            if reason is not None:
                return reason
    if old.type == pb.Schema.ProtobufNative:
        before, after = _root_message(old.data), _root_message(new.data)
        return None if before == after else f"the root message {before} became {after}"
    return None


def _parts(schema: Definition) -> tuple[_Part, _Part]:
    data = schema.data
    size = int.from_bytes(data[:4], "big", signed=True)
    key = data[4 : 4 + max(size, 0)]
    rest = data[4 + len(key) :]
    size = int.from_bytes(rest[:4], "big", signed=True)
    value = rest[4 : 4 + max(size, 0)]
    return (
        _Part(_part_type(schema, "key.schema.type"), key, {}),
        _Part(_part_type(schema, "value.schema.type"), value, {}),
    )


def _part_type(schema: Definition, property: str) -> int:
    return TYPE_NUMBERS.get(schema.properties.get(property, "").upper(), -1)


def _root_message(data: bytes) -> str:
    try:
        return str(json.loads(data)["rootMessageTypeName"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise Unreadable("the schema is no description of a native Protobuf message") from None


# -- Avro


class _Named:
    """A named type, resolved: `kind` is record, enum or fixed."""

    __slots__ = ("fields", "has_default", "kind", "name", "size", "symbols", "types")

    def __init__(self, kind: str, name: str, node: Mapping[str, Any]) -> None:
        self.kind = kind
        self.name = name
        # (name, aliases, type, has a default) of a record's fields, and the types by name.
        self.fields: list[tuple[str, frozenset[str], Any, bool]] = []
        self.types: dict[str, Any] = {}
        # For an enum.
        self.symbols = frozenset(map(str, node["symbols"])) if kind == "enum" else frozenset()
        self.has_default = "default" in node
        # For a fixed type.
        self.size = int(node["size"]) if kind == "fixed" else 0


class _Steps:
    """Bounds the cost of comparing."""

    def __init__(self) -> None:
        self._left = STEPS_MAX

    def take(self, count: int = 1) -> None:
        self._left -= count
        if self._left < 0:
            raise Unreadable("the schemas are too complex to be compared")


_PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


def _parse(data: bytes) -> Any:
    """A tree of primitive names, ("array", item), ("map", value), lists (unions) and `_Named`."""
    try:
        return _resolve(json.loads(data), {}, "")
    except json.JSONDecodeError as error:
        raise Unreadable(f"the schema is no Avro definition, as it is no JSON: {error}") from None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise Unreadable(f"the schema is no Avro definition: {error!r}") from None


def _resolve(node: Any, names: dict[str, _Named], space: str) -> Any:
    if isinstance(node, str):
        if node in _PRIMITIVES:
            return node
        found = names.get(node) or names.get(f"{space}.{node}")
        if found is None:
            raise ValueError(f"unknown type {node}")
        return found
    if isinstance(node, list):
        return [_resolve(branch, names, space) for branch in node]
    kind = node["type"]
    if kind == "array":
        return ("array", _resolve(node["items"], names, space))
    if kind == "map":
        return ("map", _resolve(node["values"], names, space))
    if kind not in ("record", "error", "enum", "fixed"):
        return _resolve(kind, names, space)
    name = str(node.get("name", ""))
    space = name.rpartition(".")[0] or str(node.get("namespace") or space)
    full = name if "." in name or not space else f"{space}.{name}"
    if len(full) > NAME_CHARS_MAX:
        raise ValueError(f"a name of {len(full)} characters, the limit is {NAME_CHARS_MAX}")
    named = names[full] = names[name] = _Named("record" if kind == "error" else kind, full, node)
    if named.kind == "record":
        named.fields = [
            (
                field["name"],
                frozenset(field.get("aliases", ())),
                _resolve(field["type"], names, space),
                "default" in field,
            )
            for field in node["fields"]
        ]
        named.types = {field[0]: field[2] for field in named.fields}
    return named


class _Fault(NamedTuple):
    """Why something cannot be read: the path of the first field in the way, and the text before and behind it.

    `types` are shown behind that. Most faults are found in branches of unions of which another one fits, and are never
    shown.
    """

    path: str
    before: str
    after: str
    types: tuple[Any, Any] | None = None
    lacks: tuple[_Named, _Named] | None = None

    def __str__(self) -> str:
        told = f"{self.before}{self.path or 'the value'}{self.after}"
        if self.types is not None:
            reader, writer = self.types
            told += f": {_show(writer)} cannot be read as {_show(reader)}"
        if self.lacks is not None:
            reader, writer = self.lacks
            told += f": the enum lacks {_short(', '.join(sorted(writer.symbols - reader.symbols)))}"
        return told

    def within(self, field: str) -> _Fault:
        is_plain = not self.path or self.path.startswith("[")
        path = f"{_short(field)}{self.path}" if is_plain else f"{_short(field)}.{self.path}"
        return self._replace(path=_short(path))


# A fault, or None with the depth of the outermost running comparison that was assumed to find no fault.
_Verdict = tuple[_Fault | None, int]
_SURE: Final = 1 << 60


class _Comparison:
    """Whether what was written with one schema can be read with another.

    Records refer to each other, and unions have records to choose from: each pair of records is compared once. A pair
    that is being compared further up is assumed to fit. A fault is a fault regardless of such assumptions, so it is
    kept for good; a success that rests on such a pair is forgotten if that pair turns out to have a fault.
    """

    def __init__(self, steps: _Steps) -> None:
        self._steps = steps
        self._known: dict[tuple[int, int], _Fault | None] = {}
        self._under_way: dict[tuple[int, int], int] = {}
        # Successes that rest on pairs being compared, with the depth of the outermost of these; and the order of their
        # arrival.
        self._for_now: dict[tuple[int, int], int] = {}
        self._order: list[tuple[int, int]] = []

    def fault(self, reader: Any, writer: Any) -> str | None:
        found, _ = self._judge(reader, writer)
        return None if found is None else str(found)

    def _judge(self, reader: Any, writer: Any) -> _Verdict:
        self._steps.take()
        if isinstance(writer, list):
            return self._all((reader, branch) for branch in writer)
        if isinstance(reader, list):
            for branch in reader:
                found, rests_on = self._judge(branch, writer)
                if found is None:
                    return None, rests_on
            return _differ(reader, writer)
        if isinstance(reader, tuple):
            if not isinstance(writer, tuple) or reader[0] != writer[0]:
                return _differ(reader, writer)
            found, rests_on = self._judge(reader[1], writer[1])
            return (None if found is None else found.within("[]")), rests_on
        if isinstance(reader, _Named):
            if not isinstance(writer, _Named) or reader.kind != writer.kind:
                return _differ(reader, writer)
            return self._named(reader, writer)
        if isinstance(writer, str) and (reader == writer or writer in _PROMOTIONS.get(reader, ())):
            return None, _SURE
        return _differ(reader, writer)

    def _all(self, pairs: Iterable[tuple[Any, Any]]) -> _Verdict:
        least = _SURE
        for reader, writer in pairs:
            found, rests_on = self._judge(reader, writer)
            if found is not None:
                return found, _SURE
            least = min(least, rests_on)
        return None, least

    def _named(self, reader: _Named, writer: _Named) -> _Verdict:
        if reader.kind == "fixed":
            return (None if reader.size == writer.size else _Fault("", "", ": fixed sizes differ")), _SURE
        if reader.kind == "enum":
            if len(writer.symbols) <= len(reader.symbols):
                self._steps.take(len(writer.symbols) // _MEMBERS_PER_STEP)
            if reader.has_default or writer.symbols <= reader.symbols:
                return None, _SURE
            return _Fault("", "", "", lacks=(reader, writer)), _SURE
        pair = (id(reader), id(writer))
        if pair in self._known:
            return self._known[pair], _SURE
        if (depth := self._under_way.get(pair, self._for_now.get(pair))) is not None:
            return None, depth
        return self._records(pair, reader, writer)

    def _records(self, pair: tuple[int, int], reader: _Named, writer: _Named) -> _Verdict:
        depth, mark = len(self._under_way), len(self._order)
        self._under_way[pair] = depth
        found, rests_on = self._fields(reader, writer)
        self._steps.take((len(self._order) - mark) // _MEMBERS_PER_STEP)
        del self._under_way[pair]
        if found is not None:
            self._known[pair] = found
            # Results found meanwhile may rest on this pair.
            for other in self._order[mark:]:
                del self._for_now[other]
            del self._order[mark:]
            return found, _SURE
        inner = [other for other in self._order[mark:] if self._for_now[other] >= depth]
        if rests_on < depth:
            # The same applies to results that rest on this pair.
            self._for_now |= dict.fromkeys([*inner, pair], rests_on)
            self._order.append(pair)
            return None, rests_on
        # The result rests on nothing but itself.
        self._known |= dict.fromkeys([*inner, pair])
        outer = [other for other in self._order[mark:] if self._for_now[other] < depth]
        for other in inner:
            del self._for_now[other]
        self._order[mark:] = outer
        return None, _SURE

    def _fields(self, reader: _Named, writer: _Named) -> _Verdict:
        least = _SURE
        written = writer.types
        for name, aliases, type, has_default in reader.fields:
            self._steps.take(1 + len(aliases) // _MEMBERS_PER_STEP)
            source = name if name in written else next((known for known in aliases if known in written), None)
            if source is not None:
                found, rests_on = self._judge(type, written[source])
                if found is not None:
                    return found.within(name), _SURE
                least = min(least, rests_on)
            elif not has_default:
                return _Fault(name, "field ", " is missing on one side and has no default"), _SURE
        return None, least


def _differ(reader: Any, writer: Any) -> _Verdict:
    return _Fault("", "", "", types=(reader, writer)), _SURE


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def _show(type: Any) -> str:
    """The type as text, cut to the length that is shown."""
    told = ""
    nodes = [type]
    while nodes and len(told) <= SHOWN_MAX:
        node = nodes.pop()
        if isinstance(node, list):
            told += "["
            nodes.append("]")
            # Each branch has at least one character.
            for n, branch in reversed(list(enumerate(node[:SHOWN_MAX]))):
                nodes += [branch, ", "] if n else [branch]
        elif isinstance(node, tuple):
            told += f"{node[0]} of "
            nodes.append(node[1])
        elif isinstance(node, _Named):
            told += f"{node.kind} {_short(node.name)}"
        else:
            told += str(node)
    return _short(told)
