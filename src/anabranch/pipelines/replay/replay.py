"""Replays a topic's trace under a policy: the decisions that a live broker would make, event by event. Pure.

The decisions come from live code: `autoscale.decide`, `should_write` and the layout's own operations. Only the shell
around it is replayed. Owners measure their segments at every sample and report changes; the leader evaluates at
each tick, at the moment that its last verdict named, at once when consumers join or leave, and after an operation. At
the same moment, consumers come first, then evaluations, then samples: on a live broker the timer of an evaluation is
older than that of a sample, and a report takes a moment to be written.

Most of the events are skipped, without a loss. The next sample worth a report is found by array operations, not one by
one. A verdict to stay holds until the moment that it names or until a fact changes, so ticks between are skipped. When
nothing is over a split limit, no two neighbours are cold and consumers have their segments, `decide` is not called.
tests/unit/pipelines/replay/naive.py skips nothing and must come to the same decisions.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from anabranch.autoscale.decide import Observation, Rebucket, Reshape, Split, Stay, Verdict, decide
from anabranch.autoscale.load import Load, LoadReport
from anabranch.autoscale.policy import ScalePolicy, check
from anabranch.autoscale.reporting import QUIET_SHARE, should_write
from anabranch.model.buckets import ONE_BUCKET, BucketBudget
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import HashRange, SegmentId
from anabranch.pipelines.replay.trace import BadTrace, Consumers, Floats, Trace

NEVER: Final = sys.maxsize
# As in the live leader: the next evaluation is never sooner than this.
LOOK_AGAIN_LEAST_MS: Final = 10
_BLOCK_FIRST: Final = 32
_BLOCK_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Timing:
    """The brokers' settings: their defaults, in milliseconds. The interval of samples is the trace's."""

    tick_ms: int = 60_000
    first_tick_ms: int = 60_000  # After the trace's start; later ticks follow at `tick_ms`.
    window_ms: int = 60_000  # The time over which a load is averaged.
    change: float = 0.25  # How much a load must change to be reported.
    collect_ms: int = 10_000  # How often sealed segments are checked for removal,
    kept_ms: int | None = 60_000  # … and the age at which they are removed. None keeps them for ever.
    # The entry buckets of topics, if consumers share segments by these; None: a segment serves one consumer.
    buckets: BucketBudget | None = None


@dataclass(frozen=True, slots=True)
class ReplayedReshape:
    """A split, a merge or a rebucket."""

    at_ms: int
    kind: str  # "split", "merge" or "rebucket"
    segments: tuple[int, ...]
    rule: str
    because: str
    span: HashRange  # The range that was split or replaced, or merged from two.
    active: int  # The number of segments from then on.


@dataclass(frozen=True, slots=True)
class Life:
    """The period during which a segment was active."""

    span: HashRange
    from_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class Replayed:
    decisions: tuple[ReplayedReshape, ...]
    lives: tuple[Life, ...]
    evaluations: int  # How often `decide` was called.
    reports: int  # The number of load records written.


def replay(trace: Trace, policy: ScalePolicy, timing: Timing | None = None) -> Replayed:
    """Replays the trace. InvalidPolicy if the policy contradicts itself: it would decide nothing."""
    check(policy)
    timing = timing or Timing()
    if timing.window_ms % trace.step_ms:
        # Otherwise a broker's average would depend on whether a segment was idle before.
        raise BadTrace(
            f"a sample every {trace.step_ms / 1000:g} s does not divide the window of {timing.window_ms / 1000:g} s "
            "that loads are averaged over"
        )
    return _Replay(trace, policy, timing).run()


def act(
    layout: SegmentLayout, verdict: Reshape, now_ms: int, budget: BucketBudget
) -> tuple[SegmentLayout, ReplayedReshape]:
    """The layout after the operation, and the operation."""
    segments = layout.segments
    if isinstance(verdict, Split):
        after = layout.split(verdict.segment, now_ms, verdict.lopsided)
        numbers: tuple[int, ...] = (verdict.segment,)
        kind, rule, span = "split", str(verdict.rule), segments[verdict.segment].range
    elif isinstance(verdict, Rebucket):
        after = layout.rebucket(verdict.segment, verdict.buckets, now_ms)
        numbers = (verdict.segment,)
        kind, rule, span = "rebucket", str(verdict.rule), segments[verdict.segment].range
    else:
        after = layout.merge(verdict.one, verdict.other, now_ms, budget)
        numbers = (verdict.one, verdict.other)
        kind, rule = "merge", "cold"
        span = segments[verdict.one].range.joined(segments[verdict.other].range)
    return after, ReplayedReshape(now_ms, kind, numbers, rule, verdict.because, span, len(after.active))


def gone_ms(sealed_ms: int, start_ms: int, timing: Timing) -> int:
    """When a sealed segment is removed from the layout, if no consumer has anything left to read in it."""
    if timing.kept_ms is None:
        return NEVER
    every = timing.collect_ms
    seen = start_ms + ((sealed_ms - start_ms) // every + 1) * every
    return seen + -(-timing.kept_ms // every) * every


def pruned(layout: SegmentLayout, now_ms: int, start_ms: int, timing: Timing) -> SegmentLayout:
    old = [s.id for s in layout.sealed if gone_ms(s.sealed_ms, start_ms, timing) < now_ms]
    return layout.prune(old) if old else layout


def first_layout(trace: Trace, timing: Timing) -> SegmentLayout:
    budget = timing.buckets or ONE_BUCKET
    layout = SegmentLayout.initial(trace.segments, trace.start_ms, budget=budget)
    # Readers of removed segments need these records; a replay has no readers, and they cost time.
    return SegmentLayout(layout.epoch, layout.next_id, layout.segments, gone=None)


def observed(
    layout: SegmentLayout,
    load: Mapping[SegmentId, LoadReport],
    consumers: Consumers,
    now_ms: int,
    timing: Timing,
    last_left_ms: int,
) -> Observation:
    """What the leader would see."""
    if timing.buckets is None:
        return Observation(layout, load, consumers, now_ms, last_left_ms=last_left_ms)
    capacity = {segment.id: segment.bucket_count for segment in layout.active}
    return Observation(
        layout, load, consumers, now_ms, dict.fromkeys(consumers, capacity), timing.buckets, last_left_ms
    )


def has_left(before: Consumers, after: Consumers) -> bool:
    """Whether a consumer of any subscription has left."""
    return any(after.get(name, 0) < count for name, count in before.items())


class PolicyLimits:
    """A policy's limits as columns, to be compared with the four rates of many samples."""

    def __init__(self, policy: ScalePolicy, change: float) -> None:
        self.policy = policy
        self.change = change
        self.split = np.array(policy.split.rates)[:, None]
        self.merge = np.array(policy.merge.rates)[:, None]
        self.quiet = QUIET_SHARE * self.merge

    def may_be_news(self, loads: Floats, last: Load) -> list[int]:
        """The indexes of samples for which `should_write` may be true. No such sample is missed."""
        before = np.array(last.rates)[:, None]
        moved = np.abs(loads - before)
        news = (moved > self.change * before) & (moved > self.quiet)
        news |= (loads > self.split) != (before > self.split)
        news |= (loads < self.merge) != (before < self.merge)
        if not all(last.rates):
            news |= (before == 0.0) & (loads != 0.0)
        found: list[int] = np.flatnonzero(news.any(axis=0)).tolist()
        return found


