"""Which column of a DataFrame becomes which part of a message. Pure.

An error about a column that cannot be written names it and the allowed types, when the write is planned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from anabranch.errors import AnabranchError
from anabranch.spark.options.sink import SinkOptions

VALUE: Final = "value"
_TEXT: Final = ("binary", "string")
# Spark's names of types.
ALLOWED: Final[Mapping[str, Sequence[str]]] = {
    VALUE: _TEXT,
    "key": _TEXT,
    "properties": ("map<string,string>",),
    "event_time": ("timestamp",),
    "topic": ("string",),
}


class BadColumn(AnabranchError, ValueError):
    """A DataFrame that cannot be written as it is; the text names the column and what is allowed."""


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The names of the DataFrame's columns; None for columns that it lacks."""

    value: str | None
    key: str | None = None
    properties: str | None = None
    event_time: str | None = None
    topic: str | None = None
    # With `encode`: the columns that are fields of the topic's schema, with the fields' names.
    fields: tuple[tuple[str, str], ...] = ()


def columns_of(schema: Sequence[tuple[str, str]], options: SinkOptions) -> SinkColumns:
    """The role of each column, by name in any case; `schema` has names and Spark's names of types."""
    found: dict[str, str] = {}
    fields: list[tuple[str, str]] = []
    seen: set[str] = set()
    for name, kind in schema:
        known = name.lower()
        if known in seen:
            raise BadColumn(f"column {name!r} is there twice: rename or drop one of them")
        seen.add(known)
        if options.encode and _is_field(known, options.encode_prefix):
            fields.append((name, name[len(options.encode_prefix) :]))
        elif known not in ALLOWED:
            raise BadColumn(
                f"column {name!r} is none that is written: {_there_are()}; select those, or drop it"
            )
        elif kind == "void" and known not in (VALUE, "topic"):
            continue  # It holds nulls only.
        elif kind.replace(" ", "") not in ALLOWED[known]:
            raise BadColumn(f"column {name!r} is {kind}: it must be {' or '.join(ALLOWED[known])}; cast it")
        else:
            found[known] = name
    if options.encode:
        return _named(found, "value", "topic", fields=fields)
    if VALUE not in found:
        raise BadColumn(f"column 'value' is missing: it is what messages hold; {_there_are()}")
    if options.topic is None and "topic" not in found:
        raise BadColumn(
            "nothing says which topic to write to: .option(\"topic\", …), or a column 'topic' with a name in each row"
        )
    return _named(found, *(["topic"] if options.topic is not None else []))


def _is_field(name: str, prefix: str) -> bool:
    return name.startswith(prefix.lower()) if prefix else name == VALUE or name not in ALLOWED


def _named(found: Mapping[str, str], *without: str, fields: Sequence[tuple[str, str]] = ()) -> SinkColumns:
    names = {name: None if name in without else found.get(name) for name in ALLOWED}
    return SinkColumns(**names, fields=tuple(fields))


def _there_are() -> str:
    return "there are " + ", ".join(f"{name} ({' or '.join(kinds)})" for name, kinds in ALLOWED.items())
