"""Balancers of several brokers over real links, without the brokers around them, and topics that keep the broker busy
that has them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

import pytest

from anabranch.balance.core.settings import BalanceSettings
from anabranch.balance.core.states import BrokerRun
from anabranch.broker.balance import leader
from anabranch.broker.balance.balance_log import BalanceAct, BalanceDecision, BalanceLog
from anabranch.broker.balance.balancer import Balancer
from anabranch.broker.balance.channel.metadata_state_log import MetadataStateLog
from anabranch.broker.balance.counted_state_log import CountedStateLog
from anabranch.broker.balance.counts import BalanceCounts
from anabranch.broker.balance.load.choosing import ChooseByLoad
from anabranch.broker.balance.load.load_work import LoadWork, leader_settings
from anabranch.broker.balance.load.usage import ResourceShares
from anabranch.broker.catalog.owners import BrokerAddress
from anabranch.broker.catalog.registry import BrokerRegistration, BrokerRegistry
from anabranch.broker.catalog.resources import Resources
from anabranch.broker.policy.namespace import ClusterRecord
from anabranch.broker.runtime.background import Background
from anabranch.model.bundles import BundleName
from anabranch.model.names import PUBLIC_DEFAULT, TopicName
from unit.broker.balance.load.traffic import Traffic
from unit.broker.peers.lab import PeerLab, PeerNode, peer_lab

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


class NoTopics:
    """Implements `MovedTopics`: bundles move without any."""

    async def let_go(self, holds: Callable[[TopicName], bool]) -> None: ...

    def left(self, holds: Callable[[TopicName], bool]) -> int:
        return 0

    def here(self, holds: Callable[[TopicName], bool]) -> int:
        return 0


@dataclass(eq=False)
class BalancedNode:
    """One broker's balancer; each busy topic takes a fifth of its loop."""

    lab: Loaded
    peer: PeerNode
    registry: BrokerRegistry
    resources: Resources

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        peers, registry = self.peer.peers, self.registry
        self.background = Background(loop)
        self.counts, self.decisions = BalanceCounts(), BalanceLog(self.now_ms)
        stored = MetadataStateLog(self.peer.metadata)
        states = CountedStateLog(stored, self.counts, self.decisions, self.lab.run_of(self.peer), loop.time)
        self.balancer = Balancer(
            self.peer.metadata,
            registry,
            peers,
            self.resources,
            lambda _: states,
            self.now_ms,
            loop.time,
            lambda: leader_settings(self.lab.settings),
            choose=ChooseByLoad(
                registry,
                lambda: states.fold,
                lambda: self.work.loads.loads(),
                self.lab.current,
                self.now_ms,
                lambda below: 0,
            ),
        )
        self.balancer.attach(NoTopics())
        self.work = LoadWork(
            self.balancer,
            registry,
            peers,
            self.lab.current,
            self.topics,
            lambda bytes_in, bytes_out: ResourceShares(LOAD_EACH * self.hot),
            lambda topic, key, value: None,
            self.now_ms,
            self.decisions,
            self.counts,
            pause_s=0.005,
        )

    @property
    def id(self) -> str:
        return self.peer.id

    @property
    def hot(self) -> int:
        """How many busy topics it has."""
        return len(list(self.topics()))

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(1000 * asyncio.get_running_loop().time())

    def topics(self) -> Iterator[Traffic]:
        owners = self.balancer.owners
        return (Traffic(name, (1000.0, 1e6)) for name in self.lab.hot if owners.is_mine(name))

    async def start(self) -> None:
        await self.registry.start()
        self.registry.on_change(self._tell_links)
        self._tell_links()
        await self.balancer.start()
        self.work.start(self.background)

    def _tell_links(self) -> None:
        self.peer.peers.living({name: one.run_id for name, one in self.registry.living().items()})

    async def close(self) -> None:
        await self.background.close()
        await self.balancer.stop()
        await self.peer.peers.close()
        await self.balancer.close()
        await self.registry.close()
        await self.resources.close()


