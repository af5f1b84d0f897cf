"""Data plane. The kernels behind `decode`: one walk over all messages that fills the columns, one more for properties.

The walk trusts no byte of a batch. When a message cannot be read, all rows of its entry are removed, the fault is noted
and the walk continues with the next entry.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from anabranch.columns.jit import inline, kernel
from anabranch.columns.memory import (
    clear_bit,
    copy,
    get_varint,
    load_i32,
    load_i64,
    load_u32_be,
    set_bit,
    store_32,
    store_64,
)
from anabranch.columns.protobuf import get_length, get_pair, get_tag, put_from_base64, skip
from anabranch.columns.scan import (
    BASE64,
    COMPACTED,
    COUNT,
    EVENT,
    FLAGS,
    HAS_EVENT,
    KEY,
    KEY_SIZE,
    META,
    META_END,
    NULL_KEY,
    NULL_VALUE,
    PAIR_BYTES,
    PAIRS,
    PAYLOAD,
    PAYLOAD_END,
    PUBLISH,
    SEQUENCE,
    Facts,
    int32_of,
    is_pair,
)

Longs = npt.NDArray[np.int64]

# What the walk found, by place in `found`.
ROWS: Final = 0
VALUE_BYTES: Final = 1
KEY_BYTES: Final = 2
KEYS: Final = 3
VALUES: Final = 4
EVENTS: Final = 5
FOUND_PAIRS: Final = 6
FOUND_PAIR_BYTES: Final = 7
FOUND_WIDTH: Final = 8

# Faults; the message's index is in the bits above the lowest eight.
MALFORMED: Final = 1
CUT_SHORT: Final = 2


class Out(NamedTuple):
    """Where the columns are written: addresses, but for `key_room`, the number of bytes available for keys."""

    values: int
    keys: int
    key_room: int
    value_offsets: int
    key_offsets: int
    sequence: int
    event: int
    publish: int
    ledger: int
    entry: int
    batch_index: int
    key_bits: int
    value_bits: int
    event_bits: int
    heads: int  # The address of each message's metadata, behind its size.


class Single(NamedTuple):
    """A message's metadata. `flags` is -1 if it cannot be read."""

    flags: int
    size: int
    key: int
    key_size: int
    event: int
    sequence: int
    pairs: int
    pair_bytes: int


@inline
def get_single(at: int, end: int, sequence: int) -> Single:
    flags = size = key = event = pairs = pair_bytes = 0
    key_size = -1
    while at < end:
        tag, at = get_tag(at, end)
        kind = tag & 7
        if kind == 0 and at != 0:
            value, at = get_varint(at, end)
            if tag == 0x18:
                size = int32_of(value)
            elif tag == 0x40:
                sequence = value
            elif tag == 0x28:
                event = value
                flags |= HAS_EVENT
            else:
                bit = BASE64 if tag == 0x30 else NULL_VALUE if tag == 0x48 else 0
                bit = NULL_KEY if tag == 0x50 else COMPACTED if tag == 0x20 else bit
                flags = flags | bit if value != 0 else flags & ~bit
        elif kind == 2 and at != 0:
            length, at = get_length(at, end)
            if tag == 0x12:
                key = at
                key_size = length
            elif tag == 0x0A:
                pairs += 1
                pair_bytes += length
                if not is_pair(at, at + length):
                    at = length = 0
            at += length
        elif at != 0:
            at = skip(at, end, tag)
        if at == 0:
            flags = -1
            break
    return Single(flags, size, key, key_size, event, sequence, pairs, pair_bytes)


@inline
def _is_wanted(words: Longs, first: int, last: int, index: int) -> bool:
    """Whether the message's bit is set, or there are no bits at all."""
    if first == last:
        return True
    word = first + (index >> 6)
    return word < last and words[word] >> (index & 63) & 1 != 0


@inline
def _put_row(
    out: Out, found: Longs, one: Single, index: int, head: int, key_end: int, payload: int, payload_end: int
) -> None:
    """Writes one row; there is room for its key. Key and payload lie in memory that ends at `key_end` and
    `payload_end`."""
    row = found[ROWS]
    if one.key_size >= 0 and one.flags & NULL_KEY == 0:
        at = out.keys + found[KEY_BYTES]
        size_decoded = put_from_base64(at, one.key, one.key_size) if one.flags & BASE64 != 0 else -1
        if size_decoded < 0:
            copy(at, one.key, one.key_size, key_end)
            size_decoded = one.key_size
        found[KEY_BYTES] += size_decoded
        found[KEYS] += 1
    else:
        clear_bit(out.key_bits, row)
    if one.flags & NULL_VALUE == 0:
        copy(out.values + found[VALUE_BYTES], payload, one.size, payload_end)
        found[VALUE_BYTES] += one.size
        found[VALUES] += 1
    else:
        clear_bit(out.value_bits, row)
    if one.flags & HAS_EVENT != 0:
        set_bit(out.event_bits, row)
        found[EVENTS] += 1
    store_64(out.event + row * 8, one.event)
    store_64(out.sequence + row * 8, one.sequence)
    store_64(out.heads + row * 8, head)
    store_32(out.batch_index + row * 4, index)
    store_32(out.key_offsets + row * 4 + 4, found[KEY_BYTES])
    store_32(out.value_offsets + row * 4 + 4, found[VALUE_BYTES])
    found[FOUND_PAIRS] += one.pairs
    found[FOUND_PAIR_BYTES] += one.pair_bytes
    found[ROWS] = row + 1


