"""The loads of all brokers as the moves decided so far would leave them, and whether they are alike enough. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.autoscale.verdict import percent
from anabranch.balance.core.load import BrokerLoad
from anabranch.balance.core.settings import BalanceSettings
from anabranch.balance.core.shed_verdict import ShedReason


@dataclass(frozen=True, slots=True)
class Due:
    """Why bundles should move."""

    reason: ShedReason
    because: str


class Scales:
    """Changed by `weigh` alone. The mean stays: what one broker loses another gets."""

    def __init__(self, reports: Mapping[str, BrokerLoad], settings: BalanceSettings) -> None:
        """Takes the reports of one broker or more."""
        self._settings = settings
        self._loads = {broker: one.load for broker, one in reports.items()}
        self._throughputs = {broker: one.throughput for broker, one in reports.items()}
        # Loads with their brokers; of equal loads the lower id comes first.
        self.ascending = sorted((load, broker) for broker, load in self._loads.items())
        self._squares = math.fsum(load * load for load in self._loads.values())
        self.mean = math.fsum(self._loads.values()) / len(self._loads)

    @property
    def std(self) -> float:
        # Rounding may leave a little less than nothing.
        return math.sqrt(max(0.0, self._squares / len(self._loads) - self.mean * self.mean))

    @property
    def loads(self) -> Mapping[str, float]:
        return self._loads

    def descending(self) -> list[str]:
        """The brokers, the most loaded first; of equal loads the lower id."""
        return sorted(self._loads, key=lambda one: (-self._loads[one], one))

    def weigh(self, broker: str, load: float, throughput: float) -> None:
        """Adds to the load and the throughput of a broker."""
        before = self._loads[broker]
        after = max(0.0, before + load)
        self._squares += after * after - before * before
        del self.ascending[bisect_left(self.ascending, (before, broker))]
        insort(self.ascending, (after, broker))
        self._loads[broker] = after
        self._throughputs[broker] = max(0.0, self._throughputs[broker] + throughput)

    def due(self, highest: str | None = None) -> Due | None:
        """Why bundles should move, judged by the least loaded broker and `highest`, by default the most loaded one;
        None if the loads are alike enough."""
        settings = self._settings
        highest = self.descending()[0] if highest is None else highest
        load, (low, lowest) = self._loads[highest], self.ascending[0]
        if self.std > settings.load_std_target:
            because = (
                f"The deviation of the loads is {self.std:.2f}, above the target {settings.load_std_target:g}"
            )
            return Due(ShedReason.OVERLOADED, because)
        little = min(0.5, settings.load_std_target / 2)
        if low < self.mean * little:
            because = f"{lowest} is nearly idle, at {percent(low)} beside a mean of {percent(self.mean)}"
            return Due(ShedReason.UNDERLOADED, because)
        if self._throughputs[lowest] < self._throughputs[highest] * little:
            return Due(ShedReason.UNDERLOADED, f"{lowest} has next to no traffic beside {highest}")
        if 100 * load > settings.overloaded_percent and load > self.mean + settings.load_std_target:
            because = f"{highest} is overloaded, at {percent(load)} beside a mean of {percent(self.mean)}"
            return Due(ShedReason.OVERLOADED, because)
        return None

    def __str__(self) -> str:
        target = self._settings.load_std_target
        return f"their deviation is {self.std:.2f} around {percent(self.mean)}, and the target {target:g}"
