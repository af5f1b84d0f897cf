"""Data plane. Entries that were read from a file before they could be sent, and are not to be read again. Pure.

Consumers that share a backlog are seldom equally far. An entry for one whose queue is full is read with those for the
others, and each read costs more than sending an entry. What is kept has three bounds: that of all subscriptions of the
broker, that of this one, and a share of it for each bucket, so that a consumer that stands does not take the room of
the others. Beyond them an entry is read again.
"""

from __future__ import annotations

from typing import Final

from anabranch.model.position import Position
from anabranch.storage.port import Entry

# The most bytes of all subscriptions together, and of one of them.
KEPT_BYTES_MAX: Final = 64 << 20
KEPT_OF_ONE_MAX: Final = 4 << 20
# A bucket's share is no less: there may be a thousand buckets, of which few have something to wait for.
_SHARE_MIN: Final = 128 << 10


class KeptBudget:
    """How many bytes the subscriptions of a broker may still keep."""

    __slots__ = ("left",)

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self.left = bytes_max


class KeptEntries:
    """The entries of one subscription that wait in its buckets, as far as there is room for them."""

    def __init__(self, budget: KeptBudget, buckets: int, bytes_max: int = KEPT_OF_ONE_MAX) -> None:
        self._budget = budget
        self._bytes_max = bytes_max
        self._share = max(_SHARE_MIN, bytes_max // buckets)
        self._of_bucket = [0] * buckets
        self._entries: dict[Position, tuple[Entry, int]] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, at: object) -> bool:
        return at in self._entries

    @property
    def room(self) -> int:
        """How many more bytes may be kept."""
        return max(0, min(self._bytes_max - self.bytes, self._budget.left))

    def keep(self, at: Position, entry: Entry, bucket: int) -> None:
        """Keeps an entry whose first bucket that is, if there is room."""
        size = len(entry[2])
        if at in self._entries or size > self.room or self._of_bucket[bucket] + size > self._share:
            return
        # A copy: what was read with it must not stay in memory because of it.
        data = entry[2] if isinstance(entry[2], bytes) else bytes(entry[2])
        self._entries[at] = (entry[0], entry[1], memoryview(data)), bucket
        self._count(size, bucket)

    def take(self, at: Position) -> Entry | None:
        """Removes and returns an entry, if it is kept."""
        found = self._entries.pop(at, None)
        if found is None:
            return None
        self._count(-len(found[0][2]), found[1])
        return found[0]

    def drop_below(self, at: Position) -> None:
        for place in [place for place in self._entries if place < at]:
            self.take(place)

    def clear(self) -> None:
        for place in list(self._entries):
            self.take(place)

    def _count(self, size: int, bucket: int) -> None:
        self.bytes += size
        self._of_bucket[bucket] += size
        self._budget.left -= size
