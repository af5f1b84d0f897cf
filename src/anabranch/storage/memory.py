"""A log in memory: nothing survives the process, everything else is as the port says.

`MemoryMedium` is what incarnations share, as they would share a disk: each can read, fence and take the others'
ledgers. Records become confirmed on a later turn of the event loop, never inside `append`, so that callers meet the
same order of events as with a real disk. There is no budget: what is trimmed or deleted is freed, the rest is kept.

It is fail-stop like the log on disk: an error while records are confirmed ends the incarnation, and an owner that
raises loses its own ledger.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from anabranch.errors import unraised
from anabranch.model.histogram import Histogram
from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.core.live import Liveness
from anabranch.storage.core.nobody import NOBODY
from anabranch.storage.port import (
    Buffer,
    Entry,
    FencedError,
    FoldingListener,
    LedgerListener,
    LedgerState,
    LedgerWriter,
    LiveLedger,
    Living,
    LogError,
    LogFailedError,
    LogFullError,
    LogMissingError,
    ReadPlan,
    Writers,
)

__all__ = ["MemoryLogStore", "MemoryMedium"]

log = logging.getLogger(__name__)

# More deltas than this are folded into one snapshot, if the owner provides one: a checkpoint on disk does the same.
_DELTAS_MAX = 1024

# The limit of the log on disk.
_MESSAGES_MAX = (1 << 32) - 1


class _Ledger:
    """One ledger's records. The lists hold confirmed and unconfirmed ones alike; the ends say which is which."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, bytes]] = []
        # State records from number `state_base` on: (is it a snapshot, its bytes).
        self.states: list[tuple[bool, bytes]] = []
        self.state_base = 0
        self.entries_end = 0
        self.state_end = 0
        self.bytes_appended = 0
        self.bytes_confirmed = 0
        self.messages_appended = 0
        self.messages_confirmed = 0
        self.first_live = 0

    @property
    def next_state(self) -> int:
        return self.state_base + len(self.states)

    def confirm(self) -> None:
        self.entries_end = len(self.entries)
        self.state_end = self.next_state
        self.bytes_confirmed = self.bytes_appended
        self.messages_confirmed = self.messages_appended
        last = max((i for i, (is_full, _) in enumerate(self.states) if is_full), default=0)
        del self.states[:last]
        self.state_base += last

    def fold(self, snapshot: bytes) -> None:
        """`snapshot` replaces all state records so far."""
        if self.state_end != self.next_state:
            raise LogFailedError("a requested state covers more than is confirmed")
        self.state_base = self.state_end - 1
        self.states = [(True, snapshot)]

    def void(self) -> None:
        """Removes what is unconfirmed."""
        del self.entries[self.entries_end :]
        del self.states[self.state_end - self.state_base :]

    def state(self) -> LedgerState:
        confirmed = self.states[: self.state_end - self.state_base]
        snapshot = confirmed.pop(0)[1] if confirmed and confirmed[0][0] else None
        deltas = tuple(d for _, d in confirmed)
        return LedgerState(self.entries_end, snapshot, deltas, self.bytes_confirmed, self.messages_confirmed)

    def trim(self, first_live: int) -> None:
        for i in range(self.first_live, min(first_live, len(self.entries))):
            self.entries[i] = (0, b"")
        self.first_live = max(self.first_live, first_live)

    def read(self, first: int, end: int, entries_max: int, bytes_max: int) -> list[Entry]:
        found: list[Entry] = []
        size = 0
        for number in range(first, min(end, first + entries_max)):
            messages, data = self.entries[number]
            size += len(data)
            if found and size > bytes_max:
                break
            found.append((number, messages, memoryview(data)))
        return found


