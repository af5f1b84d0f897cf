"""A Python data source without any work of its own: the same rows again and again, ready as Spark wants them.

Nothing in Python can be read faster, so this is what any source could reach at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

# As large as the batches of ours.
_BATCH_BYTES = 4 << 20


class ReadySource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return "key binary, value binary"

    def reader(self, schema: Any) -> ReadyReader:
        return ReadyReader(int(self.options["rows"]), int(self.options["size"]), int(self.options["parts"]))


class ReadyReader(DataSourceReader):
    def __init__(self, rows: int, size: int, parts: int) -> None:
        self._rows, self._size, self._parts = rows // parts, size, parts

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(part) for part in range(self._parts)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        count = _BATCH_BYTES // self._size
        keys = pa.array([b"k%08d" % number for number in range(count)], pa.binary())
        values = pa.array([bytes(self._size)] * count, pa.binary())
        batch = pa.record_batch([keys, values], names=["key", "value"])
        for first in range(0, self._rows, count):
            yield batch.slice(0, min(count, self._rows - first))
