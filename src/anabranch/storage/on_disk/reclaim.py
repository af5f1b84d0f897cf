"""Reclaims disk: removes files in which nothing is live, and rewrites those that are mostly dead or scattered.

`choose` decides and is pure. `Reclaimer` carries the decision out: new files are synced before locations are exchanged,
and only then are old ones unlinked, after the last read plan that names them has expired. After a crash in between both
copies exist, and the newer generation counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import add, ne
from pathlib import Path
from typing import TypeVar

from anabranch.model.position import Incarnation
from anabranch.storage.core.live import Liveness, LiveRow
from anabranch.storage.core.tiered import TIERED, is_tiered
from anabranch.storage.core.topic_record import namespace_of
from anabranch.storage.on_disk.catalog import Catalog, FooterIndex, LogFile, OpenIndex
from anabranch.storage.on_disk.files import Files
from anabranch.storage.on_disk.holds import PlanHolds
from anabranch.storage.on_disk.index_files import read_place
from anabranch.storage.on_disk.indexing import load_file
from anabranch.storage.on_disk.names import LedgerName
from anabranch.storage.on_disk.rewrite import SUFFIX, Piece, RewriteDone, RewriteJob, plan_outputs

log = logging.getLogger(__name__)

T = TypeVar("T")

Rewriter = Callable[[RewriteJob], Awaitable[RewriteDone]]

# Sources of one job: this bounds how much of the reserve it needs, and how much a crash can waste.
_SOURCES_MAX = 8

# How long a file must have been seen full before it is rewritten for being scattered.
_SETTLE_MS = 15 * 60 * 1000

# The sample from which it is estimated how scattered a file is.
_SAMPLE_ROWS = 64
_SAMPLE_ENTRIES = 256


@dataclass(frozen=True, slots=True)
class FileFacts:
    """One finished file. `is_needed` if it must stay whatever it holds, because recovery would start there."""

    id: int
    disk_bytes: int
    live_bytes: int
    stretches: int
    is_rewritten: bool
    is_needed: bool = False
    # For a rewritten file: its namespace's folder, and the bytes of all its records, live or not.
    folder: str = ""
    record_bytes: int = 0
    # Old enough that its live entries will probably stay live for a while.
    is_settled: bool = True
    # Its records are in an object store. It is removed like any file, and never rewritten.
    is_moved: bool = False

    @property
    def is_mostly_dead(self) -> bool:
        if self.is_moved:
            return False
        # A small rewritten file is mostly header and blocks, and rewriting it would not change that.
        return 2 * self.live_bytes < (self.record_bytes if self.is_rewritten else self.disk_bytes)


@dataclass(frozen=True, slots=True)
class ReclaimPolicy:
    file_bytes: int
    # WAL files beyond this total are rewritten, oldest first, even if all their entries are live.
    wal_bytes_max: int
    # WAL files whose stretches are shorter than this on average are rewritten, once there are enough for a job.
    stretch_bytes_min: int
    # How much more than that there must be: ledgers of several files together are better to read than file by file.
    wal_step_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ReclaimVerdict:
    remove: tuple[int, ...]
    rewrite: tuple[int, ...]


def choose(files: Sequence[FileFacts], policy: ReclaimPolicy, *, is_thorough: bool) -> ReclaimVerdict:
    """Which files to remove at once and which to rewrite, oldest first.

    Unless thorough, mostly dead files wait until together they waste a whole file: the promise is that the log takes
    twice its live bytes plus a few files, and rewriting even a few bytes costs a process.
    """
    free = [file for file in files if not file.is_needed]
    remove = tuple(file.id for file in free if file.live_bytes == 0)
    alive = [file for file in free if file.live_bytes]
    dead = [file for file in alive if file.is_mostly_dead]
    if not is_thorough and sum(file.disk_bytes - file.live_bytes for file in dead) < policy.file_bytes:
        dead = []
    chosen = {file.id for file in dead}
    # Most entries die young: rewriting those that are about to be consumed would only cost writes.
    settled = [file for file in alive if is_thorough or file.is_settled]
    short = [file for file in settled if not file.is_rewritten and _is_scattered(file, policy)]
    if len(short) >= _SOURCES_MAX:
        chosen |= {file.id for file in short}
    chosen |= _crowds(alive, policy)
    wal = [file for file in alive if not file.is_rewritten]
    excess = sum(file.disk_bytes for file in wal if file.id not in chosen) - policy.wal_bytes_max
    if excess <= policy.wal_step_bytes:
        excess = 0
    for file in wal:
        if excess <= 0:
            break
        if file.id not in chosen:
            chosen.add(file.id)
            excess -= file.disk_bytes
    return ReclaimVerdict(remove, tuple(file.id for file in alive if file.id in chosen))


def _crowds(files: Sequence[FileFacts], policy: ReclaimPolicy) -> set[int]:
    """Small rewritten files of one namespace, once there are enough of them to make one."""
    small: dict[str, list[int]] = {}
    for file in files:
        if file.is_rewritten and not file.is_moved and file.disk_bytes < policy.file_bytes // 8:
            small.setdefault(file.folder, []).append(file.id)
    return {one for crowd in small.values() if len(crowd) >= _SOURCES_MAX for one in crowd}


def _is_scattered(file: FileFacts, policy: ReclaimPolicy) -> bool:
    return file.stretches > 1 and file.live_bytes < policy.stretch_bytes_min * file.stretches


def count_stretches(index: OpenIndex | FooterIndex, rows: Sequence[LiveRow]) -> int:
    """About how many separate stretches of the file hold those entries, from a sample of them.

    Ledgers that were written at the same time alternate, commit by commit: many short stretches, however many bytes a
    ledger has in the file as a whole.
    """
    if len(rows) <= 1:
        return len(rows)
    size = pieces = 0
    for row in rows[:: -(-len(rows) // _SAMPLE_ROWS)]:
        places = index.places(row.ledger, row.first, min(row.end - row.first, _SAMPLE_ENTRIES))
        assert places is not None
        _, offsets, lengths = places
        size += sum(lengths)
        pieces += 1 + sum(map(ne, map(add, offsets, lengths), offsets[1:]))
    return max(len(rows), sum(row.size for row in rows) * pieces // size)


class Reclaimer:
    def __init__(
        self,
        root: Path,
        own: Incarnation,
        files: Files,
        executor: Executor,
        catalog: Catalog,
        live: Liveness,
        rewriter: Rewriter,
        clock_ms: Callable[[], int],
        policy: Callable[[], ReclaimPolicy],
        *,
        room_bytes: Callable[[], int | None] = lambda: None,
        has_tier: bool = False,
        holds: PlanHolds | None = None,
        name_of: Callable[[int], LedgerName | None] = lambda _: None,
    ) -> None:
        # When each file was first seen full.
        self._seen: dict[int, int] = {}
        self._root = root
        self._own = own
        self._files = files
        self._executor = executor
        self._catalog = catalog
        self._live = live
        self._rewriter = rewriter
        self._clock_ms = clock_ms
        # Asked for at each pass: what is to be kept may depend on the room that there is.
        self._policy = policy
        # The most bytes of files that a job may write; None for no bound but the number of its sources.
        self._room_bytes = room_bytes
        # Without one, moved files stay: their objects could not be deleted.
        self._has_tier = has_tier
        # Plans of other processes that share this root; None if there are none.
        self._holds = holds
        self._name_of = name_of
        self._facts: dict[int, tuple[FileFacts, list[LiveRow]]] = {}
        # Facts are gathered on a thread. Files whose facts the loop changes meanwhile are listed here, and their facts
        # not stored.
        self._stale: set[int] = set()
        self._storing = threading.Lock()
        # Raised by every job, also one that failed: two copies of one generation would both count.
        self._generation = 0
        # Files that a read plan names: not unlinked before that time.
        self._planned: dict[Path, int] = {}
        # Files out of the catalog, still on disk because of a plan: (file, when it may be unlinked).
        self._doomed: list[tuple[LogFile, int]] = []
        # Sources with a damaged record: they are not rewritten.
        self._damaged: set[int] = set()
        # The objects of moved files whose index files are gone: to be deleted.
        self.garbage: list[str] = []
        self.rewritten_bytes = 0
        self.removed_files = 0

    # -- what changes a file's facts

    def touched(self, ledger: int) -> None:
        self._touched(self._catalog.files_of(ledger))

    def touched_all(self) -> None:
        self._touched(list(self._catalog.files.values()))

    def _touched(self, files: Iterable[LogFile]) -> None:
        with self._storing:
            for file in files:
                self._facts.pop(file.id, None)
                self._stale.add(file.id)

    def planned(self, files: Iterable[LogFile], until_ms: int) -> None:
        # By path: recovered files are indexed again as more of their incarnation is taken, and become other objects
        # then.
        for file in files:
            self._planned[file.path] = max(until_ms, self._planned.get(file.path, 0))

    @property
    def doomed_bytes(self) -> int:
        return sum(file.disk_bytes for file, _ in self._doomed)

    @property
    def doomed_paths(self) -> set[Path]:
        return {file.path for file, _ in list(self._doomed)}

    @property
    def doomed_incarnations(self) -> set[Incarnation | None]:
        return {file.incarnation for file, _ in self._doomed}

    def live_bytes(self) -> int:
        """On this disk, as far as known: the live bytes of files that have not changed since the last pass, and of the
        one being written."""
        facts = dict(self._facts)
        known = sum(one.live_bytes for one, _ in facts.values() if not one.is_moved)
        here = [file for file in list(self._catalog.files.values()) if file.place is None]
        rest = [file for file in here if file.id not in facts]
        return known + sum(row.size for file in rest for row in self._live.rows(file))

    # -- one pass

    async def run(
        self,
        *,
        is_thorough: bool,
        scope: Callable[[LogFile], bool] = lambda _: True,
        rewriter: Rewriter | None = None,
        may_rewrite: bool = True,
    ) -> None:
        """Removes and rewrites until there is nothing left to do, those files that `scope` includes."""
        await self._in_thread(self._unlink_doomed)
        while True:
            verdict = await self._in_thread(self._judge, is_thorough, scope)
            gone = [self._catalog.files[one] for one in verdict.remove if one in self._catalog.files]
            await self._remove(gone)
            if not verdict.rewrite or not may_rewrite:
                return
            ids = self._first_job(verdict.rewrite)
            if not ids or not await self._rewrite(ids, rewriter or self._rewriter):
                return

    def _judge(self, is_thorough: bool, scope: Callable[[LogFile], bool]) -> ReclaimVerdict:
        finished = [file for file in list(self._catalog.files.values()) if file.is_finished and scope(file)]
        own = [file.number for file in finished if file.incarnation == self._own]
        now = self._clock_ms()
        # Both are kept only for files that still exist.
        with self._storing:
            self._stale.intersection_update(list(self._catalog.files))
        self._seen = {file.id: self._seen.get(file.id, now) for file in finished}
        facts = [
            replace(
                self._facts_of(file, last_own=max(own, default=0)),
                is_settled=now - self._seen[file.id] >= _SETTLE_MS,
            )
            for file in finished
        ]
        return choose(facts, self._policy(), is_thorough=is_thorough)

    def _first_job(self, ids: Sequence[int]) -> Sequence[int]:
        """As many of those files as one job rewrites."""
        room = self._room_bytes()
        if room is None:
            return ids[:_SOURCES_MAX]
        sizes = accumulate(self._facts[one][0].live_bytes if one in self._facts else 0 for one in ids)
        return [one for one, size in zip(ids, sizes, strict=True) if size <= room][:_SOURCES_MAX]

    def _facts_of(self, file: LogFile, last_own: int) -> FileFacts:
        # The last checkpoint of the log being written is in its last finished file.
        is_needed = (file.incarnation == self._own and file.number == last_own) or file.id in self._damaged
        is_needed = is_needed or (file.place is not None and not self._has_tier)
        known = self._facts.get(file.id)
        if known is None or known[0].is_needed != is_needed:
            with self._storing:
                self._stale.discard(file.id)
            rows = [row for row in self._live.rows(file) if not self._is_replaced(file, row)]
            size = sum(row.size for row in rows)
            facts = FileFacts(
                file.id,
                file.disk_bytes,
                size,
                count_stretches(file.index, rows) if file.place is None else 1,
                file.is_rewritten,
                is_needed,
                str(file.path.parent) if file.is_rewritten else "",
                sum(row[3] for row in file.index.rows()) if file.is_rewritten else 0,
                is_moved=file.place is not None,
            )
            known = (facts, rows)
            with self._storing:
                # Ledgers trimmed or deleted while the facts were gathered may still be in them.
                if file.id not in self._stale:
                    self._facts[file.id] = known
        return known[0]

    def _is_replaced(self, file: LogFile, row: LiveRow) -> bool:
        """True if a copy that counts more holds the same entries: a crash came between a rewrite, or a move, and the
        removal of what was copied."""
        first = row.first
        newer = [one for one in self._catalog.files_of(row.ledger) if one.outranks(file)]
        while newer and first < row.end:
            found = (one.index.places(row.ledger, first, row.end - first) for one in newer)
            covered = max((len(places[1]) for places in found if places is not None), default=0)
            if not covered:
                return False
            first += covered
        return bool(newer)

    async def _rewrite(self, ids: Sequence[int], rewriter: Rewriter) -> bool:
        """True if this achieved something, so that another round makes sense."""
        sources, job = await self._in_thread(self._plan, ids)
        if not job.outputs:
            return False
        try:
            done = await rewriter(job)
            loaded = await self._in_thread(self._load_outputs, done.paths)
        except OSError as error:
            log.warning("rewriting %d files failed, they stay: %s", len(sources), error)
            await self._in_thread(self._unlink_outputs, job)
            return False
        if done.damaged:
            for one in done.damaged:
                log.error("%s has a damaged record and is not rewritten", sources[one].path)
                self._damaged.add(sources[one].id)
            return True
        known = {file.path for file in self._catalog.files.values() if file.is_rewritten}
        for file in loaded:
            # In a shared log a look at the folder may have found it first.
            if file.path not in known:
                self._catalog.add_indexed(file)
            self.rewritten_bytes += file.disk_bytes
            await asyncio.sleep(0)
        await self._remove([file for file in sources if file.id in self._catalog.files])
        return True

    def _plan(self, ids: Sequence[int]) -> tuple[list[LogFile], RewriteJob]:
        """Runs on a thread: there may be as many pieces as ledgers."""
        known = [(self._catalog.files.get(one), self._facts.get(one)) for one in ids]
        found = [(file, facts[1]) for file, facts in known if file is not None and facts is not None]
        pieces = [
            (self._namespace(row.ledger), Piece(i, row.ledger, row.first, row.end, row.size))
            for i, (_, rows) in enumerate(found)
            for row in rows
        ]
        generations = [file.generation for file in list(self._catalog.files.values())]
        self._generation = 1 + max([self._generation, *generations])
        outputs = plan_outputs(
            pieces,
            self._generation,
            self._root,
            file_bytes=self._policy().file_bytes,
            name_of=self._name_of,
        )
        sources = [(str(file.path), file.number, file.is_rewritten) for file, _ in found]
        return [file for file, _ in found], RewriteJob(sources, outputs)

    def _namespace(self, ledger: int) -> str:
        if (namespace := self._live.namespace(ledger)) or (name := self._name_of(ledger)) is None:
            return namespace
        return namespace_of(name.record)

    def _unlink_outputs(self, job: RewriteJob) -> None:
        """Removes the outputs of a job that failed half-way: they are in no catalog, and their sources stay."""
        for output in job.outputs:
            for name in (output.name, f".{output.name}"):
                with contextlib.suppress(OSError):
                    self._files.unlink(Path(output.folder) / name)

    def _load_outputs(self, paths: Sequence[str]) -> list[LogFile]:
        loaded = [load_file(self._files, Path(path), 0, is_rewritten=True) for path in paths]
        if not all(loaded):
            raise OSError("a rewritten file cannot be read back")
        return [one for one in loaded if one is not None]

    def known_facts(self, files: Iterable[LogFile]) -> list[FileFacts]:
        """The facts of those files that have not changed since the last pass, in their order, without damaged ones."""
        found = (self._facts.get(file.id) for file in files if file.id not in self._damaged)
        return [facts for known in found if known is not None for facts in (known[0],)]

    def damaged(self, file: LogFile) -> None:
        """It has a damaged record, and stays as it is."""
        self._damaged.add(file.id)
        self._touched([file])

    async def exchange(self, sources: Sequence[LogFile], copies: Sequence[LogFile]) -> None:
        """From now on the copies count; the sources go when no plan names them any more."""
        known = {file.path for file in self._catalog.files.values() if file.is_rewritten}
        for file in copies:
            if file.path not in known:
                self._catalog.add_indexed(file)
        await self._remove([file for file in sources if file.id in self._catalog.files])

    async def _remove(self, files: Sequence[LogFile]) -> None:
        """Drops files from the catalog, then unlinks them, at once or when the last plan that names them has
        expired."""
        if not files:
            return
        self._catalog.remove(files)
        for file in files:
            self._facts.pop(file.id, None)
            self._stale.discard(file.id)
            self._doomed.append((file, self._planned.pop(file.path, 0)))
        self.removed_files += len(files)
        await self._in_thread(self._unlink_doomed)

    def _unlink_doomed(self) -> None:
        now = self._clock_ms()
        due = [one for one in self._doomed if one[1] <= now]
        self._doomed = [one for one in self._doomed if one[1] > now]
        for file, until_ms in due:
            index = file.path.with_suffix(".idx")
            if self._holds is not None:
                if not self._holds.try_unlink(file.path, [index]):
                    # A plan of another process names it.
                    self._doomed.append((file, until_ms))
                    continue
            else:
                for path in (file.path, index):
                    with contextlib.suppress(FileNotFoundError):
                        self._files.unlink(path)
            if file.place is not None:
                # Only now: as long as there is an index file, there is the object.
                self.garbage.append(file.place.key)
            # A mapped footer would keep the file's blocks allocated although its name is gone.
            file.index = OpenIndex()

    async def _in_thread(self, call: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, *args)


def load_rewritten(
    files: Files, root: Path, *, except_for: Collection[Path] = (), may_remove: bool = True
) -> list[LogFile]:
    """All rewritten files but those. Removes files that a crash left half written, if it may. Blocking."""
    found: list[LogFile] = []
    folders = [root / "ledgers"]
    while folders:
        folder = folders.pop()
        try:
            names = files.list(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        for name in sorted(names):
            if not name.endswith((SUFFIX, TIERED)):
                folders.append(folder / name)
            elif name.startswith("."):
                if may_remove:
                    files.unlink(folder / name)
            elif folder / name in except_for:
                continue
            elif (loaded := load_rewritten_file(files, folder / name)) is not None:
                found.append(loaded)
            else:
                log.error("%s has no readable footer and is not used", folder / name)
    return found


def load_rewritten_file(files: Files, path: Path) -> LogFile | None:
    """A rewritten file, or the index file of one that was moved; None if it cannot be used. Blocking."""
    loaded = load_file(files, path, 0, is_rewritten=True)
    if loaded is not None and is_tiered(path) and (place := read_place(files, path)) is not None:
        loaded.place = place
    return loaded if loaded is None or loaded.place is not None or not is_tiered(path) else None
