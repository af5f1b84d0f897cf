"""Answers of the admin REST in readable form. Pure; `--json` prints them unchanged.

Lists have a line for each item, objects a name and a value for each field; nested objects are indented below their
name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from anabranch.cli.render.dag import aligned

View = Callable[[Any], list[str]]
INDENT: Final = "  "


def show(found: Any, *, is_json: bool, view: View | None = None, done: str = "") -> None:
    """Prints an answer. None is the answer to most changes: then `done` says what was done, in JSON `null`."""
    if is_json:
        print(json.dumps(found, indent=2))
    elif found is None:
        if done:
            print(done)
    else:
        for line in (view or lines)(found):
            print(line)


def lines(found: Any) -> list[str]:
    if isinstance(found, Mapping):
        return _object(found)
    if isinstance(found, Sequence) and not isinstance(found, str):
        return [line for one in found for line in _item(one)]
    return [text(found)]


def _item(found: Any) -> list[str]:
    """An item of a list. Objects have more lines than one: a dash shows where each begins."""
    if not isinstance(found, Mapping):
        return lines(found)
    first, *rest = _object(found) or ["-"]
    return [f"- {first}", *(INDENT + line for line in rest)]


def _object(found: Mapping[str, Any]) -> list[str]:
    if not found:
        return []
    width = max(len(str(name)) for name in found)
    told: list[str] = []
    for name, value in found.items():
        inside = isinstance(value, Mapping) or (
            isinstance(value, list) and any(isinstance(one, Mapping) for one in value)
        )
        if inside and value:
            told.append(f"{name}:")
            told += [INDENT + line for line in lines(value)]
        else:
            told.append(f"{str(name).ljust(width)}  {text(value)}".rstrip())
    return told


def text(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case str():
            return value
        case float():
            return f"{value:,.1f}"
        case list() | tuple():
            return ", ".join(text(one) for one in value) or "-"
        case dict():
            return "-"
    return str(value)


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], left: set[int]) -> list[str]:
    """Objects as rows: `columns` are headings and the fields below them."""
    if not rows:
        return []
    cells = [[text(row.get(field)) for field in columns.values()] for row in rows]
    return aligned([list(columns), *cells], left=left)
