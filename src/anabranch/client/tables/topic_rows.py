"""A topic as a table, as of one moment: files of its history, the tail that the log had beyond them, and the cut at
which both end. A value: nothing in it changes, and nothing is to be closed.

Files are read when rows are asked for, so calls that give rows take as long as that; a program with an event loop makes
them in a thread (`asyncio.to_thread`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from anabranch.client.errors import BadArgument
from anabranch.model.rows_before import RowsBefore
from anabranch.tables.core import condition

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds

    from anabranch.tables.snapshot import TableSnapshot


@dataclass(frozen=True)
class TopicRows:
    """What `Client.table` gives: the rows of a topic up to `cut`, each once."""

    topic: str
    cut: bytes
    """Where the rows end: a checkpoint. Everything before it is here, and nothing else."""
    schema: pa.Schema
    """The columns. `order by segment, ledger, entry, index` is the order of publishing for each key."""
    tail: pa.Table
    """The rows that are in no file yet."""
    snapshot: TableSnapshot | None = None
    """The version of the table that the files are of; None if there was none, or none was wanted."""
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    before: RowsBefore | None = None
    """Which rows of the files are wanted; None for all."""

    @property
    def version(self) -> int | None:
        """The version of the table; None if its history is not here."""
        return None if self.snapshot is None else self.snapshot.version

    @property
    def seam(self) -> bytes | None:
        """The cut at which files end and the tail begins; None without history."""
        return None if self.snapshot is None else self.snapshot.cut.encode()

    @property
    def files(self) -> list[str]:
        """The history's Parquet files, for whatever reads Parquet. Wanted are the rows for which `where` holds."""
        return [] if self.snapshot is None else self.snapshot.file_uris

    @property
    def where(self) -> str:
        """A condition in SQL on rows of `files`: "true", unless they go further than what was asked for."""
        return "true" if self.before is None else condition.sql(self.before)

    def __repr__(self) -> str:
        return f"<TopicRows {self.topic}, version {self.version}, {len(self.files)} files, tail of {len(self.tail)}>"

    # -- rows

    def dataset(self) -> ds.Dataset:
        """History and tail as one dataset, which reads columns and row groups as they are needed."""
        import pyarrow.dataset as ds

        tail = ds.dataset(self.tail)
        found = ds.dataset([self._history(), tail]) if self.files else tail
        return found if self.before is None else found.filter(condition.expression(self.before))

    def to_arrow(self, columns: Sequence[str] | None = None, filter: Any = None) -> pa.Table:
        """All rows, or those for which a filter of `pyarrow.compute` holds, with all columns or some."""
        return self.dataset().to_table(columns=None if columns is None else list(columns), filter=filter)

    def to_pandas(self, columns: Sequence[str] | None = None, filter: Any = None) -> Any:
        """The same as a frame of Pandas."""
        return self.to_arrow(columns, filter).to_pandas()

    def duckdb(self, connection: Any, name: str) -> Any:
        """Makes a temporary view of that name in a connection of DuckDB, and gives it as a relation.

        DuckDB reads the files itself. The view is of the moment of this table, whatever comes later.
        """
        if not name or '"' in name:
            raise BadArgument(f"name={name!r}: give the view a name without quotation marks")
        tail = f"{name}__tail"
        connection.register(tail, self.tail)
        columns = ", ".join(f'"{one}"' for one in self.schema.names)
        query = f'select {columns} from "{tail}" where {self.where}'
        if self.files:
            assert self.snapshot is not None
            files = ", ".join(f"'{_for_duckdb(uri)}'" for uri in self.files)
            by_name = "true" if self.snapshot.mode == "decoded" else "false"
            query = (
                f"select {columns} from read_parquet([{files}], hive_partitioning = false, "
                f"union_by_name = {by_name}) where {self.where} union all by name {query}"
            )
        connection.execute(f'create or replace temporary view "{name}" as {query}')
        return connection.view(name)

    def _history(self) -> Any:
        import pyarrow.dataset as ds

        assert self.snapshot is not None
        filesystem, base = _filesystem(self.snapshot.url, self.storage_options)
        form = ds.ParquetFileFormat()
        fragments = [
            form.make_fragment(f"{base}{file.path}", filesystem=filesystem) for file in self.snapshot.files
        ]
        return ds.FileSystemDataset(fragments, self.schema, form, filesystem)


def _for_duckdb(uri: str) -> str:
    found = urlsplit(uri)
    path = unquote(found.path) if found.scheme == "file" else uri
    return path.replace("'", "''")


def _filesystem(url: str, options: Mapping[str, str]) -> tuple[Any, str]:
    """Where the files are, and what stands before their names there."""
    import pyarrow.fs as fs

    found = urlsplit(url)
    if found.scheme in ("", "file"):
        path = unquote(found.path) if found.scheme else url
        return fs.LocalFileSystem(use_mmap=True), f"{path.rstrip('/')}/"
    from deltalake.fs import DeltaStorageHandler

    return fs.PyFileSystem(DeltaStorageHandler(url, dict(options))), ""
