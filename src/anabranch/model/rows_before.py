"""Which rows of a topic lie before a cut, segment by segment, also in segments that were pruned long ago. Pure.

Readers of a table ask: its files have rows of segments that no layout lists any more. A segment's own place decides;
without one, older segments in a place's range are over and newer ones are not begun. The ranges of pruned segments are
mostly forgotten, but numbers often suffice: ids rise along every key's segments, so a segment older than every place is
over, and one newer than every place is not begun. Where they do not, the cut is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from anabranch.model.cut import BadCheckpoint, Cut, MessagePosition, Place
from anabranch.model.layout import SegmentLayout
from anabranch.model.resuming import check_topic, resume
from anabranch.model.segments import HashRange, SegmentId


@dataclass(frozen=True, slots=True)
class RowsBefore:
    """All rows of segments below `whole_below` and of those in `whole`; in `partly`, rows before a position each."""

    whole_below: SegmentId
    whole: frozenset[SegmentId] = frozenset()
    partly: Mapping[SegmentId, MessagePosition] = field(default_factory=dict)

    def has(self, segment: SegmentId, at: MessagePosition) -> bool:
        bound = self.partly.get(segment)
        if bound is not None:
            return at < bound
        return segment < self.whole_below or segment in self.whole


def rows_before(cut: Cut, layout: SegmentLayout, topic: str = "the topic") -> RowsBefore:
    """The rows before the cut. Raises BadCheckpoint if the cut is of another topic, or cannot be told in rows."""
    check_topic(layout, cut, topic)
    for one in cut.places:
        if len(one.at) > 1:
            raise BadCheckpoint(
                f"segment {one.segment} of this cut has a position for each entry bucket, as checkpoints of groups "
                "have: rows of a table are chosen by a cut with one position for each segment"
            )
    if not cut.places:
        return RowsBefore(SegmentId(0))
    # Places that say nothing of older segments: those of members of groups, and of partitions.
    is_silent = any(place.is_apart or place.is_classic for place in cut.places)
    oldest = SegmentId(0) if is_silent else cut.places[0].segment
    places = resume(layout, cut).places
    gone = {one.segment: one.range for one in layout.gone or ()}
    whole: set[SegmentId] = set()
    partly: dict[SegmentId, MessagePosition] = {}
    for number in map(SegmentId, range(oldest, cut.places[-1].segment + 1)):
        place: Place | None = cut.get(number) or places.get(number)
        if place is not None:
            if place.is_over:
                whole.add(number)
            else:
                partly[number] = place.first
        elif number not in layout.segments and _is_over(cut, number, gone.get(number), topic):
            whole.add(number)
    return RowsBefore(oldest, frozenset(whole), partly)


def _is_over(cut: Cut, pruned: SegmentId, span: HashRange | None, topic: str) -> bool:
    """Whether a pruned segment without a place was read before the cut. None for a range that is forgotten."""
    near = [place for place in cut.places if span is None or place.range.overlaps(span)]
    newer = [p for p in near if p.segment > pruned and not p.is_apart and not p.is_classic]
    if newer and span is None and len(newer) < len(near):
        raise BadCheckpoint(
            f"{topic}: whether segment {pruned} was read at this cut is not known any more, as the segment was deleted "
            "long ago: choose by a version of the table, or by a time"
        )
    return bool(newer)
