"""The byte format of the log: records, commits, checkpoint parts, footers. Pure: bytes in, values out. Data plane.

    file     = file header, commit …, footer                              docs/decisions/0003-log-format.md
    commit   = header, run table, records grouped by ledger               one write, one sync
    record   = header, bytes                                              the same in log files and rewritten files
    footer   = directory (rows sorted by ledger), offset and length tables, trailer

All integers are little endian. Every part carries a CRC32C; a record also holds its ledger and entry id, so that a
reader at a wrong place notices.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from anabranch.storage.port import Buffer

if sys.byteorder != "little":
    raise ImportError(
        "footers are read in place: their integers are the machine's, and must be little endian"
    )

# -- records

# crc | length of the bytes, ledger, entry or state number, messages, kind. The crc covers all that follows it.
RECORD_CRC = struct.Struct("<I")
RECORD_REST = struct.Struct("<IQQII")
RECORD = struct.Struct("<IIQQII")
RECORD_BYTES = RECORD.size
MESSAGES_AT = 24

ENTRY, DELTA, SNAPSHOT, CHECKPOINT = 1, 2, 3, 4


def encode_record(ledger: int, number: int, messages: int, kind: int, data: Buffer) -> bytes:
    rest = RECORD_REST.pack(len(data), ledger, number, messages, kind)
    return b"".join((RECORD_CRC.pack(crc32c(data, crc32c(rest))), rest, data))


class LogRecord(NamedTuple):
    at: int
    size: int
    ledger: int
    number: int
    messages: int
    kind: int
    is_good: bool


def read_record(view: memoryview, at: int, end: int) -> LogRecord | None:
    """The record at `at`, good or not; None if no record can lie there (so nothing behind it can be found either)."""
    if at + RECORD_BYTES > end:
        return None
    crc, length, ledger, number, messages, kind = RECORD.unpack_from(view, at)
    stop = at + RECORD_BYTES + length
    if stop > end or not ENTRY <= kind <= CHECKPOINT:
        return None
    is_good = crc32c(view[at + 4 : stop]) == crc
    return LogRecord(at, stop - at, ledger, number, messages, kind, is_good)


# -- files and commits

FILE = struct.Struct("<8sQII32sI4x")
FILE_BYTES = FILE.size
FILE_MAGIC = b"anbrwal1"
REWRITTEN_MAGIC = b"anbrled1"

# Places within a file are 32 bits in every index: no commit reaches beyond.
FILE_BYTES_MAX = (1 << 32) - 1

COMMIT = struct.Struct("<8sQIIQQIIQI4x")
COMMIT_BYTES = COMMIT.size
COMMIT_MAGIC = b"\xa7anbrcm1"
_COMMIT_CRC_AT = COMMIT_BYTES - 8

RUN = struct.Struct("<QQII")
RUN_BYTES = RUN.size

# Flags of a commit. The second says that every ledger has had its checkpoint part, from `checkpoint_start` on.
IS_CHECKPOINT_END = 1
IS_IDLE = 2


class CommitHeader(NamedTuple):
    """`confirmed_file`, `confirmed_end`: the log was synced up to there before this commit was written. Bad bytes below
    are damage."""

    number: int
    flags: int
    length: int
    runs: int
    confirmed_file: int
    confirmed_end: int

    @property
    def total(self) -> int:
        return COMMIT_BYTES + RUN_BYTES * self.runs + self.length


class RunRow(NamedTuple):
    ledger: int
    first: int
    entries: int
    length: int


def encode_file_header(magic: bytes, nonce: int, file: int) -> bytes:
    head = FILE.pack(magic, nonce, file, 1, b"", 0)
    return FILE.pack(magic, nonce, file, 1, b"", crc32c(head[:-8]))


def decode_file_header(data: Buffer) -> tuple[bytes, int, int] | None:
    """(magic, nonce, file number), or None if it is not a header of ours."""
    if len(data) < FILE_BYTES:
        return None
    magic, nonce, file, version, _, crc = FILE.unpack_from(data)
    if (
        magic not in (FILE_MAGIC, REWRITTEN_MAGIC)
        or version != 1
        or crc32c(bytes(data[: FILE_BYTES - 8])) != crc
    ):
        return None
    return magic, nonce, file


def encode_commit_header(
    nonce: int, file: int, header: CommitHeader, rows: Iterable[tuple[int, int, int, int]]
) -> bytes:
    table = b"".join([RUN.pack(*row) for row in rows])
    fields = (COMMIT_MAGIC, nonce, file, header.flags, header.number, header.length)
    fields += (header.confirmed_file, header.runs, header.confirmed_end)  # type: ignore[assignment]
    crc = crc32c(table, crc32c(COMMIT.pack(*fields, 0)[:_COMMIT_CRC_AT]))
    return COMMIT.pack(*fields, crc) + table


def decode_commit_header(view: memoryview, at: int, nonce: int, file: int) -> CommitHeader | None:
    """The commit header at `at`, or None if none lies there."""
    if at + COMMIT_BYTES > len(view):
        return None
    magic, has, of, flags, number, length, seen_file, runs, seen_end, crc = COMMIT.unpack_from(view, at)
    if magic != COMMIT_MAGIC or has != nonce or of != file:
        return None
    table_at = at + COMMIT_BYTES
    table_end = table_at + RUN_BYTES * runs
    if table_end > len(view):
        return None
    if crc32c(view[table_at:table_end], crc32c(view[at : at + _COMMIT_CRC_AT])) != crc:
        return None
    return CommitHeader(number, flags, length, runs, seen_file, seen_end)


def decode_run_table(view: memoryview, at: int, runs: int) -> list[RunRow]:
    start = at + COMMIT_BYTES
    return [RunRow(*row) for row in RUN.iter_unpack(view[start : start + RUN_BYTES * runs])]


def commit_pattern(nonce: int) -> bytes:
    """The first bytes of every commit header of this log, for finding the next one after a damaged one."""
    return COMMIT_MAGIC + nonce.to_bytes(8, "little")


# -- checkpoint parts: one ledger's ends and state in full

_PART = struct.Struct("<QQQIII")
_LENGTH = struct.Struct("<I")
_MESSAGES = struct.Struct("<Q")


class CheckpointPart(NamedTuple):
    entries_end: int
    state_end: int
    size: int
    namespace: str
    snapshot: bytes | None
    deltas: tuple[bytes, ...]
    # In all entries; -1 if not known. Stored last: releases that did not count messages ignore it, and wrote none.
    messages: int = -1


def encode_part(part: CheckpointPart) -> bytes:
    namespace = part.namespace.encode()
    has_snapshot = part.snapshot is not None
    states = [part.snapshot, *part.deltas] if part.snapshot is not None else list(part.deltas)
    fixed = _PART.pack(part.entries_end, part.state_end, part.size, len(namespace), has_snapshot, len(states))
    lengths = b"".join([_LENGTH.pack(len(one)) for one in states])
    messages = b"" if part.messages < 0 else _MESSAGES.pack(part.messages)
    return b"".join((fixed, namespace, lengths, *states, messages))


def decode_part(data: memoryview) -> CheckpointPart:
    entries_end, state_end, size, namespace_len, has_snapshot, count = _PART.unpack_from(data)
    at = _PART.size + namespace_len
    namespace = str(data[_PART.size : at], "utf-8")
    lengths = [one for (one,) in _LENGTH.iter_unpack(data[at : at + 4 * count])]
    at += 4 * count
    states = []
    for length in lengths:
        states.append(bytes(data[at : at + length]))
        at += length
    snapshot = states.pop(0) if has_snapshot else None
    messages = _MESSAGES.unpack_from(data, at)[0] if at + _MESSAGES.size <= len(data) else -1
    return CheckpointPart(entries_end, state_end, size, namespace, snapshot, tuple(states), messages)


# -- footers

TRAILER = struct.Struct("<8sQIIQQQQII")
TRAILER_BYTES = TRAILER.size
TRAILER_MAGIC = b"anbrend1"

# Columns of a directory row, each a u64: ledger, first entry, count, bytes, index of its tables (in u32s).
COLUMNS = 5
LEDGER, FIRST, COUNT, BYTES, TABLE = range(COLUMNS)


class Trailer(NamedTuple):
    nonce: int
    file: int
    rows: int
    directory_at: int
    tables_at: int
    # Where the records end, and where the checkpoint in this file begins (0: it has none).
    data_end: int
    checkpoint_start: int
    # The CRC of the directory. The tables have none: a record read from a wrong place fails its own check.
    crc: int


class FooterRow(NamedTuple):
    """Consecutive entries of one ledger. A ledger has several rows where damage left a gap."""

    ledger: int
    first: int
    offsets: Sequence[int]
    lengths: Sequence[int]


def footer_size(rows: Sequence[FooterRow]) -> int:
    return 8 * COLUMNS * len(rows) + 8 * sum(len(row.offsets) for row in rows) + TRAILER_BYTES


def encode_footer(
    nonce: int, file: int, rows: Iterable[FooterRow], data_end: int, checkpoint_start: int, at: int
) -> bytes:
    """Directory, tables and trailer, to be written at `at` (a multiple of 8) so that they end the file."""
    if at % 8:
        raise ValueError(f"a footer at byte {at} could not be read in place")
    directory = array("Q")
    tables: list[bytes] = []
    index = 0
    for row in sorted(rows, key=lambda r: (r.ledger, r.first)):
        count = len(row.offsets)
        directory.extend((row.ledger, row.first, count, sum(row.lengths), index))
        tables.append(array("I", row.offsets).tobytes())
        tables.append(array("I", row.lengths).tobytes())
        index += 2 * count
    head = directory.tobytes()
    body = b"".join([head, *tables])
    crc = crc32c(head)
    fields = (
        TRAILER_MAGIC,
        nonce,
        file,
        len(directory) // COLUMNS,
        at,
        at + len(head),
        data_end,
        checkpoint_start,
        crc,
    )
    trailer = TRAILER.pack(*fields, 0)
    return body + TRAILER.pack(*fields, crc32c(trailer[:-4]))


def decode_trailer(data: Buffer) -> Trailer | None:
    """The trailer in the last TRAILER_BYTES of a file, or None if the file was never finished."""
    if len(data) != TRAILER_BYTES:
        return None
    magic, nonce, file, rows, directory_at, tables_at, data_end, start, crc, own = TRAILER.unpack(data)
    if magic != TRAILER_MAGIC or crc32c(bytes(data[:-4])) != own:
        return None
    return Trailer(nonce, file, rows, directory_at, tables_at, data_end, start, crc)


class Footer:
    """A directory and its tables, read in place: from a mapped file or from memory."""

    def __init__(self, body: memoryview, rows: int) -> None:
        split = rows * COLUMNS * 8
        self.rows = rows
        self.directory = body[:split].cast("Q")
        self.tables = body[split:].cast("I")

    def rows_of(self, ledger: int) -> range:
        """Which rows of the directory are this ledger's."""
        start = self._bisect(ledger)
        stop = start
        while stop < self.rows and self.directory[stop * COLUMNS] == ledger:
            stop += 1
        return range(start, stop)

    def _bisect(self, ledger: int) -> int:
        low, high = 0, self.rows
        while low < high:
            middle = (low + high) // 2
            if self.directory[middle * COLUMNS] < ledger:
                low = middle + 1
            else:
                high = middle
        return low

    def row(self, index: int) -> tuple[int, int, int, int]:
        """(ledger, first entry, count, bytes) of a row."""
        ledger, first, count, size = self.directory[index * COLUMNS : index * COLUMNS + 4].tolist()
        return ledger, first, count, size

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        return (self.row(i) for i in range(self.rows))

    def places(self, index: int, start: int, stop: int) -> tuple[memoryview, memoryview]:
        """Offsets and lengths of entries [start, stop) of a row, counted from the row's first."""
        count, table = self.directory[index * COLUMNS + COUNT], self.directory[index * COLUMNS + TABLE]
        return self.tables[table + start : table + stop], self.tables[
            table + count + start : table + count + stop
        ]
