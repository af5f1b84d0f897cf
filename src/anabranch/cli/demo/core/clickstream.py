"""The demo's clickstream: which visitor clicks what and when, by seed. Pure.

The rate rises and falls in two waves and ends in a quiet stretch, so that a topic has reason to split and to merge. A
few visitors click far more than the others, and each comes and goes, so that there are sessions to find. The same plan
gives the same events on every machine: received rows can be compared with those sent, one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

# (moment of the peak, width, height), in shares of the stream: two waves, the second one lower.
WAVES: Final = ((0.27, 0.105, 1.0), (0.66, 0.085, 0.8))
QUIET: Final = 0.07  # The rate between and after them, as a share of the highest wave.
_CURVE_POINTS: Final = 4096

VISITORS_PER_EVENT: Final = 1 / 250
VISITORS_MIN: Final = 40
SKEW: Final = 0.85  # Zipf: the visitor of rank r clicks in proportion to r ** -SKEW.
# Visitors come and go: in each of these stretches a share of them is absent.
STRETCHES: Final = 18
AWAY: Final = 0.55
PAGES: Final = ("/", "/search", "/item", "/item/reviews", "/cart", "/checkout", "/help", "/account")

# A click of the same visitor within this share of the stream belongs to the same session.
GAP_SHARE: Final = 1 / 22

CLOSING_KEY: Final = "~closing"


def rate_curve(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rate of events at each moment (0 to 1 of the stream); the highest wave is about 1."""
    rate = np.full(len(shares), QUIET)
    for peak, width, height in WAVES:
        rate += height * np.exp(-(((shares - peak) / width) ** 2))
    return rate


@dataclass(frozen=True)
class Clickstream:
    """`events` clicks over `seconds`."""

    events: int
    seconds: float
    seed: int = 7

    @cached_property
    def offsets_ms(self) -> NDArray[np.int64]:
        """When each event happens, from the start of the stream; rising."""
        shares = np.linspace(0.0, 1.0, _CURVE_POINTS)
        grown = np.concatenate(([0.0], np.cumsum(rate_curve((shares[1:] + shares[:-1]) / 2))))
        places = (np.arange(self.events) + 0.5) / self.events * grown[-1]
        seconds = np.interp(places, grown, shares) * self.seconds
        return np.asarray(seconds * 1000, dtype=np.int64)

    @property
    def gap_ms(self) -> int:
        """How long a visitor is silent before the next click begins a session."""
        return max(200, round(self.seconds * 10 * GAP_SHARE) * 100)

    @property
    def visitors(self) -> int:
        return max(VISITORS_MIN, int(self.events * VISITORS_PER_EVENT))

    @cached_property
    def visitor(self) -> NDArray[np.int64]:
        """The visitor of each event."""
        chance = np.random.default_rng(self.seed)
        weight = np.arange(1, self.visitors + 1) ** -SKEW
        stretch = np.minimum(self.offsets_ms * STRETCHES // max(1, int(self.seconds * 1000)), STRETCHES - 1)
        found = np.empty(self.events, dtype=np.int64)
        for number in range(STRETCHES):
            is_here = chance.random(self.visitors) >= AWAY
            is_here[chance.integers(self.visitors)] = True  # At least one visitor is present.
            grown = np.cumsum(weight * is_here)
            chosen = stretch == number
            places = chance.random(int(chosen.sum())) * grown[-1]
            found[chosen] = np.searchsorted(grown, places, side="right")
        return found

    @cached_property
    def step(self) -> NDArray[np.int64]:
        """The number of each event among its visitor's clicks, from 0 on."""
        return running_count(self.visitor)

    @cached_property
    def page(self) -> NDArray[np.int64]:
        return np.random.default_rng(self.seed + 1).integers(len(PAGES), size=self.events)

    def names(self, visitors: NDArray[np.int64]) -> list[str]:
        return [f"visitor-{number:05d}" for number in visitors.tolist()]

    def busiest(self) -> tuple[str, int]:
        """The visitor with the most clicks, and their number."""
        counts = np.bincount(self.visitor, minlength=self.visitors)
        return self.names(np.array([counts.argmax()]))[0], int(counts.max())

    def table(self) -> pa.Table:
        """Columns `key`, `value` (JSON) and `offset` (ms), a row an event, in order."""
        import pyarrow as pa
        import pyarrow.compute as pc

        compute: Any = pc
        names = pa.array(self.names(np.arange(self.visitors)))
        pages = pa.array(PAGES)

        def text(numbers: NDArray[np.int64]) -> Any:
            return pa.array(numbers).cast(pa.string())

        value = compute.binary_join_element_wise(
            '{"number":',
            text(np.arange(self.events)),
            ',"step":',
            text(self.step),
            ',"page":"',
            pages.take(pa.array(self.page)),
            '"}',
            "",
        )
        return pa.table(
            {
                "key": names.take(pa.array(self.visitor)),
                "value": value,
                "offset": pa.array(self.offsets_ms),
            }
        )


def running_count(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each element, how many equal ones come before it."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    is_first = np.concatenate(([True], ordered[1:] != ordered[:-1])) if len(ordered) else np.empty(0, bool)
    starts = np.flatnonzero(is_first)
    sizes = np.diff(np.append(starts, len(ordered)))
    found = np.empty(len(groups), dtype=np.int64)
    found[order] = np.arange(len(groups)) - np.repeat(starts, sizes)
    return found


def due(offsets_ms: NDArray[np.int64], elapsed_s: float) -> int:
    """How many events should have happened by then."""
    return int(np.searchsorted(offsets_ms, elapsed_s * 1000, side="right"))


def peak_rate(stream: Clickstream, over_s: float = 1.0) -> float:
    """The highest rate of events a second within any stretch of that length."""
    counts = np.bincount(stream.offsets_ms // int(over_s * 1000))
    return float(counts.max()) / over_s
