"""What is known about a topic's automatic scaling, as JSON: a part for its stats, and all for `explain`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from anabranch.autoscale.load import LoadReport
from anabranch.autoscale.policy import Resolved, ScalePolicy, problems
from anabranch.autoscale.verdict import Merge, Rebucket, Split, Verdict
from anabranch.controller.autoscaler import Explanation
from anabranch.controller.core.group import ConsumerGroup
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import TopicName
from anabranch.model.scalable import segment_json
from anabranch.model.segments import Segment

HOUR_MS = 3_600_000
UNEXPLAINED = "no automatic decision about it is stored, so an operator asked for it"


def resolved_json(resolved: Resolved) -> dict[str, Any]:
    """Each field with its value and the level it comes from, and the faults of the policy as a whole."""
    return {"policy": resolved.to_json(), "problems": problems(resolved.policy)}


def stats_part(found: Explanation) -> dict[str, Any]:
    """For a topic's stats: the policy, and the last decision."""
    latest = found.decisions.latest
    return {
        "policy": found.resolved.to_json(),
        "problems": list(found.problems),
        "lastDecision": None if latest is None else latest.to_json(),
    }


def load_json(report: LoadReport | None) -> dict[str, Any] | None:
    if report is None:
        return None
    # Told only where it is so: a segment that one consumer at a time can read, whatever its entry buckets.
    unstamped = {"unstamped": True} if report.load.is_unstamped else {}
    return {**report.load.to_json(), **unstamped, "modifiedAtMs": report.modified_ms}


def explained_json(
    topic: TopicName, layout: SegmentLayout, found: Explanation, groups: Mapping[str, ConsumerGroup]
) -> dict[str, Any]:
    """`groups`: the ordered consumers, by subscription."""
    decisions = found.decisions.to_json()
    return {
        "topic": str(topic),
        "nowMs": found.now_ms,
        "activeSegments": len(layout.active),
        "policy": found.resolved.to_json(),
        "problems": list(found.problems),
        "now": _verdict_json(found.verdict),
        "segments": {
            str(segment.id): segment_json(segment) | _heat(found.load.get(segment.id), found.resolved.policy)
            for segment in layout.segments.values()
        },
        "shares": [
            {"segment": number, "subscription": name, "buckets": {c: list(b) for c, b in held.items()}}
            for name, group in sorted(groups.items())
            for number, held in group.sharers.items()
        ],
        "decisions": sorted(
            [*decisions, *_by_hand(layout, decisions, found.now_ms)], key=lambda d: d["atMs"]
        ),
    }


def _heat(report: LoadReport | None, policy: ScalePolicy) -> dict[str, Any]:
    """The load, and its ratio to the split limit that it is closest to."""
    limits = policy.split
    heat = None if report is None or min(limits.rates) <= 0 else report.load.heat(limits)
    return {"load": load_json(report), "heat": heat}


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    match verdict:
        case Split():
            kind, segments = "split", [verdict.segment]
        case Merge():
            kind, segments = "merge", [verdict.one, verdict.other]
        case Rebucket():
            kind, segments = "rebucket", [verdict.segment]
        case _:
            kind, segments = "stay", []
    return {"kind": kind, "segments": segments, "because": verdict.because}


def _by_hand(
    layout: SegmentLayout, decisions: Iterable[Mapping[str, Any]], now_ms: int
) -> Iterable[dict[str, Any]]:
    """Operations of the last hour that the layout shows and that no decision made."""
    told = {(d["kind"], tuple(sorted(d["segments"]))) for d in decisions}
    for kind, parents, at_ms in sorted(set(_operations(layout)), key=lambda each: each[2]):
        if at_ms >= now_ms - HOUR_MS and (kind, parents) not in told:
            yield {
                "atMs": at_ms,
                "untilMs": at_ms,
                "kind": kind,
                "segments": list(parents),
                "rule": "manual",
                "because": UNEXPLAINED,
                "times": 1,
            }


def _operations(layout: SegmentLayout) -> Iterable[tuple[str, tuple[int, ...], int]]:
    """The operations that the layout still shows: (kind, parents, time)."""
    for segment in layout.segments.values():
        if segment.parents and not _is_migrated(layout, segment):
            kind = "merge" if len(segment.parents) > 1 else "split"
            if layout.has_replaced(segment):
                kind = "rebucket"
            yield kind, tuple(sorted(segment.parents)), segment.created_ms


def _is_migrated(layout: SegmentLayout, segment: Segment) -> bool:
    """Created from a classic topic, which is neither a split nor a merge."""
    return any(p in layout.segments and layout.segments[p].classic_topic for p in segment.parents)
