"""Which small files of a partition are compacted into one. Pure.

Files keep the order in which they were written, so rows stay near those of the same time. A large file is not rewritten
for a few late rows: each rewriting at least adds half to the largest file in it, so however often late rows come, a row
is rewritten a logarithmic number of times, and only a handful of files stay small.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table, by its path in it."""

    path: str
    bytes: int


def is_closed(day: date | None, today: date) -> bool:
    """Whether few rows are still to come for that day. Rows without a day may come at any time."""
    return day is not None and day < today


def groups(parts: Iterable[TableFile], bytes_max: int) -> list[tuple[TableFile, ...]]:
    """The files of one partition in groups, each to be compacted into one file; each file is in one group at most."""
    small = sorted((part for part in parts if part.bytes * 2 <= bytes_max), key=lambda part: part.path)
    found: list[list[TableFile]] = []
    room = 0
    for part in small:
        if part.bytes > room or not found:
            found.append([])
            room = bytes_max
        found[-1].append(part)
        room -= part.bytes
    kept = (_worthwhile(group) for group in found)
    return [group for group in kept if len(group) > 1]


def _worthwhile(group: list[TableFile]) -> tuple[TableFile, ...]:
    """The group without files that are more than twice as large as all smaller ones together."""
    by_size = sorted(group, key=lambda part: (part.bytes, part.path))
    below = sum(part.bytes for part in by_size)
    while by_size:
        below -= by_size[-1].bytes
        if by_size[-1].bytes <= 2 * below:
            break
        by_size.pop()
    kept = set(by_size)
    return tuple(part for part in group if part in kept)
