"""Which segment each message goes to, and when: order through splits and merges. Pure.

A message waits or is in a lane: the runs of one segment that were sent, or are to be sent, and have no receipt yet, and
behind them the messages that are being gathered for the next run. Two rules keep every key in order and every segment's
sequence ids rising:

- a message joins a segment's lane only while no lane of a segment that is no longer active, and overlaps it, holds
  anything: messages sent to an ancestor are settled before the next generation starts;
- messages that a sealed segment refused wait again, sorted among the others by number, so they go first.

Whether a message must wait depends on its segment alone, never on the message, so no message passes an earlier one for
the same segment. Ranges, not keys, are compared: a merged segment waits for both of its parents, because it would treat
a number below one that it has already seen as a repetition.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import partial
from typing import Final

from anabranch.client.producing.core.runs import BatchLimits, BatchRun, BlockRun, Item, MessageRun, recut
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import WHOLE, HashRange, SegmentId

LIMITS: Final = BatchLimits(1000, 128 * 1024)
# The lane of messages that wait.
NOWHERE: Final = SegmentId(-1)


class Routing(Enum):
    """Which half of a key's 32-bit hash chooses the segment."""

    HIGH = "high"
    LOW = "low"  # Pulsar 5.0.0-M1.

    def of(self, hash32: int) -> int:
        return hash32 >> 16 if self is Routing.HIGH else hash32 & 0xFFFF

    def spread(self, hash16: int) -> int:
        """A 32-bit hash whose chosen half is `hash16`."""
        return hash16 << 16 if self is Routing.HIGH else hash16


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


