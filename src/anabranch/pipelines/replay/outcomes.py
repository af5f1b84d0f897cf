"""The cost of a policy for a topic: figures of a replay, classes of topics, costs, the Pareto front. Pure.

A policy is good if topics need few segments, if these are seldom overloaded, and if they are seldom split and merged.
Each aim works against the others, and the operator chooses their weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from anabranch.autoscale.load import Load
from anabranch.autoscale.policy import SPLIT_OVER
from anabranch.model.segments import HashRange
from anabranch.pipelines.replay.replay import Life, Replayed, ReplayedReshape
from anabranch.pipelines.replay.trace import BadTrace, Trace

HOUR_MS: Final = 3_600_000
FLAP_WITHIN_MS: Final = HOUR_MS
# Which figures are summed over topics, and of which the largest is kept.
SUMMED: Final = (
    "segment_hours",
    "hot_minutes",
    "over_minutes",
    "splits",
    "merges",
    "rebuckets",
    "flaps",
    "evaluations",
    "reports",
)


@dataclass(frozen=True, slots=True)
class PolicyOutcome:
    """The figures of one topic under one policy, or their sum over several topics."""

    segment_hours: float = 0.0
    # Minutes, summed over segments, in which a segment was over a split limit of its own policy;
    hot_minutes: float = 0.0
    # … or over the limits that are the same for all policies, which say how much load a segment can take.
    over_minutes: float = 0.0
    splits: int = 0
    merges: int = 0
    rebuckets: int = 0
    flaps: int = 0
    segments_max: int = 0
    evaluations: int = 0
    reports: int = 0

    @property
    def operations(self) -> int:
        return self.splits + self.merges + self.rebuckets


def outcome(trace: Trace, replayed: Replayed, own: Load, shared: Load = SPLIT_OVER) -> PolicyOutcome:
    """Sums up a replay. `own` are the policy's split limits, `shared` the limits that apply to every policy."""
    kinds = [decided.kind for decided in replayed.decisions]
    hot, over = overloaded_minutes(trace, replayed.lives, (own, shared))
    return PolicyOutcome(
        segment_hours=sum(life.until_ms - life.from_ms for life in replayed.lives) / HOUR_MS,
        hot_minutes=hot,
        over_minutes=over,
        splits=kinds.count("split"),
        merges=kinds.count("merge"),
        rebuckets=kinds.count("rebucket"),
        flaps=flaps(replayed.decisions),
        segments_max=max([trace.segments, *(decided.active for decided in replayed.decisions)]),
        evaluations=replayed.evaluations,
        reports=replayed.reports,
    )


def overloaded_minutes(trace: Trace, lives: Iterable[Life], limits: Sequence[Load]) -> list[float]:
    """For each of the limits, how long segments were over it: by the load of each sample, without any average.

    A sample belongs to the segment that exists when it ends.
    """
    columns = [np.array(one.rates)[:, None] for one in limits]
    samples = [0] * len(limits)
    for life in lives:
        first = (life.from_ms - trace.start_ms) // trace.step_ms + 1
        past = (life.until_ms - trace.start_ms) // trace.step_ms + 1
        if first >= past:
            continue
        rates = _rates(trace, life.span, first, past)
        most = rates.max(axis=1)
        for at, column in enumerate(columns):
            if (most > column[:, 0]).any():
                samples[at] += int((rates > column).any(axis=0).sum())
    return [count * trace.step_ms / 60_000 for count in samples]


def _rates(trace: Trace, span: HashRange, first: int, past: int) -> np.typing.NDArray[np.float64]:
    if past - first == trace.samples:
        return trace.rates(span)
    counts = trace.counts(trace.shares(span), first - 1, past)
    return np.diff(counts, axis=1) / (trace.step_ms / 1000)


def flaps(decisions: Iterable[ReplayedReshape], within_ms: int = FLAP_WITHIN_MS) -> int:
    """Operations that undo another one of the hour before: the split of a range that a merge has made, a merge of the
    two halves that a split has made, or a rebucket that takes back what another gave."""
    last: dict[tuple[HashRange, bool], ReplayedReshape] = {}
    count = 0
    for decided in decisions:
        of_buckets = decided.kind == "rebucket"
        before = last.get((decided.span, of_buckets))
        is_undone = before is not None and (
            before.rule != decided.rule if of_buckets else before.kind != decided.kind
        )
        if before is not None and is_undone:
            count += decided.at_ms - before.at_ms <= within_ms
        last[decided.span, of_buckets] = decided
    return count


# -- classes of topics


def classify(trace: Trace, limits: Load = SPLIT_OVER) -> str:
    """Classifies a topic by its load alone: recorded topics do not name their class.

    First by size: the load that a topic exceeds in 1 % of the time, divided by the load that a segment can take; then,
    if the load is large enough to matter, by shape.
    """
    heat = (trace.whole / np.array(limits.rates)[:, None]).max(axis=0)
    busy, mean = float(np.quantile(heat, 0.99)), float(heat.mean())
    if busy < COLD_UNDER:
        return "cold"
    size = "small" if busy < 1 else "medium" if busy < 8 else "large"
    if _hottest_share(trace) > HOT_KEY_SHARE:
        return f"{size}, hot key"
    return f"{size}, {'steady' if busy <= 1.3 * mean else 'varying' if busy <= 6 * mean else 'bursty'}"


