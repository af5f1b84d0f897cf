"""Which rows of its topics a query wants: by publish time, key, hash and segment. Pure.

Segments that can have no such row are not read at all; of the others each task keeps the rows that are wanted
(`anabranch.spark.row_filter`). Offsets are the same with and without ranges, so they may be changed between two runs of
a query.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeVar

from anabranch.client.checkpoint import CLOCKS_APART_MS
from anabranch.model.keyhash import segment_hash
from anabranch.model.segments import HashRange, Segment, SegmentId

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ranges:
    """None: any. A row is wanted if all of them hold."""

    since_ms: int | None = None  # Published then or later.
    until_ms: int | None = None  # Published before.
    keys: frozenset[bytes] | None = None
    hashes: tuple[HashRange, ...] | None = None  # Of keys. Rows without a key have none.
    segments: frozenset[SegmentId] | None = None
    topics: frozenset[str] | None = None

    @property
    def filters_rows(self) -> bool:
        """Whether rows of a segment that is read may not be wanted."""
        return any(one is not None for one in (self.since_ms, self.until_ms, self.keys, self.hashes))

    def may_be_in(self, topic: str, segment: Segment) -> bool:
        """Whether a segment may have rows that are wanted."""
        if self.topics is not None and topic not in self.topics:
            return False
        if self.segments is not None and segment.id not in self.segments:
            return False
        return self._is_in_time(segment) and self._has_keys(segment)

    def _is_in_time(self, segment: Segment) -> bool:
        # A segment's times are its controller's, those of messages their producers'. A partition's are nobody's.
        if segment.legacy_topic:
            return True
        since, until, sealed = self.since_ms, self.until_ms, segment.sealed_ms
        if since is not None and segment.is_sealed and sealed and sealed + CLOCKS_APART_MS < since:
            return False
        return until is None or segment.created_ms - CLOCKS_APART_MS < until

    def _has_keys(self, segment: Segment) -> bool:
        # A partition may hold any key.
        if segment.legacy_topic:
            return True
        if self.keys is not None and not any(segment_hash(key) in segment.range for key in self.keys):
            return False
        return self.hashes is None or any(span.overlaps(segment.range) for span in self.hashes)

    def within(self, other: Ranges) -> Ranges:
        """What both want."""
        return replace(
            self,
            since_ms=max((t for t in (self.since_ms, other.since_ms) if t is not None), default=None),
            until_ms=min((t for t in (self.until_ms, other.until_ms) if t is not None), default=None),
            keys=_both(self.keys, other.keys),
            hashes=_common(self.hashes, other.hashes),
            segments=_both(self.segments, other.segments),
            topics=_both(self.topics, other.topics),
        )


ANY: Final = Ranges()


def _both(one: frozenset[T] | None, other: frozenset[T] | None) -> frozenset[T] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _common(
    one: tuple[HashRange, ...] | None, other: tuple[HashRange, ...] | None
) -> tuple[HashRange, ...] | None:
    if one is None or other is None:
        return other if one is None else one
    return tuple(sorted({a.common(b) for a in one for b in other if a.overlaps(b)}))
