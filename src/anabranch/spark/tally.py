"""What a write consists of, in figures that are cheap to take and do not depend on the order of rows. Pure.

A write that is run again must bring the same rows, in whatever order and however they are divided among tasks. The
figures are sums over all rows: how many there are, and how many bytes their keys and values have and what those add up
to. Hashing each row would tell more, at 150 to 1,300 ns for rows of 20 to 1,000 bytes; the sums take 3 to 110 ns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from anabranch.client.write_records import Contents
from anabranch.spark.sink_columns import Columns


class Tally(NamedTuple):
    """Sums over rows."""

    rows: int = 0
    value_bytes: int = 0
    value_sum: int = 0
    key_bytes: int = 0
    key_sum: int = 0

    def plus(self, other: Tally) -> Tally:
        return Tally(*(one + another for one, another in zip(self, other, strict=True)))

    @property
    def contents(self) -> Contents:
        """For the record of a write."""
        return Contents(self.rows, "-".join(f"{figure:x}" for figure in self[1:]))


def tally_of(table: Any, columns: Columns) -> Tally:
    """Of an Arrow table whose values are encoded."""
    value = _sums(table[columns.value or "value"])
    key = (0, 0) if columns.key is None else _sums(table[columns.key])
    return Tally(table.num_rows, *value, *key)


def _sums(column: Any) -> tuple[int, int]:
    """How many bytes a column of binary or text has, and what they add up to. Nulls have none."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    size = total = 0
    for chunk in column.chunks:
        kind = chunk.type
        is_large = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
        whole = chunk
        if not (is_large or pa.types.is_binary(kind) or pa.types.is_string(kind)):
            whole, is_large = chunk.cast(pa.large_binary()), True
        if whole.null_count:
            whole = whole.drop_null()
        if not len(whole):
            continue
        _, offsets, data = whole.buffers()
        ends = np.frombuffer(offsets, np.int64 if is_large else np.int32)
        first, end = int(ends[whole.offset]), int(ends[whole.offset + len(whole)])
        if first < end:
            numbers = pa.Array.from_buffers(pa.uint8(), end - first, [None, data], offset=first)
            size += end - first
            total += pc.sum(numbers).as_py()
    return size, total
