"""What the REST uses of a broker: its parts and some operations. The composition root builds it; handlers get it with
each request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sized
from dataclasses import dataclass
from typing import Protocol

from anabranch.broker.admin.elsewhere import Elsewhere
from anabranch.broker.balance.balancer import Balancer
from anabranch.broker.balance.load.load_work import LoadWork
from anabranch.broker.balance.placement import Placement
from anabranch.broker.catalog.dynamic_config import DynamicConfig
from anabranch.broker.catalog.hashed_owners import HashedOwners
from anabranch.broker.catalog.isolation import IsolationStore
from anabranch.broker.catalog.owners import BrokerAddress, Owners, SharedOwners
from anabranch.broker.catalog.registry import BrokerRegistry
from anabranch.broker.catalog.resources import Resources
from anabranch.broker.catalog.schemas import Schemas
from anabranch.broker.catalog.topic_policies import TopicPolicyStore
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.config.listeners import Addresses
from anabranch.broker.connection.sign_in import SignIn
from anabranch.broker.hidden_writes.records import WriteRecords
from anabranch.broker.non_persistent.topics import NonPersistentTopics
from anabranch.broker.observe.table_reports import TableReports
from anabranch.broker.observe.troubles import Troubles
from anabranch.broker.policy.effective import EffectivePolicies
from anabranch.broker.scalable.owner.registration import Registration
from anabranch.broker.scalable.owner.segments import SegmentOwner
from anabranch.broker.security.rights import Rights
from anabranch.broker.topic.topic import Topic
from anabranch.broker.topics.creation import NewTopics
from anabranch.broker.topics.open_topics import OpenTopics
from anabranch.controller.autoscaler import AutoScaler
from anabranch.controller.records import Records
from anabranch.controller.service import ScalableTopics
from anabranch.metadata.port import MetadataStore
from anabranch.model.names import NamespaceName, TopicName
from anabranch.model.position import Position
from anabranch.storage.core.topic_record import TopicRecord
from anabranch.storage.port import LogStore


class DeleteByName(Protocol):
    async def __call__(self, name: TopicName, *, force: bool = False) -> None:
        """Deletes the topic and its stored state; refused while clients use it, unless forced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminServices:
    # The configuration changes while the broker runs: `config` is the present one.
    current_config: Callable[[], BrokerConfig]
    metadata: MetadataStore
    log: LogStore
    resources: Resources
    registry: BrokerRegistry
    owners: Owners
    shared: SharedOwners | None  # The same, where several brokers share the topics.
    # One of these says who owns what there.
    hashed: HashedOwners | None
    balancer: Balancer | None
    # Which brokers may own which bundles; None without the balancer.
    placement: Placement | None = None
    # What is stored of that.
    isolation: IsolationStore
    # What the balancer does with load; None without one.
    load_work: LoadWork | None = None
    # The other brokers' REST.
    elsewhere: Elsewhere
    # Whether callers can reach the other brokers only through this one: it asks them instead of redirecting.
    has_one_port: bool
    sign_in: SignIn
    rights: Rights
    schemas: Schemas
    topic_policies: TopicPolicyStore
    dynamic_config: DynamicConfig
    write_records: WriteRecords
    records: Records
    segment_owner: SegmentOwner
    # None while scalable topics are turned off, as is `registration`; `current_autoscaler` raises NotAllowedError then.
    scalable: ScalableTopics | None
    registration: Registration | None
    current_autoscaler: Callable[[], AutoScaler]
    open_topics: OpenTopics
    new_topics: NewTopics
    non_persistent: NonPersistentTopics
    sessions: Sized
    connections_opened: Callable[[], int]
    troubles: Callable[[], Awaitable[Troubles]]
    now_ms: Callable[[], int]
    started_ms: int
    server_version: str
    service_url: str
    service_url_tls: str
    http_url: str
    addresses: Callable[[str], Addresses]
    # Operations that involve several parts.
    policies: Callable[[TopicName], Awaitable[EffectivePolicies]]
    topics: Callable[[NamespaceName], Awaitable[list[str]]]
    has_scalable: Callable[[TopicName], Awaitable[bool]]
    part_of: Callable[[TopicName, TopicRecord], Awaitable[str]]
    check_lookup: Callable[[TopicName], Awaitable[None]]
    # The broker that a lookup names.
    find_owner: Callable[[TopicName], Awaitable[BrokerAddress]]
    check_new_subscription: Callable[[TopicName, str], Awaitable[None]]
    check_quotas: Callable[[], Awaitable[None]]
    delete_topic: DeleteByName
    forget_topic: Callable[[TopicName], Awaitable[None]]
    forget_grants: Callable[[TopicName], Awaitable[None]]
    discard_topic: Callable[[TopicName], Awaitable[None]]
    unload_topic: Callable[[TopicName], Awaitable[None]]
    terminate_topic: Callable[[TopicName], Awaitable[Position]]
    skip_damage: Callable[[TopicName], Awaitable[int]]
    # ProbeFailed unless an entry can be stored and read.
    probe: Callable[[], Awaitable[None]]
    # The share of one core that the event loop uses.
    loop_share: Callable[[], float]
    # What the table writer says of the tables, if it reports to this broker.
    table_reports: TableReports
    # The page that Prometheus reads, in pieces.
    metrics: Callable[[], AsyncIterator[bytes]]

    @property
    def config(self) -> BrokerConfig:
        return self.current_config()

    @property
    def autoscaler(self) -> AutoScaler:
        return self.current_autoscaler()

    @property
    def connections_total(self) -> int:
        return self.connections_opened()

    @property
    def has_others(self) -> bool:
        """Whether other brokers may own topics."""
        return self.elsewhere.has_others

    def loaded(self) -> Mapping[TopicName, Topic]:
        return self.open_topics.all()

    def opened(self, name: TopicName) -> Topic | None:
        """The topic, if it is open."""
        return self.open_topics.get(name)

    async def topic(self, name: TopicName, *, create: bool = False) -> Topic:
        """The open topic; opened or, if allowed, created first."""
        return await self.open_topics.topic(name, create=create, made_for=None, for_deletion=False)