COLD_UNDER: Final = 0.1  # A share of a segment's limit: as merge limits are to split limits.
HOT_KEY_SHARE: Final = 0.5
_PARTS: Final = HashRange.even(64)
SHAPES: Final = ("steady", "varying", "bursty", "hot key")
CLASSES: Final = ("cold", *(f"{size}, {shape}" for size in ("small", "medium", "large") for shape in SHAPES))


def _hottest_share(trace: Trace) -> float:
    """The share of the busiest 64th of the keys in the load at its highest."""
    if all(
        len(stream.keys.at) == 2 and stream.keys.at[1] - stream.keys.at[0] > 1024 for stream in trace.streams
    ):
        return 0.0
    top = int(trace.whole[0].argmax())
    amounts = [float(np.ptp(s.columns(top, top + 2)[0])) for s in trace.streams]
    total = sum(amounts)
    if not total:
        return 0.0
    parts = (sum(a * s.keys.share(p) for a, s in zip(amounts, trace.streams, strict=True)) for p in _PARTS)
    return max(parts) / total


# -- what it costs


@dataclass(frozen=True, slots=True)
class Weights:
    """The cost of one of each. By default in segment-hours: a minute of overload costs as much as half an hour of one
    more segment, an operation as a tenth of an hour, and a flap as one hour on top."""

    segment_hour: float = 1.0
    over_minute: float = 0.5
    operation: float = 0.1
    flap: float = 1.0

    @staticmethod
    def of(given: Mapping[str, float]) -> Weights:
        """Reads weights by name, with dashes: `over-minute`. BadTrace for invalid names or values."""
        names = {field.name.replace("_", "-"): field.name for field in fields(Weights)}
        for name, value in given.items():
            if name not in names:
                raise BadTrace(f"there is no cost {name!r}; there are {', '.join(names)}")
            if not value >= 0:
                raise BadTrace(f"a cost of {value:g} for {name}: it must not be negative")
        return Weights(**{names[name]: value for name, value in given.items()})

    def cost(self, one: PolicyOutcome) -> float:
        return (
            self.segment_hour * one.segment_hours
            + self.over_minute * one.over_minutes
            + self.operation * one.operations
            + self.flap * one.flaps
        )


def objectives(one: PolicyOutcome) -> tuple[float, float, float]:
    """The figures to minimise: segment-hours, minutes of overload, operations."""
    return one.segment_hours, one.over_minutes, float(one.operations)


def front(outcomes: Mapping[str, PolicyOutcome]) -> list[str]:
    """The policies that no other dominates (is better in one respect and at least as good in all), in the order
    given."""
    points = {name: objectives(one) for name, one in outcomes.items()}
    return [name for name, point in points.items() if not any(_beats(p, point) for p in points.values())]


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    pairs = list(zip(one, other, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


# How much another policy must save, as a share of the first one's cost, to be worth the change.
WORTH_IT: Final = 0.005


@dataclass(frozen=True, slots=True)
class Recommended:
    """The cheapest policy for a class of topics, and its savings against the first one."""

    topic_class: str
    topics: int
    policy: str
    cost: float
    cost_of_first: float


def recommend(
    by_class: Mapping[str, Mapping[str, PolicyOutcome]], topics: Mapping[str, int], weights: Weights
) -> list[Recommended]:
    """Recommends the first policy, unless another costs noticeably less: a change without gain is not worth its
    effort."""
    found = []
    for name in sorted(by_class, key=lambda c: CLASSES.index(c) if c in CLASSES else len(CLASSES)):
        costs = {policy: weights.cost(one) for policy, one in by_class[name].items()}
        first = next(iter(costs))
        best = min(costs, key=lambda policy: costs[policy])
        if costs[best] >= (1 - WORTH_IT) * costs[first]:
            best = first
        found.append(Recommended(name, topics[name], best, costs[best], costs[first]))
    return found


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a backtest: by class of topics and policy, policies in the order of the plan."""

    topics: Mapping[str, int]  # By class.
    by_class: Mapping[str, Mapping[str, PolicyOutcome]]

    @property
    def by_policy(self) -> dict[str, PolicyOutcome]:
        sums: dict[str, PolicyOutcome] = {}
        for outcomes in self.by_class.values():
            for name, one in outcomes.items():
                sums[name] = _sum((sums[name], one)) if name in sums else one
        return sums


def _sum(outcomes: Iterable[PolicyOutcome]) -> PolicyOutcome:
    found = list(outcomes)
    summed = {name: sum(getattr(one, name) for one in found) for name in SUMMED}
    return PolicyOutcome(**summed, segments_max=max(one.segments_max for one in found))
