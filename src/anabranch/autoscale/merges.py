"""The merge pass: whether two neighbours should merge, which two, and why not. Pure.

A merge saves a little and can wait, so every doubt is a no: no record is no evidence of cold, consumers keep the
segments they have, and a pair that together would be due for a split stays apart. A lineage that has been merged too
often of late is left alone, though it may still split.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise

from anabranch.autoscale.load import Load, LoadReport, describe_amount, describe_rate
from anabranch.autoscale.policy import Policy
from anabranch.autoscale.splits import Crowd
from anabranch.autoscale.verdict import Merge, NoMerge, Observation, counted, moment, span
from anabranch.model.segments import MERGE_TIMES_MAX, Segment


@dataclass(frozen=True, slots=True)
class NotMerged:
    label: NoMerge
    because: str
    is_suppressed: bool = False
    look_again_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """Two cold neighbours that fit together: what is left is time and depth."""

    one: Segment
    other: Segment
    depth: int
    heat: float
    aged_ms: int  # From when on both records are old enough.
    shallow_ms: int | None  # From when on neither lineage is at the cap; None for never.

    @property
    def rank(self) -> tuple[int, float, int, int]:
        ids = self.one.id, self.other.id
        return self.depth, self.heat, min(ids), max(ids)

    def __str__(self) -> str:
        return f"segments {self.one.id} and {self.other.id}"


def look_for_merge(seen: Observation, policy: Policy, crowd: Crowd) -> Merge | NotMerged:
    active = len(seen.layout.active)
    if active <= policy.min_segments:
        has = f"the topic has {counted(active, 'segment')}"
        return NotMerged(NoMerge.MIN_SEGMENTS, f"{has} and minSegments is {policy.min_segments}")
    if active <= crowd.segments:
        because = f"{crowd}, which need all of the {counted(active, 'segment')}"
        return NotMerged(NoMerge.CONSUMERS, because)
    pairs = cold_pairs(seen, policy)
    if not pairs:
        return _nothing_cold(seen, policy)
    cooled_ms = seen.layout.last_merge_ms + policy.merge_cooldown_ms if seen.layout.last_merge_ms else 0
    return _first_due(seen, policy, pairs, cooled_ms)


def _first_due(seen: Observation, policy: Policy, pairs: list[Pair], cooled_ms: int) -> Merge | NotMerged:
    now_ms = seen.now_ms
    aged = [pair for pair in pairs if pair.aged_ms <= now_ms]
    look_again_ms = _next_change_ms(pairs, cooled_ms, now_ms)
    if not aged:
        pair = min(pairs, key=lambda p: (p.aged_ms, p.rank))
        because = (
            f"{pair} are cold, but not yet for {span(policy.merge_window_ms)}: "
            f"their load records are that old at {moment(pair.aged_ms)}"
        )
        return NotMerged(NoMerge.WINDOW, because, look_again_ms=look_again_ms)
    if now_ms < cooled_ms:
        because = (
            f"{min(aged, key=lambda p: p.rank)} are cold, but after the last merge there is a cooldown of "
            f"{span(policy.merge_cooldown_ms)} until {moment(cooled_ms)}"
        )
        return NotMerged(NoMerge.COOLDOWN, because, look_again_ms=look_again_ms)
    due = [pair for pair in aged if pair.shallow_ms is not None and pair.shallow_ms <= now_ms]
    if due:
        pair = min(due, key=lambda p: p.rank)
        because = (
            f"{pair} have been under every merge limit for {span(policy.merge_window_ms)} or longer; "
            f"together they are at {100 * pair.heat:,.0f} % of a split limit"
        )
        return Merge(pair.one.id, pair.other.id, because)
    pair = min(aged, key=lambda p: p.rank)
    until = "" if pair.shallow_ms is None else f" until {moment(pair.shallow_ms)}"
    because = (
        f"{pair} are cold, but their range was merged {counted(pair.depth, 'time')} within "
        f"{span(policy.merge_depth_window_ms)} and maxDagDepth is {policy.max_dag_depth}; it is left alone{until}"
    )
    return NotMerged(NoMerge.MAX_DEPTH, because, is_suppressed=True, look_again_ms=look_again_ms)


def _next_change_ms(pairs: list[Pair], cooled_ms: int, now_ms: int) -> int | None:
    """When time alone makes another pair due, or due but for the cap on depth."""
    changes: list[int] = []
    for pair in pairs:
        ready_ms = max(pair.aged_ms, cooled_ms)
        if ready_ms > now_ms:
            changes.append(ready_ms)
        elif pair.shallow_ms is not None:
            changes.append(pair.shallow_ms)
    return min(changes, default=None)


# -- pairs


def cold_pairs(seen: Observation, policy: Policy) -> list[Pair]:
    """The neighbours that are both under every merge limit, and together not over a split limit."""
    found: list[Pair] = []
    before: tuple[Segment, LoadReport] | None = None
    for segment in seen.layout.active:
        report = seen.load.get(segment.id)
        if report is None or not report.load.is_under_all(policy.merge):
            before = None
            continue
        if before is not None:
            both = before[1].load + report.load
            if not both.is_over_any(policy.split):
                found.append(_pair(seen, policy, before, (segment, report), both))
        before = (segment, report)
    return found


def _pair(
    seen: Observation,
    policy: Policy,
    one: tuple[Segment, LoadReport],
    other: tuple[Segment, LoadReport],
    both: Load,
) -> Pair:
    return Pair(
        one[0],
        other[0],
        depth=max(_depth(one[0], policy, seen.now_ms), _depth(other[0], policy, seen.now_ms)),
        heat=both.heat(policy.split),
        aged_ms=max(one[1].modified_ms, other[1].modified_ms) + policy.merge_window_ms,
        shallow_ms=_later(_shallow_ms(one[0], policy), _shallow_ms(other[0], policy)),
    )


def _depth(segment: Segment, policy: Policy, now_ms: int) -> int:
    """The merges along its lineage that still count."""
    times = segment.merged_ms
    return len(times) - bisect_left(times, now_ms - policy.merge_depth_window_ms) if times else 0


def _shallow_ms(segment: Segment, policy: Policy) -> int | None:
    """From when on its lineage has fewer merges than the cap; None for never."""
    cap = policy.max_dag_depth
    if cap == 0:
        return None
    if len(segment.merged_ms) < cap or cap > MERGE_TIMES_MAX:
        return 0
    return segment.merged_ms[-cap] + policy.merge_depth_window_ms + 1


def _later(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)


# -- why none is cold


def _nothing_cold(seen: Observation, policy: Policy) -> NotMerged:
    """Told by the neighbours that are closest to it: those with the least heat together."""
    active = seen.layout.active
    known = [
        (one, other, seen.load[one.id].load, seen.load[other.id].load)
        for one, other in pairwise(active)
        if one.id in seen.load and other.id in seen.load
    ]
    if not known:
        missing = sum(segment.id not in seen.load for segment in active)
        because = (
            f"{missing} of {counted(len(active), 'segment')} {'has' if missing == 1 else 'have'} no load record, "
            "and without one there is no evidence of cold"
        )
        return NotMerged(NoMerge.NO_RECORD, because)
    one, other, its, others = min(
        known,
        key=lambda pair: ((pair[2] + pair[3]).heat(policy.split), min(pair[0].id, pair[1].id), pair[0].id),
    )
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


def _first_warm(load: Load, limits: Load) -> int:
    pairs = zip(load.rates, limits.rates, strict=True)
    return next(at for at, (rate, limit) in enumerate(pairs) if rate >= limit)
