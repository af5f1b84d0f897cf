"""One topic's table as its writer has it: the newest version, and commits on top of it that succeed or change nothing.

    table = TopicTable(url, TableOwner(topic, topic_id), options)
    table.refresh()
    table.commit(…)         # True, or False because another writer was faster: `refresh`, and begin again

A writer that dies at any step leaves the table as it was, or as it was to become, and perhaps files that no version
has; `sweep` removes these.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from anabranch.model.cut import Cut
from anabranch.tables.core.commit import LOG, RUN, NewFile, TableCommit, TableState, added_paths, commit_path
from anabranch.tables.core.merging import KnownFile, rubbish, suspects
from anabranch.tables.core.names import FileName
from anabranch.tables.core.schema import DAY
from anabranch.tables.snapshot import CUT, MODE, TOPIC, TOPIC_ID, NotATopicTable, TableSnapshot, snapshot_of
from anabranch.tables.store import AnyStore, open_store

if TYPE_CHECKING:
    import pyarrow as pa

    from anabranch.tables.core.schema import Mode

log = logging.getLogger(__name__)

# A checkpoint after so many commits, so that opening a table reads at most as many.
CHECKPOINT_EVERY: Final = 50


@dataclass(frozen=True, slots=True)
class TableOwner:
    """The topic that a table is of."""

    topic: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class TableSize:
    files: int = 0
    rows: int = 0
    bytes: int = 0

    def with_files(self, files: Sequence[NewFile]) -> TableSize:
        rows, size = (sum(getattr(one, name) for one in files) for name in ("rows", "bytes"))
        return TableSize(self.files + len(files), self.rows + rows, self.bytes + size)


class TopicTable:
    """Blocking, and not for several threads at once. Call `refresh` before anything else."""

    def __init__(
        self,
        url: str,
        owner: TableOwner,
        options: Mapping[str, str] | None = None,
        *,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.url = url
        self.owner = owner
        self.options = dict(options or {})
        self.store: AnyStore = open_store(url, self.options)
        self._clock_ms = clock_ms
        self.version = -1
        """The newest known version; -1 before there is any."""
        self.properties: Mapping[str, str] = {}
        self.schema: pa.Schema | None = None
        self.size = TableSize()
        self._table_id = ""
        self._created_ms = 0
        # Files that are known to have been in some version: `sweep` looks at each commit once.
        self._was_added: set[str] = set()

    def refresh(self) -> None:
        """Reads the newest version. Raises NotATopicTable for a table of another topic or program."""
        import pyarrow as pa

        delta = self._opened()
        if delta is None:
            return
        metadata = delta.metadata()
        properties = dict(metadata.configuration)
        if properties.get(TOPIC_ID) != self.owner.topic_id or CUT not in properties:
            raise NotATopicTable(
                f"{self.url} is the table of {properties.get(TOPIC_ID) or 'another program'}, and not of "
                f"{self.owner.topic} with the id {self.owner.topic_id}: move it away, or set another tablesUrl"
            )
        self.version, self.properties = delta.version(), properties
        self._table_id, self._created_ms = str(metadata.id), int(metadata.created_time or 0)
        self.size = _size_of(delta)
        columns = pa.schema(pa.schema(delta.schema().to_arrow()))
        self.schema = pa.schema([field for field in columns if field.name != DAY])

    def _opened(self) -> Any:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(self.url, storage_options=self.options)
        except TableNotFoundError:
            return None

    def snapshot(self) -> TableSnapshot | None:
        """The newest version with its files."""
        delta = self._opened()
        return None if delta is None else snapshot_of(self.url, delta)

    @property
    def cut(self) -> Cut:
        """How far the table has the topic."""
        text = self.properties.get(CUT)
        return Cut() if text is None else Cut.decode(text)

    @property
    def run(self) -> int:
        """Grows with each hole in the table's positions."""
        return int(self.properties.get(RUN, "0"))

    def name(
        self, day: Any, kind: Any, *, run: int | None = None, rows_of: tuple[int, int] | None = None
    ) -> FileName:
        """The name of a file for the next version."""
        version = self.version + 1
        first, last = rows_of or (version, version)
        return FileName(day, kind, self.run if run is None else run, version, first, last, uuid4().hex[:12])

    def commit(
        self,
        *,
        cut: str,
        mode: Mode,
        schema: pa.Schema,
        adds: Sequence[NewFile] = (),
        removes: Sequence[str] = (),
        run: int | None = None,
        changes_rows: bool = True,
        operation: str = "WRITE",
        facts: Mapping[str, Any] | None = None,
        more: Mapping[str, str] | None = None,
    ) -> bool:
        """Makes the next version. False if there is one of that number: nothing was changed, and the added files are
        to be dropped."""
        now_ms = self._clock_ms()
        version = self.version + 1
        properties = {
            "delta.logRetentionDuration": "interval 30 days",
            "delta.deletedFileRetentionDuration": "interval 7 days",
            "delta.enableExpiredLogCleanup": "true",
            **self.properties,
            **(more or {}),
            CUT: cut,
            TOPIC: self.owner.topic,
            TOPIC_ID: self.owner.topic_id,
            MODE: mode,
            RUN: str(self.run if run is None else run),
        }
        table_id, created_ms = self._table_id or str(uuid4()), self._created_ms or now_ms
        made = TableCommit(
            version,
            TableState(table_id, delta_schema(schema), created_ms, properties),
            adds,
            removes,
            changes_rows,
            operation,
            facts or {},
            self.owner.topic_id,
        )
        if not self.store.create(commit_path(version), made.encode(now_ms)):
            return False
        self.version, self.properties, self.schema = version, properties, schema
        if removes:
            self.refresh()
        else:
            self.size = self.size.with_files(adds)
        self._table_id, self._created_ms = table_id, created_ms
        if version and version % CHECKPOINT_EVERY == 0:
            self._checkpoint()
        return True

    def _checkpoint(self) -> None:
        """Written by the maker of the commit. If it is missing, opening the table takes longer, and that is all."""
        from deltalake.exceptions import DeltaError

        try:
            delta = self._opened()
            delta.create_checkpoint()
            delta.cleanup_metadata()
        except (DeltaError, OSError) as error:
            log.warning("%s: writing a checkpoint failed: %s", self.url, error)

    # -- files

    def known_files(self) -> list[KnownFile]:
        """The files of the newest version that this writer may merge."""
        import pyarrow as pa

        delta = self._opened()
        if delta is None:
            return []
        actions = pa.table(delta.get_add_actions(flatten=True))
        if not actions.num_rows:
            return []
        columns = (actions.column(name).to_pylist() for name in ("path", "size_bytes", "modification_time"))
        named = ((FileName.parse(path), size, ms) for path, size, ms in zip(*columns, strict=True))
        return [KnownFile(name, size, ms) for name, size, ms in named if name is not None]

    def sweep(self) -> list[str]:
        """Removes files that no version has or will have; returns their paths.

        Such a file was written for a version that was made without it. A version whose commit is gone from the log,
        after `delta.logRetentionDuration`, proves nothing, and its files are left alone.
        """
        there = [
            path for path in self.store.paths() if not path.startswith(LOG) and path not in self._was_added
        ]
        snapshot = self.snapshot()
        if snapshot is None:
            return []
        suspected = suspects(there, (file.path for file in snapshot.files), snapshot.version)
        added: dict[int, frozenset[str]] = {}
        for version in suspected:
            data = self.store.read(commit_path(version))
            if data is not None:
                added[version] = frozenset(added_paths(data))
        found = rubbish(suspected, added)
        self.store.remove(found)
        self._was_added |= {path for paths in added.values() for path in paths}
        return found

    def vacuum(self, retention_hours: int) -> list[str]:
        """Removes files that were merged into others longer ago than that; versions that had them cannot be read
        then."""
        delta = self._opened()
        if delta is None:
            return []
        old: list[str] = delta.vacuum(
            retention_hours=retention_hours, dry_run=True, enforce_retention_duration=False
        )
        ours = [path for path in old if FileName.parse(path) is not None]
        self.store.remove(ours)
        return ours


def _size_of(delta: Any) -> TableSize:
    import pyarrow as pa
    import pyarrow.compute as pc

    actions = pa.table(delta.get_add_actions(flatten=True))
    if not actions.num_rows:
        return TableSize()
    rows, size = (pc.sum(actions.column(name)).as_py() or 0 for name in ("num_records", "size_bytes"))
    return TableSize(actions.num_rows, rows, size)


def delta_schema(schema: pa.Schema) -> str:
    """Delta's JSON of the columns, with `day` behind them."""
    import pyarrow as pa
    from deltalake import Schema

    columns = schema if DAY in schema.names else schema.append(pa.field(DAY, pa.date32()))
    return str(Schema.from_arrow(columns).to_json())
