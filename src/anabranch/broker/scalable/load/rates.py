"""The rates of one segment, from samples of its counters. Pure.

A rate is an average over the window. Until a segment has been open for that long, its stored record stands for the time
before: a segment that moved here under a steady load keeps the same rates and is not reported again. Without a record
the average is over the time since opening, and over half the window at least, so that a burst at a segment's very
beginning is not mistaken for sustained load.
"""

from __future__ import annotations

from collections import deque

from anabranch.autoscale.load import IDLE, Load

Counters = tuple[int, int, int, int]
NOTHING: Counters = (0, 0, 0, 0)


class Rates:
    """Call `look` at each sampling; times are seconds of one clock."""

    __slots__ = ("_looks", "_seed", "_since", "_window_s")

    def __init__(self, window_s: float, since: float, seed: Load | None = None) -> None:
        """`since` is when the counters were at zero."""
        self._window_s = window_s
        self._since = since
        self._looks: deque[tuple[float, Counters]] = deque([(since, NOTHING)])
        self._seed = seed

    def is_still(self, counters: Counters) -> bool:
        """Whether nothing moved for a whole window: the rates are zero, and remain so."""
        return len(self._looks) == 1 and self._seed is None and self._looks[0][1] == counters

    def rest(self, now: float) -> None:
        """Nothing moved until now. Called instead of `look`, after `is_still`."""
        self._looks[0] = (now, self._looks[0][1])

    def look(self, now: float, counters: Counters) -> tuple[Load, Load]:
        """Takes a sample; returns the average over the window, and the rates since the last sample."""
        before = self._looks[-1]
        self._looks.append((now, counters))
        while len(self._looks) > 2 and now - self._looks[1][0] >= self._window_s:
            self._looks.popleft()
        first = self._looks[0]
        span = now - first[0]
        is_old = now - self._since >= self._window_s
        if is_old:
            self._seed = None
        if self._seed is not None:
            average = _seeded(self._seed, first[1], counters, span, self._window_s)
        else:
            # For an old segment every sample within the window is here, except those at rest before the first.
            average = _rates(first[1], counters, max(span, self._window_s / (1 if is_old else 2)))
        if average is IDLE and is_old:
            self._looks = deque([(now, counters)])
        return average, _rates(before[1], counters, max(now - before[0], 1e-3))


def _rates(before: Counters, after: Counters, seconds: float) -> Load:
    if before == after:
        return IDLE
    return Load(*((new - old) / seconds for old, new in zip(before, after, strict=True)))


def _seeded(seed: Load, before: Counters, after: Counters, span: float, window: float) -> Load:
    rest = window - span
    return Load(
        *(
            (new - old + rate * rest) / window
            for old, new, rate in zip(before, after, seed.rates, strict=True)
        )
    )
