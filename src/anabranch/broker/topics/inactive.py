"""Deletes topics that have been unused for as long as a policy of their own or their namespace's allows.

This applies only where such a policy is set: without one a topic stays until it is deleted on request. A topic is in
use while it has producers or consumers, while a durable subscription (or, by the policy's mode, one with a backlog)
needs it, and while hidden entries wait for a decision, a retention policy keeps entries, or compaction has left
entries. Entries that only the broker's default retention keeps do not count as use: the deletion was configured, that
default was not. The unused time is counted from when this broker first saw the topic unused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from anabranch.broker.policy.namespace import InactiveTopics
from anabranch.broker.topic.topic import Topic
from anabranch.broker.topics.open_topics import OpenTopics
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName

log = logging.getLogger(__name__)


def is_unused(topic: Topic, policy: InactiveTopics) -> bool:
    if topic.producers or topic.attached.waiting or any(s.consumers for s in topic.subscriptions.values()):
        return False
    durable = topic.subscribing.durable()
    if policy.inactive_topic_delete_mode == "delete_when_no_subscriptions":
        is_needed = bool(durable)
    else:
        is_needed = any(s.backlog() for s in durable)
    is_retained = topic.log.kept_first != topic.log.kept_end and not topic.upkeep.is_retained_by_default
    # Hidden entries count as use, too: they are the rows of a job that has not decided about them.
    is_kept = topic.hidden.has_open or is_retained
    left = topic.log.topic_record.compacted
    return not is_needed and not is_kept and (left is None or left.entries == 0)


class DeleteTopic(Protocol):
    async def __call__(self, name: TopicName, *, if_unused: Callable[[Topic], bool]) -> None: ...


class InactiveTopicSweep:
    def __init__(self, open_topics: OpenTopics, delete: DeleteTopic, now_ms: Callable[[], int]) -> None:
        self._open_topics = open_topics
        self._delete_topic = delete
        self._now_ms = now_ms
        # Since when each topic has been unused, by the broker's clock.
        self._since_ms: dict[TopicName, int] = {}

    async def sweep(self) -> None:
        now = self._now_ms()
        unused: dict[TopicName, int] = {}
        for name, topic in self._open_topics.all().items():
            policy = topic.policies.inactive_topic_policies
            if policy is None or not policy.delete_while_inactive or not name.is_classic or topic.is_sealed:
                continue
            if not is_unused(topic, policy):
                continue
            since = unused[name] = self._since_ms.get(name, now)
            if now - since >= policy.max_inactive_duration_seconds * 1000:
                await self._delete(topic, policy)
        self._since_ms = unused

    async def _delete(self, topic: Topic, policy: InactiveTopics) -> None:
        try:
            # Together with its subscriptions: deleting these one by one could remove them from a topic that comes into
            # use again.
            await self._delete_topic(topic.name, if_unused=lambda found: is_unused(found, policy))
            log.info("%s: deleted, as it was unused for as long as its policy allows", topic.name)
        except AnabranchError as error:
            # A client came at the last moment, or the store does not answer: other topics have their turn.
            log.info("%s: unused but not deleted: %s", topic.name, error)
