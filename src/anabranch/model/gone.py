"""What a layout remembers of pruned segments: enough to tell whether a reader that was away has lost anything.

For each stretch of the key range, the newest pruned segment that held messages, and where it ended. Whoever had read
that one to its end has lost nothing there: all newer ones that are gone were empty. So the memory is as wide as the
layout, not as long as its history. Partitions of a classic topic hold any key and are remembered one by one. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from anabranch.model.segments import HashRange, Segment, SegmentId

# One past the last entry, as (ledger, entry), of a segment that never had one.
EMPTY: Final = (0, 0)


@dataclass(frozen=True, slots=True)
class Gone:
    """In `range`, `segment` is the newest one gone that had messages. `end` is None if it may have had any, or none."""

    segment: SegmentId
    range: HashRange
    end: tuple[int, int] | None = None
    is_classic: bool = False


def remember(known: tuple[Gone, ...], pruned: Iterable[Segment]) -> tuple[Gone, ...]:
    """In the order of ranges, partitions first."""
    found = known
    for segment in sorted(pruned, key=lambda s: s.id):
        if segment.end != EMPTY:
            gone = Gone(segment.id, segment.range, segment.end, bool(segment.legacy_topic))
            found = (*found, gone) if gone.is_classic else _with(found, gone)
    return tuple(sorted(found, key=lambda g: (not g.is_classic, g.range, g.segment)))


def _with(known: tuple[Gone, ...], news: Gone) -> tuple[Gone, ...]:
    """`news` takes the place of older ones in its range; newer ones keep theirs."""
    kept: list[Gone] = []
    left = [news.range]
    for old in known:
        if old.is_classic or not old.range.overlaps(news.range):
            kept.append(old)
        elif old.segment > news.segment:
            kept.append(old)
            left = [part for span in left for part in without(span, old.range)]
        else:
            kept += [replace(old, range=part) for part in without(old.range, news.range)]
    return (*kept, *(replace(news, range=part) for part in left))


def without(span: HashRange, other: HashRange) -> list[HashRange]:
    """What is left of a range without another."""
    left: list[HashRange] = []
    if span.start < other.start:
        left.append(HashRange(span.start, min(span.end, other.start - 1)))
    if span.end > other.end:
        left.append(HashRange(max(span.start, other.end + 1), span.end))
    return left
