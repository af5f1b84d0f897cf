"""Real brokers with the balancer, and topics that keep the broker busy that has them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

from anabranch.balance.core.settings import BalanceSettings
from anabranch.broker.assembly.balance_parts import LoadSources
from anabranch.broker.balance.balance_log import BalanceAct, BalanceDecision
from anabranch.broker.balance.load.load_work import LoadWork
from anabranch.broker.balance.load.usage import ResourceShares
from anabranch.broker.broker import Broker
from anabranch.model.bundles import BundleName
from anabranch.model.names import PUBLIC_DEFAULT, TopicName
from unit.broker.balance.balanced import balanced, balancer, leader_of, work_of
from unit.broker.balance.load.traffic import Traffic
from unit.broker.scalable.cluster import Cluster, Node

QUICK = BalanceSettings(
    report_interval_ms_min=20,
    history_share=0.0,
    shedding_interval_minutes=0.001,
    shedding_hits=1,
    # Longer than a report takes: a move that the loads do not show yet would be made again.
    shedding_delay_s=1,
    shedding_grace_minutes=0,
    split_interval_minutes=0.001,
    split_hits=1,
    is_splitting=False,
)
LOAD_EACH = 0.2


@dataclass
class Loaded:
    """A cluster with topics that keep the broker busy that has them: each takes a fifth of a loop."""

    settings: BalanceSettings = QUICK
    hot: list[TopicName] = field(default_factory=list)
    cluster: Cluster = field(init=False)

    def measured(self, broker: Broker, found: LoadSources) -> LoadSources:
        def now_ms() -> int:
            # The clock of these brokers stands still; loads settle by a clock that does not.
            return broker.now_ms() + int(1000 * broker.loop.time())

        def shares(bytes_in: float, bytes_out: float) -> ResourceShares:
            return ResourceShares(LOAD_EACH * len(list(self._topics_of(broker))))

        return LoadSources(
            lambda: self.settings, lambda: self._topics_of(broker), shares, now_ms, pause_s=0.005
        )

    def _topics_of(self, broker: Broker) -> Iterator[Traffic]:
        return (Traffic(name, (1000.0, 1e6)) for name in self.hot if broker.owners.is_mine(name))

    def topics(self, node: Node) -> Iterator[Traffic]:
        return self._topics_of(node.broker)

    def heat(self, number: int, count: int) -> None:
        """That broker gets so many busy topics, each of a bundle of its own."""
        owners = balancer(self.cluster.nodes[number]).owners
        names = (TopicName.parse(f"persistent://{PUBLIC_DEFAULT}/hot-{n}") for n in range(10_000))
        bundles: set[BundleName | None] = set()
        for name in names:
            if len(bundles) < count and owners.is_mine(name) and owners.bundle(name) not in bundles:
                bundles.add(owners.bundle(name))
                self.hot.append(name)
        assert len(bundles) == count

    def hot_of_each(self) -> list[int]:
        return [len(list(self.topics(node))) for node in self.cluster.nodes]

    def last_shed(self) -> BalanceDecision:
        return next(one for one in self.leader.decisions.recent() if one.act is BalanceAct.SHED)

    @property
    def leader(self) -> LoadWork:
        return work_of(leader_of(self.cluster))


@contextlib.asynccontextmanager
async def loaded(brokers: int) -> AsyncIterator[Loaded]:
    made = Loaded()
    async with balanced(brokers, measured=made.measured) as made.cluster:
        yield made
