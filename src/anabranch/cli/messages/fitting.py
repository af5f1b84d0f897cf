"""Values as files and people write them, made to fit an Avro definition. Pure.

Text becomes numbers, times and the like where the definition asks for them; nothing is cut, rounded or left out
silently. Definitions of JSON schemas are Avro's too.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import Any, Final
from uuid import UUID

Names = Mapping[str, Any]

_WHOLE: Final = {"int": 31, "long": 63}
_MOMENTS: Final = {"timestamp-millis": 1000, "timestamp-micros": 1_000_000}
_TRUTHS: Final = {"true": True, "false": False}


class Misfit(ValueError):
    """The value does not fit; the text says what is wrong, and where."""


def names_of(definition: Any) -> dict[str, Any]:
    """The records, enumerations and fixed types of a definition by their names, with and without namespace."""
    found: dict[str, Any] = {}
    _collect(definition, "", found)
    return found


def _collect(definition: Any, namespace: str, found: dict[str, Any]) -> None:
    if isinstance(definition, list):
        for one in definition:
            _collect(one, namespace, found)
    elif isinstance(definition, Mapping):
        namespace = definition.get("namespace", namespace)
        if definition.get("type") in ("record", "enum", "fixed", "error"):
            name = str(definition.get("name", ""))
            found[name] = found[name.rpartition(".")[2]] = definition
            if namespace and "." not in name:
                found[f"{namespace}.{name}"] = definition
        for part in ("items", "values", "type"):
            _collect(definition.get(part), namespace, found)
        for field in definition.get("fields", ()):
            _collect(field.get("type"), namespace, found)


def fitted(value: Any, definition: Any, names: Names, *, is_plain: bool, where: str = "") -> Any:
    """The value for an encoder: of Avro, or of JSON if `is_plain`. Raises Misfit."""
    if isinstance(definition, str) and definition in names:
        definition = names[definition]
    if isinstance(definition, list):
        return _of_union(value, definition, names, is_plain, where)
    kind = definition if isinstance(definition, str) else definition.get("type")
    if isinstance(kind, list | Mapping):
        return fitted(value, kind, names, is_plain=is_plain, where=where)
    match kind:
        case "record" | "error":
            return _of_record(value, definition, names, is_plain, where)
        case "array":
            items = _parsed(value, list, where)
            item = definition["items"]
            return [
                fitted(one, item, names, is_plain=is_plain, where=f"{where}[{n}]")
                for n, one in enumerate(items)
            ]
        case "map":
            found = _parsed(value, Mapping, where)
            inner = definition["values"]
            return {
                str(key): fitted(one, inner, names, is_plain=is_plain, where=_inside(where, str(key)))
                for key, one in found.items()
            }
        case "enum":
            if value not in definition["symbols"]:
                raise _misfit(value, f"one of {', '.join(definition['symbols'])}", where)
            return value
    logical = definition.get("logicalType") if isinstance(definition, Mapping) else None
    if logical is not None and not is_plain and (found := _of_logical(value, logical, where)) is not None:
        return found
    return _of_primitive(value, str(kind), is_plain, where)


def _of_union(value: Any, branches: Sequence[Any], names: Names, is_plain: bool, where: str) -> Any:
    is_nullable = "null" in branches
    others = [branch for branch in branches if branch != "null"]
    if value is None or (value == "" and is_nullable and "string" not in others):
        if is_nullable:
            return None
        raise _misfit(value, "a value", where)
    misfits: list[Misfit] = []
    for branch in others:
        try:
            return fitted(value, branch, names, is_plain=is_plain, where=where)
        except Misfit as misfit:
            misfits.append(misfit)
    if len(misfits) == 1:
        raise misfits[0]
    raise _misfit(value, "any of the types that are allowed", where)


def _of_record(value: Any, definition: Any, names: Names, is_plain: bool, where: str) -> dict[str, Any]:
    given = dict(_parsed(value, Mapping, where))
    made: dict[str, Any] = {}
    for field in definition["fields"]:
        name, inner = field["name"], _inside(where, field["name"])
        if name in given:
            made[name] = fitted(given.pop(name), field["type"], names, is_plain=is_plain, where=inner)
        elif "default" in field:
            made[name] = field["default"]
        elif isinstance(field["type"], list) and "null" in field["type"]:
            made[name] = None
        else:
            raise Misfit(f"the field {inner!r} is missing")
    if given:
        known = ", ".join(field["name"] for field in definition["fields"])
        raise Misfit(f"the schema has no field {_inside(where, next(iter(given)))!r}; it has {known}")
    return made


def _of_logical(value: Any, logical: str, where: str) -> Any:
    """None for a type that is written like the primitive one below it."""
    if not isinstance(value, str):
        if logical == "decimal" and isinstance(value, int | float) and not isinstance(value, bool):
            return Decimal(str(value))
        return value if isinstance(value, datetime | date | time | Decimal | UUID) else None
    try:
        if logical in _MOMENTS and not _is_whole(value):
            return datetime.fromisoformat(value).astimezone(UTC)
        if logical == "date" and not _is_whole(value):
            return date.fromisoformat(value)
        if logical in ("time-millis", "time-micros") and not _is_whole(value):
            return time.fromisoformat(value)
        if logical == "decimal":
            return Decimal(value)
        if logical == "uuid":
            return UUID(value)
    except (ValueError, InvalidOperation, OverflowError):
        raise _misfit(value, logical, where) from None
    return None


def _is_whole(text: str) -> bool:
    return text.lstrip("-").isdecimal()


def _of_primitive(value: Any, kind: str, is_plain: bool, where: str) -> Any:
    if is_plain and isinstance(value, datetime | date | time | Decimal | UUID):
        return value  # As text, or a number: the encoder of JSON knows them.
    match kind:
        case "null" if value is None or value == "":
            return None
        case "boolean":
            found = _TRUTHS.get(value.lower()) if isinstance(value, str) else value
            if isinstance(found, bool):
                return found
        case "int" | "long":
            return _whole(value, _WHOLE[kind], where)
        case "float" | "double":
            if isinstance(value, str | int | float | Decimal) and not isinstance(value, bool):
                return _number(value, is_plain, where)
        case "string" if isinstance(value, str):
            return value
        case "bytes" | "fixed" if isinstance(value, bytes):
            return value
        case "bytes" | "fixed" if isinstance(value, str):
            try:
                return value if is_plain else base64.b64decode(value, validate=True)
            except ValueError:
                raise _misfit(value, "bytes as base64", where) from None
    raise _misfit(value, f"a {kind}", where)


def _number(value: str | int | float | Decimal, is_plain: bool, where: str) -> float:
    try:
        found = float(value)
    except (ValueError, OverflowError):
        raise _misfit(value, "a number", where) from None
    if is_plain and not isfinite(found):
        # The encoder would write null.
        raise _misfit(value, "a number that JSON can hold", where)
    return found


def _whole(value: Any, bits: int, where: str) -> int:
    if isinstance(value, str) and _is_whole(value.strip()):
        try:
            value = int(value)
        except ValueError:  # Two signs, or more digits than Python reads.
            raise _misfit(value, "a whole number", where) from None
    if not isinstance(value, int) or isinstance(value, bool):
        raise _misfit(value, "a whole number", where)
    if not -(1 << bits) <= value < 1 << bits:
        raise _misfit(value, f"a whole number of {bits + 1} bits", where)
    return value


def _parsed(value: Any, kind: Any, where: str) -> Any:
    """The value, or what its text says as JSON: cells of CSV files have text only."""
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    if not isinstance(value, kind):
        raise _misfit(value, "a list" if kind is list else "an object", where)
    return value


def _inside(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _misfit(value: Any, expected: str, where: str) -> Misfit:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return Misfit(f"{where + ': ' if where else ''}{shown} is not {expected}")
