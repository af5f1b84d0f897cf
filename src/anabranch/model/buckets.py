"""Entry buckets (PIP-486): a second ring of hashes, on which each segment divides its keys among several consumers.

The low half of a key's hash is its place on this ring, whichever part of the first ring the segment has. A segment
keeps the starts of its buckets but the first, its *splits*; without splits it has one bucket. Bounds are inclusive, and
buckets need not be of equal width. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from anabranch.model.segments import HASH_MAX, WHOLE, HashRange, LayoutRefused

Splits = tuple[int, ...]

# Pulsar's defaults for a topic and for a segment.
BUDGET: Final = 4
BUCKETS_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class BucketBudget:
    """How many entry buckets a topic has in all unless its consumers need more, and one segment at most."""

    total: int = BUDGET
    segment_max: int = BUCKETS_MAX

    def share(self, segments: int) -> int:
        """The buckets of each segment of a topic with so many active ones."""
        return min(max(1, self.total // segments), self.segment_max)

    def merged(self, one: int, other: int, segments: int) -> int:
        """The buckets of a segment that was two, in a topic that has so many active ones then.

        Cold topics fold back to their share, while buckets that demand has added survive a merge.
        """
        return min(one + other, max(self.share(segments), one, other), self.segment_max)


# One bucket a segment: batches are cut by segment alone, and a segment has one consumer that keeps order.
ONE_BUCKET: Final = BucketBudget(1)


def even(count: int) -> Splits:
    """The splits of so many buckets of equal width, up to one hash."""
    if not 1 <= count <= HASH_MAX + 1:
        raise LayoutRefused(f"{count} buckets: a segment has 1 to {HASH_MAX + 1}")
    return tuple(n * (HASH_MAX + 1) // count for n in range(1, count))


def checked(splits: Iterable[int]) -> Splits:
    """The same splits. ValueError unless they ascend within the ring."""
    found, before = tuple(splits), 0
    for split in found:
        if not isinstance(split, int) or not before < split <= HASH_MAX:
            raise ValueError(f"{split!r} after {before} is no start of an entry bucket")
        before = split
    return found


def ranges(splits: Splits) -> tuple[HashRange, ...]:
    """All buckets, in order."""
    starts = (0, *splits)
    ends = (*(split - 1 for split in splits), HASH_MAX)
    return tuple(HashRange(start, end) for start, end in zip(starts, ends, strict=True))


def bucket_of(splits: Splits, hash_value: int) -> int:
    """The number of the bucket that a key with this hash belongs to."""
    return bisect_right(splits, hash_value)


def touched(splits: Splits, span: HashRange | None) -> range:
    """The numbers of the buckets that a batch with keys of this range may belong to: all of them if it is unknown."""
    if span is None:
        span = WHOLE
    return range(bisect_right(splits, span.start), bisect_right(splits, span.end) + 1)
