"""Data plane. Protobuf's variable-length integers, for the few commands that are coded by hand.

Numbers below 2**14 come ready-made from a table and those below 2**28 from two: a slice of a table is
several times cheaper than a loop in Python, and ledger, entry and sequence ids rarely grow past it.
"""

from __future__ import annotations

from typing import Final

_MASK_64: Final = (1 << 64) - 1

# The whole encoding of each number below 2**14.
SHORT: Final[tuple[bytes, ...]] = tuple(
    bytes((n,)) if n < 128 else bytes((n & 0x7F | 0x80, n >> 7)) for n in range(1 << 14)
)
# The same 14 bits when more follow: both bytes have their continuation bit set.
LOW: Final[tuple[bytes, ...]] = tuple(bytes((n & 0x7F | 0x80, n >> 7 | 0x80)) for n in range(1 << 14))


def encode(n: int) -> bytes:
    """`n` as a varint. Negative numbers take ten bytes, as int32 and int64 fields have it."""
    if 0 <= n < 0x4000:
        return SHORT[n]
    if 0 <= n < 0x10000000:
        return LOW[n & 0x3FFF] + SHORT[n >> 14]
    n &= _MASK_64
    parts = bytearray()
    while n > 0x7F:
        parts.append(n & 0x7F | 0x80)
        n >>= 7
    parts.append(n)
    return bytes(parts)


def decode(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """The number at `at` and the position after it. IndexError at the end, ValueError past 64 bits."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise ValueError("varint longer than ten bytes")
    return value & _MASK_64, at
