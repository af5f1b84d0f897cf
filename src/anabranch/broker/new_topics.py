"""Which topics may be made here: by use, as policy says, and by whoever asks for one, as far as its name is free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch.broker.errors import NotAllowedError, TooManyTopicsError, TopicNotFoundError
from anabranch.broker.policies import Policies
from anabranch.broker.resources import topic_record_path
from anabranch.model.names import Domain, TopicName
from anabranch.model.scalable import scalable_name
from anabranch.storage.topic_log import TopicLog

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker


class NewTopics:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def create(
        self, name: TopicName, properties: dict[str, str] | None = None, topic_id: str | None = None
    ) -> bool:
        """At somebody's wish; False if it exists. A segment has the id of its topic, which must be given."""
        broker = self._broker
        await broker.resources.policies(name.namespace)
        if name.is_classic:
            await self.check_name_free(name)
        if not await broker.resources.topic_exists(name):
            await self.check_count(name)
        if topic_id is None:
            topic_id = await broker.resources.id_for(name)
        path, now_ms = topic_record_path(name), broker.now_ms()
        return await TopicLog.create(path, broker.metadata, now_ms, properties, topic_id)

    async def create_by_use(self, name: TopicName) -> None:
        if not await self.may_create(name):
            raise TopicNotFoundError(f"{name} does not exist and topics are not created by use here")
        await self.check_name_free(name)
        await self.check_count(name)
        broker = self._broker
        topic_id = await broker.resources.id_for(name)
        await TopicLog.create(topic_record_path(name), broker.metadata, broker.now_ms(), topic_id=topic_id)

    async def may_create(self, name: TopicName) -> bool:
        """Whether use makes a topic of that name."""
        if name.domain is Domain.SEGMENT:
            # A topic's controller makes its segments, nobody else.
            return False
        policies = await self._broker.resources.policies(name.namespace)
        if name.is_partition:
            partitions = await self._broker.resources.partitions(name.base)
            if partitions:
                return name.partition_index < partitions
        return self._use_makes_topics(policies)

    def _use_makes_topics(self, policies: Policies) -> bool:
        override = policies.auto_topic_creation
        if override is None:
            return self._broker.config.allow_auto_topic_creation
        return override.allow_auto_topic_creation

    async def check_name_free(self, name: TopicName) -> None:
        if not name.is_partition and await self._broker.resources.partitions(name):
            raise NotAllowedError(f"{name} is partitioned; use its partitions")
        if name.is_classic and await self._broker.records.get(name.base) is not None:
            raise NotAllowedError(
                f"{scalable_name(name.base)} is a scalable topic: use a V5 client of Pulsar, or Anabranch's own"
            )

    async def check_count(self, name: TopicName, count: int = 1) -> None:
        """Raises if the namespace may not have so many topics more. Partitions count one by one, as in Pulsar."""
        resources = self._broker.resources
        most = (await resources.policies(name.namespace)).max_topics_per_namespace
        if most is None:
            most = self._broker.config.max_topics_per_namespace
        if most and name.is_classic and not name.local.startswith("__"):
            present = [n for n in await resources.topic_names(name.namespace) if n.local[:2] != "__"]
            if len(present) + count > most:
                raise TooManyTopicsError(
                    f"Exceed maximum number of topics in namespace {name.namespace}: {most} are allowed"
                )

    async def partitions(self, name: TopicName, *, create: bool) -> int:
        """How many partitions the topic has, 0 for none; a partitioned topic is made if policy says so."""
        broker = self._broker
        policies = await broker.resources.policies(name.namespace)
        if name.is_partition:
            return 0
        partitions = await broker.resources.partitions(name)
        if partitions or await broker.topic_exists(name):
            return partitions
        if name.domain is Domain.SEGMENT:
            raise TopicNotFoundError(f"{name} does not exist")
        if not self._use_makes_topics(policies):
            raise TopicNotFoundError(f"{name} does not exist and topics are not created by use here")
        if not create:
            raise TopicNotFoundError(f"{name} does not exist")
        count = self._partitions_by_use(policies)
        if not count:
            return 0
        await broker.resources.create_partitioned(name, count)
        return await broker.resources.partitions(name)

    def _partitions_by_use(self, policies: Policies) -> int:
        """How many partitions a topic made by use gets; 0 for none."""
        config, override = self._broker.config, policies.auto_topic_creation
        kind, count = config.allow_auto_topic_creation_type, config.default_num_partitions
        if override is not None and override.topic_type:
            kind, count = override.topic_type, override.default_num_partitions or count
        return count if kind == "partitioned" else 0
