"""Which consumer gets which key, and which consumer of a Failover subscription is active. Pure.

Numbers follow the reference, so that clients which compute a key's slot themselves agree with us: AUTO_SPLIT puts a
hundred points per consumer on a ring of slots 1 to 65,535, or halves ranges where the broker is configured so; STICKY
consumers name their own ranges of 0 to 65,535. Two consumers of the same name get different points, by their order of
arrival.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.errors import ConsumerAssignError
from anabranch.model.keyhash import STICKY_SLOTS, murmur3, sticky_slot
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.entry import sticky_key
from anabranch.wire.subscription_types import EXCLUSIVE, KEY_SHARED

RING_POINTS: Final = 100
_FAILOVER_POINTS: Final = 100
# The size of the ring of these points.
_RING: Final = 1 << 31
# The most key ranges of one consumer: they are checked on the event loop.
RANGES_MAX: Final = 8_192


class Selector(Protocol):
    """Maps the slots of keys to consumers."""

    def hash_of(self, metadata: pb.MessageMetadata) -> int:
        """The slot of an entry's key, never 0."""

    def add(self, consumer: AttachedConsumer) -> None:
        """Adds the consumer; raises ConsumerAssignError if it cannot be placed, and then nothing has changed."""

    def remove(self, consumer: AttachedConsumer) -> None: ...

    def select(self, key_hash: int) -> AttachedConsumer | None: ...

    def ranges(self) -> dict[AttachedConsumer, list[tuple[int, int]]]:
        """Inclusive ranges of slots per consumer, for display."""


class HashRing:
    """AUTO_SPLIT: consistent hashing, so that a consumer joining or leaving moves few keys."""

    def __init__(self) -> None:
        self._points: list[int] = []
        # The consumers of a point in order of arrival. The first one owns it; the others wait for that one to leave.
        self._owners: dict[int, list[AttachedConsumer]] = {}
        self._numbers: dict[AttachedConsumer, int] = {}
        self._points_of: dict[AttachedConsumer, tuple[int, ...]] = {}

    def hash_of(self, metadata: pb.MessageMetadata) -> int:
        return _ring_slot(sticky_key(metadata))

    def add(self, consumer: AttachedConsumer) -> None:
        taken = {number for other, number in self._numbers.items() if other.name == consumer.name}
        number = next(n for n in range(len(taken) + 1) if n not in taken)
        self._numbers[consumer] = number
        points = self._points_of[consumer] = tuple(_ring_points(consumer.name, number))
        for point in points:
            owners = self._owners.get(point)
            if owners is None:
                self._owners[point] = [consumer]
                insort(self._points, point)
            else:
                owners.append(consumer)

    def remove(self, consumer: AttachedConsumer) -> None:
        if self._numbers.pop(consumer, None) is None:
            return
        for point in set(self._points_of.pop(consumer)):
            owners = [other for other in self._owners[point] if other is not consumer]
            if owners:
                self._owners[point] = owners
            else:
                del self._owners[point]
                del self._points[bisect_left(self._points, point)]

    def select(self, key_hash: int) -> AttachedConsumer | None:
        points = self._points
        if not points:
            return None
        at = bisect_left(points, key_hash)
        return self._owners[points[at] if at < len(points) else points[0]][0]

    def ranges(self) -> dict[AttachedConsumer, list[tuple[int, int]]]:
        found: dict[AttachedConsumer, list[tuple[int, int]]] = {}
        start = 1
        edges = [*self._points, STICKY_SLOTS - 1] if self._points else []
        for edge in edges:
            owner = self.select(edge)
            if owner is None or edge < start:
                continue
            mine = found.setdefault(owner, [])
            if mine and mine[-1][1] == start - 1:
                mine[-1] = (mine[-1][0], edge)
            else:
                mine.append((start, edge))
            start = edge + 1
        return found


