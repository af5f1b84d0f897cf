"""The log on local files: combines writing, reading, taking over and reclaiming disk behind the port.

    root/lock                                   one process at a time (or several that say so)
    root/wal/<incarnation>/NNNNNNNN.wal         what this or another incarnation wrote
                          /fences, /taken       who may no longer write, and what was found then
    root/ledgers/<namespace>/*.led              what is still wanted of files that were mostly dead

Nothing here blocks the event loop: files are touched by the sync thread, a helper thread and a few reader threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from anabranch.model.histogram import Histogram
from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.core.live import Liveness
from anabranch.storage.on_disk import fences, takeover
from anabranch.storage.on_disk.cache import EntryCache
from anabranch.storage.on_disk.catalog import Catalog
from anabranch.storage.on_disk.files import Files, OsFiles
from anabranch.storage.on_disk.indexing import Indexed, index_incarnation, wal_numbers
from anabranch.storage.on_disk.reader import FileReader
from anabranch.storage.on_disk.reclaim import Reclaimer, ReclaimPolicy, load_rewritten
from anabranch.storage.on_disk.rewrite import RewriteDone, RewriteJob
from anabranch.storage.on_disk.rewrite_worker import rewrite_in_process
from anabranch.storage.on_disk.space import SpacePolicy
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
    LogMissingError,
    ReadPlan,
)

__all__ = ["FileLogStore"]

log = logging.getLogger(__name__)

T = TypeVar("T")

READER_THREADS = 4


def new_incarnation(clock_ms: Callable[[], int]) -> Incarnation:
    """A name that sorts by time and is never used again."""
    return Incarnation(f"{clock_ms():013d}-{secrets.token_hex(6)}")


class FileLogStore:
    """`is_shared` lets several processes write logs under one root; each takes only what it fences."""

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
        rewriter: Callable[[RewriteJob], Awaitable[RewriteDone]] = rewrite_in_process,
    ) -> None:
        self._root = root
        self._clock_ms = clock_ms
        self._files: Files = files or OsFiles()
        self._incarnation = incarnation or new_incarnation(clock_ms)
        self._is_shared = is_shared
        self._plan_ms = plan_ms
        self._folder = root / "wal" / self._incarnation
        self._catalog = Catalog()
        self._cache = EntryCache(cache_bytes)
        # Reads of the newest ledgers, each of many entries: those answered from the cache, and the others.
        self._cache_hits = 0
        self._cache_misses = 0
        self._free_bytes = 0  # As of the last check of the disk.
        self._is_space_known = False
        self._live = Liveness(self._incarnation, is_shared=is_shared)
        self._reader = FileReader(self._files, self._catalog)
        self._readers = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="anabranch-read")
        self._helper = ThreadPoolExecutor(1, thread_name_prefix="anabranch-files")
        # States taken from other incarnations, and the files of those that have been indexed.
        self._taken: dict[Incarnation, fences.FinalStates] = {}
        self._indexed: dict[Incarnation, Indexed] = {}
        self._learning = asyncio.Lock()
        # What callers wait to take, by incarnation: one recovery answers all of them.
        self._asked: dict[Incarnation, list[Collection[LedgerId]]] = {}
        self._locks: list[int] = []
        self._is_started = False
        self._space = SpacePolicy(disk_reserve_bytes, disk_bytes_max, step_bytes=file_bytes)
        self._spare_bytes = file_bytes
        self._background: asyncio.Task[None] | None = None
        self._reclaim_seconds = reclaim_seconds
        self._files_changed = asyncio.Event()
        self._is_reclaim_wanted = False
        self._reclaiming = asyncio.Lock()
        self._loading_rewritten: asyncio.Task[None] | None = None
        self._are_others_loaded = False
        self._reclaimer = Reclaimer(
            root,
            self._incarnation,
            self._files,
            self._readers,
            self._catalog,
            self._live,
            rewriter,
            clock_ms,
            ReclaimPolicy(file_bytes, wal_bytes_max, stretch_bytes_min),
            is_exclusive=not is_shared,
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
        if not self._is_space_known:
            return None
        return self._space.capacity(free=self._free_bytes, used=self._disk_bytes())

    def told_space(self) -> str:
        return self._space.told(free=self._free_bytes, used=self._disk_bytes())

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
        # Both are awaited or cancelled by `close`.
        self._loading_rewritten = asyncio.create_task(self._load_rewritten())
        self._background = asyncio.create_task(self._look_after())

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

    def _lock(self, path: Path, *, is_shared: bool) -> None:
        lock = self._files.lock(path, is_shared=is_shared)
        if lock is None:
            raise LogInUseError(f"{self._root} is in use by another process")
        self._locks.append(lock)

    async def close(self) -> None:
        if not self._is_started:
            self._release()
            return
        self._is_started = False
        for task in (self._background, self._loading_rewritten):
            assert task is not None
            task.cancel()
            await asyncio.wait([task])
        await self._wal.stop_appends()
        is_whole = self._wal.error is None
        states = self._local_states(self._wal.writers)
        await self._wal.close()
        if is_whole:
            try:
                await self._in_helper(self._hand_over, states)
            except OSError as error:
                # Nothing is lost: the next owner finds in the log what the hand-over would have said.
                log.warning("writing the hand-over failed, the next start will recover: %s", error)
        self._release()

    def _hand_over(self, states: dict[LedgerId, LedgerState]) -> None:
        """Stores the answer that a successor of this incarnation would find, so that no recovery is needed."""
        found = fences.load_taken(self._files, self._folder)
        new = {ledger: state for ledger, state in states.items() if ledger not in found.states}
        names = {ledger: self._wal.writers[ledger].namespace for ledger in new}
        answer = fences.FinalStates(states=new, namespaces=names, is_final=True)
        fences.store_taken(self._files, self._folder, answer, found.results)

    def _release(self) -> None:
        self._helper.shutdown()
        self._readers.shutdown()
        self._catalog.clear()
        for lock in reversed(self._locks):
            self._files.close(lock)
        self._locks.clear()

    async def _in_helper(self, call: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._helper, call, *args)

    async def _in_reader(self, call: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, call, *args)

    def _file_changed(self) -> None:
        """A file was begun or finished: space has shrunk, and there may be something to reclaim."""
        self._is_reclaim_wanted = True
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
                if self._live.is_retained and (self._is_reclaim_wanted or not self.is_accepting):
                    self._is_reclaim_wanted = False
                    await self._reclaim(is_thorough=not self.is_accepting)
                    await self._check_space()
                    if not self.is_accepting:
                        self._let_newest_go()
            except (OSError, LogError) as error:
                log.warning("reclaiming disk failed, trying again: %s", error)
            except Exception:
                # A bug of ours. Without this task the free space would be neither watched nor reclaimed.
                log.exception("reclaiming disk failed, trying again")

    async def _check_space(self) -> None:
        free = self._free_bytes = await self._in_reader(self._files.free_bytes, self._root)
        self._is_space_known = True
        was = self.is_accepting
        now = self._space.is_accepting(free=free, used=self._disk_bytes(), was_accepting=was)
        if now != was:
            log.warning("publishing %s: %s", "resumes" if now else "stops", self.told_space())
            self._wal.is_refusing = not now
            for callback in self._accepting_callbacks:
                _tell(callback, now)

    def _let_newest_go(self) -> None:
        """Begins a new checkpoint if that frees much space. The newest full file stays for its checkpoint, however dead
        it is. If a burst has made it a multiple of the others, it may hold all the space that publishing waits for."""
        own = [
            file
            for file in self._catalog.files.values()
            if file.incarnation == self._incarnation and file.is_finished and not file.is_rewritten
        ]
        newest = max(own, key=lambda file: file.number, default=None)
        if newest is None or newest.disk_bytes < 2 * self._wal.open_disk_bytes:
            return
        if 2 * sum(row.size for row in self._live.rows(newest)) < newest.disk_bytes:
            self._wal.begin_file()

    def _disk_bytes(self) -> int:
        known = sum(file.disk_bytes for file in self._catalog.files.values())
        return known + self._spare_bytes + self._reclaimer.doomed_bytes

    async def _load_rewritten(self) -> None:
        for file in await self._in_reader(load_rewritten, self._files, self._root):
            self._catalog.add_indexed(file)

    async def _load_others(self) -> None:
        """Indexes everything under the root, once: only then is it known what is dead."""
        assert self._loading_rewritten is not None
        await self._loading_rewritten
        if self._are_others_loaded or self._is_shared:
            return
        for name in sorted(await self._in_reader(self._files.list, self._root / "wal")):
            if name != self._incarnation:
                await self._take(Incarnation(name), None)
                await self._index(Incarnation(name))
        self._are_others_loaded = True

    async def _reclaim(self, *, is_thorough: bool) -> None:
        async with self._reclaiming:
            await self._load_others()
            await self._reclaimer.run(is_thorough=is_thorough)
            if not self._is_shared:
                await self._remove_empty_folders()

    async def _remove_empty_folders(self) -> None:
        """Removes folders of incarnations without files. None of their writers can be alive: it would hold the root's
        lock."""
        used = {file.incarnation for file in self._catalog.files.values()}
        # A plan may name files that are out of the catalog: until it expires, they and their folders stay.
        used |= self._live.incarnations() | self._reclaimer.doomed_incarnations
        for incarnation in [one for one in self._indexed if one not in used]:
            del self._indexed[incarnation]
            self._taken.pop(incarnation, None)
            with contextlib.suppress(FileNotFoundError):
                await self._in_reader(self._files.remove_folder, self._root / "wal" / incarnation)

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
            states = (await self._take(incarnation, ledgers)).states
            found = states if ledgers is None else {one: states[one] for one in ledgers if one in states}
            for ledger in found:
                self._live.want(ledger, incarnation)
        return dict(found)

    async def _take(
        self, incarnation: Incarnation, ledgers: Collection[LedgerId] | None
    ) -> fences.FinalStates:
        known = self._taken.get(incarnation)
        if known is not None and known.has(ledgers):
            return known
        asked = self._asked.setdefault(incarnation, [])
        mine: Collection[LedgerId] = () if ledgers is None else list(ledgers)
        asked.append(mine)
        try:
            async with self._learning:
                wanted = None if ledgers is None else {one for others in asked for one in others}
                return await self._take_now(incarnation, ledgers, wanted)
        finally:
            # By identity: callers may ask for the same ledgers.
            asked[:] = [one for one in asked if one is not mine]
            if not asked and self._asked.get(incarnation) is asked:
                del self._asked[incarnation]

    async def _take_now(
        self,
        incarnation: Incarnation,
        ledgers: Collection[LedgerId] | None,
        wanted: Collection[LedgerId] | None,
    ) -> fences.FinalStates:
        """Takes those that are wanted, unless those asked for are known by now."""
        known = self._taken.get(incarnation)
        if known is not None and known.has(ledgers):
            return known
        folder = self._root / "wal" / incarnation
        try:
            known = await self._in_reader(takeover.take, self._files, folder, wanted, known)
        except FileNotFoundError as error:
            if await self._in_reader(self._has_log, folder):
                # Do not answer that there is none: the caller would begin the topic again, empty.
                raise LogError(f"the log of {incarnation} cannot be taken over: {error}") from error
            # No incarnation of that name ever wrote here, or nothing of it is left.
            return fences.FinalStates()
        except OSError as error:
            raise LogError(f"the log of {incarnation} cannot be taken over: {error}") from error
        self._taken[incarnation] = known
        return known

    def _has_log(self, folder: Path) -> bool:
        try:
            return bool(wal_numbers(self._files, folder))
        except FileNotFoundError:
            return False

    async def _index(self, incarnation: Incarnation, entry: tuple[LedgerId, int] | None = None) -> None:
        """Puts another incarnation's files into the catalog; repeated when more of it has been taken, or when an entry
        that its writer has released is not in it."""
        if incarnation == self._incarnation or self._is_indexed(incarnation, entry):
            return
        async with self._learning:
            if self._is_indexed(incarnation, entry):
                return
            folder = self._root / "wal" / incarnation
            old = self._indexed.get(incarnation)
            try:
                found = await self._in_reader(index_incarnation, self._files, folder, incarnation, old)
            except FileNotFoundError:
                found = Indexed([], fences.FinalStates(is_final=True))
            # New files first: readers look entries up meanwhile, and a file listed twice does no harm.
            before = dict.fromkeys(old.files) if old is not None else {}
            for file in found.files:
                if file not in before:
                    self._catalog.add_indexed(file)
            after = set(found.files)
            self._catalog.remove([file for file in before if file not in after])
            self._indexed[incarnation] = found

    def _is_indexed(self, incarnation: Incarnation, entry: tuple[LedgerId, int] | None) -> bool:
        known, taken = self._indexed.get(incarnation), self._taken.get(incarnation)
        if known is None or known.is_final:
            return known is not None
        if entry is not None:
            return self._catalog.locate(*entry, 1) is not None
        return taken is None or known.taken.results >= taken.results

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
            ledger: LedgerState(one.entries_end, one.snapshot, tuple(one.deltas), one.bytes)
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
            return []
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
        end = await self._readable_end(ledger, incarnation, first, end)
        return await self._in_reader(self._reader.read, ledger, first, end, entries_max, bytes_max)

    async def _readable_end(self, ledger: LedgerId, incarnation: Incarnation, first: int, end: int) -> int:
        if self._live.is_gone(ledger, first):
            raise LogMissingError(f"ledger {ledger} has no entry {first}: it was trimmed")
        if incarnation != self._incarnation and first < end:
            if self._loading_rewritten is not None:
                await self._loading_rewritten
            # Files are scanned in the order of the log: who has the last entry has those before it.
            await self._index(incarnation, (ledger, end - 1))
        elif (writer := self._wal.writers.get(ledger)) is not None and writer.error is None:
            # Confirmed here. For a ledger that another broker took, the caller has the end from there.
            end = min(end, writer.entries_end)
        if first >= end:
            raise LogMissingError(f"ledger {ledger} has no entry {first}")
        return end

    async def plan(self, ledger: LedgerId, incarnation: Incarnation, first: int, end: int) -> ReadPlan:
        end = await self._readable_end(ledger, incarnation, first, end)
        while True:
            runs = await self._in_reader(self._reader.runs, ledger, first, end)
            # Files are given up on this loop. What is still known here and now is kept from now on; else look again.
            if all(file.id in self._catalog.files for file, _ in runs):
                break
        expires_at_ms = self._clock_ms() + self._plan_ms
        self._reclaimer.planned((file for file, _ in runs), expires_at_ms)
        return ReadPlan(ledger, first, end, tuple(run for _, run in runs), expires_at_ms)

    # -- giving disk back

    def trim(self, ledger: LedgerId, incarnation: Incarnation, first_live: int) -> None:
        self._live.trim(ledger, incarnation, first_live)
        self._reclaimer.touched(ledger)
        self._is_reclaim_wanted = True

    def delete(self, ledger: LedgerId, incarnation: Incarnation) -> None:
        self._live.delete(ledger)
        self._cache.drop(ledger)
        writer = self._wal.writers.get(ledger)
        if writer is not None and (not writer.is_open or writer.error is not None):
            del self._wal.writers[ledger]
        self._reclaimer.touched(ledger)
        self._is_reclaim_wanted = True

    def know(self, live: Iterable[LiveLedger]) -> None:
        self._live.know(live)

    def ask(self, living: Living) -> None:
        """Not needed where one broker does all the trimming."""

    def retain(self, live: Iterable[LiveLedger]) -> None:
        self._live.retain(live)
        self._reclaimer.touched_all()
        self._is_reclaim_wanted = True

    async def reclaim(self) -> None:
        if self._live.is_retained:
            # Full files whose footers are just being written count too: that thread does one after the other.
            await self._in_helper(lambda: None)
            await self._reclaim(is_thorough=True)
        await self._check_space()

    def stats(self) -> Mapping[str, float]:
        files = list(self._catalog.files.values())
        return {
            "files": len(files),
            "disk_bytes": self._disk_bytes(),
            "live_bytes": self._reclaimer.live_bytes(),
            "removed_files": self._reclaimer.removed_files,
            "rewritten_bytes": self._reclaimer.rewritten_bytes,
            "disk_free_bytes": self._free_bytes,
            "cache_bytes": self._cache.bytes,
            "cache_hits": self._cache_hits,
            "cache_misses": self._cache_misses,
            "unconfirmed_bytes": self._wal.unconfirmed_bytes,
            "confirmed_bytes": self._wal.confirmed_bytes,
            "commits": self._wal.commits,
        }

    def histograms(self) -> Mapping[str, Histogram]:
        return {"append": self._wal.append_times, "sync": self._wal.sync_times}


def _tell(callback: Callable[..., None], *args: object) -> None:
    """One of several who want to hear of it: the failure of one is no concern of the others, nor of the log."""
    try:
        callback(*args)
    except Exception:
        log.exception("a listener of the log failed")
