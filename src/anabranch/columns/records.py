"""Data plane. Records of the log where they lie in memory: walks them, checks each, and decodes their entries.

    walk = Walk(runs)                                     # stretches of files with consecutive records
    for file, start, stop in walk.segments(len(memory), gap_max):
        …                                                 # read these bytes into memory, one behind the other
    located, is_bad = walk.records(memory)
    for i, j in located.cut(len(located), bytes_max, rows_max):
        located.decode(pool, i, j).batch                  # as `decode` gives it

A record holds its ledger, its number, its length and a CRC32C over all of it (docs/decisions/0003-log-format.md). The
walk trusts none of these before checking them, and stops at the first record that does not match its run. The checksum
of the entry itself is not verified: the record's covers the same bytes, and the broker verified the entry before.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c
from llvmlite import binding, ir
from numba.core import cgutils, config, types
from numba.extending import intrinsic

from anabranch.columns import scan
from anabranch.columns.bucket_rows import entries_met
from anabranch.columns.decode import (
    BYTES_MAX,
    Decoded,
    OpenedMessages,
    decode_opened,
    leave_out,
    odd_entries,
    open_payload,
)
from anabranch.columns.jit import inline, kernel
from anabranch.columns.memory import load_i64, load_u8, load_u32
from anabranch.columns.pool import Pool
from anabranch.errors import AnabranchError
from anabranch.model.wanted import Wanted
from anabranch.wire.sizes import UNPACKED_BYTES_MAX

Longs = npt.NDArray[np.int64]

# Columns of a run: its file, its ledger, its first entry, one past its last, and its bytes in the file.
FILE: Final = 0
LEDGER: Final = 1
FIRST: Final = 2
END: Final = 3
OFFSET: Final = 4
STOP: Final = 5
RUN_WIDTH: Final = 6

# Columns of what a walk finds: where an entry lies in memory, its size, its names, and its record's place.
_ADDRESS: Final = 0
_SIZE: Final = 1
_IDS: Final = slice(2, 4)
_OFFSET: Final = 4
_RUN: Final = 5
_FOUND_WIDTH: Final = 6
_SEGMENTS_MAX: Final = 1024

_HEADER: Final = 32
_ENTRY: Final = 1
# The kernel sums shorter records itself, where a call would cost more; the library sums several lanes at once.
_LIBRARY_BYTES_MIN: Final = 2048

# How a walk ended.
MORE: Final = 0  # All runs of this file's bytes are done, or the next record is incomplete.
BAD: Final = 1


def _has_crc_instruction() -> bool:
    if config.CPU_NAME or config.CPU_FEATURES:
        return False  # Kernels are compiled for another machine than this one.
    if not binding.get_process_triple().startswith("x86_64"):
        return False
    return bool(binding.get_host_cpu_features().get("sse4.2"))


def _summing(name: str, bits: int) -> Any:
    word, value = ir.IntType(bits), ir.IntType(64 if bits == 64 else 32)

    def add(typing_context: Any, crc: Any, data: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            function = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(value, [value, word]), name
            )
            if bits == 64:
                return builder.call(function, args)
            small = builder.trunc(args[0], value), builder.trunc(args[1], word)
            return builder.zext(builder.call(function, small), ir.IntType(64))

        return types.int64(types.int64, types.int64), build

    return intrinsic(add)


if _has_crc_instruction():
    _add_64 = _summing("llvm.x86.sse42.crc32.64.64", 64)
    _add_8 = _summing("llvm.x86.sse42.crc32.32.8", 8)

    @inline
    def is_sum(at: int, size: int, expected: int) -> bool:
        """Whether the CRC32C of those bytes is as expected."""
        crc = 0xFFFFFFFF
        words_end = at + (size & ~7)
        end = at + size
        while at < words_end:
            crc = _add_64(crc, load_i64(at))
            at += 8
        while at < end:
            crc = _add_8(crc, load_u8(at))
            at += 1
        return crc ^ 0xFFFFFFFF == expected

    SUMMED_BELOW: Final = _LIBRARY_BYTES_MIN
else:

    @inline
    def is_sum(at: int, size: int, expected: int) -> bool:
        return False

    SUMMED_BELOW = 0  # type: ignore[misc]


@kernel
def _walk(
    runs: Longs, cursor: Longs, segments: Longs, memory: int, below: int, found: Longs
) -> tuple[int, int]:
    """Finds whole records from the cursor on; returns their number, and how the walk ended.

    `segments` are (file, first byte, byte behind), and lie in memory one behind the other.
    """
    run, entry, at = cursor[0], cursor[1], cursor[2]
    count = segment = 0
    status = MORE
    while run < len(runs) and count < len(found):
        row = runs[run]
        while segment < len(segments) and not (
            segments[segment, 0] == row[FILE] and segments[segment, 1] <= at < segments[segment, 2]
        ):
            memory += segments[segment, 2] - segments[segment, 1]
            segment += 1
        if segment == len(segments):
            break
        end = segments[segment, 2]
        here = memory + at - segments[segment, 1]
        room = min(end, row[STOP]) - at
        if room < _HEADER:
            if end >= row[STOP]:
                status = BAD
            break
        size = load_u32(here + 4)
        if (
            load_i64(here + 8) != row[LEDGER]
            or load_i64(here + 16) != entry
            or load_u32(here + 28) != _ENTRY
            or size > row[STOP] - at - _HEADER
        ):
            status = BAD
            break
        if size > room - _HEADER:
            break
        if size < below and not is_sum(here + 4, size + _HEADER - 4, load_u32(here)):
            status = BAD
            break
        behind = at + _HEADER + size
        if entry + 1 == row[END] and behind != row[STOP]:
            # The rest of the run would be a record that the plan does not have: plan and file disagree.
            status = BAD
            break
        one = found[count]
        one[0] = here + _HEADER
        one[1] = size
        one[2] = row[LEDGER]
        one[3] = entry
        one[4] = at
        one[5] = run
        count += 1
        entry += 1
        at = behind
        if entry == row[END]:
            run += 1
            if run < len(runs):
                entry, at = runs[run, FIRST], runs[run, OFFSET]
    cursor[0], cursor[1], cursor[2] = run, entry, at
    return count, status


@kernel
def _find_segments(runs: Longs, run: int, at: int, room: int, gap_max: int, segments: Longs) -> int:
    """Finds what to read next, from `at` in that run on; returns the number of segments. Runs that lie close together
    share one."""
    count = 0
    while run < len(runs) and room > 0:
        file, stop = runs[run, FILE], runs[run, STOP]
        start = at if count == 0 else runs[run, OFFSET]
        gap = start - segments[count - 1, 2] if count > 0 and segments[count - 1, 0] == file else -1
        if 0 <= gap <= gap_max:
            start = segments[count - 1, 2]
        elif count == len(segments):
            break
        else:
            segments[count, 0], segments[count, 1] = file, start
            count += 1
        taken = min(stop - start, room)
        segments[count - 1, 2] = start + taken
        room -= taken
        run += 1
    return count


def run_of(file: int, ledger: int, first: int, end: int, offset: int, stop: int) -> Longs:
    """One run, whose place is known."""
    return np.array([[file, ledger, first, end, offset, stop]], np.int64)


def runs_of(file: int, ledger: int, first: int, offsets: memoryview, lengths: memoryview) -> Longs:
    """The runs that consecutive records make, from the tables (of u32) of an index."""
    starts = np.frombuffer(offsets, np.uint32).astype(np.int64)
    stops = starts + np.frombuffer(lengths, np.uint32)
    cuts = np.flatnonzero(stops[:-1] != starts[1:]) + 1
    firsts = np.concatenate(([0], cuts))
    ends = np.concatenate((cuts, [len(starts)]))
    runs = np.empty((len(firsts), RUN_WIDTH), np.int64)
    runs[:, FILE] = file
    runs[:, LEDGER] = ledger
    runs[:, FIRST] = first + firsts
    runs[:, END] = first + ends
    runs[:, OFFSET] = starts[firsts]
    runs[:, STOP] = stops[ends - 1]
    return runs


class Walk:
    """A walk over runs, through parts of files that the caller reads into memory."""

    def __init__(self, runs: Longs, entries_max: int = 65_536) -> None:
        """`runs` has a row for each, with the columns above, in the order in which their entries are wanted."""
        self._runs = runs
        self._cursor = np.zeros(3, np.int64)
        if len(runs):
            self._cursor[1:] = runs[0, [FIRST, OFFSET]]
        self._found = np.empty((entries_max, _FOUND_WIDTH), np.int64)
        self._segments = np.empty((0, 3), np.int64)

    @property
    def is_done(self) -> bool:
        return bool(self._cursor[0] == len(self._runs))

    @property
    def at(self) -> tuple[int, int, int, int]:
        """Ledger and number of the next entry, its file, and the byte where its record begins. Not to be called at the
        end."""
        run, entry, offset = self._cursor.tolist()
        file, ledger = self._runs[run, [FILE, LEDGER]].tolist()
        return ledger, entry, file, offset

    @property
    def run_stop(self) -> int:
        """The byte behind the present run: no record of it goes further."""
        return int(self._runs[self._cursor[0], STOP])

    def segments(self, room: int, gap_max: int) -> list[tuple[int, int, int]]:
        """(file, first byte, byte behind) of what to read next into memory, one behind the other."""
        run, _, at = self._cursor.tolist()
        found = np.empty((_SEGMENTS_MAX, 3), np.int64)
        self._segments = found[: _find_segments(self._runs, run, at, room, gap_max, found)]
        return [(file, start, stop) for file, start, stop in self._segments.tolist()]

    def is_in_memory(self, size: int) -> None:
        """The runs' places are places in memory, of which that many bytes are used: nothing is to be read."""
        self._segments = np.array([[0, 0, size]], np.int64)

    def records(self, memory: memoryview, wanted: Wanted | None = None) -> tuple[Located, bool]:
        """The entries of the whole records in memory, which holds the segments, and whether the next record is bad. An
        incomplete record is neither found nor bad: ask for segments again.

        Long records without wanted messages are not summed. Whatever a damaged stamp says, it meets one of the ranges
        that make the ring: the reader of that range finds the damage.
        """
        held = pa.py_buffer(memory)
        count, status = _walk(
            self._runs, self._cursor, self._segments, held.address, SUMMED_BELOW, self._found
        )
        found = self._found[:count]
        located = Located(held, found.copy())
        summed = found[:, _SIZE] >= SUMMED_BELOW
        if wanted is not None:
            summed &= entries_met(located.facts, wanted)
        for place in np.flatnonzero(summed).tolist():
            address, size = found[place, :2].tolist()
            start = address - held.address - _HEADER
            expected = int.from_bytes(memory[start : start + 4], "little")
            if crc32c(memory[start + 4 : start + _HEADER + size]) != expected:
                # Back to that record: those behind it are not returned.
                self._cursor[:] = found[place, [_RUN, 3, _OFFSET]]
                return Located(held, found[:place].copy()), True
        return located, bool(status == BAD)


