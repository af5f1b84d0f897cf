"""What a segment holds of a producer: its last sequence id in each entry bucket. Pure.

Buckets fill at different times, so one last id for all of them does not tell which messages are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LastIds:
    """The last sequence ids in a segment: of single buckets, and `whole`, that of entries which may be in any bucket.

    `highest` is the greatest of all. It may be above the others where the broker knows nothing of buckets: then it is
    not known of any message that it is stored.
    """

    highest: int = -1
    buckets: Mapping[int, int] = field(default_factory=dict)
    whole: int = -1

    def of(self, bucket: int) -> int:
        """All messages of that bucket up to this number are stored; -1 for none."""
        return max(self.buckets.get(bucket, -1), self.whole)
