"""Cuts slices by entry buckets, so that a batch has at least so many tasks and each key is still in one of them. Pure.

All slices of a segment begin and end at the same positions, so offsets say nothing of them: a query may be given
another number of tasks at any time. Each reads past the entries of the others without unpacking them. A segment is cut
into as many slices as it has buckets, at most: narrower ones would have to unpack the entries of their whole bucket.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

from anabranch.model import buckets
from anabranch.model.buckets import Splits
from anabranch.model.segments import WHOLE, HashRange
from anabranch.spark.plan.plan import SegmentSlice


def room(one: SegmentSlice, splits: Splits) -> int:
    """How many slices a slice can be cut into. `splits` are those of its segment."""
    return len(_ranges(one, splits))


def shares(weights: Sequence[int], rooms: Sequence[int], pieces_min: int) -> list[int]:
    """How many pieces each slice is cut into, so that together they are at least `pieces_min` if there is room for
    that: the heaviest pieces are cut first."""
    counts = [1] * len(weights)
    heap = [(-weight, at) for at, weight in enumerate(weights) if rooms[at] > 1]
    heapq.heapify(heap)
    for _ in range(pieces_min - len(weights)):
        if not heap:
            break
        _, at = heapq.heappop(heap)
        counts[at] += 1
        if counts[at] < rooms[at]:
            heapq.heappush(heap, (-weights[at] // counts[at], at))
    return counts


def cut_by_bucket(one: SegmentSlice, splits: Splits, pieces: int) -> list[SegmentSlice]:
    """The slice in so many pieces, each of whole buckets that are neighbours; there must be room for them."""
    if pieces == 1:
        return [one]
    ranges = _ranges(one, splits)
    starts = [ranges[len(ranges) * n // pieces].start for n in range(pieces)]
    ends = [*(start - 1 for start in starts[1:]), ranges[-1].end]
    return [replace(one, hashes=HashRange(*span)) for span in zip(starts, ends, strict=True)]


def _ranges(one: SegmentSlice, splits: Splits) -> list[HashRange]:
    """The buckets of a slice, or the parts of them that it has."""
    span = one.hashes or WHOLE
    return [bucket.common(span) for bucket in buckets.ranges(splits) if bucket.overlaps(span)]
