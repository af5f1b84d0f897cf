"""Keeps one topic's table: reads from the table's cut on, writes one file, and commits it with the cut behind it.

Every step may fail or end the process. Before the commit nothing has happened; after it the table has these rows. The
next step, of this process or another, begins at the cut that the table has then. A file that was written for a commit
that did not happen is removed here, or by the sweep of whoever goes on.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from anabranch.client.errors import TopicDeleted
from anabranch.model.cut import Cut, MessagePosition
from anabranch.model.resuming import DataLost
from anabranch.model.segments import SegmentId
from anabranch.spark.plan.task import Task
from anabranch.table_writer.core.reached import cut_short, position_behind
from anabranch.table_writer.feed import Stretch, TopicFeed, told
from anabranch.table_writer.settings import WriterSettings
from anabranch.tables.core.commit import NewFile
from anabranch.tables.core.names import FileName, table_url
from anabranch.tables.store import FolderTableStore
from anabranch.tables.table import TableOwner, TopicTable

log = logging.getLogger(__name__)

Outcome = Literal["nothing", "committed", "overtaken"]
# A commit is not put off for longer than this, so that a slow reader shows what it has.
READING_MAX_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Step:
    """What a step did."""

    outcome: Outcome
    rows: int = 0
    bytes: int = 0
    undecoded: int = 0
    has_more: bool = False  # The commit ended early.


@dataclass(frozen=True, slots=True)
class _Read:
    files: tuple[tuple[Any, Path], ...]  # Written files, and where they are.
    cut: Cut
    rows: int
    bytes: int
    undecoded: int
    has_more: bool
    schema: Any


class TopicWriter:
    """Call `open`, then `step` as often as wanted, `close` at the end."""

    def __init__(
        self,
        settings: WriterSettings,
        feed: TopicFeed,
        mode: Any = "raw",
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

    async def step(self) -> Step:
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

    async def _step(self, table: TopicTable) -> Step:
        stretch = await self._feed.next(table.cut)
        if stretch.end == stretch.start and table.version >= 0:
            return Step("nothing")
        try:
            read = await asyncio.to_thread(self._read, stretch)
        except DataLost as error:
            log.warning("%s: %s", self._feed.topic, error)
            stretch = await self._feed.next(table.cut, may_lose=True)
            read = await asyncio.to_thread(self._read, stretch)
            return await asyncio.to_thread(self._commit, table, stretch, read, str(error))
        hole = told(self._feed.topic, stretch.gaps) if stretch.gaps else ""
        return await asyncio.to_thread(self._commit, table, stretch, read, hole)

    # -- in a thread

    def _drafts(self) -> Path:
        assert self.table is not None
        if isinstance(self.table.store, FolderTableStore):
            return self.table.store.drafts
        return Path(self._settings.drafts or tempfile.gettempdir())

    def _read(self, stretch: Stretch) -> _Read:
        from anabranch.columns.decode import SCHEMA_VERSION
        from anabranch.spark.task.read_slice import messages
        from anabranch.tables.core.rows import raw_rows
        from anabranch.tables.core.schema import RAW
        from anabranch.tables.parquet import DayFiles

        assert SCHEMA_VERSION
        size = rows = undecoded = 0
        finished: set[SegmentId] = set()
        partly: dict[SegmentId, MessagePosition] = {}
        deadline = self._clock() + READING_MAX_S
        has_more = False
        with DayFiles(self._drafts(), RAW) as files:
            for task in stretch.tasks:
                if has_more:
                    break
                for batch in messages(task):
                    found = raw_rows(batch, task.topic, task.slice.segment)
                    files.add(task.slice.segment, found)
                    rows += found.num_rows
                    size += found.nbytes
                    if size >= self._settings.commit_bytes or self._clock() >= deadline:
                        partly[task.slice.segment] = _behind_last(batch)
                        has_more = True
                        break
                else:
                    finished.add(task.slice.segment)
            self._check("read")
            written = files.finished()
        slices = [task.slice for task in stretch.tasks]
        cut = cut_short(stretch.end, slices, frozenset(finished), partly) if has_more else stretch.end
        return _Read(tuple((one, one.path) for one in written), cut, rows, size, undecoded, has_more, RAW)

    def _commit(self, table: TopicTable, stretch: Stretch, read: _Read, hole: str) -> Step:
        from anabranch.tables.core.statistics import delta_stats

        run = table.run + 1 if hole and table.version >= 0 else table.run
        adds: list[NewFile] = []
        self._check("written")
        for file, path in read.files:
            name = table.name(file.day, "hot", run=run)
            adds.append(NewFile(name, table.store.put(name.path, path), file.rows, delta_stats(file.bounds)))
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
            return Step("overtaken")
        return Step("committed", read.rows, read.bytes, read.undecoded, read.has_more)


def _behind_last(batch: Any) -> MessagePosition:
    last = batch.num_rows - 1
    ledger, entry, index = (
        batch.column(name)[last].as_py() for name in ("ledger_id", "entry_id", "batch_index")
    )
    return position_behind(ledger, entry, index)


__all__ = ["FileName", "Mapping", "Sequence", "Step", "Task", "TopicWriter"]