class _Owner:
    """An active segment and the measurements of its owner."""

    __slots__ = ("base", "first", "from_ms", "shares", "since", "span", "window")

    def __init__(self, trace: Trace, timing: Timing, span: HashRange, from_ms: int) -> None:
        self.span = span
        self.from_ms = from_ms
        self.shares = trace.shares(span)
        # The first round that measures it is not the one at that very moment: that round began before the split was
        # done. Its counters began after the round before.
        self.first = (from_ms - trace.start_ms) // trace.step_ms + 1
        self.since = self.first - 1
        self.base = trace.counts_at(self.shares, from_ms)
        self.window = -(-timing.window_ms // trace.step_ms)

    def averages(self, trace: Trace, timing: Timing, first: int, past: int) -> Floats:
        """The load that it would report at each of those samples, as `broker.scalable.load.rates` computes it."""
        step_s, window_s = trace.step_ms / 1000, timing.window_ms / 1000
        now = trace.counts(self.shares, first, past)
        young = min(past, max(first, self.since + self.window + 1))  # Before it, the whole history counts.
        if young < past:
            now[:, young - first :] -= trace.counts(self.shares, young - self.window, past - self.window)
            now[:, young - first :] /= max(self.window * step_s, window_s)
        for sample in range(first, young):
            span_s = (sample - self.since) * step_s
            is_old = span_s >= window_s
            now[:, sample - first : sample - first + 1] -= self.base
            now[:, sample - first] /= max(span_s, window_s if is_old else window_s / 2)
        return now


class _Replay:
    def __init__(self, trace: Trace, policy: ScalePolicy, timing: Timing) -> None:
        self.trace, self.policy, self.timing = trace, policy, timing
        self.limits = PolicyLimits(policy, timing.change)
        self.layout = first_layout(trace, timing)
        self.budget = timing.buckets or ONE_BUCKET
        self.consumers: Consumers = {}
        self.left_ms = trace.start_ms  # When a consumer last left.
        self.owners: dict[SegmentId, _Owner] = {}
        self.records: dict[SegmentId, LoadReport] = {}
        self.hot: set[SegmentId] = set()  # By their records: over a split limit,
        self.cold: set[SegmentId] = set()  # … or under every merge limit.
        self.news: list[tuple[int, SegmentId, Load]] = []  # The next report of each segment, by sample.
        self.decisions: list[ReplayedReshape] = []
        self.lives: list[Life] = []
        self.evaluations = self.reports = 0
        # Whether a fact changed since the last full evaluation. If not, its verdict holds until `quiet_until`.
        self.is_disturbed = False
        self.quiet_until: int | None = None
        self.looked_ms = trace.start_ms
        # While disturbed: the next tick, and the timer that an earlier evaluation has set.
        self.tick_ms = self.timer_ms = NEVER
        self._open(trace.start_ms)

    def run(self) -> Replayed:
        for now_ms, what in self._events():
            match what:
                case "join":
                    self._join(now_ms)
                case "look":
                    self._look(now_ms)
                case _:
                    self._report(now_ms)
        for owner in self.owners.values():
            self.lives.append(Life(owner.span, owner.from_ms, self.trace.end_ms))
        return Replayed(tuple(self.decisions), tuple(self.lives), self.evaluations, self.reports)

    def _events(self) -> Iterator[tuple[int, str]]:
        self.changes = list(reversed(self.trace.consumers))
        end_ms = self.trace.end_ms
        while True:
            join_ms = self.changes[-1][0] if self.changes else NEVER
            look_ms = self._next_look()
            news_ms = self.trace.at(self.news[0][0]) if self.news else NEVER
            now_ms = min(join_ms, look_ms, news_ms)
            if now_ms > end_ms:
                return
            yield now_ms, "join" if now_ms == join_ms else "look" if now_ms == look_ms else "report"

    # -- when to evaluate

    def _ticks_until(self, now_ms: int) -> int:
        """The number of ticks so far, including one at that very moment."""
        since_ms = now_ms - self.trace.start_ms - self.timing.first_tick_ms
        return max(0, since_ms // self.timing.tick_ms + 1)

    def _tick(self, number: int) -> int:
        """The time of a tick, counted from 0; before the first, that of the start."""
        if number < 0:
            return self.trace.start_ms
        return self.trace.start_ms + self.timing.first_tick_ms + number * self.timing.tick_ms

    def _next_look(self) -> int:
        if self.is_disturbed:
            return min(self.tick_ms, self.timer_ms)
        if self.quiet_until is None:
            return NEVER
        # The last evaluation before it, which found no change, has set the timer.
        ticks = self._ticks_until(self.quiet_until - 1)
        looked_ms = max(self.looked_ms, self._tick(ticks - 1))
        return min(max(self.quiet_until, looked_ms + LOOK_AGAIN_LEAST_MS), self._tick(ticks))

    def _disturb(self, ticks: int) -> None:
        """A fact has changed after that many ticks."""
        self.tick_ms = self._tick(ticks)
        if self.is_disturbed:
            return
        self.is_disturbed, self.timer_ms = True, NEVER
        if self.quiet_until is not None:
            looked_ms = max(self.looked_ms, self._tick(ticks - 1))
            if self.quiet_until - looked_ms < self.timing.tick_ms:
                self.timer_ms = max(self.quiet_until, looked_ms + LOOK_AGAIN_LEAST_MS)

    # -- events

    def _join(self, now_ms: int) -> None:
        _, consumers = self.changes.pop()
        if consumers == self.consumers:
            return
        if has_left(self.consumers, consumers):
            self.left_ms = now_ms
        self.consumers = consumers
        self._disturb(self._ticks_until(now_ms - 1))
        verdict = self._decide(now_ms, consumers_only=True)
        if not isinstance(verdict, Stay):
            self._act(verdict, now_ms)
            self._look(now_ms)
        elif verdict.look_again_ms is not None:
            at_ms = max(verdict.look_again_ms, now_ms + LOOK_AGAIN_LEAST_MS)
            if at_ms - now_ms < self.timing.tick_ms:
                self.timer_ms = min(self.timer_ms, at_ms)

    def _report(self, now_ms: int) -> None:
        sample, number, load = heapq.heappop(self.news)
        owner = self.owners.get(number)
        if owner is None:
            return  # The segment was sealed before.
        self._disturb(self._ticks_until(now_ms))
        self.reports += 1
        self.records[number] = LoadReport(load, now_ms)
        self.hot.discard(number)
        self.cold.discard(number)
        if load.is_over_any(self.policy.split):
            self.hot.add(number)
        elif load.is_under_all(self.policy.merge):
            self.cold.add(number)
        self._find_news(number, owner, sample + 1, load)

    def _look(self, now_ms: int) -> None:
        """Evaluates everything, until nothing more is due."""
        self.is_disturbed, self.timer_ms, self.looked_ms = False, NEVER, now_ms
        self.quiet_until = None
        while not self._is_quiet():
            verdict = self._decide(now_ms)
            if isinstance(verdict, Stay):
                self.quiet_until = verdict.look_again_ms
                return
            self._act(verdict, now_ms)

    def _is_quiet(self) -> bool:
        """Whether `decide` could only answer to stay, at any time."""
        active = self.layout.active
        crowd, buckets = max(self.consumers.values(), default=0), 0
        if self.timing.buckets is not None:
            buckets = sum(segment.bucket_count for segment in active)
            if self.layout.last_rebucket_ms and buckets > max(self.budget.total, len(active)):
                return False  # Some may be given back.
        if crowd > max(buckets, len(active)) or self.hot:
            return False
        least = self.policy.min_segments if buckets else max(crowd, self.policy.min_segments)
        if len(active) <= least or len(self.cold) < 2:
            return True
        cold = self.cold
        return not any(one.id in cold and other.id in cold for one, other in pairwise(active))

    def _decide(self, now_ms: int, *, consumers_only: bool = False) -> Verdict:
        self.evaluations += 1
        self.layout = pruned(self.layout, now_ms, self.trace.start_ms, self.timing)
        seen = observed(self.layout, self.records, self.consumers, now_ms, self.timing, self.left_ms)
        return decide(seen, self.policy, consumers_only=consumers_only)

    def _act(self, verdict: Reshape, now_ms: int) -> None:
        self.layout, decided = act(self.layout, verdict, now_ms, self.budget)
        self.decisions.append(decided)
        for number in decided.segments:
            gone = SegmentId(number)
            owner = self.owners.pop(gone)
            self.lives.append(Life(owner.span, owner.from_ms, now_ms))
            self.records.pop(gone, None)
            self.hot.discard(gone)
            self.cold.discard(gone)
        self._open(now_ms)

    def _open(self, now_ms: int) -> None:
        """Measures new segments from now on. The first measurement is always reported."""
        for segment in self.layout.active:
            if segment.id in self.owners:
                continue
            owner = self.owners[segment.id] = _Owner(self.trace, self.timing, segment.range, now_ms)
            if owner.first <= self.trace.samples:
                load = owner.averages(self.trace, self.timing, owner.first, owner.first + 1)
                heapq.heappush(self.news, (owner.first, segment.id, Load(*load[:, 0].tolist())))

    def _find_news(self, number: SegmentId, owner: _Owner, sample: int, last: Load) -> None:
        """Finds the next sample worth a report, if there is one."""
        size, end = _BLOCK_FIRST, self.trace.samples + 1
        while sample < end:
            past = min(end, sample + size)
            loads = owner.averages(self.trace, self.timing, sample, past)
            for at in self.limits.may_be_news(loads, last):
                load = Load(*loads[:, at].tolist())
                if should_write(load, last, self.policy, self.timing.change):
                    heapq.heappush(self.news, (sample + at, number, load))
                    return
            sample, size = past, min(4 * size, _BLOCK_MAX)
