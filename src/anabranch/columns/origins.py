"""Data plane. Columns that say where messages come from, and when, in the form that tables want.

A column with the same number or text in each row is made once, with room for more rows, and shared by the batches of a
slice. Publish and event times are set by producers, and may be any number of 64 bits. A time that SQL cannot represent
(before the year 1 or after 9999, such as microseconds given for milliseconds) is null.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TIME_US: Final = pa.timestamp("us", "UTC")
# From the beginning of the year 1 to the end of 9999.
_FIRST_MS: Final = -62_135_596_800_000
_LAST_MS: Final = 253_402_300_799_999
_ROOM_MIN: Final = 1024


def same_number(number: int, rows: int) -> Any:
    """An int64 column with that number in each row."""
    return _numbered(number, _room(rows)).slice(0, rows)


def same_text(text: str, rows: int) -> Any:
    """A column with that text in each row."""
    return _named(text, _room(rows)).slice(0, rows)


def _room(rows: int) -> int:
    """Rounds up, so that batches of about as many rows share a column."""
    return max(_ROOM_MIN, 1 << (rows - 1).bit_length())


@lru_cache(maxsize=4)
def _numbered(number: int, rows: int) -> Any:
    numbers = pa.py_buffer(np.full(rows, number, np.int64))
    return pa.Array.from_buffers(pa.int64(), rows, [None, numbers], 0)


@lru_cache(maxsize=4)
def _named(text: str, rows: int) -> Any:
    name = text.encode()
    offsets = pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * len(name))
    return pa.Array.from_buffers(pa.string(), rows, [None, offsets, pa.py_buffer(name * rows)], 0)


def micros_of(column: Any) -> Any:
    """A column of milliseconds as times of microseconds, null where SQL has no such time."""
    numbers = column.view(pa.int64())
    found = pc.min_max(numbers).as_py()
    if found["min"] is not None and (found["min"] < _FIRST_MS or found["max"] > _LAST_MS):
        fits = pc.and_(pc.greater_equal(numbers, _FIRST_MS), pc.less_equal(numbers, _LAST_MS))
        column = pc.if_else(fits, column, pa.scalar(None, column.type))
    return pc.cast(column, TIME_US)
