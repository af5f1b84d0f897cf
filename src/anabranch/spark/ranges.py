"""Which rows of its topics a query wants: by publish time, key, hash and segment. Pure.

Segments that can have no such row are not read at all; of the others each task keeps the rows that are wanted
(`anabranch.spark.row_filter`). Offsets are the same with and without ranges, so they may be changed between two runs of
a query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from anabranch.client.checkpoint import CLOCKS_APART_MS
from anabranch.model.keyhash import segment_hash
from anabranch.model.segments import HashRange, Segment, SegmentId


@dataclass(frozen=True, slots=True)
class Ranges:
    """None: any. A row is wanted if all of them hold."""

    since_ms: int | None = None  # Published then or later.
    until_ms: int | None = None  # Published before.
    keys: frozenset[bytes] | None = None
    hashes: tuple[HashRange, ...] | None = None  # Of keys. Rows without a key have none.
    segments: frozenset[SegmentId] | None = None

    @property
    def filters_rows(self) -> bool:
        """Whether rows of a segment that is read may not be wanted."""
        return any(one is not None for one in (self.since_ms, self.until_ms, self.keys, self.hashes))

    def may_be_in(self, segment: Segment) -> bool:
        """Whether a segment may have rows that are wanted."""
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


ANY: Final = Ranges()
