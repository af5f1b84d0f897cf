"""Finds the entry published at a given time: a binary search over the entries' publish times.

These come from the producers' clocks, so neighbours may be slightly out of order. An entry with unreadable metadata has
the time of the next readable one; if there is none nearby, the entry counts as new, so that nothing is deleted because
of garbage.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from anabranch.errors import MalformedFrame
from anabranch.storage.port import Entry
from anabranch.wire import entry as wire_entry

# How many entries are searched for a readable one.
_NEARBY_ENTRIES: Final = 100
_NEARBY_BYTES: Final = 256 * 1024

# Entries from an index on: at least one if there is any, at most that many and of about that many bytes.
Read = Callable[[int, int, int], Awaitable[Sequence[Entry]]]


async def first_published_at(publish_time_ms: int, count: int, read: Read) -> int:
    """The index below `count` of the first entry published then or later; `count` if there is none."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        published = await published_at(middle, read)
        if published is None or published >= publish_time_ms:
            high = middle
        else:
            low = middle + 1
    return low


async def published_at(index: int, read: Read) -> int | None:
    """When the entry at that index, or the next readable one, was published; None if there is none nearby."""
    published = _published(await read(index, 1, 1))
    return (
        published if published is not None else _published(await read(index, _NEARBY_ENTRIES, _NEARBY_BYTES))
    )


def _published(entries: Sequence[Entry]) -> int | None:
    """The first readable publish time."""
    for _, _, data in entries:
        try:
            return wire_entry.publish_time(data)
        except MalformedFrame:
            continue
    return None