def keyless_hash(layout: SegmentLayout, turn: int, routing: Routing) -> int:
    """A hash for a message without a key: segments take turns, and hashes are spread within a segment.

    The message keeps the hash, so that after a split it goes to a child of the segment that refused it.
    """
    if is_synthetic(layout):
        return turn & 0x7FFFFFFF
    span = layout.active[turn % len(layout.active)].range
    return routing.spread(span.start + turn // len(layout.active) * 40503 % len(span))


class Lane:
    """One segment's runs without a receipt, oldest first, and the messages that will be its next run.

    A caller may append to `items` if it adds to `size` and keeps within the limits; `since` is when the first of them
    came.
    """

    __slots__ = ("items", "runs", "segment", "since", "size")

    def __init__(self, segment: SegmentId) -> None:
        self.segment = segment
        self.runs: deque[MessageRun] = deque()
        self.items: list[Item] = []
        self.size = 0
        self.since = 0.0

    def cut(self) -> MessageRun | None:
        """Turns the gathered messages into a run, the last one of the lane; None if there are none."""
        if not self.items:
            return None
        run = BatchRun(self.items, self.size, self.since)
        self.items, self.size = [], 0
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
        return self.items[0][0] if self.items else None


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
        self._routing = routing
        self._limits = limits
        self._lanes: dict[SegmentId, Lane] = {}
        self._waiting = Lane(NOWHERE)
        # Ranges of segments no longer active that may still hold, or receive, messages sent to them.
        self._leaving: list[HashRange] = []
        # Segments that refused a message while the layout still calls them active: the next layout will have their
        # children.
        self._refused: set[SegmentId] = set()
        # For `find`: the lanes of the active segments, and the first hashes of their ranges unless the topic is
        # classic.
        self._starts: list[int] | None = None
        self._places: list[Lane] = []
        # How far a hash is shifted before 16 bits of it choose the segment.
        self._shift = 16 if routing is Routing.HIGH else 0
        self._is_stirred = False
        # Cuts runs of tables again, once there are any.
        self.regroup: Callable[[Lanes, list[BlockRun]], list[tuple[Lane, MessageRun]]] | None = None
        self._arrange()

    def __len__(self) -> int:
        return sum(run.count for lane in self._all for run in lane.runs) + sum(
            len(lane.items) for lane in self._all
        )

    @property
    def _all(self) -> Iterator[Lane]:
        yield from self._lanes.values()
        yield self._waiting

    @property
    def segments(self) -> tuple[SegmentId, ...]:
        """The segments with messages in their lanes."""
        return tuple(number for number, lane in self._lanes.items() if not lane.is_empty)

    def runs(self, segment: SegmentId) -> tuple[MessageRun, ...]:
        """The segment's runs without a receipt, in order. All of them are sent again after a lost connection."""
        lane = self._lanes.get(segment)
        return tuple(lane.runs) if lane is not None else ()

    def lane(self, segment: SegmentId) -> Lane | None:
        return self._lanes.get(segment)

    def first_number(self, segment: SegmentId) -> int | None:
        lane = self._lanes.get(segment)
        return lane.first_number if lane is not None else None

    def oldest_s(self) -> float | None:
        """When the message that waits longest was handed in, or a little earlier."""
        times = [run.since for lane in self._all for run in list(lane.runs)[:1]]
        times += [lane.since for lane in self._all if lane.items]
        # Refused runs wait in no particular order.
        times += [run.since for run in self._waiting.runs]
        return min(times, default=None)

    def find(self, hash32: int) -> Lane:
        """Where a message of that hash is gathered now: its segment's lane, or the lane of messages that wait."""
        if self._starts is None:
            return self._places[(hash32 & 0x7FFFFFFF) % len(self._places)]
        return self._places[bisect_right(self._starts, hash32 >> self._shift & 0xFFFF) - 1]

    @property
    def places(self) -> Sequence[Lane]:
        """The same for all hashes: lanes by the ranges of the active segments, or by the numbers of partitions."""
        return self._places

    # -- events

    def learned(self, layout: SegmentLayout) -> None:
        """Applies a layout, unless it is older."""
        if layout.epoch >= self.layout.epoch:
            self.layout = layout
            self._refused = {s for s in self._refused if self._is_active(s)}
            self._arrange()

    def settled(self, segment: SegmentId, upto: int) -> list[MessageRun]:
        """The segment holds everything up to that number: those runs leave its lane and are returned."""
        lane = self._lanes.get(segment)
        done: list[MessageRun] = []
        if lane is None:
            return done
        if lane.items and lane.items[0][0] <= upto:
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

    def dropped(self, segment: SegmentId, first: int) -> MessageRun | None:
        """The segment will never accept the run that begins with that number: the run leaves its lane, the others
        stay."""
        lane = self._lanes.get(segment)
        found = next((run for run in lane.runs if run.first == first), None) if lane is not None else None
        if lane is not None and found is not None:
            lane.runs.remove(found)
            self._after(lane)
        return found

    def sealed(self, segment: SegmentId) -> None:
        """The segment refuses all messages left in its lane, and all later ones."""
        lane = self._lanes.pop(segment, None)
        if lane is not None:
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

    def ready(self) -> list[tuple[Lane, MessageRun]]:
        """The runs that join a lane now, for each lane in the order of sending."""
        if not self._is_stirred:
            return []
        self._is_stirred = False
        self._waiting.cut()
        waiting = list(self._waiting.runs)
        self._waiting.runs.clear()
        go: list[tuple[Lane, MessageRun]] = []
        regroup = partial(self.regroup, self) if self.regroup is not None else None
        for lane, run in recut(waiting, self.find, self._limits, regroup):
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
        if lane.is_empty and not self._is_active(lane.segment):
            self._arrange()

    def _arrange(self) -> None:
        """Decides again which segments' messages must wait, and where the others go."""
        self._is_stirred = True
        self._leaving = []
        for number, lane in list(self._lanes.items()):
            known = self.layout.segments.get(number)
            if lane.is_empty and (known is None or known.is_sealed):
                del self._lanes[number]
            elif known is None:
                # Pruned, and a partition of a classic topic may have held any key.
                self._leaving.append(WHOLE)
            elif known.is_sealed:
                self._leaving.append(known.range)
        active = self.layout.active
        if is_synthetic(self.layout):
            self._starts = None
            active = tuple(sorted(active, key=lambda segment: segment.id))
        else:
            self._starts = [segment.range.start for segment in active]
        self._places = [
            self._waiting if self._must_wait(segment.id, segment.range) else self._make(segment.id)
            for segment in active
        ]

    def _make(self, segment: SegmentId) -> Lane:
        lane = self._lanes.get(segment)
        if lane is None:
            lane = self._lanes[segment] = Lane(segment)
        return lane

    def _must_wait(self, segment: SegmentId, span: HashRange) -> bool:
        return segment in self._refused or any(span.overlaps(other) for other in self._leaving)
