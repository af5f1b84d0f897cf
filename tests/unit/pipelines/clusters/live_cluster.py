"""A cluster of live reporters and a live leader of shedding, over the traffic of a trace: a replay must agree with it.

The bundle state channel is a fold, time is the test's. Topics, the state channel's topic and the network are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from anabranch.balance.core.fold import Fold
from anabranch.balance.core.load import BrokerLoad, TopBundles
from anabranch.balance.core.owner_rules import OwnerRules, no_rules
from anabranch.balance.core.settings import BalanceSettings
from anabranch.balance.core.shed_verdict import BundleMove
from anabranch.balance.core.states import BrokerRun, BundleChange
from anabranch.balance.core.transfer import LeaderHand, duty_of, ended, owned
from anabranch.broker.balance.balance_log import BalanceLog
from anabranch.broker.balance.counts import BalanceCounts
from anabranch.broker.balance.load.history import BalanceHistory
from anabranch.broker.balance.load.reporter import BrokerLoadReporter
from anabranch.broker.balance.load.shedding import SheddingRounds
from anabranch.broker.balance.load.usage import ResourceShares
from anabranch.broker.errors import NotReadyError
from anabranch.broker.scalable.load.history_records import VERSION, HistoryRecord
from anabranch.model.bundles import BundleName
from anabranch.model.names import TopicName
from anabranch.pipelines.clusters.cluster_trace import MINUTE_MS, ClusterTrace
from unit.broker.balance.load.traffic import Consumer, Subscribed, Traffic


@dataclass
class LiveCluster:
    """`run` goes through the whole trace."""

    trace: ClusterTrace
    settings: BalanceSettings = field(default_factory=BalanceSettings)
    fails: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        trace = self.trace
        self.now_ms = trace.start_ms
        self.runs = {name: BrokerRun(name, f"run-{name}") for name in trace.brokers}
        self.fold = Fold()
        self.records: list[HistoryRecord] = []
        self.moved: list[tuple[int, BundleMove]] = []
        self.loads: dict[str, BrokerLoad] = {}
        self.tops: dict[str, TopBundles] = {}
        self.history = BalanceHistory(self, lambda: self.now_ms)
        self.leader = self.runs[trace.brokers[0]]
        self.bundles = [BundleName.parse(name) for name in trace.bundles]
        # Every topic of a bundle has the same name but for its number.
        self.bundle_of = {
            topic: bundle for number, bundle in enumerate(self.bundles) for topic in self._names(number)
        }
        for bundle, broker in zip(self.bundles, trace.owners.tolist(), strict=True):
            run = self.runs[trace.brokers[broker]]
            assert self.fold.apply(owned(bundle, 1, run, run, 0, "asked")) is None
            self._end(bundle, run)
        self.reporters = {name: self._reporter(name) for name in trace.brokers}
        self.rounds = SheddingRounds(
            lambda: 1,
            self,
            lambda: trace.brokers,
            lambda: self.fold.bundles,
            self._rules,
            self._move,
            lambda: self.settings,
            lambda: self.now_ms,
            BalanceLog(lambda: self.now_ms),
            BalanceCounts(),
            history=self.history,
        )

    async def run(self) -> None:
        trace, step = self.trace, self.settings.report_interval_ms_min
        for self.now_ms in range(trace.start_ms, trace.end_ms, step):
            for one in [one for one in self.fold.bundles.values() if one.is_in_flight]:
                assert one.source is not None
                assert one.to is not None
                self._end(one.bundle, one.to)
                for broker in (one.source.broker, one.to.broker):
                    self.reporters[broker].report_now()
            for reporter in self.reporters.values():
                await reporter.round()
            since_ms = self.now_ms - trace.start_ms
            if since_ms and since_ms % MINUTE_MS == 0:
                await self.rounds.round()

    # -- the world of a broker

    def _names(self, bundle: int) -> list[TopicName]:
        count = int(self.trace.topics[bundle])
        return [TopicName.parse(f"persistent://public/default/b{bundle}-t{n}") for n in range(count)]

    def _reporter(self, broker: str) -> BrokerLoadReporter:
        async def report(load: BrokerLoad, top: TopBundles) -> None:
            self.loads[broker], self.tops[broker] = load, top
            self.history.report_taken(broker, load, top)

        def shares(bytes_in: float, bytes_out: float) -> ResourceShares:
            messages = sum(topic.rates_in[0] for topic in self._topics(broker))
            cost = self.trace.cost
            demand = cost.idle + 2 * messages * cost.each_message + (bytes_in + bytes_out) * cost.each_byte
            return ResourceShares(cpu=min(1.0, demand))

        return BrokerLoadReporter(
            broker,
            lambda: self.settings,
            lambda: self._topics(broker),
            self,
            shares,
            report,
            lambda: self.now_ms,
            BalanceCounts(),
        )

    def _topics(self, broker: str) -> list[Traffic]:
        """The first topic of a bundle has all its traffic, and all its sessions; that is the same for the balancer."""
        rates = self.trace.rates(self.trace.sample(self.now_ms))
        found: list[Traffic] = []
        for number, bundle in enumerate(self.bundles):
            owner = self.fold.bundles[bundle].owner
            if owner is not None and owner.broker == broker:
                first, *others = (Traffic(name) for name in self._names(number))
                msg_in, bytes_in, msg_out, bytes_out = rates[:, number].tolist()
                sessions = int(self.trace.sessions[number])
                first.rates_in, first.producers = (msg_in, bytes_in), ["p"] * (sessions - 1)
                first.subscriptions = {"s": Subscribed([Consumer((msg_out, bytes_out))])}
                found += [first, *others]
        return found

    def bundle(self, topic: TopicName) -> BundleName | None:
        """Implements `OwnBundles`."""
        return self.bundle_of[topic]

    def owned_by(self, broker: str) -> list[BundleName]:
        return [
            bundle
            for bundle, one in self.fold.bundles.items()
            if one.owner is not None and one.owner.broker == broker
        ]

    # -- the world of the leader

    def _rules(self) -> OwnerRules:
        return no_rules(self.trace.brokers)

    async def _move(self, move: BundleMove) -> None:
        if move.bundle in self.fails:
            raise NotReadyError("the channel did not answer")
        assert move.destination is not None
        before = self.fold.bundles[BundleName.parse(move.bundle)]
        hand = LeaderHand(self.leader, 1)
        change = hand.transfer(before, self.runs[move.destination], self.now_ms, move.because)
        self._apply(change)
        self.moved.append((self.now_ms, move))

    def _end(self, bundle: BundleName, run: BrokerRun) -> None:
        before = self.fold.bundles[bundle]
        duty = duty_of(run, before)
        assert duty is not None
        self._apply(ended(duty, before, run, self.now_ms))

    def _apply(self, change: BundleChange) -> None:
        assert self.fold.apply(change) is None
        if hasattr(self, "rounds"):
            self.rounds.states_changed([change])

    # -- load history

    def balance(self, at_ms: int, **found: Any) -> None:
        """Implements `HistoryOfBalance`: keeps what readers of the topic get."""
        record = HistoryRecord(VERSION, self.leader.broker, at_ms, **found)
        self.records.append(msgspec.json.decode(msgspec.json.encode(record), type=HistoryRecord))
