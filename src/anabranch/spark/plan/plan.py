"""What a micro-batch reads: where it ends, and the slices of segments between its start and its end. Pure.

`reach` chooses the end of a batch from what is known now: the layout, where segments end, a limit. From then on the
batch is fixed: `plan` returns the slices between two cuts, and they hold the same messages whatever the layout has
become by then. So a batch that runs again, after any crash and any number of splits, merges and prunes, has the same
rows.

With `ordering="key"` a child is begun in a later batch than the last messages of all its ancestors, and one slice has
all that a batch takes of a segment. A key's messages lie in segments that follow each other, with rising ids, so the
order by batch, segment and position is the order of publishing. With "none" children do not wait.

The checkpoint of a group may have a position for each entry bucket of a segment. Then a batch has a slice for each run
of buckets that stand at the same position, and steps are counted from the first of these: a limit counts what others
have read, too, until the batches have passed the last of them.

All topics of a query share a limit: `anabranch.spark.plan.limit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

from anabranch.model import buckets
from anabranch.model.cut import BEGINNING, Cut, MessagePosition, Place, is_at_end
from anabranch.model.layout import SegmentLayout
from anabranch.model.resuming import Gap, Resumption, resume
from anabranch.model.segments import HashRange, Segment, SegmentId
from anabranch.spark.plan.limit import UNLIMITED, Limit, SegmentStretch, Steps, spent

Ordering = Literal["key", "none"]


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """Messages of one segment, for one task."""

    segment: SegmentId
    start: MessagePosition | None  # None: its earliest message.
    end: (
        MessagePosition | None
    )  # The first position not in it. None: the end of the segment, which is sealed.
    chunks_from: tuple[int, int] | None = None
    hashes: HashRange | None = None  # Only messages of these bucket hashes; None for all.


@dataclass(frozen=True, slots=True)
class Known:
    """What brokers have reported. A segment without an end is not read yet."""

    ends: Mapping[SegmentId, MessagePosition]  # Behind the last message of each.
    steps: Mapping[SegmentId, Steps] = field(default_factory=dict)  # Needed where there is a limit.
    # Segments with more behind their end that readers may yet be shown: not over there, although they may be sealed.
    hiding: frozenset[SegmentId] = frozenset()
    # Segments without a wanted row. Sealed ones are passed at once, as if they were empty.
    unwanted: frozenset[SegmentId] = frozenset()


# -- the end of a batch


@dataclass(frozen=True, slots=True)
class SegmentRun:
    """A segment that the next batch may read: from a place, up to `bound`, which is its end if `closes`."""

    segment: Segment
    place: Place
    bound: MessagePosition
    closes: bool

    @property
    def is_empty(self) -> bool:
        return self.bound <= self.place.first

    def to(self, at: MessagePosition) -> Place:
        if self.closes and at >= self.bound:
            return self.place.over(self.segment.sealed_epoch)
        return self.place.upto(at)


def runs(
    layout: SegmentLayout, start: Cut, known: Known, target: Cut | None = None, ordering: Ordering = "key"
) -> tuple[Cut, list[SegmentRun]]:
    """The runs that may be read next, and the cut to read them from: `start`, without sealed segments that have nothing
    more.

    No run goes behind `target`. Raises BadCheckpoint if the layout is older than a cut, or of another topic.
    """
    goal = None if target is None else resume(layout, target)
    while True:
        found = resume(layout, start)
        # Where children do not wait, children begun early must not say that their ancestors are over.
        numbers = found.readable if ordering == "key" else _not_over(found)
        first = frozenset(found.readable)
        own = {place.segment: place for place in start.places}
        places = [own.get(n) or Place.of(layout.segments[n], is_apart=n not in first) for n in numbers]
        possible = [_run(layout.segments[place.segment], place, known, goal) for place in places]
        there = [run for run in possible if run is not None]
        passed = [run for run in there if run.closes and (run.is_empty or run.segment.id in known.unwanted)]
        over = [run.to(run.bound) for run in passed]
        if not over:
            return start, [run for run in there if not run.is_empty]
        start = moved(start, over, layout.topic_id)


def _not_over(found: Resumption) -> tuple[SegmentId, ...]:
    return tuple(n for n, place in found.places.items() if place is None or not place.is_over)


def _run(segment: Segment, place: Place, known: Known, goal: Resumption | None) -> SegmentRun | None:
    end = known.ends.get(segment.id)
    if end is None:
        return None
    closes = segment.is_sealed and segment.id not in known.hiding
    if goal is None:
        return SegmentRun(segment, place, end, closes)
    aim = goal.places[segment.id]
    if aim is None:
        return None
    if aim.is_over:
        return SegmentRun(segment, place, end, closes)
    # "Latest" may be the first position of a ledger that is still empty.
    return SegmentRun(segment, place, min(end, aim.first), False)


@dataclass(frozen=True, slots=True)
class TopicView:
    """The state of a topic when a batch is planned, and where the batch starts in it."""

    layout: SegmentLayout
    start: Cut
    known: Known
    target: Cut | None = None  # No message behind it is read.


# Segments, by topic.
Segments = Mapping[str, frozenset[SegmentId]]


def rows_to_come(views: Mapping[str, TopicView], ordering: Ordering) -> tuple[int | None, Segments]:
    """How many rows a batch could have, as far as is known, and which segments may have more than was measured; None if
    a finished segment would free others that wait for it."""
    rows = 0
    short: list[tuple[str, SegmentId]] = []
    for name, view in views.items():
        _, possible = runs(view.layout, view.start, view.known, view.target, ordering)
        for run in possible:
            one = _stretch(run, view.known, ordering)
            if one.has_waiting:
                return None, {}
            rows += one.rows
            short += [] if one.is_measured else [(name, run.segment.id)]
    return rows, _by_topic(short)


def _by_topic(segments: Iterable[tuple[str, SegmentId]]) -> Segments:
    found: dict[str, set[SegmentId]] = {}
    for name, number in segments:
        found.setdefault(name, set()).add(number)
    return {name: frozenset(numbers) for name, numbers in found.items()}


def _stretch(run: SegmentRun, known: Known, ordering: Ordering) -> SegmentStretch:
    steps = known.steps.get(run.segment.id, Steps())
    return SegmentStretch(run.place.first, run.bound, steps, has_waiting=run.closes and ordering == "key")


def reach_all(
    views: Mapping[str, TopicView],
    *,
    limit: Limit = UNLIMITED,
    ordering: Ordering = "key",
    skew_ms: int | None = None,
) -> dict[str, Cut]:
    """The end of the next batch in each topic; its start there if there is nothing to read."""
    return reach_and_short(views, limit=limit, ordering=ordering, skew_ms=skew_ms)[0]


def reach_and_short(
    views: Mapping[str, TopicView],
    *,
    limit: Limit = UNLIMITED,
    ordering: Ordering = "key",
    skew_ms: int | None = None,
) -> tuple[dict[str, Cut], Segments]:
    """The same, and the segments whose measures are too short for a correct result."""
    short: Segments = {}
    found = {name: runs(v.layout, v.start, v.known, v.target, ordering) for name, v in views.items()}
    ends = {(name, run.segment.id): run.bound for name, (_, possible) in found.items() for run in possible}
    if limit.is_set or skew_ms is not None:
        paths = {
            (name, run.segment.id): _stretch(run, views[name].known, ordering)
            for name, (_, possible) in found.items()
            for run in possible
        }
        ends, dry = spent(paths, limit, skew_ms)
        short = _by_topic(dry)
    cuts = {
        name: moved(
            begin,
            [run.to(min(ends[at], run.bound)) for run in possible if (at := (name, run.segment.id)) in ends],
            views[name].layout.topic_id,
        )
        for name, (begin, possible) in found.items()
    }
    return cuts, short


def reach(
    layout: SegmentLayout,
    start: Cut,
    known: Known,
    *,
    target: Cut | None = None,
    limit: Limit = UNLIMITED,
    ordering: Ordering = "key",
    skew_ms: int | None = None,
) -> Cut:
    """The end of the next batch of a query that reads one topic."""
    view = TopicView(layout, start, known, target)
    return reach_all({"": view}, limit=limit, ordering=ordering, skew_ms=skew_ms)[""]


def moved(cut: Cut, places: Iterable[Place], topic_id: str) -> Cut:
    """The cut with those places instead of its own for the same segments, and with its topic's id if that is known."""
    known = {**{p.segment: p for p in cut.places}, **{p.segment: p for p in places}}
    return Cut(tuple(known.values()), topic_id or cut.topic_id)


