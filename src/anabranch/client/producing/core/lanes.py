"""Which segment and entry bucket each message goes to, and when: order through splits and merges. Pure.

A message waits or is in a lane: the runs of one entry bucket of a segment that were sent, or are to be sent, and have
no receipt yet, and behind them the messages that are being gathered for the next run. Two rules keep every key in order
and the sequence ids of every bucket rising:

- a message joins a lane of a segment only while no lane of a segment that is no longer active, and overlaps it, holds
  anything: messages sent to an ancestor are settled before the next generation starts;
- messages that a sealed segment refused wait again, sorted among the others by number, so they go first.

Whether a message must wait depends on its segment alone, never on the message, so no message passes an earlier one for
the same bucket. Ranges, not keys, are compared: a merged segment waits for both of its parents, because it would treat
a number below one that it has already seen as a repetition.

The ids of a segment with several buckets are interleaved: that it holds a message says nothing about lower numbers in
its other buckets. So runs are settled bucket by bucket.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import lru_cache, partial
from typing import Final, TypeAlias

from anabranch.client.producing.core.runs import (
    ITEM_FIELDS,
    BatchLimits,
    BatchRun,
    BlockRun,
    Items,
    MessageRun,
    Parts,
    recut,
)
from anabranch.model.buckets import Splits, ranges
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import WHOLE, HashRange, SegmentId

LIMITS: Final = BatchLimits(1000, 128 * 1024)
# The lane of messages that wait.
NOWHERE: Final = SegmentId(-1)
# As many as a byte can number.
NUMBERED_MAX: Final = 256
# Spreads messages without a key over a segment's hashes; odd, so that it reaches each of them.
STRIDE: Final = 40503


class Routing(Enum):
    """Which half of a key's 32-bit hash chooses the segment."""

    HIGH = "high"
    LOW = "low"  # Pulsar 5.0.0-M1.

    def of(self, hash32: int) -> int:
        return hash32 >> 16 if self is Routing.HIGH else hash32 & 0xFFFF


def is_synthetic(layout: SegmentLayout) -> bool:
    """Whether the topic is classic: keys go to partitions by the remainder of their hash."""
    return bool(
        layout.active[0].classic_topic
    )  # Then all are; a migrated topic's active segments have their own logs.


def segment_for(layout: SegmentLayout, hash32: int, routing: Routing) -> SegmentId:
    if is_synthetic(layout):
        # Like classic clients that hash by murmur3. The segments of such a layout are numbered by partition.
        return SegmentId((hash32 & 0x7FFFFFFF) % len(layout.active))
    return layout.find_active(routing.of(hash32)).id


