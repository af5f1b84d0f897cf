"""The leader's end of the two table views: it keeps what brokers report, removes what is too old, and tells all of it.

The views live at the leader and nowhere else, in memory. A new leader begins with empty ones, and every broker reports
to it at once. What changes is published to the views' topics too, if any client reads them there: a removed key as a
message without a value.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from anabranch.balance.core.load import BrokerLoad, TopBundles, outdated
from anabranch.balance.core.load_json import decode_broker_load, decode_top_bundles, encode_report
from anabranch.balance.core.settings import BalanceSettings
from anabranch.broker.balance.leading import Leading
from anabranch.broker.balance.load.view_calls import (
    FOLLOW_LOADS,
    FOLLOW_WAIT_S,
    REPORT_LOAD,
    BrokerReport,
    FollowLoads,
    LoadsSince,
)
from anabranch.broker.errors import NotReadyError
from anabranch.broker.peers.handlers import PeerHandlers
from anabranch.broker.peers.methods import Nothing
from anabranch.model.leaders_topics import BROKER_LOAD_TOPIC, TOP_BUNDLES_TOPIC
from anabranch.model.names import TopicName

log = logging.getLogger(__name__)

# Called with a topic, a key, and the key's value; None removes the key.
PublishKey = Callable[[TopicName, str, bytes | None], None]
# How many removed keys are remembered, for readers that have not heard of them.
GONE_MAX: Final = 1000


class LeaderView:
    """`look` is to be called every few seconds. While another broker leads, the views are empty and refuse reports."""

    def __init__(
        self,
        leading: Leading,
        settings: Callable[[], BalanceSettings],
        living: Callable[[], Mapping[str, str]],
        now_ms: Callable[[], int],
        publish: PublishKey,
        *,
        why_safe_mode: Callable[[], str | None] = lambda: None,
        taken: Callable[[str, BrokerLoad, TopBundles], None] = lambda broker, load, top: None,
    ) -> None:
        """`living` has the run ids of the registered brokers. `taken` is called with each report."""
        self._leading = leading
        self._settings = settings
        self._living = living
        self._now_ms = now_ms
        self._publish = publish
        self._why_safe_mode = why_safe_mode
        self._taken = taken
        self._term = leading.term
        self._loads: dict[str, BrokerLoad] = {}
        self._tops: dict[str, TopBundles] = {}
        self._changes = 0
        # The number of the last change of each key, also of those that are gone, in the order of the changes.
        self._changed: dict[str, int] = {}
        self._waiting: dict[asyncio.Future[None], None] = {}  # In the order in which they came.
        leading.on_change(self._leadership_changed)

    def serve(self, handlers: PeerHandlers) -> None:
        handlers.add(REPORT_LOAD, self._reported)
        handlers.add(FOLLOW_LOADS, self._follow)

    # -- what is in them

    @property
    def loads(self) -> Mapping[str, BrokerLoad]:
        return self._loads

    @property
    def tops(self) -> Mapping[str, TopBundles]:
        return self._tops

    # -- reports

    async def _reported(self, peer: str, report: BrokerReport) -> Nothing:
        self._check_leads()
        if not report.load:
            self._remove(peer, "it leaves")
            return Nothing()
        # Times are this broker's from here on: those of another machine may be ahead or behind.
        now_ms = self._now_ms()
        load = replace(decode_broker_load(report.load), measured_ms=now_ms)
        top = replace(decode_top_bundles(report.top), measured_ms=now_ms) if report.top else None
        self._loads[peer] = load
        self._note(peer)
        self._publish(BROKER_LOAD_TOPIC, peer, encode_report(load))
        if top is not None:
            self._tops[peer] = top
            self._publish(TOP_BUNDLES_TOPIC, peer, encode_report(top))
        self._taken(peer, load, self._tops.get(peer, TopBundles(now_ms)))
        return Nothing()

    def look(self) -> None:
        """Removes the keys of brokers that have not reported for too long, or are gone."""
        if not self._term:
            return
        now_ms, settings = self._now_ms(), self._settings()
        for broker in outdated(self._loads, now_ms, settings):
            self._remove(broker, f"it has not reported for {settings.load_ttl_s} s")
        for broker in outdated(self._tops, now_ms, settings):
            self._remove_top(broker)
        # When the store is in doubt, a missing registration says nothing.
        if self._why_safe_mode() is None:
            living = self._living()
            for broker in [one for one in self._loads if one not in living]:
                self._remove(broker, "it is gone")

    def _remove(self, broker: str, because: str) -> None:
        if self._loads.pop(broker, None) is not None:
            log.info("load of %s: removed, %s", broker, because, extra={"peer": broker})
            self._note(broker)
            self._publish(BROKER_LOAD_TOPIC, broker, None)
        self._remove_top(broker)

    def _remove_top(self, broker: str) -> None:
        if self._tops.pop(broker, None) is not None:
            self._publish(TOP_BUNDLES_TOPIC, broker, None)

    def _note(self, broker: str) -> None:
        self._changes += 1
        self._changed.pop(broker, None)
        self._changed[broker] = self._changes
        gone = len(self._changed) - len(self._loads)
        if gone > GONE_MAX:
            # Readers ignore brokers that are not registered, so one that misses a removal is not misled.
            oldest = next(one for one in self._changed if one not in self._loads)
            del self._changed[oldest]
        self._wake()

    # -- readers

    async def _follow(self, peer: str, asked: FollowLoads) -> LoadsSince:
        self._check_leads()
        view, loop = self._name, asyncio.get_running_loop()
        after = asked.after if asked.view == view else 0
        if asked.view == view and after >= self._changes:
            told: asyncio.Future[None] = loop.create_future()
            self._waiting[told] = None
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(asked.wait_s, FOLLOW_WAIT_S)):
                        await told
            finally:
                self._waiting.pop(told, None)
            self._check_leads()
            if view != self._name:
                after = 0
        changed = [one for one, number in self._changed.items() if number > after]
        return LoadsSince(
            self._name,
            self._changes,
            self._now_ms(),
            {one: encode_report(self._loads[one]) for one in changed if one in self._loads},
            [one for one in changed if one not in self._loads],
        )

    @property
    def _name(self) -> str:
        """Another one for each leadership."""
        leader = self._leading.leader
        return f"{'' if leader is None else leader.run}/{self._term}"

    def _wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    # -- leadership

    def _check_leads(self) -> None:
        if not self._term:
            raise NotReadyError("this broker does not lead: ask the leader")

    def _leadership_changed(self) -> None:
        term = self._leading.term
        if term == self._term:
            return
        self._term = term
        self._loads, self._tops, self._changed, self._changes = {}, {}, {}, 0
        self._wake()
