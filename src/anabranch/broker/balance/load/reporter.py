"""Measures this broker's load and that of its bundles at intervals, and reports when it has moved or after a while.

What is reported is the broker's own load and its heaviest bundles; the load of all its bundles stays here, where the
rule for splits reads it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Protocol

from anabranch.balance.core.load import (
    BrokerLoad,
    BundleLoad,
    TopBundles,
    measured,
    report_due,
    top_bundles,
)
from anabranch.balance.core.settings import BalanceSettings
from anabranch.broker.balance.counts import BalanceCounts, BalanceResult
from anabranch.broker.balance.load.bundle_figures import MeasuredTopic, bundle_figures
from anabranch.broker.balance.load.pauses import pause
from anabranch.broker.balance.load.usage import ResourceShares
from anabranch.errors import AnabranchError
from anabranch.model.bundles import BundleName
from anabranch.model.names import TopicName

log = logging.getLogger(__name__)

# How soon a report that was not taken is sent again.
RETRY_S: Final = 0.5

Report = Callable[[BrokerLoad, TopBundles], Awaitable[None]]


class OwnBundles(Protocol):
    """The bundles of this broker, as its owners know them."""

    def bundle(self, topic: TopicName) -> BundleName | None: ...

    def owned_by(self, broker: str) -> list[BundleName]: ...


class BrokerLoadReporter:
    """`run` is to be run for as long as the broker runs."""

    def __init__(
        self,
        broker: str,
        settings: Callable[[], BalanceSettings],
        topics: Callable[[], Iterable[MeasuredTopic]],
        bundles: OwnBundles,
        shares: Callable[[float, float], ResourceShares],
        report: Report,
        now_ms: Callable[[], int],
        counts: BalanceCounts,
        *,
        has_policies: Callable[[str], bool] = lambda namespace: False,
    ) -> None:
        """`topics` gives the open topics, `shares` what is used of each resource, given the bytes in and out a second.
        `has_policies` says of a namespace whether policies bind it to some brokers."""
        self._broker = broker
        self._settings = settings
        self._topics = topics
        self._bundles = bundles
        self._shares = shares
        self._report = report
        self._now_ms = now_ms
        self._counts = counts
        self._has_policies = has_policies
        self._figures: dict[str, BundleLoad] = {}
        self._last: BrokerLoad | None = None
        self._owned: frozenset[BundleName] = frozenset()
        self._reported: BrokerLoad | None = None
        self._wake = asyncio.Event()
        self._is_in_trouble = False

    # -- what was measured last

    @property
    def load(self) -> BrokerLoad | None:
        return self._last

    @property
    def bundles(self) -> Mapping[str, BundleLoad]:
        """The load of each bundle of this broker, by its name."""
        return self._figures

    # -- measuring

    def report_now(self) -> None:
        """The leader is to hear at once, whatever has changed: another broker leads, or bundles have come or gone."""
        self._reported = None
        self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self.round()
            except Exception:
                log.exception("measuring this broker's load failed, trying again")
            await pause(self._pause_s, self._wake)

    def _pause_s(self) -> float:
        pause_s = self._settings().report_interval_ms_min / 1000
        # A leader that was just elected takes reports a moment later.
        return min(pause_s, RETRY_S) if self._is_in_trouble else pause_s

    async def round(self) -> None:
        """Measures, and reports if that is due."""
        settings = self._settings()
        load = await self._measure(settings)
        verdict = report_due(load, self._reported, settings)
        if settings.is_debugging:
            log.info(
                "load report: %s, %s: %s", "sent" if verdict.is_due else "not sent", verdict.because, load
            )
        if not verdict.is_due:
            self._counts.reports[BalanceResult.SKIP] += 1
            return
        top = top_bundles(self._figures.values(), load.measured_ms, self._has_policies, settings)
        try:
            await self._report(load, top)
        except AnabranchError as error:
            # The next round tries again. While there is no leader, that may be for a while.
            level = logging.DEBUG if self._is_in_trouble else logging.INFO
            log.log(level, "load report: not taken, trying again: %s", error)
            self._is_in_trouble = True
            self._counts.reports[BalanceResult.FAILURE] += 1
            return
        self._is_in_trouble = False
        self._counts.reports[BalanceResult.SUCCESS] += 1
        self._reported = load

    async def _measure(self, settings: BalanceSettings) -> BrokerLoad:
        owned = frozenset(self._bundles.owned_by(self._broker))
        figures = await bundle_figures(self._topics(), self._bundles.bundle, owned)
        bytes_in = math.fsum(one.throughput_in for one in figures.values())
        bytes_out = math.fsum(one.throughput_out for one in figures.values())
        used = self._shares(bytes_in, bytes_out)
        sample = BrokerLoad(
            measured_ms=self._now_ms(),
            cpu=used.cpu,
            memory=used.memory,
            direct_memory=used.pending,
            bandwidth_in=used.network_in,
            bandwidth_out=used.network_out,
            disk=used.disk,
            msg_rate_in=math.fsum(one.msg_rate_in for one in figures.values()),
            msg_rate_out=math.fsum(one.msg_rate_out for one in figures.values()),
            throughput_in=bytes_in,
            throughput_out=bytes_out,
            bundles=len(owned),
            topics=sum(one.topics for one in figures.values()),
        )
        # With other bundles than before, the load before says little about the load to come.
        before = self._last if owned == self._owned else None
        self._owned, self._figures = owned, figures
        self._last = load = measured(sample, before, settings)
        return load
