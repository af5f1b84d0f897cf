"""What has come of the queries so far: their batches, by Spark's own logs, and the rows of the table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from soak.spark.driver import Setup


class Outcome:
    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._rows: dict[int, int] = {}  # Of batches that are committed: those are not written again.

    def committed(self, query: str) -> int:
        """The last batch that is over; -1 for none."""
        return _last(self._setup.path(f"{query}-checkpoint/commits"))

    def is_in_batch(self, query: str) -> bool:
        """Whether a batch has begun, by the log of offsets, and is not over."""
        return _last(self._setup.path(f"{query}-checkpoint/offsets")) > self.committed(query)

    def rows(self) -> int:
        """In the table, of batches that are over."""
        from pyarrow import parquet

        last = self.committed("table")
        for batch in range(len(self._rows), last + 1):
            self._rows[batch] = sum(parquet.read_metadata(file).num_rows for file in self._files(batch))
        return sum(self._rows.values())

    def table(self) -> Iterator[tuple[str, int]]:
        """Key and number of every row, by batch and position."""
        from pyarrow import parquet

        for batch in range(self.committed("table") + 1):
            found: list[tuple[Any, str, int]] = []
            for file in self._files(batch):
                for row in parquet.ParquetFile(file).read().to_pylist():
                    place = row["position"]
                    at = (place["segment"], place["ledger"], place["entry"], place["index"])
                    found.append((at, row["key"], row["number"]))
            for _, key, number in sorted(found):
                yield key, number

    def _files(self, batch: int) -> list[Path]:
        """None of a batch without rows, which Spark does not hand on."""
        return sorted(self._setup.path(f"table/batch={batch:06d}").glob("*.parquet"))


def _last(log: Path) -> int:
    return max((int(one.name) for one in log.glob("[0-9]*") if one.name.isdigit()), default=-1)
