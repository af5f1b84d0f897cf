"""Data plane. Selects the rows within the query's ranges: whole columns at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.columns.hashing import hash_keys
from anabranch.spark.plan.ranges import Ranges

_TIME = pa.timestamp("ms", "UTC")


def wanted(batch: Any, ranges: Ranges) -> Any:
    """The rows of a received batch (`anabranch.columns.SCHEMA`, perhaps with more columns) that are within the
    ranges."""
    if not ranges.filters_rows or not batch.num_rows:
        return batch
    masks = []
    if ranges.since_ms is not None:
        masks.append(pc.greater_equal(batch.column("publish_time"), _time(ranges.since_ms)))
    if ranges.until_ms is not None:
        masks.append(pc.less(batch.column("publish_time"), _time(ranges.until_ms)))
    if ranges.keys is not None:
        keys = batch.column("key")
        masks.append(pc.is_in(keys, value_set=pa.array(sorted(ranges.keys), keys.type), skip_nulls=True))
    if ranges.hashes is not None:
        masks.append(_is_in_hashes(batch.column("key"), ranges))
    mask = masks[0]
    for other in masks[1:]:
        mask = pc.and_(mask, other)
    return batch.filter(mask)


def _time(ms: int) -> Any:
    # `pa.scalar` and `pa.array` load Pandas.
    return pa.Array.from_buffers(_TIME, 1, [None, pa.py_buffer(np.array([ms], np.int64))])[0]


def _is_in_hashes(keys: Any, ranges: Ranges) -> Any:
    hashes = hash_keys(keys) >> 16
    found = np.zeros(len(keys), np.bool_)
    for span in ranges.hashes or ():
        found |= (hashes >= span.start) & (hashes <= span.end)
    bits = pa.py_buffer(np.packbits(found, bitorder="little"))
    return pc.and_(pa.Array.from_buffers(pa.bool_(), len(keys), [None, bits]), pc.is_valid(keys))
