"""The load balancer of a broker: who owns bundles, by which channel, and what the broker does with load."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from anabranch.balance.core.load import BrokerLoad
from anabranch.balance.core.settings import BalanceSettings
from anabranch.balance.core.states import BrokerRun
from anabranch.broker.balance.balance_log import BalanceLog
from anabranch.broker.balance.balancer import Balancer
from anabranch.broker.balance.channel.channel_calls import LinkedChannel
from anabranch.broker.balance.channel.metadata_state_log import MetadataStateLog
from anabranch.broker.balance.channel.state_log import StateLog
from anabranch.broker.balance.channel.topic_state_log import KnownLeader, TopicStateLog
from anabranch.broker.balance.counted_state_log import CountedStateLog
from anabranch.broker.balance.counts import BalanceCounts
from anabranch.broker.balance.load.broker_loads import PAUSE_S
from anabranch.broker.balance.load.bundle_figures import MeasuredTopic
from anabranch.broker.balance.load.choosing import ChooseByLoad
from anabranch.broker.balance.load.history import HistoryOfBalance
from anabranch.broker.balance.load.leader_view import PublishKey
from anabranch.broker.balance.load.load_work import LoadWork, leader_settings
from anabranch.broker.balance.load.usage import ResourceShares
from anabranch.broker.balance.placement import Placement
from anabranch.broker.catalog.isolation import IsolationStore
from anabranch.broker.catalog.registry import BrokerRegistry
from anabranch.broker.catalog.resources import Resources
from anabranch.broker.config.balancer import CurrentSettings
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.config.load_managers import TOPIC
from anabranch.broker.errors import NotReadyError
from anabranch.broker.peers.peers import Peers
from anabranch.broker.runtime.background import Background
from anabranch.broker.topic.topic import Topic
from anabranch.metadata.port import MetadataStore


@dataclass(frozen=True, slots=True)
class LoadSources:
    """What a broker's load is measured from, and what decides about it."""

    settings: Callable[[], BalanceSettings]
    # The open topics, stored or not.
    topics: Callable[[], Iterable[MeasuredTopic]]
    # What is used of each resource, given the bytes that clients sent and got a second.
    shares: Callable[[float, float], ResourceShares]
    now_ms: Callable[[], int]
    # Between two questions to the leader for the loads of all brokers.
    pause_s: float = PAUSE_S


async def _not_yet() -> Topic:
    raise NotReadyError("this broker has not started yet")


class BalanceParts:
    """Built before the topics that it moves and measures: `measure` comes once those are there, before `start`."""

    def __init__(
        self,
        metadata: MetadataStore,
        registry: BrokerRegistry,
        peers: Peers,
        resources: Resources,
        isolation: IsolationStore,
        config: Callable[[], BrokerConfig],
        now_ms: Callable[[], int],
        time_s: Callable[[], float],
        random_bytes: Callable[[int], bytes],
        *,
        brokers_expected: int,
    ) -> None:
        self._metadata = metadata
        self._registry = registry
        self._isolation = isolation
        self._peers = peers
        self._config = config
        self._now_ms = now_ms
        self._time_s = time_s
        self._random_bytes = random_bytes
        self._open_channel: Callable[[], Awaitable[Topic]] = _not_yet
        self.counts = BalanceCounts()
        self.decisions = BalanceLog(now_ms)
        self.settings: Callable[[], BalanceSettings] = CurrentSettings(config)
        self.work: LoadWork | None = None
        self.placement = Placement(
            registry,
            isolation,
            lambda: self.balancer.owners.bundles.groups,
            self._loads,
            lambda: self.settings().has_failure_domains,
        )
        self.balancer = Balancer(
            metadata,
            registry,
            peers,
            resources,
            self._new_states,
            now_ms,
            time_s,
            lambda: leader_settings(self.settings()),
            choose=ChooseByLoad(
                registry,
                lambda: self.balancer.states.fold,
                self._loads,
                lambda: self.settings(),
                now_ms,
                self._below,
                rules=self.placement,
            ),
            bounds=self.placement,
            brokers_expected=brokers_expected,
        )
        self.balancer.owners.bundles.on_groups(self.placement.changed)
        self.balancer.released = self._counted.released

    def _new_states(self, election: KnownLeader) -> StateLog:
        me = BrokerRun(self._registry.me.id, self._registry.me.run_id)
        stored = self._stored_states(me, election)
        self._counted = CountedStateLog(stored, self.counts, self.decisions, me, self._time_s)
        return self._counted

    def _stored_states(self, me: BrokerRun, election: KnownLeader) -> StateLog:
        if self._config().load_manager_service_unit_state_table_view_class_name != TOPIC:
            return MetadataStateLog(self._metadata)
        calls = LinkedChannel(self._peers)
        made = TopicStateLog(me, election, calls, lambda: self._open_channel(), self._now_ms)
        calls.serve(made)
        return made

    def _loads(self) -> dict[str, BrokerLoad]:
        return {} if self.work is None else self.work.loads.loads()

    def _below(self, count: int) -> int:
        return int.from_bytes(self._random_bytes(8)) % count

    def measure(
        self,
        sources: LoadSources,
        open_channel: Callable[[], Awaitable[Topic]],
        publish: PublishKey,
        history: HistoryOfBalance | None,
    ) -> None:
        """`open_channel` opens the channel's topic at this broker, and creates it if there is none. `publish` is of the
        topics of the views."""
        self._open_channel = open_channel
        self.settings = sources.settings
        self.work = LoadWork(
            self.balancer,
            self._registry,
            self._peers,
            sources.settings,
            sources.topics,
            sources.shares,
            publish,
            sources.now_ms,
            self.decisions,
            self.counts,
            history=history,
            rules=self.placement,
            pause_s=sources.pause_s,
        )

    async def start(self, background: Background) -> None:
        """The registry and the links must have been started before."""
        assert self.work is not None, "what is measured is said first"
        await self._isolation.start()
        await self.balancer.start()
        self.work.start(background)

    async def close(self) -> None:
        """`Balancer.stop` must have been called before."""
        await self.balancer.close()
        await self._isolation.close()
