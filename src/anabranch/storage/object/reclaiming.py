"""Deletes commits in which nothing lives any more, after a delay.

Deleting is where a log in an object store could lose data, so the rules are few. A commit of this log may go once a
stored checkpoint makes it superfluous for recovery; one of an ended log once the answer about all of that log is
stored. No ledger that lives may have an entry in it, by what the topics' records said. It is kept for some time all
the same, since readers may be on their way to it. Fences and answers are never deleted: a writer that slept for hours
would take the success of its late request for a confirmation. Checkpoints stay, too: they say where entries lie.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.core.live import Liveness
from anabranch.storage.object.core.objects import LogKeys
from anabranch.storage.object.medium import MediumError
from anabranch.storage.object.object_log import ObjectLog
from anabranch.storage.object.other_log import OtherObjectLog
from anabranch.storage.object.places import EntryPlaces
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.object.requests import CountingMedium, asked
from anabranch.storage.port import Living, LogError

log = logging.getLogger(__name__)

# How many records are asked for at a time, and how many objects deleted.
_RECORDS_MAX: Final = 500
_DELETES_MAX: Final = 1000


class ObjectReclaimer:
    def __init__(
        self,
        medium: CountingMedium,
        own: ObjectLog,
        incarnation: Incarnation,
        live: Liveness,
        other: Callable[[Incarnation], OtherObjectLog],
        policy: ObjectLogPolicy,
        *,
        is_sole: bool,
    ) -> None:
        """Only the sole broker deletes from the logs of others: it knows every record, and what none names is dead."""
        self._medium = medium
        self._own = own
        self._incarnation = incarnation
        self._live = live
        self._other = other
        self._is_sole = is_sole
        self._policy = policy
        self._turn = asyncio.Lock()
        # Logs of others: those with commits left, once they were listed, and those whose commits are known.
        self._unfinished: set[Incarnation] | None = None
        self._indexed: set[Incarnation] = set()
        self.living: Living | None = None
        # When each was first found to be unneeded, on the loop's clock; by its log and number.
        self._dead_since: dict[tuple[Incarnation, int], float] = {}
        self.removed = 0

    async def run(self) -> None:
        """One pass. A failure leaves the rest for the next one."""
        if not self._live.is_retained:
            return
        async with self._turn:
            await self._ask()
            await self._own.checkpoint()
            await self._delete(self._incarnation, self._own.keys, self._dead_here(), self._own.places)
            for incarnation in sorted(await self._unfinished_logs()):
                other = self._other(incarnation)
                if await other.is_final():
                    await self._delete_of(incarnation, other)

    async def _delete_of(self, incarnation: Incarnation, other: OtherObjectLog) -> None:
        if incarnation not in self._indexed:
            await other.index()
            self._indexed.add(incarnation)
        dead = other.commits - other.places.live_numbers(self._first_live)
        await self._delete(incarnation, other.keys, dead, other.places)
        other.commits &= set(other.places.numbers)
        if not other.commits:
            assert self._unfinished is not None
            self._unfinished.discard(incarnation)

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
        paths = sorted(set(asked_for.values()))
        for at in range(0, len(paths), _RECORDS_MAX):
            told = await self.living(paths[at : at + _RECORDS_MAX])
            for path, found in told.items():
                named = {one.ledger: one for one in found}
                for ledger in [ledger for ledger, record in asked_for.items() if record == path]:
                    if (one := named.get(LedgerId(ledger))) is not None:
                        self._live.hear(one)
                    else:
                        self._live.delete(LedgerId(ledger))
                        self._own.forget(LedgerId(ledger))

    def _first_live(self, ledger: int) -> int | None:
        wanted = self._live.find(ledger)
        return wanted.first if wanted is not None else None

    def _dead_here(self) -> set[int]:
        alive = self._own.places.live_numbers(self._first_live)
        needed_from = self._own.needed_from
        return {number for number in self._own.places.numbers if number < needed_from} - alive

    async def _unfinished_logs(self) -> set[Incarnation]:
        """Logs of others that still have commits. All of them were there at the start, so they are listed once."""
        if not self._is_sole:
            return set()
        if self._unfinished is None:
            listed = await asked(lambda: self._medium.list("wal"), self._policy)
            names = {Incarnation(key.split("/")[2]) for key, _ in listed if key.count("/") >= 3}
            self._unfinished = names - {self._incarnation}
        return self._unfinished

    async def _delete(
        self, incarnation: Incarnation, keys: LogKeys, dead: Iterable[int], places: EntryPlaces
    ) -> None:
        now = asyncio.get_running_loop().time()
        due = []
        for number in sorted(dead):
            since = self._dead_since.setdefault((incarnation, number), now)
            if now - since >= self._policy.delete_delay_seconds:
                due.append(number)
        for at in range(0, len(due), _DELETES_MAX):
            some = due[at : at + _DELETES_MAX]
            await self._delete_some([keys.number(number) for number in some])
            for number in some:
                places.remove(number)
                del self._dead_since[incarnation, number]
            self.removed += len(some)

    async def _delete_some(self, keys: list[str]) -> None:
        for failures in range(1, 5):
            try:
                return await self._medium.delete(keys)
            except MediumError:
                await asyncio.sleep(self._policy.retry_after(failures))
        await self._medium.delete(keys)
