"""Protobuf messages as trees of what is on the wire, so that a test can send what no encoder writes."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

VARINT: Final = 0
FIXED_64: Final = 1
BYTES: Final = 2
FIXED_32: Final = 5
# The value is a piece of the message as it is, with tags and all.
RAW: Final = -1

_WIRE_TYPES: Final = {
    FieldDescriptor.TYPE_DOUBLE: FIXED_64,
    FieldDescriptor.TYPE_FLOAT: FIXED_32,
    FieldDescriptor.TYPE_STRING: BYTES,
    FieldDescriptor.TYPE_BYTES: BYTES,
    FieldDescriptor.TYPE_MESSAGE: BYTES,
}

Value: TypeAlias = "int | bytes | Node"


def described(message: type[Message]) -> Descriptor:
    """Its descriptor; that of the C library looks the same and is another class to type checkers."""
    return cast(Descriptor, message.DESCRIPTOR)


def wire_type(field: FieldDescriptor) -> int:
    return _WIRE_TYPES.get(field.type, VARINT)


def varint(value: int) -> bytes:
    """Negative numbers as protobuf writes them: in ten bytes."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def item(number: int, kind: int, value: Value) -> bytes:
    if isinstance(value, Node):
        value = value.encode()
    if kind == RAW:
        assert isinstance(value, bytes)
        return value
    tag = varint(number << 3 | kind)
    if isinstance(value, int):
        return tag + varint(value)
    return tag + (varint(len(value)) if kind == BYTES else b"") + value


@dataclass
class Node:
    """A message: field number, wire type and value of each item, in order."""

    items: list[tuple[int, int, Value]] = field(default_factory=list)

    def encode(self) -> bytes:
        return b"".join(item(*one) for one in self.items)

    def remove(self, number: int) -> None:
        self.items = [one for one in self.items if one[0] != number]

    def put(self, number: int, kind: int, value: Value) -> None:
        """In place of what is there under that number."""
        self.remove(number)
        self.items.append((number, kind, value))

    def child(self, number: int) -> Node | None:
        return next(
            (value for n, _, value in self.items if n == number and isinstance(value, Node)),
            None,
        )


def tree(message: Message) -> Node:
    node = Node()
    for found, value in message.ListFields():
        for one in value if found.is_repeated else (value,):
            node.items.append((found.number, wire_type(found), _value(found, one)))
    return node


def _value(found: FieldDescriptor, value: Any) -> Value:
    if isinstance(value, Message):
        return tree(value)
    if isinstance(value, float):
        return struct.pack("<d" if wire_type(found) == FIXED_64 else "<f", value)
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes) else int(value)
