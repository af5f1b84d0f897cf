"""Whether an Avro value may be decoded: it is small, flat and as long as its schema says. Pure.

For brokers and tools, which decode values of any topic. A few bytes of Avro can ask for anything: items that take no
byte, in any number, or records in records until the stack of the decoding library, and the process with it, is gone. So
a value is walked first, by its schema and with a budget.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from anabranch.errors import MalformedFrame

_SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}


class AvroLimits(NamedTuple):
    schema_bytes: int
    body_bytes: int
    values: int
    depth: int


class AvroBounds:
    """For values of one schema. Any error of its methods means that the value is not to be decoded."""

    def __init__(self, definition: bytes, limits: AvroLimits) -> None:
        if len(definition) > limits.schema_bytes:
            raise MalformedFrame(f"an Avro schema of {len(definition)} bytes is too large to be used here")
        self.schema = json.loads(definition)
        self._limits = limits
        # Schemas by their full names, with the namespace that names inside them are in.
        self._named: dict[str, tuple[Any, str]] = {}
        _learn(self.schema, "", self._named)

    def check(self, body: bytes) -> None:
        if len(body) > self._limits.body_bytes:
            raise MalformedFrame(f"an Avro value of {len(body)} bytes is too large to be decoded here")
        _Walk(body, self._named, self._limits).value(self.schema, "", 0)


def _learn(schema: Any, space: str, named: dict[str, tuple[Any, str]]) -> None:
    """Collects the named schemas, which may be used before or after the place that defines them."""
    if isinstance(schema, list):
        for one in schema:
            _learn(one, space, named)
    if not isinstance(schema, dict):
        return
    if any(key.startswith("__") for key in schema):
        raise MalformedFrame("an Avro schema has marks that the decoding library sets for itself")
    kind = schema["type"]
    if kind in ("record", "error", "enum", "fixed"):
        full = _full(schema["name"], schema.get("namespace", space))
        if full in named:
            raise MalformedFrame(f"an Avro schema defines {full:.100} twice")
        space = full.rpartition(".")[0]
        named[full] = schema, space
    for inner in (kind, schema.get("items"), schema.get("values")):
        if isinstance(inner, dict | list):
            _learn(inner, space, named)
    for field in schema.get("fields", ()):
        _learn(field["type"], space, named)


class _Walk:
    def __init__(self, body: bytes, named: dict[str, tuple[Any, str]], limits: AvroLimits) -> None:
        self._body = body
        self._at = 0
        self._left = limits.values
        self._depth_max = limits.depth
        self._named = named

    def value(self, schema: Any, space: str, depth: int) -> None:
        """Steps over one value."""
        self._left -= 1
        if self._left < 0 or depth > self._depth_max:
            raise MalformedFrame("an Avro value has too many values in it to be decoded here")
        if isinstance(schema, list):
            index = self._long()
            if not 0 <= index < len(schema):
                raise MalformedFrame(f"an Avro union of {len(schema)} has no branch {index}")
            self.value(schema[index], space, depth + 1)
        elif isinstance(schema, str):
            self._word(schema, space, depth)
        else:
            self._complex(schema, space, depth)

    def _word(self, kind: str, space: str, depth: int) -> None:
        if kind in _SIZES:
            self._skip(_SIZES[kind])
        elif kind in ("int", "long"):
            self._long()
        elif kind in ("bytes", "string"):
            self._skip(self._long())
        else:
            full = _full(kind, space)
            schema, inner = self._named[full] if full in self._named else self._named[kind]
            self._complex(schema, inner, depth)

    def _complex(self, schema: dict[str, Any], space: str, depth: int) -> None:
        kind = schema["type"]
        if kind in ("record", "error"):
            space = _full(schema["name"], schema.get("namespace", space)).rpartition(".")[0]
            for field in schema["fields"]:
                self.value(field["type"], space, depth + 1)
        elif kind == "enum":
            self._long()
        elif kind == "fixed":
            self._skip(schema["size"])
        elif kind == "array":
            self._items(schema["items"], space, depth, has_keys=False)
        elif kind == "map":
            self._items(schema["values"], space, depth, has_keys=True)
        else:
            self.value(kind, space, depth + 1)

    def _items(self, schema: Any, space: str, depth: int, *, has_keys: bool) -> None:
        while count := self._long():
            if count < 0:
                count = -count
                self._long()
            for _ in range(count):
                if has_keys:
                    self._skip(self._long())
                self.value(schema, space, depth + 1)

    def _skip(self, size: int) -> None:
        if not 0 <= size <= len(self._body) - self._at:
            raise MalformedFrame("an Avro value ends too early")
        self._at += size

    def _long(self) -> int:
        found = shift = 0
        while True:
            start = self._at
            self._skip(1)
            byte = self._body[start]
            found |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return (found >> 1) ^ -(found & 1)
            if shift > 63:
                raise MalformedFrame("an Avro number has more than 64 bits")


def _full(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"
