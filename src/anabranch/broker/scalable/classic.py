"""What the controllers of scalable topics ask this broker: about its classic topics, and how long things are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from anabranch.broker.errors import TopicNotFoundError
from anabranch.broker.resources import PARTITIONED
from anabranch.broker.scalable.naming import is_segment_consumer
from anabranch.controller.feed import Part
from anabranch.controller.service import ScalableTopics
from anabranch.controller.settings import ControllerSettings
from anabranch.model.names import Domain, InvalidName, TopicName
from anabranch.model.scalable import SubscriptionKind, scalable_name

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

# Producers and consumers of Pulsar's V5 clients carry this among their properties while they use a classic topic. They
# follow a migration by themselves. Stream consumers of 5.0.0-M1 have only their names to be known by.
V5_MARK: Final = ("__pulsar.v5.managed", "true")
_QUEUES: Final = ("Shared", "Key_Shared")


class ClassicTopics:
    """Implements the controllers' `Classic`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def topics(self, topic: TopicName) -> Sequence[TopicName]:
        try:
            name = TopicName(Domain.PERSISTENT, topic.namespace, topic.local)
        except InvalidName:
            # No classic topic can be called so.
            return ()
        resources = self._broker.resources
        if partitions := 0 if name.is_partition else await resources.partitions(name):
            return [name.partition(n) for n in range(partitions)]
        return [name] if await resources.topic_exists(name) else ()

    async def topic_id(self, topic: TopicName) -> str:
        try:
            name = TopicName(Domain.PERSISTENT, topic.namespace, topic.local)
        except InvalidName:
            return ""
        return await self._broker.resources.classic_id(name)

    async def attached(self, topic: TopicName) -> int:
        found = self._broker.loaded().get(topic)
        if found is None:
            return 0
        consumers = [c for s in found.subscriptions.values() for c in s.consumers]
        properties = [producer.metadata for producer in found.producers.values()]
        properties += [c.metadata for c in consumers if not is_segment_consumer(c.name)]
        key, value = V5_MARK
        return sum(one.get(key) != value for one in properties)

    async def subscriptions(self, topic: TopicName) -> Mapping[str, SubscriptionKind]:
        try:
            opened = await self._broker.topic(topic)
        except TopicNotFoundError:
            # A partition that nobody has used yet.
            return {}
        return {
            found.name: SubscriptionKind.QUEUE if found.type_name in _QUEUES else SubscriptionKind.STREAM
            # Without compaction's own: scalable topics are not compacted.
            for found in opened.subscribing.durable()
        }


def scalable_topics(broker: Broker) -> ScalableTopics:
    """The scalable topics of that broker, not yet started."""
    topics = ScalableTopics(
        broker.metadata,
        broker.segments,
        service_url=broker.service_url,
        settings=controller_settings(broker),
        classic=ClassicTopics(broker),
    )
    # A classic topic that gets more partitions shows them as segments at once.
    topics.feed.follow(PARTITIONED, _partitioned_topic, Part.PARTITIONS)
    return topics


def _partitioned_topic(path: str) -> TopicName | None:
    try:
        return scalable_name(TopicName.from_storage_path(path.removeprefix(f"{PARTITIONED}/")))
    except InvalidName:
        return None  # A folder of them.


def controller_settings(broker: Broker) -> ControllerSettings:
    config = broker.config

    async def retention_ms(name: TopicName) -> int | None:
        """As long as retention keeps consumed entries, and never less than they linger anyway; None for ever.

        A segment that was a classic topic keeps what that topic's own policy says.

        What the disk's share, or a retention by size, takes of them earlier leaves nothing to keep: `emptied_ms`.
        """
        of_namespace = await broker.resources.policies(name.namespace)
        found = broker.topic_policies.over(of_namespace, name).retention_policies
        minutes = config.default_retention_time_in_minutes if found is None else found.minutes
        megabytes = config.default_retention_size_in_mb if found is None else found.megabytes
        if minutes < 0 and megabytes:
            return None
        kept_s = minutes * 60 if megabytes else 0
        return 1000 * (kept_s + config.log_linger_seconds)

    return ControllerSettings(
        session_grace_s=config.scalable_topic_consumer_session_grace_period_seconds,
        collect_every_s=config.retention_check_interval_in_seconds,
        retention_ms=retention_ms,
        emptied_ms=1000 * config.log_linger_seconds,
    )
