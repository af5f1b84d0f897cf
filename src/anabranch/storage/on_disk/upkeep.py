"""Gives disk back: loads what is needed to know what is dead, then has the reclaimer remove and rewrite files.

In a log of several processes each gives back its own files, and in its turn those without a writer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

from anabranch.storage.on_disk.holds import PlanHolds
from anabranch.storage.on_disk.log_root import LogRoot
from anabranch.storage.on_disk.names import LedgerName, NameWriter
from anabranch.storage.on_disk.other_logs import OtherLogs
from anabranch.storage.on_disk.reclaim import Reclaimer, Rewriter, load_rewritten
from anabranch.storage.on_disk.rewrite_worker import rewrite_in_process
from anabranch.storage.on_disk.sharing import LOOK_SECONDS, Sharing
from anabranch.storage.on_disk.wal import WriteAheadLog


class DiskUpkeep:
    def __init__(
        self,
        root: LogRoot,
        others: OtherLogs,
        reclaimer: Reclaimer,
        wal: WriteAheadLog,
        rewriter: Rewriter,
        clock_ms: Callable[[], int],
        *,
        sharing: Sharing | None,
        holds: PlanHolds | None,
        names: NameWriter | None,
    ) -> None:
        """The last three are there if other processes use the root, too."""
        self._root = root
        self._catalog = root.catalog
        self._live = root.live
        self._others = others
        self._reclaimer = reclaimer
        self._wal = wal
        self._rewriter = rewriter
        self._clock_ms = clock_ms
        self._sharing = sharing
        self._holds = holds
        self._names = names
        self._loading: asyncio.Task[None] | None = None
        self._reclaiming = asyncio.Lock()
        self._looked_at = 0.0
        # Whether rewriting ends after the job under way, because moving waits for the turn.
        self.gives_way: Callable[[], bool] = lambda: False
        # Set when something may have become dead.
        self.is_wanted = False

    def start(self) -> None:
        # Awaited by all who need it, and cancelled by `close`.
        self._loading = asyncio.create_task(self._load_rewritten())

    async def close(self) -> None:
        assert self._loading is not None
        self._loading.cancel()
        await asyncio.wait([self._loading])

    async def rewritten_loaded(self) -> None:
        """Returns once the catalog has the rewritten files that were there at the start."""
        if self._loading is not None:
            # A caller that gives up must not end the loading for all others.
            await asyncio.shield(self._loading)

    async def _load_rewritten(self) -> None:
        # Half-written files of a shared log may be another process's, which is at work on them.
        load = partial(load_rewritten, may_remove=self._sharing is None)
        found = await self._root.in_reader(load, self._root.files, self._root.path)
        for file in found:
            self._catalog.add_indexed(file)
        if self._sharing is not None:
            self._sharing.loaded(found)

    def is_look_due(self) -> bool:
        """Whether other processes may have left something to give back, although nothing has changed here."""
        return (
            self._sharing is not None and asyncio.get_running_loop().time() - self._looked_at >= LOOK_SECONDS
        )

    async def reclaim(self, *, is_thorough: bool, wait_s: float = 0.0) -> None:
        """`wait_s`: how long to wait for the turn in a shared log."""
        async with self._reclaiming:
            await self.rewritten_loaded()
            if self._sharing is not None:
                await self._reclaim_shared(self._sharing, is_thorough=is_thorough, wait_s=wait_s)
                return
            await self._others.load_all()
            await self._reclaimer.run(is_thorough=is_thorough)
            await self._remove_empty_folders()

    async def _reclaim_shared(self, sharing: Sharing, *, is_thorough: bool, wait_s: float) -> None:
        """Gives back what is dead of our own log, and in our turn what has no writer."""
        self._looked_at = asyncio.get_running_loop().time()
        if self._holds is not None:
            await self._root.in_reader(self._holds.drop_expired, self._clock_ms())
        async with sharing.turn(wait_s) as lock:
            await sharing.learn(has_turn=lock is not None, is_thorough=is_thorough)
            if lock is None:
                await sharing.refresh()
                await self._reclaimer.run(is_thorough=is_thorough, scope=sharing.is_own, may_rewrite=False)
            else:
                is_done = await self._reclaimer.run(
                    is_thorough=is_thorough,
                    scope=sharing.is_ours,
                    rewriter=self._rewriter_with(lock),
                    gives_way=self.gives_way,
                )
                self.is_wanted = self.is_wanted or not is_done
                for incarnation in await sharing.remove_folders():
                    self._others.forget(incarnation)
        self.is_wanted = self.is_wanted or sharing.has_doubts
        own = self._live.of(self._root.own)
        if self._names is not None and self._names.wants_rewriting(len(own)):
            self._names.rewrite(
                (ledger, LedgerName(one.incarnation, one.record, one.is_named)) for ledger, one in own
            )

    def _rewriter_with(self, lock: int) -> Rewriter:
        """The rewriting process keeps the turn until it ends, also if this one is killed."""
        return (
            partial(rewrite_in_process, lock=lock) if self._rewriter is rewrite_in_process else self._rewriter
        )

    async def _remove_empty_folders(self) -> None:
        """Removes folders of incarnations without files. None of their writers can be alive: it would hold the root's
        lock."""
        used = {file.incarnation for file in self._catalog.files.values()}
        # A plan may name files that are out of the catalog: until it expires, they and their folders stay.
        used |= self._live.incarnations() | self._reclaimer.doomed_incarnations
        for incarnation in [one for one in self._others.indexed() if one not in used]:
            self._others.forget(incarnation)
            with contextlib.suppress(FileNotFoundError):
                await self._root.in_reader(self._root.files.remove_folder, self._root.wal(incarnation))

    def let_newest_go(self) -> None:
        """Begins a new checkpoint if that frees much space. The newest full file stays for its checkpoint, however dead
        it is. If a burst has made it a multiple of the others, it may hold all the space that publishing waits for."""
        own = [
            file
            for file in self._catalog.files.values()
            if file.incarnation == self._root.own and file.is_finished and not file.is_rewritten
        ]
        newest = max(own, key=lambda file: file.number, default=None)
        if newest is None or newest.disk_bytes < 2 * self._wal.open_disk_bytes:
            return
        if 2 * sum(row.size for row in self._live.rows(newest)) < newest.disk_bytes:
            self._wal.begin_file()
