"""Gives the space of objects back, after a delay.

Deleting is where a log in an object store could lose data, so the rules are few. A commit of this log may go once a
stored checkpoint makes it superfluous for recovery; one of an ended log once the answer about all of that log is
stored. No ledger that lives may have an entry in it, by what the topics' records say. It is kept for some time all the
same, since readers may be on their way to it.

Fences are never deleted: a writer that slept for hours would take the success of its late request for a confirmation.
They are all that is left of a log of which nothing is wanted any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.core.judging import Judge
from anabranch.storage.core.live import Liveness
from anabranch.storage.object.core.objects import REWRITTEN, LogKeys, number_of, rewritten_of
from anabranch.storage.object.ended_logs import EndedLogs
from anabranch.storage.object.indexing import UNKNOWN_OWNER
from anabranch.storage.object.log_space import LogSpace, SpaceFigures, SpaceView, delete_keys, in_turns
from anabranch.storage.object.object_log import ObjectLog
from anabranch.storage.object.other_log import OtherObjectLog
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.object.requests import CountingMedium, asked, create_settled
from anabranch.storage.on_disk.fences import FinalStates
from anabranch.storage.port import LiveLedger, Living, LogError

log = logging.getLogger(__name__)

# How many records are asked for at a time.
_RECORDS_MAX: Final = 500


class ObjectReclaimer:
    def __init__(
        self,
        medium: CountingMedium,
        own: ObjectLog,
        incarnation: Incarnation,
        live: Liveness,
        ended: EndedLogs,
        other: Callable[[Incarnation], OtherObjectLog],
        forget: Callable[[Incarnation], None],
        policy: ObjectLogPolicy,
        *,
        is_sole: bool,
    ) -> None:
        """The sole broker knows every record from its start on. One of several asks the records."""
        self._medium = medium
        self._own = own
        self._incarnation = incarnation
        self._live = live
        self._ended = ended
        self._other = other
        self._forget = forget
        self._is_sole = is_sole
        self._policy = policy
        self._turn = asyncio.Lock()
        self.living: Living | None = None
        # What the records said of ended logs.
        self._named: dict[Incarnation, _EndedLog] = {}
        self.figures = SpaceFigures()
        self._space = LogSpace(medium, own.keys, policy, self.figures)
        self.gone_logs = 0

    async def run(self, *, is_thorough: bool = False) -> None:
        """One pass. A failure leaves the rest for the next one."""
        if not self._live.is_retained or self._own.error is not None:
            # A log that has ended is looked after by the others, who may know more of it.
            return
        async with self._turn:
            await self._ask()
            await self._own.checkpoint()
            await self._space.tidy(self._own_view(), is_thorough=is_thorough)
            for incarnation in sorted(await self._ended.mine()):
                try:
                    await self._look_after(incarnation, is_thorough=is_thorough)
                except LogError as error:
                    log.warning("the log of %s is looked after later: %s", incarnation, error)
                except Exception:
                    # What cannot be read of one log must not keep the space of those after it.
                    log.exception("the log of %s is looked after later", incarnation)

    async def forever(self) -> None:
        while True:
            await asyncio.sleep(self._policy.reclaim_seconds)
            try:
                await self.run()
            except LogError as error:
                log.warning("deleting unneeded objects failed, trying again: %s", error)
            except Exception:
                # A bug of ours. Without this task objects would never be deleted.
                log.exception("deleting unneeded objects failed, trying again")

    # -- the own log

    async def _ask(self) -> None:
        """Topics that have moved to another broker are trimmed there: their records say what lives of the ledgers
        here."""
        if self.living is None:
            return
        asked_for = {
            ledger: wanted.record
            for ledger, wanted in self._live.of(self._incarnation)
            if wanted.record and wanted.is_named and not self._own.is_writing(LedgerId(ledger))
        }
        told = await self._read_records(sorted(set(asked_for.values())))
        named = {(path, int(one.ledger)): one for path, found in told.items() for one in found}
        for ledger, path in asked_for.items():
            if (one := named.get((path, ledger))) is not None:
                self._live.hear(one)
            elif path in told:
                self._live.delete(LedgerId(ledger))
                self._own.forget(LedgerId(ledger))

    async def _read_records(self, paths: Sequence[str]) -> Mapping[str, Sequence[LiveLedger]]:
        assert self.living is not None
        told: dict[str, Sequence[LiveLedger]] = {}
        for at in range(0, len(paths), _RECORDS_MAX):
            told |= await self.living(paths[at : at + _RECORDS_MAX])
        return told

    def _own_view(self) -> SpaceView:
        own = self._own
        needed_from = own.needed_from
        return SpaceView(
            own.keys,
            own.places,
            self._wanted_here,
            own.owners,
            lambda number: number < needed_from or number >= REWRITTEN,
            own.stored_state,
            own.stored_base,
            needed_from,
            has_all=False,
        )

    def _wanted_here(self, ledger: int) -> tuple[int, int | None] | None:
        wanted = self._live.find(ledger)
        return (wanted.first, self._own.entries_end(ledger)) if wanted is not None else None

    # -- logs without a writer

    async def _look_after(self, incarnation: Incarnation, *, is_thorough: bool) -> None:
        other = self._other(incarnation)
        final = await other.take(None)
        if other.is_gone:
            return await self._end(incarnation, other.keys)
        await self._ended.note_ended(incarnation)
        index = other.index
        known = self._named.get(incarnation)
        if known is None or known.space.is_overtaken or index.map_number > known.space.map_number:
            async with index.lock:
                await index.look_locked()
                await self._list_objects(other)
            known = self._named[incarnation] = self._begin(other, known)
        await self._judge(incarnation, known, other, final)

        def wanted(ledger: int) -> tuple[int, int | None] | None:
            if self._is_sole:
                heard = self._live.find(ledger)
                entries = None if heard is None else (heard.first, heard.end)
            else:
                entries = known.wanted(ledger)
            if entries is not None and entries[1] is None and (state := final.states.get(LedgerId(ledger))):
                return entries[0], state.entries_end
            return entries

        view = SpaceView(
            other.keys,
            other.places,
            wanted,
            lambda: {**dict.fromkeys(final.states, UNKNOWN_OWNER), **index.owners},
            lambda number: number in index.commits or number >= REWRITTEN,
            index.states,
            index.states + 1,
            index.states + 1,
            has_all=True,
            has_wanted=any(wanted(one) is not None for one in {*final.states, *other.places.ledgers}),
        )
        await known.space.tidy(view, is_thorough=is_thorough)
        has_objects = any(view.is_removable(number) for number in view.places.numbers)
        if not (view.has_wanted or has_objects or known.space.has_strays or known.space.is_overtaken):
            await self._end(incarnation, other.keys)

    def _begin(self, other: OtherObjectLog, known: _EndedLog | None) -> _EndedLog:
        index = other.index
        space = LogSpace(
            self._medium,
            other.keys,
            self._policy,
            self.figures,
            map_number=index.map_number,
            # One that has not all of it is followed by one that has.
            map_states=index.states if index.has_all else -1,
            namespaces=index.namespaces,
            may_have_garbage=True,
        )
        if known is None:
            return _EndedLog(self._policy, space)
        known.space = space
        return known

    async def _list_objects(self, other: OtherObjectLog) -> None:
        """What exists of the objects with entries. A fence may lie where a commit was deleted: it has another size."""
        sizes: dict[int, int] = {}
        for folder, number_in in ((other.keys.log, number_of), (other.keys.rewritten, rewritten_of)):
            listed = await asked(lambda folder=folder: self._medium.list(folder), self._policy)  # type: ignore[misc]
            async for key, size in in_turns(listed):
                sizes[number_in(key)] = size
        async for number in in_turns(list(other.index.commits)):
            if sizes.get(number) != other.places.size(number):
                other.index.commits.discard(number)
                other.places.remove(number)

    async def _judge(
        self, incarnation: Incarnation, known: _EndedLog, other: OtherObjectLog, final: FinalStates
    ) -> None:
        """Finds out what is wanted of the log. What cannot be found out is wanted."""
        if self._is_sole or self.living is None:
            return
        questions: dict[int, str] = {}
        # Its writer may only sleep. Where no other broker has opened the topic, it can still name what it has written.
        is_last_owner = any(one.end is None for _, one in self._live.of(incarnation))
        for ledger in sorted({*map(int, final.states), *other.places.ledgers} - known.dead):
            owner = other.index.owners.get(ledger)
            heard = self._live.find(ledger)
            path = (owner.record if owner else "") or (heard.record if heard else "")
            if owner is None and other.index.has_all:
                # The map has every ledger of which anything was wanted, or not known to be unwanted.
                known.dead.add(ledger)
            elif path:
                questions[ledger] = path
            elif incarnation in self._ended.early and heard is None and not is_last_owner:
                # Written before this broker began to read all the records, of which none named it.
                known.dead.add(ledger)
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        paths = known.judge.due(questions, now_ms, is_thorough=False)
        answers = await self._read_records(paths)
        verdict = known.judge.judge(_decided(questions, answers, incarnation), answers, now_ms)
        for one in verdict.live:
            known.ranges[one.ledger] = (one.first, one.end)
        known.dead.update(verdict.dead)

    async def _end(self, incarnation: Incarnation, keys: LogKeys) -> None:
        """Nothing of the log is wanted. Who looks for its answers from now on finds that it is gone."""
        await create_settled(self._medium, keys.gone, incarnation.encode(), self._policy)
        answers = [key for key, _ in await asked(lambda: self._medium.list(keys.answers), self._policy)]
        # One after the other, the first one last: as long as it is there, the others were.
        for key in reversed(answers):
            await delete_keys(self._medium, [key], self._policy)
        for folder in (keys.states, keys.maps):
            listed = await asked(lambda folder=folder: self._medium.list(folder), self._policy)  # type: ignore[misc]
            await delete_keys(self._medium, [key for key, _ in listed], self._policy)
        await self._ended.forget(incarnation)
        self._other(incarnation).forget()
        self._named.pop(incarnation, None)
        self._forget(incarnation)
        self.gone_logs += 1


def _decided(
    questions: Mapping[int, str], answers: Mapping[str, Sequence[LiveLedger]], incarnation: Incarnation
) -> dict[int, str]:
    """Without the ledgers that their record leaves out and may still name: a writer that sleeps changes the record when
    it wakes, unless another broker has opened the topic."""
    asleep = {
        path
        for path, found in answers.items()
        if any(one.incarnation == incarnation and one.end is None for one in found)
    }
    named = {(path, int(one.ledger)) for path, found in answers.items() for one in found}
    return {
        ledger: path for ledger, path in questions.items() if path not in asleep or (path, ledger) in named
    }


class _EndedLog:
    """What is known of the ledgers of a log without a writer."""

    def __init__(self, policy: ObjectLogPolicy, space: LogSpace) -> None:
        self.space = space
        self.judge = Judge(ask_ms=int(policy.ask_seconds * 1000), grace_ms=int(policy.grace_seconds * 1000))
        self.dead: set[int] = set()
        self.ranges: dict[int, tuple[int, int | None]] = {}

    def wanted(self, ledger: int) -> tuple[int, int | None] | None:
        if ledger in self.dead:
            return None
        return self.ranges.get(ledger, (0, None))
