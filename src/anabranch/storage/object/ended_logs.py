"""Which logs of an object store have no writer any more, and which of those this broker looks after.

A log is taken for ended once its answer is final, or once no registered broker has written it for a long time. Taking
it fences it whole: a broker that was only cut off meets the fence and ends, and loses nothing that it has confirmed.
Of the registered brokers the logs are divided among, each looks after its own share. That is an economy and no
safeguard: two brokers that look after one log do what each of them may do alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from typing import Final

from crc32c import crc32c

from anabranch.model.position import Incarnation
from anabranch.storage.object.core.objects import ENDED, LOGS, LogKeys
from anabranch.storage.object.medium import MediumError
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.object.requests import CountingMedium, asked, create_settled
from anabranch.storage.port import LogFailedError, Writers

log = logging.getLogger(__name__)

# Where logs lie that releases before the marks have written.
_OBJECTS: Final = "wal"


class EndedLogs:
    def __init__(
        self, medium: CountingMedium, own: Incarnation, policy: ObjectLogPolicy, *, is_sole: bool
    ) -> None:
        """`is_sole`: no other broker uses the metadata, so all other logs have ended."""
        self._medium = medium
        self._own = own
        self._policy = policy
        self._is_sole = is_sole
        self.writers: Writers | None = None
        # Logs that had ended when this broker began: all records were read after that.
        self.early: frozenset[Incarnation] = frozenset()
        self._marked: set[Incarnation] = set()
        # When each was first found without a writer, on the loop's clock.
        self._silent_since: dict[Incarnation, float] = {}

    async def start(self) -> None:
        """Called before anything is written to the own log, and before the records are read."""
        self._marked = set(await self._listed(ENDED))
        others = await self._listed(LOGS)
        # Of two brokers that looked after a log, the slower one may have marked it after it was given back.
        if stale := sorted(self._marked - set(others)):
            with contextlib.suppress(MediumError):
                await self._medium.delete([LogKeys(one).ended_mark for one in stale])
        if self._is_sole and not others:
            others = await self._adopted()
        self.early = frozenset(others if self._is_sole else self._marked)
        keys = LogKeys(self._own)
        # Other bytes than another start under this name would store.
        body = f"{self._own} {secrets.token_hex(8)}".encode()
        if not await create_settled(self._medium, keys.exists_mark, body, self._policy):
            raise LogFailedError(f"{keys.exists_mark} exists: another broker uses the name of this log")

    async def _adopted(self) -> list[Incarnation]:
        """Marks the logs of releases that made no marks."""
        listed = await asked(lambda: self._medium.list(_OBJECTS), self._policy)
        parts = [key.split("/") for key, _ in listed]
        gone = {one[2] for one in parts if one[3:] == ["gone"]}
        found = sorted({one[2] for one in parts if len(one) > 3} - gone - {self._own})
        for name in found:
            keys = LogKeys(Incarnation(name))
            await create_settled(self._medium, keys.exists_mark, name.encode(), self._policy)
        return [Incarnation(name) for name in found]

    async def _listed(self, folder: str) -> list[Incarnation]:
        listed = await asked(lambda: self._medium.list(folder), self._policy)
        return [Incarnation(key.rpartition("/")[2]) for key, _ in listed]

    async def mine(self) -> list[Incarnation]:
        """Logs without a writer that this broker is to look after, until they are forgotten."""
        found = [one for one in await self._listed(LOGS) if one != self._own]
        if self._is_sole:
            return found
        living = await self.writers() if self.writers is not None else None
        if living is None or self._own not in living:
            # The others may have taken this broker for dead: it does nothing for them. Who was missing before may have
            # been there meanwhile.
            self._silent_since.clear()
            return []
        now = asyncio.get_running_loop().time()
        silent = [one for one in found if one not in living]
        self._silent_since = {one: self._silent_since.get(one, now) for one in silent}
        ended = [
            one
            for one in silent
            if one in self._marked or now - self._silent_since[one] >= self._policy.dead_seconds
        ]
        return [one for one in ended if self._own == max(living, key=lambda writer: _rank(writer, one))]

    async def note_ended(self, incarnation: Incarnation) -> None:
        """The answer about the whole log is stored."""
        if incarnation not in self._marked:
            key = LogKeys(incarnation).ended_mark
            await create_settled(self._medium, key, incarnation.encode(), self._policy)
            self._marked.add(incarnation)

    async def forget(self, incarnation: Incarnation) -> None:
        """Nothing of the log is wanted, and nothing but its fences is left."""
        keys = LogKeys(incarnation)
        for failures in range(1, 5):
            try:
                await self._medium.delete([keys.ended_mark])
                return await self._medium.delete([keys.exists_mark])
            except MediumError:
                await asyncio.sleep(self._policy.retry_after(failures))
        log.debug("the marks of %s are left for the next pass", incarnation)


def _rank(writer: Incarnation, log_: Incarnation) -> tuple[int, str]:
    return crc32c(f"{writer} {log_}".encode()), writer
