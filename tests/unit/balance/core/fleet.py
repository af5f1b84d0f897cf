"""A cluster in simulated time: bundles with their traffic, brokers that report it, a leader that acts on `shed`.

The loop is closed: a move changes who has the bundle's load, and the leader sees of it only what the brokers' averages
and the rule of reporting let through. Brokers sample every five seconds, the leader decides once a minute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from anabranch.balance.core.load import BrokerLoad, BundleLoad, TopBundles, measured, report_due, top_bundles
from anabranch.balance.core.owner_rules import no_rules
from anabranch.balance.core.settings import BalanceSettings
from anabranch.balance.core.shed import shed
from anabranch.balance.core.shed_verdict import BundleMove, ClusterLoad, ShedState, ShedVerdict
from unit.balance.core.facts import MEGABYTE, MINUTE, NOW, SECOND, bundle_load, name

SAMPLE = 5 * SECOND


@dataclass(frozen=True, slots=True)
class Made:
    at_ms: int
    move: BundleMove


@dataclass
class Fleet:
    """`demand` gives what each bundle takes of a core, at a moment."""

    owners: dict[str, str]
    demand: Callable[[int], Mapping[str, float]]
    brokers: tuple[str, ...] = ()
    settings: BalanceSettings = field(default_factory=BalanceSettings)
    now_ms: int = NOW
    state: ShedState = field(default_factory=ShedState)
    made: list[Made] = field(default_factory=list)
    verdicts: list[ShedVerdict] = field(default_factory=list)
    # The true deviation after each cycle, and the loads that the leader decided by.
    stds: list[float] = field(default_factory=list)
    seen: list[dict[str, float]] = field(default_factory=list)
    _averages: dict[str, BrokerLoad] = field(default_factory=dict)
    _loads: dict[str, BrokerLoad] = field(default_factory=dict)
    _tops: dict[str, TopBundles] = field(default_factory=dict)
    _flows: dict[tuple[str, float], BundleLoad] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.brokers = self.brokers or tuple(sorted(set(self.owners.values())))

    def true_loads(self) -> dict[str, float]:
        loads = dict.fromkeys(self.brokers, 0.0)
        for bundle, load in self.demand(self.now_ms).items():
            loads[self.owners[bundle]] += load
        return loads

    def true_std(self) -> float:
        loads = list(self.true_loads().values())
        mean = math.fsum(loads) / len(loads)
        return math.sqrt(math.fsum((one - mean) ** 2 for one in loads) / len(loads))

    def run(self, cycles: int) -> Fleet:
        for _ in range(cycles):
            self._minute()
        return self

    def _minute(self) -> None:
        end = self.now_ms + MINUTE
        while self.now_ms < end:
            self.now_ms += SAMPLE
            self._sample()
        view = ClusterLoad(
            now_ms=self.now_ms,
            brokers=self.brokers,
            loads=self._loads,
            tops=self._tops,
            owners=self.owners,
            rules=no_rules(self.brokers),
        )
        verdict = shed(view, self.state, self.settings)
        self.state = verdict.state
        self.verdicts.append(verdict)
        self.seen.append({broker: load.load for broker, load in self._loads.items()})
        for move in verdict.moves:
            assert move.destination is not None
            assert self.owners[move.bundle] == move.source
            self.owners[move.bundle] = move.destination
            self.made.append(Made(self.now_ms, move))
        self.stds.append(self.true_std())

    def _sample(self) -> None:
        held: dict[str, list[BundleLoad]] = {broker: [] for broker in self.brokers}
        for bundle, load in self.demand(self.now_ms).items():
            flow = self._flows.get((bundle, load))
            if flow is None:
                flow = self._flows[bundle, load] = bundle_load(bundle, load)
            held[self.owners[bundle]].append(flow)
        for broker, bundles in held.items():
            data = math.fsum(one.throughput for one in bundles)
            sample = BrokerLoad(
                measured_ms=self.now_ms,
                cpu=data / (100 * MEGABYTE),
                msg_rate_in=math.fsum(one.msg_rate for one in bundles),
                throughput_in=data,
                bundles=len(bundles),
                topics=sum(one.topics for one in bundles),
            )
            self._averages[broker] = now = measured(sample, self._averages.get(broker), self.settings)
            if report_due(now, self._loads.get(broker), self.settings).is_due:
                self._loads[broker] = now
                self._tops[broker] = top_bundles(bundles, self.now_ms, lambda _: False, self.settings)

    def returns(self) -> list[tuple[str, str]]:
        """Each bundle and broker where the bundle came back to a broker that it had left before."""
        seen: dict[str, list[str]] = {}
        found = []
        for one in self.made:
            left = seen.setdefault(one.move.bundle, [])
            left.append(one.move.source)
            if one.move.destination in left:
                found.append((one.move.bundle, str(one.move.destination)))
        return found

    def shortest_stay_ms(self) -> float:
        """The shortest time between two moves of one bundle."""
        last: dict[str, int] = {}
        shortest = math.inf
        for one in self.made:
            if one.move.bundle in last:
                shortest = min(shortest, one.at_ms - last[one.move.bundle])
            last[one.move.bundle] = one.at_ms
        return shortest


def constant(loads: Mapping[str, float]) -> Callable[[int], Mapping[str, float]]:
    return lambda now_ms: loads


def placed(loads: Iterable[Iterable[float]]) -> tuple[dict[str, str], dict[str, float]]:
    """Owners and loads of bundles: a list of loads for each broker, `b00`, `b01` and so on."""
    owners: dict[str, str] = {}
    found: dict[str, float] = {}
    for at, bundles in enumerate(loads):
        for load in bundles:
            bundle = name(len(found) % 4_096, f"acme/n{len(found) // 4_096}")
            owners[bundle] = f"b{at:02}"
            found[bundle] = load
    return owners, found
