"""Data plane. Writes the Parquet files of a table, and makes one of several.

A file's rows come in the order of their positions, segment by segment. Each row group has rows of one segment, so its
statistics of `segment`, `key_hash` and the position are narrow, and readers pass over it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.tables.core.rows import by_day
from anabranch.tables.core.schema import POSITION, RAW
from anabranch.tables.core.statistics import Bounds, bounds_of, joined

# The most rows and bytes of a row group: what a reader holds of one at a time.
GROUP_ROWS: Final = 1 << 20
GROUP_BYTES: Final = 64 << 20
# Positions and times rise, so their differences take a few bits.
_DELTA: Final = ("ledger", "entry", "index", "publish_time", "event_time", "sequence_id")
_DICTIONARY: Final = ("topic", "segment", "schema_version", "key_hash", "properties.key_value.key")
# Of 1,000,000 keys, one in a hundred is looked for in vain.
_BLOOM: Final = {"ndv": 1_000_000, "fpp": 0.01}
LEVEL: Final = 1


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A finished file of this machine."""

    path: Path
    day: date | None
    rows: int
    bounds: Bounds


class RowGroups:
    """Collects the rows of one file and writes them, a row group of a segment at a time."""

    def __init__(self, path: Path, schema: pa.Schema, *, has_bloom: bool = False) -> None:
        self.path = path
        self.rows = 0
        self.bounds: Bounds = {}
        self._schema = schema
        self._writer = pq.ParquetWriter(path, schema, **_settings(schema, has_bloom))
        self._held: list[pa.RecordBatch] = []
        self._segment: int | None = None
        self._rows = self._bytes = 0

    def add(self, segment: int, batch: pa.RecordBatch) -> None:
        if segment != self._segment or self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._flush()
        self._segment = segment
        self._held.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes

    def _flush(self) -> None:
        if self._held:
            table = pa.Table.from_batches(self._held, self._schema)
            for batch in self._held:
                self.bounds = joined(self.bounds, bounds_of(batch))
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
            self.rows += table.num_rows
        self._held, self._rows, self._bytes = [], 0, 0

    def close(self) -> None:
        self._flush()
        self._writer.close()


def _settings(schema: pa.Schema, has_bloom: bool) -> dict[str, Any]:
    core = set(RAW.names)
    names = set(schema.names)
    decoded = [name for name in schema.names if name not in core]
    settings: dict[str, Any] = {
        "compression": "zstd",
        "compression_level": LEVEL,
        # Fields of the topic's schema often repeat; Parquet gives up by itself where they do not.
        "use_dictionary": [*_DICTIONARY, *_leaves(schema, decoded)],
        "column_encoding": {name: "DELTA_BINARY_PACKED" for name in _DELTA if name in names},
        "write_statistics": [
            name for name in schema.names if name not in ("value", "undecoded", "properties")
        ],
        "data_page_size": 1 << 20,
        "sorting_columns": pq.SortingColumn.from_ordering(schema, [(name, "ascending") for name in POSITION]),
    }
    if has_bloom:
        settings["bloom_filter_options"] = {"key": _BLOOM}
    return settings


def _leaves(schema: pa.Schema, names: Sequence[str]) -> list[str]:
    """The paths of the columns that Parquet stores for these."""
    if not names:
        return []
    # How Parquet names the parts of nested columns is known to its writer.
    sink = pa.BufferOutputStream()
    part = pa.schema([schema.field(name) for name in names])
    pq.write_table(part.empty_table(), sink)
    stored = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    return [stored.column(place).path for place in range(len(stored))]


class DayFiles:
    """The files of one commit: a file for each day that its rows were published on, which is nearly always one."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._folder = folder
        self._schema = schema
        self._files: dict[date | None, RowGroups] = {}

    def __enter__(self) -> DayFiles:
        return self

    def __exit__(self, *failed: Any) -> None:
        """Removes what was not finished."""
        for one in self._files.values():
            with suppress(Exception):
                one.close()
            one.path.unlink(missing_ok=True)
        self._files.clear()

    def add(self, segment: int, batch: pa.RecordBatch) -> None:
        for day, part in by_day(batch):
            if day not in self._files:
                self._files[day] = RowGroups(self._folder / f"{uuid4().hex}.parquet", self._schema)
            self._files[day].add(segment, part)

    def finished(self) -> list[WrittenFile]:
        """Closes the files. They belong to the caller from here on."""
        found: list[WrittenFile] = []
        for day, one in list(self._files.items()):
            one.close()
            found.append(WrittenFile(one.path, day, one.rows, one.bounds))
            del self._files[day]
        return found


# -- merging


def merge(
    sources: Sequence[Path], folder: Path, schema: pa.Schema, day: date | None, *, has_bloom: bool = False
) -> WrittenFile:
    """One file with the rows of all, which are in the order of their rows: sorted by position if each of them is.

    A row group is read at a time. Columns that a file lacks are null in its rows. A Bloom filter on `key` takes nearly
    as long as all the rest, so it is for files that are written once and for good.
    """
    opened = [pq.ParquetFile(path, memory_map=False) for path in sources]
    try:
        target = RowGroups(folder / f"{uuid4().hex}.parquet", schema, has_bloom=has_bloom)
        try:
            for segment, places in _by_segment(opened):
                for file, group in places:
                    table = opened[file].read_row_group(group)
                    for batch in fitted(table, schema).to_batches():
                        target.add(segment, batch)
            target.close()
        except BaseException:
            with suppress(Exception):
                target.close()
            target.path.unlink(missing_ok=True)
            raise
    finally:
        for file in opened:
            file.close()
    return WrittenFile(target.path, day, target.rows, target.bounds)


def _by_segment(files: Sequence[Any]) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """The segments in their order, each with its row groups: number of the file, number of the group."""
    found: list[tuple[int, int, int]] = []
    for number, file in enumerate(files):
        leaf = next(n for n in range(len(file.schema)) if file.schema.column(n).path == "segment")
        for group in range(file.metadata.num_row_groups):
            stats = file.metadata.row_group(group).column(leaf).statistics
            found.append((stats.min, number, group))
    for segment, places in groupby(sorted(found), key=lambda one: one[0]):
        yield segment, [(number, group) for _, number, group in places]


def fitted_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return fitted(pa.Table.from_batches([batch]), schema).combine_chunks().to_batches()[0]


def fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with exactly those columns, wider or null where the table has them so."""
    columns = []
    for field in schema:
        place = table.schema.get_field_index(field.name)
        if place < 0:
            columns.append(pa.nulls(table.num_rows, field.type))
        else:
            column = table.column(place)
            columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)
