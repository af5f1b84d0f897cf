"""Which topics may be created here: auto-created ones as policy allows, requested ones if the name is free."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from anabranch.broker.catalog.resources import NamespaceNotFound, Resources, topic_record_path
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.errors import NotAllowedError, NotReadyError, TooManyTopicsError, TopicNotFoundError
from anabranch.broker.policy.effective import effective
from anabranch.broker.policy.namespace import NamespacePolicies
from anabranch.controller.records import Records
from anabranch.metadata.port import MetadataStore
from anabranch.model.leaders_topics import is_leaders
from anabranch.model.names import Domain, TopicName
from anabranch.model.scalable import scalable_name
from anabranch.storage.topic.topic_log import TopicLog


class NewTopics:
    def __init__(
        self,
        resources: Resources,
        records: Records,
        metadata: MetadataStore,
        config: Callable[[], BrokerConfig],
        now_ms: Callable[[], int],
        is_open_unstored: Callable[[TopicName], Awaitable[bool]],
    ) -> None:
        """`is_open_unstored` says whether there is a non-persistent topic of that name."""
        self._resources = resources
        self._records = records
        self._metadata = metadata
        self._config = config
        self._now_ms = now_ms
        self._is_open_unstored = is_open_unstored

    async def create(
        self, name: TopicName, properties: dict[str, str] | None = None, topic_id: str | None = None
    ) -> bool:
        """Creates a topic on request; False if it exists. A segment has the id of its topic, which must be given."""
        await self._resources.policies(name.namespace)
        if name.is_classic:
            await self.check_name_free(name)
        if not await self._resources.topic_exists(name):
            await self.check_count(name)
        if topic_id is None:
            topic_id = await self._resources.id_for(name)
        return await self._store(name, properties, topic_id)

    async def create_by_use(self, name: TopicName) -> None:
        if not await self.may_create(name):
            raise TopicNotFoundError(f"{name} does not exist and topics are not auto-created here")
        await self.check_name_free(name)
        await self.check_count(name)
        await self._store(name, None, await self._resources.id_for(name))

    async def _store(self, name: TopicName, properties: dict[str, str] | None, topic_id: str) -> bool:
        path, now_ms = topic_record_path(name), self._now_ms()
        is_new = await TopicLog.create(path, self._metadata, now_ms, properties, topic_id)
        if is_new and await self._resources.is_deleting(name.namespace):
            await self._resources.take_back(name)
            raise NamespaceNotFound(name.namespace)
        if is_new and name.is_classic and await self._is_scalable(name):
            await self._resources.take_back(name)
            raise _at_once(name)
        return is_new

    async def create_partitioned(
        self, name: TopicName, count: int, properties: dict[str, str] | None = None
    ) -> None:
        """Creates the record of a partitioned topic, if the name is free."""
        if await self._is_scalable(name):
            raise _taken(name)
        await self._resources.create_partitioned(name, count, properties)
        if await self._is_scalable(name):
            await self._resources.delete_partitioned(name)
            raise _at_once(name)

    async def _is_scalable(self, name: TopicName) -> bool:
        return await self._records.get(name.base, fresh=True) is not None

    async def may_create(self, name: TopicName) -> bool:
        """Whether a topic of that name may be auto-created."""
        if name.domain is Domain.SEGMENT:
            # Only a topic's controller creates its segments.
            return False
        policies = await self._resources.policies(name.namespace)
        if name.is_partition:
            partitions = await self._resources.partitions(name.base)
            if partitions:
                return name.partition_index < partitions
        return self._use_makes_topics(policies)

    async def makes_scalable(self, name: TopicName) -> bool:
        """Whether use makes scalable topics, for clients that know them."""
        policies = await self._resources.policies(name.namespace)
        return effective(self._config(), policies).auto_topic_creation.topic_type == "scalable"

    def _use_makes_topics(self, policies: NamespacePolicies) -> bool:
        return effective(self._config(), policies).auto_topic_creation.allow_auto_topic_creation

    async def check_name_free(self, name: TopicName) -> None:
        if not name.is_partition and await self._resources.partitions(name):
            raise NotAllowedError(f"{name} is partitioned; use its partitions")
        if name.is_classic and await self._is_scalable(name):
            raise _taken(name)

    async def check_count(self, name: TopicName, count: int = 1) -> None:
        """Raises if the namespace may not have that many more topics. Partitions count one by one, as in Pulsar."""
        resources = self._resources
        most = effective(self._config(), await resources.policies(name.namespace)).max_topics_per_namespace
        if most and name.is_classic and not name.local.startswith("__"):
            present = [n for n in await resources.topic_names(name.namespace) if n.local[:2] != "__"]
            if len(present) + count > most:
                raise TooManyTopicsError(
                    f"Exceed maximum number of topics in namespace {name.namespace}: {most} are allowed"
                )

    async def partitions(self, name: TopicName, *, create: bool) -> int:
        """The topic's number of partitions, 0 for none; a partitioned topic is auto-created if policy allows that."""
        policies = await self._resources.policies(name.namespace)
        if name.is_partition or is_leaders(name):
            return 0
        partitions = await self._resources.partitions(name)
        if partitions or await self._exists(name):
            return partitions
        if name.domain is Domain.SEGMENT:
            raise TopicNotFoundError(f"{name} does not exist")
        if not self._use_makes_topics(policies):
            raise TopicNotFoundError(f"{name} does not exist and topics are not auto-created here")
        if not create:
            raise TopicNotFoundError(f"{name} does not exist")
        count = self._partitions_by_use(policies)
        if not count:
            return 0
        await self.create_partitioned(name, count)
        return await self._resources.partitions(name)

    async def _exists(self, name: TopicName) -> bool:
        if name.domain is Domain.NON_PERSISTENT:
            return await self._is_open_unstored(name)
        return await self._resources.topic_exists(name)

    def _partitions_by_use(self, policies: NamespacePolicies) -> int:
        """How many partitions an auto-created topic gets; 0 for none."""
        creation = effective(self._config(), policies).auto_topic_creation
        return creation.default_num_partitions or 0 if creation.topic_type == "partitioned" else 0


def _taken(name: TopicName) -> NotAllowedError:
    return NotAllowedError(
        f"{scalable_name(name.base)} is a scalable topic: use a V5 client of Pulsar, or Anabranch's own"
    )


def _at_once(name: TopicName) -> NotReadyError:
    """Two brokers have each found the name free. Both look again once they have stored their topic, so that no two
    topics of that name stay beside each other."""
    return NotReadyError(
        f"{scalable_name(name.base)} was created as a scalable topic at the same time: try again"
    )
