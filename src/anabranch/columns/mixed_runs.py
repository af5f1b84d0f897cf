"""Data plane. Finds the entries of a run in bytes that have other records of the ledger among them, as objects do.

    runs, used, following, is_bad = entries_in(memory, ledger, first, last, following)

The result's runs are as `Walk` wants them, with places in memory: the walk checks each record. Here only what leads
from one record to the next is looked at. Every entry from `first` to `last` is found, in order, or the place of the
record that should have been the next one is told: a damaged one costs an error and never an entry.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from anabranch.columns.jit import kernel
from anabranch.columns.memory import load_i64, load_u32
from anabranch.columns.records import END, FILE, FIRST, LEDGER, OFFSET, RUN_WIDTH, STOP, Longs

_HEADER: Final = 32
_ENTRY: Final = 1
# The kinds of records are the numbers from `_ENTRY` to this one.
_KIND_MAX: Final = 4
# Where no entry of the run was found yet.
NOT_FOUND: Final = -1


@kernel
def _find_entries(
    memory: int, size: int, ledger: int, first: int, last: int, following: int, runs: Longs
) -> tuple[int, int, int, int]:
    """Number of runs found, bytes used, the entry that follows, and whether the next record is bad."""
    count = at = bad = 0
    behind = -1
    while following <= last and size - at >= _HEADER:
        here = memory + at
        stop = at + _HEADER + load_u32(here + 4)
        is_ours = load_i64(here + 8) == ledger
        kind, number = load_u32(here + 28), load_i64(here + 16)
        if following < 0:
            # Before the first entry, damaged records are stepped over: they may be why the run begins here.
            if is_ours and kind == _ENTRY and number == first:
                following = first
            elif is_ours and kind == _ENTRY and number > first:
                bad = 1
                break
        elif not is_ours or kind < _ENTRY or kind > _KIND_MAX or (kind == _ENTRY and number != following):
            bad = 1
            break
        if stop > size:
            break
        if following >= 0 and kind == _ENTRY:
            if behind != at:
                row = runs[count]
                row[FILE], row[LEDGER], row[FIRST], row[OFFSET] = 0, ledger, number, at
                count += 1
            following = number + 1
            runs[count - 1, END], runs[count - 1, STOP] = following, stop
            behind = stop
        at = stop
    return count, at, following, bad


def entries_in(
    memory: memoryview, ledger: int, first: int, last: int, following: int = NOT_FOUND
) -> tuple[Longs, int, int, bool]:
    """Runs of whole records, with their places in `memory`; how many bytes were looked at, to a record that is not
    whole or bad; the entry that follows (NOT_FOUND before the first), which is `last + 1` at the end; and whether the
    next record is not what has to follow."""
    held = pa.py_buffer(memory)
    # A run that is not the first has another record before it.
    runs = np.empty((len(memory) // (2 * _HEADER) + 1, RUN_WIDTH), np.int64)
    count, used, following, bad = _find_entries(
        held.address, len(memory), ledger, first, last, following, runs
    )
    return runs[:count], used, following, bool(bad)
