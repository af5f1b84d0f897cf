"""Which rows of its topics a query wants: by publish time, key, hash and segment. Pure.

Segments that can have no such row are not read at all; of the others each task keeps the wanted rows
(`spark.columns.row_filter`). Offsets are the same with and without ranges, so ranges may be changed between two runs of
a query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from anabranch.client.consuming.core.checkpoint import CLOCKS_APART_MS
from anabranch.model.keyhash import segment_hash
from anabranch.model.segments import HashRange, Segment, SegmentId


@dataclass(frozen=True, slots=True)
class Ranges:
    """None: any. A row is wanted if all conditions hold."""

    since_ms: int | None = None  # Published at this time or later.
    until_ms: int | None = None  # Published before this time.
    keys: frozenset[bytes] | None = None
    hashes: tuple[HashRange, ...] | None = None  # Hashes of keys. Rows without a key have none.
    segments: frozenset[SegmentId] | None = None

    @property
    def filters_rows(self) -> bool:
        """Whether a segment that is read may have unwanted rows."""
        return any(one is not None for one in (self.since_ms, self.until_ms, self.keys, self.hashes))

    def may_be_in(self, segment: Segment) -> bool:
        """Whether a segment may have wanted rows."""
        if self.segments is not None and segment.id not in self.segments:
            return False
        return self._is_in_time(segment) and self._has_keys(segment)

    def _is_in_time(self, segment: Segment) -> bool:
        # A segment's times come from its controller's clock, those of messages from their producers'. A partition has
        # none.
        if segment.classic_topic:
            return True
        since, until, sealed = self.since_ms, self.until_ms, segment.sealed_ms
        if since is not None and segment.is_sealed and sealed and sealed + CLOCKS_APART_MS < since:
            return False
        return until is None or segment.created_ms - CLOCKS_APART_MS < until

    def _has_keys(self, segment: Segment) -> bool:
        # A partition may hold any key.
        if segment.classic_topic:
            return True
        if self.keys is not None and not any(segment_hash(key) in segment.range for key in self.keys):
            return False
        return self.hashes is None or any(span.overlaps(segment.range) for span in self.hashes)


ANY: Final = Ranges()
