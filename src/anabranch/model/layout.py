"""The layout of a scalable topic: a DAG of segments, as of one epoch. Pure.

Every change gives a new layout and leaves the old one valid for its holders. In each layout:

- every hash has exactly one active segment;
- a segment's entry buckets never change: only a successor has others;
- links agree: `p in s.parents` exactly when `s in p.children`;
- a segment's parents are older than it is (smaller ids), so the links have no cycle, and two segments that share a
  hash are always one the ancestor of the other unless a pruned segment stood between them, and then the ids tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from anabranch.model import buckets
from anabranch.model.buckets import ONE_BUCKET, BucketBudget
from anabranch.model.gone import Gone, remember
from anabranch.model.segments import (
    HASH_MAX,
    MERGE_TIMES_MAX,
    WHOLE,
    HashRange,
    LayoutRefused,
    Segment,
    SegmentId,
)


@dataclass(frozen=True)  # No slots: `active` is worked out once and kept.
class SegmentLayout:
    """Every segment a topic still remembers."""

    epoch: int
    next_id: SegmentId
    segments: Mapping[SegmentId, Segment]
    # When a segment was last split or merged, 0 for never. Cooldowns outlive both leaders and pruning.
    last_split_ms: int = 0
    last_merge_ms: int = 0
    # When a segment was last replaced by one with another number of entry buckets, 0 for never.
    last_rebucket_ms: int = 0
    # What returning readers need to know about pruned segments; None if the broker never sent that.
    gone: tuple[Gone, ...] | None = ()
    # The random id of the topic: a later topic of the same name has another. "" if the broker never sent it.
    topic_id: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "segments", MappingProxyType({key: self.segments[key] for key in sorted(self.segments)})
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SegmentLayout) and self._value == other._value

    def __hash__(self) -> int:
        return hash((self.epoch, self.next_id))

    @property
    def _value(self) -> tuple[object, ...]:
        times = self.last_split_ms, self.last_merge_ms, self.last_rebucket_ms
        return self.epoch, self.next_id, dict(self.segments), *times, self.gone, self.topic_id

    # -- making one

    @staticmethod
    def initial(
        count: int, now_ms: int, topic_id: str = "", budget: BucketBudget = ONE_BUCKET
    ) -> SegmentLayout:
        """`count` active segments of equal width, at epoch 0."""
        spans, splits = HashRange.even(count), buckets.even(budget.share(count))
        segments = {
            SegmentId(n): Segment(SegmentId(n), span, created_ms=now_ms, bucket_splits=splits)
            for n, span in enumerate(spans)
        }
        return SegmentLayout(0, SegmentId(count), segments, topic_id=topic_id)

    @staticmethod
    def migrated(
        classic_topics: Iterable[str], now_ms: int, topic_id: str = "", budget: BucketBudget = ONE_BUCKET
    ) -> SegmentLayout:
        """The layout of a migrated classic topic: each partition is a sealed parent of as many fresh segments.

        A partition may hold any key, so each parent covers the whole space and every child waits for all of them.
        """
        topics = list(classic_topics)
        epoch = len(topics)  # One more than the epoch of the synthetic layout before it.
        parents = tuple(SegmentId(n) for n in range(len(topics)))
        children = tuple(SegmentId(n + len(topics)) for n in range(len(topics)))
        segments = {
            number: Segment(number, WHOLE, created_ms=now_ms, classic_topic=topic).sealed(
                epoch, now_ms, children
            )
            for number, topic in zip(parents, topics, strict=True)
        }
        splits = buckets.even(budget.share(len(topics)))
        for number, span in zip(children, HashRange.even(len(topics)), strict=True):
            segments[number] = Segment(
                number, span, parents, created_epoch=epoch, created_ms=now_ms, bucket_splits=splits
            )
        return SegmentLayout(epoch, SegmentId(2 * len(topics)), segments, topic_id=topic_id)

    @staticmethod
    def synthetic(classic_topics: Iterable[str], now_ms: int, topic_id: str = "") -> SegmentLayout:
        """A classic topic as clients of scalable topics see it: one active segment for each partition, for ever.

        The ranges are for display only: keys go to partitions by the remainder of their hash. Partitions are only ever
        added, so their number serves as the epoch.
        """
        topics = list(classic_topics)
        segments = {
            SegmentId(n): Segment(SegmentId(n), span, created_ms=now_ms, classic_topic=topic)
            for n, (span, topic) in enumerate(zip(HashRange.even(len(topics)), topics, strict=True))
        }
        return SegmentLayout(len(topics) - 1, SegmentId(len(topics)), segments, topic_id=topic_id)

    # -- looking

    @cached_property
    def active(self) -> tuple[Segment, ...]:
        """The active segments, in the order of their ranges."""
        return tuple(sorted((s for s in self.segments.values() if s.is_active), key=lambda s: s.range))

    @cached_property
    def sealed(self) -> tuple[Segment, ...]:
        return tuple(s for s in self.segments.values() if s.is_sealed)

    def segment(self, number: int) -> Segment:
        """The segment of that number. LayoutRefused if the topic does not know it."""
        found = self.segments.get(SegmentId(number))
        if found is None:
            raise LayoutRefused(f"there is no segment {number}; {self._known()}")
        return found

    def find_active(self, hash_value: int) -> Segment:
        """The active segment that a key with this hash belongs to."""
        if not 0 <= hash_value <= HASH_MAX:
            raise LayoutRefused(f"{hash_value} is not a hash within 0..{HASH_MAX}")
        low, high = 0, len(self.active) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.active[middle].range.start <= hash_value:
                low = middle
            else:
                high = middle - 1
        return self.active[low]

    def ancestors(self, number: SegmentId) -> frozenset[SegmentId]:
        return self._reach(number, lambda s: s.parents)

    def descendants(self, number: SegmentId) -> frozenset[SegmentId]:
        return self._reach(number, lambda s: s.children)

    def lineage(self, number: SegmentId) -> frozenset[SegmentId]:
        """All ancestors and all descendants, and the segment itself."""
        return self.ancestors(number) | self.descendants(number) | {number}

    def _reach(
        self, number: SegmentId, links: Callable[[Segment], tuple[SegmentId, ...]]
    ) -> frozenset[SegmentId]:
        found: set[SegmentId] = set()
        waiting = list(links(self.segment(number)))
        while waiting:
            at = waiting.pop()
            if at not in found:
                found.add(at)
                waiting.extend(links(self.segments[at]))
        return frozenset(found)

    def has_replaced(self, segment: Segment) -> bool:
        """Whether the segment took the place of one of the same range, for another number of entry buckets. Not known
        once that one is pruned."""
        found = [self.segments[number] for number in segment.parents]
        return len(found) == 1 and found[0].range == segment.range and not found[0].classic_topic

    def _known(self) -> str:
        return f"active are {', '.join(str(s.id) for s in self.active)}"

    # -- changing

    def split(self, number: int, now_ms: int, lopsided: int = 0) -> SegmentLayout:
        """The layout after that segment is sealed and two children share its range, each with that `lopsided`.

        The children share its entry buckets too, so that the topic has as many as before.
        """
        parent = self._active_segment(number, "split")
        splits = buckets.even(max(1, parent.bucket_count // 2))
        epoch = self.epoch + 1
        children = (self.next_id, SegmentId(self.next_id + 1))
        changed = dict(self.segments)
        changed[parent.id] = parent.sealed(epoch, now_ms, children)
        for child, span in zip(children, parent.range.halves(), strict=True):
            changed[child] = Segment(
                child,
                span,
                (parent.id,),
                created_epoch=epoch,
                created_ms=now_ms,
                merged_ms=parent.merged_ms,
                bucket_splits=splits,
                lopsided=lopsided,
            )
        return replace(
            self, epoch=epoch, next_id=SegmentId(self.next_id + 2), segments=changed, last_split_ms=now_ms
        )

    def merge(self, one: int, other: int, now_ms: int, budget: BucketBudget = ONE_BUCKET) -> SegmentLayout:
        """The layout after both segments, neighbours in either order, are sealed and one child has their range."""
        if one == other:
            raise LayoutRefused(f"segment {one} cannot be merged with itself")
        parents = sorted(
            (self._active_segment(one, "merged"), self._active_segment(other, "merged")),
            key=lambda s: s.range,
        )
        left, right = parents
        if not left.range.is_adjacent_to(right.range):
            raise LayoutRefused(
                f"segments {one} ({self.segment(one).range}) and {other} ({self.segment(other).range}) "
                "are not neighbours: one must start where the other ends"
            )
        epoch, child = self.epoch + 1, self.next_id
        count = budget.merged(left.bucket_count, right.bucket_count, len(self.active) - 1)
        changed = dict(self.segments)
        for parent in parents:
            changed[parent.id] = parent.sealed(epoch, now_ms, (child,))
        changed[child] = Segment(
            child,
            left.range.joined(right.range),
            (left.id, right.id),
            created_epoch=epoch,
            created_ms=now_ms,
            merged_ms=(*_longer_chain(left.merged_ms, right.merged_ms), now_ms)[-MERGE_TIMES_MAX:],
            bucket_splits=buckets.even(count),
            lopsided=max(left.lopsided, right.lopsided),
        )
        return replace(
            self, epoch=epoch, next_id=SegmentId(child + 1), segments=changed, last_merge_ms=now_ms
        )

    def rebucket(self, number: int, count: int, now_ms: int) -> SegmentLayout:
        """The layout after that segment is sealed and one child has its range, with so many entry buckets.

        It is neither a split nor a merge: their times, and what the segment remembers of them, stay.
        """
        parent = self._active_segment(number, "replaced")
        if not 1 <= count <= buckets.BUCKETS_MAX:
            raise LayoutRefused(f"{count} entry buckets: a segment has 1 to {buckets.BUCKETS_MAX}")
        if count == parent.bucket_count:
            raise LayoutRefused(
                f"segment {number} has {count} entry bucket{'' if count == 1 else 's'} already; give another number"
            )
        epoch, child = self.epoch + 1, self.next_id
        changed = dict(self.segments)
        changed[parent.id] = parent.sealed(epoch, now_ms, (child,))
        changed[child] = Segment(
            child,
            parent.range,
            (parent.id,),
            created_epoch=epoch,
            created_ms=now_ms,
            merged_ms=parent.merged_ms,
            bucket_splits=buckets.even(count),
            lopsided=parent.lopsided,
        )
        return replace(
            self, epoch=epoch, next_id=SegmentId(child + 1), segments=changed, last_rebucket_ms=now_ms
        )

    def mark_deleting(
        self, numbers: Iterable[SegmentId], ends: Mapping[SegmentId, tuple[int, int]] | None = None
    ) -> SegmentLayout:
        """The layout in which the storage of those sealed segments may be deleted. `ends` are their known ends."""
        changed = dict(self.segments)
        for number in numbers:
            segment = self.segment(number)
            if segment.is_active:
                raise LayoutRefused(f"segment {number} is active; only sealed segments are deleted")
            changed[number] = replace(segment, is_deleting=True, end=(ends or {}).get(number, segment.end))
        return replace(self, segments=changed)

    def prune(self, numbers: Iterable[int]) -> SegmentLayout:
        """The layout without those sealed segments. Their ids are never used again."""
        gone = {SegmentId(number) for number in numbers}
        for number in gone:
            if self.segment(number).is_active:
                raise LayoutRefused(f"segment {number} is active; only sealed segments are pruned")
        changed = {key: segment for key, segment in self.segments.items() if key not in gone}
        for number in gone:
            pruned = self.segments[number]
            for relative in changed.keys() & {*pruned.parents, *pruned.children}:
                changed[relative] = changed[relative].without_relative(number)
        known = None if self.gone is None else remember(self.gone, (self.segments[number] for number in gone))
        # A prune raises the epoch too: watchers drop any update that is not newer than their own.
        return replace(self, epoch=self.epoch + 1, segments=changed, gone=known)

    def _active_segment(self, number: int, verb: str) -> Segment:
        segment = self.segment(number)
        if not segment.is_active:
            raise LayoutRefused(f"segment {number} is sealed and cannot be {verb}; {self._known()}")
        return segment

    # -- checking

    def check(self) -> None:
        """Asserts the invariants above, under `python -O` too: before a layout is stored and after it is read."""
        at = 0
        for segment in self.active:
            _hold(segment.range.start == at, f"hash {at} has no active segment, or two")
            _hold(not segment.children, f"active segment {segment.id} has children")
            _hold(not segment.is_deleting, f"active segment {segment.id} is marked for deletion")
            at = segment.range.end + 1
        _hold(at == HASH_MAX + 1, f"hash {at} has no active segment")
        for number, segment in self.segments.items():
            _hold(number == segment.id < self.next_id, f"segment {number} is numbered wrongly")
            _hold(all(p < number for p in segment.parents), f"segment {number} is older than its parent")
            _hold(_ascend(segment.bucket_splits), f"segment {number}: {segment.bucket_splits} are no buckets")
            _hold(
                all(number in self.segments[p].children for p in segment.parents), f"{number}: one-way link"
            )
            _hold(
                all(number in self.segments[c].parents for c in segment.children), f"{number}: one-way link"
            )


def _hold(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise AssertionError(otherwise)


def _ascend(splits: buckets.Splits) -> bool:
    return all(before < after for before, after in zip((0, *splits), (*splits, HASH_MAX + 1), strict=True))


def _longer_chain(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """Times such that, since any moment, as many are counted as in the chain that has more since then.

    Chains are compared from their latest merge on: the nth latest of both is the later of the nth latest of each.
    """
    size = max(len(one), len(other))
    padded = [(0,) * (size - len(chain)) + chain for chain in (one, other)]
    return tuple(max(pair) for pair in zip(*padded, strict=True))
