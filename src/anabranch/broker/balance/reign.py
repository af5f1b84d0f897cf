"""This broker's leadership: it leads once it was elected and has read what the leaders before it stored.

Between an election and that moment, and while the channel does not answer, no broker leads: `term` is 0. The others
know the elected broker already and send their requests there, which wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from anabranch.balance.core.states import BrokerRun
from anabranch.broker.balance.channel.state_log import StateLog
from anabranch.errors import AnabranchError

log = logging.getLogger(__name__)

RETRY_S: Final = 0.2


class Election(Protocol):
    """Which broker was elected; `Leadership` implements it."""

    @property
    def is_leader(self) -> bool: ...

    @property
    def term(self) -> int:
        """The newest term."""
        ...

    def leader(self) -> BrokerRun | None: ...

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]: ...


class Reign:
    """Implements `Leading`."""

    def __init__(self, election: Election, states: StateLog) -> None:
        self._election = election
        self._states = states
        self._term = 0
        self._stop: Callable[[], None] | None = None
        self._changed = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._listeners: list[Callable[[], None]] = []

    async def start(self) -> None:
        """The election must have been started before."""
        self._stop = self._election.on_change(self._elected)
        self._following = asyncio.create_task(self._follow())  # Awaited by `close`.
        self._elected()

    async def close(self) -> None:
        if self._stop is not None:
            self._stop()
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        self._term = 0

    @property
    def leader(self) -> BrokerRun | None:
        return self._election.leader()

    @property
    def term(self) -> int:
        return self._term

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    def _elected(self) -> None:
        if self._term != self._wanted:
            # Nothing is done in the name of a term that may be over.
            self._term = 0
        self._changed.set()
        self._tell()

    @property
    def _wanted(self) -> int:
        """The term that this broker was elected for; 0 if it was not."""
        return self._election.term if self._election.is_leader else 0

    async def _follow(self) -> None:
        led = 0
        while True:
            self._changed.clear()
            wanted = self._wanted
            try:
                if led and wanted != led:
                    await self._states.resign()
                    led = 0
                if wanted and wanted != self._term:
                    await self._states.lead(wanted)
                    led = wanted
                    if self._wanted == wanted:
                        self._term = wanted
                        self._tell()
            except AnabranchError as error:
                log.warning("term %d does not begin yet: %s", wanted, error)
                await asyncio.sleep(RETRY_S)
                continue
            if self._wanted == wanted:
                await self._changed.wait()

    def _tell(self) -> None:
        for callback in list(self._listeners):
            callback()