class _Wal:
    """The log of one incarnation."""

    def __init__(self) -> None:
        self.ledgers: dict[LedgerId, _Ledger] = {}
        self.is_fenced = False
        # Also ledgers not opened yet: a fence stays in force.
        self.fenced: set[LedgerId] = set()

    def states(self, ledgers: Collection[LedgerId] | None) -> dict[LedgerId, LedgerState]:
        """The states of those ledgers (None: all) that are here; another incarnation may delete what it has taken."""
        wanted = self.ledgers if ledgers is None else [one for one in ledgers if one in self.ledgers]
        return {one: self.ledgers[one].state() for one in wanted}


class MemoryMedium:
    """The disk that incarnations in one process share."""

    def __init__(self) -> None:
        self.wals: dict[Incarnation, _Wal] = {}


class _Writer:
    def __init__(
        self, store: MemoryLogStore, ledger: LedgerId, data: _Ledger, listener: LedgerListener
    ) -> None:
        self._store = store
        self._ledger = ledger
        self.data = data
        self.listener = listener
        self.is_open = True
        self.error: LogError | None = None
        # Set when its owner raised an error: the ledger is closed, and the owner is no longer notified.
        self.failure: LogError | None = None
        self.is_pending = False
        # What the owner has heard of as confirmed: the ends of entries and of states.
        self.told = (0, 0)

    @property
    def ledger(self) -> LedgerId:
        return self._ledger

    @property
    def next_entry(self) -> int:
        return len(self.data.entries)

    @property
    def entries_end(self) -> int:
        return self.data.entries_end

    @property
    def has_told_all(self) -> bool:
        return not self.is_open and self.told == (self.next_entry, self.data.next_state)

    def append(self, entry: Buffer, messages: int) -> int:
        self._check()
        if not self._store.is_accepting:
            raise LogFullError("the log is full: only its reserve is left")
        if not 0 <= messages <= _MESSAGES_MAX:
            raise ValueError(f"ledger {self._ledger} cannot store this: an entry of {messages} messages")
        number = len(self.data.entries)
        record = (messages, bytes(entry))
        self._store.fill(self, len(entry))
        self.data.entries.append(record)
        self.data.bytes_appended += len(entry)
        self.data.messages_appended += messages
        return number

    def append_many(self, entries: Sequence[Buffer], messages: Sequence[int]) -> int:
        first = self.next_entry
        for entry, count in zip(entries, messages, strict=True):
            self.append(entry, count)
        return first

    def append_state(self, delta: bytes) -> int:
        return self._append_state(False, delta)

    def append_snapshot(self, state: bytes) -> int:
        return self._append_state(True, state)

    def _append_state(self, is_full: bool, data: bytes) -> int:
        self._check()
        number = self.data.next_state
        record = (is_full, bytes(data))
        self._store.fill(self, len(data))
        self.data.states.append(record)
        return number

    def close(self) -> None:
        self.is_open = False
        self.let_go_if_told()

    def let_go_if_told(self) -> None:
        """Unless the owner is yet to hear of an error."""
        if self.has_told_all and self.error is None and self.failure is None:
            self.let_go()

    def let_go(self) -> None:
        """The owner hears nothing more, and is not kept in memory."""
        self.listener = NOBODY

    def _check(self) -> None:
        if self.error is not None:
            raise unraised(self.error)
        if self.failure is not None:
            raise unraised(self.failure)
        if not self.is_open:
            raise LogError(f"ledger {self._ledger} is closed")

    def lose(self, error: LogError, *, is_told: bool) -> None:
        if self.error is None:
            self.error = error
            if is_told and self.failure is None:
                self.tell_lost(error)

    def fail(self, what: str, error: Exception) -> bool:
        """Closes the ledger after its owner raised an error, as if the owner had closed it. True if the owner is to be
        notified."""
        log.error("the owner of ledger %s %s", self._ledger, what, exc_info=error)
        if not self.is_open or self.error is not None:
            return False
        self.failure = LogError(f"ledger {self._ledger} is closed: its owner {what}: {error!r}")
        self.is_open = False
        return True

    def tell_lost(self, error: LogError) -> None:
        try:
            self.listener.lost(error)
        except Exception:
            log.exception("the owner of ledger %s failed when it was notified of its loss", self._ledger)
        finally:
            self.let_go()


