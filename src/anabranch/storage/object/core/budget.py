"""When requests may be made that cost money, and when one is made twice because it takes long. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

_NOTHING: Final = 1e-6
_RECENT: Final = 128
# Fewer durations than this say nothing about what is long.
_RECENT_MIN: Final = 16


class PutBudget:
    """Bounds the creations of objects a second. A log that has been quiet for a while puts at once, `burst` times.

    `per_second` is 0 for no bound."""

    def __init__(self, per_second: float, burst: int, now: float) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._left = float(burst)
        self._as_of = now

    def wait(self, now: float) -> float:
        """Seconds until there is something left; 0 if there is."""
        if not self._per_second:
            return 0.0
        self._refill(now)
        # Time that has passed adds up with errors of rounding: what is missing to a whole may be nothing.
        missing = 1.0 - self._left
        return missing / self._per_second if missing > _NOTHING else 0.0

    def take(self, now: float) -> None:
        """A put is made, whether or not anything is left: those that carry much are not delayed."""
        if self._per_second:
            self._refill(now)
            self._left = max(0.0, self._left - 1.0)

    def _refill(self, now: float) -> None:
        self._left = min(self._burst, self._left + (now - self._as_of) * self._per_second)
        self._as_of = now


class Hedging:
    """After how long a request is made a second time: when it takes longer than nearly all others did."""

    def __init__(self, seconds_min: float) -> None:
        self._seconds_min = seconds_min
        self._recent: deque[float] = deque(maxlen=_RECENT)

    def note(self, seconds: float) -> None:
        self._recent.append(seconds)

    def after(self) -> float | None:
        """None while too little is known."""
        if len(self._recent) < _RECENT_MIN:
            return None
        ordered = sorted(self._recent)
        half, most = ordered[len(ordered) // 2], ordered[len(ordered) * 95 // 100]
        return max(3 * half, most, self._seconds_min)