# -- between two cuts


def plan(layout: SegmentLayout, start: Cut, end: Cut) -> list[SegmentSlice]:
    """The slices between two cuts, in the order of their segments' ids: one for each segment that has any, or several
    where a cut has positions for its entry buckets.

    Raises BadCheckpoint if the layout is older than a cut: wait for a newer one.
    """
    before, after = resume(layout, start).places, resume(layout, end).places
    slices: list[SegmentSlice] = []
    for number in layout.segments:
        one, other = before[number], after[number]
        if other is None or (one is not None and one.is_over):
            continue
        chunks_from = None if one is None else one.chunks_from
        for hashes, begin, until in _stretches(layout.segments[number], one, other):
            if until is None or (begin or BEGINNING) < until:
                # A message that is not complete there may be of another bucket.
                chunks = chunks_from if begin is None or (chunks_from or begin) < begin else None
                slices.append(SegmentSlice(number, begin, until, chunks, hashes))
    return slices


def _stretches(
    segment: Segment, one: Place | None, other: Place
) -> list[tuple[HashRange | None, MessagePosition | None, MessagePosition | None]]:
    """From where to where a segment is read: for all of its messages, or for each run of buckets that have the same
    positions."""
    count = max(1 if one is None else len(one.at), len(other.at), 1)
    begins = [None] * count if one is None else list(one.each(count))
    ends = [None] * count if other.is_over else list(other.each(count))
    if count == 1:
        return [(None, begins[0], ends[0])]
    found: list[tuple[HashRange | None, MessagePosition | None, MessagePosition | None]] = []
    ranges = buckets.ranges(segment.bucket_splits)
    for (begin, end), run in groupby(range(count), key=lambda n: (begins[n], ends[n])):
        if begin is None or not is_at_end(begin):
            numbers = list(run)
            hashes = HashRange(ranges[numbers[0]].start, ranges[numbers[-1]].end)
            found.append((hashes, begin, None if end is None or is_at_end(end) else end))
    return found


def lost(layout: SegmentLayout, start: Cut, end: Cut) -> tuple[Gap, ...]:
    """The data between two cuts that can no longer be read."""
    later = frozenset(resume(layout, end).gaps)
    gaps = [gap for gap in resume(layout, start).gaps if gap not in later]
    for place in end.places:
        # To be read from its earliest message on, and now it does not exist any more.
        is_begun = place.is_over or max(place.at) > BEGINNING
        if place.segment not in layout.segments and is_begun and _is_untouched(start, place):
            may_have_had = layout.gone is None or any(
                gone.segment >= place.segment and gone.range.overlaps(place.range) for gone in layout.gone
            )
            gaps += [Gap(place.segment, place.range, BEGINNING)] if may_have_had else []
    return tuple(gaps)


def _is_untouched(cut: Cut, place: Place) -> bool:
    """Whether a cut says nothing of the place's segment, neither directly nor by newer segments."""
    if cut.get(place.segment) is not None:
        return False
    return not any(not newer.is_apart and place.is_before(newer) for newer in cut.places)
