"""Reads a whole table back: whether its files are as its log says, and its rows sorted, each there once. Blocking."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.tables.core.schema import POSITION
from anabranch.tables.snapshot import TableSnapshot
from anabranch.tables.store import open_store

FAULTS_MAX: Final = 100


@dataclass(slots=True)
class TableVerified:
    files: int = 0
    rows: int = 0
    bytes: int = 0
    faults: list[str] = field(default_factory=list)


def verify_table(seen: TableSnapshot, storage_options: Mapping[str, str] | None = None) -> TableVerified:
    """Every file is read once: all of its pages, and the positions of its rows."""
    store = open_store(seen.url, storage_options)
    found = TableVerified()
    spans: list[Any] = []
    for file in seen.files:
        with tempfile.TemporaryDirectory() as folder:
            try:
                path = store.fetch(file.path, Path(folder))
                size, positions, fault = _read(path)
            except (OSError, pa.ArrowException) as error:
                found.faults.append(f"{file.path}: {error}")
                continue
        found.files, found.rows, found.bytes = (
            found.files + 1,
            found.rows + len(positions),
            found.bytes + size,
        )
        if fault:
            found.faults.append(f"{file.path}: {fault}")
        if size != file.bytes:
            found.faults.append(f"{file.path}: {size} bytes, and the log says {file.bytes}")
        if len(positions) != file.rows:
            found.faults.append(f"{file.path}: {len(positions)} rows, and the log says {file.rows}")
        spans.append(positions)
    if spans:
        found.faults += _twice(np.concatenate(spans))
    del found.faults[FAULTS_MAX:]
    return found


def _read(path: Path) -> tuple[int, Any, str]:
    with pq.ParquetFile(path) as file:
        fault = ""
        parts: list[Any] = []
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            part = np.stack([table.column(name).to_numpy().astype(np.int64) for name in POSITION], axis=1)
            if len(part) and part[0, 0] != part[-1, 0]:
                fault = f"row group {group} has rows of more than one segment"
            parts.append(part)
    positions = np.concatenate(parts) if parts else np.empty((0, len(POSITION)), np.int64)
    if len(positions) > 1 and not _rises(positions):
        fault = fault or "its rows are not sorted by position"
    return path.stat().st_size, positions, fault


def _rises(positions: Any) -> bool:
    """Whether each row is behind the one before it."""
    later, is_even = np.zeros(len(positions) - 1, np.bool_), np.ones(len(positions) - 1, np.bool_)
    for column in range(positions.shape[1]):
        step = np.diff(positions[:, column])
        later |= is_even & (step > 0)
        is_even &= step == 0
    return bool(later.all())


def _twice(positions: Any) -> list[str]:
    ordered = positions[np.lexsort(positions.T[::-1])]
    same = (np.diff(ordered, axis=0) == 0).all(axis=1)
    names = ("segment", "ledger", "entry", "index")
    return [
        "the same message twice: " + ", ".join(f"{n} {v}" for n, v in zip(names, row, strict=True))
        for row in ordered[1:][same][:FAULTS_MAX].tolist()
    ]
