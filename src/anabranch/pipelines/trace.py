"""What flowed through a topic, sample by sample and key by key: the input of a replay. Pure.

A trace is a sum of streams. A stream divides over the hash space in the same way all the time, so that any range of it
is a share of one array of totals, however often the topic is split: one stream for a topic with steady keys, one more
for a key that gets hot, one for each stretch of recorded history.

Counts are whole, as a broker's counters are. What a range got is rounded down from what the streams say, in total and
not sample by sample, so nothing gets lost over a day; and the difference of two counts is exact, so that whoever looks
at a trace in one go computes the very same rates as whoever goes through it step by step.
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
    """What was recorded, or asked for, cannot be replayed; the message says why."""


@dataclass(frozen=True, eq=False)
class Keys:
    """Which share of a stream each hash gets: `below[n]` of it lies below hash `at[n]`, and evenly in between."""

    at: Floats
    below: Floats

    @staticmethod
    def even(span: HashRange | None = None) -> Keys:
        start, past = (0, HASHES) if span is None else (span.start, span.end + 1)
        return Keys(np.array([start, past], dtype=float), np.array([0.0, 1.0]))

    @staticmethod
    def of(weights: Mapping[int, float]) -> Keys:
        """Single keys, by their hashes."""
        hashes = np.array(sorted(weights), dtype=float)
        sums = np.cumsum([weights[int(at)] for at in hashes])
        sums /= sums[-1]
        at = np.column_stack((hashes, hashes + 1)).ravel()
        below = np.column_stack((np.concatenate(([0.0], sums[:-1])), sums)).ravel()
        return Keys(at, below)

    def share(self, span: HashRange) -> float:
        if span.start == 0 and span.end == HASH_MAX:
            return 1.0
        start, past = np.interp((span.start, span.end + 1), self.at, self.below)
        return float(past - start)


@dataclass(frozen=True, eq=False)
class Stream:
    keys: Keys
    # Four rows (messages and bytes in, messages and bytes out) of what has flowed by the end of each sample; the
    # first column is 0.
    totals: Floats
    # The sample of the first column. Before it nothing flows, nor after the last one: of a topic that was split all
    # day long, each range has a short life.
    first: int = 0

    @staticmethod
    def of(amounts: Floats, keys: Keys | None = None, first: int = 0) -> Stream:
        """`amounts` are four rows of what flows within each sample."""
        totals = np.zeros((4, amounts.shape[1] + 1))
        np.cumsum(amounts, axis=1, out=totals[:, 1:])
        return Stream(keys or Keys.even(), totals, first)

    @property
    def last(self) -> int:
        """The sample of the last column."""
        return self.first + int(self.totals.shape[1]) - 1

    def columns(self, first: int, past: int) -> Floats:
        """The totals by those samples: one column if they are the same all the time."""
        if self.first <= first and past <= self.last + 1:
            return self.totals[:, first - self.first : past - self.first]
        if past - 1 <= self.first:
            return self.totals[:, :1]
        if first >= self.last:
            return self.totals[:, -1:]
        chosen = np.clip(np.arange(first, past), self.first, self.last) - self.first
        return self.totals[:, chosen]


# From when on a subscription has so many ordered consumers.
Consumers = Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Trace:
    """One topic. Sample `n` is taken at `start_ms + n * step_ms`; what it counts flowed since the one before."""

    start_ms: int
    streams: Sequence[Stream]
    # Changes, in the order of time; each gives all subscriptions. The first may be at the start.
    consumers: Sequence[tuple[int, Consumers]] = ()
    step_ms: int = STEP_MS
    segments: int = 1  # That the topic begins with.
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
        """What a range with these shares has got by each of the samples from `first` to before `past`."""
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
        """What it has got by any moment: within a sample, everything flows evenly. One column."""
        sample, rest_ms = divmod(at_ms - self.start_ms, self.step_ms)
        if rest_ms == 0 or sample >= self.samples:
            return self.counts(shares, sample, sample + 1)
        total = np.zeros((4, 1))
        for stream, share in zip(self.streams, shares, strict=True):
            before, after = stream.columns(sample, sample + 1), stream.columns(sample + 1, sample + 2)
            # First times, then by: whole counts stay whole where they can.
            total += (before + (after - before) * rest_ms / self.step_ms) * share
        return np.floor(total)

    def rates(self, span: HashRange) -> Floats:
        """Of each sample by itself, from sample 1 on; kept for the whole topic, which every policy asks for."""
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
