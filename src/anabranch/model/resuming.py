"""Where each segment of a layout is read from, given a cut that may be much older, and what was lost in between. Pure.

The layout may have split, merged and pruned since. A pruned segment that was not read to its end is a gap, and so is
one that was created and pruned after the cut: the epoch that seals parents introduces their children, so a missing
generation is noticed. Layouts of our brokers remember where pruned segments ended (`anabranch.model.gone`), so a gap is
reported only if it held messages; with other brokers there may have been none.

What retention deleted from a segment that still exists is not known here: the reader must ask when it opens the
segment.

A cut of another topic of the same name is refused. If only one of the two has a topic id, the cut's positions decide:
brokers know whether a position was ever theirs, because ledger ids are never used again. A cut without positions is
refused then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from anabranch.errors import AnabranchError
from anabranch.model.cut import (
    BEGINNING,
    BadCheckpoint,
    Cut,
    MessagePosition,
    Place,
    TopicMadeAgain,
    uncovered,
)
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import WHOLE, HashRange, Segment, SegmentId


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages that may have been in `range` and can no longer be read.

    They are those of `segment` from `position` on; or, if that is None, all that came in the range after the end of
    `segment`.
    """

    segment: SegmentId
    range: HashRange
    position: MessagePosition | None

    def __str__(self) -> str:
        if self.position is None:
            return f"all of range {self.range} that came behind segment {self.segment} and is deleted"
        ledger, entry, index = self.position
        if self.position == BEGINNING:
            return f"segment {self.segment} (range {self.range}) from its beginning on"
        within = f", message {index} of its batch" if index else ""
        return f"segment {self.segment} (range {self.range}) from ledger {ledger}, entry {entry}{within} on"


class DataLost(AnabranchError):
    """Messages that were to be read next are gone. The message names the gap; programs find it in `gaps`."""

    def __init__(self, message: str, gaps: Iterable[Gap] = ()) -> None:
        super().__init__(message)
        self.gaps = tuple(gaps)

    @staticmethod
    def of(topic: str, gaps: Iterable[Gap]) -> DataLost:
        gaps = tuple(gaps)
        return DataLost(
            f"{topic}: messages behind this checkpoint were deleted: {'; '.join(map(str, gaps))}. Keep them longer "
            "(retention, or a subscription that holds them), or start from a later checkpoint, or at 'earliest'. If "
            "the topic is kept as a table, that still has them: client.table and anabranch.spark.table read it, and "
            "tell the checkpoint to go on from (docs/tables.md)",
            gaps,
        )


@dataclass(frozen=True, slots=True)
class Resumption:
    """How to read a layout from a cut on."""

    # A place for each segment of the layout; None: from its earliest message on.
    places: Mapping[SegmentId, Place | None]
    gaps: tuple[Gap, ...]
    # Segments that are not over, and neither is anything older in their range.
    readable: tuple[SegmentId, ...]


def epoch_of(cut: Cut) -> int:
    """The epoch of the newest layout that the cut knows. An older layout cannot be read with this cut: wait for a newer
    one."""
    return max((max(place.epoch, place.sealed_epoch) for place in cut.places), default=0)


def resume(layout: SegmentLayout, cut: Cut) -> Resumption:
    """How to read the layout from the cut on. BadCheckpoint if the cut cannot be of this topic, or is newer than the
    layout."""
    check_topic(layout, cut)
    for place in cut.places:
        _check_is_of(layout, place)
    stretches = _Stretches(cut)
    places = {number: stretches.place_of(segment) for number, segment in layout.segments.items()}
    return Resumption(places, _gaps(layout, cut, places), _readable(layout, places))


def check_topic(layout: SegmentLayout, cut: Cut, topic: str = "the topic") -> None:
    """Raises TopicMadeAgain unless the cut is of that layout's topic. `topic` is its name in the error.

    Where ids do not decide, the brokers do, which refuse positions that were never theirs: see `is_unproved`.
    """
    if cut.topic_id and layout.topic_id and cut.topic_id != layout.topic_id:
        raise TopicMadeAgain(
            f"{topic} was deleted and made again since this checkpoint was written, unless it is another topic's: it "
            f"is of the one with the id {cut.topic_id}, and {topic} has the id {layout.topic_id}. What was not read of "
            "the former is gone. Start at 'earliest' to read the present one from its beginning, or give a "
            "checkpoint of that"
        )
    if is_unproved(layout, cut) and not positions_of(cut) and _claims_anything(cut):
        raise TopicMadeAgain(
            f"this checkpoint does not tell whether it is of {topic} as it is now, or of one of the same name that was "
            "deleted since: it, or the topic, is of a release without ids of topics, and it has no position to tell it "
            "by. Start at 'earliest', or give a checkpoint that was written since"
        )


def is_unproved(layout: SegmentLayout, cut: Cut) -> bool:
    """Whether only one of the two has a topic id: then the brokers must check the cut's positions."""
    return bool(cut.places) and bool(cut.topic_id) != bool(layout.topic_id)


def positions_of(cut: Cut) -> dict[SegmentId, MessagePosition]:
    """The positions of segments that were begun and are not over."""
    return {p.segment: min(p.at) for p in cut.places if not p.is_over and min(p.at) > BEGINNING}


def _claims_anything(cut: Cut) -> bool:
    """Whether anything was read according to the cut: a child's place implies that its parents were."""
    return any(place.is_over or (place.epoch > 0 and not place.is_apart) for place in cut.places)


