"""Data plane. Messages in Spark's form: record batches of exactly the columns that the source declares.

A key's rows are sorted by `position`, across splits and merges: a key's segments follow each other with rising ids. Its
fields are those of `message_id` and the segment, and share their memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from anabranch.columns.decode import SCHEMA_VERSION
from anabranch.columns.origins import TIME_US, micros_of, same_number, same_text
from anabranch.columns.positions import RowPlaces, only
from anabranch.model.cut import MessagePosition

_MESSAGE_ID: Final = pa.struct([("ledger", pa.int64()), ("entry", pa.int64()), ("index", pa.int32())])
_POSITION: Final = pa.struct([("segment", pa.int64()), *_MESSAGE_ID])
# The same as Spark's own conversion of `anabranch.spark.options.source.SCHEMA`; a test compares them.
COLUMNS: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("topic", pa.string()),
        ("segment", pa.int64()),
        ("message_id", _MESSAGE_ID),
        ("publish_time", TIME_US),
        ("event_time", TIME_US),
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
    return same_number(segment, batch.num_rows)


_BUILT: Final[Mapping[str, Callable[[Any, str, int], Any]]] = {
    "key": lambda batch, *_: batch.column("key"),
    "value": lambda batch, *_: batch.column("value"),
    "properties": lambda batch, *_: batch.column("properties"),
    "topic": lambda batch, topic, _: same_text(topic, batch.num_rows),
    "segment": _segments,
    "message_id": lambda batch, *_: pa.StructArray.from_arrays(_ids(batch), fields=list(_MESSAGE_ID)),
    "publish_time": lambda batch, *_: micros_of(batch.column("publish_time")),
    "event_time": lambda batch, *_: micros_of(batch.column("event_time")),
    "position": lambda batch, *origin: pa.StructArray.from_arrays(
        [_segments(batch, *origin), *_ids(batch)], fields=list(_POSITION)
    ),
}
