"""The edges of every field: what a value may be at its worst. An edit is a field's path and the name of an edge.

All of it follows from the descriptors: a field that the protocol gains is attacked from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from hostile.nodes import BYTES, RAW, VARINT, Node, Value, item, wire_type

Plausible = Callable[[Descriptor], Node]
Path = tuple[str, ...]

_INTEGERS: Final = {
    "0": 0,
    "1": 1,
    "2": 2,
    "-1": -1,
    "i32-max": (1 << 31) - 1,
    "i32-min": -(1 << 31),
    "u32-max": (1 << 32) - 1,
    "i64-max": (1 << 63) - 1,
    "i64-min": -(1 << 63),
}
_INTEGER_TYPES: Final = frozenset(
    {
        FieldDescriptor.TYPE_INT32,
        FieldDescriptor.TYPE_INT64,
        FieldDescriptor.TYPE_UINT32,
        FieldDescriptor.TYPE_UINT64,
    }
)
_STRINGS: Final = {
    "empty": b"",
    "nul": b"\x00",
    "not-utf8": b"\xff\xfe\x80",
    "surrogate": b"\xed\xa0\x80",
    "traversal": b"persistent://../../../../etc",
    "long": b"x" * 65_536,
}
_BYTES: Final = {"empty": b"", "zeros": bytes(64), "garbage": bytes(range(255, 191, -1))}
# Deeper than protobuf parses, as deep as it does, and about as deep.
_DEPTHS: Final = {"nested-50": 50, "nested-97": 97, "nested-99": 99, "nested-200": 200, "nested-2000": 2_000}
MANY: Final = 1_000
NESTED_IN_PATHS: Final = 3


@dataclass(frozen=True)
class Edit:
    path: Path
    edge: str

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}={self.edge}"

    @property
    def is_large(self) -> bool:
        return self.edge.startswith("largest")

    @classmethod
    def parse(cls, text: str) -> Edit:
        path, _, edge = text.partition("=")
        return cls(tuple(path.split(".")), edge)


def edits(message: Descriptor, prefix: Path = (), depth: int = 1) -> Iterator[Edit]:
    """Of every field, and of the fields of its messages."""
    for field in message.fields:
        path = (*prefix, field.name)
        for edge in edges(field):
            yield Edit(path, edge)
        inner = field.message_type
        if inner is not None and depth < NESTED_IN_PATHS and inner is not message:
            yield from edits(inner, path, depth + 1)


def edges(field: FieldDescriptor) -> list[str]:
    names = ["absent", "wrong-wire-type", "twice"]
    if field.type in _INTEGER_TYPES:
        names += _INTEGERS
    elif field.type == FieldDescriptor.TYPE_BOOL:
        names += ["0", "1", "-1"]
    elif field.type == FieldDescriptor.TYPE_ENUM:
        assert field.enum_type is not None
        names += [str(value.number) for value in field.enum_type.values]
        names += ["-1", "99", "i32-max"]
    elif field.type == FieldDescriptor.TYPE_STRING:
        names += [*_STRINGS, "largest"]
    elif field.type == FieldDescriptor.TYPE_BYTES:
        names += [*_BYTES, "largest"]
    elif field.message_type is not None:
        names += ["empty", "garbage", "largest-unknown"]
        if field.message_type in [inner.message_type for inner in field.message_type.fields]:
            names += _DEPTHS
    else:
        names += ["nan", "inf"]
    if field.is_repeated:
        names += ["many", "largest-many"]
        if field.message_type is not None:
            names.append("largest-empties")
        elif wire_type(field) == VARINT:
            names.append("largest-packed")
    return list(dict.fromkeys(names))


def apply(node: Node, message: Descriptor, edit: Edit, plausible: Plausible, room: int) -> None:
    """`room` is how many bytes the message may have at most."""
    *above, last = edit.path
    at, described = node, message
    for name in above:
        field = described.fields_by_name[name]
        assert field.message_type is not None
        below = at.child(field.number)
        if below is None:
            below = plausible(field.message_type)
            at.put(field.number, BYTES, below)
        at, described = below, field.message_type
    field = described.fields_by_name[last]
    if edit.is_large:
        at.remove(field.number)
        # Lengths of the messages around it take a few bytes each.
        room -= len(node.encode()) + 8 * (len(above) + 1)
        at.items.append((field.number, RAW, _large(field, edit.edge, plausible, room)))
        return
    number, kind = field.number, wire_type(field)
    match edit.edge:
        case "absent":
            at.remove(number)
        case "wrong-wire-type":
            at.put(
                number, RAW, item(number, VARINT if kind == BYTES else BYTES, 1 if kind == BYTES else b"\x01")
            )
        case "twice":
            value = _plain(field, plausible)
            at.put(number, RAW, item(number, kind, value) * 2)
        case "many":
            at.put(number, RAW, item(number, kind, _plain(field, plausible)) * MANY)
        case _:
            at.put(number, kind, _edge(field, edit.edge, plausible))


def _plain(field: FieldDescriptor, plausible: Plausible) -> Value:
    if field.message_type is not None:
        return plausible(field.message_type)
    if wire_type(field) == BYTES:
        return b"plain"
    return 1 if wire_type(field) == VARINT else bytes(8)


def _edge(field: FieldDescriptor, edge: str, plausible: Plausible) -> Value:
    if edge in _DEPTHS:
        return _nested(field, _DEPTHS[edge], plausible)
    if field.message_type is not None:
        return Node() if edge == "empty" else _BYTES[edge]
    if field.type == FieldDescriptor.TYPE_STRING:
        return _STRINGS[edge]
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _BYTES[edge]
    if edge in ("nan", "inf"):
        return b"\x00\x00\x00\x00\x00\x00\xf8\x7f" if edge == "nan" else b"\x00\x00\x00\x00\x00\x00\xf0\x7f"
    return _INTEGERS[edge] if edge in _INTEGERS else int(edge)


def _nested(field: FieldDescriptor, depth: int, plausible: Plausible) -> bytes:
    assert field.message_type is not None
    inner = next(one for one in field.message_type.fields if one.message_type is field.message_type)
    one = plausible(field.message_type).encode()
    # From the inside out, each level around the one before it.
    made = one
    for _ in range(depth - 1):
        made = one + item(inner.number, BYTES, made)
    return made


def _large(field: FieldDescriptor, edge: str, plausible: Plausible, room: int) -> bytes:
    number, kind = field.number, wire_type(field)
    if edge == "largest":
        return item(number, kind, b"x" * (room - 8))
    if edge == "largest-unknown":
        # One field that nobody knows, as large as can be, within the message.
        assert field.message_type is not None
        known = plausible(field.message_type).encode()
        return item(number, kind, known + item(9_999, BYTES, bytes(room - len(known) - 24)))
    if edge == "largest-empties":
        one = item(number, kind, Node())
    elif edge == "largest-packed":
        return item(number, BYTES, b"\x01" * (room - 8))
    else:
        one = item(number, kind, _plain(field, plausible))
    return one * (room // len(one))
