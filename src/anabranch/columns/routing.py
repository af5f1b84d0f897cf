"""Data plane. From hashes to segments and entry buckets, for whole columns: which one each row goes to, and the rows of
each together.

    router = Router([0x0000, 0x8000])            # starts of the active segments' ranges, sorted; high 16 bits decide
    index = router.route(hashes)                 # int32: the place of each row's segment in that list
    order, bounds = partition(index, len(router))   # rows of segment i: order[bounds[i]:bounds[i + 1]], oldest first

Where segments have several entry buckets, each bucket has a place of its own: those of the first segment come first.

A router chooses for columns the segments that the client chooses for single messages, with keys or without; make one
for each layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from anabranch.columns.arrow import Column, ColumnView, strings
from anabranch.columns.hashing import Hashes
from anabranch.columns.jit import kernel
from anabranch.columns.memory import is_set

Rows = npt.NDArray[np.int32]
Bounds = npt.NDArray[np.int64]

_SLOTS = 1 << 16
# Spreads rows without a key over a segment's hashes; odd, so that it reaches each of them.
_STRIDE = 40503


class Router:
    """The active segments of one layout, as a table from 16 bits to the segment's place, and for those with several
    buckets another one from the low 16 bits to the bucket's number."""

    def __init__(
        self,
        starts: Sequence[int],
        *,
        high: bool = True,
        splits: Sequence[tuple[int, ...]] = (),
        keyless_low: int = 0,
    ) -> None:
        """`starts` is the first hash of each segment, rising from 0. `high` says which half of the hash decides.

        `splits` are the starts of each segment's buckets but its first. `keyless_low` is the low half of the hashes of
        rows without a key.
        """
        if not starts or starts[0] != 0 or list(starts) != sorted({*starts}) or starts[-1] >= _SLOTS:
            raise ValueError(f"segments start at {list(starts)}: need rising 16-bit numbers from 0")
        splits = splits or [()] * len(starts)
        if len(splits) != len(starts):
            raise ValueError(f"{len(splits)} lists of buckets for {len(starts)} segments")
        self._starts = np.array([*starts, _SLOTS], np.int64)
        self._table = np.repeat(np.arange(len(starts), dtype=np.int32), np.diff(self._starts))
        self._shift = self._table_shift = 16 if high else 0
        self._keyless_low = keyless_low
        self._segments = len(starts)
        self._modulo = False
        counts = [len(one) + 1 for one in splits]
        self._places = sum(counts)
        self._buckets: _Buckets | None = None
        if self._places > self._segments == 1:
            # The bucket is the place.
            self._table, self._table_shift = _numbers(splits[0]).astype(np.int32), 0
        elif self._places > self._segments:
            # Equal splits share a row.
            distinct = {one: row for row, one in enumerate(dict.fromkeys(splits))}
            self._buckets = _Buckets(
                np.cumsum([0, *counts[:-1]]).astype(np.int32),
                np.array([distinct[one] for one in splits], np.int32),
                np.stack([_numbers(one) for one in distinct]),
            )

    @classmethod
    def classic(cls, partitions: int, keyless_low: int = 0, *, high: bool = True) -> Router:
        """Partitions of a classic topic, chosen by the remainder of the hash without its highest bit."""
        router = cls([0], high=high, keyless_low=keyless_low)
        router._segments = router._places = partitions
        router._modulo = True
        return router

    def __len__(self) -> int:
        """The number of places."""
        return self._places

    def route(self, hashes: Hashes) -> Rows:
        """The place of the segment, or of its bucket, that each hash belongs to."""
        if self._places == 1:
            return np.zeros(len(hashes), np.int32)
        index = np.empty(len(hashes), np.int32)
        if self._modulo:
            _by_remainder(hashes, self._places, index)
        elif self._buckets is None:
            _by_table(hashes, self._table_shift, self._table, index)
        else:
            _by_tables(hashes, self._shift, self._table, *self._buckets, index)
        return index

    def keyless(self, rows: int, turn: int, *, run: int = 1) -> Hashes:
        """Hashes for rows without a key: segments take turns from `turn` on, each for `run` consecutive rows.

        Longer runs make fuller batches. A row keeps its hash, so it goes to a child of a segment that refused it.
        """
        turns = turn + np.arange(rows, dtype=np.int64) // run
        if self._modulo and self._segments > 1:
            return (turns & 0x7FFFFFFF).astype(np.uint32)
        which = turns % self._segments
        starts, ends = self._starts[which], self._starts[which + 1]
        if not self._shift:
            return (starts + self._keyless_low % (ends - starts)).astype(np.uint32)
        spread = starts + turns // self._segments * _STRIDE % (ends - starts)
        return (spread << 16 | self._keyless_low).astype(np.uint32)

    def fill_keyless(self, hashes: Hashes, keys: Column, turn: int, *, run: int = 1) -> int:
        """Gives rows with a null key the hashes of `keyless`. Returns the number of such rows."""
        held = strings(keys, "key")
        missing = held.array.null_count
        if missing:
            if held.view.rows:
                _fill(hashes, held.view, self.keyless(missing, turn, run=run))
            else:
                hashes[:] = self.keyless(missing, turn, run=run)
        return int(missing)


