"""Data plane. Arrow columns to the messages of standard Pulsar batches.

    singles = encode(pool, value=…, key=…, order=groups.order, bounds=groups.bounds, hashes=hashes, first_sequence_id=…)

writes every row, in the given order, as protobuf would write its metadata (fields in rising order, each only if it is
set), so that any Pulsar client reads it. Row r of the columns gets the sequence id `first_sequence_id + r`: ids rise
within each group, with gaps where rows went elsewhere.

- `value`: binary or string; null is sent as an empty payload with `null_value`.
- `key`: a string is sent as it is, binary as base64 with `partition_key_b64_encoded`; null sends no key at all.
- `event_time`: timestamps, or integers of milliseconds; null sends none.
- `properties`: map<string, string>, or a struct of strings whose null fields are left out. Slower.

All columns have as many rows as `value`. Chunked ones are joined first, and rows that are taken from all over a large
column miss the caches: go through a table by `table.to_batches(max_chunksize=…)` of a few megabytes each.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from anabranch.columns.arrow import (
    NOTHING,
    Column,
    ColumnView,
    Held,
    address_of,
    milliseconds,
    pairs,
    strings,
    validity,
)
from anabranch.columns.hashing import Hashes, offset_of
from anabranch.columns.jit import inline, kernel
from anabranch.columns.memory import (
    copy,
    is_set,
    load_i32,
    load_i64,
    load_u8,
    prefetch,
    put_varint,
    store_8,
    store_32_be,
    store_64,
)
from anabranch.columns.pool import Lease, Pool
from anabranch.columns.routing import Bounds, Rows
from anabranch.columns.singles import Singles

# The most bytes that a message takes besides key, properties and payload: the size before it, and tags and numbers.
_OVERHEAD: Final = 4 + 6 + 6 + 11 + 2 + 11 + 2
# How many rows ahead of its turn a row's value is fetched.
_AHEAD: Final = 16
# The mean size of values that are.
_SHORT: Final = 256
# The same for a pair of properties: three tags and lengths.
_PAIR_OVERHEAD: Final = 18

_NO_HASHES: Final[Hashes] = np.empty(0, np.uint32)


class _Times(NamedTuple):
    """A column of numbers as the kernel sees it; address 0 for none."""

    data: int
    valid: int
    shift: int


def encode(
    pool: Pool,
    *,
    value: Column,
    first_sequence_id: int,
    key: Column | None = None,
    event_time: Column | None = None,
    properties: Column | None = None,
    order: Rows | None = None,
    bounds: Bounds | None = None,
    hashes: Hashes | None = None,
) -> Singles:
    """The messages of all rows, or of those in `order`, which names no row twice.

    `bounds` and `hashes` are handed on in the result, the hashes (by row, as `hash_keys` gives them) in its order.
    """
    values = strings(value, "value")
    rows = len(values.array)
    keys = _same_rows(strings(key, "key"), rows) if key is not None else None
    times = milliseconds(event_time) if event_time is not None else None
    named, named_memory = (
        _encode_pairs(pool, pairs(properties), rows) if properties is not None else (NOTHING, None)
    )
    count = rows if order is None else len(order)
    if order is not None:
        order = np.ascontiguousarray(order, np.int32)
        if count and (order.min() < 0 or order.max() >= rows):
            raise ValueError(f"the order names rows from {order.min()} to {order.max()}, there are {rows}")
    key_bytes = keys.data_bytes if keys is not None else 0
    text_bytes = key_bytes if keys is not None and keys.is_text else key_bytes * 4 // 3 + 4 * rows
    named_bytes = named.end - named.data
    lease = pool.lease(count * _OVERHEAD + values.data_bytes + text_bytes + named_bytes)
    offsets = np.empty(count + 1, np.int64)
    size = _encode_rows(
        lease.address,
        address_of(offsets),
        count,
        address_of(order) if order is not None else 0,
        values.view,
        keys.view if keys is not None else NOTHING,
        keys is not None and not keys.is_text,
        _times(times, rows),
        named,
        first_sequence_id,
    )
    del named_memory  # Its memory had to stay alive until here.
    if order is None:
        sequence_ids = np.arange(first_sequence_id, first_sequence_id + rows, dtype=np.int64)
    else:
        sequence_ids = order + np.int64(first_sequence_id)
        hashes = hashes[order] if hashes is not None else None
    return Singles(
        lease.array(size),
        offsets,
        sequence_ids,
        hashes if hashes is not None else _NO_HASHES,
        bounds if bounds is not None else np.array([0, count], np.int64),
    )


def _same_rows(held: Held, rows: int) -> Held:
    if len(held.array) != rows:
        raise ValueError(
            f"a column has {len(held.array)} rows and the values {rows}: give columns of one length"
        )
    return held


def _times(array: Column | None, rows: int) -> _Times:
    if array is None or len(array) == 0:
        return _Times(0, 0, 0)
    if len(array) != rows:
        raise ValueError(
            f"event_time has {len(array)} rows and the values {rows}: give columns of one length"
        )
    return _Times(array.buffers()[1].address + array.offset * 8, *validity(array))


def _encode_pairs(pool: Pool, array: Column, rows: int) -> tuple[ColumnView, object]:
    """Each row's properties as its metadata holds them, as a column of byte strings, and its memory."""
    if len(array) != rows:
        raise ValueError(
            f"properties have {len(array)} rows and the values {rows}: give columns of one length"
        )
    if rows == 0:
        return NOTHING, None
    names, items = strings(array.keys, "property names"), strings(array.items, "property values")
    offsets = np.empty(rows + 1, np.int64)
    count = len(names.array)
    lease: Lease = pool.lease(names.data_bytes + items.data_bytes + count * _PAIR_OVERHEAD)
    first = array.buffers()[1].address + array.offset * 4
    valid, shift = validity(array)
    size = _write_pairs(lease.address, address_of(offsets), rows, first, valid, shift, names.view, items.view)
    view = ColumnView(rows, address_of(offsets), 1, lease.address, lease.address + size, 0, 0)
    return view, (lease, offsets, array)


