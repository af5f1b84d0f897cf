"""One version of a topic's table: its files, and the cut up to which they have the topic's messages.

    seen = open_snapshot("s3://lake/tables/public/default/orders/3f2c…", storage_options)
    seen.cut            # the text of a checkpoint: the messages before it are in `seen.files`, all others are not
    seen.file_uris      # for whatever reads Parquet

A cut splits a topic exactly, so the rows of the files and what is read from the cut on are the topic: nothing twice and
nothing missing. Needs `deltalake`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from anabranch.errors import AnabranchError
from anabranch.model.cut import Cut

if TYPE_CHECKING:
    import pyarrow as pa

    from anabranch.tables.core.schema import Mode

# Properties of the Delta table. Every commit of the table writer sets all of them.
CUT: Final = "anabranch.cut"
TOPIC: Final = "anabranch.topic"
TOPIC_ID: Final = "anabranch.topicId"
MODE: Final = "anabranch.mode"
_NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"


class NotATopicTable(AnabranchError):
    """There is a table at that place, but no table writer has written it."""


class NoSuchVersion(AnabranchError):
    """The table has no version of that number, or none as old as that time, any more or yet."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file of a table. Its rows are sorted by position, and each row group is of one segment."""

    path: str  # Relative to the table, with slashes.
    bytes: int
    rows: int
    day: date | None  # The day of its rows' publish times; None for times that no calendar has.


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    url: str
    version: int
    topic: str
    topic_id: str
    cut: str  # Of `anabranch.model.cut.Cut`: `Cut.decode(snapshot.cut)`.
    files: tuple[DataFile, ...]  # In the order of their paths.
    mode: Mode
    schema: pa.Schema  # The table's columns: those of the files, and `day`.

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def file_uris(self) -> list[str]:
        base = self.url.rstrip("/")
        return [f"{base}/{file.path}" for file in self.files]


def open_snapshot(
    url: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    version: int | None = None,
    at: datetime | None = None,
) -> TableSnapshot | None:
    """The table's newest version, or that version, or the one that was newest at that time; None if there is no table.

    `storage_options` are those of `deltalake`. A time without a time zone is in UTC.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    if version is not None and at is not None:
        raise ValueError("give a version or a time, not both")
    options = dict(storage_options or {})
    try:
        table = DeltaTable(url, storage_options=options, version=version)
        if at is not None:
            table.load_as_version(at if at.tzinfo else at.replace(tzinfo=UTC))
    except TableNotFoundError:
        return None
    except DeltaError as error:
        if version is None and at is None:
            raise
        wanted = f"version {version}" if at is None else f"a version of {at}"
        raise NoSuchVersion(f"{url} has not {wanted}: {error}") from error
    return snapshot_of(url, table)


def snapshot_of(url: str, table: Any) -> TableSnapshot:
    """The snapshot of an opened `DeltaTable`."""
    import pyarrow as pa

    told = table.metadata().configuration
    if CUT not in told:
        raise NotATopicTable(f"{url} has no property {CUT}: it is not the table of a topic")
    Cut.decode(told[CUT])
    schema = pa.schema(pa.schema(table.schema().to_arrow()))
    actions = pa.table(table.get_add_actions(flatten=True))
    days = actions.column(f"partition.{'day'}").to_pylist() if actions.num_rows else []
    columns = (actions.column(name).to_pylist() for name in ("path", "size_bytes", "num_records"))
    found = sorted(zip(*columns, days, strict=True)) if actions.num_rows else []
    files = tuple(DataFile(unquote(path), size, rows or 0, day) for path, size, rows, day in found)
    return TableSnapshot(
        url, table.version(), told[TOPIC], told[TOPIC_ID], told[CUT], files, told[MODE], schema
    )
