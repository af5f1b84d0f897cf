"""Data plane. Messages in Spark's form: record batches of exactly the columns that the source declares.

A key's rows are sorted by `position`, across splits and merges: a key's segments follow each other with rising ids. Its
fields are those of `message_id` and the segment, and share their memory.

Publish and event times are set by producers, and may be any number of 64 bits. A time that SQL cannot represent (before
the year 1 or after 9999, such as microseconds given for milliseconds) is null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.columns.decode import SCHEMA_VERSION
from anabranch.columns.positions import RowPlaces, only
from anabranch.model.cut import MessagePosition

_MESSAGE_ID: Final = pa.struct([("ledger", pa.int64()), ("entry", pa.int64()), ("index", pa.int32())])
_POSITION: Final = pa.struct([("segment", pa.int64()), *_MESSAGE_ID])
_TIME: Final = pa.timestamp("us", "UTC")
# The range of Spark's type TIMESTAMP: from the beginning of the year 1 to the end of 9999.
_FIRST_MS: Final = -62_135_596_800_000
_LAST_MS: Final = 253_402_300_799_999
_ROOM_MIN: Final = 1024
# The same as Spark's own conversion of `anabranch.spark.options.source.SCHEMA`; a test compares them.
COLUMNS: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("topic", pa.string()),
        ("segment", pa.int64()),
        ("message_id", _MESSAGE_ID),
        ("publish_time", _TIME),
        ("event_time", _TIME),
        ("position", _POSITION),
    ]
)


def between(batch: Any, start: MessagePosition | None, end: MessagePosition | None) -> Any:
    """The rows of a received batch (`anabranch.columns.SCHEMA`, perhaps with more columns) from a position up to
    another."""
    if batch.num_rows == 0:
        return batch
    first, last = _position(batch, 0), _position(batch, batch.num_rows - 1)
    if (start is None or first >= start) and (end is None or last < end):
        return batch
    places = RowPlaces.of(batch)
    keep = np.ones(batch.num_rows, np.bool_)
    if start is not None:
        keep &= ~places.are_before(start)
    if end is not None:
        keep &= places.are_before(end)
    return only(batch, keep)


def _position(batch: Any, row: int) -> MessagePosition:
    ledger, entry, index = (batch.column(n)[row].as_py() for n in ("ledger_id", "entry_id", "batch_index"))
    return (ledger, entry, max(0, index))


def for_spark(batch: Any, topic: str, segment: int, columns: Sequence[str] | None = None) -> Any:
    """The same rows with the columns of `COLUMNS`, or those of them that are named, in that order.

    Versions of the schema, if the batch has them, follow as the last column.
    """
    schema = COLUMNS if columns is None else pa.schema([COLUMNS.field(name) for name in columns])
    made = [_BUILT[name](batch, topic, segment) for name in schema.names]
    rows = pa.RecordBatch.from_arrays(made, schema=schema)
    if SCHEMA_VERSION in batch.schema.names:
        rows = rows.append_column(SCHEMA_VERSION, batch.column(SCHEMA_VERSION))
    return rows


def _ids(batch: Any) -> list[Any]:
    return [batch.column(name) for name in ("ledger_id", "entry_id", "batch_index")]


def _segments(batch: Any, _: str, segment: int) -> Any:
    return _numbered(segment, _room(batch.num_rows)).slice(0, batch.num_rows)


def _topics(batch: Any, topic: str, _: int) -> Any:
    return _named(topic, _room(batch.num_rows)).slice(0, batch.num_rows)


def _room(rows: int) -> int:
    """Rounds up, so that batches of about as many rows share a column."""
    return max(_ROOM_MIN, 1 << (rows - 1).bit_length())


@lru_cache(maxsize=4)
def _numbered(segment: int, rows: int) -> Any:
    """A column with the same number in each row, for all batches of a slice."""
    numbers = pa.py_buffer(np.full(rows, segment, np.int64))
    return pa.Array.from_buffers(pa.int64(), rows, [None, numbers], 0)


@lru_cache(maxsize=4)
def _named(topic: str, rows: int) -> Any:
    name = topic.encode()
    offsets = pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * len(name))
    return pa.Array.from_buffers(pa.string(), rows, [None, offsets, pa.py_buffer(name * rows)], 0)


def _times(batch: Any, name: str) -> Any:
    column = batch.column(name)
    numbers = column.view(pa.int64())
    found = pc.min_max(numbers).as_py()
    if found["min"] is not None and (found["min"] < _FIRST_MS or found["max"] > _LAST_MS):
        fits = pc.and_(pc.greater_equal(numbers, _FIRST_MS), pc.less_equal(numbers, _LAST_MS))
        column = pc.if_else(fits, column, pa.scalar(None, column.type))
    return pc.cast(column, _TIME)


_BUILT: Final[Mapping[str, Callable[[Any, str, int], Any]]] = {
    "key": lambda batch, *_: batch.column("key"),
    "value": lambda batch, *_: batch.column("value"),
    "properties": lambda batch, *_: batch.column("properties"),
    "topic": _topics,
    "segment": _segments,
    "message_id": lambda batch, *_: pa.StructArray.from_arrays(_ids(batch), fields=list(_MESSAGE_ID)),
    "publish_time": lambda batch, *_: _times(batch, "publish_time"),
    "event_time": lambda batch, *_: _times(batch, "event_time"),
    "position": lambda batch, *origin: pa.StructArray.from_arrays(
        [_segments(batch, *origin), *_ids(batch)], fields=list(_POSITION)
    ),
}
