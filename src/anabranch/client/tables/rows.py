"""Data plane. Rows from the log with the columns of a table: what the table's own files would have of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.columns.decode import SCHEMA_VERSION
from anabranch.columns.hashing import hash_keys
from anabranch.columns.origins import micros_of
from anabranch.tables.core.schema import RAW, UNDECODED

# The column of a received batch for each column of a table that is taken from one as it is.
_TAKEN: Final = {
    "key": "key",
    "value": "value",
    "properties": "properties",
    "topic": "topic",
    "segment": "segment_id",
    "ledger": "ledger_id",
    "entry": "entry_id",
    "index": "batch_index",
    "sequence_id": "sequence_id",
    "schema_version": SCHEMA_VERSION,
}


def raw_rows(batches: Iterable[Any]) -> Any:
    """The rows of received batches, with versions of the schema, as a table with the columns `RAW`."""
    return pa.Table.from_batches([_raw(batch) for batch in batches], schema=RAW)


def _raw(batch: Any) -> Any:
    made = {name: batch.column(own) for name, own in _TAKEN.items()}
    made["topic"] = made["topic"].dictionary_decode()
    made["key_hash"] = _key_hashes(batch.column("key"))
    made[UNDECODED] = pa.nulls(batch.num_rows, pa.binary())
    for name in ("publish_time", "event_time"):
        made[name] = micros_of(batch.column(name))
    return pa.RecordBatch.from_arrays([made[field.name].cast(field.type) for field in RAW], schema=RAW)


def _key_hashes(keys: Any) -> Any:
    hashes = pa.array((hash_keys(keys) >> 16).astype(np.int32))
    return pc.if_else(pc.is_valid(keys), hashes, pa.scalar(None, pa.int32()))
