"""Publishes what the balancer saw and decided to load history, so that a backtest can decide again."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, Protocol

from anabranch.balance.core.load import BrokerLoad, BundleLoad, TopBundles
from anabranch.balance.core.settings import KEYS, BalanceSettings
from anabranch.balance.core.shed_verdict import ClusterLoad, ShedVerdict
from anabranch.broker.scalable.load.balance_records import (
    BrokerReported,
    BundleMoved,
    BundleSample,
    BundlesMeasured,
    BundleSplitMade,
    MoveMade,
    ShedMade,
)

# The most bundles in one record.
BUNDLES_MAX: Final = 200


class HistoryOfBalance(Protocol):
    """The topic of load history; `HistoryTopic` implements it."""

    def balance(self, at_ms: int, **found: Any) -> None: ...


class BalanceHistory:
    """Nothing waits for publishing: records are queued, and dropped beyond a limit."""

    def __init__(self, topic: HistoryOfBalance, now_ms: Callable[[], int]) -> None:
        self._topic = topic
        self._now_ms = now_ms

    def report_taken(self, broker: str, load: BrokerLoad, top: TopBundles) -> None:
        """At the leader, for each report."""
        self._topic.balance(load.measured_ms, broker_load=BrokerReported.of(broker, load, top))

    def bundles_measured(self, bundles: Iterable[BundleLoad]) -> None:
        """At each broker, for each round of splits."""
        busy = [BundleSample.of(one) for one in bundles if one.msg_rate + one.throughput > 0]
        parts = max(1, -(-len(busy) // BUNDLES_MAX))
        now_ms = self._now_ms()
        for part in range(parts):
            told = BundlesMeasured(part, parts, tuple(busy[part * BUNDLES_MAX : (part + 1) * BUNDLES_MAX]))
            self._topic.balance(now_ms, bundle_loads=told)

    def shed_decided(
        self,
        term: int,
        view: ClusterLoad,
        verdict: ShedVerdict,
        settings: BalanceSettings,
        failed: Collection[str],
    ) -> None:
        """At the leader, for each round of shedding, once its moves are begun."""
        told = ShedMade(
            term,
            tuple(sorted(view.brokers)),
            tuple(sorted(_unowned(view))),
            not view.rules.is_open,
            "" if verdict.label is None else verdict.label.value,
            verdict.because,
            verdict.mean,
            verdict.std,
            verdict.std_after,
            verdict.state.hits,
            tuple(
                MoveMade(
                    one.bundle,
                    one.source,
                    one.destination or "",
                    one.load,
                    one.reason.value,
                    one.because,
                    one.is_swap,
                )
                for one in verdict.moves
            ),
            tuple(sorted(failed)),
            settings_json(settings),
        )
        self._topic.balance(view.now_ms, shed=told)

    def bundle_moved(self, bundle: str, source: str, destination: str | None, at_ms: int) -> None:
        self._topic.balance(at_ms, moved=BundleMoved(bundle, source, destination or ""))

    def split_decided(
        self, bundle: str, label: str, because: str, children: Sequence[str], *, is_done: bool
    ) -> None:
        told = BundleSplitMade(bundle, label, because, tuple(children), is_done)
        self._topic.balance(self._now_ms(), bundle_split=told)


def _unowned(view: ClusterLoad) -> set[str]:
    return {
        one.bundle
        for broker, top in view.tops.items()
        for one in top.bundles
        if view.owners.get(one.bundle) != broker
    }


def settings_json(settings: BalanceSettings) -> str:
    """By the names that users know."""
    return json.dumps({key: _plain(getattr(settings, name)) for name, key in KEYS.items()}, sort_keys=True)


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, frozenset | tuple) else value
