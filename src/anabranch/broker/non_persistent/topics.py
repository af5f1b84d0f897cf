"""The non-persistent topics open in a broker. They are nowhere else: what nobody uses for a while is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from anabranch.broker.errors import NotAllowedError, NotReadyError, TopicNotFoundError
from anabranch.broker.non_persistent.topic import NonPersistentTopic
from anabranch.broker.policies import Policies
from anabranch.model.names import NamespaceName, TopicName

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

# As long as Pulsar keeps a topic that nobody uses.
UNUSED_MS: Final = 60_000


class NonPersistentTopics:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topics: dict[TopicName, NonPersistentTopic] = {}

    def loaded(self) -> list[NonPersistentTopic]:
        return list(self._topics.values())

    def opened(self, name: TopicName) -> NonPersistentTopic | None:
        return self._topics.get(name)

    def names(self, namespace: NamespaceName) -> list[TopicName]:
        return sorted(name for name in self._topics if name.namespace == namespace)

    async def open(self, name: TopicName, *, create: bool) -> NonPersistentTopic:
        """The topic; made if it is not there, as far as use may make topics here."""
        self.check_enabled(name)
        broker = self._broker
        if not broker.owners.is_mine(name):
            raise NotReadyError(
                f"{name} is served by {broker.owners.owner(name).service_url}: look it up again"
            )
        # Also where it is open already: the namespace may be gone.
        await broker.resources.policies(name.namespace)
        if (found := self._topics.get(name)) is not None:
            return found
        if not create or not await broker.new_topics.may_create(name):
            raise TopicNotFoundError(f"{name} does not exist")
        if not name.is_partition and await broker.resources.partitions(name):
            raise NotAllowedError(f"{name} is partitioned; use its partitions")
        return await self._make(name, is_kept=False)

    async def create(self, name: TopicName) -> bool:
        """At an operator's wish; False if it exists."""
        self.check_enabled(name)
        if await self._broker.resources.partitions(name) or name in self._topics:
            return False
        await self._make(name, is_kept=True)
        return True

    async def _make(self, name: TopicName, *, is_kept: bool) -> NonPersistentTopic:
        # Asked last: what is changed from here on the topic is told of.
        policies = await self._broker.resources.policies(name.namespace)
        # Somebody may have been faster.
        made = self._topics.get(name)
        if made is None:
            made = NonPersistentTopic(self._broker, name, policies, self._closed, is_kept=is_kept)
            self._topics[name] = made
        return made

    def policies_changed(self, namespace: NamespaceName, policies: Policies) -> None:
        for name, topic in self._topics.items():
            if name.namespace == namespace:
                topic.apply_policies(policies)

    def config_changed(self) -> None:
        for topic in self._topics.values():
            topic.limits_changed()

    def check_enabled(self, name: TopicName) -> None:
        if not self._broker.config.enable_non_persistent_topics:
            raise NotAllowedError(
                f"{name}: non-persistent topics are switched off on this broker (enableNonPersistentTopics=false)"
            )

    def _closed(self, topic: NonPersistentTopic) -> None:
        if self._topics.get(topic.name) is topic:
            del self._topics[topic.name]

    def close_those(self, namespace: NamespaceName | None = None) -> None:
        """All of them, or those of a namespace that is gone."""
        for name, topic in list(self._topics.items()):
            if namespace is None or name.namespace == namespace:
                topic.close()

    def owners_changed(self) -> None:
        for name, topic in list(self._topics.items()):
            if not self._broker.owners.is_mine(name):
                topic.close()

    def update_rates(self, seconds: float) -> None:
        now = self._broker.now_ms()
        for topic in list(self._topics.values()):
            topic.update_rates(seconds)
            if topic.is_used or topic.is_kept:
                topic.used_ms = now
            elif now - topic.used_ms >= UNUSED_MS:
                topic.close()
