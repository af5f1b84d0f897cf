"""Which topics exist, as the metadata store knows them: open here, open elsewhere, or not open at all."""

from __future__ import annotations

from collections.abc import Callable

from anabranch.broker.catalog.resources import Resources
from anabranch.broker.errors import TopicNotFoundError
from anabranch.controller.records import Records
from anabranch.model.names import Domain, NamespaceName, TopicName
from anabranch.model.scalable import scalable_name
from anabranch.storage.core.topic_record import TopicRecord


class KnownTopics:
    def __init__(
        self, resources: Resources, records: Records, is_opening: Callable[[TopicName], bool]
    ) -> None:
        """`is_opening`: whether this broker has that topic open, or is opening it."""
        self._resources = resources
        self._records = records
        self._is_opening = is_opening

    async def stored(self, namespace: NamespaceName) -> list[str]:
        """NotFound if there is no such namespace."""
        await self._resources.policies(namespace)
        return await self._resources.topics(namespace)

    async def check_lookup(self, name: TopicName) -> None:
        """Raises unless this broker may be named as the owner of that topic."""
        await self._resources.policies(name.namespace)
        if (
            name.domain is Domain.SEGMENT
            and not self._is_opening(name)
            and not await self._resources.topic_exists(name)
        ):
            raise TopicNotFoundError(f"{name} does not exist")

    async def check_scalable(self, name: TopicName) -> None:
        """TopicNotFoundError unless there is a scalable topic of that name."""
        if await self._records.get(name) is None:
            raise TopicNotFoundError(f"{name} does not exist")

    async def has_scalable(self, name: TopicName) -> bool:
        """Whether there is a scalable topic of that name, given in any domain."""
        return await self._records.get(scalable_name(name)) is not None

    async def part_of(self, name: TopicName, record: TopicRecord) -> str:
        """The id of the topic that the log with that record is a partition of at present; "" if there is none.

        The log itself may have another id: it was created before the partitioned topic, or remained from a former
        one."""
        if not name.is_partition or await self._resources.classic_id(name) != record.topic_id:
            return ""
        scalable = await self._records.get(name.base)
        if scalable is not None:
            return scalable.layout.topic_id
        return (
            await self._resources.classic_id(name.base) if await self._resources.partitions(name.base) else ""
        )
