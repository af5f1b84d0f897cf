"""Data plane. From keys to numbers: Key_Shared slots, segments, entry buckets and partitions.

All of these are fixed by what Pulsar's clients and brokers compute; a different number sends a key to a
different consumer or partition than the one which already holds its order.
"""

from __future__ import annotations

from typing import Final

import mmh3

# Key_Shared divides this many slots among its consumers.
STICKY_SLOTS: Final = 1 << 16


def murmur3_raw(key: bytes) -> int:
    """All 32 bits of murmur3, unsigned: the high half chooses a segment, the low half an entry bucket."""
    return mmh3.hash(key, 0, False)


def murmur3(key: bytes) -> int:
    """murmur3 without its highest bit, as classic clients and brokers use it."""
    return mmh3.hash(key, 0, False) & 0x7FFFFFFF


def sticky_slot(key: bytes, slots: int = STICKY_SLOTS) -> int:
    """The Key_Shared slot of a sticky key, from 1: 0 stands for "no hash", so its keys move to slot 1."""
    return (mmh3.hash(key, 0, False) & 0x7FFFFFFF) % slots or 1


def segment_hash(key: bytes) -> int:
    """The 16 bits that choose a scalable topic's segment."""
    return murmur3_raw(key) >> 16


def bucket_hash(key: bytes) -> int:
    """The 16 bits that choose the entry bucket within a segment (PIP-486)."""
    return murmur3_raw(key) & 0xFFFF


def java_string_hash(key: str) -> int:
    """`String.hashCode` without its sign bit: the default by which clients choose a partition."""
    units = key.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


def partition_of(key: str, partitions: int, *, by_murmur: bool = False) -> int:
    """The partition a keyed message belongs to."""
    value = murmur3(key.encode()) if by_murmur else java_string_hash(key)
    return value % partitions