@inline
def _put_text(at: int, tag: int, source: int, size: int, end: int) -> int:
    store_8(at, tag)
    return copy(put_varint(at + 1, size), source, size, end)


@inline
def _varint_size(value: int) -> int:
    size = 1
    while value > 0x7F:
        value >>= 7
        size += 1
    return size


@inline
def _base64_digit(six: int) -> int:
    if six < 26:
        return six + 65
    if six < 52:
        return six + 71
    if six < 62:
        return six - 4
    return 43 if six == 62 else 47


@inline
def _put_base64(at: int, source: int, size: int) -> int:
    done = 0
    while done < size:
        left = size - done
        word = load_u8(source + done) << 16
        if left > 1:
            word |= load_u8(source + done + 1) << 8
        if left > 2:
            word |= load_u8(source + done + 2)
        store_8(at, _base64_digit(word >> 18))
        store_8(at + 1, _base64_digit(word >> 12 & 63))
        store_8(at + 2, _base64_digit(word >> 6 & 63) if left > 1 else 61)
        store_8(at + 3, _base64_digit(word & 63) if left > 2 else 61)
        done += 3
        at += 4
    return at


@kernel
def _encode_rows(
    out: int,
    offsets: int,
    count: int,
    order: int,
    values: ColumnView,
    keys: ColumnView,
    is_base64: bool,
    times: _Times,
    named: ColumnView,
    first_sequence_id: int,
) -> int:
    # Where rows that go elsewhere lie between one row and the next, a processor does not foresee what is read. It
    # reads the rest of a long value ahead by itself.
    fetches = False
    if order != 0 and values.rows != 0:
        fetches = offset_of(values, values.rows) - offset_of(values, 0) <= _SHORT * values.rows
    at = out
    for place in range(count):
        store_64(offsets + place * 8, at - out)
        row = load_i32(order + place * 4) if order != 0 else place
        if fetches and place + _AHEAD < count:
            soon = load_i32(order + (place + _AHEAD) * 4)
            if soon != row + _AHEAD:
                source = values.data + offset_of(values, soon)
                prefetch(source)
                prefetch(source + 64)
        head = at
        at += 4
        if named.rows != 0:
            start = offset_of(named, row)
            at = copy(at, named.data + start, offset_of(named, row + 1) - start, named.end)
        has_key = keys.rows != 0 and is_set(keys.valid, keys.shift + row)
        if has_key:
            start = offset_of(keys, row)
            size = offset_of(keys, row + 1) - start
            if is_base64:
                store_8(at, 0x12)
                at = put_varint(at + 1, (size + 2) // 3 * 4)
                at = _put_base64(at, keys.data + start, size)
            else:
                at = _put_text(at, 0x12, keys.data + start, size, keys.end)
        has_value = values.rows != 0 and is_set(values.valid, values.shift + row)
        source = 0
        size = 0
        if has_value:
            source = offset_of(values, row)
            size = offset_of(values, row + 1) - source
        store_8(at, 0x18)
        at = put_varint(at + 1, size)
        if times.data != 0 and is_set(times.valid, times.shift + row):
            store_8(at, 0x28)
            at = put_varint(at + 1, load_i64(times.data + row * 8))
        if has_key and is_base64:
            store_8(at, 0x30)
            store_8(at + 1, 1)
            at += 2
        store_8(at, 0x40)
        at = put_varint(at + 1, first_sequence_id + row)
        if has_value:
            store_32_be(head, at - head - 4)
            at = copy(at, values.data + source, size, values.end)
        else:
            store_8(at, 0x48)
            store_8(at + 1, 1)
            at += 2
            store_32_be(head, at - head - 4)
    store_64(offsets + count * 8, at - out)
    return at - out


@kernel
def _write_pairs(
    out: int,
    offsets: int,
    rows: int,
    bounds: int,
    valid: int,
    shift: int,
    names: ColumnView,
    items: ColumnView,
) -> int:
    at = out
    for row in range(rows):
        store_64(offsets + row * 8, at - out)
        if not is_set(valid, shift + row):
            continue
        for pair in range(load_i32(bounds + row * 4), load_i32(bounds + row * 4 + 4)):
            if items.rows == 0 or not is_set(items.valid, items.shift + pair):
                continue
            name = offset_of(names, pair)
            name_size = offset_of(names, pair + 1) - name
            item = offset_of(items, pair)
            item_size = offset_of(items, pair + 1) - item
            store_8(at, 0x0A)
            both = 2 + _varint_size(name_size) + name_size + _varint_size(item_size) + item_size
            at = put_varint(at + 1, both)
            at = _put_text(at, 0x0A, names.data + name, name_size, names.end)
            at = _put_text(at, 0x12, items.data + item, item_size, items.end)
    store_64(offsets + rows * 8, at - out)
    return at - out
