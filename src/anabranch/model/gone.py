"""What a layout remembers of pruned segments: enough to tell whether a reader that was away has lost anything.

For each stretch of the key range, the newest pruned segment that held messages, and where it ended. A reader that had
read that segment to its end has lost nothing there: all newer pruned segments were empty. So the memory is as wide as
the layout, not as long as its history. Partitions of a classic topic hold any key and are remembered one by one. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from anabranch.model.segments import HashRange, Segment, SegmentId

# The end, one past the last entry as (ledger, entry), of a segment that never had an entry.
EMPTY: Final = (0, 0)


@dataclass(frozen=True, slots=True)
class Gone:
    """`segment` is the newest pruned segment in `range` that had messages. `end` is None if it is unknown whether it
    had any."""

    segment: SegmentId
    range: HashRange
    end: tuple[int, int] | None = None
    is_classic: bool = False


def remember(known: tuple[Gone, ...], pruned: Iterable[Segment]) -> tuple[Gone, ...]:
    """`known` and the newly pruned segments together, in the order of ranges, partitions first."""
    found = known
    for segment in sorted(pruned, key=lambda s: s.id):
        if segment.end != EMPTY:
            gone = Gone(segment.id, segment.range, segment.end, bool(segment.classic_topic))
            found = (*found, gone) if gone.is_classic else _with(found, gone)
    return tuple(sorted(found, key=lambda g: (not g.is_classic, g.range, g.segment)))


def _with(known: tuple[Gone, ...], news: Gone) -> tuple[Gone, ...]:
    """`news` replaces older ones in its range; newer ones stay."""
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
    """The parts of `span` outside `other`."""
    left: list[HashRange] = []
    if span.start < other.start:
        left.append(HashRange(span.start, min(span.end, other.start - 1)))
    if span.end > other.end:
        left.append(HashRange(max(span.start, other.end + 1), span.end))
    return left
