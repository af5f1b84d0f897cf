"""An hour in the life of a topic, played by the real `decide` over simulated time: what a broker would answer the page.

Loads are a function of hash and time, so that splits divide them and merges add them up, as keys do.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from anabranch.autoscale.decide import Merge, Observation, Rebucket, Split, decide
from anabranch.autoscale.decisions import DecisionHistory
from anabranch.autoscale.load import Load, LoadReport
from anabranch.autoscale.policy import DEFAULT, ScalePolicy, resolve
from anabranch.autoscale.reporting import should_write
from anabranch.model.buckets import ONE_BUCKET, BucketBudget
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import Segment, SegmentId

HOUR_MS = 3_600_000
SAMPLE_MS = 10_000
BUCKETS = 256
BYTES_EACH = 640.0

# Messages per second of one of 256 parts of the hash space (0 to 1) at a moment of the hour (0 to 1).
Traffic = Callable[[float, float], float]


def tide(place: float, at: float) -> float:
    """Rises, falls and rises again, with a bulge in the upper third and a busy spell in the lower quarter."""
    wave = math.pow(0.5 - 0.5 * math.cos(2 * math.pi * (at * 1.4 + 0.02)), 1.6)
    bulge = 1 + 1.7 * math.exp(-(((place - 0.3) / 0.09) ** 2))
    spell = 2.6 * math.exp(-(((place - 0.83) / 0.05) ** 2)) * math.exp(-(((at - 0.62) / 0.16) ** 2))
    return 150 * (0.025 + wave) * bulge + 120 * spell


def flood(place: float, at: float) -> float:
    """Grows all the time, until the limit of 64 segments."""
    return (
        (330 + 2000 * at)
        * (1 + 0.35 * math.sin(place * 9 + at * 4))
        * (1 + 0.08 * math.sin(at * 160 + place * 31))
    )


@dataclass
class Played:
    """What happened, in the shapes of the page's API."""

    layout: SegmentLayout
    segments: dict[SegmentId, Segment]
    samples: dict[SegmentId, list[tuple[float, ...]]] = field(default_factory=dict)
    totals: list[tuple[float, ...]] = field(default_factory=list)
    history: DecisionHistory = field(default_factory=DecisionHistory)


def play(
    traffic: Traffic,
    policy: ScalePolicy = DEFAULT,
    *,
    segments: int = 1,
    end_ms: int,
    seed: int = 7,
    consumers: Callable[[float], int] = lambda at: 3,
    budget: BucketBudget | None = None,
) -> Played:
    """From an hour and five minutes before `end_ms` until then, with a look every ten seconds. With a budget of entry
    buckets, consumers share segments."""
    chance = random.Random(seed)
    begin_ms = end_ms - HOUR_MS - 300_000
    layout = SegmentLayout.initial(segments, begin_ms - 600_000, budget=budget or ONE_BUCKET)
    played = Played(layout, dict(layout.segments))
    reports: dict[SegmentId, LoadReport] = {}
    backlog = 0.0
    for now_ms in range(begin_ms, end_ms + 1, SAMPLE_MS):
        at = (now_ms - (end_ms - HOUR_MS)) / HOUR_MS
        whole = 0.0
        for segment in layout.active:
            rate = _rate(traffic, segment, max(0.0, at)) * chance.uniform(0.97, 1.03)
            whole += rate
            load = Load(rate, rate * BYTES_EACH, rate * 1.9, rate * 1.9 * BYTES_EACH)
            before = reports.get(segment.id)
            if should_write(load, None if before is None else before.load, policy, 0.25):
                reports[segment.id] = LoadReport(load, now_ms)
            sample = (now_ms, *(round(one, 1) for one in load.rates))
            played.samples.setdefault(segment.id, []).append(sample)
        keeping_up = 0.999 + 0.012 * math.sin(at * 14)
        backlog = max(chance.uniform(20, 90), backlog + whole * (1 - keeping_up) * SAMPLE_MS / 1000)
        out = whole * keeping_up
        played.totals.append((now_ms, whole, out, whole * BYTES_EACH, out * BYTES_EACH, round(backlog)))
        seen = Observation(layout, reports, {"billing": consumers(at)}, now_ms)
        if budget is not None:
            capacity = {"billing": {s.id: s.bucket_count for s in layout.active}}
            seen = replace(seen, capacity=capacity, budget=budget, last_left_ms=begin_ms)
        verdict = decide(seen, policy)
        played.history = played.history.add(verdict, now_ms)
        match verdict:
            case Split(number, _, _, lopsided):
                layout = layout.split(number, now_ms, lopsided)
            case Merge(one, other):
                layout = layout.merge(one, other, now_ms, budget or ONE_BUCKET)
            case Rebucket(number, buckets):
                layout = layout.rebucket(number, buckets, now_ms)
        played.segments.update(layout.segments)
    played.layout = layout
    return played


