"""Data plane. Received messages as rows of a raw table. Pure.

Batches come as `anabranch.columns.SCHEMA` has them, with the version of the schema behind it or without. Columns keep
their memory where the table has the same type.
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.columns.decode import SCHEMA_VERSION
from anabranch.columns.hashing import hash_keys
from anabranch.columns.origins import micros_of, same_number, same_text
from anabranch.tables.core.schema import RAW

DAY_US: Final = 86_400_000_000
_EPOCH: Final = date(1970, 1, 1)


def raw_rows(batch: Any, topic: str, segment: int) -> pa.RecordBatch:
    """The messages of one segment as rows, in the same order."""
    rows = batch.num_rows
    has_version = SCHEMA_VERSION in batch.schema.names
    columns = [
        batch.column("key"),
        batch.column("value"),
        batch.column("properties").cast(RAW.field("properties").type),
        same_text(topic, rows),
        same_number(segment, rows),
        batch.column("ledger_id"),
        batch.column("entry_id"),
        batch.column("batch_index"),
        _hashes(batch.column("key")),
        micros_of(batch.column("publish_time")),
        micros_of(batch.column("event_time")),
        batch.column("sequence_id"),
        batch.column(SCHEMA_VERSION) if has_version else same_number(-1, rows),
        pa.nulls(rows, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RAW)


def _hashes(keys: Any) -> Any:
    """The half of each key's hash that chooses a segment."""
    found = pa.array((hash_keys(keys) >> 16).astype(np.int32))
    return found if not keys.null_count else pc.if_else(keys.is_valid(), found, pa.scalar(None, pa.int32()))


def by_day(batch: pa.RecordBatch) -> list[tuple[date | None, pa.RecordBatch]]:
    """The rows by the day of their publish times, in UTC; None for those without a time. Order is kept within a day."""
    if not batch.num_rows:
        return []
    times = batch.column("publish_time").view(pa.int64())
    found = pc.min_max(times).as_py()
    if not times.null_count and found["min"] // DAY_US == found["max"] // DAY_US:
        return [(_day(found["min"] // DAY_US), batch)]
    numbers = times.fill_null(0).to_numpy(zero_copy_only=False) // DAY_US
    is_there = times.is_valid().to_numpy(zero_copy_only=False)
    parts: list[tuple[date | None, pa.RecordBatch]] = []
    if not is_there.all():
        parts.append((None, batch.filter(pa.array(~is_there))))
    days = np.unique(numbers[is_there]).tolist()
    parts += [(_day(number), batch.filter(pa.array(is_there & (numbers == number)))) for number in days]
    return parts


def _day(number: int) -> date:
    return _EPOCH + timedelta(days=number)
