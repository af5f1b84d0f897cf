"""The parts that a run shares: its seed, loop, network and brokers, the history of its clients, and its report."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from anabranch.broker.broker import Broker
from anabranch.broker.topic.topic import Topic
from anabranch.client.client import Client
from anabranch.controller.service import ScalableTopics
from anabranch.model.names import TopicName
from anabranch.model.scalable import ScalableTopic, SubscriptionKind, topic_path
from anabranch.model.segments import SegmentId
from anabranch.simulation.cluster.cluster import (
    BALANCED_CONFIG,
    CHANNEL_TOPIC_CONFIG,
    CONFIG,
    SESSION_TIMEOUT_S,
    Cluster,
)
from anabranch.simulation.cluster.sabotage import Sabotage
from anabranch.simulation.cluster.sharing import GroupFigures, SharingFigures
from anabranch.simulation.machine.loop import Host, SimLoop, context_of
from anabranch.simulation.machine.network import Network
from anabranch.simulation.world.channel_laws import ChannelLaws, TopicLaws, Waits
from anabranch.simulation.world.history import History
from anabranch.simulation.world.kinds import DrawnCrowd, TroubleKind, drawn, has_channel_topic, is_balanced
from anabranch.simulation.world.laws import Laws
from anabranch.simulation.world.older import CLIENTS, Knowledge

TRACE_LINES: Final = 120
# The scalable topic of the main load.
TOPIC: Final = "topic://public/default/t"
NAME: Final = TopicName.parse(TOPIC)


class Stuck(AssertionError):
    """The faults are over, and some work does not get done."""


@dataclass(slots=True)
class Report:
    seed: int
    problems: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    virtual_s: float = 0.0
    callbacks: int = 0
    sent: int = 0
    delivered: int = 0
    reshapings: int = 0
    rebuckets: int = 0
    faults: int = 0
    sharing: SharingFigures = field(default_factory=SharingFigures)
    groups: GroupFigures = field(default_factory=GroupFigures)
    # Where the log is in an object store: how often space was given back, and in which way.
    space: dict[str, int] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        figures = (
            f"seed {self.seed}: {self.sent} sent, {self.delivered} delivered, {self.reshapings} splits, merges "
            f"and rebuckets, {self.faults} faults in {self.virtual_s:.0f} s"
        )
        if self.is_good:
            return figures
        lines = [figures, *(f"  WRONG: {problem}" for problem in self.problems)]
        return "\n".join([*lines, *(f"    {line}" for line in self.trace[-TRACE_LINES:])])


class World:
    """The parts that a run shares."""

    def __init__(
        self,
        seed: int,
        brokers: int,
        *,
        is_traced: bool = False,
        sabotage: frozenset[Sabotage] = frozenset(),
        kinds: frozenset[TroubleKind] | None = None,
    ) -> None:
        self.seed = seed
        self.kinds = drawn(seed) if kinds is None else kinds
        self.chance = random.Random(seed)
        self.is_traced = is_traced
        self.loop = SimLoop()
        self.network = self.loop.network = Network(self.loop, random.Random(self.chance.random()))
        # Half of the runs keep sealed segments as long as consumed messages linger, which is longer than the trouble
        # lasts. The others delete them in the middle of it, and promise less to producers in doubt.
        self.keeps_sealed = self.chance.random() < 0.5
        self.history = History(is_gone_early=self._is_gone_early)
        self.report = Report(seed)
        names = [f"b{n + 1}" for n in range(brokers)]
        has_topic = has_channel_topic(self.kinds)
        config = CONFIG
        if is_balanced(self.kinds):
            config = CHANNEL_TOPIC_CONFIG if has_topic else BALANCED_CONFIG
        if not self.keeps_sealed:
            config = replace(config, log_linger_seconds=0)
        self.crowd = DrawnCrowd(seed, self.kinds)
        config = replace(config, scalable_topic_entry_bucket_budget=self.crowd.budget)
        self.cluster = Cluster(
            self.loop,
            self.network,
            self.chance,
            names,
            self._look,
            self.note,
            sabotage,
            config,
            random.Random(f"{seed} lags") if TroubleKind.BEHIND in self.kinds else None,
            random.Random(f"{seed} objects") if TroubleKind.OBJECTS in self.kinds else None,
        )
        self.laws = Laws(self.cluster.metadata.peek, self._opened, self.wrong)
        self.waits = Waits(
            config.load_balancer_in_flight_service_unit_state_waiting_time_in_millis / 1000,
            config.load_balancer_service_unit_state_monitor_interval_in_seconds,
            config.load_balancer_metadata_stable_seconds,
            SESSION_TIMEOUT_S,
        )
        # Of the load balancer, in runs that have one.
        self.channel: ChannelLaws | None = None
        if is_balanced(self.kinds):
            make = TopicLaws if has_topic else ChannelLaws
            self.channel = make(
                self.cluster.metadata.peek, self._running, self.loop.now_ms, self.waits, self.wrong
            )
        self.is_calm = False
        self.reshapings = 0
        self.rebuckets = 0
        self.extra: dict[str, SubscriptionKind] = {}  # Those of the changing subscriptions that exist now.
        self.doubtful: set[str] = set()
        self.gone: set[str] = set()
        self.client_hosts: dict[str, str] = {}  # The machine on which each client runs now.
        self._hosts: dict[str, Host] = {}  # All machines of clients that have not left.
        self.pace_s = self.chance.uniform(0.02, 0.3)
        self.fault_every_s = self.chance.uniform(0.2, 1.5)
        # In half of the runs a job writes hidden entries, too.
        self.hides = self.chance.random() < 0.5

    def note(self, text: str) -> None:
        self.report.trace.append(f"{self.loop.time() - 1000:8.3f} {text}")

    def wrong(self, what: str) -> None:
        self.note(f"WRONG: {what}")
        self.report.problems.append(what)

    def _look(self, paths: Any) -> None:
        self.laws.look(paths)
        if self.channel is not None:
            self.channel.look(paths)

    def _running(self) -> list[Broker]:
        return [node.broker for node in self.cluster.up]

    def _opened(self, name: TopicName) -> list[Topic]:
        found = []
        for node in self.cluster.up:
            topic = node.broker.loaded().get(name)
            if topic is not None and not topic.is_closed and node.broker.owners.is_mine(name):
                found.append(topic)
        return found if len(found) == 1 else []

    def _is_gone_early(self, number: int) -> bool:
        if self.keeps_sealed or self.record is None:
            return False
        segment = self.record.layout.segments.get(SegmentId(number))
        return segment is None or segment.is_deleting

    @property
    def record(self) -> ScalableTopic | None:
        value = self.cluster.metadata.peek(topic_path(NAME))
        return ScalableTopic.decode(value) if value else None

    def client(self, knowledge: Knowledge = Knowledge.ALL) -> Client:
        return CLIENTS[knowledge](
            self.cluster.service_url,
            chance=random.Random(self.chance.random()),
            now_ms=self.loop.now_ms,
        )

    @staticmethod
    def service(broker: Broker) -> ScalableTopics:
        assert broker.scalable is not None
        return broker.scalable

    def on_host(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.client_hosts[name] = name
        return self.loop.create_task(work, name=name, context=context_of(self.host(name)))

    def host(self, name: str) -> Host:
        """Starts a new machine for a client."""
        host = self._hosts[name] = Host(name)
        return host

    def leave(self, name: str) -> None:
        """Switches that machine off."""
        self._hosts.pop(name).is_dead = True
        self.network.host_died(name)

    def everybody_leaves(self) -> None:
        for name in list(self._hosts):
            self.leave(name)
