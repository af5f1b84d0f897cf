"""The log on local files: combines writing, reading, taking over and reclaiming disk behind the port.

    root/lock                                   one process at a time (or several that say so)
    root/wal/<incarnation>/NNNNNNNN.wal         what this or another incarnation wrote
                          /fences, /taken       who may no longer write, and what was found then
                          /names-NNNN           the records that name its ledgers, in a shared log
    root/ledgers/<namespace>/*.led              what is still wanted of files that were mostly dead
                          /*.tier               index files of those that were moved to an object store
    root/turn, root/plans                       locks of processes that share the log
    root/tier                                   the name of the log's folder in that store

Nothing here blocks the event loop: files are touched by the sync thread, a helper thread and a few reader threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from anabranch.model.histogram import Histogram
from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.core.live import Liveness
from anabranch.storage.core.space import SpacePolicy
from anabranch.storage.core.tiered import Tier
from anabranch.storage.on_disk import fences, takeover
from anabranch.storage.on_disk.cache import EntryCache
from anabranch.storage.on_disk.catalog import Catalog
from anabranch.storage.on_disk.files import Files, OsFiles
from anabranch.storage.on_disk.holds import PlanHolds
from anabranch.storage.on_disk.index_files import log_id
from anabranch.storage.on_disk.log_reading import LogReading
from anabranch.storage.on_disk.log_root import LogRoot
from anabranch.storage.on_disk.moving import Moving, TierPolicy
from anabranch.storage.on_disk.names import LedgerName, NameWriter
from anabranch.storage.on_disk.other_logs import OtherLogs
from anabranch.storage.on_disk.reclaim import Reclaimer, ReclaimPolicy, Rewriter
from anabranch.storage.on_disk.rewrite_worker import rewrite_in_process
from anabranch.storage.on_disk.sharing import ASK_MS, GRACE_MS, Sharing
from anabranch.storage.on_disk.space_watch import SpaceWatch
from anabranch.storage.on_disk.upkeep import DiskUpkeep
from anabranch.storage.on_disk.wal import WriteAheadLog
from anabranch.storage.port import (
    Entry,
    LedgerListener,
    LedgerState,
    LedgerWriter,
    LiveLedger,
    Living,
    LogError,
    LogInUseError,
    ReadPlan,
    Writers,
)

__all__ = ["FileLogStore"]

log = logging.getLogger(__name__)

T = TypeVar("T")

READER_THREADS = 4

# How long a caller of `reclaim` waits for its turn in a shared log.
_TURN_SECONDS = 30.0


def new_incarnation(clock_ms: Callable[[], int]) -> Incarnation:
    """A name that sorts by time and is never used again."""
    return Incarnation(f"{clock_ms():013d}-{secrets.token_hex(6)}")


class FileLogStore:
    """`is_shared` lets several processes write logs under one root; each takes only what it fences.

    The bounds of disk space are for all of them together, those of memory for each."""

    def __init__(
        self,
        root: Path,
        *,
        clock_ms: Callable[[], int],
        files: Files | None = None,
        incarnation: Incarnation | None = None,
        is_shared: bool = False,
        file_bytes: int = 64 << 20,
        cache_bytes: int = 64 << 20,
        commit_bytes_max: int = 8 << 20,
        page_cache_bytes: int = 1 << 30,
        disk_reserve_bytes: int = 256 << 20,
        disk_bytes_max: int | None = None,
        wal_bytes_max: int = 32 << 30,
        stretch_bytes_min: int = 64 << 10,
        plan_ms: int = 60_000,
        idle_seconds: float = 0.05,
        reclaim_seconds: float = 1.0,
        ask_ms: int = ASK_MS,
        grace_ms: int = GRACE_MS,
        rewriter: Rewriter = rewrite_in_process,
        tier: Tier | None = None,
        tier_policy: TierPolicy | None = None,
    ) -> None:
        self._root = root
        self._tier = tier
        self._tier_policy = tier_policy or TierPolicy(local_bytes_max=8 << 30, small_bytes=file_bytes // 8)
        self._files: Files = files or OsFiles()
        self._incarnation = incarnation or new_incarnation(clock_ms)
        self._is_shared = is_shared
        self._folder = root / "wal" / self._incarnation
        self._catalog = Catalog()
        self._cache = EntryCache(cache_bytes)
        # Reads of the newest ledgers, each of many entries: those answered from the cache, and the others.
        self._cache_hits = 0
        self._cache_misses = 0
        self._live = Liveness(self._incarnation, is_shared=is_shared)
        self._readers = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="anabranch-read")
        self._helper = ThreadPoolExecutor(1, thread_name_prefix="anabranch-files")
        folders = LogRoot(root, self._incarnation, self._files, self._readers, self._catalog, self._live)
        self._others = OtherLogs(folders)
        self._locks: list[int] = []
        self._is_started = False
        self._background: asyncio.Task[None] | None = None
        self._reclaim_seconds = reclaim_seconds
        self._files_changed = asyncio.Event()
        self._holds = PlanHolds(self._files, root) if is_shared else None
        self._names = NameWriter(self._files, self._folder, self._helper) if is_shared else None
        self._reclaimer = Reclaimer(
            root,
            self._incarnation,
            self._files,
            self._readers,
            self._catalog,
            self._live,
            rewriter,
            clock_ms,
            lambda: self._reclaim_policy(file_bytes, wal_bytes_max, stretch_bytes_min),
            room_bytes=self._room_bytes,
            has_tier=tier is not None,
            holds=self._holds,
            name_of=self._name_of,
        )
        self._accepting_callbacks: list[Callable[[bool], None]] = []
        self._end_callbacks: list[Callable[[], None]] = []
        self._wal = WriteAheadLog(
            self._folder,
            self._incarnation,
            secrets.randbits(64),
            self._files,
            self._helper,
            self._catalog,
            self._cache,
            file_bytes=file_bytes,
            commit_bytes_max=commit_bytes_max,
            idle_seconds=idle_seconds,
            page_cache_bytes=page_cache_bytes,
            on_file=self._file_changed,
            on_end=self._tell_end,
        )
        # None unless other processes use the root.
        self._sharing: Sharing | None = None
        if self._holds is not None:
            self._sharing = Sharing(
                root,
                self._incarnation,
                self._files,
                self._readers,
                self._catalog,
                self._live,
                self._reclaimer,
                self._holds,
                self,
                self._wal.writers,
                clock_ms,
                ask_ms=ask_ms,
                grace_ms=grace_ms,
            )
        self._space = SpaceWatch(
            SpacePolicy(disk_reserve_bytes, disk_bytes_max, step_bytes=file_bytes),
            folders,
            self._reclaimer,
            spare_bytes=file_bytes,
            count_all=self._sharing.disk_bytes if self._sharing is not None else None,
        )
        self._upkeep = DiskUpkeep(
            folders,
            self._others,
            self._reclaimer,
            self._wal,
            rewriter,
            clock_ms,
            sharing=self._sharing,
            holds=self._holds,
            names=self._names,
        )
        self._reading = LogReading(
            folders,
            self._others,
            self._upkeep,
            self._reclaimer,
            self._wal.writers,
            clock_ms,
            plan_ms=plan_ms,
            sharing=self._sharing,
            holds=self._holds,
            tier=tier,
        )
        self._moving: Moving | None = None
        self._mover: asyncio.Task[None] | None = None
        # Set when there may be something to move.
        self._may_move = asyncio.Event()
        if tier is not None:
            self._moving = Moving(
                folders,
                tier,
                self._reclaimer,
                self._tier_policy,
                clock_ms,
                sharing=self._sharing,
                used_bytes=self._space.used_bytes,
                local_bytes_max=self._local_bytes_max,
                is_full=lambda: not self.is_accepting,
            )

    def _local_bytes_max(self) -> int:
        """What the log may keep on its disk before files are moved."""
        return self._tier_policy.local_bytes(
            capacity=self._space.capacity_bytes(), is_full=not self.is_accepting
        )

    def _reclaim_policy(self, file_bytes: int, wal_bytes_max: int, stretch_bytes_min: int) -> ReclaimPolicy:
        if self._tier is None:
            return ReclaimPolicy(file_bytes, wal_bytes_max, stretch_bytes_min)
        # Only rewritten files are moved; the file being written, the one before and the next one cannot be rewritten.
        kept = min(wal_bytes_max, max(0, self._local_bytes_max() - 3 * file_bytes))
        step = min(4 * file_bytes, kept // 4)
        return ReclaimPolicy(file_bytes, kept, stretch_bytes_min, wal_step_bytes=step)

    def _room_bytes(self) -> int | None:
        """How much rewriting may add to a full disk: files that are all alive are rewritten there to be moved."""
        return None if self._tier is None or self.is_accepting else self._space.room_bytes() // 2

    @property
    def incarnation(self) -> Incarnation:
        return self._incarnation

    @property
    def ended(self) -> LogError | None:
        return self._wal.error

    @property
    def is_accepting(self) -> bool:
        return not self._wal.is_refusing

    @property
    def capacity_bytes(self) -> int | None:
        return self._space.capacity_bytes()

    def told_space(self) -> str:
        return self._space.told()

    def on_accepting_change(self, callback: Callable[[bool], None]) -> None:
        self._accepting_callbacks.append(callback)

    def on_end(self, callback: Callable[[], None]) -> None:
        self._end_callbacks.append(callback)
        if self.ended is not None:
            asyncio.get_running_loop().call_soon(callback)

    def _tell_end(self) -> None:
        for callback in self._end_callbacks:
            _tell(callback)

    @property
    def unconfirmed_bytes(self) -> int:
        return self._wal.unconfirmed_bytes

    # -- life

    async def start(self) -> None:
        await self._in_helper(self._prepare_folders)
        try:
            await self._wal.start()
        except OSError as error:
            raise LogError(f"cannot write the log in {self._folder}: {error}") from error
        self._is_started = True
        await self._check_space()
        self._upkeep.start()
        # Both are cancelled by `close`.
        self._background = asyncio.create_task(self._look_after())
        if self._moving is not None:
            self._mover = asyncio.create_task(self._move(self._moving))

    def _prepare_folders(self) -> None:
        files = self._files
        try:
            files.make_folder(self._root)
            files.refuse_network(self._root)
            self._lock(self._root / takeover.LOCK, is_shared=self._is_shared)
            fences.make_folders(files, self._folder)
            files.make_folder(self._root / "ledgers")
        except OSError as error:
            raise LogInUseError(f"cannot use {self._root} for the log: {error}") from error
        self._lock(self._folder / takeover.LOCK, is_shared=False)
        if self._holds is not None and self._sharing is not None:
            self._locks.append(self._holds.open())
            self._sharing.start()
        if self._moving is not None:
            self._moving.log_id = log_id(files, self._root)

    def _lock(self, path: Path, *, is_shared: bool) -> None:
        lock = self._files.lock(path, is_shared=is_shared)
        if lock is None:
            raise LogInUseError(f"{self._root} is in use by another process")
        self._locks.append(lock)

    async def close(self) -> None:
        if not self._is_started:
            await self._close_tier()
            self._release()
            return
        self._is_started = False
        assert self._background is not None
        tasks = [self._background, *([self._mover] if self._mover is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await self._upkeep.close()
        await self._wal.stop_appends()
        is_whole = self._wal.error is None
        states = self._local_states(self._wal.writers)
        fenced = [ledger for ledger, one in self._wal.writers.items() if one.error is not None]
        await self._wal.close()
        if is_whole:
            try:
                await self._in_helper(self._hand_over, states, fenced)
            except OSError as error:
                # Nothing is lost: the next owner finds in the log what the hand-over would have said.
                log.warning("writing the hand-over failed, the next start will recover: %s", error)
        await self._close_tier()
        self._release()

    async def _close_tier(self) -> None:
        if self._tier is not None:
            await self._tier.close()

    def _hand_over(self, states: dict[LedgerId, LedgerState], fenced: Sequence[LedgerId]) -> None:
        """Stores the answer that a successor of this incarnation would find, so that no recovery is needed.

        Fenced ledgers whose answer is not stored are left to recovery: the broker that fenced them may have died, or is
        still reading. An answer that is final and does not name them would say that they never existed."""
        found = fences.load_taken(self._files, self._folder)
        new = {ledger: state for ledger, state in states.items() if ledger not in found.states}
        names = {ledger: self._wal.writers[ledger].namespace for ledger in new}
        answer = fences.FinalStates(states=new, namespaces=names, is_final=found.has(fenced))
        fences.store_taken(self._files, self._folder, answer, found.results)

    def _release(self) -> None:
        if self._names is not None:
            self._names.close()
        self._helper.shutdown()
        self._readers.shutdown()
        self._catalog.clear()
        for lock in reversed(self._locks):
            self._files.close(lock)
        self._locks.clear()

    async def _in_helper(self, call: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._helper, call, *args)

    def _file_changed(self) -> None:
        """A file was begun or finished: space has shrunk, and there may be something to reclaim."""
        self._upkeep.is_wanted = True
        self._files_changed.set()

    # -- in the background

    async def _look_after(self) -> None:
        """Watches the free space and reclaims disk, until the store closes."""
        while self._wal.error is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._reclaim_seconds):
                    await self._files_changed.wait()
            self._files_changed.clear()
            try:
                await self._check_space()
                is_due = self._upkeep.is_wanted or not self.is_accepting or self._upkeep.is_look_due()
                if self._live.is_retained and is_due:
                    self._upkeep.is_wanted = False
                    await self._upkeep.reclaim(is_thorough=not self.is_accepting)
                    await self._check_space()
                    if not self.is_accepting:
                        self._upkeep.let_newest_go()
                    self._may_move.set()
            except (OSError, LogError) as error:
                log.warning("reclaiming disk failed, trying again: %s", error)
            except Exception:
                # A bug of ours. Without this task the free space would be neither watched nor reclaimed.
                log.exception("reclaiming disk failed, trying again")

    async def _move(self, moving: Moving) -> None:
        """Moves files, in a task of its own: an object store that is slow or away delays nothing else."""
        while self._wal.error is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._tier_policy.retry_seconds):
                    await self._may_move.wait()
            self._may_move.clear()
            try:
                while self._live.is_retained and await moving.run():
                    self._upkeep.is_wanted = True
                if moving.failed:
                    await asyncio.sleep(self._tier_policy.retry_seconds)
            except (OSError, LogError) as error:
                log.warning("moving files of the log failed, trying again: %s", error)
                await asyncio.sleep(self._tier_policy.retry_seconds)
            except Exception:
                # A bug of ours. Without this task the disk fills up.
                log.exception("moving files of the log failed, trying again")
                await asyncio.sleep(self._tier_policy.retry_seconds)

    async def _check_space(self) -> None:
        was = self.is_accepting
        now = await self._space.check(was_accepting=was)
        if now != was:
            log.warning("publishing %s: %s", "resumes" if now else "stops", self.told_space())
            self._wal.is_refusing = not now
            for callback in self._accepting_callbacks:
                _tell(callback, now)

    def _name_of(self, ledger: int) -> LedgerName | None:
        if self._sharing is not None:
            return self._sharing.name_of(ledger)
        wanted = self._live.find(ledger)
        return (
            LedgerName(wanted.incarnation, wanted.record, wanted.is_named)
            if wanted and wanted.record
            else None
        )

    # -- writing

    def open_ledger(
        self,
        ledger: LedgerId,
        listener: LedgerListener,
        namespace: str,
        record: str = "",
        *,
        is_named: bool = True,
    ) -> LedgerWriter:
        writer = self._wal.open_ledger(ledger, listener, namespace)
        self._live.open(ledger, namespace, record, is_named=is_named)
        if self._names is not None and record:
            self._names.add(ledger, LedgerName(self._incarnation, record, is_named))
        return writer

    # -- taking over

    def look_for_fences(self) -> None:
        if self._is_shared:
            self._wal.look_for_fences()

    async def take(
        self, incarnation: Incarnation, ledgers: Collection[LedgerId] | None
    ) -> Mapping[LedgerId, LedgerState]:
        if incarnation == self._incarnation:
            await self._wal.flush()
            wanted = self._wal.writers if ledgers is None else ledgers
            if not any(
                one in self._wal.writers and self._wal.writers[one].error is not None for one in wanted
            ):
                closed = [
                    one for one in wanted if one in self._wal.writers and not self._wal.writers[one].is_open
                ]
                return self._local_states(closed)
            # Another broker took some of them: the answer that it stored counts.
        with self._live.taking():
            states = (await self._others.take(incarnation, ledgers)).states
            found = states if ledgers is None else {one: states[one] for one in ledgers if one in states}
            for ledger in found:
                self._live.want(ledger, incarnation)
        return dict(found)

    async def take_whole(self, incarnation: Incarnation) -> fences.FinalStates:
        """What a dead incarnation has left; nothing of it is wanted for that."""
        return await self._others.take(incarnation, None)

    async def index(self, incarnation: Incarnation) -> None:
        await self._others.index(incarnation)

    async def release(self, ledgers: Collection[LedgerId]) -> Mapping[LedgerId, LedgerState]:
        await self._wal.flush()
        for ledger in ledgers:
            self._wal.check_released(ledger)
        # Nothing is stored: a later take of these ledgers finds the same in the log or in the hand-over.
        return self._local_states(ledgers)

    def _local_states(self, ledgers: Iterable[LedgerId]) -> dict[LedgerId, LedgerState]:
        """States as appended, which after a flush is as confirmed. Ledgers without any records are left out."""
        writers = {ledger: self._wal.writers[ledger] for ledger in ledgers}
        return {
            ledger: LedgerState(one.entries_end, one.snapshot, tuple(one.deltas), one.bytes, one.messages)
            for ledger, one in writers.items()
            if one.error is None and (one.next_entry or one.next_state)
        }

    # -- reading

    def read_cached(
        self, ledger: LedgerId, first: int, entries_max: int, bytes_max: int
    ) -> list[Entry] | None:
        writer = self._wal.writers.get(ledger)
        if writer is None:
            return None
        if first >= writer.entries_end:
            # A broker that took the ledger may have found more of it than was confirmed here.
            return [] if writer.is_writing else None
        found = self._cache.read(ledger, first, writer.entries_end, entries_max, bytes_max)
        if found is None:
            self._cache_misses += 1
        else:
            self._cache_hits += 1
        return found

    async def read(
        self,
        ledger: LedgerId,
        incarnation: Incarnation,
        first: int,
        end: int,
        entries_max: int,
        bytes_max: int,
    ) -> list[Entry]:
        return await self._reading.read(ledger, incarnation, first, end, entries_max, bytes_max)

    async def plan(self, ledger: LedgerId, incarnation: Incarnation, first: int, end: int) -> ReadPlan:
        return await self._reading.plan(ledger, incarnation, first, end)

    async def signed(self, keys: Sequence[str], seconds: int) -> list[str]:
        return list(await self._tier.sign(keys, seconds)) if self._tier is not None else []

    # -- giving disk back

    def trim(self, ledger: LedgerId, incarnation: Incarnation, first_live: int) -> None:
        self._live.trim(ledger, incarnation, first_live)
        self._reclaimer.touched(ledger)
        self._upkeep.is_wanted = True

    def delete(self, ledger: LedgerId, incarnation: Incarnation) -> None:
        self._live.delete(ledger)
        self._cache.drop(ledger)
        writer = self._wal.writers.get(ledger)
        if writer is not None and (not writer.is_open or writer.error is not None):
            del self._wal.writers[ledger]
        self._reclaimer.touched(ledger)
        self._upkeep.is_wanted = True

    def know(self, live: Iterable[LiveLedger]) -> None:
        live = list(live)
        for one in live if self._names is not None else ():
            was = self._live.find(one.ledger)
            if was is not None and not was.is_named and self._names is not None:
                self._names.add(one.ledger, LedgerName(one.incarnation, one.record))
        self._live.know(live)

    def ask(self, living: Living, writers: Writers | None = None) -> None:
        """Needed in a shared log only: elsewhere one broker does all the trimming. Locks say which writers live."""
        if self._sharing is not None:
            self._sharing.ask(living)

    def retain(self, live: Iterable[LiveLedger]) -> None:
        self._live.retain(live)
        self._reclaimer.touched_all()
        self._upkeep.is_wanted = True

    async def reclaim(self) -> None:
        if self._live.is_retained:
            # Full files whose footers are just being written count too: that thread does one after the other.
            await self._in_helper(lambda: None)
            await self._upkeep.reclaim(is_thorough=True, wait_s=_TURN_SECONDS)
            while self._moving is not None and await self._moving.run():
                await self._upkeep.reclaim(is_thorough=True, wait_s=_TURN_SECONDS)
        await self._check_space()

    def stats(self) -> Mapping[str, float]:
        files = list(self._catalog.files.values())
        return {
            "files": len(files),
            "disk_bytes": self._space.used_bytes(),
            "live_bytes": self._reclaimer.live_bytes(),
            "removed_files": self._reclaimer.removed_files,
            "rewritten_bytes": self._reclaimer.rewritten_bytes,
            "disk_free_bytes": self._space.free_bytes,
            "cache_bytes": self._cache.bytes,
            "cache_hits": self._cache_hits,
            "cache_misses": self._cache_misses,
            "unconfirmed_bytes": self._wal.unconfirmed_bytes,
            "confirmed_bytes": self._wal.confirmed_bytes,
            "commits": self._wal.commits,
            **(self._moving.stats() if self._moving is not None else {}),
        }

    def histograms(self) -> Mapping[str, Histogram]:
        return {"append": self._wal.append_times, "sync": self._wal.sync_times}


def _tell(callback: Callable[..., None], *args: object) -> None:
    """One of several who want to hear of it: the failure of one is no concern of the others, nor of the log."""
    try:
        callback(*args)
    except Exception:
        log.exception("a listener of the log failed")
