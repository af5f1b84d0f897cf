"""A classic topic for the page: its partitions, and how far each subscription is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from anabranch.broker.subscription.subscription import Subscription
from anabranch.broker.topic.topic import Topic
from anabranch.broker.ui.parts import ClassicCursor, ClassicPart
from anabranch.broker.ui.sources import PageSources
from anabranch.model.names import TopicName


def classic_parts(sources: PageSources, name: TopicName) -> list[ClassicPart]:
    """The partitions that are open here, and those whose backlogs are remembered."""
    found = [_part(topic) for opened, topic in sources.loaded().items() if opened.base == name]
    found += [
        ClassicPart(
            unopened.partition_index,
            {subscription: ClassicCursor(backlog) for subscription, backlog in waiting.items()},
        )
        for unopened, waiting in sources.recorder.unopened().items()
        if unopened.base == name
    ]
    return found


def classic_figures(parts: Iterable[ClassicPart]) -> dict[str, Any]:
    """The topic's JSON for the page: `parts` by partition, and `subscriptions` with all partitions together."""
    known = sorted(parts, key=lambda part: part.partition)
    cursors: dict[str, list[ClassicCursor]] = {}
    for part in known:
        for name, cursor in part.subscriptions.items():
            cursors.setdefault(name, []).append(cursor)
    return {
        "parts": [
            {
                "partition": part.partition,
                "storage": part.storage,
                "producers": part.producers,
                "msgRateIn": round(part.msg_rate_in, 2),
                "msgRateOut": round(part.msg_rate_out, 2),
                "backlog": sum(cursor.backlog for cursor in part.subscriptions.values()),
            }
            for part in known
        ],
        "subscriptions": [_subscription(name, of_name) for name, of_name in sorted(cursors.items())],
    }


def _part(topic: Topic) -> ClassicPart:
    subscriptions = {name: _cursor(one) for name, one in topic.subscriptions.items()}
    return ClassicPart(
        topic.name.partition_index,
        subscriptions,
        topic.log.size_bytes,
        len(topic.producers),
        topic.rates_in[0],
        sum(cursor.msg_rate_out for cursor in subscriptions.values()),
    )


def _cursor(subscription: Subscription) -> ClassicCursor:
    consumers = subscription.consumers
    return ClassicCursor(
        0 if subscription.is_drained else subscription.backlog_messages(),
        # Nothing before the first consumer has come.
        subscription.type_name.lower().replace("_", " ") if subscription.kind >= 0 else "",
        sum(consumer.rates[0] for consumer in consumers),
        sum(consumer.unacked for consumer in consumers),
        [consumer.name for consumer in consumers],
    )


def _subscription(name: str, cursors: list[ClassicCursor]) -> dict[str, Any]:
    # A consumer of a partitioned topic is attached to each partition.
    consumers = sorted({consumer for cursor in cursors for consumer in cursor.consumers})
    return {
        "name": name,
        "kind": next((cursor.kind for cursor in cursors if cursor.kind), ""),
        "backlog": sum(cursor.backlog for cursor in cursors),
        "unacked": sum(cursor.unacked for cursor in cursors),
        "msgRateOut": round(sum(cursor.msg_rate_out for cursor in cursors), 2),
        "consumerCount": len(consumers),
        "consumers": [{"name": one, "connected": True, "segments": []} for one in consumers],
    }
