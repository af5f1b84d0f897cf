"""Whether rows with new columns fit into an existing table. Pure.

Schemas are Spark's, as `StructType.jsonValue` gives them. Columns may be added and left out, within records too;
readers see null where a file lacks one. A column whose type changed would make the table unreadable, so it is refused.
"""

from __future__ import annotations

from typing import Any

from anabranch.errors import AnabranchError


class SchemaChanged(AnabranchError):
    """The topic's schema no longer fits the table's; the message names the column."""


def merged(table: dict[str, Any], rows: dict[str, Any], inside: str = "") -> dict[str, Any]:
    """A record's type with all columns of both. SchemaChanged for a column whose type changed."""
    added = {field["name"]: field for field in rows["fields"]}
    fields = []
    for field in table["fields"]:
        other = added.pop(field["name"], None)
        fields.append(field if other is None else _both(field, other, inside + field["name"]))
    return {**table, "fields": [*fields, *added.values()]}


def _both(one: dict[str, Any], other: dict[str, Any], name: str) -> dict[str, Any]:
    # Nullability and comments have no effect in files.
    return {**one, "type": _type(one["type"], other["type"], name)}


def _type(one: Any, other: Any, name: str) -> Any:
    if one == other:
        return one
    kinds = [kind["type"] if isinstance(kind, dict) else None for kind in (one, other)]
    if kinds == ["struct", "struct"]:
        return merged(one, other, f"{name}.")
    if kinds == ["array", "array"]:
        return {**one, "elementType": _type(one["elementType"], other["elementType"], f"{name}[]")}
    if kinds == ["map", "map"]:
        key = _type(one["keyType"], other["keyType"], f"{name}'s keys")
        return {
            **one,
            "keyType": key,
            "valueType": _type(one["valueType"], other["valueType"], f"{name}{{}}"),
        }
    raise SchemaChanged(
        f"column {name} is {_told(one)} in the table and {_told(other)} in the topic's schema now: a table has one "
        "type for a column, so give another --output, with its own checkpoint, from here on"
    )


def _told(kind: Any) -> str:
    return kind["type"] if isinstance(kind, dict) else str(kind)
