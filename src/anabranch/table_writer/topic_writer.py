"""Keeps one topic's table: reads from the table's cut on, writes one file, and commits it with the cut behind it.

Every step may fail or end the process. Before the commit nothing has happened; after it the table has these rows. The
next step, of this process or another, begins at the cut that the table has then. A file that was written for a commit
that did not happen is removed here, or by the sweep of the writer that goes on.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from anabranch.client.errors import CryptoFailed, TopicDeleted
from anabranch.model.cut import Cut, MessagePosition
from anabranch.model.resuming import DataLost
from anabranch.model.segments import SegmentId
from anabranch.table_writer.core.reached import cut_short
from anabranch.table_writer.feed import Stretch, TableFeed, told
from anabranch.table_writer.settings import WriterSettings
from anabranch.tables.core.commit import NewFile
from anabranch.tables.core.names import table_url
from anabranch.tables.store import FolderTableStore
from anabranch.tables.table import TableOwner, TopicTable

if TYPE_CHECKING:
    import pyarrow as pa

    from anabranch.table_writer.decoding import Decoding
    from anabranch.tables.core.schema import Mode
    from anabranch.tables.parquet import DayFiles, WrittenFile

log = logging.getLogger(__name__)

Outcome = Literal["nothing", "committed", "overtaken"]
# A commit is not put off for longer than this, so that a slow reader shows what it has.
READING_MAX_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class StepDone:
    """What a step did."""

    outcome: Outcome
    rows: int = 0
    bytes: int = 0
    undecoded: int = 0
    has_more: bool = False  # The commit ended early.


@dataclass(frozen=True, slots=True)
class _Read:
    files: tuple[WrittenFile, ...]
    cut: Cut
    rows: int
    bytes: int
    undecoded: int
    has_more: bool
    schema: pa.Schema


class TopicWriter:
    """Call `open`, then `step` as often as wanted, `close` at the end."""

    def __init__(
        self,
        settings: WriterSettings,
        feed: TableFeed,
        mode: Mode = "raw",
        *,
        clock: Callable[[], float] = time.monotonic,
        check: Callable[[str], None] = lambda point: None,
    ) -> None:
        self._settings = settings
        self._feed = feed
        self._clock = clock
        # Called with the name of each point between two effects: tests end the process there.
        self._check = check
        self.mode = mode
        self._decoding: Decoding | None = None
        # Segments with entries that a client cannot open.
        self._sealed: set[SegmentId] = set()
        self.table: TopicTable | None = None

    async def open(self) -> None:
        """Raises TopicDeleted if there is no such topic."""
        await self._feed.open()
        owner = TableOwner(self._feed.topic, self._feed.topic_id)
        url = table_url(self._settings.place.base, owner.topic, owner.topic_id)
        self.table = TopicTable(url, owner, self._settings.place.options)
        await asyncio.to_thread(self.table.refresh)

    async def close(self) -> None:
        await self._feed.close()

    async def step(self) -> StepDone:
        """One commit, if there is anything to commit. Any error may be followed by another step."""
        table = self.table
        assert table is not None
        try:
            return await self._step(table)
        except TopicDeleted:
            raise
        except Exception:
            # Whether a commit was made is unknown: the table knows.
            with suppress(Exception):
                await asyncio.to_thread(table.refresh)
            raise

    async def _step(self, table: TopicTable) -> StepDone:
        stretch = await self._feed.next(table.cut)
        if stretch.end == stretch.start and table.version >= 0:
            return StepDone("nothing")
        try:
            read = await asyncio.to_thread(self._read, table, stretch)
        except DataLost as error:
            log.warning("%s: %s", self._feed.topic, error)
            stretch = await self._feed.next(table.cut, may_lose=True)
            read = await asyncio.to_thread(self._read, table, stretch)
            return await asyncio.to_thread(self._commit, table, stretch, read, str(error))
        hole = told(self._feed.topic, stretch.gaps) if stretch.gaps else ""
        return await asyncio.to_thread(self._commit, table, stretch, read, hole)

    # -- in a thread

    def _drafts(self) -> Path:
        assert self.table is not None
        if isinstance(self.table.store, FolderTableStore):
            return self.table.store.drafts
        return Path(self._settings.drafts or tempfile.gettempdir())

    def _read(self, table: TopicTable, stretch: Stretch) -> _Read:
        from anabranch.table_writer.reading import rows_of
        from anabranch.tables.core.schema import RAW

        if self._decoding is not None:
            self._decoding.refresh()
        progress = _Progress(self._settings.commit_bytes, self._clock() + READING_MAX_S, self._clock)
        segment = SegmentId(0)
        with (
            self._noting_sealed(lambda: segment),
            _Files(self._drafts(), table.schema or RAW, self._active_decoding()) as files,
        ):
            for task in stretch.tasks:
                segment = task.slice.segment
                for rows, behind in rows_of(task, is_sealed=segment in self._sealed):
                    if not files.add(segment, rows, may_wait=behind is not None):
                        progress.has_more = True  # These rows need columns that this commit's files have not.
                        break
                    if behind is not None:
                        progress.took(segment, behind, files.bytes)
                    if progress.has_more:
                        break
                if progress.has_more:
                    break
                progress.finished.add(segment)
            self._check("read")
            written = files.finished()
        slices = [task.slice for task in stretch.tasks]
        cut = stretch.end
        if progress.has_more:
            cut = cut_short(stretch.end, slices, frozenset(progress.finished), progress.partly)
        return _Read(
            tuple(written), cut, files.rows, files.bytes, files.undecoded, progress.has_more, files.schema
        )

    @contextmanager
    def _noting_sealed(self, segment: Callable[[], SegmentId]) -> Iterator[None]:
        """Entries that a client cannot open were passed by reading through the broker: from the next attempt on, all of
        that segment is read in another way, and nothing of this attempt is committed."""
        try:
            yield
        except CryptoFailed as error:
            log.info("%s: some entries keep their bytes as they are: %s", self._feed.topic, error)
            self._sealed.add(segment())
            raise

    def _active_decoding(self) -> Decoding | None:
        if self.mode != "decoded":
            return None
        if self._decoding is None:
            from anabranch.table_writer.decoding import Decoding

            self._decoding = Decoding(self._feed.schema)
        return self._decoding

    def _commit(self, table: TopicTable, stretch: Stretch, read: _Read, hole: str) -> StepDone:
        from anabranch.tables.core.statistics import delta_stats

        run = table.run + 1 if hole and table.version >= 0 else table.run
        adds: list[NewFile] = []
        self._check("written")
        for file in read.files:
            name = table.name(file.day, "hot", run=run)
            size = table.store.put(name.path, file.path)
            adds.append(NewFile(name, size, file.rows, delta_stats(file.bounds)))
            self._check("put")
        facts: dict[str, Any] = {"rows": read.rows, "from": stretch.start.encode().decode()}
        if read.undecoded:
            facts["undecoded"] = read.undecoded
        if hole:
            facts["hole"] = hole
        is_done = table.commit(
            cut=read.cut.encode().decode(),
            mode=self.mode,
            schema=read.schema,
            adds=adds,
            run=run,
            facts=facts,
        )
        self._check("committed")
        if not is_done:
            table.store.remove(one.name.path for one in adds)
            table.refresh()
            return StepDone("overtaken")
        return StepDone("committed", read.rows, read.bytes, read.undecoded, read.has_more)


class _Files:
    """The files of one commit. Their columns are fixed with the first rows."""

    def __init__(self, folder: Path, schema: pa.Schema, decoding: Decoding | None) -> None:
        self._folder = folder
        self._decoding = decoding
        self._files: DayFiles | None = None
        self.schema = schema
        self.rows = self.bytes = self.undecoded = 0

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *failed: Any) -> None:
        if self._files is not None:
            self._files.__exit__(*failed)

    def add(self, segment: SegmentId, rows: pa.RecordBatch, *, may_wait: bool) -> bool:
        """False if the rows need more columns and `may_wait`: they belong into the next commit."""
        from anabranch.tables.parquet import DayFiles, fitted_batch

        undecoded = rows.num_rows - rows.column("undecoded").null_count
        schema = self.schema
        if self._decoding is not None:
            schema = self._decoding.schema_for(schema, rows)
            if self._files is not None and schema != self.schema:
                if may_wait:
                    return False
                # Their place is unknown until all of the segment is read. What has no column yet keeps its bytes.
                schema = self.schema
            rows, undecoded = self._decoding.rows(rows, schema)
        elif rows.schema != schema:
            rows = fitted_batch(rows, schema)
        if self._files is None:
            self.schema, self._files = schema, DayFiles(self._folder, schema)
        self._files.add(segment, rows)
        self.rows += rows.num_rows
        self.bytes += rows.nbytes
        self.undecoded += undecoded
        return True

    def finished(self) -> list[WrittenFile]:
        return [] if self._files is None else self._files.finished()


class _Progress:
    """How far the slices of a commit were read."""

    def __init__(self, bytes_max: int, deadline_s: float, clock: Callable[[], float]) -> None:
        self._bytes_max = bytes_max
        self._deadline_s = deadline_s
        self._clock = clock
        self.finished: set[SegmentId] = set()
        self.partly: dict[SegmentId, MessagePosition] = {}
        self.has_more = False

    def took(self, segment: SegmentId, behind: MessagePosition, size: int) -> None:
        """Takes note of rows that were written, and of the bytes of the commit with them."""
        self.partly[segment] = behind
        self.has_more = size >= self._bytes_max or self._clock() >= self._deadline_s
