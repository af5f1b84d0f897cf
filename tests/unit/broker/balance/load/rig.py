"""What the load of brokers is tested with: an election that a test decides, and settings that it changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from anabranch.balance.core.load import BrokerLoad, BundleLoad, TopBundles
from anabranch.balance.core.settings import BalanceSettings
from anabranch.balance.core.states import BrokerRun


@dataclass
class Election:
    """Implements `Leading`: the test says who leads."""

    leader: BrokerRun | None = None
    term: int = 0
    callbacks: list[Callable[[], None]] = field(default_factory=list)

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def elect(self, leader: BrokerRun | None, term: int = 0) -> None:
        """`term` is 0 unless the broker with this view of the election leads."""
        self.leader, self.term = leader, term
        for callback in list(self.callbacks):
            callback()


@dataclass
class Situation:
    """Settings and a clock that a test changes."""

    settings: BalanceSettings = field(default_factory=BalanceSettings)
    ms: int = 1_000_000

    def change(self, **settings: Any) -> None:
        self.settings = replace(self.settings, **settings)

    def current(self) -> BalanceSettings:
        return self.settings

    def now_ms(self) -> int:
        return self.ms


def broker_load(cpu: float, *, measured_ms: int = 0, **figures: Any) -> BrokerLoad:
    return BrokerLoad(measured_ms=measured_ms, cpu=cpu, load=cpu, **figures)


def bundle_load(name: str, rate: float) -> BundleLoad:
    return BundleLoad(bundle=name, msg_rate_in=rate, throughput_in=rate * 1000, topics=1)


def tops(*bundles: BundleLoad, measured_ms: int = 0) -> TopBundles:
    return TopBundles(measured_ms, bundles)
