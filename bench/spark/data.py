"""The rows that are read and written: the same for every system, in Parquet first and from there everywhere else."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PARTS = 4
_PIECE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class DataSet:
    name: str
    size: int
    rows: int
    # Written rather than read: fewer, as every write leaves its data on the disk.
    rows_written: int

    @property
    def topic(self) -> str:
        return f"spark-{self.size}"

    def folder(self, root: Path, *, written: bool = False) -> Path:
        return root / f"{self.name.replace(' ', '')}-{'written' if written else 'read'}"


def data_sets(scale: float) -> list[DataSet]:
    return [
        DataSet("1 KB", 1024, int(3_000_000 * scale), int(1_500_000 * scale)),
        DataSet("100 B", 100, int(20_000_000 * scale), int(8_000_000 * scale)),
    ]


def make(data: DataSet, root: Path, *, written: bool = False) -> None:
    """Parquet files without compression, unless they are there."""
    folder = data.folder(root, written=written)
    done = folder / "done"
    if done.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    rows = (data.rows_written if written else data.rows) // PARTS
    for part in range(PARTS):
        with pq.ParquetWriter(
            folder / f"part-{part}.parquet", _SCHEMA, compression="none", use_dictionary=False
        ) as writer:
            for batch in _batches(rows, data.size, part):
                writer.write_batch(batch)
    done.touch()


_SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary())])
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


def _batches(rows: int, size: int, part: int) -> Iterator[Any]:
    """Values of random digits and rising keys: neither is a repetition that a system could profit from."""
    random = np.random.default_rng(part)
    step = max(1, _PIECE_BYTES // size)
    for first in range(0, rows, step):
        count = min(step, rows - first)
        digits = _HEX[random.integers(0, 16, count * size, np.uint8)]
        bounds = np.arange(count + 1, dtype=np.int32) * size
        value = pa.Array.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(digits.tobytes())]
        )
        key = pa.array([b"k%d%07d" % (part, number) for number in range(first, first + count)], pa.binary())
        yield pa.record_batch([key, value], schema=_SCHEMA)


def tables(data: DataSet, root: Path) -> Iterator[Any]:
    for path in sorted(data.folder(root).glob("*.parquet")):
        yield from pq.ParquetFile(path).iter_batches(batch_size=max(1, _PIECE_BYTES // data.size))


# -- ours


def create_topic(admin_url: str, name: str, segments: int = PARTS) -> None:
    rest("PUT", admin_url, f"scalable/public/default/{name}?numInitialSegments={segments}")
    rest("POST", admin_url, f"scalable/public/default/{name}/autoScalePolicy", {"enabled": False})


def delete_topic(admin_url: str, name: str) -> None:
    rest("DELETE", admin_url, f"scalable/public/default/{name}?force=true")


def rest(method: str, admin_url: str, path: str, body: object = None) -> None:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{admin_url}/admin/v2/{path}", data, method=method)
    request.add_header("Content-Type", "application/json")
    urllib.request.urlopen(request, timeout=30).close()


def load(url: str, data: DataSet, root: Path) -> None:
    """Standard batches, not compressed, by our client."""

    async def post() -> None:
        import anabranch

        async with (
            anabranch.connect(url) as client,
            client.producer(f"topic://public/default/{data.topic}") as producer,
        ):
            for table in tables(data, root):
                await producer.post_batch(table, key="key")
            await producer.flush()

    asyncio.run(post())
