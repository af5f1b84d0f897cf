"""What a micro-batch reads: where it ends, and the slices of segments between its start and its end. Pure.

`reach` chooses the end of a batch from what is known now: the layout, where segments end, a limit. From then on the
batch is fixed: `plan` gives the slices between two cuts, and they hold the same messages whatever the layout has become
by then. So a batch that runs again, after any crash and any number of splits, merges and prunes, has the same rows.

With `ordering="key"` a child is begun in a later batch than the last messages of all its ancestors, and one slice has
all that a batch takes of a segment. A key's messages lie in segments that follow each other, with rising ids, so the
order by batch, segment and position is the order in which they were published. With "none" children do not wait.

A limit is spent on the oldest messages first, whichever segment they are in: segments that are read at once stay
together in time. Rows and bytes are both kept, to the message; one message is always taken.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from anabranch.model.cut import BEGINNING, BadCheckpoint, Cut, Place, Position
from anabranch.model.layout import SegmentLayout
from anabranch.model.resuming import Gap, Resumption, resume
from anabranch.model.segments import Segment, SegmentId

Ordering = Literal["key", "none"]


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """Messages of one segment, for one task."""

    segment: SegmentId
    start: Position | None  # None: the earliest it has.
    end: (
        Position | None
    )  # Of the first message that is not in it. None: to the end of the segment, which is sealed.
    chunks_from: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """The messages of one entry from a position on."""

    at: Position
    rows: int
    bytes: int
    time_ms: int = 0

    def behind(self, rows: int) -> Position:
        """The position once so many of them are read."""
        ledger, entry, index = self.at
        return (ledger, entry + 1, 0) if rows >= self.rows else (ledger, entry, index + rows)


@dataclass(frozen=True, slots=True)
class Steps:
    """All that a segment has from where it is to be read on, as far as `until`."""

    steps: Sequence[Step] = ()
    until: Position = BEGINNING


@dataclass(frozen=True, slots=True)
class Known:
    """What brokers have told. A segment without an end is not read yet."""

    ends: Mapping[SegmentId, Position]  # Behind the last message of each.
    steps: Mapping[SegmentId, Steps] = field(default_factory=dict)  # Needed where there is a limit.


@dataclass(frozen=True, slots=True)
class Limit:
    """None: as much as there is."""

    rows: int | None = None
    bytes: int | None = None

    @property
    def is_set(self) -> bool:
        return self.rows is not None or self.bytes is not None


UNLIMITED: Final = Limit()


# -- the end of a batch


@dataclass(frozen=True, slots=True)
class Run:
    """A segment that the next batch may read: from a place, up to `bound`, which is its end if `closes`."""

    segment: Segment
    place: Place
    bound: Position
    closes: bool

    @property
    def is_empty(self) -> bool:
        return self.bound <= self.place.at[0]

    def to(self, at: Position) -> Place:
        if self.closes and at >= self.bound:
            return self.place.over(self.segment.sealed_epoch)
        return self.place.moved(at)


def runs(
    layout: SegmentLayout, start: Cut, known: Known, target: Cut | None = None, ordering: Ordering = "key"
) -> tuple[Cut, list[Run]]:
    """What may be read next, and the cut it is read from: `start`, without sealed segments that have nothing more.

    Nothing behind `target` is. BadCheckpoint if the layout is older than a cut, or of another topic.
    """
    goal = None if target is None else resume(layout, target)
    while True:
        found = resume(layout, start)
        # Where children do not wait, those that are begun early must not say that their ancestors are over.
        numbers = found.readable if ordering == "key" else _not_over(found)
        first = frozenset(found.readable)
        possible = [_run(layout.segments[n], found, start, n in first, known, goal) for n in numbers]
        there = [run for run in possible if run is not None]
        over = [run.to(run.bound) for run in there if run.is_empty and run.closes]
        if not over:
            return start, [run for run in there if not run.is_empty]
        start = moved(start, over)


def _not_over(found: Resumption) -> tuple[SegmentId, ...]:
    return tuple(n for n, place in found.places.items() if place is None or not place.is_over)


def _run(
    segment: Segment, found: Resumption, cut: Cut, is_first: bool, known: Known, goal: Resumption | None
) -> Run | None:
    end = known.ends.get(segment.id)
    if end is None:
        return None
    place = cut.get(segment.id) or Place.of(segment, is_apart=not is_first)
    if len(place.at) > 1:
        raise BadCheckpoint(
            f"segment {segment.id} has positions for entry buckets, which this release does not read"
        )
    if goal is None:
        return Run(segment, place, end, segment.is_sealed)
    aim = goal.places[segment.id]
    if aim is None:
        return None
    if aim.is_over:
        return Run(segment, place, end, segment.is_sealed)
    # "Latest" may be the first position of a ledger that nothing is written to yet.
    return Run(segment, place, min(end, aim.at[0]), False)


def reach(
    layout: SegmentLayout,
    start: Cut,
    known: Known,
    *,
    target: Cut | None = None,
    limit: Limit = UNLIMITED,
    ordering: Ordering = "key",
) -> Cut:
    """The end of the next batch; `start` itself if there is nothing to read."""
    begin, possible = runs(layout, start, known, target, ordering)
    ends = {run.segment.id: run.bound for run in possible}
    if limit.is_set:
        ends = _spend(possible, known, limit)
    news = [run.to(min(ends[n], run.bound)) for run in possible if (n := run.segment.id) in ends]
    return moved(begin, news)


def moved(cut: Cut, places: Iterable[Place]) -> Cut:
    """With those places instead of its own for the same segments."""
    return Cut(tuple({**{p.segment: p for p in cut.places}, **{p.segment: p for p in places}}.values()))


def _spend(possible: Sequence[Run], known: Known, limit: Limit) -> dict[SegmentId, Position]:
    """How far each segment is read, if it is: the oldest messages of all of them that the limit allows."""
    rows_left = limit.rows if limit.rows is not None else 1 << 62
    bytes_left = limit.bytes if limit.bytes is not None else 1 << 62
    ends: dict[SegmentId, Position] = {}
    has_taken = False
    paths = {run.segment.id: _path(run, known.steps.get(run.segment.id, Steps())) for run in possible}
    next_of = dict.fromkeys(paths, 0)
    # Times may fall within a segment, so it is the latest of all up to a step that counts.
    heap = [(path[0][1], number) for number, path in paths.items() if path]
    heapq.heapify(heap)
    while heap:
        _, number = heapq.heappop(heap)
        path, at = paths[number], next_of[number]
        step, _ = path[at]
        rows = min(step.rows, rows_left)
        if step.bytes > bytes_left:
            rows = max(0, min(rows, bytes_left * step.rows // step.bytes))
        if not rows and step.rows and not has_taken:
            rows = 1
        if rows or not step.rows:
            ends[number] = step.behind(rows)
            has_taken = has_taken or rows > 0
        if rows < step.rows:
            break
        rows_left -= rows
        bytes_left -= step.bytes
        next_of[number] = at = at + 1
        if at < len(path):
            heapq.heappush(heap, (path[at][1], number))
    for run in possible:
        number = run.segment.id
        steps = known.steps.get(number, Steps())
        if next_of[number] == len(paths[number]) and steps.until >= run.bound:
            ends[number] = run.bound
    return ends


def _path(run: Run, known: Steps) -> list[tuple[Step, int]]:
    """The steps within a run, each with the latest time up to it."""
    path: list[tuple[Step, int]] = []
    latest = 0
    for step in known.steps:
        ledger, entry, index = step.at
        start, bound = run.place.at[0], run.bound
        first = start[2] if start[:2] == (ledger, entry) else index
        last = bound[2] if bound[:2] == (ledger, entry) else index + step.rows
        if step.at[:2] < start[:2] or step.at >= bound or (first >= last and step.rows):
            continue
        latest = max(latest, step.time_ms)
        share = step.bytes * (last - first) // step.rows if step.rows else step.bytes
        path.append((Step((ledger, entry, first), last - first, share, step.time_ms), latest))
    return path


# -- what lies between two cuts


def plan(layout: SegmentLayout, start: Cut, end: Cut) -> list[SegmentSlice]:
    """The slices between two cuts, one for each segment that has any, in the order of their ids.

    BadCheckpoint if the layout is older than a cut: wait for a newer one.
    """
    before, after = resume(layout, start).places, resume(layout, end).places
    slices: list[SegmentSlice] = []
    for number in layout.segments:
        one, other = before[number], after[number]
        if other is None or (one is not None and one.is_over):
            continue
        begin = None if one is None else one.at[0]
        until = None if other.is_over else other.at[0]
        if until is None or (begin or BEGINNING) < until:
            slices.append(SegmentSlice(number, begin, until, None if one is None else one.chunks_from))
    return slices


def lost(layout: SegmentLayout, start: Cut, end: Cut) -> tuple[Gap, ...]:
    """What was between two cuts and can no longer be read."""
    later = frozenset(resume(layout, end).gaps)
    gaps = [gap for gap in resume(layout, start).gaps if gap not in later]
    for place in end.places:
        # Read from its earliest message on, and now it is not there any more.
        is_begun = place.is_over or place.at[0] > BEGINNING
        if place.segment not in layout.segments and is_begun and _is_untouched(start, place):
            may_have_had = layout.gone is None or any(
                gone.segment >= place.segment and gone.range.overlaps(place.range) for gone in layout.gone
            )
            gaps += [Gap(place.segment, place.range, BEGINNING)] if may_have_had else []
    return tuple(gaps)


def _is_untouched(cut: Cut, place: Place) -> bool:
    """Whether a cut says nothing of the place's segment, neither itself nor by newer ones."""
    if cut.get(place.segment) is not None:
        return False
    return not any(not newer.is_apart and place.is_before(newer) for newer in cut.places)
