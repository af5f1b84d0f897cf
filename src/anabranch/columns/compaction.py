"""Data plane. Keyed compaction of many messages at once: finds their keys, remembers the latest message of each,
removes the others from their batches.

    table = KeyTable(secret, slots_max)
    groups(entries)                              # which of them may be opened together
    opened = open_entries(entries)               # facts; batches unpacked; `plain` says which the kernels can read
    table.note(opened, first_slot, range)        # every message of the plain entries, in order
    table.put(key, slot, is_deleted)             # one that Python had to look at
    table.latest()                               # the slots of the latest messages, sorted

A key is identified by 128 bits of SipHash-2-4 under a secret: collisions can neither be provoked nor expected by
chance. The table has 24 bytes a slot and is at most three quarters full. When it must not grow any more, the upper half
of the range of hashes is dropped from it and left to another pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.columns import scan
from anabranch.columns.decode_rows import get_single
from anabranch.columns.jit import inline, kernel
from anabranch.columns.memory import SLACK, copy, load_i64, load_u8, load_u32_be
from anabranch.columns.scan import (
    BAD,
    CHUNK,
    COMPACTED,
    COUNT,
    ENCRYPTED,
    FLAGS,
    KEY,
    KEY_SIZE,
    NULL_VALUE,
    PAYLOAD,
    PAYLOAD_END,
)
from anabranch.errors import MalformedFrame
from anabranch.wire.batch import (
    CODECS,
    LOOK_INTO_BYTES_MAX,
    LOOK_INTO_MESSAGES_MAX,
    decompress,
    look_into_max,
)
from anabranch.wire.frames import Buffer

Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.uint8]

# Hashes are ordered by 62 of their bits, so that all compared numbers stay positive in 64.
RANGE_END: Final = 1 << 62
_SLOTS_MIN: Final = 1 << 12
_EMPTY: Final = -1
_DELETED: Final = -2
# The most bytes that entries opened together may unpack to, but for the first: a packed megabyte may claim terabytes.
UNPACKED_BYTES_MAX: Final = 64 << 20


@inline
def _rotated(value: int, bits: int) -> int:
    return value << bits | (value >> 64 - bits) & (1 << bits) - 1


@inline
def _mixed(a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
    a += b
    b = _rotated(b, 13) ^ a
    a = _rotated(a, 32)
    c += d
    d = _rotated(d, 16) ^ c
    a += d
    d = _rotated(d, 21) ^ a
    c += b
    b = _rotated(b, 17) ^ c
    c = _rotated(c, 32)
    return a, b, c, d


@inline
def _hashed(at: int, size: int, secret: Longs) -> tuple[int, int]:
    """SipHash-2-4 of 128 bits; the first half is cut to the bits that order ranges."""
    a, b = secret[0] ^ 0x736F6D6570736575, secret[1] ^ 0x646F72616E646F6D ^ 0xEE
    c, d = secret[0] ^ 0x6C7967656E657261, secret[1] ^ 0x7465646279746573
    end = at + (size & ~7)
    while at < end:
        word = load_i64(at)
        d ^= word
        for _ in range(2):
            a, b, c, d = _mixed(a, b, c, d)
        a ^= word
        at += 8
    word = (size & 0xFF) << 56
    for n in range(size & 7):
        word |= load_u8(at + n) << n * 8
    d ^= word
    for _ in range(2):
        a, b, c, d = _mixed(a, b, c, d)
    a ^= word
    c ^= 0xEE
    for _ in range(4):
        a, b, c, d = _mixed(a, b, c, d)
    first = a ^ b ^ c ^ d
    b ^= 0xDD
    for _ in range(4):
        a, b, c, d = _mixed(a, b, c, d)
    return first >> 2 & RANGE_END - 1, a ^ b ^ c ^ d


@inline
def _put(keys: Longs, values: Longs, first: int, second: int, value: int) -> int:
    """Remembers the value of a key; 1 if the key is new."""
    mask = len(values) - 1
    place = second & mask
    while values[place] != _EMPTY:
        if keys[place, 0] == first and keys[place, 1] == second:
            values[place] = value
            return 0
        place = place + 1 & mask
    if value == _DELETED:
        return 0
    keys[place, 0] = first
    keys[place, 1] = second
    values[place] = value
    return 1


@kernel
def _put_one(keys: Longs, values: Longs, secret: Longs, span: Longs, at: int, size: int, value: int) -> int:
    first, second = _hashed(at, size, secret)
    return _put(keys, values, first, second, value) if span[0] <= first < span[1] else 0


@kernel
def _rebuild(keys: Longs, values: Longs, into: Longs, values_into: Longs, high: int) -> int:
    """Copies all keys that are neither deleted nor beyond the range; returns their number."""
    used = 0
    for place in range(len(values)):
        if values[place] >= 0 and keys[place, 0] < high:
            used += _put(into, values_into, keys[place, 0], keys[place, 1], values[place])
    return used


@kernel
def _check_batches(facts: scan.Facts) -> None:
    """Marks batches that cannot be read: a batch is read as a whole or not at all."""
    for entry in range(len(facts)):
        row = facts[entry]
        at, end = row[PAYLOAD], row[PAYLOAD_END]
        is_good = True
        for _ in range(max(0, row[COUNT])):
            if end - at < 4 or load_u32_be(at) > end - at - 4:
                is_good = False
                break
            head = at + 4
            stop = head + load_u32_be(at)
            one = get_single(head, stop, 0)
            if one.flags < 0 or one.size < 0 or one.size > end - stop:
                is_good = False
                break
            at = stop + one.size
        if not is_good:
            row[FLAGS] |= BAD


@kernel
def _note(
    facts: scan.Facts, plain: Flags, starts: Longs, secret: Longs, span: Longs, keys: Longs, values: Longs
) -> int:
    """Remembers the messages of plain entries that have keys; returns the number of new keys."""
    used = 0
    for entry in range(len(facts)):
        if plain[entry] == 0:
            continue
        row = facts[entry]
        slot = starts[entry]
        if row[COUNT] < 0:
            if row[KEY_SIZE] >= 0:
                is_deleted = row[FLAGS] & NULL_VALUE != 0 or row[PAYLOAD_END] == row[PAYLOAD]
                first, second = _hashed(row[KEY], row[KEY_SIZE], secret)
                if span[0] <= first < span[1]:
                    used += _put(keys, values, first, second, _DELETED if is_deleted else slot)
            continue
        at = row[PAYLOAD]
        for index in range(row[COUNT]):
            head = at + 4
            stop = head + load_u32_be(at)
            one = get_single(head, stop, 0)
            at = stop + one.size
            if one.key_size >= 0 and one.flags & COMPACTED == 0:
                is_deleted = one.flags & NULL_VALUE != 0 or one.size == 0
                first, second = _hashed(one.key, one.key_size, secret)
                if span[0] <= first < span[1]:
                    used += _put(keys, values, first, second, _DELETED if is_deleted else slot + index)
    return used


@kernel
def _mark(facts: scan.Facts, plain: Flags, starts: Longs, flags: Flags, keyless: int) -> None:
    """Sets the flags of messages without a key, and clears those of messages that were compacted out before."""
    for entry in range(len(facts)):
        if plain[entry] == 0:
            continue
        row = facts[entry]
        slot = starts[entry]
        if row[COUNT] < 0:
            if row[KEY_SIZE] < 0:
                flags[slot] = keyless
            continue
        at = row[PAYLOAD]
        for index in range(row[COUNT]):
            head = at + 4
            stop = head + load_u32_be(at)
            one = get_single(head, stop, 0)
            at = stop + one.size
            if one.flags & COMPACTED != 0:
                flags[slot + index] = 0
            elif one.key_size < 0:
                flags[slot + index] = keyless


@kernel
def _take_out(row: Longs, flags: Flags, out: int, nothing: int, nothing_size: int, nothing_end: int) -> int:
    """Writes the batch with `nothing` in place of each message whose flag is not set; returns its size."""
    at = row[PAYLOAD]
    to = out
    for index in range(row[COUNT]):
        head = at + 4
        stop = head + load_u32_be(at)
        end = stop + get_single(head, stop, 0).size
        if flags[index] != 0:
            to = copy(to, at, end - at, row[PAYLOAD_END])
        else:
            to = copy(to, nothing, nothing_size, nothing_end)
        at = end
    return to - out


class OpenedEntries(NamedTuple):
    facts: scan.Facts
    # 1 for entries that kernels can read: not encrypted, no chunk of a message, not malformed.
    plain: Flags
    # How many slots each entry has, and its first slot, counted from 0.
    slots: Longs
    starts: Longs
    held: list[Any]

    @property
    def total(self) -> int:
        return int(self.slots.sum())

    @property
    def messages(self) -> int:
        return self.total - int(np.count_nonzero((self.facts[:, COUNT] == 0) & (self.plain == 1)))


def groups(entries: Sequence[Buffer], bytes_max: int = UNPACKED_BYTES_MAX) -> list[tuple[int, int]]:
    """Ranges (i, j) of entries to be opened together: each unpacks to no more than that, or is a single entry."""
    facts, _ = _scanned(entries)
    is_unpacked = (facts[:, scan.COMPRESSION] != 0) & (facts[:, COUNT] >= 0)
    ends = np.cumsum(np.where(is_unpacked, np.minimum(facts[:, scan.UNPACKED], LOOK_INTO_BYTES_MAX), 0))
    found = []
    first = before = 0
    while first < len(entries):
        stop = max(first + 1, int(np.searchsorted(ends, before + bytes_max, "right")))
        found.append((first, stop))
        first, before = stop, int(ends[stop - 1])
    return found


def _scanned(entries: Sequence[Buffer]) -> tuple[scan.Facts, list[Any]]:
    held: list[Any] = [pa.py_buffer(entry) for entry in entries]
    addresses = np.array([one.address for one in held], np.int64)
    sizes = np.array([one.size for one in held], np.int64)
    facts = np.empty((len(entries), scan.WIDTH), np.int64)
    scan.scan_entries(addresses, sizes, facts)
    return facts, held


def open_entries(entries: Sequence[Buffer]) -> OpenedEntries:
    """Reads and unpacks the entries. Raises UnsupportedCompression if the codec of a batch is not installed."""
    facts, held = _scanned(entries)
    plain = facts[:, FLAGS] & (BAD | ENCRYPTED | CHUNK) == 0
    for place in np.flatnonzero(plain & (facts[:, scan.COMPRESSION] != 0)).tolist():
        row = facts[place]
        if row[COUNT] < 0:
            # Only whether the payload is empty matters, and the metadata says that.
            row[PAYLOAD_END] = row[PAYLOAD] + row[scan.UNPACKED]
            continue
        packed = memoryview(held[place])[int(row[PAYLOAD]) - held[place].address :]
        kind, unpacked = int(row[scan.COMPRESSION]), int(row[scan.UNPACKED])
        if kind not in CODECS or row[COUNT] > LOOK_INTO_MESSAGES_MAX:
            # A codec number unknown to Protobuf, which then omits it; or more messages than any client sends in a
            # batch.
            row[FLAGS] |= BAD
            continue
        try:
            memory = pa.py_buffer(decompress(kind, packed, unpacked, size_max=look_into_max(len(packed))))
        except MalformedFrame:
            row[FLAGS] |= BAD
            continue
        held.append(memory)
        row[PAYLOAD], row[PAYLOAD_END] = memory.address, memory.address + memory.size
    readable = facts[plain]
    _check_batches(readable)
    facts[plain] = readable
    plain &= facts[:, FLAGS] & BAD == 0
    # An empty batch has one empty slot.
    slots = np.where(plain & (facts[:, COUNT] > 0), facts[:, COUNT], 1)
    starts = np.cumsum(slots) - slots
    return OpenedEntries(facts, plain.astype(np.uint8), slots, starts, held)


def mark_keyless(opened: OpenedEntries, flags: Flags, *, is_kept: bool) -> None:
    _mark(opened.facts, opened.plain, opened.starts, flags, int(is_kept))


def without(opened: OpenedEntries, place: int, flags: Flags, nothing: bytes) -> bytes:
    """The unpacked batch of that entry with `nothing` in place of each message whose flag is not set."""
    row = opened.facts[place]
    room = int(row[PAYLOAD_END] - row[PAYLOAD]) + len(nothing) * len(flags) + SLACK
    out = np.empty(room, np.uint8)
    small = pa.py_buffer(nothing)
    size = _take_out(row, flags, out.ctypes.data, small.address, small.size, small.address + small.size)
    return out[:size].tobytes()


class KeyTable:
    def __init__(self, secret: bytes, slots_max: int) -> None:
        self._secret = np.frombuffer(secret[:16], np.int64).copy()
        self._slots_max = max(_SLOTS_MIN, slots_max)
        self.span = np.array([0, RANGE_END], np.int64)
        self._begin()

    def _begin(self) -> None:
        self._keys = np.empty((_SLOTS_MIN, 2), np.int64)
        self._values = np.full(_SLOTS_MIN, _EMPTY, np.int64)
        self._used = 0

    def note(self, opened: OpenedEntries, first_slot: int) -> None:
        """Remembers all messages of the plain entries; slots are counted on from `first_slot`."""
        self._make_room(opened.total)
        self._used += _note(
            opened.facts,
            opened.plain,
            opened.starts + first_slot,
            self._secret,
            self.span,
            self._keys,
            self._values,
        )

    def put(self, key: bytes, slot: int, *, is_deleted: bool) -> None:
        self._make_room(1)
        held = pa.py_buffer(key)
        value = _DELETED if is_deleted else slot
        self._used += _put_one(
            self._keys, self._values, self._secret, self.span, held.address, held.size, value
        )

    def _make_room(self, count: int) -> None:
        """Makes room for that many more keys, if need be by dropping the upper half of the range."""
        while (self._used + count) * 4 > len(self._values) * 3:
            slots = len(self._values)
            if slots < self._slots_max or count * 4 > slots * 3:
                slots *= 2
            else:
                self.span[1] = (self.span[0] + self.span[1]) // 2
            keys, values = np.empty((slots, 2), np.int64), np.full(slots, _EMPTY, np.int64)
            self._used = _rebuild(self._keys, self._values, keys, values, self.span[1])
            self._keys, self._values = keys, values

    def end_pass(self) -> tuple[Longs, bool]:
        """The slots of the latest messages in the present range, sorted; and whether that was the last range."""
        latest = np.sort(self._values[self._values >= 0])
        low, high = self.span.tolist()
        self.span[:] = high, min(RANGE_END, high + high - low)
        self._begin()
        return latest, high == RANGE_END
