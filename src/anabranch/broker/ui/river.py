"""One topic for the page: its segments of the last hour, their traffic, the decisions, and the consumers.

The page asks again every second and says what it has: samples are sent only from then on, the layout only if it
changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.autoscale.decisions import Decision
from anabranch.autoscale.load import Load
from anabranch.broker.scalable.load.recent import LoadHistory
from anabranch.broker.ui.classic import classic_figures, classic_parts
from anabranch.broker.ui.recorder import KEPT_MS, Recorder
from anabranch.broker.ui.sources import PageSources
from anabranch.controller.core.errors import TopicMissing
from anabranch.controller.ports import SegmentStatus
from anabranch.controller.service import SubscriptionStats, TopicStats
from anabranch.model.names import Domain, TopicName
from anabranch.model.scalable import ScalableTopic
from anabranch.model.segments import WHOLE, HashRange, Segment, SegmentId


async def topic_json(sources: PageSources, topic: TopicName, since_ms: int, layout: str) -> dict[str, Any]:
    """`topic` is a `topic://`, which may be a classic topic. TopicMissing if it is neither."""
    assert sources.scalable is not None
    assert sources.scaling is not None
    record = await sources.scalable.get(topic)
    if record is None:
        return await classic_json(sources, topic, since_ms)
    stats = await sources.scalable.stats(topic)
    explained = await sources.scaling.scaler.explain(topic)
    policy = explained.resolved.policy
    now_ms = sources.now_ms()
    plan = stats.topic.plan
    return {
        "now": now_ms,
        "topic": str(topic),
        "kind": "scalable",
        "layout": _layout(sources.recorder, topic, stats.topic, layout, now_ms),
        "samples": loads(sources.scaling.reporter.history, topic, since_ms),
        "totals": topic_totals(sources.recorder, topic, since_ms),
        "limits": {"split": policy.split.to_json(), "merge": policy.merge.to_json()},
        # The time over which rates are averaged before they are compared with the limits.
        "windowMs": round(sources.config.scalable_topic_load_report_window * 1000),
        "policy": explained.resolved.to_json(),
        "problems": list(explained.problems),
        "decisions": [_decision(one) for one in explained.decisions.since(now_ms - KEPT_MS)],
        "segments": {
            str(number): _figures(status) for number, status in stats.segments.items() if status is not None
        },
        "subscriptions": _subscriptions(stats),
        "operation": None if plan is None else {"kind": plan.kind.value, "parents": list(plan.parents)},
        "controller": stats.leader,
    }


async def classic_json(sources: PageSources, topic: TopicName, since_ms: int) -> dict[str, Any]:
    name = TopicName(Domain.PERSISTENT, topic.namespace, topic.local)
    partitions = await sources.resources.partitions(name)
    if not partitions and not await sources.resources.topic_exists(name):
        raise TopicMissing(
            f"There is no topic {topic.local} in {topic.namespace}. "
            f"`anabranch topics create {topic} --scalable` makes it"
        )
    return {
        "now": sources.now_ms(),
        "topic": str(name),
        "kind": "classic",
        "partitions": partitions,
        "totals": topic_totals(sources.recorder, name, since_ms),
        **classic_figures(classic_parts(sources, name)),
    }


def loads(history: LoadHistory, topic: TopicName, since_ms: int) -> dict[str, list[list[float]]]:
    """The samples after that time, by segment: time and rates."""
    return {
        str(number): [[sample.at_ms, *_rounded(sample.load)] for sample in samples]
        for number, samples in history.since(topic, since_ms + 1).items()
    }


def _rounded(load: Load) -> list[float]:
    """Three more digits than the page can show, instead of sixteen."""
    return [round(rate, 2) for rate in load.rates]


def topic_totals(recorder: Recorder, topic: TopicName, since_ms: int) -> list[list[float]]:
    return [[round(value, 2) for value in total] for total in recorder.totals(topic).since(since_ms)]


def _layout(
    recorder: Recorder, topic: TopicName, record: ScalableTopic, known: str, now_ms: int
) -> dict[str, Any] | None:
    """The layout; None if the page has it already."""
    found = f"{record.generation}.{record.layout.epoch}"
    if found == known:
        return None
    segments = recorder.layouts.segments(topic, record, now_ms)
    return {
        "id": found,
        "segments": [one | {"gone": one["id"] not in record.layout.segments} for one in drawn(segments)],
    }


def drawn(segments: Sequence[Segment]) -> list[dict[str, Any]]:
    """The segments as the page draws them."""
    places = _places(segments)
    return [
        {
            "id": segment.id,
            "start": places[segment.id].start,
            "end": places[segment.id].end,
            "created": segment.created_ms,
            "sealed": segment.sealed_ms if segment.is_sealed else 0,
            "parents": list(segment.parents),
            "children": list(segment.children),
            "buckets": segment.bucket_count,
            "classic": bool(segment.classic_topic),
        }
        for segment in segments
    ]


def _places(segments: Sequence[Segment]) -> Mapping[SegmentId, HashRange]:
    """Where each segment is drawn. Partitions of a former classic topic each cover all hashes: they share the space
    evenly."""
    classic = [s.id for s in segments if s.classic_topic and s.range == WHOLE]
    shared = HashRange.even(len(classic)) if classic else []
    return {s.id: s.range for s in segments} | dict(zip(classic, shared, strict=True))


def _decision(decision: Decision) -> dict[str, Any]:
    return {
        "at": decision.at_ms,
        "until": decision.until_ms,
        "kind": decision.kind.value,
        "segments": list(decision.segments),
        "rule": decision.rule,
        "because": decision.because,
        "times": decision.times,
    }


def _figures(status: SegmentStatus) -> dict[str, Any]:
    return {
        "storage": status.storage_bytes,
        "producers": status.producers,
        "keysOutside": status.keys.outside,
        "backlog": {name: cursor.backlog for name, cursor in sorted(status.subscriptions.items())},
    }


def _subscriptions(stats: TopicStats) -> list[dict[str, Any]]:
    """Subscriptions with the most consumers first, as the most interesting ones."""
    found = [_subscription(name, one, stats) for name, one in sorted(stats.subscriptions.items())]
    return sorted(found, key=lambda s: (-max(len(s["consumers"]), s["consumerCount"]), s["name"]))


def _subscription(name: str, subscription: SubscriptionStats, stats: TopicStats) -> dict[str, Any]:
    cursors = [
        status.subscriptions[name]
        for status in stats.segments.values()
        if status is not None and name in status.subscriptions
    ]
    return {
        "name": name,
        "kind": subscription.record.kind.value,
        "backlog": sum(cursor.backlog for cursor in cursors),
        "msgRateOut": sum(cursor.msg_rate_out for cursor in cursors),
        # Consumers that the controller does not know read every segment.
        "consumerCount": max((cursor.consumers for cursor in cursors), default=0),
        "consumers": [
            {
                "name": consumer.name,
                "connected": consumer.is_connected,
                "segments": list(consumer.assigned),
            }
            for consumer in subscription.consumers
        ],
    }
