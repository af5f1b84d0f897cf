"""What the controllers of scalable topics ask this broker: about its classic topics, and for how long to retain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from anabranch.broker.catalog.resources import PARTITIONED, NamespaceNotFound, Resources
from anabranch.broker.catalog.topic_policies import TopicPolicyStore
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.errors import TopicNotFoundError
from anabranch.broker.policy.effective import effective
from anabranch.broker.scalable.ports import ServedTopics
from anabranch.controller.core.errors import TopicExists
from anabranch.controller.feed import StalePart
from anabranch.controller.ports import Candidates, Segments
from anabranch.controller.service import ScalableTopics
from anabranch.controller.settings import ControllerSettings
from anabranch.metadata.port import MetadataStore
from anabranch.model.buckets import BucketBudget
from anabranch.model.names import Domain, InvalidName, TopicName
from anabranch.model.scalable import SubscriptionKind, scalable_name
from anabranch.model.segment_consumers import is_segment_consumer

# Producers and consumers of Pulsar's V5 clients carry this among their properties while they use a classic topic. They
# follow a migration by themselves. Stream consumers of 5.0.0-M1 can be recognised only by their names.
V5_MARK: Final = ("__pulsar.v5.managed", "true")
_QUEUES: Final = ("Shared", "Key_Shared")


class ClassicElsewhere(Protocol):
    """Classic topics that other brokers own. Raises a retryable AnabranchError if an owner cannot be asked."""

    def is_elsewhere(self, topic: TopicName) -> bool: ...

    async def attached(self, topic: TopicName) -> int: ...

    async def subscriptions(self, topic: TopicName) -> Mapping[str, SubscriptionKind]: ...


class ClassicTopics:
    """Implements the controllers' `Classic`."""

    def __init__(
        self, resources: Resources, served: ServedTopics, elsewhere: ClassicElsewhere | None = None
    ) -> None:
        self._resources = resources
        self._served = served
        self._elsewhere = elsewhere

    async def topics(self, topic: TopicName) -> Sequence[TopicName]:
        try:
            name = TopicName(Domain.PERSISTENT, topic.namespace, topic.local)
        except InvalidName:
            # No classic topic can have this name.
            return ()
        resources = self._resources
        if partitions := 0 if name.is_partition else await resources.partitions(name):
            return [name.partition(n) for n in range(partitions)]
        return [name] if await resources.topic_exists(name) else ()

    async def check_new(self, topic: TopicName) -> None:
        """Checks a scalable topic that was stored a moment ago: NamespaceNotFound if another broker has begun to delete
        its namespace, TopicExists if another one has made a classic topic of that name at the same time."""
        if await self._resources.is_deleting(topic.namespace):
            raise NamespaceNotFound(topic.namespace)
        if await self.topics(topic):
            raise TopicExists(
                f"a classic topic persistent://{topic.namespace}/{topic.local} exists: `anabranch topics migrate "
                f"{topic.namespace}/{topic.local}` makes it scalable"
            )

    async def topic_id(self, topic: TopicName) -> str:
        try:
            name = TopicName(Domain.PERSISTENT, topic.namespace, topic.local)
        except InvalidName:
            return ""
        return await self._resources.classic_id(name)

    async def attached(self, topic: TopicName) -> int:
        if self._elsewhere is not None and self._elsewhere.is_elsewhere(topic):
            return await self._elsewhere.attached(topic)
        return self.attached_here(topic)

    async def subscriptions(self, topic: TopicName) -> Mapping[str, SubscriptionKind]:
        if self._elsewhere is not None and self._elsewhere.is_elsewhere(topic):
            return await self._elsewhere.subscriptions(topic)
        return await self.subscriptions_here(topic)

    def attached_here(self, topic: TopicName) -> int:
        """As far as the topic is open here."""
        found = self._served.opened(topic)
        if found is None:
            return 0
        consumers = [c for s in found.subscriptions.values() for c in s.consumers]
        properties = [producer.metadata for producer in found.producers.values()]
        properties += [c.metadata for c in consumers if not is_segment_consumer(c.name)]
        key, value = V5_MARK
        return sum(one.get(key) != value for one in properties)

    async def subscriptions_here(self, topic: TopicName) -> Mapping[str, SubscriptionKind]:
        """Opens the topic, which this broker must own."""
        try:
            opened = await self._served.topic(topic)
        except TopicNotFoundError:
            # A partition that has not been used yet.
            return {}
        return {
            found.name: SubscriptionKind.QUEUE if found.type_name in _QUEUES else SubscriptionKind.STREAM
            # Excludes compaction's own cursor: scalable topics are not compacted.
            for found in opened.subscribing.durable()
        }


def scalable_topics(
    metadata: MetadataStore,
    segments: Segments,
    service_url: str,
    settings: ControllerSettings,
    classic: ClassicTopics,
    candidates: Candidates | None = None,
) -> ScalableTopics:
    """The scalable topics of the broker with that URL, not yet started."""
    topics = ScalableTopics(
        metadata,
        segments,
        service_url=service_url,
        settings=settings,
        classic=classic,
        candidates=candidates,
        check_new=classic.check_new,
    )
    # If a classic topic gets more partitions, they show as segments at once.
    topics.feed.follow(PARTITIONED, _partitioned_topic, StalePart.PARTITIONS)
    return topics


def _partitioned_topic(path: str) -> TopicName | None:
    try:
        return scalable_name(TopicName.from_storage_path(path.removeprefix(f"{PARTITIONED}/")))
    except InvalidName:
        return None  # A folder of partitioned topics.


def controller_settings(
    config: BrokerConfig, resources: Resources, topic_policies: TopicPolicyStore
) -> ControllerSettings:
    async def retention_ms(name: TopicName) -> int | None:
        """How long consumed entries are retained, at least for as long as they linger anyway; None for ever.

        A segment that was a classic topic follows that topic's own policy.

        Entries that the share of the disk, or a retention by size, deletes earlier need not be kept: `emptied_ms`.
        """
        of_namespace = await resources.policies(name.namespace)
        found = effective(config, topic_policies.over(of_namespace, name)).retention_policies
        minutes, megabytes = found.minutes, found.megabytes
        if minutes < 0 and megabytes:
            return None
        kept_s = minutes * 60 if megabytes else 0
        return 1000 * (kept_s + config.log_linger_seconds)

    return ControllerSettings(
        session_grace_s=config.scalable_topic_consumer_session_grace_period_seconds,
        buckets=BucketBudget(
            config.scalable_topic_entry_bucket_budget, config.scalable_topic_entry_buckets_per_segment_max
        ),
        shares_sealed=config.scalable_topic_sealed_drain_sharing_enabled,
        collect_every_s=config.retention_check_interval_in_seconds,
        retention_ms=retention_ms,
        emptied_ms=1000 * config.log_linger_seconds,
    )
