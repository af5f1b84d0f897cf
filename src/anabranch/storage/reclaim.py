"""Giving disk back: removes files in which nothing is live, has those rewritten that are mostly dead or scattered.

`choose` is the decision and is pure. `Reclaimer` carries it out: new files are synced before locations are exchanged,
and only then are old ones unlinked, after the last read plan that names them has expired. Existence describes itself:
after a crash in between, both copies are there and the newer generation counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from operator import add, ne
from pathlib import Path
from typing import TypeVar

from anabranch.model.position import Incarnation
from anabranch.storage.catalog import Catalog, FooterIndex, LogFile, OpenIndex
from anabranch.storage.files import Files
from anabranch.storage.indexing import load_file
from anabranch.storage.live import Liveness, LiveRow
from anabranch.storage.rewrite import SUFFIX, Done, Job, Piece, plan_outputs

log = logging.getLogger(__name__)

T = TypeVar("T")

# Sources of one job: what it needs of the reserve, and how much a crash can waste.
_SOURCES_MAX = 8

# How long a file must have been seen full before it is gathered for being scattered.
_SETTLE_MS = 15 * 60 * 1000

# What is looked at to tell how scattered a file is.
_SAMPLE_ROWS = 64
_SAMPLE_ENTRIES = 256


@dataclass(frozen=True, slots=True)
class Facts:
    """One finished file. `is_needed` if it must stay whatever it holds, because recovery would start in it."""

    id: int
    disk_bytes: int
    live_bytes: int
    stretches: int
    is_rewritten: bool
    is_needed: bool = False
    # Of a rewritten file: its namespace's folder, and the bytes of all its records, live or not.
    folder: str = ""
    record_bytes: int = 0
    # Old enough for what is still live in it to stay so for a while.
    is_settled: bool = True

    @property
    def is_mostly_dead(self) -> bool:
        # A small rewritten file is mostly header and blocks, and writing it again would change nothing about that.
        return 2 * self.live_bytes < (self.record_bytes if self.is_rewritten else self.disk_bytes)


@dataclass(frozen=True, slots=True)
class Policy:
    file_bytes: int
    # WAL files beyond this are rewritten, oldest first, even if they are all alive.
    wal_bytes_max: int
    # Stretches shorter than this on average make a WAL file worth rewriting, once a job's worth has gathered.
    stretch_bytes_min: int


@dataclass(frozen=True, slots=True)
class Verdict:
    remove: tuple[int, ...]
    rewrite: tuple[int, ...]


def choose(files: Sequence[Facts], policy: Policy, *, is_thorough: bool) -> Verdict:
    """Which files go at once and which are to be rewritten, oldest first.

    Unless thorough, mostly dead files wait until together they waste a whole file: a disk that holds twice what is
    live plus a few files is the promise, and rewriting a handful of bytes costs a process.
    """
    free = [file for file in files if not file.is_needed]
    remove = tuple(file.id for file in free if file.live_bytes == 0)
    alive = [file for file in free if file.live_bytes]
    dead = [file for file in alive if file.is_mostly_dead]
    if not is_thorough and sum(file.disk_bytes - file.live_bytes for file in dead) < policy.file_bytes:
        dead = []
    chosen = {file.id for file in dead}
    # Most entries die young: gathering those that are about to be consumed would only cost writes.
    settled = [file for file in alive if is_thorough or file.is_settled]
    short = [file for file in settled if not file.is_rewritten and _is_scattered(file, policy)]
    if len(short) >= _SOURCES_MAX:
        chosen |= {file.id for file in short}
    chosen |= _crowds(alive, policy)
    wal = [file for file in alive if not file.is_rewritten]
    excess = sum(file.disk_bytes for file in wal if file.id not in chosen) - policy.wal_bytes_max
    for file in wal:
        if excess <= 0:
            break
        if file.id not in chosen:
            chosen.add(file.id)
            excess -= file.disk_bytes
    return Verdict(remove, tuple(file.id for file in alive if file.id in chosen))


def _crowds(files: Sequence[Facts], policy: Policy) -> set[int]:
    """Small rewritten files of one namespace, once there are enough of them to make one."""
    small: dict[str, list[int]] = {}
    for file in files:
        if file.is_rewritten and file.disk_bytes < policy.file_bytes // 8:
            small.setdefault(file.folder, []).append(file.id)
    return {one for crowd in small.values() if len(crowd) >= _SOURCES_MAX for one in crowd}


def _is_scattered(file: Facts, policy: Policy) -> bool:
    return file.stretches > 1 and file.live_bytes < policy.stretch_bytes_min * file.stretches


def count_stretches(index: OpenIndex | FooterIndex, rows: Sequence[LiveRow]) -> int:
    """About how many separate stretches of the file hold those entries, from a sample of them.

    Ledgers that were written at the same time lie in turns, a commit's worth each: many short stretches, however many
    bytes a ledger has in the file as a whole.
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
        rewriter: Callable[[Job], Awaitable[Done]],
        clock_ms: Callable[[], int],
        policy: Policy,
        *,
        is_exclusive: bool,
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
        self._policy = policy
        # Alone on this root: what other incarnations left is ours to clear away. Else only our own log is.
        self._is_exclusive = is_exclusive
        self._facts: dict[int, tuple[Facts, list[LiveRow]]] = {}
        # Files that a read plan names: not unlinked before.
        self._planned: dict[Path, int] = {}
        # Out of the catalog, still on disk because of a plan: (path, when it may go).
        self._doomed: list[tuple[LogFile, int]] = []
        # Sources with a damaged record: they stay as they are.
        self._damaged: set[int] = set()
        self.rewritten_bytes = 0
        self.removed_files = 0

    # -- what changes a file's facts

    def touched(self, ledger: int) -> None:
        for file in self._catalog.files_of(ledger):
            self._facts.pop(file.id, None)

    def touched_all(self) -> None:
        self._facts.clear()

    def planned(self, files: Iterable[LogFile], until_ms: int) -> None:
        # By path: what was recovered is indexed again as more of it is taken, and is another object then.
        for file in files:
            self._planned[file.path] = max(until_ms, self._planned.get(file.path, 0))

    @property
    def doomed_bytes(self) -> int:
        return sum(file.disk_bytes for file, _ in self._doomed)

    def live_bytes(self) -> int:
        """As far as known: of files that have not changed since the last pass, and of the one being written."""
        # A copy: a pass may be adding to them on its thread.
        known = sum(facts.live_bytes for facts, _ in list(self._facts.values()))
        rest = [file for file in list(self._catalog.files.values()) if file.id not in self._facts]
        return known + sum(row.size for file in rest for row in self._live.rows(file))

    # -- one pass

    async def run(self, *, is_thorough: bool) -> None:
        """Removes and rewrites until there is nothing left to do."""
        await self._in_thread(self._unlink_doomed)
        while True:
            verdict = await self._in_thread(self._judge, is_thorough)
            gone = [self._catalog.files[one] for one in verdict.remove if one in self._catalog.files]
            await self._remove(gone)
            if not verdict.rewrite or not await self._rewrite(verdict.rewrite[:_SOURCES_MAX]):
                return

    def _judge(self, is_thorough: bool) -> Verdict:
        finished = [
            file
            for file in list(self._catalog.files.values())
            if file.is_finished and (self._is_exclusive or file.incarnation == self._own)
        ]
        own = [file.number for file in finished if file.incarnation == self._own]
        now = self._clock_ms()
        # Kept only of files that are still there.
        self._seen = {file.id: self._seen.get(file.id, now) for file in finished}
        facts = [
            replace(
                self._facts_of(file, last_own=max(own, default=0)),
                is_settled=now - self._seen[file.id] >= _SETTLE_MS,
            )
            for file in finished
        ]
        return choose(facts, self._policy, is_thorough=is_thorough)

    def _facts_of(self, file: LogFile, last_own: int) -> Facts:
        # The last checkpoint of the log being written is in its last finished file.
        is_needed = (file.incarnation == self._own and file.number == last_own) or file.id in self._damaged
        known = self._facts.get(file.id)
        if known is None or known[0].is_needed != is_needed:
            rows = [row for row in self._live.rows(file) if not self._is_replaced(file, row)]
            size = sum(row.size for row in rows)
            facts = Facts(
                file.id,
                file.disk_bytes,
                size,
                count_stretches(file.index, rows),
                file.is_rewritten,
                is_needed,
                str(file.path.parent) if file.is_rewritten else "",
                sum(row[3] for row in file.index.rows()) if file.is_rewritten else 0,
            )
            known = self._facts[file.id] = (facts, rows)
        return known[0]

    def _is_replaced(self, file: LogFile, row: LiveRow) -> bool:
        """True if a newer generation holds the same entries: a crash came between a rewrite and the removal."""
        first = row.first
        newer = [one for one in self._catalog.files_of(row.ledger) if one.generation > file.generation]
        while newer and first < row.end:
            found = (one.index.places(row.ledger, first, row.end - first) for one in newer)
            covered = max((len(places[1]) for places in found if places is not None), default=0)
            if not covered:
                return False
            first += covered
        return bool(newer)

    async def _rewrite(self, ids: Sequence[int]) -> bool:
        """True if something was achieved, so that another round makes sense."""
        sources = [
            self._catalog.files[one] for one in ids if one in self._catalog.files and one in self._facts
        ]
        pieces = [
            (self._live.namespace(row.ledger), Piece(i, row.ledger, row.first, row.end, row.size))
            for i, file in enumerate(sources)
            for row in self._facts[file.id][1]
        ]
        generation = 1 + max((file.generation for file in self._catalog.files.values()), default=0)
        outputs = plan_outputs(pieces, generation, self._root, file_bytes=self._policy.file_bytes)
        job = Job([(str(file.path), file.number, file.is_rewritten) for file in sources], outputs)
        try:
            done = await self._rewriter(job)
        except OSError as error:
            log.warning("rewriting %d files failed: %s", len(sources), error)
            return False
        if done.damaged:
            for one in done.damaged:
                log.error("%s has a damaged record and is kept as it is", sources[one].path)
                self._damaged.add(sources[one].id)
            return True
        loaded = await self._in_thread(self._load_outputs, done.paths)
        for file in loaded:
            self._catalog.add_indexed(file)
            self.rewritten_bytes += file.disk_bytes
            await asyncio.sleep(0)
        await self._remove([file for file in sources if file.id in self._catalog.files])
        return True

    def _load_outputs(self, paths: Sequence[str]) -> list[LogFile]:
        loaded = [load_file(self._files, Path(path), 0, is_rewritten=True) for path in paths]
        if not all(loaded):
            raise OSError("a rewritten file cannot be read back")
        return [one for one in loaded if one is not None]

    async def _remove(self, files: Sequence[LogFile]) -> None:
        """Forgets files, then unlinks them, at once or when the last plan that names them has expired."""
        if not files:
            return
        self._catalog.remove(files)
        for file in files:
            self._facts.pop(file.id, None)
            self._doomed.append((file, self._planned.pop(file.path, 0)))
        self.removed_files += len(files)
        await self._in_thread(self._unlink_doomed)

    def _unlink_doomed(self) -> None:
        now = self._clock_ms()
        due = [one for one in self._doomed if one[1] <= now]
        self._doomed = [one for one in self._doomed if one[1] > now]
        for file, _ in due:
            for path in (file.path, file.path.with_suffix(".idx")):
                with contextlib.suppress(FileNotFoundError):
                    self._files.unlink(path)
            # A mapped footer would keep the file's blocks although its name is gone.
            file.index = OpenIndex()

    async def _in_thread(self, call: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, *args)


def load_rewritten(files: Files, root: Path) -> list[LogFile]:
    """Every rewritten file, and an end to those that a crash left half written. Blocking."""
    found: list[LogFile] = []
    folders = [root / "ledgers"]
    while folders:
        folder = folders.pop()
        try:
            names = files.list(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        for name in sorted(names):
            if not name.endswith(SUFFIX):
                folders.append(folder / name)
            elif name.startswith("."):
                files.unlink(folder / name)
            elif (loaded := load_file(files, folder / name, 0, is_rewritten=True)) is not None:
                found.append(loaded)
            else:
                log.error("%s has no readable footer and is left alone", folder / name)
    return found
