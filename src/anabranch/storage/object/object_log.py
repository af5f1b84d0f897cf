"""The log of this incarnation in an object store: seals commits, puts them, confirms. Data plane, per commit.

Everything runs on the event loop; `core/numbers.py` decides, this performs. A commit is sealed at the end of the turn
of the loop in which it began, if a number is free and the budget of requests allows it; else it goes on filling.

A store that does not answer is asked again for as long as it takes. Nothing is confirmed meanwhile, no ledger is
lost, and what waits is bounded by the publishers' own limits: an outage is back-pressure. What ends the log is a
fence, another writer under its name, or an error of its own.

For its checkpoints it folds what it has confirmed (`core/fold.py`), as a broker that takes its ledgers would.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Concatenate, Final, ParamSpec, assert_never

from anabranch.errors import unraised
from anabranch.model.histogram import Histogram
from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.core import format as fmt
from anabranch.storage.object.core import numbers
from anabranch.storage.object.core.budget import Hedging, PutBudget
from anabranch.storage.object.core.fold import FirstFences, LedgerFold, StateRow
from anabranch.storage.object.core.numbers import FencedLedgers, Found, Numbering
from anabranch.storage.object.core.objects import (
    PEEK_BYTES,
    CommitObject,
    FenceObject,
    LedgerNote,
    LogKeys,
    StateNote,
    decode_object,
    encode_commit,
    encode_state,
    is_fence,
)
from anabranch.storage.object.indexing import LedgerOwner
from anabranch.storage.object.medium import Created, MediumError, MediumMissingError, MediumRefusedError
from anabranch.storage.object.places import EntryPlaces, NewPlaces
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.object.requests import CountingMedium, asked, create_settled
from anabranch.storage.on_disk.cache import EntryCache
from anabranch.storage.on_disk.commit import Commit, CommitRun, FileLedgerWriter
from anabranch.storage.port import Buffer, FencedError, LedgerListener, LogError, LogFailedError

log = logging.getLogger(__name__)

# A ledger's deltas beyond this, and beyond a multiple of its snapshot, are folded: checkpoints stay small.
_DELTAS_BYTES_MAX: Final = 16 << 10
_DELTAS_TO_SNAPSHOT_MAX: Final = 4
# After so many failures of one request, people are told.
_FAILURES_TOLD: Final = 6

P = ParamSpec("P")


def fail_stop(step: Callable[Concatenate[ObjectLog, P], None]) -> Callable[Concatenate[ObjectLog, P], None]:
    """A step of the log: any error that it raises ends the incarnation at once, not only the callback it ran in."""

    @functools.wraps(step)
    def guarded(log: ObjectLog, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            step(log, *args, **kwargs)
        except BaseException as error:
            log.broken(error)
            if not isinstance(error, Exception):
                raise

    return guarded


@dataclass(slots=True, eq=False)
class _Put:
    """An object on its way."""

    number: int
    ordinal: int
    data: bytes
    began: float
    attempts: int = 0
    failures: int = 0
    is_hedged: bool = False


class ObjectLog:
    """Implements `Filler`. Calls `on_end` when the incarnation is over."""

    def __init__(
        self,
        medium: CountingMedium,
        incarnation: Incarnation,
        nonce: int,
        cache: EntryCache,
        policy: ObjectLogPolicy,
        on_end: Callable[[], None],
    ) -> None:
        self._medium = medium
        self._incarnation = incarnation
        self._nonce = nonce
        self._cache = cache
        self._policy = policy
        self._on_end = on_end
        self.keys = LogKeys(incarnation)
        self.commit_bytes_max = policy.commit_bytes_max
        self.filling: Commit | None = None
        self.is_refusing = False
        self.is_closing = False
        self.writers: dict[LedgerId, FileLedgerWriter] = {}
        self.error: LogError | None = None
        # How many commits were sealed: the ordinal of the last one.
        self.commits = 0
        self.confirmed_bytes = 0
        self.append_times = Histogram()
        self.put_times = Histogram()
        # Of confirmed runs.
        self.places = EntryPlaces()
        self._new_places = NewPlaces()
        self._numbering = Numbering(policy.window)
        self._commits: dict[int, Commit] = {}
        self._puts: dict[int, _Put] = {}
        self._pending_bytes = 0
        self._flushes: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._hedging = Hedging(policy.hedge_seconds)
        self._budget: PutBudget
        self._seal_timer: asyncio.TimerHandle | None = None
        # Requests under way; cancelled and awaited by `close`.
        self._tasks: set[asyncio.Task[None]] = set()
        self._fences = FirstFences()
        self._folds: dict[int, LedgerFold] = {}
        self._last_look = float("-inf")
        self._is_looking = False
        # The store has not answered for some time.
        self.is_out = False
        # Ledgers that changed since the last checkpoint, and ledgers that are gone since then.
        self._dirty: set[int] = set()
        self._gone: set[int] = set()
        # Those of which no stored checkpoint says so.
        self._forgotten: dict[int, LedgerOwner] = {}
        self._state_number = 0
        self._state_base = 0
        self._state_bytes = 0
        self._state_ordinal = 0
        # Commits at lower numbers are in a checkpoint that is stored: recovery does not read them.
        self.needed_from = 1
        # The newest stored checkpoint, and the one with which reading it begins.
        self.stored_state = 0
        self.stored_base = 0
        self._checkpointing: asyncio.Task[None] | None = None
        self._checkpoint_timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop

    # -- life

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._budget = PutBudget(self._policy.puts_per_second, self._policy.puts_burst, self._loop.time())

    async def stop_appends(self) -> None:
        """Refuses appends from now on and confirms everything before, if the store answers in time."""
        self.is_closing = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._policy.close_seconds):
                while self.error is None and (self._numbering.confirmed < self.commits or self.filling):
                    await self.flush()
                    await asyncio.sleep(0)
                if self._checkpointing is not None:
                    await asyncio.shield(self._checkpointing)

    @property
    def is_settled(self) -> bool:
        return self.error is None and self.filling is None and self._numbering.confirmed == self.commits

    async def close(self) -> None:
        """Writes a last checkpoint. `stop_appends` comes first."""
        if self.is_settled and self._numbering.confirmed > self._state_ordinal:
            try:
                async with asyncio.timeout(self._policy.close_seconds):
                    # It builds on the one before, which must not be missing.
                    if self._checkpointing is not None:
                        await asyncio.wait([self._checkpointing])
                    if self.error is None:
                        await self._store_state(self._state())
            except TimeoutError:
                log.warning("the last checkpoint of %s was not stored in time", self._incarnation)
        if self.error is None and not self.is_settled:
            log.error("the object store does not answer: the log of %s ends unconfirmed", self._incarnation)
        self.end(LogFailedError("the log is closed"))
        for timer in (self._seal_timer, self._checkpoint_timer):
            if timer is not None:
                timer.cancel()
        tasks = [*self._tasks, *([self._checkpointing] if self._checkpointing else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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
        if self.error is not None:
            return []
        self.error = error
        self.filling = None
        self._pending_bytes = 0
        self._commits.clear()
        self._puts.clear()
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
        return self._pending_bytes + (self.filling.size if self.filling is not None else 0)

    # -- filling and sealing

    def open_ledger(
        self, ledger: LedgerId, listener: LedgerListener, namespace: str, record: str
    ) -> FileLedgerWriter:
        if self.error is not None:
            raise unraised(self.error)
        if self.is_closing:
            raise LogError("the log is closing")
        if ledger in self._fences.of:
            raise FencedError(f"ledger {ledger} was taken by another broker")
        if ledger in self.writers:
            raise LogError(f"ledger {ledger} has been opened before")
        writer = self.writers[ledger] = FileLedgerWriter(self, ledger, listener, namespace)
        self._folds[ledger] = LedgerFold(namespace, record)
        return writer

    def forget(self, ledger: LedgerId) -> None:
        """The ledger is dead. One that is being written is kept until it is closed and deleted again."""
        self._cache.drop(ledger)
        writer = self.writers.get(ledger)
        if writer is not None and writer.is_writing:
            return
        self.writers.pop(ledger, None)
        self.places.drop(ledger)
        self._new_places.drop(ledger)
        if (fold := self._folds.pop(ledger, None)) is not None:
            self._forgotten[ledger] = LedgerOwner(fold.namespace, fold.record)
            self._dirty.discard(ledger)
            self._gone.add(ledger)

    def owners(self) -> dict[int, LedgerOwner]:
        """The owners of all ledgers, also of dead ones that a stored checkpoint names."""
        return {ledger: LedgerOwner(one.namespace, one.record) for ledger, one in self._folds.items()} | (
            self._forgotten
        )

    def entries_end(self, ledger: int) -> int:
        """The end of what is confirmed of a ledger; 0 if it is none of this log's."""
        fold = self._folds.get(ledger)
        return fold.entries_end if fold is not None else 0

    def is_writing(self, ledger: LedgerId) -> bool:
        writer = self.writers.get(ledger)
        return writer is not None and writer.is_writing

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
        """Seals what there is, if it can be put now; else that is tried again when something has changed."""
        if self.filling is None or self.error is not None or not self._numbering.has_room:
            return
        wait = self._budget.wait(self._loop.time())
        if not wait:
            self._seal()
        elif self._seal_timer is None:
            self._seal_timer = self._loop.call_later(wait, self._budget_has_grown)

    def _budget_has_grown(self) -> None:
        self._seal_timer = None
        self._turn_ended()

    def _seal(self, *, may_fold: bool = True) -> None:
        """Sends the filled commit, or an empty one, on its way. Called by `fail_stop` steps only."""
        commit = self.filling or Commit()
        size = 0
        folding: list[FileLedgerWriter] = []
        # Every run is sealed before any owner is asked for its state: that is then the state as of all runs.
        for run in commit.runs:
            writer = run.writer
            if not run.is_sealed:
                writer.sealed(run)
            size += run.size
            if may_fold and writer not in folding and _is_worth_folding(writer):
                folding.append(writer)
        commit.size = size
        commit.parts = [self._part(writer) for writer in folding]
        self.filling = None
        self.commits += 1
        commit.number = self.commits
        self._commits[commit.number] = commit
        self._pending_bytes += size
        self._budget.take(self._loop.time())
        self._advance(numbers.Sealed(commit.number))

    def _part(self, writer: FileLedgerWriter) -> bytes:
        """The ledger's state in full. An owner that cannot give its state loses its ledger: the part is what was
        appended."""
        try:
            part = writer.encode_part()
        except Exception as error:
            self._owner_failed(writer, "cannot say its state", error)
            part = writer.encode_part()
        if writer.run is not None:
            raise LogFailedError(f"ledger {writer.ledger} was appended to while its owner gave its state")
        return part

    # -- putting

    def _advance(self, event: numbers.WriterEvent) -> None:
        self._numbering, effects = numbers.advance(self._numbering, event)
        confirmed: list[tuple[int, int]] = []
        for effect in effects:
            if self.error is not None:
                return
            match effect:
                case numbers.PutCommit(number, ordinal):
                    self._put(number, ordinal)
                case numbers.PutAgain(number):
                    self._put_again(self._puts[number])
                case numbers.ReadNumber(number):
                    self._spawn(self._read_number(self._puts[number]))
                case numbers.ConfirmCommit(ordinal, number):
                    confirmed.append((ordinal, number))
                case numbers.MeetFence(number, ledgers):
                    # What was confirmed before the fence is told before it.
                    self._confirm(confirmed)
                    confirmed = []
                    self._meet_fence(number, ledgers)
                case numbers.EndLog(number):
                    self._confirm(confirmed)
                    self.end(
                        LogFailedError(
                            f"{self.keys.number(number)} is not what this log wrote: another broker uses its name, "
                            "or objects were changed"
                        )
                    )
                case _:
                    assert_never(effect)
        self._confirm(confirmed)

    def _advance_told(self, event: numbers.PutAnswered | numbers.NumberRead) -> None:
        """A step that may confirm. A checkpoint comes after all its effects, since it says that it has everything which
        the numbering has as confirmed by now, and the fences below. Sealing writes none: an owner that is notified in
        the middle of a step may append, and overflow a commit."""
        self._advance(event)
        self._checkpoint_if_due()

    def _put(self, number: int, ordinal: int) -> None:
        commit = self._commits[ordinal]
        # What another broker has taken since the commit was sealed lies above the fence, and does not count.
        runs = [run for run in commit.runs if run.writer.ledger not in self._fences.of]
        rows = [(run.writer.ledger, run.first, len(run.offsets), run.size) for run in runs]
        buffers: list[Buffer] = [*(run.buffer for run in runs), *commit.parts]
        confirmed = self._numbering.confirmed
        data = encode_commit(self._nonce, number, ordinal, confirmed, rows, buffers)
        put = self._puts[number] = _Put(number, ordinal, data, self._loop.time())
        self._create(put)

    def _put_again(self, put: _Put) -> None:
        put.failures += 1
        self._medium.counts.retries += 1
        if put.failures == _FAILURES_TOLD and not self.is_out:
            self.is_out = True
            log.warning("the object store does not take what is written; publishing waits until it does")
        self._later(put.failures, self._create, put)

    def _later(self, failures: int, call: Callable[[_Put], None], put: _Put) -> None:
        def now() -> None:
            if self._puts.get(put.number) is put:
                call(put)

        wait = self._policy.retry_after(failures)
        if wait:
            self._loop.call_later(wait, now)
        else:
            now()

    def _create(self, put: _Put) -> None:
        put.attempts += 1
        self._spawn(self._create_object(put))
        after = self._hedging.after()
        if after is not None and not put.is_hedged:
            self._loop.call_later(after, self._hedge, put)

    def _hedge(self, put: _Put) -> None:
        """The same bytes under the same name on another connection: whichever is first, the outcome is one object."""
        if self._puts.get(put.number) is put and put.attempts and not put.is_hedged:
            put.is_hedged = True
            put.attempts += 1
            self._medium.counts.hedges += 1
            self._spawn(self._create_object(put))

    async def _create_object(self, put: _Put) -> None:
        began = self._loop.time()
        try:
            created = await self._medium.create(self.keys.number(put.number), [put.data])
        except MediumRefusedError as error:
            self._refused(error)
            return
        put.attempts -= 1
        if created is Created.STORED:
            self._hedging.note(self._loop.time() - began)
        if created is not Created.UNKNOWN or not put.attempts:
            # While another attempt is under way, that one will tell.
            self._answered(put, created)

    @fail_stop
    def _refused(self, error: MediumRefusedError) -> None:
        self.end(LogFailedError(f"writing the log failed: {error}"))

    @fail_stop
    def _answered(self, put: _Put, created: Created) -> None:
        if self._puts.get(put.number) is not put:
            return
        if created is Created.STORED:
            self._settled(put)
        self._advance_told(numbers.PutAnswered(put.number, created))
        self._turn_ended()

    def _settled(self, put: _Put) -> None:
        del self._puts[put.number]
        self.put_times.observe(self._loop.time() - put.began)
        self.places.set_sizes({put.number: len(put.data)})
        self._new_places.add_size(put.number, len(put.data))
        if self.is_out:
            self.is_out = False
            log.warning("the object store takes what is written again")

    async def _read_number(self, put: _Put) -> None:
        """What is under that number, if it is not known."""
        try:
            found = await self._found(put)
        except MediumMissingError:
            found = Found.ABSENT
        except MediumError:
            put.failures += 1
            await asyncio.sleep(self._policy.retry_after(put.failures))
            found = Found.UNREAD
        self._number_read(put, found)

    async def _found(self, put: _Put) -> Found | FencedLedgers:
        key = self.keys.number(put.number)
        data = await self._medium.get(key, 0, PEEK_BYTES)
        if is_fence(data) and len(data) == PEEK_BYTES:
            data = await self._medium.get(key)
        there = decode_object(data)
        if isinstance(there, FenceObject):
            return there.fenced
        return Found.OURS if there == CommitObject(self._nonce, put.ordinal) else Found.FOREIGN

    @fail_stop
    def _number_read(self, put: _Put, found: Found | FencedLedgers) -> None:
        if self._puts.get(put.number) is not put:
            return
        if found is Found.OURS:
            self._settled(put)
        elif isinstance(found, FencedLedgers):
            del self._puts[put.number]
        self._advance_told(numbers.NumberRead(put.number, found))
        self._turn_ended()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken(error)

    # -- confirming

    def _confirm(self, confirmed: list[tuple[int, int]]) -> None:
        if not confirmed or self.error is not None:
            return
        now = perf_counter()
        runs: list[CommitRun] = []
        for ordinal, number in confirmed:
            commit = self._commits.pop(ordinal)
            self._pending_bytes -= commit.size
            self.confirmed_bytes += commit.size
            self._state_bytes += commit.size
            if entries := sum([len(run.offsets) for run in commit.runs]):
                self.append_times.observe(now - commit.began, entries)
            runs += self._confirm_runs(commit, number)
        while self._flushes and self._flushes[0][0] <= self._numbering.confirmed:
            waiting = self._flushes.popleft()[1]
            if not waiting.done():
                waiting.set_result(None)
        # One call per ledger, however many commits were confirmed at once.
        self._tell(dict.fromkeys(run.writer for run in runs))

    def _confirm_runs(self, commit: Commit, number: int) -> list[CommitRun]:
        """Makes the commit's entries readable; returns the runs whose owners are to be notified."""
        runs = []
        for run in commit.runs:
            writer = run.writer
            fold = self._folds.get(writer.ledger)
            if fold is not None and not self._fences.is_void(writer.ledger, number):
                self._fold_run(fold, run, number)
            if writer.error is not None:
                continue
            if run.first != writer.entries_end:
                raise LogFailedError(
                    f"a run of ledger {writer.ledger} starts at {run.first}, and {writer.entries_end} is confirmed"
                )
            runs.append(run)
            writer.entries_end = run.entries_end
            writer.state_end = run.state_end
        for part in commit.parts:
            record = fmt.read_record(memoryview(part), 0, len(part))
            assert record is not None
            fold = self._folds.get(record.ledger)
            if fold is not None and not self._fences.is_void(record.ledger, number):
                fold.set_part(fmt.decode_part(memoryview(part)[fmt.RECORD_BYTES :]))
        self._cache.add(runs)
        return runs

    def _fold_run(self, fold: LedgerFold, run: CommitRun, number: int) -> None:
        ledger = run.writer.ledger
        entries = len(run.offsets)
        size = sum(run.lengths) - fmt.RECORD_BYTES * entries
        states = _states_in(run) if run.state_end != fold.state_end else ()
        if fold.add_run(run.first, entries, size, states, messages=run.messages):
            self._dirty.add(ledger)
            if entries:
                length = size + fmt.RECORD_BYTES * entries
                self.places.add(ledger, run.first, number, length)
                self._new_places.add(ledger, run.first, number, length)

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
        can. Everything appended is still stored and confirmed: other parts may have acted on it."""
        log.error("the owner of ledger %s %s", writer.ledger, what, exc_info=error)
        if writer.is_writing:
            why = LogError(f"ledger {writer.ledger} is closed: its owner {what}: {error!r}")
            writer.fail(why)
            # On a later turn: the owner may be in the middle of something.
            self._loop.call_soon(self._tell_lost, writer, why)

    def _meet_fence(self, number: int, ledgers: frozenset[int] | None) -> None:
        self._fences.add(number, ledgers)
        if ledgers is None:
            self.end(FencedError(f"incarnation {self._incarnation} was taken by another broker"))
            return
        for ledger in sorted(ledgers):
            if ledger in self._folds:
                self._dirty.add(ledger)
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
        if self.error is None and self._numbering.confirmed < self.commits:
            waiting = self._loop.create_future()
            self._flushes.append((self.commits, waiting))
            await waiting

    # -- fences that a log meets which writes nothing

    def look_for_fences(self) -> None:
        """A request, at most every some seconds: a fence would be at the next number, for there are no gaps below
        it."""
        now = self._loop.time()
        if self.error is not None or self.is_closing or self._is_looking or not self.writers:
            return
        if self._numbering.flights or now - self._last_look < self._policy.look_seconds:
            return
        self._last_look = now
        self._is_looking = True
        self._spawn(self._look())

    async def _look(self) -> None:
        number = self._numbering.next_number
        try:
            await asked(lambda: self._medium.get(self.keys.number(number), 0, PEEK_BYTES), self._policy)
        except MediumError:
            # There is none, or the store does not answer: there will be another look.
            return
        finally:
            self._is_looking = False
        if self._numbering.next_number == number and self.error is None:
            self._meet_what_is_there()

    @fail_stop
    def _meet_what_is_there(self) -> None:
        """An empty commit meets it as any other would."""
        self._seal()

    # -- checkpoints

    def _checkpoint_if_due(self) -> None:
        if self.is_closing or self.error is not None or not (self._dirty or self._gone):
            return
        if self._state_bytes >= self._policy.checkpoint_bytes:
            self._checkpoint()
        elif self._checkpoint_timer is None:
            self._checkpoint_timer = self._loop.call_later(
                self._policy.checkpoint_seconds, self._checkpoint_by_time
            )

    def _checkpoint_by_time(self) -> None:
        self._checkpoint_timer = None
        if self.error is None and not self.is_closing:
            self._checkpoint()

    @fail_stop
    def _checkpoint(self) -> None:
        if self._checkpointing is not None and not self._checkpointing.done():
            return
        if self._numbering.confirmed == self._state_ordinal and not self._gone:
            return
        # Awaited by `close`.
        self._checkpointing = self._loop.create_task(self._store_state(self._state()))
        self._checkpointing.add_done_callback(self._checkpointed)

    def _checkpointed(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken(error)
            return
        self._checkpoint_if_due()

    def _state(self) -> StateNote:
        """The log as of the last confirmed commit."""
        self._state_number += 1
        every = self._policy.full_checkpoint_every
        is_full = (self._state_number - 1) % every == 0
        if is_full:
            self._state_base = self._state_number
        ledgers = self._folds.keys() if is_full else self._dirty
        places, sizes = self._new_places.taken()
        self._state_bytes = 0
        self._state_ordinal = self._numbering.confirmed
        unconfirmed = [number for _, number in self._numbering.stored]
        note = StateNote(
            self._state_number,
            self._state_base,
            self._nonce,
            self._numbering.confirmed,
            min([*unconfirmed, self._numbering.settled + 1]),
            [
                LedgerNote.of(ledger, fold, self._fences.of.get(ledger, 0))
                for ledger in sorted(ledgers)
                if (fold := self._folds.get(ledger)) is not None
            ],
            sorted(self._gone),
            places,
            sizes,
        )
        self._dirty, self._gone = set(), set()
        return note

    async def _store_state(self, note: StateNote) -> None:
        key = self.keys.state(note.number)
        if not await create_settled(self._medium, key, encode_state(note), self._policy):
            raise LogFailedError(f"{key} is not what this log wrote: another broker uses its name")
        self.needed_from = note.scan_from
        self.stored_state, self.stored_base = note.number, note.base
        for ledger in note.gone:
            self._forgotten.pop(ledger, None)

    async def checkpoint(self) -> None:
        """Returns once a checkpoint is stored that has everything confirmed so far, or the log has ended."""
        while self.error is None and not self.is_closing:
            if self._checkpointing is not None and not self._checkpointing.done():
                await asyncio.shield(self._checkpointing)
                continue
            if self._numbering.confirmed == self._state_ordinal:
                return
            self._checkpoint()


def _is_worth_folding(writer: FileLedgerWriter) -> bool:
    limit = max(_DELTAS_BYTES_MAX, _DELTAS_TO_SNAPSHOT_MAX * len(writer.snapshot or b""))
    return writer.deltas_bytes > limit and writer.can_fold


def _states_in(run: CommitRun) -> list[StateRow]:
    """The state records of a run that this process wrote."""
    view = memoryview(run.buffer)
    found = []
    at = 0
    while at < len(view):
        _, length, _, number, _, kind = fmt.RECORD.unpack_from(view, at)
        stop = at + fmt.RECORD_BYTES + length
        if kind != fmt.ENTRY:
            found.append((number, kind, bytes(view[at + fmt.RECORD_BYTES : stop])))
        at = stop
    return found
