"""Data plane. The 32-bit murmur3 hash of every key of a column: what routes to segments, buckets and partitions.

`hash_keys(column) -> uint32 array` gives, row by row, what `anabranch.model.keyhash.murmur3_raw` gives for the key's
bytes. Rows without a key get 0; `routing.Router.keyless` gives them hashes to be spread by.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from anabranch.columns.arrow import Column, ColumnView, address_of, strings
from anabranch.columns.jit import inline, kernel
from anabranch.columns.memory import is_set, load_i32, load_i64, load_u8, load_u32, store_32

Hashes = npt.NDArray[np.uint32]


def hash_keys(column: Column) -> Hashes:
    """The raw 32 bits, unsigned, of each key. Text is hashed as its UTF-8 bytes; binary keys as their own."""
    held = strings(column, "key")
    hashes = np.empty(len(held.array), np.uint32)
    if held.view.rows:
        _hash_rows(held.view, address_of(hashes))
    else:
        hashes[:] = 0
    return hashes


@inline
def offset_of(view: ColumnView, row: int) -> int:
    if view.wide != 0:
        return load_i64(view.offsets + row * 8)  # type: ignore[no-any-return]
    return load_i32(view.offsets + row * 4)  # type: ignore[no-any-return]


@inline
def _mix(block: int) -> int:
    block = block * 0xCC9E2D51 & 0xFFFFFFFF
    block = (block << 15 | block >> 17) & 0xFFFFFFFF
    return block * 0x1B873593 & 0xFFFFFFFF


@inline
def murmur3(at: int, size: int, end: int) -> int:
    """murmur3_x86_32 with seed 0 of `size` bytes in a buffer that ends at `end`."""
    value = 0
    left = size
    while left >= 4:
        value ^= _mix(load_u32(at))
        value = (value << 13 | value >> 19) & 0xFFFFFFFF
        value = value * 5 + 0xE6546B64 & 0xFFFFFFFF
        at += 4
        left -= 4
    if left > 0:
        if at + 4 <= end:
            tail = load_u32(at) & (1 << left * 8) - 1
        else:
            tail = load_u8(at)
            if left > 1:
                tail |= load_u8(at + 1) << 8
            if left > 2:
                tail |= load_u8(at + 2) << 16
        value ^= _mix(tail)
    value ^= size
    value = (value ^ value >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    value = (value ^ value >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return value ^ value >> 16


@kernel
def _hash_rows(view: ColumnView, out: int) -> None:
    start = offset_of(view, 0)
    for row in range(view.rows):
        stop = offset_of(view, row + 1)
        if is_set(view.valid, view.shift + row):
            store_32(out + row * 4, murmur3(view.data + start, stop - start, view.end))
        else:
            store_32(out + row * 4, 0)
        start = stop
