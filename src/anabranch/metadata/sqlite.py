"""The embedded default: a metadata store in one SQLite file, owned by one process, on a thread of its own.

Operations queue; the thread takes all that wait and runs them in one transaction, so one sync serves them all. An
operation that the rules refuse fails alone. When SQLite itself fails, the transaction is undone and each operation runs
in one of its own: on a full disk reads still answer, and each write gets its own error. Recently read or written nodes
are read from a cache without the thread: a round trip to it takes some 130 us, and far longer while the loop is busy.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Self, TypeVar

from anabranch.metadata.embedded import EmbeddedMetadata, Op
from anabranch.metadata.errors import MetadataError, StoreClosed, StoreUnavailable
from anabranch.metadata.kept import UNKNOWN, ReadCache, Unknown
from anabranch.metadata.port import Versioned
from anabranch.metadata.sqlite_tree import SqliteTree, open_tree
from anabranch.metadata.tree import Tree

T = TypeVar("T")

# A larger batch would delay a read that arrives during a burst until the whole burst is done.
BATCH_OPS_MAX = 2_000
# Behaviour at the limit: refuse, retryable. Waiting behind a hundred thousand writes is of no use.
PENDING_OPS_MAX = 100_000


@dataclass(slots=True, eq=False)
class _Request:
    op: Callable[[Tree], Any]
    reply: asyncio.Future[Any]
    node: str | None
    folder: str | None
    writes: str | None


@dataclass(slots=True)
class _Outcome:
    request: _Request
    result: Any = None
    error: Exception | None = None


class SqliteMetadata(EmbeddedMetadata):
    """The store of one process. Opened by `open`, used from that event loop, released by `close`."""

    def __init__(
        self, path: Path, clock_ms: Callable[[], int], pending_ops_max: int, *, keeps_sessions: bool = False
    ) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._pending = 0
        self._pending_max = pending_ops_max
        self._is_closed = False
        self._kept = ReadCache()
        self._tree: SqliteTree | None = (
            None  # Set once open. The loop only asks it for living sessions and the time.
        )
        # An error is the future's result: as its exception it would never be retrieved if the opener is cancelled.
        self._opened: asyncio.Future[Exception | None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._queue: SimpleQueue[_Request | None] = SimpleQueue()
        # A daemon, so that a process that forgot to close can still end: what was acknowledged is on disk.
        self._thread = threading.Thread(
            target=self._live, args=(path, clock_ms, keeps_sessions), name="anabranch-metadata", daemon=True
        )

    @classmethod
    async def open(
        cls,
        path: Path | str,
        *,
        clock_ms: Callable[[], int],
        pending_ops_max: int = PENDING_OPS_MAX,
        keeps_sessions: bool = False,
    ) -> Self:
        """Open or make the store in the file at `path`. Sessions of an earlier process have ended, unless they are
        kept: then they live on, with their ephemerals, until they are ended.

        StoreInUse when another process has it, StoreDamaged or StoreTooNew when it cannot be read.
        """
        service = cls(Path(path), clock_ms, pending_ops_max, keeps_sessions=keeps_sessions)
        service._thread.start()
        try:
            error = await asyncio.shield(service._opened)
        except asyncio.CancelledError:
            service._stop()
            raise
        if error is not None:
            raise error
        return service

    async def run(
        self,
        op: Op[T],
        *,
        node: str | None = None,
        folder: str | None = None,
        writes: str | None = None,
        always: bool = False,
    ) -> T:
        return await self.submit(op, node=node, folder=folder, writes=writes, always=always)

    def submit(
        self,
        op: Op[T],
        *,
        node: str | None = None,
        folder: str | None = None,
        writes: str | None = None,
        always: bool = False,
    ) -> asyncio.Future[T]:
        """As `run`, and the operation has its place in the order of all when this returns."""
        if self._is_closed:
            raise StoreClosed
        if self._pending >= self._pending_max and not always:
            raise StoreUnavailable(f"{self._pending} metadata operations are waiting already")
        self._pending += 1
        reply: asyncio.Future[T] = self._loop.create_future()
        if writes is not None:
            self._kept.begin(writes)
        self._queue.put(_Request(op, reply, node, folder, writes))
        return reply

    def kept_node(self, session: str, path: str) -> Versioned | Unknown | None:
        return self._kept.node(path) if self._is_live(session) else UNKNOWN

    def kept_children(self, session: str, path: str) -> list[str] | Unknown:
        return self._kept.children(path) if self._is_live(session) else UNKNOWN

    def kept_time(self, session: str) -> int | Unknown:
        assert self._tree is not None
        shown = self._tree.time.shown_ms() if self._is_live(session) else None
        return UNKNOWN if shown is None else shown

    def _is_live(self, session: str) -> bool:
        assert self._tree is not None
        return session in self._tree.live and not self._is_closed

    async def close(self) -> None:
        """End every session, finish what waits and give the file back. May be called twice."""
        for store in self.stores():
            await store.close()
        self._stop()
        # Shielded: cancelling `close` must not look as if the thread had ended.
        await asyncio.shield(self._ended)
        self._thread.join()

    def _stop(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._queue.put(None)

    def _deliver(self, outcomes: list[_Outcome], changes: dict[str, Versioned | None]) -> None:
        self._pending -= len(outcomes)
        self._keep(outcomes, changes)
        if changes:
            self.publish(changes)
        for outcome in outcomes:
            reply = outcome.request.reply
            if reply.done():
                continue  # The caller was cancelled; its operation was carried out all the same.
            if outcome.error is not None:
                reply.set_exception(outcome.error)
            else:
                reply.set_result(outcome.result)

    def _keep(self, outcomes: list[_Outcome], changes: dict[str, Versioned | None]) -> None:
        # Reads first, then changes: within the batch either may have come before the other.
        for outcome in outcomes:
            if outcome.error is None:
                if (path := outcome.request.node) is not None:
                    self._kept.found(path, outcome.result)
                elif (path := outcome.request.folder) is not None:
                    self._kept.listed(path, outcome.result)
        self._kept.changed(changes)
        for outcome in outcomes:
            if (path := outcome.request.writes) is not None:
                self._kept.end(path)

    # From here on: the thread.

    def _live(self, path: Path, clock_ms: Callable[[], int], keeps_sessions: bool) -> None:
        try:
            tree = self._tree = open_tree(path, clock_ms, keeps_sessions=keeps_sessions)
        except Exception as error:
            self._on_loop(self._opened.set_result, error)
            return
        self._on_loop(self._opened.set_result, None)
        try:
            while (batch := self._next_batch()) is not None:
                self._on_loop(self._deliver, *_execute(tree, batch))
        finally:
            with suppress(sqlite3.Error):  # Closing tidies up; everything acked is in the write-ahead file.
                tree.close()
            self._on_loop(self._ended.set_result, None)

    def _next_batch(self) -> list[_Request] | None:
        """All waiting requests, at least one; None once the store is to close."""
        first = self._queue.get()
        if first is None:
            return None
        batch = [first]
        with suppress(Empty):
            while len(batch) < BATCH_OPS_MAX:
                request = self._queue.get_nowait()
                if request is None:
                    self._queue.put(None)  # Nothing is queued behind it: finish this batch, then end.
                    break
                batch.append(request)
        return batch

    def _on_loop(self, callback: Callable[..., None], *args: Any) -> None:
        # If the loop is closed, no caller is waiting any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)


def _execute(tree: SqliteTree, batch: list[_Request]) -> tuple[list[_Outcome], dict[str, Versioned | None]]:
    """Each request's outcome, and the new values of the nodes that changed."""
    changes = _finish_endings(tree)
    try:
        outcomes = _transact(tree, batch)
    except Exception as error:
        if len(batch) == 1:
            return [_Outcome(batch[0], error=tree.translated(error))], changes
    else:
        return outcomes, changes | _taken_changes(tree)
    outcomes = []
    for request in batch:
        alone, touched = _execute(tree, [request])
        outcomes += alone
        changes |= touched
    return outcomes, changes


def _transact(tree: SqliteTree, batch: list[_Request]) -> list[_Outcome]:
    outcomes: list[_Outcome] = []
    with tree.transaction():
        for request in batch:
            try:
                outcomes.append(_Outcome(request, request.op(tree)))
            except MetadataError as refusal:
                outcomes.append(_Outcome(request, error=refusal))
    return outcomes


def _finish_endings(tree: SqliteTree) -> dict[str, Versioned | None]:
    """Removes ephemerals of sessions that ended while the disk refused writes."""
    if not tree.ending:
        return {}
    with suppress(sqlite3.Error):
        with tree.transaction():
            tree.finish_endings()
        tree.ending.clear()
    return _taken_changes(tree)


def _taken_changes(tree: Tree) -> dict[str, Versioned | None]:
    changes, tree.changed = tree.changed, {}
    return changes
