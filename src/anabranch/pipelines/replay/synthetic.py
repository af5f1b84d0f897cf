"""Synthetic topics: a fleet in which most are cold and a few are very large, each with a daily course of its own. Pure.

A topic depends only on its number and the fleet's seed, so it is generated where it is replayed, and again where a
reader wants to inspect it. Rates are drawn so that one topic in `sqrt(x)` has more than `x` messages a second on
average: half of the fleet stays below four, one in a hundred is above ten thousand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from anabranch.pipelines.replay.trace import (
    HASHES,
    STEP_MS,
    BadTrace,
    Consumers,
    Floats,
    KeyShares,
    Trace,
    TraceStream,
)

DAY_MS: Final = 24 * 3_600_000
# Midnight (UTC) of a Monday. Any Monday would do; a fixed one makes the same tables every time.
START_MS: Final = 1_798_416_000_000
RATE_MAX: Final = 400_000.0
SUBSCRIPTION: Final = "orders"


@dataclass(frozen=True, slots=True)
class Fleet:
    """The number of topics, the duration, and the kind."""

    topics: int
    days: float = 1.0
    seed: int = 0
    kind: str | None = None  # The kind of all topics; None for a mixture.

    def __post_init__(self) -> None:
        if self.topics < 1:
            raise BadTrace(f"{self.topics} topics: there must be one at least")
        if not 0 < self.days <= 366:
            raise BadTrace(f"{self.days:g} days: give more than 0, and 366 at most")
        if self.samples < 6:
            raise BadTrace(f"{self.days:g} days are less than a minute")
        if self.kind is not None and self.kind not in KINDS:
            raise BadTrace(f"there is no kind of topics {self.kind!r}; there are {', '.join(KINDS)}")

    @property
    def samples(self) -> int:
        return round(self.days * DAY_MS) // STEP_MS

    def name(self, number: int) -> str:
        return f"topic://synthetic/fleet-{self.seed}/t{number:07d}"


@dataclass(frozen=True, eq=False)
class Made:
    """A topic of a fleet."""

    name: str
    kind: str
    trace: Trace


def make(fleet: Fleet, number: int) -> Made:
    """Generates that topic of the fleet, the same each time."""
    chance = np.random.default_rng((fleet.seed, number))
    kind = fleet.kind or _kind(chance)
    mean = min(RATE_MAX, float(1 / chance.random() ** 2))
    shape = KINDS[kind](chance, np.arange(fleet.samples, dtype=np.float64) * (STEP_MS / DAY_MS))
    size = float(np.round(math.exp(chance.uniform(math.log(60), math.log(6_000)))))
    fan_out = int(chance.choice((0, 1, 1, 1, 2, 3)))
    streams = [_stream(chance, mean * shape, size, fan_out, _keys(chance, mean))]
    if kind == "hot-key":
        streams = [*streams, _hot_key(chance, mean, fleet.samples, size, fan_out)]
    trace = Trace(START_MS, streams, _consumers(chance, fleet.samples))
    return Made(fleet.name(number), kind, trace)


def _stream(
    chance: np.random.Generator, rates: Floats, size: float, fan_out: int, keys: KeyShares
) -> TraceStream:
    """Whole messages, with random variation; those of one topic have one size."""
    expected = rates * (STEP_MS / 1000)
    messages = np.floor(expected + np.sqrt(expected) * chance.standard_normal(len(expected)) + 0.5)
    np.maximum(messages, 0.0, out=messages)
    totals = np.zeros((4, len(messages) + 1))
    np.cumsum(messages, out=totals[0, 1:])
    for row, factor in ((1, size), (2, fan_out), (3, fan_out * size)):
        np.multiply(totals[0], factor, out=totals[row])
    return TraceStream(keys, totals)


# -- the course of rates over the day: around 1, at times given in days


def _steady(chance: np.random.Generator, at: Floats) -> Floats:
    return np.ones(len(at))


def _diurnal(chance: np.random.Generator, at: Floats) -> Floats:
    """High by day and low by night, in a random time zone; quieter at the weekend."""
    depth, phase = chance.uniform(0.5, 0.98), chance.random()
    wave: Floats = 1 + depth * np.sin(2 * np.pi * (at + phase))
    weekend = (at % 7) >= 5
    return np.where(weekend, wave * 0.6, wave)


def _bursts(chance: np.random.Generator, at: Floats) -> Floats:
    """A low level, and from time to time a few minutes of much more: batch jobs, retries, reports."""
    rates = np.full(len(at), 0.3)
    for _ in range(max(1, chance.poisson(10 * (at[-1] + at[1])))):
        start, length = chance.integers(len(at)), 1 + int(chance.exponential(40))
        rates[start : start + length] += chance.uniform(2, 20)
    return rates


def _flash_crowd(chance: np.random.Generator, at: Floats) -> Floats:
    """A usual day, and one rise within minutes to many times as much that takes an hour or two to fall."""
    rates = _diurnal(chance, at)
    start, rise = chance.uniform(0.05, 0.8) * at[-1], chance.uniform(1, 6) / 1440
    fall, height = chance.uniform(0.5, 3) / 24, chance.uniform(10, 60)
    since = at - start
    crowd = np.where(since < rise, since / rise, np.exp(-(np.maximum(since, rise) - rise) / fall))
    return rates + height * np.where(since > 0, crowd, 0.0)


KINDS: Final[Mapping[str, Callable[[np.random.Generator, Floats], Floats]]] = {
    "steady": _steady,
    "diurnal": _diurnal,
    "bursts": _bursts,
    "flash-crowd": _flash_crowd,
    "hot-key": _diurnal,  # With an additional key that gets hot for a while.
}
_MIXTURE: Final = (0.25, 0.45, 0.15, 0.05, 0.1)


def _kind(chance: np.random.Generator) -> str:
    at = int(np.searchsorted(np.cumsum(_MIXTURE), chance.random() * sum(_MIXTURE), side="right"))
    return list(KINDS)[min(at, len(KINDS) - 1)]


# -- keys and consumers


def _keys(chance: np.random.Generator, mean: float) -> KeyShares:
    """Small topics have enough keys. Among the larger ones, half have a few busy keys beside the others."""
    if mean < 300 or chance.random() < 0.5:
        return KeyShares.even()
    count = int(chance.integers(20, 400))
    weights = 1 / np.arange(1, count + 1) ** chance.uniform(0.2, 1.1)
    hashes = chance.integers(0, HASHES, count)
    return KeyShares.of(dict(zip(hashes.tolist(), weights.tolist(), strict=True)))


def _hot_key(
    chance: np.random.Generator, mean: float, samples: int, size: float, fan_out: int
) -> TraceStream:
    rates = np.zeros(samples)
    start = int(chance.integers(samples))
    length = int(chance.uniform(0.05, 0.4) * DAY_MS / STEP_MS)
    rates[start : start + length] = mean * chance.uniform(1, 8)
    return _stream(chance, rates, size, fan_out, KeyShares.of({int(chance.integers(HASHES)): 1.0}))


def _consumers(chance: np.random.Generator, samples: int) -> list[tuple[int, Consumers]]:
    """Mostly one consumer. Some topics have a group of consumers, which grows or shrinks once in a while."""
    if chance.random() < 0.9:
        return [(START_MS, {SUBSCRIPTION: 1})]
    times = chance.integers(1, samples * STEP_MS // 1000, int(chance.integers(0, 3)))
    changes = sorted({START_MS, *(START_MS + 1000 * second for second in times.tolist())})
    return [(at, {SUBSCRIPTION: int(chance.integers(1, 9))}) for at in changes]
