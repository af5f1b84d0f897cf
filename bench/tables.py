"""What keeping topics as tables costs: `python -m bench.tables`.

    rows       CPU time of the path from decoded columns to a committed file, and of merging, by size of values
    commits    how long a commit takes as versions and files add up, with merges as the rules have them

Figures are CPU seconds where they can be, because other work on the machine does not count there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.columns import SCHEMA
from anabranch.model.cut import Cut, Place
from anabranch.model.segments import WHOLE, SegmentId
from anabranch.tables.core.commit import NewFile
from anabranch.tables.core.merging import MergeRules, merges
from anabranch.tables.core.rows import raw_rows
from anabranch.tables.core.schema import RAW
from anabranch.tables.core.statistics import delta_stats
from anabranch.tables.parquet import DayFiles, merge
from anabranch.tables.table import TableOwner, TopicTable

BATCH_ROWS = 30_000
TOPIC = "topic://public/default/bench"


def batch(rng: np.random.Generator, size: int, entry: int) -> Any:
    """Rows as the log's files give them: random digits, ten thousand keys, a thousand messages an entry."""
    n = BATCH_ROWS
    values = pa.array([bytes(row) for row in rng.integers(48, 58, (n, size), np.uint8)], pa.binary())
    keys = pa.array([b"visitor-%d" % key for key in rng.integers(0, 10_000, n)], pa.binary())
    times = pa.array(1_790_000_000_000 + np.arange(n) // 100).cast(pa.timestamp("ms", "UTC"))
    columns = [
        keys,
        values,
        pa.array([[]] * n, SCHEMA.field("properties").type),
        pa.nulls(n, SCHEMA.field("event_time").type),
        times,
        pa.array(np.arange(n)),
        pa.array(np.full(n, 5)),
        pa.array(entry + np.arange(n) // 1000),
        pa.array((np.arange(n) % 1000).astype(np.int32)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def rows(size: int, batches: int = 30) -> dict[str, float]:
    rng = np.random.default_rng(7)
    given = [batch(rng, size, n * BATCH_ROWS // 1000) for n in range(batches)]
    raw_rows(given[0], TOPIC, 3)  # Compiles.
    count = batches * BATCH_ROWS
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        with DayFiles(Path(folder), RAW) as files:
            for one in given:
                files.add(3, raw_rows(one, TOPIC, 3))
            (written,) = files.finished()
        wrote = time.process_time()
        merge([written.path] * 2, Path(folder), RAW, None)
        merged = time.process_time()
        merge([written.path] * 2, Path(folder), RAW, None, has_bloom=True)
        filtered = time.process_time()
        bytes_of_file = written.path.stat().st_size
    return {
        "value bytes": size,
        "written, M rows a CPU second": count / (wrote - began) / 1e6,
        "a core at 100,000 rows a second, %": 100 * (wrote - began) / count * 1e5,
        "merged, M rows a CPU second": 2 * count / (merged - wrote) / 1e6,
        "merged with a Bloom filter, M rows a CPU second": 2 * count / (filtered - merged) / 1e6,
        "file, share of keys and values": bytes_of_file / (count * (size + 12)),
    }


def commits(count: int, every: int = 500) -> list[dict[str, float]]:
    """Commits of a minute each, of files that are not there: only the log grows. Merges follow the rules."""
    folder = Path(tempfile.mkdtemp())
    clock = {"ms": 1_790_000_000_000}
    table = TopicTable(str(folder / "t"), TableOwner(TOPIC, "id"), clock_ms=lambda: clock["ms"])
    told: list[dict[str, float]] = []
    times: list[float] = []
    try:
        while table.version < count:
            clock["ms"] += 60_000
            day = time.gmtime(clock["ms"] / 1000)
            name = table.name(date(day.tm_year, day.tm_mon, day.tm_mday), "hot")
            cut = Cut((Place(SegmentId(0), WHOLE, at=((5, clock["ms"], 0),)),), "id").encode().decode()
            began = time.perf_counter()
            assert table.commit(
                cut=cut, mode="raw", schema=RAW, adds=[NewFile(name, 30_000_000, 10**6, delta_stats({}))]
            )
            times.append((time.perf_counter() - began) * 1000)
            if clock["ms"] // 60_000 % 60 == 1:
                for group in merges(table.known_files(), clock["ms"], MergeRules()):
                    first = group.files[0].name
                    into = table.name(first.day, group.kind, run=first.run, rows_of=group.into)
                    size = sum(one.bytes for one in group.files)
                    assert table.commit(
                        cut=cut,
                        mode="raw",
                        schema=RAW,
                        adds=[NewFile(into, size, 10**6, delta_stats({}))],
                        removes=[one.name.path for one in group.files],
                        changes_rows=False,
                    )
            if len(times) >= every:
                told.append(
                    {
                        "version": table.version,
                        "files": table.size.files,
                        "commit p50, ms": statistics.median(times),
                        "commit p99, ms": sorted(times)[int(len(times) * 0.99)],
                    }
                )
                times.clear()
    finally:
        shutil.rmtree(folder)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("rows", "commits"), nargs="?", default="rows")
    parser.add_argument("--commits", type=int, default=3000)
    given = parser.parse_args()
    if given.what == "rows":
        for size in (100, 1000):
            print(json.dumps({name: round(value, 3) for name, value in rows(size).items()}))
    else:
        for one in commits(given.commits):
            print(json.dumps({name: round(value, 2) for name, value in one.items()}))


if __name__ == "__main__":
    main()