class Located:
    """Entries in memory, which must not change until they are decoded."""

    def __init__(self, held: Any, found: Longs, facts: scan.Facts | None = None) -> None:
        self._held = held
        self._found = found
        if facts is None:
            facts = np.empty((len(found), scan.WIDTH), np.int64)
            scan.scan_entries(found[:, _ADDRESS].copy(), found[:, _SIZE].copy(), facts)
        self.facts: scan.Facts = facts

    def __len__(self) -> int:
        return len(self._found)

    def position(self, place: int) -> tuple[int, int]:
        ledger, entry = self._found[place, _IDS].tolist()
        return ledger, entry

    @property
    def unaided(self) -> int:
        """How many entries come before the first one that needs a client: an encrypted one, or a chunk."""
        kinds = self.facts[:, scan.FLAGS] & (scan.ENCRYPTED | scan.CHUNK) != 0
        return int(np.argmax(kinds)) if kinds.any() else len(kinds)

    @property
    def whole(self) -> int:
        """How many entries come before the first chunk of a message."""
        pieces = self.facts[:, scan.FLAGS] & scan.CHUNK != 0
        return int(np.argmax(pieces)) if pieces.any() else len(pieces)

    def told(self, end: int) -> tuple[list[tuple[int, int]], list[int], list[int], list[int]]:
        """For the first `end` entries: their positions, numbers of messages and bytes, and publish times."""
        counts = self.facts[:end, scan.COUNT]
        return (
            [(ledger, entry) for ledger, entry in self._found[:end, _IDS].tolist()],
            np.where(counts < 0, 1, counts).tolist(),
            self._found[:end, _SIZE].tolist(),
            self.facts[:end, scan.PUBLISH].tolist(),
        )

    def why(self, place: int) -> str:
        return "is encrypted" if self.facts[place, scan.FLAGS] & scan.ENCRYPTED else "is a piece of a message"

    def cut(self, end: int, bytes_max: int, rows_max: int) -> list[tuple[int, int]]:
        """Groups (i, j) of the first `end` entries, each within the limits once unpacked, or one entry."""
        facts = self.facts[:end]
        packed = facts[:, scan.COMPRESSION] != 0
        sizes = np.where(
            packed, np.minimum(facts[:, scan.UNPACKED], UNPACKED_BYTES_MAX), self._found[:end, _SIZE]
        )
        # A batch may claim any count; its bytes bound it.
        counts = np.clip(facts[:, scan.COUNT], 1, np.maximum(sizes >> 2, 1))
        size_ends, row_ends = np.cumsum(sizes), np.cumsum(counts)
        groups = []
        i = size = rows = 0
        while i < end:
            j = min(
                int(np.searchsorted(size_ends, size + bytes_max, "right")),
                int(np.searchsorted(row_ends, rows + rows_max, "right")),
            )
            j = max(i + 1, j)
            groups.append((i, j))
            i, size, rows = j, int(size_ends[j - 1]), int(row_ends[j - 1])
        return groups

    def that_meet(self, wanted: Wanted) -> Located:
        """Only the entries that may have wanted messages, as far as their metadata tells."""
        chosen = entries_met(self.facts, wanted)
        return self if chosen.all() else Located(self._held, self._found[chosen], self.facts[chosen])

    def decode(
        self,
        pool: Pool,
        i: int,
        j: int,
        *,
        unpacked_bytes_max: int = UNPACKED_BYTES_MAX,
        wanted: Wanted | None = None,
    ) -> Decoded:
        """The messages of the entries from `i` to before `j`; the first that cannot be read raises."""
        found = self._found[i:j]
        if int(found[:, _SIZE].sum()) > BYTES_MAX:
            raise ValueError(f"more than {BYTES_MAX} bytes of entries at once: cut them smaller")
        none = np.zeros(0, np.int64)
        bounds = np.zeros(j - i + 1, np.int64)
        # Copied, because decoding changes the facts.
        opened = OpenedMessages(self.facts[i:j].copy(), found[:, _IDS].copy(), none, bounds, [], [self._held])
        for place in np.flatnonzero(odd_entries(opened.facts)).tolist():
            address, size = found[place, :2].tolist()
            data = self._held.slice(address - self._held.address, size)
            try:
                open_payload(opened, place, data, None, unpacked_bytes_max)
            except AnabranchError as error:
                leave_out(opened, place, error)
        return decode_opened(pool, opened, strict=True, wanted=wanted)
