"""A replay without any short cut: every sample of every segment is looked at, and every tick asks `decide`.

It measures with the brokers' own `Rates` and keeps the timer as the live leader does. Slow, and easy to believe.
"""

from __future__ import annotations

from anabranch.autoscale.decide import Reshape, Stay, Verdict, decide
from anabranch.autoscale.load import LoadReport
from anabranch.autoscale.policy import ScalePolicy
from anabranch.autoscale.reporting import should_write
from anabranch.broker.scalable.load.rates import Rates
from anabranch.model.buckets import ONE_BUCKET
from anabranch.model.segments import SegmentId
from anabranch.pipelines.replay.replay import (
    LOOK_AGAIN_LEAST_MS,
    ReplayedReshape,
    Timing,
    act,
    first_layout,
    has_left,
    observed,
    pruned,
)
from anabranch.pipelines.replay.trace import Consumers, Trace


class Naive:
    def __init__(self, trace: Trace, policy: ScalePolicy, timing: Timing) -> None:
        self.trace, self.policy, self.timing = trace, policy, timing
        self.layout = first_layout(trace, timing)
        self.left_ms = trace.start_ms
        self.consumers: Consumers = {}
        self.records: dict[SegmentId, LoadReport] = {}
        self.rates: dict[SegmentId, tuple[int, Rates]] = {}  # With when the segment was made.
        self.made: dict[SegmentId, int] = {s.id: trace.start_ms for s in self.layout.active}
        self.decisions: list[ReplayedReshape] = []
        self.timer_ms: int | None = None
        self.evaluations = self.reports = 0

    def run(self) -> Naive:
        """Goes from moment to moment at which anything may happen."""
        trace, timing = self.trace, self.timing
        joins = list(trace.consumers)
        ticks = range(trace.start_ms + timing.first_tick_ms, trace.end_ms + 1, timing.tick_ms)
        samples = [trace.at(n) for n in range(1, trace.samples + 1)]
        known = sorted({*ticks, *samples, *(at for at, _ in joins)})
        while known or self.timer_ms is not None:
            now_ms = min(known[0] if known else self.timer_ms or 0, self.timer_ms or known[0])
            if now_ms > trace.end_ms:
                break
            if known and known[0] == now_ms:
                known.pop(0)
            for at, consumers in joins:
                if at == now_ms and consumers != self.consumers:
                    if has_left(self.consumers, consumers):
                        self.left_ms = now_ms
                    self.consumers = consumers
                    self.look(now_ms, everything=False)
            if now_ms in ticks or now_ms == self.timer_ms:
                self.look(now_ms, everything=True)
            if (now_ms - trace.start_ms) % trace.step_ms == 0 and now_ms > trace.start_ms:
                self.sample((now_ms - trace.start_ms) // trace.step_ms)
        return self

    def look(self, now_ms: int, *, everything: bool) -> None:
        while True:
            if everything:
                self.timer_ms = None
            verdict = self.decide(now_ms, everything)
            if isinstance(verdict, Stay):
                if verdict.look_again_ms is not None:
                    self.look_again(verdict.look_again_ms, now_ms)
                return
            self.act(verdict, now_ms)
            everything = True

    def look_again(self, at_ms: int, now_ms: int) -> None:
        at_ms = max(at_ms, now_ms + LOOK_AGAIN_LEAST_MS)
        if self.timer_ms is not None and self.timer_ms <= at_ms:
            return
        self.timer_ms = at_ms if at_ms - now_ms < self.timing.tick_ms else None

    def decide(self, now_ms: int, everything: bool) -> Verdict:
        self.evaluations += 1
        self.layout = pruned(self.layout, now_ms, self.trace.start_ms, self.timing)
        seen = observed(self.layout, self.records, self.consumers, now_ms, self.timing, self.left_ms)
        return decide(seen, self.policy, consumers_only=not everything)

    def act(self, verdict: Reshape, now_ms: int) -> None:
        before = {s.id for s in self.layout.active}
        self.layout, decided = act(self.layout, verdict, now_ms, self.timing.buckets or ONE_BUCKET)
        self.decisions.append(decided)
        after = {s.id for s in self.layout.active}
        for number in before - after:
            self.records.pop(number, None)
            del self.made[number]
        for number in after - before:
            self.made[number] = now_ms

    def sample(self, number: int) -> None:
        trace, at_ms = self.trace, self.trace.at(number)
        for segment in self.layout.active:
            if self.made[segment.id] == at_ms:
                continue  # The round began before it was there.
            shares = trace.shares(segment.range)
            began = trace.counts_at(shares, self.made[segment.id])[:, 0]
            counts = trace.counts(shares, number, number + 1)[:, 0]
            a, b, c, d = (int(count) for count in counts - began)
            known = self.rates.get(segment.id)
            if known is None or known[0] != self.made[segment.id]:
                before_s = (number - 1) * trace.step_ms / 1000
                known = self.rates[segment.id] = (
                    self.made[segment.id],
                    Rates(self.timing.window_ms / 1000, before_s),
                )
            load, _ = known[1].look(number * trace.step_ms / 1000, (a, b, c, d))
            stored = self.records.get(segment.id)
            if should_write(load, None if stored is None else stored.load, self.policy, self.timing.change):
                self.reports += 1
                self.records[segment.id] = LoadReport(load, at_ms)
