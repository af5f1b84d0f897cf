"""Which segment each message goes to, and when: order through splits and merges. Pure.

A message waits or is in a lane: the messages of one segment that were sent, or are to be, and have no receipt yet. Two
rules keep every key in order and every segment's sequence ids rising:

- a message joins a segment's lane only while no lane of a segment that is no longer active, and overlaps it, holds
  anything: what was sent to an ancestor is settled before the next generation starts;
- what a sealed segment refused waits again, sorted in among the others by number, so it goes first.

Whether a message must wait depends on its segment alone, never on the message, so no message passes an earlier one
that goes to the same segment. Ranges, not keys, are compared: a merged segment waits for both of its parents, because
a number below one it has already seen would be taken for a repetition.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Generic, Protocol, TypeVar

from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import WHOLE, HashRange, SegmentId


class Routing(Enum):
    """Which half of a key's 32-bit hash chooses the segment."""

    HIGH = "high"
    LOW = "low"  # Pulsar 5.0.0-M1.

    def of(self, hash32: int) -> int:
        return hash32 >> 16 if self is Routing.HIGH else hash32 & 0xFFFF

    def spread(self, hash16: int) -> int:
        """A 32-bit hash whose chosen half is `hash16`."""
        return hash16 << 16 if self is Routing.HIGH else hash16


class Item(Protocol):
    """A message as far as this module cares. Numbers rise in the order messages were handed in."""

    @property
    def number(self) -> int: ...

    @property
    def hash32(self) -> int: ...


M = TypeVar("M", bound=Item)


def is_synthetic(layout: SegmentLayout) -> bool:
    """A classic topic: keys go to partitions by the remainder of their hash."""
    return bool(
        layout.active[0].legacy_topic
    )  # Then all are; a migrated topic's active segments have logs of their own.


def segment_for(layout: SegmentLayout, hash32: int, routing: Routing) -> SegmentId:
    if is_synthetic(layout):
        # As classic clients that hash by murmur3 do. The segments of such a layout are numbered by partition.
        return SegmentId((hash32 & 0x7FFFFFFF) % len(layout.active))
    return layout.find_active(routing.of(hash32)).id


def keyless_hash(layout: SegmentLayout, turn: int, routing: Routing) -> int:
    """A hash for a message without a key: segments take turns, and within one the hashes are spread.

    The message keeps it, so that after a split it goes to a child of the segment that refused it.
    """
    if is_synthetic(layout):
        return turn & 0x7FFFFFFF
    span = layout.active[turn % len(layout.active)].range
    return routing.spread(span.start + turn // len(layout.active) * 40503 % len(span))


class Lanes(Generic[M]):
    """All messages of one producer that have no receipt. After any change but `add`, `ready` says what to send."""

    def __init__(self, layout: SegmentLayout, routing: Routing = Routing.HIGH) -> None:
        self.layout = layout
        self._routing = routing
        self._lanes: dict[SegmentId, deque[M]] = {}
        self._waiting: list[M] = []  # Sorted by number.
        # Ranges of segments no longer active that may still hold, or get, what was sent to them.
        self._leaving: list[HashRange] = []
        # Refused by a segment that the layout still calls active: its children will be in the next one.
        self._refused: set[SegmentId] = set()

    def __len__(self) -> int:
        return len(self._waiting) + sum(map(len, self._lanes.values()))

    def lane(self, segment: SegmentId) -> tuple[M, ...]:
        """What that segment has no receipt for, in order. Sent again after a lost connection, all of it."""
        return tuple(self._lanes.get(segment, ()))

    @property
    def segments(self) -> tuple[SegmentId, ...]:
        """Those with messages in their lanes."""
        return tuple(self._lanes)

    def first_number(self, segment: SegmentId) -> int | None:
        lane = self._lanes.get(segment)
        return lane[0].number if lane else None

    # -- what happens

    def learned(self, layout: SegmentLayout) -> None:
        """A newer layout came."""
        if layout.epoch >= self.layout.epoch:
            self.layout = layout
            self._refused = {s for s in self._refused if self._is_active(s)}
            self._look_at_lanes()

    def add(self, message: M) -> SegmentId | None:
        """The segment to send it to now, if it need not wait. Its number must be higher than all before it."""
        segment = segment_for(self.layout, message.hash32, self._routing)
        if self._must_wait(segment):
            self._waiting.append(message)
            return None
        self._lanes.setdefault(segment, deque()).append(message)
        return segment

    def settled(self, segment: SegmentId, upto: int) -> list[M]:
        """The segment holds everything up to that number: those leave its lane, and are given back."""
        lane = self._lanes.get(segment)
        done: list[M] = []
        while lane and lane[0].number <= upto:
            done.append(lane.popleft())
        if lane is not None and not lane:
            self._remove_lane(segment)
        return done

    def dropped(self, segment: SegmentId, number: int) -> M | None:
        """The segment will never take that message: it leaves its lane, the others stay."""
        lane = self._lanes.get(segment, deque())
        found = next((m for m in lane if m.number == number), None)
        if found is not None:
            lane.remove(found)
            if not lane:
                self._remove_lane(segment)
        return found

    def sealed(self, segment: SegmentId) -> None:
        """The segment refuses whatever is left in its lane, and all that would come."""
        back = self._remove_lane(segment)
        self._waiting = sorted((*back, *self._waiting), key=_number)
        if self._is_active(segment):
            self._refused.add(segment)

    def clear(self) -> list[M]:
        """Gives everything up."""
        left = sorted((*self._waiting, *(m for lane in self._lanes.values() for m in lane)), key=_number)
        self._waiting, self._lanes, self._leaving = [], {}, []
        return left

    # -- what to do

    def ready(self) -> list[tuple[SegmentId, M]]:
        """The messages that join a lane now, in the order to send them in."""
        waiting, self._waiting = self._waiting, []
        go: list[tuple[SegmentId, M]] = []
        for message in waiting:
            segment = self.add(message)
            if segment is not None:
                go.append((segment, message))
        return go

    def _must_wait(self, segment: SegmentId) -> bool:
        if not self._leaving and not self._refused:
            return False
        span = self.layout.segments[segment].range
        return segment in self._refused or any(span.overlaps(other) for other in self._leaving)

    def _is_active(self, segment: SegmentId) -> bool:
        known = self.layout.segments.get(segment)
        return known is not None and known.is_active

    def _remove_lane(self, segment: SegmentId) -> deque[M]:
        lane = self._lanes.pop(segment, deque())
        self._look_at_lanes()
        return lane

    def _look_at_lanes(self) -> None:
        self._leaving = []
        for number in self._lanes:
            known = self.layout.segments.get(number)
            if known is None:
                # Pruned, and a partition of a classic topic may have held any key.
                self._leaving.append(WHOLE)
            elif known.is_sealed:
                self._leaving.append(known.range)


def _number(message: Item) -> int:
    return message.number