def keyless_hash(layout: SegmentLayout, turn: int, routing: Routing, low: int) -> int:
    """A hash for a message without a key: segments take turns, and hashes are spread within a segment.

    `low` is the producer's entry-bucket hash: within a segment its messages without a key are in one bucket, in order.
    A message keeps its hash, so that after a split it goes to a child of the segment that refused it.
    """
    if is_synthetic(layout):
        partitions = len(layout.active)
        # The remainder of a hash chooses among several partitions, and then its lower half cannot be chosen.
        if partitions > 1:
            return turn & 0x7FFFFFFF
        return (turn * STRIDE & 0xFFFF) << 16 | low if routing is Routing.HIGH else low
    span = layout.active[turn % len(layout.active)].range
    if routing is Routing.LOW:
        return span.start + low % len(span)
    return (span.start + turn // len(layout.active) * STRIDE % len(span)) << 16 | low


@lru_cache(maxsize=16)
def bucket_numbers(splits: Splits) -> bytes:
    """The number of the bucket of each hash of the ring, for `NUMBERED_MAX` buckets at most. A look into it takes a
    third of the time of a search."""
    return b"".join([bytes((number,)) * len(span) for number, span in enumerate(ranges(splits))])


class Lane:
    """The runs of one bucket without a receipt, oldest first, and the messages that will be its next run.

    A caller may extend `items` and `parts` by a message if it adds to `size` and keeps within the limits; `since` is
    when the first of them came.
    """

    __slots__ = ("bucket", "items", "parts", "runs", "segment", "since", "size")

    def __init__(self, segment: SegmentId, bucket: int = 0) -> None:
        self.segment = segment
        self.bucket = bucket
        self.runs: deque[MessageRun] = deque()
        self.items: Items = []
        self.parts: Parts = []
        self.size = 0
        self.since = 0.0

    def cut(self) -> MessageRun | None:
        """Turns the gathered messages into a run, the last one of the lane; None if there are none."""
        if not self.items:
            return None
        run = BatchRun(self.items, self.parts, self.size, self.since)
        self.items, self.parts, self.size = [], [], 0
        self.runs.append(run)
        return run

    def add(self, run: MessageRun) -> None:
        """Adds a run behind everything else; gathered messages must be cut before."""
        assert not self.items
        self.runs.append(run)

    @property
    def is_empty(self) -> bool:
        return not self.runs and not self.items

    @property
    def first_number(self) -> int | None:
        if self.runs:
            return self.runs[0].first
        return self.items[0] if self.items else None


Placed: TypeAlias = tuple[Lane, MessageRun]


class Lanes:
    """All messages of one producer that have no receipt.

    After any change, and before the next `find`, `ready` moves messages that need not wait any longer, and returns the
    runs to send.
    """

    def __init__(
        self,
        layout: SegmentLayout,
        routing: Routing = Routing.HIGH,
        limits: BatchLimits = LIMITS,
    ) -> None:
        self.layout = layout
        self.limits = limits
        self._routing = routing
        # By segment and bucket; made on first use, as there may be thousands of buckets.
        self._lanes: dict[SegmentId, dict[int, Lane]] = {}
        self._waiting = Lane(NOWHERE)
        # Ranges of segments no longer active that may still hold, or receive, messages sent to them.
        self._leaving: list[HashRange] = []
        # Segments that refused a message while the layout still calls them active: the next layout will have their
        # children.
        self._refused: set[SegmentId] = set()
        # For `find`: the lanes of the active segments, if each of them has one bucket, and the first hashes of their
        # ranges, unless the topic is classic.
        self._starts: list[int] | None = None
        self._plain: list[Lane] = []
        # For `find`: the number of the bucket of each low half, if the topic has one segment, and that several buckets.
        self._numbers: bytes | None = None
        # For any layout: the lanes of all buckets, None for one without a lane yet; and for each segment its first
        # hash, its number, the place of its first bucket, and its splits.
        self._places: list[Lane | None] = []
        self._firsts: list[int] = []
        self._active: list[tuple[SegmentId, int, Splits]] = []
        # How far a hash is shifted before 16 bits of it choose the segment.
        self._shift = 16 if routing is Routing.HIGH else 0
        self._is_stirred = False
        # Cuts runs of tables again, once there are any.
        self.regroup: Callable[[Lanes, list[BlockRun]], list[Placed]] | None = None
        self._arrange()

    def __len__(self) -> int:
        return sum(run.count for lane in self._all for run in lane.runs) + sum(
            len(lane.items) // ITEM_FIELDS for lane in self._all
        )

    @property
    def _all(self) -> Iterator[Lane]:
        for lanes in self._lanes.values():
            yield from lanes.values()
        yield self._waiting

    @property
    def segments(self) -> tuple[SegmentId, ...]:
        """The segments with messages in their lanes."""
        return tuple(number for number in self._lanes if self.holds(number))

    def of(self, segment: SegmentId) -> tuple[Lane, ...]:
        """The segment's lanes that were used, by bucket."""
        lanes = self._lanes.get(segment, {})
        return tuple(lanes[bucket] for bucket in sorted(lanes))

    def runs(self, segment: SegmentId) -> list[Placed]:
        """The segment's runs without a receipt, each lane's in order. All of them are sent again after a lost
        connection."""
        runs = [(lane, run) for lane in self.of(segment) for run in lane.runs]
        # Buckets take turns as their messages came.
        runs.sort(key=_first_of)
        return runs

    def together(self, segment: SegmentId, runs: Iterable[Placed] = ()) -> list[Placed]:
        """Those runs, and whatever is being gathered for the segment, all in the rising order of their last numbers.

        For a broker that knows one last sequence id for the whole segment: all numbers that come later are higher.
        """
        found = list(runs)
        for lane in self.of(segment):
            run = lane.cut()
            if run is not None:
                found.append((lane, run))
        found.sort(key=_last_of)
        return found

    def lane(self, segment: SegmentId, bucket: int = 0) -> Lane | None:
        return self._lanes.get(segment, {}).get(bucket)

    def holds(self, segment: SegmentId) -> bool:
        """Whether any message of the segment has no receipt."""
        return any(not lane.is_empty for lane in self._lanes.get(segment, {}).values())

    def first_number(self, segment: SegmentId) -> int | None:
        """The lowest number of its messages without a receipt."""
        numbers = [lane.first_number for lane in self._lanes.get(segment, {}).values()]
        return min((number for number in numbers if number is not None), default=None)

    def oldest_s(self) -> float | None:
        """When the message that waits longest was handed in, or a little earlier."""
        times = [lane.runs[0].since for lane in self._all if lane.runs]
        times += [lane.since for lane in self._all if lane.items]
        # Refused runs wait in no particular order.
        times += [run.since for run in self._waiting.runs]
        return min(times, default=None)

    def find(self, hash32: int) -> Lane:
        """Where a message of that hash is gathered now: its bucket's lane, or the lane of messages that wait."""
        if self._numbers is not None:
            place = self._numbers[hash32 & 0xFFFF]
            return self._places[place] or self.at(place)
        if self._starts is not None:
            return self._plain[bisect_right(self._starts, hash32 >> self._shift & 0xFFFF) - 1]
        if self._plain:
            return self._plain[(hash32 & 0x7FFFFFFF) % len(self._plain)]
        # `find_by`, written out: a call would cost as much as the search.
        _, base, splits = self._active[bisect_right(self._firsts, hash32 >> self._shift & 0xFFFF) - 1]
        place = base + bisect_right(splits, hash32 & 0xFFFF)
        return self._places[place] or self.at(place)

    def find_by(self, hash32: int, low: int) -> Lane:
        """The same for a message whose entry-bucket hash is not that of its key."""
        if not self._firsts:
            return self.at((hash32 & 0x7FFFFFFF) % len(self._places))
        _, base, splits = self._active[bisect_right(self._firsts, hash32 >> self._shift & 0xFFFF) - 1]
        place = base + bisect_right(splits, low)
        return self._places[place] or self.at(place)

    def at(self, place: int) -> Lane:
        """The lane of a bucket: `places` counts the buckets of the active segments in the order of their ranges, or the
        partitions by number."""
        found = self._places[place]
        if found is None:
            # Every segment of those with a place before this one has one at least: the last of them is meant.
            number, base, _ = self._active[bisect_right(self._active, place, key=_base) - 1]
            found = self._places[place] = self._make(number, place - base)
        return found

    @property
    def places(self) -> int:
        """How many buckets the active segments have in all."""
        return len(self._places)

    # -- events

    def learned(self, layout: SegmentLayout) -> None:
        """Applies a layout, unless it is older."""
        if layout.epoch >= self.layout.epoch:
            self.layout = layout
            self._refused = {s for s in self._refused if self._is_active(s)}
            self._arrange()

    def stored(self, lane: Lane, run: MessageRun) -> bool:
        """The segment holds that run, which leaves its lane. False if it has left it before."""
        if not lane.runs or lane.runs[0] is not run:
            return False
        lane.runs.popleft()
        self._after(lane)
        return True

    def settled(self, segment: SegmentId, bucket: int, upto: int) -> list[MessageRun]:
        """The segment holds everything of that bucket up to that number: those runs leave its lane and are returned."""
        lane = self.lane(segment, bucket)
        done: list[MessageRun] = []
        if lane is None:
            return done
        if lane.items and lane.items[0] <= upto:
            lane.cut()
        runs = lane.runs
        while runs and runs[0].last <= upto:
            done.append(runs.popleft())
        if runs and runs[0].first <= upto:
            stored, rest = runs.popleft().parted(upto)
            done.append(stored)
            runs.appendleft(rest)
        self._after(lane)
        return done

    def dropped(self, lane: Lane, run: MessageRun) -> bool:
        """The segment will never accept that run: it leaves its lane, the others stay. False if it has left it
        before."""
        if run not in lane.runs:
            return False
        lane.runs.remove(run)
        self._after(lane)
        return True

    def sealed(self, segment: SegmentId) -> None:
        """The segment refuses all messages left in its lanes, and all later ones."""
        lanes = self._lanes.pop(segment, {})
        for lane in lanes.values():
            lane.cut()
            self._waiting.cut()
            self._waiting.runs += lane.runs
        if self._is_active(segment):
            self._refused.add(segment)
        self._arrange()

    def clear(self) -> list[MessageRun]:
        """Removes and returns all runs."""
        left: list[MessageRun] = []
        for lane in self._all:
            lane.cut()
            left += lane.runs
            lane.runs.clear()
        self._arrange()
        return sorted(left, key=lambda run: run.first)

    # -- decisions

    def ready(self) -> list[Placed]:
        """The runs that join a lane now, for each lane in the order of sending."""
        if not self._is_stirred:
            return []
        self._is_stirred = False
        self._waiting.cut()
        waiting = list(self._waiting.runs)
        self._waiting.runs.clear()
        go: list[Placed] = []
        regroup = partial(self.regroup, self) if self.regroup is not None else None
        for lane, run in recut(waiting, self.find_by, self.limits, regroup):
            if lane.segment != NOWHERE and lane.items:
                # Gathered before anything had to wait here, so older than all of these.
                older = lane.cut()
                assert older is not None
                go.append((lane, older))
            lane.add(run)
            if lane.segment != NOWHERE:
                go.append((lane, run))
        return go

    def _is_active(self, segment: SegmentId) -> bool:
        known = self.layout.segments.get(segment)
        return known is not None and known.is_active

    def _after(self, lane: Lane) -> None:
        """Once a segment that is no longer active has nothing left, its children need not wait for it."""
        if lane.is_empty and not self._is_active(lane.segment) and not self.holds(lane.segment):
            self._arrange()

    def _arrange(self) -> None:
        """Decides again which segments' messages must wait, and where the others go."""
        self._is_stirred = True
        self._leaving = []
        for number in list(self._lanes):
            known = self.layout.segments.get(number)
            if not self.holds(number) and (known is None or known.is_sealed):
                del self._lanes[number]
            elif known is None:
                # Pruned, and a partition of a classic topic may have held any key.
                self._leaving.append(WHOLE)
            elif known.is_sealed:
                self._leaving.append(known.range)
        active = self.layout.active
        is_classic = is_synthetic(self.layout)
        if is_classic:
            active = tuple(sorted(active, key=lambda segment: segment.id))
        self._firsts = [] if is_classic else [segment.range.start for segment in active]
        self._places, self._active = [], []
        for segment in active:
            self._active.append((segment.id, len(self._places), segment.bucket_splits))
            if self._must_wait(segment.id, segment.range):
                self._places += [self._waiting] * segment.bucket_count
            else:
                known_lanes = self._lanes.get(segment.id, {})
                self._places += [known_lanes.get(bucket) for bucket in range(segment.bucket_count)]
        is_plain = len(self._places) == len(active)
        self._starts = self._firsts if is_plain and not is_classic else None
        self._plain = [self.at(place) for place in range(len(active))] if is_plain else []
        is_alone = len(active) == 1 and not is_classic and 1 < len(self._places) <= NUMBERED_MAX
        self._numbers = bucket_numbers(active[0].bucket_splits) if is_alone else None

    def _make(self, segment: SegmentId, bucket: int) -> Lane:
        lanes = self._lanes.setdefault(segment, {})
        lane = lanes.get(bucket)
        if lane is None:
            lane = lanes[bucket] = Lane(segment, bucket)
        return lane

    def _must_wait(self, segment: SegmentId, span: HashRange) -> bool:
        return segment in self._refused or any(span.overlaps(other) for other in self._leaving)


def _first_of(placed: Placed) -> int:
    return placed[1].first


def _last_of(placed: Placed) -> int:
    return placed[1].last


def _base(active: tuple[SegmentId, int, Splits]) -> int:
    return active[1]
