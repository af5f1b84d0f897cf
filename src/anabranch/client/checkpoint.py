"""What a checkpoint consumer may start from, and which places must be asked for first. Pure.

The bytes of a checkpoint are those of a cut (`anabranch.model.cut`).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal

from anabranch.client.errors import BadArgument, Unsupported
from anabranch.model.cut import Cut, Place
from anabranch.model.layout import SegmentLayout

# As applications say it: an end of the topic, a checkpoint, or a time.
Start = Literal["earliest", "latest"] | bytes | datetime
# The same, read: a cut (the empty one is the earliest), the latest, or milliseconds since 1970.
Begin = Cut | Literal["latest"] | int

# A segment's times are its controller's clock, those of messages their producers': they may differ by so much.
CLOCKS_APART_MS: Final = 60_000


def begin_of(start: Start) -> Begin:
    """BadArgument, or BadCheckpoint, for what cannot be started from."""
    if isinstance(start, bytes | bytearray | memoryview):
        cut = Cut.decode(bytes(start))
        if any(len(place.at) > 1 for place in cut.places):
            raise Unsupported(
                "this checkpoint has positions for entry buckets, which this release does not read"
            )
        return cut
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
    """One checkpoint that says what all of them say: read is what was read according to one of them.

    That of a group is made of the latest of every member, and of the checkpoint that the group itself started from or
    last came to: a member's own says nothing of segments that were never its.
    """
    return Cut.merge(*map(Cut.decode, checkpoints)).encode()


def unresolved(layout: SegmentLayout, begin: Literal["latest"] | int) -> list[Place]:
    """The places whose positions brokers must be asked for. What is older is over, what is newer not begun."""
    if begin == "latest":
        return [Place.of(segment) for segment in layout.active]
    found: list[Place] = []
    for segment in layout.segments.values():
        if segment.is_sealed and segment.sealed_ms < begin - CLOCKS_APART_MS:
            continue
        fresh = Place.of(segment)
        is_first = not any(older.is_before(fresh) for older in found)
        if is_first or segment.created_ms < begin + CLOCKS_APART_MS:
            # Those behind others must not say that the others are over.
            found.append(Place.of(segment, is_apart=not is_first))
    return found
