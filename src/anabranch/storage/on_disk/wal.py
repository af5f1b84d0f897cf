"""The log of this incarnation: seals commits, places them in files, checkpoints, confirms. Data plane, per commit.

Everything here runs on the event loop except what the sync thread and the helper thread do for it. A commit is sealed
at the end of the turn of the loop in which it began, unless one already waits for the disk: then it goes on filling and
is sealed when the disk has taken that one. So there is one write in flight, one waiting and one filling at most.

A checkpoint is fuzzy: its parts are written a few ledgers a turn, each as of its own place in the log, and the file
that holds them records where the first one lies. Recovery starts there.

The log is fail-stop: a commit that was begun is either confirmed or the log is over. Any error on the way ends the
incarnation before anything more is confirmed, and the next one recovers (`fail_stop`). An owner that raises when it is
called loses only its own ledger, which is closed with all that was appended and can be opened again.

Appended records go to disk, and the ledger's part into checkpoints, even if the ledger has been lost since: the broker
that took it may have died before it stored the answer, and then the next one finds them here.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from time import perf_counter
from typing import Any, Concatenate, ParamSpec

from anabranch.errors import unraised
from anabranch.model.histogram import Histogram
from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.core import format as fmt
from anabranch.storage.on_disk.cache import EntryCache
from anabranch.storage.on_disk.catalog import Catalog, FooterIndex, LogFile, OpenIndex
from anabranch.storage.on_disk.commit import Commit, CommitRun, FileLedgerWriter
from anabranch.storage.on_disk.fences import FenceWatch
from anabranch.storage.on_disk.files import Files
from anabranch.storage.on_disk.sync_thread import SyncThread, WalFile
from anabranch.storage.port import FencedError, LedgerListener, LogError, LogFailedError

log = logging.getLogger(__name__)

# Ledgers whose parts are made in one turn of the loop while a checkpoint is written.
_CHECKPOINT_LEDGERS_PER_TURN = 128
# A ledger's deltas beyond this (and beyond its snapshot) are folded without waiting for a checkpoint.
_DELTAS_BYTES_MAX = 256 << 10
# However large the checkpoints are, a file ends here: its places are 32 bits, and its own checkpoint follows.
_ROTATE_BYTES_MAX = 1 << 30

P = ParamSpec("P")


def fail_stop(
    step: Callable[Concatenate[WriteAheadLog, P], None],
) -> Callable[Concatenate[WriteAheadLog, P], None]:
    """A step of the log: any error that it raises ends the incarnation at once, not only the callback it ran in."""

    @functools.wraps(step)
    def guarded(log: WriteAheadLog, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            step(log, *args, **kwargs)
        except BaseException as error:
            log.broken(error)
            if not isinstance(error, Exception):
                raise

    return guarded


def wal_path(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.wal"


class WriteAheadLog:
    """Calls `on_file` for each new file and each finished one, `on_end` when the incarnation is over."""

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
        on_end: Callable[[], None],
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
        # Room for the checkpoint and the footer, so that a file seldom outgrows its allocation. If the checkpoint is
        # larger than that, as many bytes are written before the next one: checkpoints take at most half of the log.
        self._rotate_at = file_bytes - file_bytes // 16
        self._checkpoint_bytes = 0
        self._idle_seconds = idle_seconds
        self._on_file = on_file
        self._on_end = on_end
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
        if self.error is None:
            self._file.checkpoint_start = self._at
            self._seal_last()
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
                # Everything is confirmed; only the index is missing, and a reader of the file makes one.
                log.warning(
                    "finishing log file %s failed, the next start will index it: %s", self._file.path, error
                )
        await self._loop.run_in_executor(self._helper, self._close_files)

    def _close_files(self) -> None:
        """Runs last on the helper thread: files that are still open were not finished."""
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
        """Ends the log: nothing more is confirmed, and every owner is notified."""
        for writer in self._end(error):
            self._tell_lost(writer, error)

    def broken(self, error: BaseException) -> None:
        if self.error is None:
            log.critical("the log of %s ends because of an internal error", self._incarnation, exc_info=error)
            why = LogFailedError(f"the log ended itself: {error!r}")
            # Notified on a later turn: owners may be in the middle of an append.
            for writer in self._end(why):
                self._loop.call_soon(self._tell_lost, writer, why)

    def _end(self, error: LogError) -> list[FileLedgerWriter]:
        """Stops all confirmations. Returns the writers whose owners are to be notified."""
        if self.error is not None:
            return []
        self.error = error
        self.filling = None
        self._flying_bytes = 0
        told = [writer for writer in self.writers.values() if self._lose(writer, error)]
        for _, waiting in self._flushes:
            if not waiting.done():
                waiting.set_result(None)
        self._flushes.clear()
        # There may be no owner at all, but the broker must notice.
        self._loop.call_soon(self._on_end)
        return told

    @property
    def unconfirmed_bytes(self) -> int:
        return self._flying_bytes + (self.filling.size if self.filling is not None else 0)

    @property
    def sync_times(self) -> Histogram:
        """Seconds that each write with its sync took."""
        return self._sync.sync_times

    # -- filling and sealing

    def open_ledger(self, ledger: LedgerId, listener: LedgerListener, namespace: str) -> FileLedgerWriter:
        if self.error is not None:
            raise unraised(self.error)
        if self.is_closing:
            raise LogError("the log is closing")
        if ledger in self._fences.ledgers:
            raise FencedError(f"ledger {ledger} was taken by another broker")
        if ledger in self.writers:
            raise LogError(f"ledger {ledger} has been opened before")
        writer = self.writers[ledger] = FileLedgerWriter(self, ledger, listener, namespace)
        return writer

    def begin(self) -> Commit:
        commit = Commit()
        # First: a commit that is never sealed would never be confirmed.
        self._loop.call_soon(self._turn_ended)
        self.filling = commit
        return commit

    @fail_stop
    def overflow(self) -> None:
        # Inside an append, the owner may not have the appended record in its own state yet, so it is not asked for its
        # state.
        self._seal(may_fold=False)

    @fail_stop
    def _turn_ended(self) -> None:
        if self.filling is not None and not self._sync.has_waiting:
            self._seal()

    @fail_stop
    def _seal_last(self) -> None:
        self._seal(self.writers.values())

    def _seal(
        self, checkpoint: Iterable[FileLedgerWriter] = (), flags: int = 0, *, may_fold: bool = True
    ) -> None:
        """Sends the filled commit to disk, with the parts of `checkpoint` after it. Called by `fail_stop` steps
        only."""
        commit = self.filling or Commit()
        commit.flags = flags
        size = 0
        # Every run is sealed before any owner is asked for its state: that is then the state as of all runs.
        folding: dict[FileLedgerWriter, None] = {}
        for run in commit.runs:
            writer = run.writer
            if not run.is_sealed:
                writer.sealed(run)
            size += run.size
            if may_fold and writer.deltas_bytes > _DELTAS_BYTES_MAX and _is_worth_folding(writer):
                folding[writer] = None
        commit.size = size
        for writer in checkpoint:
            folding[writer] = None
        commit.parts = [self._part(writer) for writer in folding]
        if checkpoint:
            self._checkpoint_bytes += sum(map(len, commit.parts))
        self._submit(commit)
        self.filling = None

    def _part(self, writer: FileLedgerWriter) -> bytes:
        """The ledger's checkpoint part. An owner that cannot give its state loses its ledger: the part is what was
        appended."""
        try:
            part = writer.encode_part()
        except Exception as error:
            self._owner_failed(writer, "cannot say its state", error)
            part = writer.encode_part()
        if writer.run is not None:
            raise LogFailedError(f"ledger {writer.ledger} was appended to while its owner gave its state")
        return part

    def _submit(self, commit: Commit) -> None:
        commit.file = self._file
        commit.at = self._at
        if commit.end > fmt.FILE_BYTES_MAX:
            raise LogFailedError(f"{self._file.path} has no room for another commit: its places are 32 bits")
        self.commits += 1
        commit.number = self.commits
        self._at = commit.end
        self._flying_bytes += commit.size
        self._sync.submit(commit)
        if self._at >= self._rotate_at:
            self.begin_file()

    # -- checkpoints and files

    @property
    def open_disk_bytes(self) -> int:
        """The bytes that the file being written takes on disk."""
        return max(self._at, self._file_bytes)

    def begin_file(self) -> None:
        """Ends the file being written with a checkpoint and continues in the next one."""
        if self._checkpoint is None and not self.is_closing and self.error is None:
            self._file.checkpoint_start = self._at
            self._checkpoint = iter(list(self.writers.values()))
            # Not at once: this may be inside an append, see `overflow`.
            self._loop.call_soon(self._checkpoint_step)

    @fail_stop
    def _checkpoint_step(self) -> None:
        if self.error is not None or self._checkpoint is None:
            return
        parts = []
        # A file that outgrows its size because of appends meanwhile writes its parts proportionally faster.
        parts_max = _CHECKPOINT_LEDGERS_PER_TURN * max(1, self._at // self._file_bytes)
        for writer in self._checkpoint:
            parts.append(writer)
            if len(parts) >= parts_max:
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
        self._rotate_at = max(
            self._file_bytes - self._file_bytes // 16, min(self._checkpoint_bytes, _ROTATE_BYTES_MAX)
        )
        self._checkpoint_bytes = 0
        self._at = fmt.FILE_BYTES
        self._catalog.add_file(file)
        self._spare = self._make_file(file.number + 1)
        self._on_file()

    def _make_file(self, number: int) -> WalFile:
        file = WalFile(wal_path(self._folder, number), number, self._incarnation, self._file_bytes)
        self._helper.submit(self._prepare, file)
        return file

    def _prepare(self, file: WalFile) -> None:
        """On the helper thread, ahead of need: creates and allocates a file, writes its header, and syncs its name."""
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
        """On the helper thread, once all of the file is confirmed: writes its footer, which serves as its index from
        then on."""
        rows = list(_open_index(file).footer_rows())
        # The trailer ends the file: at the end of the allocated bytes, or after the data if that has outgrown them.
        at = max(file.allocated - fmt.footer_size(rows), -(-file.data_end // 8) * 8)
        footer = fmt.encode_footer(self._nonce, file.number, rows, file.data_end, file.checkpoint_start, at)
        fd = file.handle.result()
        # The trailer says that the rest is there, and the tables have no checksum: so they must be on disk before it.
        self._files.write(fd, [footer[: -fmt.TRAILER_BYTES]], at)
        self._files.sync(fd)
        self._files.write(fd, [footer[-fmt.TRAILER_BYTES :]], at + len(footer) - fmt.TRAILER_BYTES)
        self._files.sync(fd)
        self._files.close(fd)
        body = self._files.map(file.path, at, len(footer) - fmt.TRAILER_BYTES)
        file.index = FooterIndex(fmt.Footer(body, len(rows)))
        file.disk_bytes = self._files.disk_bytes(file.path)
        file.is_finished = True
        self._keep_warm(file)

    def _keep_warm(self, file: WalFile) -> None:
        """On the helper thread: keeps the newest files in the page cache and drops the oldest of them.

        A log that is only written would otherwise fill all memory with its pages; reusing warm pages is several times
        cheaper for the writer than taking new ones.
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
            # The loop was closed while the log was open: no caller is left to notify.
            log.warning("the event loop was closed before the log")

    def _failed(self, error: BaseException) -> None:
        if self.error is None:
            log.error("the log of %s failed: %s", self._incarnation, error)
        self.end(LogFailedError(f"writing the log failed: {error}"))

    def look_for_fences(self) -> None:
        """Notifies owners that write nothing, too, if their ledgers were taken."""
        if self.error is None and not self.is_closing:
            self._sync.look_for_fences()

    @fail_stop
    def _confirm(self, batch: list[Commit], has_fence: bool) -> None:
        if has_fence:
            self._meet_fences()
        if self.error is not None:
            return
        if not batch:
            # Only a check for fences; a commit that became ready meanwhile has waited for it.
            self._turn_ended()
            return
        if [commit.number for commit in batch] != [*range(self._confirmed_number + 1, batch[-1].number + 1)]:
            raise LogFailedError(
                f"commits are missing between {self._confirmed_number} and {batch[-1].number}"
            )
        now = perf_counter()
        for commit in batch:
            self._flying_bytes -= commit.size
            self.confirmed_bytes += commit.size
            if entries := sum([len(run.offsets) for run in commit.runs]):
                # From the first append to the confirmation: each entry of the commit has waited at most this long.
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
        # One call per ledger, however many commits were confirmed at once.
        writers = [run.writer for run in runs]
        self._tell(writers if len(batch) == 1 else dict.fromkeys(writers))
        self._arm_idle()

    def _confirm_runs(self, commit: Commit) -> list[CommitRun]:
        """Makes the commit's entries readable; returns the runs whose owners are to be notified."""
        file = commit.file
        if file is None:
            raise LogFailedError(f"commit {commit.number} is in no file")
        index = _open_index(file)
        base = commit.at + fmt.COMMIT_BYTES + fmt.RUN_BYTES * len(commit.runs)
        runs = []
        for run in commit.runs:
            writer = run.writer
            if run.offsets and index.add(writer.ledger, run.first, base, run.offsets, run.lengths):
                self._catalog.add_row(writer.ledger, run.first, file)
            base += run.size
            if writer.error is not None:
                continue
            if run.first != writer.entries_end:
                raise LogFailedError(
                    f"a run of ledger {writer.ledger} starts at {run.first}, and {writer.entries_end} is confirmed"
                )
            runs.append(run)
            writer.entries_end = run.entries_end
            writer.state_end = run.state_end
        self._cache.add(runs)
        return runs

    def _tell(self, writers: Iterable[FileLedgerWriter]) -> None:
        for writer in writers:
            if writer.error is None and writer.failure is None:
                writer.told_entries, writer.told_state = writer.entries_end, writer.state_end
                try:
                    writer.listener.confirmed(writer.entries_end, writer.state_end)
                except Exception as error:
                    self._owner_failed(writer, "failed when it was notified of a commit", error)
                if not writer.is_open:
                    writer.let_go_if_told()

    def _owner_failed(self, writer: FileLedgerWriter, what: str, error: Exception) -> None:
        """Takes the ledger from an owner that raised: the owner's state is unknown. It opens the ledger again if it
        can.

        Everything appended is still stored and confirmed: other parts may have acted on it.
        """
        log.error("the owner of ledger %s %s", writer.ledger, what, exc_info=error)
        if writer.is_writing:
            why = LogError(f"ledger {writer.ledger} is closed: its owner {what}: {error!r}")
            writer.fail(why)
            # On a later turn: the owner may be in the middle of something.
            self._loop.call_soon(self._tell_lost, writer, why)

    def _finished(self, outcome: Future[Any]) -> None:
        """On the helper thread."""
        error = outcome.exception()
        if error is not None:
            self._call_loop(self._failed, error)
        else:
            self._call_loop(self._on_file)

    def _meet_fences(self) -> None:
        if self._fences.is_ended:
            self.end(FencedError(f"incarnation {self._incarnation} {self._fences.why}"))
            return
        for ledger in sorted(self._fences.ledgers):
            if (writer := self.writers.get(LedgerId(ledger))) is not None:
                error = FencedError(f"ledger {ledger} was taken by another broker")
                if self._lose(writer, error):
                    self._tell_lost(writer, error)

    def _lose(self, writer: FileLedgerWriter, error: LogError) -> bool:
        """True if the owner is to be notified: not one that closed its ledger and has had all its answers, nor one that
        failed."""
        return writer.lose(error) and not writer.has_told_all and writer.failure is None

    def _tell_lost(self, writer: FileLedgerWriter, error: LogError) -> None:
        try:
            writer.listener.lost(error)
        except Exception:
            log.exception("the owner of ledger %s failed when it was notified of its loss", writer.ledger)
        finally:
            writer.let_go()

    def check_released(self, ledger: LedgerId) -> None:
        """Raises unless the ledger is closed and everything appended to it is confirmed, so that nothing will ever
        change about it."""
        writer = self.writers.get(ledger)
        if writer is None:
            raise LogError(f"ledger {ledger} is none of {self._incarnation}, or was deleted")
        if writer.error is not None:
            raise unraised(writer.error)
        if writer.is_open:
            raise LogError(f"ledger {ledger} is still being written")
        if not writer.is_settled:
            raise LogError(f"not all of ledger {ledger} is confirmed")

    async def flush(self) -> None:
        """Returns once everything appended so far is confirmed, or the log has ended."""
        if self.filling is not None:
            self.overflow()
        if self.error is None and self._confirmed_number < self.commits:
            waiting = self._loop.create_future()
            self._flushes.append((self.commits, waiting))
            await waiting

    # -- falling idle

    def _arm_idle(self) -> None:
        if self._idle_timer is None and self._confirmed_number > self._idle_number:
            self._idle_timer = self._loop.call_later(self._idle_seconds, self._look_idle, self.commits)

    @fail_stop
    def _look_idle(self, commits: int) -> None:
        """Writes an empty commit after the last one, which says that it was confirmed: a torn tail is then never
        acknowledged data."""
        self._idle_timer = None
        if self.error is not None:
            return
        if self.commits == commits and self.filling is None:
            self._idle_number = self.commits + 1
            self._seal(flags=fmt.IS_IDLE)
        else:
            self._arm_idle()


def _is_worth_folding(writer: FileLedgerWriter) -> bool:
    return writer.can_fold and writer.deltas_bytes > 2 * len(writer.snapshot or b"")


def _open_index(file: LogFile) -> OpenIndex:
    if not isinstance(file.index, OpenIndex):
        raise LogFailedError(f"{file.path} is finished already")
    return file.index
