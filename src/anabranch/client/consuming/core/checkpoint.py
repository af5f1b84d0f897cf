"""What a checkpoint consumer may start from, and which places brokers must be asked for first. Pure.

The bytes of a checkpoint are those of a cut (`anabranch.model.cut`).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal

from anabranch.client.errors import BadArgument
from anabranch.model.cut import Cut, Place
from anabranch.model.layout import SegmentLayout

# The forms that applications give: an end of the topic, a checkpoint, or a time.
Start = Literal["earliest", "latest"] | bytes | datetime
# The same, parsed: a cut (the empty one is the earliest), the latest, or milliseconds since 1970.
Begin = Cut | Literal["latest"] | int

# A segment's times come from its controller's clock, those of messages from their producers': they may differ by this
# much.
CLOCKS_APART_MS: Final = 60_000


def begin_of(start: Start) -> Begin:
    """Parses `start`. Raises BadArgument, or BadCheckpoint, if it is no place to start from."""
    if isinstance(start, bytes | bytearray | memoryview):
        return Cut.decode(bytes(start))
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise BadArgument(
                f"start={start!r} has no time zone: give datetime(..., tzinfo=UTC), for instance"
            )
        return max(0, int(start.timestamp() * 1000))
    if start == "earliest":
        return Cut()
    if start == "latest":
        return "latest"
    raise BadArgument(f"start={start!r}: give 'earliest', 'latest', the bytes of a checkpoint, or a datetime")


def merge_checkpoints(checkpoints: Iterable[bytes]) -> bytes:
    """Merges checkpoints into one: a message counts as read if one of them says so.

    A group's checkpoint is made of the latest of every member, and of the checkpoint that the group itself started from
    or last reached: a member's own says nothing of segments that it never read.
    """
    return Cut.merge(*map(Cut.decode, checkpoints)).encode()


def unresolved(layout: SegmentLayout, begin: Literal["latest"] | int) -> list[Place]:
    """The places whose positions brokers must be asked for. Older segments are over, newer ones not begun."""
    if begin == "latest":
        return [Place.of(segment) for segment in layout.active]
    found: list[Place] = []
    for segment in layout.segments.values():
        if segment.is_sealed and segment.sealed_ms < begin - CLOCKS_APART_MS:
            continue
        fresh = Place.of(segment)
        is_first = not any(older.is_before(fresh) for older in found)
        if is_first or segment.created_ms < begin + CLOCKS_APART_MS:
            # Places behind others must not say that the others are over.
            found.append(Place.of(segment, is_apart=not is_first))
    return found
