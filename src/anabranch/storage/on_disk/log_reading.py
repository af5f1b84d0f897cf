"""Reads entries, and plans reads that bypass the broker, while files are rewritten and removed around them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, takewhile
from typing import Final

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.core.read_plan import stretches
from anabranch.storage.core.tiered import FarEntries, Tier, TierError
from anabranch.storage.on_disk.catalog import LogFile
from anabranch.storage.on_disk.commit import FileLedgerWriter
from anabranch.storage.on_disk.holds import PlanHolds
from anabranch.storage.on_disk.log_root import LogRoot
from anabranch.storage.on_disk.other_logs import OtherLogs
from anabranch.storage.on_disk.reader import FileReader
from anabranch.storage.on_disk.reclaim import Reclaimer
from anabranch.storage.on_disk.sharing import Sharing
from anabranch.storage.on_disk.upkeep import DiskUpkeep
from anabranch.storage.port import Entry, FileRun, LogDamagedError, LogMissingError, ObjectRun, ReadPlan

# How often a plan is made again because files were exchanged meanwhile.
PLAN_TRIES: Final = 20
# How often an entry is looked for whose file another process may be rewriting.
READ_TRIES: Final = 4
# How much of an object a reader that bypasses the broker is given as one.
RUN_BYTES_MAX: Final = 1 << 20


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
        tier: Tier | None,
    ) -> None:
        """`sharing` and `holds` are there if other processes use the root, too. `writers` are those of the ledgers that
        were opened here."""
        self._root = root
        self._others = others
        self._upkeep = upkeep
        self._reclaimer = reclaimer
        self._writers = writers
        self._clock_ms = clock_ms
        self._plan_ms = plan_ms
        self._sharing = sharing
        self._holds = holds
        self._tier = tier
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
                found = await self._root.in_reader(
                    self._reader.read, ledger, first, end, entries_max, bytes_max
                )
                return await self._read_far(found) if isinstance(found, FarEntries) else found
            except LogMissingError:
                if self._sharing is None or not tries_left:
                    raise
                # Another process may have rewritten the file, also while this one looked for it.
                await self._sharing.refresh()
        raise AssertionError("the last try returns or raises")

    async def _read_far(self, wanted: FarEntries) -> list[Entry]:
        try:
            return await self._tier_of(wanted.place.key).read(wanted)
        except LogDamagedError as error:
            following = await self._root.in_reader(self._reader.next_far, wanted.ledger, error.first_bad)
            raise LogDamagedError(
                error.ledger, error.first_bad, following, error.where, error.offset
            ) from None

    def _tier_of(self, key: str) -> Tier:
        if self._tier is None:
            raise TierError(
                f"the entries are in the object {key}, to which a file of the log was moved: set logTierUrl again"
            )
        return self._tier

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
        return await self._root.in_reader(self._planned, ledger, first, end, runs, expires_at_ms)

    def _planned(
        self,
        ledger: LedgerId,
        first: int,
        end: int,
        runs: Sequence[tuple[LogFile, FileRun]],
        expires_at_ms: int,
    ) -> ReadPlan:
        """The plan, of files or of objects, whichever come first, and as far as these go. Blocking: there may be many
        entries."""
        is_far = runs[0][0].place is not None
        same = list(takewhile(lambda one: (one[0].place is not None) == is_far, runs))
        if len(same) < len(runs):
            end = runs[len(same)][1].first
        if not is_far:
            return ReadPlan(ledger, first, end, tuple(run for _, run in same), expires_at_ms)
        objects = [
            one for file, run in same if file.place is not None for one in object_runs(file.place.key, run)
        ]
        url = self._tier_of(objects[0].key).url
        return ReadPlan(ledger, first, end, (), expires_at_ms, tuple(objects), url)


def object_runs(key: str, run: FileRun, bytes_max: int = RUN_BYTES_MAX) -> Iterator[ObjectRun]:
    """The stretches of an object in which those records lie, cut so that a reader may take some of them."""
    for start, stop in stretches(run.offsets, run.lengths):
        ends = list(accumulate(run.lengths[start:stop]))
        at = 0
        while at < len(ends):
            before = ends[at - 1] if at else 0
            # At least one record.
            until = max(at + 1, bisect_right(ends, before + bytes_max))
            first = run.first + start
            yield ObjectRun(key, first + at, first + until, run.offsets[start + at], ends[until - 1] - before)
            at = until
