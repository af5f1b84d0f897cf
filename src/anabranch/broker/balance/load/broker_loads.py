"""The load of all brokers, as every broker knows it: followed at the leader by a request that waits for changes.

Traffic grows with the number of brokers: a change of one broker's load is sent once to each, together with all others
of that moment. Nothing here is stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from anabranch.balance.core.load import BrokerLoad, TopBundles, is_outdated
from anabranch.balance.core.load_json import BadLoad, decode_broker_load, encode_report
from anabranch.balance.core.settings import BalanceSettings
from anabranch.broker.balance.leading import Leading
from anabranch.broker.balance.load.view_calls import (
    FOLLOW_LOADS,
    REPORT_LOAD,
    BrokerReport,
    FollowLoads,
    LoadsSince,
)
from anabranch.broker.errors import NotReadyError
from anabranch.broker.peers.peers import Peers
from anabranch.errors import AnabranchError

log = logging.getLogger(__name__)

# Between two answers of the leader, so that it sends many changes at once; and after a failure.
PAUSE_S: Final = 1.0
# How long the leader is given to take the keys of a broker that leaves.
LEAVE_S: Final = 2.0


class BrokerLoads:
    """`follow` is to be run for as long as the broker runs."""

    def __init__(
        self,
        peers: Peers,
        leading: Leading,
        settings: Callable[[], BalanceSettings],
        living: Callable[[], Mapping[str, str]],
        now_ms: Callable[[], int],
        *,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._peers = peers
        self._leading = leading
        self._settings = settings
        self._living = living
        self._now_ms = now_ms
        self._pause_s = pause_s
        self._listeners: list[Callable[[], None]] = []
        self._loads: dict[str, BrokerLoad] = {}
        self._view, self._after = "", 0
        self._changed = asyncio.Event()
        self._is_in_trouble = False
        self._stop = leading.on_change(self._changed.set)

    # -- questions

    def loads(self) -> dict[str, BrokerLoad]:
        """The loads that count: of brokers that are registered and have reported of late."""
        now_ms, settings, living = self._now_ms(), self._settings(), self._living()
        return {
            broker: load
            for broker, load in self._loads.items()
            if broker in living and not is_outdated(load.measured_ms, now_ms, settings)
        }

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls `callback`, on the event loop, whenever the leader has told of changes. Returns a function to stop."""
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    # -- this broker's own

    async def report(self, load: BrokerLoad, top: TopBundles) -> None:
        """Reports to the leader. NotReadyError if no broker leads now; else an error of the link, or the leader's."""
        report = BrokerReport(encode_report(load), encode_report(top))
        await self._peers.call(self._leader(), REPORT_LOAD, report)

    async def leave(self) -> None:
        """Removes this broker's keys, as far as that can be done at once: they would be removed later anyway."""
        with suppress(AnabranchError, TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._peers.call(self._leader(), REPORT_LOAD, BrokerReport())

    def _leader(self) -> str:
        leader = self._leading.leader
        if leader is None:
            raise NotReadyError("no broker leads at this moment")
        return leader.broker

    # -- all brokers'

    async def follow(self) -> None:
        try:
            while True:
                self._changed.clear()
                await self._until_changed(self._ask())
        finally:
            self._stop()

    async def _until_changed(self, asking: asyncio.Task[None]) -> None:
        """Waits for the answer, unless another broker leads meanwhile: the former leader may never give it."""
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait((asking, changed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            asking.cancel()
            changed.cancel()
            await asyncio.gather(asking, changed, return_exceptions=True)

    def _ask(self) -> asyncio.Task[None]:
        # Awaited by `_until_changed`.
        return asyncio.ensure_future(self._read_on())

    async def _read_on(self) -> None:
        try:
            asked = FollowLoads(self._view, self._after)
            self._learn(await self._peers.call(self._leader(), FOLLOW_LOADS, asked))
            self._is_in_trouble = False
        except AnabranchError as error:
            # The loads that were read last count on, until they are too old.
            level = logging.DEBUG if self._is_in_trouble else logging.INFO
            log.log(level, "loads of brokers: the leader does not tell them: %s", error)
            self._is_in_trouble = True
        except Exception:
            log.exception("loads of brokers: following them failed, trying again in %s s", self._pause_s)
        await asyncio.sleep(self._pause_s)

    def _learn(self, told: LoadsSince) -> None:
        ahead_ms = self._now_ms() - told.now_ms
        for broker, encoded in told.loads.items():
            try:
                load = decode_broker_load(encoded)
            except BadLoad as error:
                log.warning("load of %s: %s", broker, error)
                continue
            self._loads[broker] = replace(load, measured_ms=load.measured_ms + ahead_ms)
        for broker in told.gone:
            self._loads.pop(broker, None)
        # Loads of a former leader's view that the present one does not have yet count on, until they are too old.
        self._view, self._after = told.view, told.until
        living = self._living()
        for broker in [one for one in self._loads if one not in living and one not in told.loads]:
            if is_outdated(self._loads[broker].measured_ms, self._now_ms(), self._settings()):
                del self._loads[broker]
        for callback in list(self._listeners):
            callback()