def _check_is_of(layout: SegmentLayout, place: Place) -> None:
    segment = layout.segments.get(place.segment)
    same = place.segment < layout.next_id and place.epoch <= layout.epoch
    if segment is not None:
        same = place.is_classic == bool(segment.classic_topic)
        same = same and (place.is_classic or place.range == segment.range)
        same = same and (len(place.at) <= 1 or len(place.at) == segment.bucket_count)
    if not same:
        raise BadCheckpoint(
            f"segment {place.segment} of this checkpoint (range {place.range}) is unknown to the topic: "
            "it was made for another one, or the topic was deleted and made again"
        )


class _Ruler:
    """The key range, divided wherever one of the given ranges starts or ends: each range is a run of stretches."""

    def __init__(self, spans: Iterable[HashRange]) -> None:
        bounds = {0}
        for span in spans:
            bounds |= {span.start, span.end + 1}
        self._starts = sorted(bounds - {WHOLE.end + 1})

    def __len__(self) -> int:
        return len(self._starts)

    def within(self, span: HashRange) -> range:
        """The numbers of the stretches that share a hash with `span`."""
        return range(bisect_right(self._starts, span.start) - 1, bisect_right(self._starts, span.end))


class _Stretches:
    """A cut, indexed by hash."""

    def __init__(self, cut: Cut) -> None:
        self._own = {place.segment: place for place in cut.places}
        self._has_classic = any(place.is_classic for place in cut.places)
        self._ruler = _Ruler(place.range for place in cut.places)
        self._oldest = [1 << 64] * len(self._ruler)
        self._newest = [-1] * len(self._ruler)  # The newest of those that speak for older segments.
        for place in cut.places:
            for n in self._ruler.within(place.range):
                self._oldest[n] = min(self._oldest[n], place.segment)
                if not place.is_apart and not place.is_classic:
                    self._newest[n] = max(self._newest[n], place.segment)

    def place_of(self, segment: Segment) -> Place | None:
        own = self._own.get(segment.id)
        fresh = Place.of(segment)
        if own is not None:
            return own.over(own.sealed_epoch or segment.sealed_epoch) if own.is_over else own
        within = self._ruler.within(fresh.range)
        if any(self._newest[n] > segment.id for n in within):
            return fresh.over(segment.sealed_epoch)
        if fresh.is_classic:
            # An added partition, or a partition of a topic that the cut does not know as classic.
            return fresh if self._has_classic else None
        return fresh if any(self._oldest[n] < segment.id for n in within) else None


def _readable(layout: SegmentLayout, places: Mapping[SegmentId, Place | None]) -> tuple[SegmentId, ...]:
    # Ranges, not links: links are cut where a generation is pruned, but order must hold beyond it.
    ruler = _Ruler(segment.range for segment in layout.segments.values())
    is_waited_for = [False] * len(ruler)
    found: list[SegmentId] = []
    for number, segment in layout.segments.items():
        place = places[number]
        if place is not None and place.is_over:
            continue
        fresh = Place.of(segment)
        within = ruler.within(fresh.range)
        if fresh.is_classic or not any(is_waited_for[n] for n in within):
            found.append(number)
        for n in within:
            is_waited_for[n] = True
    return tuple(found)


def _gaps(layout: SegmentLayout, cut: Cut, places: Mapping[SegmentId, Place | None]) -> tuple[Gap, ...]:
    """Pruned segments that were not read, and missing generations after what was or will be read."""
    gaps: list[Gap] = []
    # Segments of the layout and of the cut, by the epoch that introduced them.
    brought: dict[int, list[HashRange]] = defaultdict(list)
    for place in (*map(Place.of, layout.segments.values()), *cut.places):
        brought[place.epoch].append(place.range)
    to_come = [place for place in places.values() if place is not None and not place.is_over]
    for place in to_come:
        known = layout.segments[place.segment]
        if known.is_sealed:
            gaps += _missing(layout, place, brought[known.sealed_epoch])
    for place in cut.places:
        found = layout.segments.get(place.segment)
        if place.is_over:
            sealed = place.sealed_epoch or (found.sealed_epoch if found is not None else 0)
            newer = [other.range for other in cut.places if not other.is_apart and place.is_before(other)]
            if found is None or found.is_sealed:
                gaps += _missing(layout, place, newer + (brought[sealed] if sealed else []))
        elif found is None:
            gaps += gaps_of(layout, place)
    return tuple(sorted(gaps, key=lambda gap: (gap.range, gap.segment)))


def gaps_of(layout: SegmentLayout, place: Place) -> list[Gap]:
    """What a reader at that place has lost, its segment being pruned."""
    if layout.gone is None:
        return [Gap(place.segment, place.range, min(place.at))]
    gaps = [
        Gap(place.segment, place.range.common(gone.range), min(place.at))
        for gone in layout.gone
        if gone.segment == place.segment and (gone.end is None or min(place.at)[:2] < gone.end)
    ]
    return gaps + _missing(layout, place, ())


def _missing(layout: SegmentLayout, place: Place, followed_by: Iterable[HashRange]) -> list[Gap]:
    """Gaps where a segment's successor is neither in the layout nor was read."""
    left = uncovered(place.range, followed_by)
    if layout.gone is None:
        return [Gap(place.segment, span, None) for span in left]
    return [
        Gap(place.segment, span.common(gone.range), None)
        for gone in layout.gone
        for span in left
        if gone.segment > place.segment and not gone.is_classic and span.overlaps(gone.range)
    ]
