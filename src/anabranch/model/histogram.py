"""A histogram of durations: counts between bounds. Data plane: one addition per event, which is not kept.

One thread adds; others may read at any time and see some earlier moment.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Final

# From a tenth of a millisecond to ten seconds, in seconds, including all bounds of Pulsar's metrics.
LATENCIES: Final = (
    *(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
)


class Histogram:
    """`counts[i]` events were at most `bounds[i]` and above the bound before; the last count is of events above all
    bounds."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = LATENCIES) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)


class Recent:
    """What a histogram has counted since the oldest of the last few calls of `turn`."""

    def __init__(self, histogram: Histogram, turns: int = 6) -> None:
        self._histogram = histogram
        self._before: deque[list[int]] = deque([list(histogram.counts)], maxlen=turns)

    def turn(self) -> None:
        self._before.append(list(self._histogram.counts))

    @property
    def counts(self) -> list[int]:
        """Counts by bound, as in the histogram."""
        return [now - then for now, then in zip(self._histogram.counts, self._before[0], strict=True)]

    def quantile(self, share: float) -> float:
        """The duration below which this share of the recent events lies, interpolated between two bounds. NaN if there
        were none."""
        return quantile(self._histogram.bounds, self.counts, share)

    def between(self, bounds: Sequence[float]) -> list[int]:
        """Recent events up to each of these bounds and above the one before, then all others. The bounds are some of
        the histogram's own."""
        found = [0] * (len(bounds) + 1)
        for bound, count in zip((*self._histogram.bounds, float("inf")), self.counts, strict=True):
            found[bisect_left(bounds, bound)] += count
        return found


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float:
    wanted = share * sum(counts)
    below, low = 0, 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count and below + count >= wanted:
            return low + (bound - low) * max(0.0, wanted - below) / count
        below += count
        low = bound
    return bounds[-1] if sum(counts) else float("nan")
