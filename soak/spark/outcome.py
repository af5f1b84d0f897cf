"""The results of the queries so far: their batches, by Spark's own logs, and the rows of the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from soak.spark.driver import Setup


class Outcome:
    """The results of one query. Finished batches are not written again, so their contents are remembered."""

    def __init__(self, setup: Setup, query: str) -> None:
        self.query = query
        self._setup = setup
        self._keys: Counter[str] = Counter()
        self._next = 0

    @property
    def committed(self) -> int:
        """The last finished batch; -1 for none."""
        return _last(self._setup.path(f"{self.query}-checkpoint/commits"))

    @property
    def is_in_batch(self) -> bool:
        """Whether a batch has begun, by the log of offsets, and is not finished."""
        return _last(self._setup.path(f"{self.query}-checkpoint/offsets")) > self.committed

    def keys(self) -> Counter[str]:
        """The number of rows of each key, in finished batches."""
        from pyarrow import parquet

        last = self.committed
        while self._next <= last:
            for file in self._files(self._next):
                self._keys.update(parquet.ParquetFile(file).read(["key"]).column("key").to_pylist())
            self._next += 1
        return self._keys

    def rows(self) -> int:
        """The rows in the table, of finished batches."""
        return self.keys().total()

    def table(self) -> Iterator[tuple[str, int]]:
        """Key and number of every row, by batch and position."""
        from pyarrow import parquet

        for batch in range(self.committed + 1):
            found: list[tuple[Any, str, int]] = []
            for file in self._files(batch):
                for row in parquet.ParquetFile(file).read().to_pylist():
                    place = row["position"]
                    at = (place["segment"], place["ledger"], place["entry"], place["index"])
                    found.append((at, row["key"], row["number"]))
            for _, key, number in sorted(found):
                yield key, number

    def _files(self, batch: int) -> list[Path]:
        """None for a batch without rows, which Spark does not pass on."""
        return sorted(self._setup.path(f"{self.query}/batch={batch:06d}").glob("*.parquet"))


def _last(log: Path) -> int:
    return max((int(one.name) for one in log.glob("[0-9]*") if one.name.isdigit()), default=-1)
