"""Reads entries, and plans reads that bypass the broker, while files are rewritten and removed around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.on_disk.commit import FileLedgerWriter
from anabranch.storage.on_disk.holds import PlanHolds
from anabranch.storage.on_disk.log_root import LogRoot
from anabranch.storage.on_disk.other_logs import OtherLogs
from anabranch.storage.on_disk.reader import FileReader
from anabranch.storage.on_disk.reclaim import Reclaimer
from anabranch.storage.on_disk.sharing import Sharing
from anabranch.storage.on_disk.upkeep import DiskUpkeep
from anabranch.storage.port import Entry, LogMissingError, ReadPlan

# How often a plan is made again because files were exchanged meanwhile.
PLAN_TRIES: Final = 20
# How often an entry is looked for whose file another process may be rewriting.
READ_TRIES: Final = 4


class LogReading:
    def __init__(
        self,
        root: LogRoot,
        others: OtherLogs,
        upkeep: DiskUpkeep,
        reclaimer: Reclaimer,
        writers: Mapping[LedgerId, FileLedgerWriter],
        clock_ms: Callable[[], int],
        *,
        plan_ms: int,
        sharing: Sharing | None,
        holds: PlanHolds | None,
    ) -> None:
        """The last two are there if other processes use the root, too. `writers` are those of the ledgers that were
        opened here."""
        self._root = root
        self._others = others
        self._upkeep = upkeep
        self._reclaimer = reclaimer
        self._writers = writers
        self._clock_ms = clock_ms
        self._plan_ms = plan_ms
        self._sharing = sharing
        self._holds = holds
        self._reader = FileReader(root.files, root.catalog)

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
        for tries_left in reversed(range(READ_TRIES)):
            try:
                return await self._root.in_reader(
                    self._reader.read, ledger, first, end, entries_max, bytes_max
                )
            except LogMissingError:
                if self._sharing is None or not tries_left:
                    raise
                # Another process may have rewritten the file, also while this one looked for it.
                await self._sharing.refresh()
        raise AssertionError("the last try returns or raises")

    async def _readable_end(self, ledger: LedgerId, incarnation: Incarnation, first: int, end: int) -> int:
        if self._root.live.is_gone(ledger, first):
            raise LogMissingError(f"ledger {ledger} has no entry {first}: it was trimmed")
        if incarnation != self._root.own and first < end:
            await self._upkeep.rewritten_loaded()
            # Files are scanned in the order of the log: who has the last entry has those before it.
            await self._others.index(incarnation, (ledger, end - 1))
        elif (writer := self._writers.get(ledger)) is not None and writer.error is None:
            # Confirmed here. For a ledger that another broker took, the caller has the end from there.
            end = min(end, writer.entries_end)
        if first >= end:
            raise LogMissingError(f"ledger {ledger} has no entry {first}")
        return end

    async def plan(self, ledger: LedgerId, incarnation: Incarnation, first: int, end: int) -> ReadPlan:
        end = await self._readable_end(ledger, incarnation, first, end)
        for tries_left in reversed(range(PLAN_TRIES)):
            expires_at_ms = self._clock_ms() + self._plan_ms
            try:
                runs = await self._root.in_reader(self._reader.runs, ledger, first, end)
            except LogMissingError:
                if self._sharing is None or not tries_left:
                    raise
                await self._sharing.refresh()
                continue
            if self._holds is not None and self._sharing is not None:
                paths = {file.path for file, _ in runs}
                if not await self._root.in_reader(self._holds.hold, paths, expires_at_ms):
                    await self._sharing.refresh()
                    continue
            # Files are given up on this loop. What is still known here and now is kept from now on; else look again.
            files = self._root.catalog.files
            gone = {file.path for file, _ in runs if file.id not in files}
            # By path: the parts of a growing file's index are joined, and become other objects then.
            if not gone or gone <= {file.path for file in files.values()}:
                break
        else:
            raise LogMissingError(f"the files of ledger {ledger} change all the time: plan again")
        self._reclaimer.planned((file for file, _ in runs), expires_at_ms)
        return ReadPlan(ledger, first, end, tuple(run for _, run in runs), expires_at_ms)
