"""Data plane. What the metadata of received entries says, for many entries at once: one row of facts for each.

Reads entries as brokers send them: `[0x0e02 broker metadata]? [0x0e01 crc]? [size] [MessageMetadata] [payload]`. The
columns of a row of facts are the constants below; addresses are absolute.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from anabranch.columns.jit import inline, kernel, part
from anabranch.columns.memory import get_varint, load_u8, load_u32_be
from anabranch.columns.protobuf import get_length, get_pair, get_tag, is_utf8, skip

Facts = npt.NDArray[np.int64]

PAYLOAD: Final = 0
PAYLOAD_END: Final = 1
COUNT: Final = 2  # Messages in the batch; -1 if the payload is one message and no batch.
SEQUENCE: Final = 3
PUBLISH: Final = 4
EVENT: Final = 5
KEY: Final = 6
KEY_SIZE: Final = 7  # -1 if there is none.
FLAGS: Final = 8
COMPRESSION: Final = 9
UNPACKED: Final = 10
CRC: Final = 11  # -1 if the entry has no checksum.
SUMMED: Final = 12  # Where the bytes that the checksum covers begin.
META: Final = 13
META_END: Final = 14
PAIRS: Final = 15
PAIR_BYTES: Final = 16
VERSION: Final = 17  # The version of the schema; -1 if none is named.
HASH_MIN: Final = 18  # The range of bucket hashes that the entry is stamped with; -1 if there is none.
HASH_MAX: Final = 19
PRODUCER: Final = 20  # Its producer's name.
PRODUCER_SIZE: Final = 21
WIDTH: Final = 22

# Flags. Those of a message are used for singles too.
BAD: Final = 1
ENCRYPTED: Final = 2
CHUNK: Final = 4
HAS_EVENT: Final = 8
BASE64: Final = 16
NULL_VALUE: Final = 32
NULL_KEY: Final = 64
COMPACTED: Final = 128


@kernel
def scan_entries(addresses: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], facts: Facts) -> None:
    """Fills in the facts of each entry; one that cannot be read gets the flag `BAD`."""
    for entry in range(len(addresses)):
        row = facts[entry]
        for fact in range(WIDTH):  # Assigning whole slices adds checks that take a second to compile.
            row[fact] = 0
        row[COUNT] = row[KEY_SIZE] = row[CRC] = row[VERSION] = row[HASH_MIN] = row[HASH_MAX] = -1
        at = addresses[entry]
        end = at + sizes[entry]
        if end - at >= 6 and load_u8(at) == 0x0E and load_u8(at + 1) == 2:
            at += 6 + load_u32_be(at + 2)
        if end - at >= 6 and load_u8(at) == 0x0E and load_u8(at + 1) == 1:
            row[CRC] = load_u32_be(at + 2)
            at += 6
        row[SUMMED] = at
        if end - at < 4 or load_u32_be(at) > end - at - 4:
            row[FLAGS] = BAD
            continue
        row[META] = at + 4
        row[META_END] = row[PAYLOAD] = at + 4 + load_u32_be(at)
        row[PAYLOAD_END] = end
        if not _read_metadata(row):
            row[FLAGS] |= BAD


@inline
def int32_of(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value > 0x7FFFFFFF else value


@inline
def _read_metadata(row: npt.NDArray[np.int64]) -> bool:
    at = row[META]
    end = row[META_END]
    flags = 0
    while at < end and at != 0:
        tag, at = get_tag(at, end)
        kind = tag & 7
        number = tag >> 3
        if kind == 0 and at != 0:
            value, at = get_varint(at, end)
            if number == 2:
                row[SEQUENCE] = value
            elif number == 3:
                row[PUBLISH] = value
            elif number == 8:
                row[COMPRESSION] = int32_of(value)
            elif number == 9:
                row[UNPACKED] = value & 0xFFFFFFFF
            elif number == 11:
                row[COUNT] = max(0, int32_of(value))
            elif number == 12:
                row[EVENT] = value
                flags |= HAS_EVENT
            elif number == 33:
                row[HASH_MIN] = value & 0xFFFFFFFF
            elif number == 34:
                row[HASH_MAX] = value & 0xFFFFFFFF
            else:
                if number == 27:
                    value = max(0, int32_of(value) - 1)
                bit = BASE64 if number == 17 else NULL_VALUE if number == 25 else 0
                bit = CHUNK if number == 27 else NULL_KEY if number == 30 else bit
                flags = flags | bit if value != 0 else flags & ~bit
        elif kind == 2 and at != 0:
            size, at = get_length(at, end)
            if number == 6:
                row[KEY] = at
                row[KEY_SIZE] = size
            elif number == 1:
                row[PRODUCER] = at
                row[PRODUCER_SIZE] = size
            elif number == 13:
                flags |= ENCRYPTED
            elif number == 16 and size == 8:
                row[VERSION] = load_u32_be(at) << 32 | load_u32_be(at + 4)
            elif number == 4:
                row[PAIRS] += 1
                row[PAIR_BYTES] += size
                if not is_pair(at, at + size):
                    at = size = 0
            at += size
        elif at != 0:
            at = skip(at, end, tag)
    row[FLAGS] = flags
    return bool(at != 0)


@part
def is_pair(at: int, end: int) -> bool:
    """Whether the bytes can be read as a pair of texts."""
    name, name_size, item, item_size, is_good = get_pair(at, end)
    return is_good and is_utf8(name, name_size) and is_utf8(item, item_size)