class KeyHalves:
    """AUTO_SPLIT without a ring: a joining consumer takes half of the widest range, a leaving one leaves its range to a
    neighbour.

    Shares are even for two, four or eight consumers and do not depend on names; but more keys move than on the ring.
    """

    def __init__(self) -> None:
        # Each range by its last slot, ascending; the last one is the end of the space.
        self._ends: list[int] = []
        self._owners: dict[int, AttachedConsumer] = {}

    def hash_of(self, metadata: pb.MessageMetadata) -> int:
        return sticky_slot(sticky_key(metadata))

    def add(self, consumer: AttachedConsumer) -> None:
        if not self._ends:
            end = STICKY_SLOTS
        else:
            starts = [0, *self._ends]
            # Ties go to the lowest range.
            widest = max(range(len(self._ends)), key=lambda at: (self._ends[at] - starts[at], -at))
            width = self._ends[widest] - starts[widest]
            if width <= 1:
                raise ConsumerAssignError(
                    f"no keys are left for another consumer: {len(self._ends)} share them"
                )
            end = self._ends[widest] - (width >> 1)
        insort(self._ends, end)
        self._owners[end] = consumer

    def remove(self, consumer: AttachedConsumer) -> None:
        end = next((end for end, owner in self._owners.items() if owner is consumer), None)
        if end is None:
            return
        if end == STICKY_SLOTS and len(self._ends) > 1:
            # The highest range goes to the consumer below it; any other range to the one above.
            below = self._ends.pop(-2)
            self._owners[end] = self._owners.pop(below)
            return
        self._ends.remove(end)
        del self._owners[end]

    def select(self, key_hash: int) -> AttachedConsumer | None:
        at = bisect_left(self._ends, key_hash)
        return self._owners[self._ends[at]] if at < len(self._ends) else None

    def ranges(self) -> dict[AttachedConsumer, list[tuple[int, int]]]:
        starts = [0, *(end + 1 for end in self._ends)]
        return {
            self._owners[end]: [(start, min(end, STICKY_SLOTS - 1))]
            for start, end in zip(starts, self._ends, strict=False)
        }


