"""The one thread that writes and syncs commits, in order. Data plane, but per commit: nothing here runs per entry.

The thread takes every commit that is ready, writes them in one call, syncs once, and checks for fences before it
reports them done; on request it checks for fences without a commit. No other thread does, so that every fence found is
acted upon. Reports reach the loop by `call_soon_threadsafe`. A write or sync that fails is never retried: the thread
reports it and ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from anabranch.model.histogram import Histogram
from anabranch.model.position import Incarnation
from anabranch.storage.core import format as fmt
from anabranch.storage.on_disk.catalog import LogFile
from anabranch.storage.on_disk.commit import Commit
from anabranch.storage.on_disk.fences import FenceWatch
from anabranch.storage.on_disk.files import Files
from anabranch.storage.port import Buffer


class _Look:
    """A queue item: check for fences."""


_LOOK: Final = _Look()


class WalFile(LogFile):
    """A file of this incarnation's log. `handle` is ready once the file is created and allocated and its folder
    synced."""

    __slots__ = ("allocated", "checkpoint_start", "data_end", "handle")

    def __init__(self, path: Path, number: int, incarnation: Incarnation, allocated: int) -> None:
        super().__init__(path, number, incarnation)
        self.handle: Future[int] = Future()
        self.allocated = allocated
        self.disk_bytes = allocated
        self.data_end = 0
        self.checkpoint_start = 0


class SyncThread:
    """`done(commits, has_fence)` and `failed(error)` are called on this thread; the log passes them on to its loop."""

    def __init__(
        self,
        files: Files,
        nonce: int,
        fences: FenceWatch,
        done: Callable[[list[Commit], bool], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._files = files
        self._nonce = nonce
        self._fences = fences
        self._done = done
        self._failed = failed
        self._queue: SimpleQueue[Commit | _Look | None] = SimpleQueue()
        # The first commit of another file: taken from the queue, and the next batch begins with it.
        self._carried: Commit | None = None
        # The synced end: file number and offset.
        self._synced = (0, 0)
        self.sync_times = Histogram()
        self._thread = threading.Thread(target=self._work, name="anabranch-sync", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, commit: Commit) -> None:
        self._queue.put(commit)

    def look_for_fences(self) -> None:
        """Checks for fences; `done` is then called without commits, unless some come meanwhile."""
        self._queue.put(_LOOK)

    @property
    def has_waiting(self) -> bool:
        """True while a commit or a check for fences waits in the queue: `done` is yet to be called."""
        return not self._queue.empty()

    def stop(self) -> None:
        """Ends the thread once everything submitted is done. Blocks."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        try:
            while (batch := self._next_batch()) is not None:
                if batch:
                    self._write(batch)
                self._done(batch, self._fences.look())
        except BaseException as error:
            self._failed(error)

    def _next_batch(self) -> list[Commit] | None:
        """Ready commits of one file, as many as there are, or none; None at the end."""
        commit = self._carried or self._queue.get()
        self._carried = None
        if commit is None:
            return None
        if isinstance(commit, _Look):
            return []
        batch = [commit]
        while True:
            try:
                commit = self._queue.get_nowait()
            except Empty:
                return batch
            if commit is None:
                # Put back at the end: `stop` is the last item submitted.
                self._queue.put(None)
                return batch
            if isinstance(commit, _Look):
                continue  # These commits are followed by a check for fences.
            if commit.file is not batch[0].file:
                self._carried = commit
                return batch
            batch.append(commit)

    def _write(self, batch: list[Commit]) -> None:
        file = batch[0].file
        assert isinstance(file, WalFile)
        fd = file.handle.result()
        buffers: list[Buffer] = []
        for commit in batch:
            buffers.append(self._header(commit, file))
            buffers += [run.buffer for run in commit.runs]
            buffers += commit.parts
        started = time.perf_counter()
        self._files.write(fd, buffers, batch[0].at)
        self._files.sync(fd)
        self.sync_times.observe(time.perf_counter() - started)
        self._synced = (file.number, batch[-1].end)

    def _header(self, commit: Commit, file: WalFile) -> bytes:
        rows = [(run.writer.ledger, run.first, len(run.offsets), run.size) for run in commit.runs]
        head = fmt.CommitHeader(commit.number, commit.flags, commit.length, len(rows), *self._synced)
        return fmt.encode_commit_header(self._nonce, file.number, head, rows)
