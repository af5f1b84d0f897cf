"""What operators ask of a single topic: to delete, unload or seal it, to skip what is damaged. Deleting a topic also
removes what is stored about it besides its log."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from anabranch.broker.catalog.resources import NotFound, Resources
from anabranch.broker.catalog.schemas import Schemas
from anabranch.broker.catalog.topic_policies import TopicPolicyStore
from anabranch.broker.errors import TopicNotFoundError
from anabranch.broker.security import grants
from anabranch.broker.topic.topic import Topic
from anabranch.broker.topics.open_topics import OpenTopics
from anabranch.controller.records import Records
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.model.scalable import scalable_name


class TopicOperations:
    def __init__(
        self,
        open_topics: OpenTopics,
        resources: Resources,
        records: Records,
        schemas: Schemas,
        topic_policies: TopicPolicyStore,
    ) -> None:
        self._open_topics = open_topics
        self._resources = resources
        self._records = records
        self._schemas = schemas
        self._topic_policies = topic_policies

    async def delete(
        self, name: TopicName, *, force: bool = False, if_unused: Callable[[Topic], bool] | None = None
    ) -> None:
        """Refused while clients use the topic, unless forced; `if_unused` is another check of that."""
        topic = await self._open_topics.topic(name)
        await topic.delete(force=force, if_unused=if_unused)
        if name.is_classic and not name.is_partition:
            await self.forget(name)

    async def forget(self, name: TopicName) -> None:
        """Removes what is stored about a deleted topic, partitioned or not, besides its log: it may be created
        again."""
        await self._schemas.delete(name)
        await self._topic_policies.forget(name)
        await self._records.remove_classic(scalable_name(name))
        await self.forget_grants(name)

    async def forget_grants(self, name: TopicName) -> None:
        """Removes the grants on a deleted topic."""
        # A namespace that is being deleted loses all its grants.
        with contextlib.suppress(NotFound):
            policies = await self._resources.policies(name.namespace)
            if grants.forget_topic(policies, name) is not policies:
                await self._resources.update_policies(
                    name.namespace, lambda found: grants.forget_topic(found, name)
                )

    async def discard(self, name: TopicName) -> None:
        """Deletes what is stored under that name, if anything, even if it is in use or may not be used any more."""
        while await self._resources.topic_exists(name):
            try:
                topic = await self._open_topics.topic(name, for_deletion=True)
            except TopicNotFoundError:
                # Its deletion began before.
                await self._open_topics.finish_deleting(name)
                return
            if not topic.is_closed:
                await topic.delete(force=True)

    async def unload(self, name: TopicName) -> None:
        """Closes the topic; its clients reconnect and open it again."""
        topic = await self._open_topics.topic(name)
        await topic.close()

    async def terminate(self, name: TopicName) -> Position:
        return await (await self._open_topics.topic(name)).terminate()

    async def skip_damage(self, name: TopicName) -> int:
        """Skips damaged entries where a reader of this topic has met them; returns how many were skipped."""
        return await (await self._open_topics.topic(name)).skip_damage()
