"""Replays a cluster's trace under settings of the balancer: the moves and splits that live brokers would make. Pure.

The decisions come from live code: `measured` and `report_due` of each broker, `top_bundles`, the leader's `shed`, the
owners' `decide_splits` and `automatic_points`, and `choose` and `spread` for bundles without an owner. Only the shell
around them is replayed. Every `report_interval_ms_min` each broker measures itself, reports if that is due, and starts
its averages again if it got or lost a bundle. A move takes `move_ms`; until then the bundle is its source's, and no
other decision is about it. At the same moment brokers come and go first, then moves end, then brokers report, then
they split, then the leader sheds.

Without settings nothing is balanced: bundles go where the hash over the living brokers puts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from anabranch.balance.core.assign import Candidate, Chosen, choose, spread
from anabranch.balance.core.expected import expected_loads, given_since
from anabranch.balance.core.load import (
    BrokerLoad,
    TopBundles,
    bundle_loads,
    measured,
    report_due,
    top_bundles,
)
from anabranch.balance.core.owner_rules import no_rules
from anabranch.balance.core.settings import BalanceSettings
from anabranch.balance.core.shed import shed
from anabranch.balance.core.shed_verdict import ClusterLoad, ShedState, ShedVerdict
from anabranch.balance.core.split import SplitState, decide_splits
from anabranch.balance.core.split_points import SplitPoints, automatic_points, children
from anabranch.model.bundles import BundleName
from anabranch.pipelines.clusters.cluster_trace import MINUTE_MS, ClusterTrace, Ints, topic_traffic
from anabranch.pipelines.clusters.hashed_placement import hashed_owners
from anabranch.pipelines.clusters.replayed_bundles import NO_BROKER, ReplayedBundles, numbered
from anabranch.pipelines.clusters.replayed_cluster import (
    BalancePoint,
    ClusterTiming,
    ReplayedCluster,
    ReplayedMove,
    ReplayedSplit,
)

# How often the brokers of a cluster without a balancer are looked at.
LOOK_MS: Final = 5_000


# Is told of each decision of the leader, with what it was made from. Neither may be changed; `owners` must be copied to
# be kept.
Watch = Callable[[ClusterLoad, ShedVerdict], None]


def replay_cluster(
    trace: ClusterTrace,
    settings: BalanceSettings | None,
    timing: ClusterTiming | None = None,
    watch: Watch | None = None,
) -> ReplayedCluster:
    """Replays the trace; without settings, under the placement by hash."""
    timing = timing or ClusterTiming()
    if settings is None:
        return _Hashed(trace).run()
    return _Balanced(trace, settings, timing, watch).run()


@dataclass(slots=True)
class _Reporter:
    """What a broker knows of itself."""

    load: BrokerLoad | None = None
    reported: BrokerLoad | None = None
    # Of the bundles when it measured, and when it listed the heaviest.
    changes: int = -1
    listed: tuple[int, int] = (-1, -1)
    splitting: SplitState = field(default_factory=SplitState)


class _Cluster:
    """What both kinds of placement share: brokers come and go, and figures are taken."""

    look_ms = LOOK_MS

    def __init__(self, trace: ClusterTrace) -> None:
        self.trace = trace
        self.bundles = ReplayedBundles(trace, self._first_owners())
        self.number = numbered(trace.brokers)
        self.living: list[int] = sorted(trace.living[0][1])
        self.moves: list[ReplayedMove] = []
        self.splits: list[ReplayedSplit] = []
        self.points: list[BalancePoint] = []
        self.cycles = self.reports = 0

    def _first_owners(self) -> Ints:
        return self.trace.owners

    def run(self) -> ReplayedCluster:
        coming = list(reversed(self.trace.living[1:]))
        for now_ms in range(self.trace.start_ms, self.trace.end_ms, self.look_ms):
            self.bundles.look(now_ms)
            while coming and coming[-1][0] <= now_ms:
                self.living = sorted(coming.pop()[1])
                self.members_changed(now_ms)
            self.tick(now_ms)
            self._note(now_ms)
        return ReplayedCluster(
            tuple(self.moves),
            tuple(self.splits),
            tuple(self.points),
            self.look_ms,
            self.cycles,
            self.reports,
        )

    def members_changed(self, now_ms: int) -> None:
        raise NotImplementedError

    def tick(self, now_ms: int) -> None:
        """Called at every look, after `members_changed`."""

    def _note(self, now_ms: int) -> None:
        demand = self.bundles.demand()[self.living]
        self.points.append(
            BalancePoint(
                now_ms,
                float(demand.std()),
                float(demand.mean()),
                float(demand.max()),
                int((demand > 1.0).sum()),
            )
        )

    def move(
        self,
        now_ms: int,
        row: int,
        destination: int,
        reason: str,
        because: str,
        load: float = 0.0,
        *,
        is_swap: bool = False,
    ) -> None:
        source = int(self.bundles.owner[row])
        self.bundles.give(row, destination)
        self.moves.append(
            ReplayedMove(
                now_ms,
                self.bundles.names[row],
                "" if source == NO_BROKER else self.trace.brokers[source],
                self.trace.brokers[destination],
                int(self.bundles.topics[row]),
                load,
                reason,
                because,
                is_swap,
            )
        )


class _Hashed(_Cluster):
    """Bundles by the hash over the living brokers, as brokers without a balancer place them."""

    def _first_owners(self) -> Ints:
        return self._hashed(sorted(self.trace.living[0][1]))

    def members_changed(self, now_ms: int) -> None:
        placed = self._hashed(self.living)
        alive = set(self.living)
        for row in np.flatnonzero(placed != self.bundles.owner).tolist():
            is_gone = int(self.bundles.owner[row]) not in alive
            if is_gone:
                self.bundles.give(row, NO_BROKER)
            because = "its broker is gone" if is_gone else "the brokers have changed"
            self.move(now_ms, row, int(placed[row]), "gone" if is_gone else "hash", because)

    def _hashed(self, living: Sequence[int]) -> Ints:
        found = hashed_owners(self.trace.bundles, [self.trace.brokers[one] for one in living])
        return np.array(living, dtype=np.int64)[found]


class _Balanced(_Cluster):
    def __init__(
        self, trace: ClusterTrace, settings: BalanceSettings, timing: ClusterTiming, watch: Watch | None
    ) -> None:
        super().__init__(trace)
        self.settings, self.timing, self.watch = settings, timing, watch
        self.look_ms = settings.report_interval_ms_min
        self.reporters = {one: _Reporter() for one in self.living}
        self.loads: dict[str, BrokerLoad] = {}
        self.tops: dict[str, TopBundles] = {}
        self.state = ShedState()
        self.in_flight: dict[int, tuple[int, int | None, ReplayedMove]] = {}
        self.chance = np.random.default_rng(len(trace.bundles))
        self.given_ms: dict[str, list[int]] = {}

    # -- events

    def members_changed(self, now_ms: int) -> None:
        alive = set(self.living)
        gone = [one for one in self.reporters if one not in alive]
        known: dict[str, float | None] = {}
        lost: list[int] = []
        for broker in gone:
            name = self.trace.brokers[broker]
            del self.reporters[broker]
            load, top = self.loads.pop(name, None), self.tops.pop(name, None)
            if load is not None and top is not None:
                known |= bundle_loads(load, top.bundles)
            lost += self.bundles.of_broker(broker).tolist()
        for broker in self.living:
            self.reporters.setdefault(broker, _Reporter())
        for row in lost:
            self.in_flight.pop(row, None)
            self.bundles.give(row, NO_BROKER)
        self._spread(now_ms, {self.bundles.names[row]: known.get(self.bundles.names[row]) for row in lost})

    def tick(self, now_ms: int) -> None:
        self._arrive(now_ms)
        for broker in self.living:
            self._measure(broker, now_ms)
        since_ms = now_ms - self.trace.start_ms
        if since_ms and since_ms % (MINUTE_MS * self.settings.split_interval_minutes) < self.look_ms:
            for broker in self.living:
                self._split(broker, now_ms)
        if since_ms and since_ms % (MINUTE_MS * self.settings.shedding_interval_minutes) < self.look_ms:
            self._shed(now_ms)

    def _arrive(self, now_ms: int) -> None:
        for row, (due_ms, destination, move) in list(self.in_flight.items()):
            if due_ms > now_ms:
                continue
            del self.in_flight[row]
            if destination is None:
                destination = self._chosen(now_ms)
            if destination not in self.reporters:
                self.state = self.state.forgot(move.bundle)
            else:
                self.move(
                    now_ms, row, destination, move.reason, move.because, move.load, is_swap=move.is_swap
                )

    # -- brokers

    def _measure(self, broker: int, now_ms: int) -> None:
        own, bundles = self.reporters[broker], self.bundles
        changes = int(bundles.changes[broker])
        msg_in, bytes_in, msg_out, bytes_out = bundles.sums[:, broker].tolist()
        cost = self.trace.cost
        demand = cost.idle + (msg_in + msg_out) * cost.each_message + (bytes_in + bytes_out) * cost.each_byte
        sample = BrokerLoad(
            measured_ms=now_ms,
            cpu=min(1.0, demand),  # A loop cannot use more than its core.
            msg_rate_in=msg_in,
            msg_rate_out=msg_out,
            throughput_in=bytes_in,
            throughput_out=bytes_out,
            bundles=int(bundles.held[0, broker]),
            topics=int(bundles.held[1, broker]),
        )
        is_same = changes == own.changes
        own.load = measured(sample, own.load if is_same else None, self.settings)
        if not is_same:
            # As live brokers do when bundles have come or gone.
            own.changes, own.reported = changes, None
        if report_due(own.load, own.reported, self.settings).is_due:
            self._report(broker, own, own.load)

    def _report(self, broker: int, own: _Reporter, load: BrokerLoad) -> None:
        self.reports += 1
        own.reported = load
        name, state = self.trace.brokers[broker], (self.bundles.flow, own.changes)
        self.loads[name] = load
        if state == own.listed:
            self.tops[name] = replace(self.tops[name], measured_ms=load.measured_ms)
            return
        own.listed = state
        listed = self.bundles.loads(self.bundles.of_broker(broker).tolist())
        self.tops[name] = top_bundles(listed, load.measured_ms, lambda namespace: False, self.settings)

    def _split(self, broker: int, now_ms: int) -> None:
        own = self.reporters[broker]
        rows = [row for row in self._over_limits(broker) if row not in self.in_flight]
        if not rows and not own.splitting.hits:
            return
        found = self.bundles.loads(rows)
        verdict = decide_splits(found, self.bundles.counts, (), own.splitting, self.settings)
        own.splitting = verdict.state
        figures = {one.bundle: one for one in found}
        for split in verdict.splits:
            row, load = self.bundles.rows[split.bundle], figures[split.bundle]
            parent = BundleName.parse(split.bundle)
            traffic = topic_traffic(self.bundles.places(row), load.msg_rate, load.throughput)
            points = automatic_points(parent, traffic, split.room, self.settings)
            if isinstance(points, SplitPoints):
                parts = children(parent, points.points)
                new = self.bundles.divide(row, parts)
                because = f"{split.because}; {points.because}"
                told = ReplayedSplit(
                    now_ms, split.bundle, self.trace.brokers[broker], tuple(map(str, parts)), because
                )
                self.splits.append(told)
                if self.settings.unloads_split_bundles:
                    self._unload_parts(new, now_ms)

    def _over_limits(self, broker: int) -> list[int]:
        """The bundles that `decide_splits` may have something to say about; all others are below every limit."""
        bundles, limits = self.bundles, self.settings
        rows = bundles.of_broker(broker)
        rates = bundles.rates[:, rows]
        over = (
            (bundles.topics[rows] > limits.bundle_topics_max)
            | (bundles.sessions[rows] > limits.bundle_sessions_max)
            | (rates[0] + rates[2] > limits.bundle_msg_rate_max)
            | (rates[1] + rates[3] > limits.bundle_bandwidth_max)
        )
        found: list[int] = rows[over].tolist()
        return found

    def _unload_parts(self, rows: Iterable[int], now_ms: int) -> None:
        for row in rows:
            source = self.trace.brokers[int(self.bundles.owner[row])]
            destination = self._chosen(now_ms, without=int(self.bundles.owner[row]))
            if destination is None:
                continue
            self.move(now_ms, row, destination, "split", "a part of a bundle that was split")
            to = self.trace.brokers[destination]
            self.state = self.state.noted(self.bundles.names[row], source, to, now_ms)

    # -- the leader

    def _shed(self, now_ms: int) -> None:
        self.cycles += 1
        brokers = self._living_names()
        owners = self.bundles.owners
        if self.in_flight:
            moving = {self.bundles.names[row] for row in self.in_flight}
            owners = {name: broker for name, broker in owners.items() if name not in moving}
        view = ClusterLoad(
            now_ms=now_ms,
            brokers=brokers,
            loads=self.loads,
            tops=self.tops,
            owners=owners,
            rules=no_rules(brokers),
        )
        verdict = shed(view, self.state, self.settings)
        if self.watch is not None:
            self.watch(view, verdict)
        self.state = verdict.state
        for one in verdict.moves:
            row = self.bundles.rows[one.bundle]
            destination = None if one.destination is None else self.number[one.destination]
            told = ReplayedMove(
                now_ms,
                one.bundle,
                one.source,
                one.destination or "",
                int(self.bundles.topics[row]),
                one.load,
                "shed",
                one.because,
                one.is_swap,
            )
            self.in_flight[row] = now_ms + self.timing.move_ms, destination, told

    def _living_names(self) -> list[str]:
        return [self.trace.brokers[one] for one in self.living]

    # -- bundles without an owner

    def _chosen(self, now_ms: int, without: int | None = None) -> int | None:
        self.given_ms = given_since(self.loads, self.given_ms)
        loads = expected_loads(self.loads, self.given_ms)
        refused = {} if without is None else {self.trace.brokers[without]: "it is not asked for here"}
        candidates = [Candidate(name, loads.get(name)) for name in self._living_names()]
        found = choose(candidates, now_ms, self.settings, self._below, refused=refused)
        if not isinstance(found, Chosen):
            return None
        self.given_ms.setdefault(found.broker, []).append(now_ms)
        return self.number[found.broker]

    def _below(self, count: int) -> int:
        return int(self.chance.integers(count))

    def _spread(self, now_ms: int, bundles: dict[str, float | None]) -> None:
        if not bundles:
            return
        names = self._living_names()
        rules = no_rules(names)
        candidates = [Candidate(name, self.loads.get(name)) for name in names]
        found = spread(bundles, candidates, self.bundles.owners, now_ms, self.settings, rules)
        for name, chosen in found.chosen.items():
            self.move(now_ms, self.bundles.rows[name], self.number[chosen.broker], "gone", chosen.because)
