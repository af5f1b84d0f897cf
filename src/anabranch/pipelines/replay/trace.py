"""The load of a topic, by sample and by key: the input of a replay. Pure.

A trace is a sum of streams. A stream divides over the hash space in the same way all the time, so that any range of it
is a share of one array of totals, however often the topic is split: one stream for a topic with steady keys, one more
for a key that gets hot, one for each stretch of recorded history.

Counts are whole, as a broker's counters are. The count of a range is rounded down in total and not sample by sample, so
nothing gets lost over a day; and the difference of two counts is exact, so that a replay of the whole array computes
the very same rates as a replay step by step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from anabranch.errors import AnabranchError
from anabranch.model.segments import HASH_MAX, HashRange

Floats = npt.NDArray[np.float64]
HASHES: Final = HASH_MAX + 1
STEP_MS: Final = 10_000


class BadTrace(AnabranchError):
    """The record, or the request, cannot be replayed; the message says why."""


@dataclass(frozen=True, eq=False)
class KeyShares:
    """The share of a stream that each hash gets: `below[n]` of it lies below hash `at[n]`, and evenly in between."""

    at: Floats
    below: Floats

    @staticmethod
    def even(span: HashRange | None = None) -> KeyShares:
        start, past = (0, HASHES) if span is None else (span.start, span.end + 1)
        return KeyShares(np.array([start, past], dtype=float), np.array([0.0, 1.0]))

    @staticmethod
    def of(weights: Mapping[int, float]) -> KeyShares:
        """The shares of single keys, by their hashes."""
        hashes = np.array(sorted(weights), dtype=float)
        sums = np.cumsum([weights[int(at)] for at in hashes])
        sums /= sums[-1]
        at = np.column_stack((hashes, hashes + 1)).ravel()
        below = np.column_stack((np.concatenate(([0.0], sums[:-1])), sums)).ravel()
        return KeyShares(at, below)

    def share(self, span: HashRange) -> float:
        if span.start == 0 and span.end == HASH_MAX:
            return 1.0
        start, past = np.interp((span.start, span.end + 1), self.at, self.below)
        return float(past - start)


@dataclass(frozen=True, eq=False)
class TraceStream:
    keys: KeyShares
    # Four rows (messages and bytes in, messages and bytes out) with the totals at the end of each sample; the first
    # column is 0.
    totals: Floats
    # The sample of the first column. Nothing flows before it, nor after the last one: in a topic that is split all day
    # long, each range has a short life.
    first: int = 0

    @staticmethod
    def of(amounts: Floats, keys: KeyShares | None = None, first: int = 0) -> TraceStream:
        """Makes a stream; `amounts` are four rows with the amounts within each sample."""
        totals = np.zeros((4, amounts.shape[1] + 1))
        np.cumsum(amounts, axis=1, out=totals[:, 1:])
        return TraceStream(keys or KeyShares.even(), totals, first)

    @property
    def last(self) -> int:
        """The sample of the last column."""
        return self.first + int(self.totals.shape[1]) - 1

    def columns(self, first: int, past: int) -> Floats:
        """The totals at those samples: one column if they are the same all the time."""
        if self.first <= first and past <= self.last + 1:
            return self.totals[:, first - self.first : past - self.first]
        if past - 1 <= self.first:
            return self.totals[:, :1]
        if first >= self.last:
            return self.totals[:, -1:]
        chosen = np.clip(np.arange(first, past), self.first, self.last) - self.first
        return self.totals[:, chosen]


# The number of ordered consumers of each subscription, from one moment on.
Consumers = Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Trace:
    """One topic. Sample `n` is taken at `start_ms + n * step_ms`; it counts the load since the sample before."""

    start_ms: int
    streams: Sequence[TraceStream]
    # Changes in the order of time; each lists all subscriptions. The first may be at the start.
    consumers: Sequence[tuple[int, Consumers]] = ()
    step_ms: int = STEP_MS
    segments: int = 1  # The topic's first number of segments.
    _rates: dict[HashRange, Floats] = field(default_factory=dict, repr=False)

    @cached_property
    def samples(self) -> int:
        return max(stream.last for stream in self.streams)

    @property
    def end_ms(self) -> int:
        return self.at(self.samples)

    def at(self, sample: int) -> int:
        return self.start_ms + sample * self.step_ms

    def shares(self, span: HashRange) -> list[float]:
        return [stream.keys.share(span) for stream in self.streams]

    def counts(self, shares: Sequence[float], first: int, past: int) -> Floats:
        """The totals of a range with these shares at each of the samples from `first` to before `past`."""
        total: Floats | None = None
        for stream, share in zip(self.streams, shares, strict=True):
            if share:
                part = stream.columns(first, past) * share
                if total is None:
                    total = part if part.shape[1] == past - first else np.repeat(part, past - first, axis=1)
                else:
                    total += part
        if total is None:
            return np.zeros((4, past - first))
        return np.floor(total, out=total)

    def counts_at(self, shares: Sequence[float], at_ms: int) -> Floats:
        """The totals at any moment, as one column: within a sample, the load is even."""
        sample, rest_ms = divmod(at_ms - self.start_ms, self.step_ms)
        if rest_ms == 0 or sample >= self.samples:
            return self.counts(shares, sample, sample + 1)
        total = np.zeros((4, 1))
        for stream, share in zip(self.streams, shares, strict=True):
            before, after = stream.columns(sample, sample + 1), stream.columns(sample + 1, sample + 2)
            # The multiplication comes before the division: whole counts stay whole where they can.
            total += (before + (after - before) * rest_ms / self.step_ms) * share
        return np.floor(total)

    def rates(self, span: HashRange) -> Floats:
        """The rates of each single sample, from sample 1 on; cached for the whole topic, which every policy needs."""
        if (found := self._rates.get(span)) is not None:
            return found
        counts = self.counts(self.shares(span), 0, self.samples + 1)
        rates = np.diff(counts, axis=1) / (self.step_ms / 1000)
        if span.start == 0 and span.end == HASH_MAX:
            self._rates[span] = rates
        return rates

    @cached_property
    def whole(self) -> Floats:
        """The rates of the whole topic, sample by sample."""
        return self.rates(HashRange(0, HASH_MAX))
