"""The log in an object store: combines writing, reading and taking over behind the port.

Nothing here blocks the event loop, and no thread is needed: requests are awaited. The reasons are in
docs/decisions/0033-object-log.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict

from anabranch.model.histogram import Histogram
from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.core.live import Liveness
from anabranch.storage.object.blocks import BlockCache
from anabranch.storage.object.ended_logs import EndedLogs
from anabranch.storage.object.medium import (
    MediumError,
    MediumMissingError,
    MediumRefusedError,
    ObjectMedium,
)
from anabranch.storage.object.object_log import ObjectLog
from anabranch.storage.object.other_log import OtherObjectLog
from anabranch.storage.object.planning import ObjectPlanner
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.object.probe import probe
from anabranch.storage.object.reading import ObjectReader
from anabranch.storage.object.reclaiming import ObjectReclaimer
from anabranch.storage.object.requests import CountingMedium, create_settled
from anabranch.storage.on_disk.cache import EntryCache
from anabranch.storage.on_disk.fences import FinalStates, encode_result
from anabranch.storage.on_disk.file_store import new_incarnation
from anabranch.storage.port import (
    Entry,
    LedgerListener,
    LedgerState,
    LedgerWriter,
    LiveLedger,
    Living,
    LogError,
    LogMissingError,
    ObjectRun,
    ReadPlan,
    Writers,
)

log = logging.getLogger(__name__)

# How often an entry is looked for in objects that are not indexed yet.
_READ_TRIES = 3


class ObjectLogStore:
    """Implements `LogStore` on any medium; several brokers write logs side by side.

    `has_ended` says whether the writer of another log is known to be gone. Its log is then taken whole, which saves
    the requests for every further topic. A living writer's ledgers are taken one by one. `is_sole` says that no other
    broker uses the metadata: all other writers have ended then. `url` is where readers with credentials of their own
    find the objects; without it nothing is planned for them."""

    def __init__(
        self,
        medium: ObjectMedium,
        *,
        clock_ms: Callable[[], int],
        incarnation: Incarnation | None = None,
        policy: ObjectLogPolicy | None = None,
        has_ended: Callable[[Incarnation], bool] = lambda _: False,
        is_sole: bool = False,
        url: str = "",
    ) -> None:
        self._policy = policy or ObjectLogPolicy()
        self._is_sole = is_sole
        self._clock_ms = clock_ms
        self._url = url
        self._medium = CountingMedium(medium)
        self._incarnation = incarnation or new_incarnation(clock_ms)
        self._has_ended = lambda one: one != self._incarnation and (is_sole or has_ended(one))
        self._cache = EntryCache(self._policy.cache_bytes)
        self._cache_hits = 0
        self._cache_misses = 0
        self._blocks = BlockCache(self._medium, self._policy)
        self._reader = ObjectReader(self._blocks, self._policy)
        self._planner = ObjectPlanner(self._medium, self._policy)
        self._live = Liveness(self._incarnation, is_shared=True)
        self._others: dict[Incarnation, OtherObjectLog] = {}
        self._end_callbacks: list[Callable[[], None]] = []
        self._log = ObjectLog(
            self._medium,
            self._incarnation,
            secrets.randbits(64),
            self._cache,
            self._policy,
            self._tell_end,
        )
        self._ended_logs = EndedLogs(self._medium, self._incarnation, self._policy, is_sole=is_sole)
        self._reclaimer = ObjectReclaimer(
            self._medium,
            self._log,
            self._incarnation,
            self._live,
            self._ended_logs,
            self._other,
            self._forget_other,
            self._policy,
            is_sole=is_sole,
        )
        self._reclaiming: asyncio.Task[None] | None = None
        self._is_started = False

    @property
    def incarnation(self) -> Incarnation:
        return self._incarnation

    @property
    def ended(self) -> LogError | None:
        return self._log.error

    @property
    def is_accepting(self) -> bool:
        """An object store has no reserve: while it does not answer, publishing waits."""
        return True

    @property
    def capacity_bytes(self) -> int | None:
        return None

    def told_space(self) -> str:
        if self._log.is_out:
            return "the log is in an object store, which does not take what is written at present"
        return "the log is in an object store, which has no limit known here"

    def on_accepting_change(self, callback: Callable[[bool], None]) -> None:
        """It never changes."""

    def on_end(self, callback: Callable[[], None]) -> None:
        self._end_callbacks.append(callback)
        if self.ended is not None:
            asyncio.get_running_loop().call_soon(callback)

    def _tell_end(self) -> None:
        for callback in self._end_callbacks:
            try:
                callback()
            except Exception:
                # One of several that want to hear of it: its failure is no concern of the others.
                log.exception("a listener of the log failed")

    @property
    def unconfirmed_bytes(self) -> int:
        return self._log.unconfirmed_bytes

    # -- life

    async def start(self) -> None:
        """Refuses a store that does not keep the promises which the log is built on."""
        await probe(self._medium)
        await self._ended_logs.start()
        self._log.start()
        self._is_started = True
        # Cancelled by `close`.
        self._reclaiming = asyncio.create_task(self._reclaimer.forever())

    async def close(self) -> None:
        if self._is_started:
            self._is_started = False
            if self._reclaiming is not None:
                self._reclaiming.cancel()
                await asyncio.wait([self._reclaiming])
            await self._log.stop_appends()
            if self._log.is_settled:
                await self._hand_over()
            await self._log.close()
        await self._blocks.close()
        await self._medium.close()

    async def _hand_over(self) -> None:
        """Stores the answer that a successor would find, so that no recovery is needed.

        Ledgers that another broker has fenced are left to that broker: an answer that is final and does not name them
        would say that they never were."""
        writers = self._log.writers
        fenced = [ledger for ledger, one in writers.items() if one.error is not None]
        answer = FinalStates(
            states=self._states(writers),
            namespaces={ledger: one.namespace for ledger, one in writers.items()},
            is_final=not fenced,
        )
        key = self._log.keys.answer(0)
        try:
            async with asyncio.timeout(self._policy.close_seconds):
                if fenced or not await create_settled(self._medium, key, encode_result(answer), self._policy):
                    log.debug("the hand-over of %s is left to those that take it", self._incarnation)
                else:
                    await self._ended_logs.note_ended(self._incarnation)
        except (TimeoutError, MediumError) as error:
            # Nothing is lost: the next owner finds in the log what the hand-over would have said.
            log.warning("storing the hand-over failed, the next start will recover: %s", error)

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
        writer = self._log.open_ledger(ledger, listener, namespace, record)
        self._live.open(ledger, namespace, record, is_named=is_named)
        return writer

    # -- taking over

    def look_for_fences(self) -> None:
        if self._is_started and not self._is_sole:
            self._log.look_for_fences()

    async def take(
        self, incarnation: Incarnation, ledgers: Collection[LedgerId] | None
    ) -> Mapping[LedgerId, LedgerState]:
        if incarnation == self._incarnation:
            await self._log.flush()
            writers = self._log.writers
            wanted = writers if ledgers is None else ledgers
            if not any(one in writers and writers[one].error is not None for one in wanted):
                return self._states(one for one in wanted if one in writers and not writers[one].is_open)
            # Another broker took some of them: the answer that it stored counts.
        with self._live.taking():
            states = (await self._other(incarnation).take(ledgers)).states
            found = states if ledgers is None else {one: states[one] for one in ledgers if one in states}
            for ledger in found:
                self._live.want(ledger, incarnation)
        return dict(found)

    def _other(self, incarnation: Incarnation) -> OtherObjectLog:
        other = self._others.get(incarnation)
        if other is None:
            other = self._others[incarnation] = OtherObjectLog(
                self._medium, self._blocks, incarnation, self._policy, self._has_ended
            )
        return other

    def _forget_other(self, incarnation: Incarnation) -> None:
        self._others.pop(incarnation, None)

    async def release(self, ledgers: Collection[LedgerId]) -> Mapping[LedgerId, LedgerState]:
        await self._log.flush()
        for ledger in ledgers:
            self._log.check_released(ledger)
        # Nothing is stored: a later take of these ledgers finds the same in the log or in the hand-over.
        return self._states(ledgers)

    def _states(self, ledgers: Iterable[LedgerId]) -> dict[LedgerId, LedgerState]:
        """States as appended, which after a flush is as confirmed. Ledgers without any records are left out."""
        writers = {ledger: self._log.writers[ledger] for ledger in ledgers}
        return {
            ledger: LedgerState(one.entries_end, one.snapshot, tuple(one.deltas), one.bytes, one.messages)
            for ledger, one in writers.items()
            if one.error is None and (one.next_entry or one.next_state)
        }

    # -- reading

    def read_cached(
        self, ledger: LedgerId, first: int, entries_max: int, bytes_max: int
    ) -> list[Entry] | None:
        writer = self._log.writers.get(ledger)
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
        end = self._readable_end(ledger, first, end)
        writer = self._log.writers.get(ledger)
        if incarnation == self._incarnation:
            found = await self._reader.read(self._log, ledger, first, end, entries_max, bytes_max)
            if found or writer is None or writer.error is None:
                return found or self._missing(ledger, first)
        other = self._other(incarnation)
        for _ in range(_READ_TRIES):
            # What is known of a log that was only taken may all lie behind its last checkpoint, and be deleted by now.
            with contextlib.suppress(LogMissingError, MediumMissingError):
                found = await self._reader.read(other, ledger, first, end, entries_max, bytes_max)
                if found:
                    return found
            await other.index.look()
        found = await self._reader.read(other, ledger, first, end, entries_max, bytes_max)
        return found or self._missing(ledger, first)

    def _readable_end(self, ledger: LedgerId, first: int, end: int) -> int:
        """One past the last entry to be read; LogMissingError if `first` is not to be read."""
        if self._live.is_gone(ledger, first):
            raise LogMissingError(f"ledger {ledger} has no entry {first}: it was trimmed")
        writer = self._log.writers.get(ledger)
        if writer is not None and writer.error is None:
            # Confirmed here. For a ledger that another broker took, the caller has the end from there.
            end = min(end, writer.entries_end)
        if first >= end:
            raise LogMissingError(f"ledger {ledger} has no entry {first}")
        return end

    def _missing(self, ledger: int, entry: int) -> list[Entry]:
        raise LogMissingError(f"ledger {ledger} has no entry {entry}")

    async def plan(self, ledger: LedgerId, incarnation: Incarnation, first: int, end: int) -> ReadPlan:
        if not self._url:
            raise LogMissingError("nobody but brokers can reach the objects of this log")
        end = self._readable_end(ledger, first, end)
        try:
            runs = await self._runs(ledger, incarnation, first, end)
        except MediumMissingError as error:
            raise LogMissingError(f"ledger {ledger}: {error}") from error
        if not runs:
            self._missing(ledger, first)
        # What is found to be dead from now on stays for that long.
        expires_at_ms = self._clock_ms() + int(self._policy.delete_delay_seconds * 1000)
        return ReadPlan(ledger, first, runs[-1].end, (), expires_at_ms, tuple(runs), self._url)

    async def _runs(
        self, ledger: LedgerId, incarnation: Incarnation, first: int, end: int
    ) -> list[ObjectRun]:
        writer = self._log.writers.get(ledger)
        if incarnation == self._incarnation:
            found = await self._planner.runs(self._log, ledger, first, end, is_own=True)
            if found or writer is None or writer.error is None:
                return found
        other = self._other(incarnation)
        for _ in range(_READ_TRIES):
            with contextlib.suppress(LogMissingError, MediumMissingError):
                if found := await self._planner.runs(other, ledger, first, end, is_own=False):
                    return found
            await other.index.look()
        return await self._planner.runs(other, ledger, first, end, is_own=False)

    async def signed(self, keys: Sequence[str], seconds: int) -> list[str]:
        try:
            return [await self._medium.sign(key, seconds) for key in keys]
        except MediumRefusedError:
            return []

    # -- giving space back

    def trim(self, ledger: LedgerId, incarnation: Incarnation, first_live: int) -> None:
        self._live.trim(ledger, incarnation, first_live)
        if incarnation == self._incarnation:
            self._log.places.trim(ledger, first_live)
        elif (other := self._others.get(incarnation)) is not None:
            other.places.trim(ledger, first_live)

    def delete(self, ledger: LedgerId, incarnation: Incarnation) -> None:
        self._live.delete(ledger)
        if incarnation == self._incarnation:
            self._log.forget(ledger)
        elif (other := self._others.get(incarnation)) is not None:
            other.places.drop(ledger)

    def know(self, live: Iterable[LiveLedger]) -> None:
        self._live.know(live)

    def ask(self, living: Living, writers: Writers | None = None) -> None:
        self._reclaimer.living = living
        self._ended_logs.writers = writers

    def retain(self, live: Iterable[LiveLedger]) -> None:
        self._live.retain(live)

    async def reclaim(self) -> None:
        await self._reclaimer.run(is_thorough=True)

    def stats(self) -> Mapping[str, float]:
        places = self._log.places
        counts = self._medium.counts
        return {
            "files": len(places.numbers),
            "disk_bytes": places.total_bytes,
            "live_bytes": self._live_bytes(),
            "removed_files": self._reclaimer.figures.removed,
            "rewritten_bytes": self._reclaimer.figures.rewritten_bytes,
            "cache_bytes": self._cache.bytes,
            "cache_hits": self._cache_hits,
            "cache_misses": self._cache_misses,
            "unconfirmed_bytes": self._log.unconfirmed_bytes,
            "confirmed_bytes": self._log.confirmed_bytes,
            "commits": self._log.commits,
            **{f"object_{name}": value for name, value in asdict(counts).items()},
        }

    def _live_bytes(self) -> float:
        """What is kept of the ledgers written here, if the entries of each are of one size."""
        total = 0.0
        for ledger, writer in self._log.writers.items():
            wanted = self._live.find(ledger)
            if wanted is not None and writer.next_entry:
                total += writer.bytes * max(0, writer.next_entry - wanted.first) / writer.next_entry
        return total

    def histograms(self) -> Mapping[str, Histogram]:
        return {"append": self._log.append_times, "sync": self._log.put_times}
