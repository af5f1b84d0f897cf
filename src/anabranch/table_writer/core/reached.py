"""Where a commit ends that did not take all that was planned. Pure.

A commit is planned from one cut to another, a slice for each segment, in the order of segments. It ends early once it
has as many bytes as it may have: then some slices are finished, at most one is read in part, and the rest is not begun.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from anabranch.model.cut import BEGINNING, Cut, MessagePosition, Place
from anabranch.model.segments import SegmentId
from anabranch.spark.plan.plan import SegmentSlice


def position_behind(ledger: int, entry: int, index: int) -> MessagePosition:
    """The position behind a row; `index` is -1 for a message outside of a batch."""
    return (ledger, entry + 1, 0) if index < 0 else (ledger, entry, index + 1)


def cut_short(
    end: Cut,
    slices: Sequence[SegmentSlice],
    finished: frozenset[SegmentId],
    partly: Mapping[SegmentId, MessagePosition],
) -> Cut:
    """The cut of what was read: `end`, with the places of unfinished slices where reading stopped."""
    unfinished = {one.segment: one for one in slices if one.segment not in finished}

    def place(of: Place) -> Place:
        one = unfinished.get(of.segment)
        if one is None:
            return of
        at = partly.get(of.segment)
        chunks = one.chunks_from if at is None else None
        return replace(of, at=(at or one.start or BEGINNING,), sealed_epoch=0, chunks_from=chunks)

    return Cut(tuple(map(place, end.places)), end.topic_id)
