"""Data plane. The kernels behind `decode`: one walk over all messages that fills the columns, one more for properties.

The walk trusts no byte of a batch. When a message cannot be read, its whole entry is taken back out, the fault is noted
and the walk goes on with the next entry.
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
    load_u32_be,
    set_bit,
    store_8,
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
    """Where the columns are written: addresses, but for `key_room`, the bytes there are for keys."""

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
        if at == 0:
            return Single(-1, 0, 0, -1, 0, 0, 0, 0)
        if tag & 7 == 0:
            value, at = get_varint(at, end)
            if at == 0:
                return Single(-1, 0, 0, -1, 0, 0, 0, 0)
            if tag == 0x18:
                size = int32_of(value)
            elif tag == 0x40:
                sequence = value
            elif tag == 0x28:
                event = value
                flags |= HAS_EVENT
            elif tag == 0x30:
                flags = flags | BASE64 if value != 0 else flags & ~BASE64
            elif tag == 0x48:
                flags = flags | NULL_VALUE if value != 0 else flags & ~NULL_VALUE
            elif tag == 0x50:
                flags = flags | NULL_KEY if value != 0 else flags & ~NULL_KEY
            elif tag == 0x20:
                flags = flags | COMPACTED if value != 0 else flags & ~COMPACTED
        elif tag & 7 == 2:
            length, at = get_length(at, end)
            if at == 0:
                return Single(-1, 0, 0, -1, 0, 0, 0, 0)
            if tag == 0x12:
                key = at
                key_size = length
            elif tag == 0x0A:
                pairs += 1
                pair_bytes += length
                if not is_pair(at, at + length):
                    return Single(-1, 0, 0, -1, 0, 0, 0, 0)
            at += length
        else:
            at = skip(at, end, tag)
            if at == 0:
                return Single(-1, 0, 0, -1, 0, 0, 0, 0)
    return Single(flags, size, key, key_size, event, sequence, pairs, pair_bytes)


@inline
def _is_wanted(words: Longs, first: int, last: int, index: int) -> bool:
    """Whether the message's bit is set, where there are any bits at all."""
    if first == last:
        return True
    word = first + (index >> 6)
    return word < last and words[word] >> (index & 63) & 1 != 0


@inline
def _put_row(
    out: Out, found: Longs, one: Single, index: int, payload: int, size: int, payload_end: int
) -> None:
    """Writes one row; its key has room."""
    row = found[ROWS]
    if one.key_size >= 0 and one.flags & NULL_KEY == 0:
        at = out.keys + found[KEY_BYTES]
        size_decoded = put_from_base64(at, one.key, one.key_size) if one.flags & BASE64 != 0 else -1
        if size_decoded < 0:
            # Keys stand before the payload in a batch; elsewhere nothing is known of what is behind them.
            copy(at, one.key, one.key_size, payload_end if one.key < payload else one.key + one.key_size)
            size_decoded = one.key_size
        found[KEY_BYTES] += size_decoded
        found[KEYS] += 1
    else:
        clear_bit(out.key_bits, row)
    if one.flags & NULL_VALUE == 0:
        copy(out.values + found[VALUE_BYTES], payload, size, payload_end)
        found[VALUE_BYTES] += size
        found[VALUES] += 1
    else:
        clear_bit(out.value_bits, row)
    if one.flags & HAS_EVENT != 0:
        set_bit(out.event_bits, row)
        found[EVENTS] += 1
    store_64(out.event + row * 8, one.event)
    store_64(out.sequence + row * 8, one.sequence)
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
        _put_row(out, found, one, index, stop, one.size, end)
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
) -> bool:
    """Fills the columns, `counts`, `faults` and `found`. False if there was no room for all keys."""
    found[:] = 0
    store_32(out.key_offsets, 0)
    store_32(out.value_offsets, 0)
    before = np.zeros(FOUND_WIDTH, np.int64)
    for entry in range(len(facts)):
        row = facts[entry]
        before[:] = found
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
            _put_row(out, found, one, -1, row[PAYLOAD], one.size, row[PAYLOAD_END])
        if fault < 0:
            return False
        faults[entry] = fault
        if fault != 0:
            for at in range(before[ROWS], found[ROWS]):
                set_bit(out.key_bits, at)
                set_bit(out.value_bits, at)
                clear_bit(out.event_bits, at)
            found[:] = before
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


@inline
def _put_pairs(out: PairsOut, state: Longs, at: int, end: int, wanted: int) -> None:
    """Writes the pairs in a message's metadata, which has been read before. State: pairs, name bytes, value bytes."""
    while at < end:
        tag, at = get_tag(at, end)
        if tag != wanted:
            at = skip(at, end, tag)
            continue
        length, at = get_length(at, end)
        name, name_size, item, item_size, _ = get_pair(at, at + length)
        at += length
        copy(out.names + state[1], name, name_size, name + name_size)
        copy(out.items + state[2], item, item_size, item + item_size)
        state[0] += 1
        state[1] += name_size
        state[2] += item_size
        store_32(out.name_offsets + state[0] * 4, state[1])
        store_32(out.item_offsets + state[0] * 4, state[2])


@kernel
def decode_pairs(
    facts: Facts, words: Longs, word_bounds: Longs, counts: Longs, out: PairsOut
) -> tuple[int, int, int]:
    """Fills the property columns of the entries that gave rows: pairs, bytes of names, bytes of values."""
    state = np.zeros(3, np.int64)
    row = 0
    store_32(out.offsets, 0)
    store_32(out.name_offsets, 0)
    store_32(out.item_offsets, 0)
    for entry in range(len(facts)):
        if counts[entry] == 0:
            continue
        about = facts[entry]
        if about[COUNT] < 0:
            _put_pairs(out, state, about[META], about[META_END], 4 << 3 | 2)
            row += 1
            store_32(out.offsets + row * 4, state[0])
            continue
        at = about[PAYLOAD]
        for index in range(about[COUNT]):
            head = at + 4
            stop = head + load_u32_be(at)
            one = get_single(head, stop, 0)
            at = stop + one.size
            is_wanted = _is_wanted(words, word_bounds[entry], word_bounds[entry + 1], index)
            if one.flags & COMPACTED == 0 and is_wanted:
                _put_pairs(out, state, head, stop, 0x0A)
                row += 1
                store_32(out.offsets + row * 4, state[0])
    return state[0], state[1], state[2]


@kernel
def fill(at: int, size: int, byte: int) -> None:
    for place in range(size):
        store_8(at + place, byte)