class KeyRanges:
    """STICKY: each consumer names the ranges it wants, which must not overlap."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._held: dict[int, tuple[int, AttachedConsumer]] = {}

    def hash_of(self, metadata: pb.MessageMetadata) -> int:
        return sticky_slot(sticky_key(metadata))

    def add(self, consumer: AttachedConsumer) -> None:
        ranges = ranges_of(consumer)
        for start, end in ranges:
            other = self._overlapping(start, end)
            if other is not None:
                raise ConsumerAssignError(
                    f"the key range [{start}, {end}] overlaps one of consumer {other.name!r}"
                )
        self._held.update((start, (end, consumer)) for start, end in ranges)
        self._starts = sorted(self._held)

    def _overlapping(self, start: int, end: int) -> AttachedConsumer | None:
        at = bisect_right(self._starts, end) - 1
        if at < 0:
            return None
        held_end, consumer = self._held[self._starts[at]]
        return consumer if held_end >= start else None

    def remove(self, consumer: AttachedConsumer) -> None:
        self._held = {start: held for start, held in self._held.items() if held[1] is not consumer}
        self._starts = sorted(self._held)

    def select(self, key_hash: int) -> AttachedConsumer | None:
        at = bisect_right(self._starts, key_hash) - 1
        if at < 0:
            return None
        end, consumer = self._held[self._starts[at]]
        return consumer if key_hash <= end else None

    def ranges(self) -> dict[AttachedConsumer, list[tuple[int, int]]]:
        found: dict[AttachedConsumer, list[tuple[int, int]]] = {}
        for start in self._starts:
            end, consumer = self._held[start]
            found.setdefault(consumer, []).append((start, end))
        return found


def check_ranges(consumer: AttachedConsumer) -> None:
    """Raises ConsumerAssignError if the consumer names ranges of keys that no consumer can have."""
    meta = consumer.key_shared
    if consumer.kind == KEY_SHARED:
        if meta is not None and meta.keySharedMode == pb.STICKY:
            ranges_of(consumer)
    elif consumer.kind == EXCLUSIVE and meta is not None and meta.hashRanges:
        ranges_of(consumer)


def ranges_of(consumer: AttachedConsumer) -> list[tuple[int, int]]:
    """The inclusive ranges that the consumer names, ascending; ConsumerAssignError if they are malformed."""
    wanted = [] if consumer.key_shared is None else consumer.key_shared.hashRanges
    if not wanted:
        raise ConsumerAssignError("a STICKY Key_Shared consumer must name at least one key range")
    if len(wanted) > RANGES_MAX:
        raise ConsumerAssignError(
            f"{len(wanted)} key ranges are too many for one consumer: {RANGES_MAX} at most"
        )
    ranges = sorted((r.start, r.end) for r in wanted)
    last = -1
    for start, end in ranges:
        if start > end:
            raise ConsumerAssignError(f"the key range [{start}, {end}] starts after its end")
        if start < 0 or end >= STICKY_SLOTS:
            raise ConsumerAssignError(f"the key range [{start}, {end}] leaves [0, {STICKY_SLOTS - 1}]")
        if start <= last:
            raise ConsumerAssignError(f"the key range [{start}, {end}] overlaps another of the same consumer")
        last = end
    return ranges


def _ring_slot(key: bytes) -> int:
    # Slots start at 1, so the ring has one slot fewer than STICKY ranges cover.
    return murmur3(key) % (STICKY_SLOTS - 1) + 1


def _ring_points(name: str, number: int) -> Iterable[int]:
    # The parts are separated by NUL, which no name contains.
    return (_ring_slot(f"{name}\0{number}\0{n}".encode()) for n in range(RING_POINTS))


class FailoverOrder:
    """The consumers of a Failover subscription in the order in which they become active.

    The active consumer is, among those of the highest priority, in name order, the one of the partition; else it is
    chosen by the topic's name. So the partitions of one topic spread over the consumers. Topics without partitions use
    a ring, so that a consumer joining or leaving rarely changes which one is active. Who joins or leaves is not
    compared with each of the others: there may be thousands.
    """

    def __init__(self, topic: str, partition: int) -> None:
        self._topic_point = murmur3(topic.encode())
        self._partition = partition
        self._places: dict[AttachedConsumer, _Place] = {}
        # Ascending, with the consumers beside them.
        self._order: list[_Place] = []
        self._consumers: list[AttachedConsumer] = []
        self._joined = 0

    def add(self, consumer: AttachedConsumer) -> None:
        self._joined += 1
        step = 0 if self._partition >= 0 else self._step_to(consumer.name)
        place = self._places[consumer] = _Place(consumer.priority, step, consumer.name, self._joined)
        at = bisect_left(self._order, place)
        self._order.insert(at, place)
        self._consumers.insert(at, consumer)

    def remove(self, consumer: AttachedConsumer) -> None:
        at = bisect_left(self._order, self._places.pop(consumer))
        del self._order[at], self._consumers[at]

    def _step_to(self, name: str) -> int:
        """How far the first of its points lies behind that of the topic."""
        return min(
            (murmur3(f"{name}{n}".encode()) - self._topic_point) % _RING for n in range(_FAILOVER_POINTS)
        )

    def pick(self) -> AttachedConsumer | None:
        """The active consumer; None if there is none."""
        if not self._order:
            return None
        first = self._order[0]
        if self._partition >= 0:
            count = bisect_left(self._order, (first.priority + 1,))
            return self._consumers[self._partition % count]
        # The later of two consumers that share a point owns it, as in the reference.
        return self._consumers[bisect_left(self._order, (first.priority, first.step + 1)) - 1]


class _Place(NamedTuple):
    priority: int
    step: int
    name: str
    # Of consumers of one name, the order of arrival.
    number: int
