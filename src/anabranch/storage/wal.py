"""The log of this incarnation: seals commits, places them in files, checkpoints, confirms. Data plane, per commit.

Everything here runs on the event loop except what the sync thread and the helper thread do for it. A commit is sealed
at the end of the turn of the loop in which it began, unless one already waits for the disk: then it goes on filling and
is sealed when the disk has taken that one. So there is one write in flight, one waiting and one filling at most.

A checkpoint is fuzzy: parts go out a few ledgers a turn, each as of its own place in the log, and the file that holds
them says where the first one lies. Recovery starts there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from pathlib import Path
from time import perf_counter

from anabranch.model.histogram import Histogram
from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage import format as fmt
from anabranch.storage.cache import EntryCache
from anabranch.storage.catalog import Catalog, FooterIndex, OpenIndex
from anabranch.storage.commit import Commit, FileLedgerWriter, Run
from anabranch.storage.fences import FenceWatch
from anabranch.storage.files import Files
from anabranch.storage.port import FencedError, LedgerListener, LogError, LogFailedError
from anabranch.storage.sync_thread import SyncThread, WalFile

log = logging.getLogger(__name__)

# Ledgers whose parts are made in one turn of the loop while a checkpoint is written.
_CHECKPOINT_LEDGERS_PER_TURN = 128
# A ledger's deltas beyond this (and beyond its snapshot) are folded without waiting for a checkpoint.
_DELTAS_BYTES_MAX = 256 << 10


def wal_path(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.wal"


class WriteAheadLog:
    """`on_file` is told of each new file and each finished one; `on_end` when the incarnation is over."""

    def __init__(
        self,
        folder: Path,
        incarnation: Incarnation,
        nonce: int,
        files: Files,
        helper: Executor,
        catalog: Catalog,
        cache: EntryCache,
        *,
        file_bytes: int,
        commit_bytes_max: int,
        idle_seconds: float,
        page_cache_bytes: int,
        on_file: Callable[[], None],
    ) -> None:
        self._warm: deque[WalFile] = deque()
        self._page_cache_bytes = page_cache_bytes
        self._folder = folder
        self._incarnation = incarnation
        self._nonce = nonce
        self._files = files
        self._helper = helper
        self._catalog = catalog
        self._cache = cache
        self._file_bytes = file_bytes
        # Room for the checkpoint and the footer, so that a file seldom outgrows what was allocated for it.
        self._rotate_at = file_bytes - file_bytes // 16
        self._idle_seconds = idle_seconds
        self._on_file = on_file
        self.commit_bytes_max = commit_bytes_max
        self.filling: Commit | None = None
        self.is_refusing = False
        self.is_closing = False
        self.writers: dict[LedgerId, FileLedgerWriter] = {}
        self.error: LogError | None = None
        self.commits = 0
        self.confirmed_bytes = 0
        self.append_times = Histogram()
        self._confirmed_number = 0
        self._flying_bytes = 0
        self._flushes: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._unfinished: deque[tuple[int, WalFile]] = deque()
        self._checkpoint: Iterator[FileLedgerWriter] | None = None
        self._fences = FenceWatch(files, folder)
        self._sync = SyncThread(files, nonce, self._fences, self._synced, self._sync_failed)
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_number = 0
        self._file: WalFile
        self._spare: WalFile | None = None
        self._at = 0
        self._loop: asyncio.AbstractEventLoop

    # -- life

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        first = self._make_file(1)
        await asyncio.wrap_future(first.handle)
        self._enter(first)
        self._sync.start()

    async def stop_appends(self) -> None:
        """Refuses appends from now on and confirms everything before: what was appended is then what is confirmed."""
        self.is_closing = True
        while self.error is None and (
            self._checkpoint is not None or self._confirmed_number < self.commits or self.filling
        ):
            await self.flush()
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Writes a last checkpoint and finishes the last file. `stop_appends` comes first."""
        assert self.is_closing
        if self.error is None:
            self._file.checkpoint_start = self._at
            self._seal([writer for writer in self.writers.values() if writer.error is None])
            await self.flush()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        await self._loop.run_in_executor(None, self._sync.stop)
        clean = self.error is None
        self.end(LogFailedError("the log is closed"))
        if clean:
            self._file.data_end = self._at
            try:
                await self._loop.run_in_executor(self._helper, self._finish, self._file)
            except OSError as error:
                # Everything is confirmed; only the index is missing, and whoever reads the file makes one.
                log.warning("could not finish %s: %s", self._file.path, error)
        await self._loop.run_in_executor(self._helper, self._close_files)

    def _close_files(self) -> None:
        """Runs last on the helper: whatever is still open was not finished."""
        for file in [
            self._file,
            *(file for _, file in self._unfinished),
            *([self._spare] if self._spare else []),
        ]:
            if file.is_finished or not file.handle.done() or file.handle.exception() is not None:
                continue
            self._files.close(file.handle.result())
            if file is self._spare:
                with contextlib.suppress(OSError):
                    self._files.unlink(file.path)

    def end(self, error: LogError) -> None:
        """Nothing more is confirmed. Every owner is told."""
        if self.error is not None:
            return
        self.error = error
        self.filling = None
        self._flying_bytes = 0
        for writer in list(self.writers.values()):
            self._lose(writer, error)
        for _, waiting in self._flushes:
            if not waiting.done():
                waiting.set_result(None)
        self._flushes.clear()

    @property
    def unconfirmed_bytes(self) -> int:
        return self._flying_bytes + (self.filling.size if self.filling is not None else 0)

    @property
    def sync_times(self) -> Histogram:
        """Seconds that writing and syncing took, one by one."""
        return self._sync.sync_times

    @property
    def open_number(self) -> int:
        """The number of the file being written."""
        return self._file.number

    # -- filling and sealing

    def open_ledger(self, ledger: LedgerId, listener: LedgerListener, namespace: str) -> FileLedgerWriter:
        if self.error is not None:
            raise self.error
        if self.is_closing:
            raise LogError("the log is closing")
        if ledger in self._fences.ledgers:
            raise FencedError(f"ledger {ledger} was taken by another broker")
        if ledger in self.writers:
            raise LogError(f"ledger {ledger} has been opened before")
        writer = self.writers[ledger] = FileLedgerWriter(self, ledger, listener, namespace)
        return writer

    def begin(self) -> Commit:
        self.filling = commit = Commit()
        self._loop.call_soon(self._turn_ended)
        return commit

    def overflow(self) -> None:
        # Inside an append: its owner may not have the appended record in its own state yet, so it is not asked for it.
        self._seal(may_fold=False)

    def _turn_ended(self) -> None:
        if self.filling is not None and not self._sync.has_waiting:
            self._seal()

    def _seal(
        self, checkpoint: list[FileLedgerWriter] | None = None, flags: int = 0, *, may_fold: bool = True
    ) -> None:
        """Sends what was filled to disk, with the parts of `checkpoint` behind it."""
        commit = self.filling or Commit()
        self.filling = None
        commit.flags = flags
        runs = []
        size = 0
        for run in commit.runs:
            writer = run.writer
            if not run.is_sealed:
                writer.sealed(run)
            if writer.error is None:
                runs.append(run)
                size += run.size
                if may_fold and writer.deltas_bytes > _DELTAS_BYTES_MAX:
                    self._fold(writer, commit)
        commit.runs = runs
        commit.size = size
        for writer in checkpoint or ():
            commit.parts.append(writer.encode_part())
        self._submit(commit)

    def _fold(self, writer: FileLedgerWriter, commit: Commit) -> None:
        is_worth = writer.deltas_bytes > 2 * len(writer.snapshot or b"")
        if is_worth and writer.can_fold:
            commit.parts.append(writer.encode_part())

    def _submit(self, commit: Commit) -> None:
        self.commits += 1
        commit.number = self.commits
        commit.file = self._file
        commit.at = self._at
        self._at = commit.end
        self._flying_bytes += commit.size
        self._sync.submit(commit)
        if self._at >= self._rotate_at:
            self.begin_file()

    # -- checkpoints and files

    @property
    def open_disk_bytes(self) -> int:
        """What the file being written takes."""
        return max(self._at, self._file_bytes)

    def begin_file(self) -> None:
        """Ends the file being written with a checkpoint and goes on in the next one."""
        if self._checkpoint is None and not self.is_closing and self.error is None:
            self._file.checkpoint_start = self._at
            self._checkpoint = iter(list(self.writers.values()))
            # Not at once: this may be inside an append, see `overflow`.
            self._loop.call_soon(self._checkpoint_step)

    def _checkpoint_step(self) -> None:
        if self.error is not None or self._checkpoint is None:
            return
        parts = []
        for writer in self._checkpoint:
            if writer.error is None:
                parts.append(writer)
            if len(parts) == _CHECKPOINT_LEDGERS_PER_TURN:
                self._seal(parts)
                self._loop.call_soon(self._checkpoint_step)
                return
        self._seal(parts, fmt.IS_CHECKPOINT_END)
        self._checkpoint = None
        self._rotate()

    def _rotate(self) -> None:
        full = self._file
        full.data_end = self._at
        self._unfinished.append((self.commits, full))
        spare, self._spare = self._spare, None
        if spare is None or (spare.handle.done() and spare.handle.exception() is not None):
            spare = self._make_file(full.number + 1)
        self._enter(spare)

    def _enter(self, file: WalFile) -> None:
        self._file = file
        self._at = fmt.FILE_BYTES
        self._catalog.add_file(file)
        self._spare = self._make_file(file.number + 1)
        self._on_file()

    def _make_file(self, number: int) -> WalFile:
        file = WalFile((wal_path(self._folder, number), number, self._incarnation), self._file_bytes)
        self._helper.submit(self._prepare, file)
        return file

    def _prepare(self, file: WalFile) -> None:
        """On the helper thread, ahead of need: makes, allocates and heads a file, and syncs its name."""
        try:
            fd = self._files.create(file.path, file.allocated)
            self._files.write(fd, [fmt.encode_file_header(fmt.FILE_MAGIC, self._nonce, file.number)], 0)
            self._files.sync(fd)
            self._files.sync_folder(self._folder)
        except BaseException as error:
            file.handle.set_exception(error)
        else:
            file.handle.set_result(fd)

    def _finish(self, file: WalFile) -> None:
        """On the helper thread, once all of the file is confirmed: writes its footer and reads it from there on."""
        assert isinstance(file.index, OpenIndex)
        rows = list(file.index.footer_rows())
        # The trailer ends the file: at the end of what was allocated, or behind the data if that has outgrown it.
        at = max(file.allocated - fmt.footer_size(rows), -(-file.data_end // 8) * 8)
        footer = fmt.encode_footer(self._nonce, file.number, rows, file.data_end, file.checkpoint_start, at)
        fd = file.handle.result()
        self._files.write(fd, [footer], at)
        self._files.sync(fd)
        self._files.close(fd)
        body = self._files.map(file.path, at, len(footer) - fmt.TRAILER_BYTES)
        file.index = FooterIndex(fmt.Footer(body, len(rows)))
        file.disk_bytes = self._files.disk_bytes(file.path)
        file.is_finished = True
        self._keep_warm(file)

    def _keep_warm(self, file: WalFile) -> None:
        """On the helper thread: the newest files stay in the page cache, the one that is too many leaves it.

        A log that is only written would otherwise take all memory there is; taking pages that are warm already is
        several times cheaper for the writer than taking new ones.
        """
        self._warm.append(file)
        if len(self._warm) * self._file_bytes > self._page_cache_bytes:
            self._files.forget(self._warm.popleft().path)

    # -- confirming

    def _synced(self, batch: list[Commit], has_fence: bool) -> None:
        self._call_loop(self._confirm, batch, has_fence)

    def _sync_failed(self, error: BaseException) -> None:
        self._call_loop(self._failed, error)

    def _call_loop(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            # The loop has been closed under the log: there is nobody left to tell.
            log.warning("the log outlived its event loop")

    def _failed(self, error: BaseException) -> None:
        if self.error is None:
            log.error("the log of %s failed: %s", self._incarnation, error)
        self.end(LogFailedError(f"writing the log failed: {error}"))

    def _confirm(self, batch: list[Commit], has_fence: bool) -> None:
        if has_fence:
            self._meet_fences()
        if self.error is not None:
            return
        now = perf_counter()
        for commit in batch:
            self._flying_bytes -= commit.size
            self.confirmed_bytes += commit.size
            if entries := sum([len(run.offsets) for run in commit.runs]):
                # From the first append to the commit: each entry of it has waited at most so long.
                self.append_times.observe(now - commit.began, entries)
        if self.filling is not None and not self._sync.has_waiting:
            self._seal()
        runs = [run for commit in batch for run in self._confirm_runs(commit)]
        self._confirmed_number = batch[-1].number
        while self._unfinished and self._unfinished[0][0] <= self._confirmed_number:
            file = self._unfinished.popleft()[1]
            self._helper.submit(self._finish, file).add_done_callback(self._finished)
        while self._flushes and self._flushes[0][0] <= self._confirmed_number:
            waiting = self._flushes.popleft()[1]
            if not waiting.done():
                waiting.set_result(None)
        # One call per ledger, whatever number of commits came through at once.
        writers = [run.writer for run in runs]
        self._tell(writers if len(batch) == 1 else dict.fromkeys(writers))
        self._arm_idle()

    def _confirm_runs(self, commit: Commit) -> list[Run]:
        """Makes the commit's entries readable; returns the runs whose owners are to be told."""
        file = commit.file
        assert file is not None
        index = file.index
        assert isinstance(index, OpenIndex)
        base = commit.at + fmt.COMMIT_BYTES + fmt.RUN_BYTES * len(commit.runs)
        runs = []
        for run in commit.runs:
            writer = run.writer
            if writer.error is None:
                runs.append(run)
                if run.offsets and index.add(writer.ledger, run.first, base, run.offsets, run.lengths):
                    self._catalog.add_row(writer.ledger, run.first, file)
                writer.entries_end = run.entries_end
                writer.state_end = run.state_end
            base += run.size
        self._cache.add(runs)
        return runs

    def _tell(self, writers: Iterable[FileLedgerWriter]) -> None:
        for writer in writers:
            if writer.error is None:
                try:
                    writer.listener.confirmed(writer.entries_end, writer.state_end)
                except Exception:
                    log.exception("the owner of ledger %s failed", writer.ledger)

    def _finished(self, outcome: object) -> None:
        """On the helper thread."""
        error = outcome.exception()  # type: ignore[attr-defined]
        self._call_loop(self._failed, error) if error is not None else self._call_loop(self._on_file)

    def _meet_fences(self) -> None:
        if self._fences.is_ended:
            self.end(FencedError(f"incarnation {self._incarnation} {self._fences.why}"))
            return
        for ledger in sorted(self._fences.ledgers):
            if (writer := self.writers.get(LedgerId(ledger))) is not None:
                self._lose(writer, FencedError(f"ledger {ledger} was taken by another broker"))

    def _lose(self, writer: FileLedgerWriter, error: LogError) -> None:
        is_settled = not writer.is_open and (writer.entries_end, writer.state_end) == (
            writer.next_entry,
            writer.next_state,
        )
        # An owner that let go and has had all its answers is not bothered.
        if writer.lose(error) and not is_settled:
            try:
                writer.listener.lost(error)
            except Exception:
                log.exception("the owner of ledger %s failed", writer.ledger)

    async def flush(self) -> None:
        """Returns once everything appended so far is confirmed, or the log has ended."""
        if self.filling is not None:
            self._seal(may_fold=False)
        if self.error is None and self._confirmed_number < self.commits:
            waiting = self._loop.create_future()
            self._flushes.append((self.commits, waiting))
            await waiting

    # -- falling idle

    def _arm_idle(self) -> None:
        if self._idle_timer is None and self._confirmed_number > self._idle_number:
            self._idle_timer = self._loop.call_later(self._idle_seconds, self._look_idle, self.commits)

    def _look_idle(self, commits: int) -> None:
        """An empty commit behind the last one says that it was confirmed: a torn tail is then never acked data."""
        self._idle_timer = None
        if self.error is not None:
            return
        if self.commits == commits and self.filling is None:
            self._idle_number = self.commits + 1
            self._seal(flags=fmt.IS_IDLE)
        else:
            self._arm_idle()
