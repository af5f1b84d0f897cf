"""Data plane. What the log of a Delta table says of a file's rows: the least and the greatest of some columns. Pure.

Only columns that say where and when a message is: engines pass over files by them. Values are left out, as their bytes
would be in every commit.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

TOLD: Final = ("segment", "ledger", "entry", "index", "key_hash", "publish_time", "event_time")
Bounds = dict[str, tuple[Any, Any, int]]


def bounds_of(batch: pa.RecordBatch) -> Bounds:
    """The least, the greatest, and the number of nulls, by column."""
    found: Bounds = {}
    for name in TOLD:
        column = batch.column(name)
        # Numbers are compared, not times: Arrow's conversion to Python's takes longer than finding them.
        both = pc.min_max(column).as_py()
        found[name] = both["min"], both["max"], column.null_count
    return found


def joined(one: Bounds, other: Bounds) -> Bounds:
    """The bounds of the rows of both."""
    if not one or not other:
        return one or other
    return {
        name: (
            min((v for v in (one[name][0], other[name][0]) if v is not None), default=None),
            max((v for v in (one[name][1], other[name][1]) if v is not None), default=None),
            one[name][2] + other[name][2],
        )
        for name in TOLD
    }


def delta_stats(bounds: Bounds) -> dict[str, Any]:
    """The bounds as the Delta protocol has them."""
    return {
        "minValues": {name: _text(least) for name, (least, _, _) in bounds.items() if least is not None},
        "maxValues": {name: _text(most) for name, (_, most, _) in bounds.items() if most is not None},
        "nullCount": {name: nulls for name, (_, _, nulls) in bounds.items()},
    }


def _text(value: Any) -> Any:
    if isinstance(value, datetime):
        # All of a table's times are of milliseconds, which is what the protocol keeps.
        return value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03}Z"
    return value
