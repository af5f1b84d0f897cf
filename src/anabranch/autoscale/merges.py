"""The merge pass: whether two neighbours should merge, which two, and why not. Pure.

A merge saves a little and can wait, so every doubt is a no: a missing record is no evidence of cold, consumers keep the
room they need, and a pair that together would be due for a split stays apart. A lineage that was merged too often
recently is left alone, though it may still split.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

from anabranch.autoscale.crowd import Crowd, can_spare
from anabranch.autoscale.load import Load, LoadReport, describe_amount, describe_rate
from anabranch.autoscale.policy import ScalePolicy
from anabranch.autoscale.verdict import Merge, NoMerge, Observation, counted, moment, percent, span
from anabranch.model.segments import MERGE_TIMES_MAX, Segment


@dataclass(frozen=True, slots=True)
class NotMerged:
    label: NoMerge
    because: str
    is_suppressed: bool = False
    look_again_ms: int | None = None


class Pair(NamedTuple):
    """Two cold neighbours that fit together; only time and depth may still forbid their merge. A tuple, as there are
    many."""

    rank: tuple[int, float, int, int]  # Depth, heat, lower id, higher id: the least pair is merged.
    aged_ms: int  # The moment when both records become old enough.
    shallow_ms: int | None  # The moment when both lineages are below the cap; None for never.
    one: Segment
    other: Segment

    @property
    def depth(self) -> int:
        return self.rank[0]

    @property
    def heat(self) -> float:
        return self.rank[1]

    def __str__(self) -> str:
        return f"segments {self.one.id} and {self.other.id}"


def look_for_merge(seen: Observation, policy: ScalePolicy, crowd: Crowd) -> Merge | NotMerged:
    active = len(seen.layout.active)
    if active <= policy.min_segments:
        has = f"the topic has {counted(active, 'segment')}"
        return NotMerged(NoMerge.MIN_SEGMENTS, f"{has} and minSegments is {policy.min_segments}")
    if not any(can_spare(seen, one, other) for one, other in pairwise(seen.layout.active)):
        because = f"{crowd}, which need all of the {counted(active, 'segment')}"
        return NotMerged(NoMerge.CONSUMERS, because)
    pairs = cold_pairs(seen, policy)
    if not pairs:
        return _nothing_cold(seen, policy)
    # Without capacities all pairs are alike.
    spared = [p for p in pairs if can_spare(seen, p.one, p.other)] if seen.capacity else pairs
    if not spared:
        because = (
            f"{min(pairs, key=itemgetter(0))} are cold, but {crowd}, which need the entry buckets of both"
        )
        return NotMerged(NoMerge.CONSUMERS, because)
    cooled_ms = seen.layout.last_merge_ms + policy.merge_cooldown_ms if seen.layout.last_merge_ms else 0
    return _first_due(seen, policy, spared, cooled_ms)


def _first_due(
    seen: Observation, policy: ScalePolicy, pairs: list[Pair], cooled_ms: int
) -> Merge | NotMerged:
    now_ms = seen.now_ms
    aged = [pair for pair in pairs if pair.aged_ms <= now_ms]
    due = (
        [p for p in aged if p.shallow_ms is not None and p.shallow_ms <= now_ms]
        if now_ms >= cooled_ms
        else []
    )
    if due:
        pair = min(due, key=itemgetter(0))
        because = (
            f"{pair} have been under every merge limit for {span(policy.merge_window_ms)} or longer; "
            f"together they are at {percent(pair.heat)} of a split limit"
        )
        return Merge(pair.one.id, pair.other.id, because)
    look_again_ms = _next_change_ms(pairs, cooled_ms, now_ms)
    if not aged:
        pair = min(pairs, key=itemgetter(1, 0))
        because = (
            f"{pair} are cold, but not yet for {span(policy.merge_window_ms)}: "
            f"their load records are that old at {moment(pair.aged_ms)}"
        )
        return NotMerged(NoMerge.WINDOW, because, look_again_ms=look_again_ms)
    if now_ms < cooled_ms:
        because = (
            f"{min(aged, key=itemgetter(0))} are cold, but after the last merge there is a cooldown of "
            f"{span(policy.merge_cooldown_ms)} until {moment(cooled_ms)}"
        )
        return NotMerged(NoMerge.COOLDOWN, because, look_again_ms=look_again_ms)
    pair = min(aged, key=itemgetter(0))
    until = "" if pair.shallow_ms is None else f" until {moment(pair.shallow_ms)}"
    because = (
        f"{pair} are cold, but their range was merged {counted(pair.depth, 'time')} within "
        f"{span(policy.merge_depth_window_ms)} and maxDagDepth is {policy.max_dag_depth}; it is left alone{until}"
    )
    return NotMerged(NoMerge.MAX_DEPTH, because, is_suppressed=True, look_again_ms=look_again_ms)


def _next_change_ms(pairs: list[Pair], cooled_ms: int, now_ms: int) -> int | None:
    """When time alone makes another pair due, or due but for the cap on depth."""
    changes: list[int] = []
    for _, aged_ms, shallow_ms, _, _ in pairs:
        if aged_ms > now_ms or cooled_ms > now_ms:
            changes.append(max(aged_ms, cooled_ms))
        elif shallow_ms is not None:
            changes.append(shallow_ms)
    return min(changes, default=None)


# -- pairs


def cold_pairs(seen: Observation, policy: ScalePolicy) -> list[Pair]:
    """The pairs of neighbours that are both under every merge limit, and together not over a split limit."""
    found: list[Pair] = []
    reports, cold_under = seen.load, policy.merge
    before: tuple[Segment, LoadReport] | None = None
    for segment in seen.layout.active:
        report = reports.get(segment.id)
        if report is None or not report.load.is_under_all(cold_under):
            before = None
            continue
        if before is not None and (pair := _pair(seen.now_ms, policy, *before, segment, report)):
            found.append(pair)
        before = segment, report
    return found


def _pair(
    now_ms: int, policy: ScalePolicy, one: Segment, its: LoadReport, other: Segment, others: LoadReport
) -> Pair | None:
    heat = _heat_together(its.load, others.load, policy.split)
    if heat >= 1.0 and (its.load + others.load).is_over_any(policy.split):
        return None
    depth, shallow_ms = 0, 0 if policy.max_dag_depth else None
    if one.merged_ms or other.merged_ms:
        depth = max(_depth(one, policy, now_ms), _depth(other, policy, now_ms))
        shallow_ms = _later(_shallow_ms(one, policy), _shallow_ms(other, policy))
    low, high = (one.id, other.id) if one.id < other.id else (other.id, one.id)
    aged_ms = max(its.modified_ms, others.modified_ms) + policy.merge_window_ms
    return Pair((depth, heat, low, high), aged_ms, shallow_ms, one, other)


def _heat_together(one: Load, other: Load, limits: Load) -> float:
    """Equals `(one + other).heat(limits)` without building the sum: a topic has many pairs."""
    return max(
        (one.msg_rate_in + other.msg_rate_in) / limits.msg_rate_in,
        (one.bytes_rate_in + other.bytes_rate_in) / limits.bytes_rate_in,
        (one.msg_rate_out + other.msg_rate_out) / limits.msg_rate_out,
        (one.bytes_rate_out + other.bytes_rate_out) / limits.bytes_rate_out,
    )


def _depth(segment: Segment, policy: ScalePolicy, now_ms: int) -> int:
    """How many merges along the segment's lineage still count."""
    times = segment.merged_ms
    return len(times) - bisect_left(times, now_ms - policy.merge_depth_window_ms) if times else 0


