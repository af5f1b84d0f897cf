"""A log in an object store of which this process reads or takes ledgers: another incarnation's, as a rule.

Taking fences first (`core/fencing.py`), then reads what lies between the newest checkpoint and the fence, and stores
the answer once, so that every later owner gets the same one. Those who want ledgers at the same time share a fence
and an answer. What was read of a living log is kept, so that the next take reads only what came since.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.core import format as fmt
from anabranch.storage.object.blocks import BlockCache
from anabranch.storage.object.core import fencing
from anabranch.storage.object.core.fencing import Fencing
from anabranch.storage.object.core.fold import FirstFences, LedgerFold, StateRow
from anabranch.storage.object.core.numbers import FencedLedgers, Found
from anabranch.storage.object.core.objects import (
    PEEK_BYTES,
    FenceObject,
    LogKeys,
    StateNote,
    decode_object,
    decode_state,
    decode_table,
    encode_fence,
    is_fence,
    joined_ledgers,
    number_of,
    table_bytes,
)
from anabranch.storage.object.indexing import LogIndex, in_parallel
from anabranch.storage.object.medium import MediumError, MediumMissingError, ObjectMedium
from anabranch.storage.object.places import EntryPlaces
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.object.requests import asked, create_settled
from anabranch.storage.on_disk.fences import FinalStates, encode_result, fold_result
from anabranch.storage.on_disk.recovery import ScannedRun, scan_commit
from anabranch.storage.port import LogError

log = logging.getLogger(__name__)

# How often a log is read again whose objects were removed meanwhile: its writer has stored a newer checkpoint then.
_TRIES: Final = 10


@dataclass(slots=True)
class _ScannedRun:
    ledger: int
    first: int
    entries: int
    size: int
    states: Sequence[StateRow]
    messages: int
    is_good: bool


@dataclass(slots=True)
class _ScannedCommit:
    """What is kept of a commit object: all but its entries."""

    number: int
    ordinal: int
    nonce: int
    confirmed: int
    runs: list[_ScannedRun]
    parts: list[tuple[int, fmt.CheckpointPart]]


@dataclass(slots=True)
class _Checkpoint:
    number: int = 0
    ordinal: int = 0
    scan_from: int = 1
    folds: dict[int, LedgerFold] = field(default_factory=dict)
    fences: FirstFences = field(default_factory=FirstFences)


class OtherObjectLog:
    def __init__(
        self,
        medium: ObjectMedium,
        blocks: BlockCache,
        incarnation: Incarnation,
        policy: ObjectLogPolicy,
        has_ended: Callable[[Incarnation], bool],
    ) -> None:
        """`has_ended` says whether the writer is known to be gone: its log is then taken whole, for all at once."""
        self._medium = medium
        self._blocks = blocks
        self._incarnation = incarnation
        self._policy = policy
        self._has_ended = has_ended
        self.keys = LogKeys(incarnation)
        self.index = LogIndex(medium, blocks, self.keys, policy)
        self._taken = FinalStates()
        # Nothing of it was wanted: what is left of it is to be deleted.
        self.is_gone = False
        # A fence for the whole log below which everything is settled; 0 if none is known.
        self._whole_fence = 0
        # Ledgers that are waited for; None if the whole log is.
        self._wanted: set[LedgerId] | None = set()
        self._taking = asyncio.Lock()
        # What was read behind the checkpoint, by number.
        self._scans: dict[int, _ScannedCommit | FencedLedgers] = {}

    @property
    def places(self) -> EntryPlaces:
        return self.index.places

    def forget(self) -> None:
        """Nothing of the log is wanted any more, and nothing of it is kept in memory."""
        self._taken = FinalStates(is_final=True)
        self._scans.clear()
        self.index = LogIndex(self._medium, self._blocks, self.keys, self._policy)

    # -- taking

    async def take(self, ledgers: Collection[LedgerId] | None) -> FinalStates:
        """Final states of those ledgers (None: all), fenced first unless an earlier answer has them."""
        if ledgers is None:
            self._wanted = None
        elif self._wanted is not None:
            self._wanted.update(ledgers)
        try:
            async with asyncio.timeout(self._policy.take_seconds):
                async with self._taking:
                    return await self._take(ledgers)
        except TimeoutError:
            raise MediumError(
                f"the log of {self._incarnation} was not taken: the object store is slow"
            ) from None

    async def _take(self, ledgers: Collection[LedgerId] | None) -> FinalStates:
        while True:
            await self._load_taken()
            if self._taken.has(ledgers):
                return self._taken
            wanted, self._wanted = self._wanted, set()
            if self._has_ended(self._incarnation) or ledgers is None:
                wanted = None
            scope = None if wanted is None else frozenset({*wanted, *(ledgers or ())})
            known = self._taken.results
            try:
                answer = await self._recover(scope)
            except LogError:
                # Another broker may have stored an answer meanwhile, and deleted what that makes superfluous.
                await self._load_taken()
                if self._taken.results == known and not self._taken.is_final:
                    raise
                continue
            key = self.keys.answer(self._taken.results)
            await create_settled(self._medium, key, encode_result(answer), self._policy)

    async def _load_taken(self) -> None:
        while not self._taken.is_final:
            key = self.keys.answer(self._taken.results)
            try:
                data = await asked(lambda key=key: self._medium.get(key), self._policy)  # type: ignore[misc]
            except MediumMissingError:
                # Answers are deleted, the first one last, only after it was stored that the log is gone: this one may
                # have been there, and those before it, which are known here.
                self.is_gone = self._taken.is_final = await self._find_gone()
                break
            fold_result(self._taken, bytes(data), key)
            self._taken.results += 1
        if self._taken.is_final:
            self._scans.clear()

    async def _find_gone(self) -> bool:
        try:
            await asked(lambda: self._medium.get(self.keys.gone), self._policy)
        except MediumMissingError:
            return False
        return True

    async def _recover(self, scope: Collection[LedgerId] | None) -> FinalStates:
        for _ in range(_TRIES):
            try:
                return await self._recover_once(scope)
            except MediumMissingError:
                # A living writer removes objects that a newer checkpoint makes superfluous, and brokers that look after
                # an ended log what the answer about all of it does.
                self._whole_fence = 0
                await self._load_taken()
                if self._taken.is_final:
                    break
        raise LogError(f"the log of {self._incarnation} changes while it is read")

    async def _recover_once(self, scope: Collection[LedgerId] | None) -> FinalStates:
        checkpoint = await self._checkpoint()
        fence = await self._fenced(scope, checkpoint.scan_from)
        while True:
            # Read again: a living writer may have stored a newer one meanwhile, and deleted what that makes
            # superfluous. What others put in the places of those commits lies below it, and says nothing.
            checkpoint = await self._checkpoint(checkpoint)
            for number in [one for one in self._scans if one < checkpoint.scan_from]:
                del self._scans[number]
            if checkpoint.scan_from > fence:
                # The fence may have taken the place of a deleted commit, too: it stops no writer then.
                fence = await self._fenced(scope, checkpoint.scan_from)
                continue
            unread = [n for n in range(checkpoint.scan_from, fence + 1) if n not in self._scans]
            if not unread:
                break
            await in_parallel(self._scan, unread)
        scans = {number: self._scans[number] for number in range(checkpoint.scan_from, fence + 1)}
        folds = self._folded(checkpoint, scans)
        states = {LedgerId(one): fold for one, fold in folds.items() if fold.has_records}
        wanted = list(states) if scope is None else [one for one in scope if one in states]
        new = [one for one in wanted if one not in self._taken.states and one not in self._taken.absent]
        for one in new:
            if states[one].is_damaged:
                log.error("records of ledger %s in the log of %s are damaged", one, self._incarnation)
        return FinalStates(
            states={one: states[one].state() for one in new},
            namespaces={one: states[one].namespace for one in new},
            absent=set() if scope is None else set(scope) - states.keys(),
            is_final=scope is None,
        )

    def _folded(
        self, checkpoint: _Checkpoint, scans: dict[int, _ScannedCommit | FencedLedgers]
    ) -> dict[int, LedgerFold]:
        fences = checkpoint.fences
        commits = []
        for number, scan in sorted(scans.items()):
            if isinstance(scan, FencedLedgers):
                fences.add(number, scan.ledgers)
            elif scan.ordinal > checkpoint.ordinal:
                commits.append(scan)
        commits.sort(key=lambda one: one.ordinal)
        self._check_whole(checkpoint, commits)
        folds = checkpoint.folds
        for commit in commits:
            for run in commit.runs:
                if not fences.is_void(run.ledger, commit.number):
                    fold = folds.setdefault(run.ledger, LedgerFold())
                    fold.add_run(
                        run.first,
                        run.entries,
                        run.size,
                        run.states,
                        messages=run.messages,
                        is_good=run.is_good,
                    )
            for ledger, part in commit.parts:
                if not fences.is_void(ledger, commit.number):
                    folds.setdefault(ledger, LedgerFold()).set_part(part)
        return folds

    def _check_whole(self, checkpoint: _Checkpoint, commits: Sequence[_ScannedCommit]) -> None:
        """What its writer has confirmed must be there: else objects were removed by others, and what they held must not
        pass for something that never was."""
        if len({commit.nonce for commit in commits}) > 1:
            raise LogError(
                f"two writers have used the name {self._incarnation}: objects were copied into its log"
            )
        confirmed = max((commit.confirmed for commit in commits), default=0)
        missing = set(range(checkpoint.ordinal + 1, confirmed + 1)) - {commit.ordinal for commit in commits}
        if missing:
            raise LogError(
                f"{len(missing)} confirmed commits of {self._incarnation} are gone, {min(missing)} first: objects"
                f" below {self.keys.log} were deleted, perhaps by a lifecycle rule. Restore them"
            )

    async def _checkpoint(self, known: _Checkpoint | None = None) -> _Checkpoint:
        """The newest checkpoint, with those that it builds on; the one that is known, if there is no newer one."""
        listed = await asked(lambda: self._medium.list(self.keys.states), self._policy)
        numbers = [number for key, _ in listed if (number := number_of(key))]
        if known is not None and known.number == max(numbers, default=0):
            return known
        if not numbers:
            return _Checkpoint()
        newest = await self._state(max(numbers))
        notes = [newest]
        if newest.base < newest.number:
            notes = [*await in_parallel(self._state, range(newest.base, newest.number)), newest]
        found = _Checkpoint(newest.number, newest.ordinal, newest.scan_from)
        for ledger, note in joined_ledgers(notes).items():
            found.folds[ledger] = note.fold()
            if note.fence:
                found.fences.of[ledger] = note.fence
        return found

    async def _state(self, number: int) -> StateNote:
        key = self.keys.state(number)
        return decode_state(await asked(lambda: self._medium.get(key), self._policy), key)

    async def _scan(self, number: int) -> None:
        key = self.keys.number(number)
        data = await asked(lambda: self._medium.get(key), self._policy)
        if is_fence(data):
            fence = decode_object(data)
            if not isinstance(fence, FenceObject):
                raise LogError(f"the fence {key} is damaged")
            self._scans[number] = fence.fenced
            return
        view = memoryview(data)
        table = decode_table(view[: table_bytes(view)], number)
        if table is None:
            raise LogError(f"{key} is damaged, or not of this log: restore the object")
        commit = scan_commit(view, number & 0xFFFFFFFF, 0, table.header)
        self._scans[number] = _ScannedCommit(
            number,
            table.header.number,
            table.nonce,
            table.header.confirmed_end,
            [_scanned(run) for run in commit.runs],
            commit.parts,
        )
        self.index.add_table(number, table, len(view))

    # -- fencing

    async def _fenced(self, scope: Collection[LedgerId] | None, first: int) -> int:
        """As `_fence`, but once for the whole log: else each attempt to recover a damaged one would add fences."""
        if self._whole_fence >= first:
            return self._whole_fence
        fence = await self._fence(scope, first)
        if scope is None:
            self._whole_fence = fence
        return fence

    async def _fence(self, scope: Collection[LedgerId] | None, first: int) -> int:
        """Fences the ledgers; returns a number below which, and at which, everything is settled."""
        state = Fencing(None if scope is None else frozenset(scope))
        fencer = secrets.token_hex(12)
        data = encode_fence(fencer, state.ledgers)
        failures: dict[int, int] = {}

        async def perform(effect: fencing.FencerEffect) -> fencing.FencerEvent:
            match effect:
                case fencing.ListNumbers():
                    after = self.keys.number(first - 1)
                    listed = await asked(lambda: self._medium.list(self.keys.log, after), self._policy)
                    numbers = frozenset(number_of(key) for key, _ in listed)
                    return fencing.NumbersListed(first, numbers - {0})
                case fencing.CreateFence(number):
                    await asyncio.sleep(self._policy.retry_after(failures.get(number, 0)))
                    failures[number] = failures.get(number, 0) + 1
                    return fencing.FenceAnswered(
                        number, await self._medium.create(self.keys.number(number), [data])
                    )
                case fencing.ReadFence(number):
                    return fencing.FenceRead(number, await self._read_fence(number, fencer))
                case fencing.AllSettled():
                    raise AssertionError("nothing to perform")

        # In the order in which they were asked for: a simulation repeats itself.
        running: list[asyncio.Task[fencing.FencerEvent]] = []
        try:
            running += [asyncio.create_task(perform(effect)) for effect in state.begin()]
            while True:
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                ended = [task for task in running if task in done]
                running = [task for task in running if task not in done]
                for task in ended:
                    state, effects = fencing.advance_fence(state, task.result())
                    for effect in effects:
                        if isinstance(effect, fencing.AllSettled):
                            return effect.fence
                        running.append(asyncio.create_task(perform(effect)))
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _read_fence(self, number: int, fencer: str) -> Found | FencedLedgers:
        key = self.keys.number(number)
        try:
            data = await self._medium.get(key, 0, PEEK_BYTES)
            if is_fence(data) and len(data) == PEEK_BYTES:
                data = await self._medium.get(key)
        except MediumMissingError:
            return Found.ABSENT
        except MediumError:
            return Found.UNREAD
        there = decode_object(data)
        if isinstance(there, FenceObject):
            return Found.OURS if there.fencer == fencer else there.fenced
        return Found.FOREIGN


def _scanned(run: ScannedRun) -> _ScannedRun:
    size = sum(run.lengths) - fmt.RECORD_BYTES * len(run.lengths)
    messages = run.messages + run.entries - len(run.offsets)
    return _ScannedRun(run.ledger, run.first, run.entries, size, run.states, messages, not run.bad)
