"""What a broker does with load: it measures and reports, follows the others', sheds while it leads, and splits its own
bundles. The parts, and their life beside the balancer's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from anabranch.balance.core.load import BrokerLoad
from anabranch.balance.core.owner_rules import OwnerRules, no_rules
from anabranch.balance.core.settings import BalanceSettings
from anabranch.balance.core.shed_verdict import BundleMove
from anabranch.balance.core.states import BrokerRun
from anabranch.broker.balance.balance_log import BalanceLog
from anabranch.broker.balance.balancer import Balancer
from anabranch.broker.balance.channel.state_log import StateLog
from anabranch.broker.balance.choosing import able_brokers
from anabranch.broker.balance.counts import BalanceCounts
from anabranch.broker.balance.leader import LeaderSettings
from anabranch.broker.balance.load.broker_loads import PAUSE_S, BrokerLoads
from anabranch.broker.balance.load.bundle_figures import MeasuredTopic
from anabranch.broker.balance.load.bundle_splits import SplitRounds
from anabranch.broker.balance.load.history import BalanceHistory, HistoryOfBalance
from anabranch.broker.balance.load.leader_view import LeaderView, PublishKey
from anabranch.broker.balance.load.pauses import pause
from anabranch.broker.balance.load.reporter import BrokerLoadReporter
from anabranch.broker.balance.load.shedding import SheddingRounds
from anabranch.broker.balance.load.usage import ResourceShares
from anabranch.broker.catalog.registry import BrokerRegistry
from anabranch.broker.peers.peers import Peers
from anabranch.broker.runtime.background import Background, Work
from anabranch.model.bundles import BundleName
from anabranch.model.names import NamespaceName

log = logging.getLogger(__name__)

# How often the leader looks for reports that are too old, and for brokers that are gone.
LOOK_S: Final = 5.0


def leader_settings(settings: BalanceSettings) -> LeaderSettings:
    return LeaderSettings(
        look_every_s=settings.monitor_interval_s,
        in_flight_max_s=settings.in_flight_wait_ms / 1000,
        tombstone_s=settings.tombstone_delay_s,
        changes_at_once=settings.overrides_max,
        stable_s=settings.metadata_stable_s,
    )


class LoadWork:
    """Implements `MeasuredBalancer`. `start` after the balancer, `close` before it."""

    def __init__(
        self,
        balancer: Balancer,
        registry: BrokerRegistry,
        peers: Peers,
        settings: Callable[[], BalanceSettings],
        topics: Callable[[], Iterable[MeasuredTopic]],
        shares: Callable[[float, float], ResourceShares],
        publish: PublishKey,
        now_ms: Callable[[], int],
        decisions: BalanceLog,
        counts: BalanceCounts,
        *,
        history: HistoryOfBalance | None = None,
        rules: Callable[[], OwnerRules] | None = None,
        pause_s: float = PAUSE_S,
    ) -> None:
        """`topics` gives the open topics, stored and not; `shares` is `ResourceMeter.look`, `publish`
        `ViewTopics.publish`. `rules` bind namespaces to brokers; None: every broker may own every bundle. `pause_s`
        lies between two questions to the leader for the loads of all brokers."""
        self._balancer = balancer
        self._registry = registry
        self._settings = settings
        self._rules = rules
        self.decisions, self.counts = decisions, counts
        counts.lookup_waits = balancer.owners.waits
        balancer.owners.looked_up = counts.looked_up
        recorded = None if history is None else BalanceHistory(history, now_ms)
        reign, why = balancer.reign, balancer.safe_mode.why
        self.loads = BrokerLoads(peers, reign, settings, self._living, now_ms, pause_s=pause_s)
        # Where the page and `explain` look for them.
        balancer.loads, balancer.decisions = self.loads.loads, decisions
        self.view = LeaderView(
            reign,
            settings,
            self._living,
            now_ms,
            publish,
            why_safe_mode=why,
            taken=(lambda *report: None) if recorded is None else recorded.report_taken,
        )
        self.view.serve(peers.handlers)
        self.reporter = BrokerLoadReporter(
            self.me.broker,
            settings,
            topics,
            balancer.owners,
            shares,
            self.loads.report,
            now_ms,
            counts,
            has_policies=lambda namespace: self._current_rules().has_policies(namespace),
        )
        self.shedding = SheddingRounds(
            lambda: reign.term,
            self.view,
            self._able,
            lambda: self.states.fold.bundles,
            self._current_rules,
            self._move,
            settings,
            now_ms,
            decisions,
            counts,
            why_safe_mode=why,
            history=recorded,
        )
        self.splitting = SplitRounds(
            self.me,
            lambda: self.reporter.bundles,
            topics,
            lambda: self.states.fold.bundles,
            self._bundle_counts,
            balancer.requests.split,
            settings,
            decisions,
            counts,
            why_safe_mode=why,
            after_splits=self.reporter.report_now,
            history=recorded,
        )
        self._leader: BrokerRun | None = None
        self._stops: list[Callable[[], None]] = []

    # -- life

    def start(self, background: Background) -> None:
        """The work ends with `background`."""
        self._stops = [
            self._balancer.reign.on_change(self._leadership_changed),
            self.states.on_change(self.shedding.states_changed),
        ]
        self._leader = self._balancer.reign.leader
        background.begin(self.loads.follow())
        background.begin(self.reporter.run())
        background.begin(_every(lambda: LOOK_S, self._look))
        background.begin(_every(lambda: 60 * self._settings().shedding_interval_minutes, self.shedding.round))
        background.begin(_every(lambda: 60 * self._settings().split_interval_minutes, self.splitting.round))

    async def close(self) -> None:
        """This broker leaves: its keys are removed from the views. The links must still be open."""
        for stop in self._stops:
            stop()
        self._stops = []
        await self.loads.leave()

    def _leadership_changed(self) -> None:
        leader = self._balancer.reign.leader
        if leader != self._leader:
            self._leader = leader
            self.reporter.report_now()

    async def _look(self) -> None:
        self.view.look()

    # -- figures

    @property
    def me(self) -> BrokerRun:
        return self._balancer.owners.me

    @property
    def states(self) -> StateLog:
        return self._balancer.states

    @property
    def load(self) -> BrokerLoad | None:
        return self.reporter.load

    @property
    def term(self) -> int:
        return self._balancer.reign.term

    @property
    def leader(self) -> BrokerRun | None:
        return self._balancer.reign.leader

    @property
    def lookups_waiting(self) -> int:
        return self._balancer.owners.lookups_waiting

    def why_safe_mode(self) -> str | None:
        return self._balancer.safe_mode.why()

    # -- what the rules ask

    def _living(self) -> Mapping[str, str]:
        return {broker: found.run_id for broker, found in self._registry.living().items()}

    def _able(self) -> Collection[str]:
        return [run.broker for run in able_brokers(self._registry)]

    def _current_rules(self) -> OwnerRules:
        return no_rules(self._able()) if self._rules is None else self._rules()

    def _bundle_counts(self) -> Mapping[NamespaceName, int]:
        ranges = self._balancer.owners.bundles.ranges
        return {namespace: len(found.names) for namespace, found in ranges.items()}

    async def _move(self, move: BundleMove) -> None:
        bundle = BundleName.parse(move.bundle)
        if move.destination is None:
            await self._balancer.changes.unload(bundle, move.because)
        else:
            await self._balancer.changes.transfer(bundle, move.destination, move.because)


async def _every(seconds: Callable[[], float], work: Callable[[], Work]) -> None:
    """Like `Background.every`, with an interval that may change while it lasts."""
    while True:
        await pause(seconds)
        try:
            await work()
        except Exception:
            log.exception("%s failed, trying again in %s s", work.__qualname__, seconds())
