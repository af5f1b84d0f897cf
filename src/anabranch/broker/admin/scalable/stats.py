"""A scalable topic's figures in the form of Pulsar's ScalableTopicStats JSON, with additions.

Pulsar has counts, each segment's name and state, and each subscription's number of consumers. Ours adds the layout,
rates, storage, backlog and entry buckets of every segment, each subscription's backlog and its consumers with their
segments, the operation under way, the controller, how producers route their keys and what to do if they disagree, and
for automatic scaling the last load reported by each segment's owner, the policy that applies and the last decision. A
segment whose owner did not answer has no figures and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from anabranch.broker.admin.scalable.auto_scale_json import load_json, stats_part
from anabranch.controller.autoscaler import Explanation
from anabranch.controller.ports import SegmentStatus
from anabranch.controller.service import ConsumerStats, SubscriptionStats, TopicStats
from anabranch.model.key_routing import KeysSeen, together
from anabranch.model.names import TopicName
from anabranch.model.scalable import ReshapePlan
from anabranch.model.segments import Segment


def stats_json(topic: TopicName, stats: TopicStats, scaling: Explanation | None = None) -> dict[str, Any]:
    """`scaling` is None for a classic topic, which does not split or merge."""
    layout, plan = stats.topic.layout, stats.topic.plan
    known = [status for status in stats.segments.values() if status is not None]
    return {
        "epoch": layout.epoch,
        "totalSegments": len(layout.segments),
        "activeSegments": len(layout.active),
        "sealedSegments": len(layout.sealed),
        **_figures(known),
        "controller": stats.leader,
        "operation": None if plan is None else _operation(plan),
        "routing": _routing(together(_active_keys(stats))),
        "autoScale": None if scaling is None else stats_part(scaling),
        "segments": {
            str(segment.id): _segment(topic, segment, stats.segments.get(segment.id))
            | {"load": load_json(scaling.load.get(segment.id)) if scaling is not None else None}
            for segment in layout.segments.values()
        },
        "subscriptions": {
            name: _subscription(name, subscription, known)
            for name, subscription in sorted(stats.subscriptions.items())
        },
    }


def _figures(segments: Iterable[SegmentStatus]) -> dict[str, Any]:
    """The figures of one segment, or the sums over several."""
    segments = list(segments)
    cursors = [cursor for segment in segments for cursor in segment.subscriptions.values()]
    return {
        "msgRateIn": sum(segment.msg_rate_in for segment in segments),
        "msgThroughputIn": sum(segment.msg_throughput_in for segment in segments),
        "msgRateOut": sum(cursor.msg_rate_out for cursor in cursors),
        "msgThroughputOut": sum(cursor.msg_throughput_out for cursor in cursors),
        "storageSize": sum(segment.storage_bytes for segment in segments),
    }


def _active_keys(stats: TopicStats) -> Iterator[KeysSeen]:
    """The keys of active segments. Sealed segments are left out: their routing can no longer be corrected."""
    for segment in stats.topic.layout.active:
        if (status := stats.segments.get(segment.id)) is not None:
            yield status.keys


def _routing(keys: KeysSeen) -> dict[str, Any]:
    return {
        "kind": keys.routing,
        "keysByHigh": keys.by_high,
        "keysByLow": keys.by_low,
        "keysByNeither": keys.by_neither,
        "keysOutside": keys.outside,
        "advice": keys.advice,
    }


def _operation(plan: ReshapePlan) -> dict[str, Any]:
    return {
        "kind": plan.kind.value,
        "parentIds": list(plan.parents),
        "childIds": [child.id for child in plan.children],
    }


def _segment(topic: TopicName, segment: Segment, status: SegmentStatus | None) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": str(segment.topic(topic)),
        "state": segment.state.value,
        "hashRange": {"start": segment.range.start, "end": segment.range.end},
        "parentIds": list(segment.parents),
        "childIds": list(segment.children),
        "createdAtMs": segment.created_ms,
        "sealedAtMs": segment.sealed_ms,
        "deleting": segment.is_deleting,
        "entryBuckets": segment.bucket_count,
        "available": status is not None,
    }
    if status is None:
        return described
    return described | {
        **_figures([status]),
        "producerCount": status.producers,
        "keysOutside": status.keys.outside,
        "unstampedEntries": status.unstamped_entries,
        "unstampedProducer": status.unstamped_producer,
        "subscriptions": {
            name: {
                "msgBacklog": cursor.backlog,
                "drained": cursor.is_drained,
                "consumerCount": cursor.consumers,
                "msgRateOut": cursor.msg_rate_out,
                "msgThroughputOut": cursor.msg_throughput_out,
            }
            for name, cursor in sorted(status.subscriptions.items())
        },
    }


def _subscription(
    name: str, subscription: SubscriptionStats, segments: Iterable[SegmentStatus]
) -> dict[str, Any]:
    cursors = [segment.subscriptions[name] for segment in segments if name in segment.subscriptions]
    # A consumer that the controller does not know is attached to every segment: the largest count is their number.
    attached = max((cursor.consumers for cursor in cursors), default=0)
    return {
        "type": subscription.record.kind.value,
        "consumerCount": len(subscription.consumers) or attached,
        "msgBacklog": sum(cursor.backlog for cursor in cursors),
        "msgRateOut": sum(cursor.msg_rate_out for cursor in cursors),
        "msgThroughputOut": sum(cursor.msg_throughput_out for cursor in cursors),
        "deleting": subscription.record.is_deleting,
        "consumers": [_consumer(consumer) for consumer in subscription.consumers],
    }


def _consumer(consumer: ConsumerStats) -> Mapping[str, Any]:
    return {
        "consumerName": consumer.name,
        "type": consumer.kind.value,
        "connected": consumer.is_connected,
        "assignedSegments": list(consumer.assigned),
        "assignedBuckets": {str(number): list(buckets) for number, buckets in consumer.shares.items()},
    }