class _Buckets(NamedTuple):
    """By segment: the place of its first bucket, and its row of `numbers`, which has the bucket of each low half."""

    base: Rows
    row: Rows
    numbers: npt.NDArray[np.uint16]


def _numbers(splits: tuple[int, ...]) -> npt.NDArray[np.uint16]:
    ends: Bounds = np.array([*splits, _SLOTS], np.int64)
    starts: Bounds = np.array([0, *splits], np.int64)
    return np.repeat(np.arange(len(ends)).astype(np.uint16), ends - starts)


class Groups(NamedTuple):
    """Rows group by group, each group's in their order: those of group i are `order[bounds[i]:bounds[i + 1]]`."""

    order: Rows
    bounds: Bounds


def partition(index: Rows, groups: int) -> Groups:
    """Puts the rows of each group together. Every number in `index` must be below `groups`."""
    if len(index) and not 0 <= index.min() <= index.max() < groups:
        raise ValueError(f"groups from {index.min()} to {index.max()}, there are {groups}")
    order = np.empty(len(index), np.int32)
    bounds = np.zeros(groups + 1, np.int64)
    if groups == 1:
        order[:] = np.arange(len(index), dtype=np.int32)
        bounds[1] = len(index)
    else:
        _partition(index, order, bounds, np.empty(groups, np.int64))
    return Groups(order, bounds)


def bucket_span(hashes: Hashes) -> tuple[int, int]:
    """Least and greatest entry-bucket hash (low 16 bits) of a batch's rows, of which there is one at least:
    `entry_hash_min` and `entry_hash_max`."""
    # One pass in a kernel: numpy's three take a tenth of all that a row of a batch costs.
    span = _span(hashes)
    return span >> 16, span & 0xFFFF


@kernel
def _span(hashes: Hashes) -> int:
    least, greatest = 0xFFFF, 0
    for row in range(len(hashes)):
        low = int(hashes[row]) & 0xFFFF
        least = min(least, low)
        greatest = max(greatest, low)
    return least << 16 | greatest


@kernel
def _by_table(hashes: Hashes, shift: int, table: Rows, index: Rows) -> None:
    for row in range(len(hashes)):
        index[row] = table[hashes[row] >> np.uint32(shift) & np.uint32(0xFFFF)]


@kernel
def _by_tables(
    hashes: Hashes,
    shift: int,
    table: Rows,
    base: Rows,
    row_of: Rows,
    numbers: npt.NDArray[np.uint16],
    index: Rows,
) -> None:
    for row in range(len(hashes)):
        segment = table[hashes[row] >> np.uint32(shift) & np.uint32(0xFFFF)]
        index[row] = base[segment] + np.int32(numbers[row_of[segment], hashes[row] & np.uint32(0xFFFF)])


@kernel
def _by_remainder(hashes: Hashes, count: int, index: Rows) -> None:
    divisor = np.uint32(count)
    for row in range(len(hashes)):
        index[row] = np.uint32(hashes[row] & np.uint32(0x7FFFFFFF)) % divisor


@kernel
def _partition(index: Rows, order: Rows, bounds: Bounds, next_place: Bounds) -> None:
    groups = len(bounds) - 1
    for row in range(len(index)):
        bounds[index[row] + 1] += 1
    total = 0
    for group in range(groups):
        next_place[group] = total
        total += bounds[group + 1]
        bounds[group + 1] = total
    for row in range(len(index)):
        group = index[row]
        order[next_place[group]] = row
        next_place[group] += 1


@kernel
def _fill(hashes: Hashes, view: ColumnView, spread: Hashes) -> None:
    used = 0
    for row in range(view.rows):
        if not is_set(view.valid, view.shift + row):
            hashes[row] = spread[used]
            used += 1
