"""The non-persistent topics open in a broker. They exist nowhere else: those that are unused for a while are
removed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from anabranch.broker.catalog.owners import Owners, check_mine
from anabranch.broker.catalog.resources import Resources
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.config.listeners import Addresses
from anabranch.broker.errors import NotAllowedError, NotReadyError, TopicNotFoundError
from anabranch.broker.non_persistent.topic import NonPersistentTopic
from anabranch.broker.policy.namespace import NamespacePolicies
from anabranch.broker.topics.creation import NewTopics
from anabranch.model.bundles import BundleName
from anabranch.model.names import NamespaceName, TopicName

# As long as Pulsar keeps an unused topic.
UNUSED_MS: Final = 60_000


class NonPersistentTopics:
    def __init__(
        self,
        resources: Resources,
        owners: Owners,
        new_topics: NewTopics,
        config: Callable[[], BrokerConfig],
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        *,
        is_of_brokers: Callable[[TopicName], bool] = lambda name: False,
    ) -> None:
        """`is_of_brokers` says of which topics clients may only read."""
        self._is_of_brokers = is_of_brokers
        self._resources = resources
        self._owners = owners
        self._new_topics = new_topics
        self._config = config
        self._loop = loop
        self._now_ms = now_ms
        self._topics: dict[TopicName, NonPersistentTopic] = {}

    def loaded(self) -> list[NonPersistentTopic]:
        return list(self._topics.values())

    def opened(self, name: TopicName) -> NonPersistentTopic | None:
        return self._topics.get(name)

    def names(self, namespace: NamespaceName) -> list[TopicName]:
        return sorted(name for name in self._topics if name.namespace == namespace)

    async def open(self, name: TopicName, *, create: bool) -> NonPersistentTopic:
        """The topic; created if it does not exist, where topics may be auto-created."""
        self.check_enabled(name)
        await check_mine(self._owners, name)
        # Checked also if the topic is open already: the namespace may be gone.
        await self._resources.policies(name.namespace)
        if (found := self._topics.get(name)) is not None:
            return found
        if not create or not await self._new_topics.may_create(name):
            raise TopicNotFoundError(f"{name} does not exist")
        if not name.is_partition and await self._resources.partitions(name):
            raise NotAllowedError(f"{name} is partitioned; use its partitions")
        return await self._make(name, is_kept=False)

    async def create(self, name: TopicName) -> bool:
        """Creates the topic at an operator's request; False if it exists."""
        self.check_enabled(name)
        await check_mine(self._owners, name)
        if await self._resources.partitions(name) or name in self._topics:
            return False
        await self._make(name, is_kept=True)
        return True

    async def _make(self, name: TopicName, *, is_kept: bool) -> NonPersistentTopic:
        # Read last: the topic is notified of later changes.
        policies = await self._resources.policies(name.namespace)
        # Another request may have created it meanwhile.
        made = self._topics.get(name)
        if made is None:
            if not self._owners.is_mine(name):
                # It moved since it was checked: nothing would close it here.
                raise NotReadyError(f"{name} has moved to another broker: look it up again")
            made = NonPersistentTopic(
                name,
                policies,
                self._closed,
                is_kept=is_kept,
                is_of_brokers=self._is_of_brokers(name),
                config=self._config,
                loop=self._loop,
                now_ms=self._now_ms,
            )
            self._topics[name] = made
        return made

    def policies_changed(self, namespace: NamespaceName, policies: NamespacePolicies) -> None:
        for name, topic in self._topics.items():
            if name.namespace == namespace:
                topic.apply_policies(policies)

    def config_changed(self) -> None:
        for topic in self._topics.values():
            topic.limits_changed()

    def check_enabled(self, name: TopicName) -> None:
        if not self._config().enable_non_persistent_topics:
            raise NotAllowedError(
                f"{name}: non-persistent topics are switched off on this broker (enableNonPersistentTopics=false)"
            )

    def _closed(self, topic: NonPersistentTopic) -> None:
        if self._topics.get(topic.name) is topic:
            del self._topics[topic.name]

    def close_those(self, namespace: NamespaceName | None = None) -> None:
        """Closes all topics, or those of a deleted namespace."""
        for name, topic in list(self._topics.items()):
            if namespace is None or name.namespace == namespace:
                topic.close()

    def owners_changed(
        self,
        bundles: frozenset[BundleName],
        moved_to: Callable[[TopicName], Addresses | None] = lambda name: None,
    ) -> None:
        spaces = {bundle.namespace for bundle in bundles}
        for name, topic in list(self._topics.items()):
            if name.namespace in spaces and not self._owners.is_mine(name):
                topic.close(moved_to(name))

    def update_rates(self, seconds: float) -> None:
        now = self._now_ms()
        for topic in list(self._topics.values()):
            topic.update_rates(seconds)
            if topic.is_used or topic.is_kept:
                topic.used_ms = now
            elif now - topic.used_ms >= UNUSED_MS:
                topic.close()
