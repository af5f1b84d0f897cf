"""Data plane. The range of bucket hashes that an entry's producer has stamped it with (PIP-486)."""

from __future__ import annotations

from anabranch.model.segments import HASH_MAX, WHOLE, HashRange
from anabranch.wire import pulsar_pb2 as pb


def stamp_of(metadata: pb.MessageMetadata) -> tuple[int, int] | None:
    """The least and the greatest bucket hash of the entry's keys; None without a sound stamp: it may have any keys."""
    if not metadata.HasField("entry_hash_min") or not metadata.HasField("entry_hash_max"):
        return None
    low, high = metadata.entry_hash_min, metadata.entry_hash_max
    return (low, high) if low <= high <= HASH_MAX else None


def span_of(metadata: pb.MessageMetadata) -> HashRange:
    """The hashes that keys of the entry may have: those of its stamp, or all of them."""
    stamp = stamp_of(metadata)
    return WHOLE if stamp is None else HashRange(*stamp)
