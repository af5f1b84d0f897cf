"""Spark as the reader of the demo's topic: starts it, follows it, and compares its tables with the events sent."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np

from anabranch.cli.demo.core import verify
from anabranch.cli.demo.core.clickstream import Clickstream
from anabranch.cli.demo.core.ran import MicroBatch
from anabranch.cli.demo.core.verify import Finding
from anabranch.cli.demo.queries import DemoQueries
from anabranch.cli.demo.spark_session import spark_session


class SparkReading:
    """Two queries in a session of their own."""

    told = "two Spark queries"
    catching_up = "The queries catch up, and a closing event ends the last sessions"

    def __init__(self) -> None:
        self.software = f"Spark {importlib.metadata.version('pyspark')}, Python {sys.version.split()[0]}"
        self.sessions = 0
        self._stack = ExitStack()
        self._job: DemoQueries | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.__exit__(*exc)  # type: ignore[arg-type]

    @property
    def job(self) -> DemoQueries:
        assert self._job is not None, "not started"
        return self._job

    def start(self, service_url: str, topic: str, stream: Clickstream, folder: Path) -> None:
        # Spark's warnings would disturb the display; they are kept beside the data.
        with _errors_to(folder / "spark.log"):
            spark = self._stack.enter_context(spark_session(folder))
            self._job = DemoQueries(spark, service_url, topic, stream, folder)
            self._job.start()

    def look(self) -> None:
        self.job.look()

    def failures(self) -> Sequence[str]:
        return self.job.failures

    def rows(self) -> Mapping[str, int]:
        return {query.name: query.rows for query in self.job.queries}

    def batch_count(self, name: str) -> int:
        return next(len(query.progress) for query in self.job.queries if query.name == name)

    def batches(self) -> Mapping[str, Sequence[MicroBatch]]:
        return {
            query.name: [
                MicroBatch(one.at_ms, one.took_ms, one.rows) for _, one in sorted(query.progress.items())
            ]
            for query in self.job.queries
        }

    def has_read(self, events: int) -> bool:
        return all(query.rows >= events for query in self.job.queries)

    def has_closed(self, events: int) -> bool:
        """Whether both have read the closing event, and only its session is still open."""
        latest = self.job.sessions.latest
        return self.has_read(events + 1) and latest is not None and latest.state_rows == 1

    def finish(self) -> None:
        self.job.stop()

    def findings(self, stream: Clickstream, start_ms: int) -> list[Finding]:
        raw, batches = read_table(self.job.table("raw"))
        rows = verify.without_closing(verify.raw_rows(raw, batches), raw.column("key"))
        table, _ = read_table(self.job.table("sessions"))
        found = verify.sessions_of(table)
        self.sessions = len(found)
        wanted = verify.expected_sessions(stream, start_ms)
        dropped = sum(one.dropped for one in self.job.sessions.progress.values())
        return [
            verify.once_each(rows, stream),
            verify.in_order(rows),
            *verify.same_sessions(found, wanted, stream.events),
            Finding(f"{dropped:,} rows came too late for the watermark", dropped == 0),
        ]


def read_table(folder: Path) -> tuple[Any, verify.Numbers]:
    """The rows of the files that the sink has committed, and the micro-batch of each row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    log = {
        int(path.name.partition(".")[0]): path.read_text(encoding="utf-8")
        for path in (folder / "_spark_metadata").iterdir()
        if not path.name.startswith(".")
    }
    tables, batches = [], []
    for name, batch in verify.batches_of_files(log).items():
        table = pq.ParquetFile(folder / name).read()
        tables.append(table)
        batches.append(np.full(table.num_rows, batch, dtype=np.int64))
    if not tables:
        raise RuntimeError(f"the query wrote nothing to {folder}")
    return pa.concat_tables(tables), np.concatenate(batches)


@contextmanager
def _errors_to(path: Path) -> Iterator[None]:
    """Redirects standard error to the file, for this process and for all processes started meanwhile."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