@dataclass
class Loaded:
    peers: PeerLab
    settings: BalanceSettings = QUICK
    hot: list[TopicName] = field(default_factory=list)
    nodes: list[BalancedNode] = field(default_factory=list)

    def current(self) -> BalanceSettings:
        return self.settings

    async def node(self) -> BalancedNode:
        peer = await self.peers.node(f"run{len(self.nodes)}")
        address = BrokerAddress(f"pulsar://{peer.id}", f"http://{peer.id}")
        registry = BrokerRegistry(peer.metadata, BrokerRegistration(address, peer.peers.me.run))
        resources = Resources(peer.metadata)
        await resources.start()
        await resources.bootstrap(ClusterRecord(service_url="http://localhost:8080"))
        made = BalancedNode(self, peer, registry, resources)
        self.nodes.append(made)
        await made.start()
        return made

    @staticmethod
    def run_of(peer: PeerNode) -> BrokerRun:
        return BrokerRun(peer.id, peer.peers.me.run)

    @property
    def leader(self) -> BalancedNode:
        (found,) = [node for node in self.nodes if node.balancer.reign.term]
        return found

    async def until(self, claim: Callable[[], object]) -> None:
        """Each turn of the loop may have told the brokers more."""
        async with asyncio.timeout(20):
            while not claim():  # noqa: ASYNC110 - only the loop knows of the turns.
                await asyncio.sleep(0)

    async def spread(self) -> None:
        """Every bundle has an owner, and each broker has some."""
        first = self.nodes[0].balancer
        await self.until(lambda: all(len(node.registry.living()) == len(self.nodes) for node in self.nodes))
        ranges = first.owners.bundles.ranges
        await self.until(lambda: PUBLIC_DEFAULT in ranges)
        bundles = ranges[PUBLIC_DEFAULT].bundles(PUBLIC_DEFAULT)
        await self.until(lambda: all(first.owners.owner_of(bundle) is not None for bundle in bundles))
        for number, bundle in enumerate(bundles):
            to = self.nodes[number % len(self.nodes)].registry.me
            if first.owners.owner_of(bundle) != to.address:
                await first.requests.transfer(bundle, to.id, "for a test")
        await self.agree()

    async def agree(self) -> None:
        """All brokers have read the same states, and no bundle is on its way."""
        folds = [node.balancer.states.fold for node in self.nodes]
        await self.until(
            lambda: (
                all(fold.snapshot() == folds[0].snapshot() for fold in folds)
                and not any(change.is_in_flight for change in folds[0].bundles.values())
            )
        )

    def heat(self, number: int, count: int) -> None:
        """That broker gets so many busy topics, each of a bundle of its own."""
        owners = self.nodes[number].balancer.owners
        names = (TopicName.parse(f"persistent://{PUBLIC_DEFAULT}/hot-{n}") for n in range(10_000))
        bundles: set[BundleName | None] = set()
        for name in names:
            if len(bundles) < count and owners.is_mine(name) and owners.bundle(name) not in bundles:
                bundles.add(owners.bundle(name))
                self.hot.append(name)
        assert len(bundles) == count

    def last_shed(self) -> BalanceDecision:
        return next(one for one in self.leader.decisions.recent() if one.act is BalanceAct.SHED)


@contextlib.asynccontextmanager
async def loaded(brokers: int) -> AsyncIterator[Loaded]:
    """Bundles are spread over all brokers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leader, "SETTLE_S", 0.0)
        async with peer_lab() as peers:
            made = Loaded(peers)
            for _ in range(brokers):
                await made.node()
            await made.spread()
            try:
                yield made
            finally:
                for node in made.nodes:
                    await node.close()
                for _ in range(20):
                    await asyncio.sleep(0)
                    for node in made.nodes:
                        for session in list(node.peer.sessions):
                            session.abort()