class MemoryLogStore:
    """One incarnation's log on a shared medium. `medium` defaults to one of its own."""

    def __init__(self, medium: MemoryMedium | None = None, *, incarnation: Incarnation) -> None:
        self._medium = medium or MemoryMedium()
        self._incarnation = incarnation
        self._writers: dict[LedgerId, _Writer] = {}
        self._pending: list[_Writer] = []
        self._confirming: asyncio.Event | None = None
        self._unconfirmed_bytes = 0
        self._is_accepting = True
        self._capacity_bytes: int | None = None
        self._accepting_callbacks: list[Callable[[bool], None]] = []
        self._end_callbacks: list[Callable[[], None]] = []
        self._error: LogError | None = None
        self._commits = 0
        # The rules of the log on disk: what is not known to live is not served once all records were read.
        self._live = Liveness(incarnation)
        if incarnation in self._medium.wals:
            raise LogError(f"{incarnation} was used before: an incarnation's name is never used again")
        self._wal = self._medium.wals[incarnation] = _Wal()

    @property
    def incarnation(self) -> Incarnation:
        return self._incarnation

    @property
    def ended(self) -> LogError | None:
        return self._error

    @property
    def is_accepting(self) -> bool:
        return self._is_accepting

    @property
    def capacity_bytes(self) -> int | None:
        return self._capacity_bytes

    def set_capacity(self, count: int | None) -> None:
        """Simulates a disk of that size."""
        self._capacity_bytes = count

    def told_space(self) -> str:
        return "the log is in memory"

    def set_accepting(self, is_accepting: bool) -> None:
        """Simulates a disk that runs full, or has room again."""
        if is_accepting != self._is_accepting:
            self._is_accepting = is_accepting
            for callback in self._accepting_callbacks:
                callback(is_accepting)

    def on_accepting_change(self, callback: Callable[[bool], None]) -> None:
        self._accepting_callbacks.append(callback)

    def on_end(self, callback: Callable[[], None]) -> None:
        self._end_callbacks.append(callback)
        if self.ended is not None:
            asyncio.get_running_loop().call_soon(callback)

    @property
    def unconfirmed_bytes(self) -> int:
        return self._unconfirmed_bytes

    async def start(self) -> None:
        """Nothing to prepare."""

    async def close(self) -> None:
        await self._flush()
        self._wal.is_fenced = True
        self._end(LogFailedError("the log is closed"))

    def fail(self) -> None:
        """Simulates a failed sync: unconfirmed records will never be confirmed, and the incarnation is over."""
        self._end(LogFailedError("the log's medium failed"))

    def _end(self, error: LogError) -> None:
        if self._error is None:
            self._error = error
            for writer in list(self._writers.values()):
                self._drop(writer, error)
            for callback in self._end_callbacks:
                asyncio.get_running_loop().call_soon(callback)

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
        if self._error is not None:
            raise unraised(self._error)
        if ledger in self._wal.fenced:
            raise _fenced(f"ledger {ledger}")
        if ledger in self._wal.ledgers:
            raise LogError(f"ledger {ledger} has been opened before")
        data = self._wal.ledgers[ledger] = _Ledger()
        self._live.open(ledger, namespace, record, is_named=is_named)
        writer = self._writers[ledger] = _Writer(self, ledger, data, listener)
        return writer

    def fill(self, writer: _Writer, size: int) -> None:
        """Called by writers: `size` bytes were appended and wait for the next turn of the loop."""
        self._unconfirmed_bytes += size
        if not writer.is_pending:
            writer.is_pending = True
            self._pending.append(writer)
        if self._confirming is None:
            self._confirming = asyncio.Event()
            asyncio.get_running_loop().call_soon(self._confirm)

    def _confirm(self) -> None:
        pending, self._pending = self._pending, []
        done, self._confirming = self._confirming, None
        self._unconfirmed_bytes = 0
        self._commits += 1
        try:
            self._confirm_all(pending)
        except BaseException as error:
            log.critical("the log of %s ends because of an internal error", self._incarnation, exc_info=error)
            self._end(LogFailedError(f"the log ended itself: {error!r}"))
            if not isinstance(error, Exception):
                raise
        finally:
            if done is not None:
                done.set()

    def _confirm_all(self, pending: Sequence[_Writer]) -> None:
        if self._wal.is_fenced:
            self._end(_fenced(f"incarnation {self._incarnation}"))
        for writer in pending:
            if writer.ledger in self._wal.fenced:
                self._drop(writer, _fenced(f"ledger {writer.ledger}"))
            if writer.error is None:
                writer.data.confirm()
                self._fold(writer)
        for writer in pending:
            writer.is_pending = False
        for writer in pending:
            if writer.error is None and writer.failure is None:
                writer.told = (writer.data.entries_end, writer.data.state_end)
                try:
                    writer.listener.confirmed(*writer.told)
                except Exception as error:
                    self._owner_failed(writer, "failed when it was notified of a commit", error)
                writer.let_go_if_told()

    def _fold(self, writer: _Writer) -> None:
        listener = writer.listener
        if len(writer.data.states) > _DELTAS_MAX and isinstance(listener, FoldingListener) and writer.is_open:
            try:
                snapshot = bytes(listener.snapshot())
            except Exception as error:
                self._owner_failed(writer, "cannot say its state", error)
            else:
                writer.data.fold(snapshot)

    def _owner_failed(self, writer: _Writer, what: str, error: Exception) -> None:
        """As on disk: the owner loses its ledger, which keeps everything appended and may be opened again."""
        if writer.fail(what, error) and writer.failure is not None:
            asyncio.get_running_loop().call_soon(writer.tell_lost, writer.failure)

    def _drop(self, writer: _Writer, error: LogError) -> None:
        has_told_all = writer.has_told_all
        writer.data.void()
        # An owner that closed its ledger and has had all its answers is not notified.
        writer.lose(error, is_told=not has_told_all)

    async def _flush(self) -> None:
        while self._confirming is not None:
            await self._confirming.wait()

    # -- taking over

    async def take(
        self, incarnation: Incarnation, ledgers: Collection[LedgerId] | None
    ) -> Mapping[LedgerId, LedgerState]:
        wal = self._medium.wals.get(incarnation)
        if wal is None:
            return {}
        if incarnation == self._incarnation:
            await self._flush()
            return {one: state for one, state in wal.states(ledgers).items() if not self._is_writing(one)}
        if ledgers is None:
            wal.is_fenced = True
        wal.fenced.update(wal.ledgers if ledgers is None else ledgers)
        with self._live.taking():
            await asyncio.sleep(0)
            states = wal.states(ledgers)
            for ledger in states:
                self._live.want(ledger, incarnation)
        return states

    async def release(self, ledgers: Collection[LedgerId]) -> Mapping[LedgerId, LedgerState]:
        await self._flush()
        for ledger in ledgers:
            if (writer := self._writers.get(ledger)) is None or ledger not in self._wal.ledgers:
                raise LogError(f"ledger {ledger} is none of {self._incarnation}, or was deleted")
            if writer.error is not None:
                raise unraised(writer.error)
            if writer.is_open:
                raise LogError(f"ledger {ledger} is still being written")
        return self._wal.states(ledgers)

    def look_for_fences(self) -> None:
        if self._wal.is_fenced:
            self._end(_fenced(f"incarnation {self._incarnation}"))
        for ledger in sorted(self._wal.fenced & self._writers.keys()):
            # Ledgers that wait for a commit find the fence there.
            if not self._writers[ledger].is_pending:
                self._drop(self._writers[ledger], _fenced(f"ledger {ledger}"))

    def _is_writing(self, ledger: LedgerId) -> bool:
        writer = self._writers[ledger]
        return writer.is_open and writer.error is None

    # -- reading

    def read_cached(
        self, ledger: LedgerId, first: int, entries_max: int, bytes_max: int
    ) -> list[Entry] | None:
        data = self._wal.ledgers.get(ledger)
        if data is None or first < data.first_live:
            return None
        if first >= data.entries_end and not self._is_writing(ledger):
            # On disk, a broker that took the ledger may have found more of it than was confirmed here.
            return None
        return data.read(first, data.entries_end, entries_max, bytes_max)

    async def read(
        self,
        ledger: LedgerId,
        incarnation: Incarnation,
        first: int,
        end: int,
        entries_max: int,
        bytes_max: int,
    ) -> list[Entry]:
        data = self._find(ledger, incarnation, first)
        await asyncio.sleep(0)
        return data.read(first, min(end, data.entries_end), entries_max, bytes_max)

    def _find(self, ledger: LedgerId, incarnation: Incarnation, first: int) -> _Ledger:
        if self._live.is_gone(ledger, first):
            raise LogMissingError(f"ledger {ledger} has no entry {first}: it was trimmed")
        wal = self._medium.wals.get(incarnation)
        data = wal.ledgers.get(ledger) if wal else None
        if data is None or not data.first_live <= first < data.entries_end:
            raise LogMissingError(f"ledger {ledger} has no entry {first}")
        return data

    async def plan(self, ledger: LedgerId, incarnation: Incarnation, first: int, end: int) -> ReadPlan:
        raise LogMissingError("a log in memory has no files to read: ask its broker")

    async def signed(self, keys: Sequence[str], seconds: int) -> list[str]:
        return []

    # -- giving memory back

    def trim(self, ledger: LedgerId, incarnation: Incarnation, first_live: int) -> None:
        wal = self._medium.wals.get(incarnation)
        if wal and (data := wal.ledgers.get(ledger)):
            data.trim(min(first_live, data.entries_end))
            self._live.trim(ledger, incarnation, first_live)

    def delete(self, ledger: LedgerId, incarnation: Incarnation) -> None:
        self.trim(ledger, incarnation, 1 << 62)
        self._live.delete(ledger)
        if incarnation != self._incarnation and (wal := self._medium.wals.get(incarnation)):
            wal.ledgers.pop(ledger, None)

    def know(self, live: Iterable[LiveLedger]) -> None:
        self._live.know(live)

    def ask(self, living: Living, writers: Writers | None = None) -> None:
        """A trim or a delete frees the memory, whichever incarnation wrote it."""

    def retain(self, live: Iterable[LiveLedger]) -> None:
        live = list(live)
        self._live.retain(live)
        firsts = {(one.incarnation, one.ledger): one.first for one in live}
        for incarnation, wal in self._medium.wals.items():
            if incarnation == self._incarnation or not wal.is_fenced:
                continue
            for ledger in list(wal.ledgers):
                first = firsts.get((incarnation, ledger))
                if first is None and self._live.find(ledger) is not None:
                    # Of a topic that was opened here since the records were read.
                    continue
                if first is None:
                    del wal.ledgers[ledger]
                else:
                    wal.ledgers[ledger].trim(first)

    async def reclaim(self) -> None:
        """Dead entries are freed as they die."""

    def stats(self) -> Mapping[str, float]:
        live = sum(
            len(data)
            for wal in self._medium.wals.values()
            for one in wal.ledgers.values()
            for _, data in one.entries
        )
        return {
            "live_bytes": live,
            "disk_bytes": live,
            "files": 0,
            "cache_bytes": live,
            "commits": self._commits,
        }

    def histograms(self) -> Mapping[str, Histogram]:
        """Empty: times in memory are negligible."""
        return {}


def _fenced(what: str) -> FencedError:
    return FencedError(f"{what} was taken by another broker")
