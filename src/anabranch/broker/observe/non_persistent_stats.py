"""Figures of a non-persistent topic in the shape of Pulsar's NonPersistentTopicStats JSON."""

from __future__ import annotations

from typing import Any

from anabranch.broker.non_persistent.subscription import NonPersistentSubscription
from anabranch.broker.non_persistent.topic import NonPersistentTopic
from anabranch.broker.observe.subscription_stats import consumer_stats
from anabranch.broker.observe.topic_stats import NEVER_COMPACTED, NEVER_COUNTED, publisher_stats


def non_persistent_stats(topic: NonPersistentTopic, http_url: str) -> dict[str, Any]:
    """Pulsar's NonPersistentTopicStats JSON."""
    subscriptions = {name: _subscription_stats(one) for name, one in topic.subscriptions.items()}
    rate, throughput = topic.rates_in
    messages, size = topic.out_before
    return {
        **NEVER_COUNTED,
        "msgRateIn": rate,
        "msgThroughputIn": throughput,
        "msgRateOut": sum(one["msgRateOut"] for one in subscriptions.values()),
        "msgThroughputOut": sum(one["msgThroughputOut"] for one in subscriptions.values()),
        "bytesInCounter": topic.bytes_in,
        "msgInCounter": topic.messages_in,
        "bytesOutCounter": size + sum(one["bytesOutCounter"] for one in subscriptions.values()),
        "msgOutCounter": messages + sum(one["msgOutCounter"] for one in subscriptions.values()),
        "averageMsgSize": throughput / rate if rate else 0.0,
        "msgDropRate": sum(one["msgDropRate"] for one in subscriptions.values()),
        "storageSize": 0,
        "backlogSize": 0,
        # A publisher's own messages are never dropped before they are passed to subscriptions.
        "publishers": [{**publisher_stats(one), "msgDropRate": 0.0} for one in topic.producers.values()],
        "waitingPublishers": topic.attached.waiting,
        "subscriptions": subscriptions,
        "backlogQuotaLimitSize": -1,
        "backlogQuotaLimitTime": -1,
        "oldestBacklogMessageAgeSeconds": -1,
        "earliestMsgPublishTimeInBacklogs": 0,
        "nonContiguousDeletedMessagesRanges": 0,
        "topicCreationTimeStamp": topic.created_ms,
        "lastPublishTimeStamp": 0,
        "compaction": NEVER_COMPACTED,
        "topicEpoch": topic.attached.epoch,
        "ownerBroker": http_url.partition("://")[2],
    }


def _subscription_stats(subscription: NonPersistentSubscription) -> dict[str, Any]:
    """Pulsar's NonPersistentSubscriptionStats JSON."""
    consumers = [consumer_stats(consumer) for consumer in subscription.consumers]
    return {
        "msgRateOut": sum(one["msgRateOut"] for one in consumers),
        "msgThroughputOut": sum(one["msgThroughputOut"] for one in consumers),
        "bytesOutCounter": subscription.bytes_out,
        "msgOutCounter": subscription.messages_out,
        "msgDropRate": subscription.drop_rate,
        # This field is not Pulsar's.
        "msgDropCounter": subscription.messages_dropped,
        "msgBacklog": 0,
        "type": subscription.type_name,
        "activeConsumerName": subscription.active.name if subscription.active is not None else "",
        "consumers": consumers,
        "isDurable": subscription.is_durable,
        "subscriptionProperties": subscription.properties,
    }
