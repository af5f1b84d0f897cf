"""Which columns a decoded table has, as the topic's schema changes. Pure.

Columns come and never go, and never change their meaning: a new field is a new column, also within records; a field
that is gone is null from then on. Numbers have the widest type of their kind from the start, so that a field that
becomes wider needs no change. What does not fit a column leaves it null, and the message's bytes are kept beside it.

Types are those that every reader of Delta tables knows. A time of day is a number of microseconds or milliseconds, and
a local time stands as if it were in UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from anabranch.tables.core.schema import FIRST_DECODED_ID, PREFIX, RAW, number_of, numbered

_TIME: Final = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True)
class Widened:
    schema: pa.Schema  # Of the table: `RAW`, and the decoded columns.
    # The column of each given field, in order; None for a field that does not fit the column of its name.
    columns: tuple[str | None, ...]


def widened(table: pa.Schema, fields: Sequence[pa.Field]) -> Widened:
    """The table's columns with those for these fields, which a version of the topic's schema has."""
    made = {field.name: field for field in table}
    taken = {name.lower(): name for name in made}
    next_id = max([FIRST_DECODED_ID - 1, *map(_last_id, table)]) + 1
    columns: list[str | None] = []
    for field in fields:
        name, kind = _column_name(field.name), _wide(field.type)
        known = taken.get(name.lower())
        if known is None:
            made[name], next_id = _with_ids(pa.field(name, kind), next_id)
            taken[name.lower()] = name
            columns.append(name)
            continue
        both = _joined(made[known].type, kind)
        if both is None or columns.count(known):
            columns.append(None)
            continue
        if both != made[known].type:
            grown, next_id = _with_ids(made[known].with_type(both), next_id)
            made[known] = grown
        columns.append(known)
    return Widened(pa.schema(list(made.values())), tuple(columns))


def _column_name(name: str) -> str:
    used = {one.lower() for one in (*RAW.names, "day")}
    return PREFIX + name if name.lower() in used else name


def _wide(kind: pa.DataType) -> pa.DataType:
    """The widest type of its kind."""
    if pa.types.is_integer(kind) or pa.types.is_time(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_timestamp(kind):
        return _TIME
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _wide(one.type)) for one in kind])
    if pa.types.is_map(kind):
        return pa.map_(_wide(kind.key_type), _wide(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _wide(kind.value_type)))
    return kind


def _joined(table: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type of the column once it holds values of the other type as well; None if it cannot."""
    if pa.types.is_struct(table) and pa.types.is_struct(other):
        fields = {field.name: field for field in table}
        for one in other:
            if one.name not in fields:
                fields[one.name] = one
                continue
            kind = _joined(fields[one.name].type, one.type)
            if kind is None:
                return None
            fields[one.name] = fields[one.name].with_type(kind)
        return pa.struct(list(fields.values()))
    if pa.types.is_list(table) and pa.types.is_list(other):
        kind = _joined(table.value_type, other.value_type)
        return None if kind is None else pa.list_(table.value_field.with_type(kind))
    if pa.types.is_map(table) and pa.types.is_map(other):
        key, item = _joined(table.key_type, other.key_type), _joined(table.item_type, other.item_type)
        if key is None or item is None:
            return None
        return pa.map_(table.key_field.with_type(key), table.item_field.with_type(item))
    if pa.types.is_decimal(table) and pa.types.is_decimal(other):
        whole = table.precision - table.scale
        return table if whole >= other.precision - other.scale and table.scale >= other.scale else None
    return table if table.equals(other) else None


def _last_id(field: pa.Field) -> int:
    return max([number_of(field), *(_last_id(one) for one in _parts(field.type))])


def _parts(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.value_field] if pa.types.is_list(kind) else []


def _with_ids(field: pa.Field, next_id: int) -> tuple[pa.Field, int]:
    """The field with an id for each part that has none, and the next free id."""
    if not number_of(field):
        field, next_id = numbered(field, next_id), next_id + 1
    parts: list[pa.Field] = []
    for one in _parts(field.type):
        made, next_id = _with_ids(one, next_id)
        parts.append(made)
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct(parts)
    elif pa.types.is_map(kind):
        kind = pa.map_(*parts)
    elif pa.types.is_list(kind):
        kind = pa.list_(*parts)
    return field.with_type(kind), next_id