@inline
def _put_batch(facts: Longs, words: Longs, first: int, last: int, out: Out, found: Longs) -> int:
    """Writes the rows of a batch. Returns a fault, 0 for none, -1 if a key had no room."""
    at = facts[PAYLOAD]
    end = facts[PAYLOAD_END]
    for index in range(facts[COUNT]):
        if end - at < 4:
            return index << 8 | CUT_SHORT
        head = at + 4
        stop = head + load_u32_be(at)
        if stop > end:
            return index << 8 | CUT_SHORT
        one = get_single(head, stop, facts[SEQUENCE])
        if one.flags < 0:
            return index << 8 | MALFORMED
        if one.size < 0 or one.size > end - stop:
            return index << 8 | CUT_SHORT
        at = stop + one.size
        if one.flags & COMPACTED != 0 or not _is_wanted(words, first, last, index):
            continue
        if found[KEY_BYTES] + one.key_size > out.key_room:
            return -1
        _put_row(out, found, one, index, head, end, stop, end)
    return 0


@kernel
def decode_rows(
    facts: Facts,
    ids: Longs,
    words: Longs,
    word_bounds: Longs,
    out: Out,
    counts: Longs,
    faults: Longs,
    found: Longs,
    before: Longs,
) -> bool:
    """Fills the columns, `counts`, `faults` and `found`. False if there was no room for all keys.

    `before` is as wide as `found`, and used for entries that turn out to be faulty.
    """
    for place in range(FOUND_WIDTH):
        found[place] = 0
    store_32(out.key_offsets, 0)
    store_32(out.value_offsets, 0)
    for entry in range(len(facts)):
        row = facts[entry]
        for place in range(FOUND_WIDTH):
            before[place] = found[place]
        first, last = word_bounds[entry], word_bounds[entry + 1]
        fault = 0
        if row[COUNT] >= 0:
            fault = _put_batch(row, words, first, last, out, found)
        elif found[KEY_BYTES] + row[KEY_SIZE] > out.key_room:
            fault = -1
        elif _is_wanted(words, first, last, 0):
            one = Single(
                row[FLAGS],
                row[PAYLOAD_END] - row[PAYLOAD],
                row[KEY],
                row[KEY_SIZE],
                row[EVENT],
                row[SEQUENCE],
                row[PAIRS],
                row[PAIR_BYTES],
            )
            _put_row(out, found, one, -1, row[META], row[META_END], row[PAYLOAD], row[PAYLOAD_END])
        if fault < 0:
            return False
        faults[entry] = fault
        if fault != 0:
            for at in range(before[ROWS], found[ROWS]):
                set_bit(out.key_bits, at)
                set_bit(out.value_bits, at)
                clear_bit(out.event_bits, at)
            for place in range(FOUND_WIDTH):
                found[place] = before[place]
        counts[entry] = found[ROWS] - before[ROWS]
        for at in range(before[ROWS], found[ROWS]):
            store_64(out.publish + at * 8, row[PUBLISH])
            store_64(out.ledger + at * 8, ids[entry, 0])
            store_64(out.entry + at * 8, ids[entry, 1])
    return True


class PairsOut(NamedTuple):
    """Where properties are written: addresses."""

    offsets: int
    names: int
    name_offsets: int
    items: int
    item_offsets: int


@kernel
def decode_pairs(rows: int, heads: int, batch_index: int, out: PairsOut) -> None:
    """Fills the property columns from the metadata of each row, which has been read before and found good."""
    count = name_bytes = item_bytes = 0
    store_32(out.offsets, 0)
    store_32(out.name_offsets, 0)
    store_32(out.item_offsets, 0)
    for row in range(rows):
        at = load_i64(heads + row * 8)
        end = at + load_u32_be(at - 4)
        wanted = 4 << 3 | 2 if load_i32(batch_index + row * 4) < 0 else 1 << 3 | 2
        while at < end:
            tag, at = get_tag(at, end)
            if tag != wanted:
                at = skip(at, end, tag)
                continue
            length, at = get_length(at, end)
            name, name_size, item, item_size, _ = get_pair(at, at + length)
            at += length
            name_bytes = copy(out.names + name_bytes, name, name_size, name + name_size) - out.names
            item_bytes = copy(out.items + item_bytes, item, item_size, item + item_size) - out.items
            count += 1
            store_32(out.name_offsets + count * 4, name_bytes)
            store_32(out.item_offsets + count * 4, item_bytes)
        store_32(out.offsets + row * 4 + 4, count)
