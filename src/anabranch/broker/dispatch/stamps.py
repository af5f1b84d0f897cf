"""Data plane. The range of bucket hashes that an entry's producer has stamped it with (PIP-486). Pure."""

from __future__ import annotations

from bisect import bisect_right

from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.dispatch.selector import ranges_of
from anabranch.model.segments import HASH_MAX
from anabranch.wire import pulsar_pb2 as pb


def stamp_of(metadata: pb.MessageMetadata) -> tuple[int, int] | None:
    """The least and the greatest bucket hash of the entry's keys; None without a sound stamp: it may have any keys."""
    if not metadata.HasField("entry_hash_min") or not metadata.HasField("entry_hash_max"):
        return None
    low, high = metadata.entry_hash_min, metadata.entry_hash_max
    return (low, high) if low <= high <= HASH_MAX else None


class WantedHashes:
    """The ranges of bucket hashes that a reader names: it is sent whole each entry that may have keys of them."""

    def __init__(self, consumer: AttachedConsumer) -> None:
        ranges = ranges_of(consumer)
        self._starts = [start for start, _ in ranges]
        self._ends = [end for _, end in ranges]

    def touch(self, metadata: pb.MessageMetadata) -> bool:
        stamp = stamp_of(metadata)
        if stamp is None:
            return True
        # The last range that begins within the stamp or before it.
        at = bisect_right(self._starts, stamp[1]) - 1
        return at >= 0 and self._ends[at] >= stamp[0]
