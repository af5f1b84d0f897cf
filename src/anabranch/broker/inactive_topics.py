"""Deletes topics that nobody has used for as long as a policy of their own or their namespace's says.

Only where such a policy is set: without one a topic stays until somebody deletes it. A topic is in use while it has
producers or consumers, while a durable subscription (or, by the policy's mode, one with a backlog) needs it, and
while hidden entries wait for a decision, a retention policy keeps something in it, or compaction has left something.
What only the broker's default retention keeps does not hold it: to delete unused topics was asked for, that default was
not. How long it has been unused is counted from when this broker first saw it so.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from anabranch.broker.errors import BrokerError
from anabranch.broker.policies import InactiveTopics
from anabranch.model.names import TopicName

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.topic import Topic

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
    # Entries that nobody sees yet are kept, too: the rows of a job that has not decided about them.
    is_kept = topic.hidden.has_open or is_retained
    left = topic.log.topic_record.compacted
    return not is_needed and not is_kept and (left is None or left.entries == 0)


class InactiveTopicSweep:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        # Since when each of them has been unused, by the broker's clock.
        self._since_ms: dict[TopicName, int] = {}

    async def sweep(self) -> None:
        now = self._broker.now_ms()
        unused: dict[TopicName, int] = {}
        for name, topic in self._broker.loaded().items():
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
            # With its subscriptions: one by one, they would be gone from a topic that somebody uses after all.
            await self._broker.delete_topic(topic.name, if_unused=lambda found: is_unused(found, policy))
            log.info("%s was deleted: nobody has used it for as long as its policy allows", topic.name)
        except BrokerError as error:
            # Somebody came at the last moment.
            log.info("%s stays: %s", topic.name, error)
