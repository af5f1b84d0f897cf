"""What the page shows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sized
from dataclasses import dataclass

from anabranch.broker.admin.elsewhere import Elsewhere
from anabranch.broker.balance.balancer import Balancer
from anabranch.broker.catalog.followed_bundles import FollowedBundles
from anabranch.broker.catalog.owners import Owners, SharedOwners
from anabranch.broker.catalog.registry import BrokerRegistry
from anabranch.broker.catalog.resources import Resources
from anabranch.broker.catalog.schemas import Schemas
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.observe.troubles import Troubles
from anabranch.broker.scalable.load.scaling import BrokerScaling
from anabranch.broker.security.rights import Rights
from anabranch.broker.topic.topic import Topic
from anabranch.broker.ui.recorder import Recorder
from anabranch.controller.service import ScalableTopics
from anabranch.metadata.port import MetadataStore
from anabranch.model.names import TopicName


@dataclass(frozen=True, slots=True)
class PageSources:
    """The parts of one broker that the page shows."""

    config: BrokerConfig
    service_url: str
    now_ms: Callable[[], int]
    metadata: MetadataStore
    resources: Resources
    registry: BrokerRegistry
    rights: Rights
    recorder: Recorder
    loaded: Callable[[], Mapping[TopicName, Topic]]  # The topics that are open.
    connections: Sized
    lag_s: Callable[[], float]  # The delay of the event loop, as last measured.
    # None while scalable topics are turned off.
    scalable: ScalableTopics | None
    scaling: BrokerScaling | None
    owners: Owners
    shared: SharedOwners | None  # The same, where several brokers share the topics.
    ranges: FollowedBundles | None  # The bundles that there are, in the same case.
    balancer: Balancer | None
    # The other brokers' REST.
    elsewhere: Elsewhere
    # The disk, and who is held back by what at this broker.
    troubles: Callable[[], Awaitable[Troubles]]
    # Opens a topic for the browser of messages; raises if another broker owns it.
    open: Callable[[TopicName], Awaitable[Topic]]
    schemas: Schemas

    @property
    def has_others(self) -> bool:
        """Whether other brokers serve topics, too."""
        return self.elsewhere.has_others

    @property
    def step_ms(self) -> int:
        """The time between two samples."""
        return max(1, round(self.config.scalable_topic_load_report_interval * 1000))