def _shallow_ms(segment: Segment, policy: ScalePolicy) -> int | None:
    """The moment when the segment's lineage has fewer merges than the cap; None for never."""
    cap = policy.max_dag_depth
    if cap == 0:
        return None
    if len(segment.merged_ms) < cap or cap > MERGE_TIMES_MAX:
        return 0
    return segment.merged_ms[-cap] + policy.merge_depth_window_ms + 1


def _later(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)


# -- why none is cold


def _nothing_cold(seen: Observation, policy: ScalePolicy) -> NotMerged:
    """The reason why no pair is cold, given for the neighbours that are closest to it: those with the least heat
    together."""
    active = seen.layout.active
    reports, limits = seen.load, policy.split
    least: tuple[float, Segment, Segment] | None = None
    for one, other in pairwise(active):
        if one.id in reports and other.id in reports:
            heat = _heat_together(reports[one.id].load, reports[other.id].load, limits)
            if least is None or heat < least[0]:
                least = heat, one, other
    if least is None:
        return _nothing_known(seen)
    _, one, other = least
    its, others = reports[one.id].load, reports[other.id].load
    start = f"no two neighbours are cold; the least busy are segments {one.id} and {other.id}"
    if its.is_under_all(policy.merge) and others.is_under_all(policy.merge):
        at = (its + others).hottest(policy.split)
        rate, limit = (its + others).rates[at], policy.split.rates[at]
        because = f"{start}, which together would have {describe_rate(at, rate)}, over the split limit of "
        return NotMerged(NoMerge.WARM_TOGETHER, because + describe_amount(at, limit))
    warm, load = (one, its) if not its.is_under_all(policy.merge) else (other, others)
    at = _first_warm(load, policy.merge)
    because = (
        f"{start}, and segment {warm.id} has {describe_rate(at, load.rates[at])}, "
        f"not under its merge limit of {describe_amount(at, policy.merge.rates[at])}"
    )
    return NotMerged(NoMerge.WARM, because)


def _nothing_known(seen: Observation) -> NotMerged:
    active = seen.layout.active
    missing = sum(segment.id not in seen.load for segment in active)
    because = (
        f"{missing} of {counted(len(active), 'segment')} {'has' if missing == 1 else 'have'} no load record, "
        "and without one there is no evidence of cold"
    )
    return NotMerged(NoMerge.NO_RECORD, because)


def _first_warm(load: Load, limits: Load) -> int:
    pairs = zip(load.rates, limits.rates, strict=True)
    return next(at for at, (rate, limit) in enumerate(pairs) if rate >= limit)
