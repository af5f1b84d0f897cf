"""A subscription's and a consumer's figures in the shape of Pulsar's SubscriptionStats and ConsumerStats JSON."""

from __future__ import annotations

from typing import Any

from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.dispatch.entry_buckets import EntryBucketDispatcher
from anabranch.broker.dispatch.key_shared import KeySharedDispatcher
from anabranch.broker.policy.written_time import written_time
from anabranch.broker.subscription.subscription import Subscription

# There are no filters here, and throttling is not counted by the limit that caused it.
_NEVER_COUNTED = {
    "filterProcessedMsgCount": 0,
    "filterAcceptedMsgCount": 0,
    "filterRejectedMsgCount": 0,
    "filterRescheduledMsgCount": 0,
    "dispatchThrottledMsgEventsBySubscriptionLimit": 0,
    "dispatchThrottledBytesEventsBySubscriptionLimit": 0,
    "dispatchThrottledMsgEventsByTopicLimit": 0,
    "dispatchThrottledBytesEventsByTopicLimit": 0,
    "dispatchThrottledMsgEventsByBrokerLimit": 0,
    "dispatchThrottledBytesEventsByBrokerLimit": 0,
    "delayedMessageIndexSizeInBytes": 0,
    "drainingHashesCount": 0,
    "drainingHashesClearedTotal": 0,
    "drainingHashesUnackedMessages": 0,
}


def subscription_stats(subscription: Subscription) -> dict[str, Any]:
    consumers = subscription.consumers
    backlog = 0 if subscription.is_drained else subscription.backlog_messages()
    rates = [consumer.rates for consumer in consumers]
    stats: dict[str, Any] = {
        **_NEVER_COUNTED,
        "msgRateOut": sum(rate[0] for rate in rates),
        "msgThroughputOut": sum(rate[1] for rate in rates),
        "bytesOutCounter": subscription.bytes_out,
        "msgOutCounter": subscription.messages_out,
        "msgRateRedeliver": sum(rate[2] for rate in rates),
        "messageAckRate": sum(rate[3] for rate in rates),
        "chunkedMessageRate": 0.0,
        "msgBacklog": backlog,
        "backlogSize": -1,
        "earliestMsgPublishTimeInBacklog": 0,
        "msgBacklogNoDelayed": backlog,
        "blockedSubscriptionOnUnackedMsgs": False,
        "msgDelayed": 0,
        "msgInReplay": 0,
        "unackedMessages": 0,
        "type": subscription.type_name,
        "msgRateExpired": 0.0,
        "msgExpired": subscription.messages_expired,
        "totalMsgExpired": subscription.messages_expired,
        "lastExpireTimestamp": subscription.last_expired_ms,
        "lastConsumedFlowTimestamp": max((c.last_flow_ms for c in consumers), default=0),
        "lastConsumedTimestamp": max((c.last_sent_ms for c in consumers), default=0),
        "lastAckedTimestamp": max((c.last_acked_ms for c in consumers), default=0),
        "lastMarkDeleteAdvancedTimestamp": subscription.last_advanced_ms,
        "consumers": [consumer_stats(consumer) for consumer in consumers],
        "isDurable": subscription.is_durable,
        "isReplicated": False,
        "allowOutOfOrderDelivery": False,
        "consumersAfterMarkDeletePosition": {},
        "nonContiguousDeletedMessagesRanges": subscription.cursor.ranges,
        "nonContiguousDeletedMessagesRangesSerializedSize": 0,
        "subscriptionProperties": subscription.properties,
        "durable": subscription.is_durable,
        "replicated": False,
    }
    if subscription.dispatcher is not None and consumers:
        stats.update(subscription.dispatcher.stats())
        if isinstance(subscription.dispatcher, KeySharedDispatcher):
            ranges = subscription.dispatcher.key_ranges()
            for consumer, figures in zip(consumers, stats["consumers"], strict=True):
                figures["keyHashRangeArrays"] = [list(edges) for edges in ranges.get(consumer, [])]
                figures["keyHashRanges"] = [f"[{start}, {end}]" for start, end in ranges.get(consumer, [])]
        if isinstance(subscription.dispatcher, EntryBucketDispatcher):
            buckets = subscription.dispatcher.ranges()
            for consumer, figures in zip(consumers, stats["consumers"], strict=True):
                mine = [(one.start, one.end) for one in buckets.get(consumer, ())]
                figures["keyHashRangeArrays"] = [list(edges) for edges in mine]
                figures["keyHashRanges"] = [f"[{start}, {end}]" for start, end in mine]
    stats["msgBacklogNoDelayed"] = max(0, backlog - stats["msgDelayed"])
    if subscription.error is not None:
        # This field is not Pulsar's: the reason why dispatch has stopped.
        stats["dispatchError"] = subscription.error
    return stats


def consumer_stats(consumer: AttachedConsumer) -> dict[str, Any]:
    """Pulsar's ConsumerStats JSON."""
    messages, size, redelivered, acked = consumer.rates
    return {
        "msgRateOut": messages,
        "msgThroughputOut": size,
        "bytesOutCounter": consumer.bytes_out,
        "msgOutCounter": consumer.messages_out,
        "msgRateRedeliver": redelivered,
        "messageAckRate": acked,
        "chunkedMessageRate": 0.0,
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked,
        "avgMessagesPerEntry": round(consumer.messages_out / consumer.entries_out)
        if consumer.entries_out
        else 0,
        "blockedConsumerOnUnackedMsgs": consumer.is_blocked,
        "lastAckedTimestamp": consumer.last_acked_ms,
        "lastConsumedTimestamp": consumer.last_sent_ms,
        "lastConsumedFlowTimestamp": consumer.last_flow_ms,
        "firstMessagesSentTimestamp": consumer.first_sent_ms,
        "firstConsumedFlowTimestamp": consumer.first_flow_ms,
        "address": consumer.address,
        "lastAckedTime": written_time(consumer.last_acked_ms),
        "lastConsumedTime": written_time(consumer.last_sent_ms),
        "drainingHashesCount": 0,
        "drainingHashesClearedTotal": 0,
        "drainingHashesUnackedMessages": 0,
        "connectedSince": written_time(consumer.connected_ms),
        "clientVersion": consumer.client_version,
        "metadata": consumer.metadata,
    }