def _rate(traffic: Traffic, segment: Segment, at: float) -> float:
    size = 65536 // BUCKETS
    total = 0.0
    for bucket in range(segment.range.start // size, segment.range.end // size + 1):
        low, high = max(segment.range.start, bucket * size), min(segment.range.end + 1, (bucket + 1) * size)
        total += traffic((low + high) / 131072, at) * (high - low) / size
    return total


# Quick to merge, so that an hour has both.
NIMBLE = replace(DEFAULT, merge_window_ms=90_000, merge_cooldown_ms=120_000)

NAMES = ["billing-eu-1", "billing-eu-2", "billing-us-1", "billing-us-2", "billing-ap-1", "billing-ap-2"]


def subscriptions(layout: SegmentLayout, consumers: int) -> list[dict[str, Any]]:
    names = [NAMES[i] if i < len(NAMES) else f"billing-{i + 1:02d}" for i in range(consumers)]
    active = [segment.id for segment in layout.active]
    share = [
        active[i * len(active) // consumers : (i + 1) * len(active) // consumers] for i in range(consumers)
    ]
    return [
        {
            "name": "billing",
            "kind": "STREAM",
            "backlog": 4210,
            "msgRateOut": 9000.0,
            "consumerCount": consumers,
            "consumers": [
                {"name": name, "connected": i != 1, "segments": share[i]} for i, name in enumerate(names)
            ],
        },
        {
            "name": "audit",
            "kind": "QUEUE",
            "backlog": 120,
            "msgRateOut": 900.0,
            "consumerCount": 2,
            "consumers": [],
        },
    ]


def answer(
    played: Played, *, end_ms: int, policy: ScalePolicy = DEFAULT, consumers: int = 3, name: str = "orders"
) -> Any:
    """The whole first answer about the topic."""
    begin_ms = end_ms - HOUR_MS
    shown = [s for s in played.segments.values() if s.is_active or s.sealed_ms >= begin_ms]
    return {
        "now": end_ms,
        "topic": f"topic://public/default/{name}",
        "kind": "scalable",
        "layout": {
            "id": f"1.{played.layout.epoch}",
            "segments": [
                {
                    "id": s.id,
                    "start": s.range.start,
                    "end": s.range.end,
                    "created": s.created_ms,
                    "sealed": s.sealed_ms,
                    "parents": list(s.parents),
                    "children": list(s.children),
                    "buckets": s.bucket_count,
                    "classic": bool(s.classic_topic),
                    "gone": False,
                }
                for s in shown
            ],
        },
        "samples": {
            str(number): [one for one in samples if one[0] >= begin_ms]
            for number, samples in played.samples.items()
            if samples[-1][0] >= begin_ms
        },
        "totals": [one for one in played.totals if one[0] >= begin_ms],
        "limits": {"split": policy.split.to_json(), "merge": policy.merge.to_json()},
        "windowMs": 60_000,
        "policy": resolve(policy, None, None).to_json(),
        "problems": [],
        "decisions": [
            {
                "at": d.at_ms,
                "until": d.until_ms,
                "kind": d.kind.value,
                "segments": list(d.segments),
                "rule": d.rule,
                "because": d.because,
                "times": d.times,
            }
            for d in played.history.since(begin_ms)
        ],
        "segments": {
            str(s.id): {
                "storage": 40_000_000 + s.id * 777_777,
                "producers": 4,
                "keysOutside": 0,
                "backlog": {"billing": 140 + 37 * s.id, "audit": 3},
            }
            for s in played.layout.active
        },
        "subscriptions": subscriptions(played.layout, consumers),
        "operation": None,
        "controller": "pulsar://localhost:6650",
        "may": {"change": True, "because": ""},
    }


def tidal(end_ms: int) -> Any:
    """Splits and merges on two tides."""
    return answer(play(tide, NIMBLE, end_ms=end_ms), end_ms=end_ms, policy=NIMBLE)


def crowded(end_ms: int) -> Any:
    """A quiet topic whose consumers become many, and share it."""
    played = play(
        lambda place, at: 0.4 * tide(place, at) / (1 + 60 * at),
        NIMBLE,
        end_ms=end_ms,
        consumers=lambda at: 3 if at < 0.35 else 7 if at < 0.7 else 20,
        budget=BucketBudget(4),
    )
    return answer(played, end_ms=end_ms, policy=NIMBLE, consumers=20, name="crowd")


def flooded(end_ms: int) -> Any:
    """64 active segments and an hour of history: the most that the page is to draw at full speed."""
    policy = DEFAULT
    played = play(flood, policy, segments=8, end_ms=end_ms)
    return answer(played, end_ms=end_ms, policy=policy, consumers=16, name="flood")


if __name__ == "__main__":
    import time

    now = int(time.time() * 1000)
    for each in (tide, flood):
        played = play(each, NIMBLE, end_ms=now, segments=8 if each is flood else 1)
        kinds = [d.kind.value for d in played.history.decisions]
        print(
            each.__name__,
            len(played.layout.active),
            "active;",
            kinds.count("split"),
            "splits;",
            kinds.count("merge"),
            "merges;",
            len(json.dumps(answer(played, end_ms=now))),
            "bytes",
        )
