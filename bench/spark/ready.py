"""A Python data source without any work of its own: the same rows again and again, ready as Spark wants them.

Nothing in Python can be read faster, so this is the most that any source could reach.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from anabranch.spark.options.source import SCHEMA

# As large as the batches of ours.
_BATCH_BYTES = 4 << 20


class ReadySource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "ready"

    @property
    def _has_all(self) -> bool:
        return self.options.get("columns") == "all"

    def schema(self) -> str:
        return SCHEMA if self._has_all else "key binary, value binary"

    def reader(self, schema: Any) -> ReadyReader:
        rows, size, parts = (int(self.options[name]) for name in ("rows", "size", "parts"))
        return ReadyReader(rows, size, parts, self._has_all)


class ReadyReader(DataSourceReader):
    def __init__(self, rows: int, size: int, parts: int, has_all: bool) -> None:
        self._rows, self._size, self._parts, self._has_all = rows // parts, size, parts, has_all

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(part) for part in range(self._parts)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        count = _BATCH_BYTES // self._size
        keys = pa.array([b"k%08d" % number for number in range(count)], pa.binary())
        values = pa.array([bytes(self._size)] * count, pa.binary())
        batch = pa.record_batch([keys, values], names=["key", "value"])
        if self._has_all:
            batch = with_all_columns(batch)
        for first in range(0, self._rows, count):
            yield batch.slice(0, min(count, self._rows - first))


def with_all_columns(batch: Any) -> Any:
    """The batch with all columns of our source."""
    from anabranch.columns.decode import SCHEMA as RECEIVED
    from anabranch.spark.columns.rows import for_spark

    count = batch.num_rows
    places = pa.array(range(count), pa.int64())
    given = {
        "key": batch.column("key"),
        "value": batch.column("value"),
        "properties": pa.array([[]] * count, RECEIVED.field("properties").type),
        "event_time": pa.nulls(count, RECEIVED.field("event_time").type),
        "publish_time": places.cast(RECEIVED.field("publish_time").type),
        "batch_index": places.cast(pa.int32()),
    }
    columns = [given.get(name, places) for name in RECEIVED.names]
    received = pa.RecordBatch.from_arrays(columns, schema=RECEIVED)
    return for_spark(received, "topic://public/default/ready", 1)
