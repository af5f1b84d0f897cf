"""A scalable topic in simulated time: keyed load, owners that report it, and a leader that acts on `decide`.

The loop is closed: a split divides the load as the keys lie, and the leader sees of it only what the reporting rule
lets through. A step is one sample of every segment. The leader looks at each tick and when it was told to look again,
but not while there is nothing new: then, says `decide`, the verdict would be the same.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from anabranch.autoscale.decide import Merge, Observation, Rebucket, Reshape, Split, Stay, decide
from anabranch.autoscale.load import IDLE, Load, LoadReport
from anabranch.autoscale.policy import DEFAULT, ScalePolicy
from anabranch.autoscale.reporting import should_write
from anabranch.model.buckets import ONE_BUCKET, BucketBudget
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import HASH_MAX, HashRange, Segment, SegmentId
from unit.autoscale.facts import MINUTE, NOW, SECOND, buckets_of


class Keys:
    """Which share of the messages each hash gets."""

    def __init__(self, weights: Mapping[int, float]) -> None:
        self._hashes = sorted(weights)
        sums = accumulate((weights[at] for at in self._hashes), initial=0.0)
        total = sum(weights.values())
        self._sums = [at / total for at in sums]

    @staticmethod
    def even(count: int = 1024) -> Keys:
        return Keys({at * (HASH_MAX + 1) // count: 1.0 for at in range(count)})

    def share(self, span: HashRange) -> float:
        first, past = bisect_left(self._hashes, span.start), bisect_right(self._hashes, span.end)
        return self._sums[past] - self._sums[first]


EVEN = Keys.even()


@dataclass(frozen=True, slots=True)
class Action:
    at_ms: int
    verdict: Reshape
    span: HashRange  # Split, replaced, or merged from two.

    @property
    def is_split(self) -> bool:
        return isinstance(self.verdict, Split)

    @property
    def is_merge(self) -> bool:
        return isinstance(self.verdict, Merge)


@dataclass
class Plant:
    """`demand` gives the topic's load at a moment; what it gives is spread over the keys."""

    demand: Callable[[int], Load]
    keys: Keys = EVEN
    policy: ScalePolicy = DEFAULT
    layout: SegmentLayout = field(default_factory=lambda: SegmentLayout.initial(1, NOW))
    consumers: Mapping[str, int] = field(default_factory=dict)
    step_ms: int = 10 * SECOND
    tick_ms: int = MINUTE
    prunes: bool = True
    # Whether consumers know entry buckets, and what a topic has of those.
    shares: bool = False
    budget: BucketBudget = ONE_BUCKET
    left_ms: int = NOW
    now_ms: int = NOW
    actions: list[Action] = field(default_factory=list)
    counts: list[tuple[int, int]] = field(default_factory=list)  # When, and how many segments since then.
    last: Stay | None = None
    suppressed: int = 0
    records: dict[SegmentId, LoadReport] = field(default_factory=dict)
    _samples: dict[SegmentId, deque[Load]] = field(default_factory=dict)
    _shares: dict[SegmentId, float] = field(default_factory=dict)
    _steady: tuple[Load | None, int] = (None, 0)  # The load that came last, and how often in a row.
    _has_news: bool = True
    _next_tick_ms: int = NOW + MINUTE
    _look_again_ms: int | None = None

    def run(self, for_ms: int) -> Plant:
        end_ms = self.now_ms + for_ms
        while self.now_ms < end_ms:
            self.now_ms += self.step_ms
            self._report()
            if self.now_ms >= self._next_tick_ms or self._is_told_to_look():
                self._next_tick_ms += self.tick_ms if self.now_ms >= self._next_tick_ms else 0
                self._look()
        return self

    def _is_told_to_look(self) -> bool:
        return self._look_again_ms is not None and self.now_ms >= self._look_again_ms

    # -- the owners

    def _report(self) -> None:
        load = self.demand(self.now_ms)
        same, times = self._steady
        self._steady = load, times + 1 if load is same else 1
        if self._steady[1] > self._window + 1:
            return  # Every average is what it was a step ago.
        for segment in self.layout.active:
            rate = self._rolling(segment, load)
            stored = self.records.get(segment.id)
            if should_write(rate, None if stored is None else stored.load, self.policy, 0.25):
                self.records[segment.id] = LoadReport(rate, self.now_ms)
                self._has_news = True

    @property
    def _window(self) -> int:
        return max(1, MINUTE // self.step_ms)

    def _rolling(self, segment: Segment, load: Load) -> Load:
        """The average of a minute, or of its life if that was shorter."""
        share = self._shares.get(segment.id)
        if share is None:
            share = self._shares[segment.id] = self.keys.share(segment.range)
        samples = self._samples.setdefault(segment.id, deque(maxlen=self._window))
        samples.append(load)
        total = IDLE
        for sample in samples:
            total += sample
        part = share / len(samples)
        return Load(
            total.msg_rate_in * part,
            total.bytes_rate_in * part,
            total.msg_rate_out * part,
            total.bytes_rate_out * part,
        )

    # -- the leader

    def _look(self) -> None:
        if not self._has_news and not self._is_told_to_look():
            self.suppressed += bool(self.last and self.last.suppressed)
            return
        self._has_news = False
        capacity = dict.fromkeys(self.consumers, buckets_of(self.layout)) if self.shares else {}
        seen = Observation(
            self.layout, self.records, self.consumers, self.now_ms, capacity, self.budget, self.left_ms
        )
        verdict = decide(seen, self.policy)
        if isinstance(verdict, Stay):
            self.last, self._look_again_ms = verdict, verdict.look_again_ms
            self.suppressed += bool(verdict.suppressed)
            return
        before = self.layout
        if isinstance(verdict, Split):
            self.layout = before.split(verdict.segment, self.now_ms, verdict.lopsided)
            span = before.segments[verdict.segment].range
        elif isinstance(verdict, Rebucket):
            self.layout = before.rebucket(verdict.segment, verdict.buckets, self.now_ms)
            span = before.segments[verdict.segment].range
        else:
            self.layout = before.merge(verdict.one, verdict.other, self.now_ms, self.budget)
            span = before.segments[verdict.one].range.joined(before.segments[verdict.other].range)
        self.actions.append(Action(self.now_ms, verdict, span))
        self.counts.append((self.now_ms, len(self.layout.active)))
        self._look_again_ms, self._has_news, self._steady = None, True, (None, 0)
        self._forget()

    def _forget(self) -> None:
        """What goes with sealed segments: their records, and after ten minutes themselves."""
        for segment in self.layout.sealed:
            self.records.pop(segment.id, None)
            self._samples.pop(segment.id, None)
            self._shares.pop(segment.id, None)
        old = [s.id for s in self.layout.sealed if self.now_ms - s.sealed_ms > 10 * MINUTE]
        if old and self.prunes:
            self.layout = self.layout.prune(old)

    # -- what came of it

    @property
    def size(self) -> int:
        return len(self.layout.active)

    @property
    def most(self) -> int:
        return max((count for _, count in self.counts), default=1)

    @property
    def splits(self) -> list[int]:
        return [action.at_ms for action in self.actions if action.is_split]

    @property
    def merges(self) -> list[int]:
        return [action.at_ms for action in self.actions if action.is_merge]

    @property
    def rebuckets(self) -> list[Action]:
        return [action for action in self.actions if isinstance(action.verdict, Rebucket)]

    def attend(self, consumers: Mapping[str, int]) -> Plant:
        """Consumers have joined or left."""
        if any(consumers.get(name, 0) < count for name, count in self.consumers.items()):
            self.left_ms = self.now_ms
        self.consumers, self._has_news = consumers, True
        return self

    def most_within(self, span_ms: int) -> int:
        """The most actions within any such span."""
        times = [action.at_ms for action in self.actions]
        return max((bisect_right(times, at + span_ms) - n for n, at in enumerate(times)), default=0)


def messages(rate: float) -> Load:
    """Of 100 bytes, each delivered twice."""
    return Load(rate, 100 * rate, 2 * rate, 200 * rate)


def constant(rate: float) -> Callable[[int], Load]:
    load = messages(rate)
    return lambda _: load


def square(high: float, high_ms: int, low_ms: int, low: float = 0.0) -> Callable[[int], Load]:
    """High first, then low, and so on."""
    hot, cold = messages(high), messages(low)
    return lambda now_ms: hot if (now_ms - NOW) % (high_ms + low_ms) < high_ms else cold
