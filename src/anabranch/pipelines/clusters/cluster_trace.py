"""The load of a cluster over time, by bundle, and which brokers live: the input of a replay of the balancer. Pure.

A bundle's rates are a base times a course over time. Many bundles of a synthetic cluster share a course, so that
100,000 bundles over a day fit into memory; each rate of a recorded bundle has a course of its own. Nothing here depends
on who owns what: the replay decides that, and a broker's load follows from the bundles that it owns.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from anabranch.balance.core.split_points import TopicTraffic
from anabranch.model.bundles import HASH_SPACE_END, BundleName
from anabranch.pipelines.replay.trace import BadTrace, Floats

Ints = npt.NDArray[np.int64]

# The rows of rates: messages and bytes in, messages and bytes out, a second each.
RATES: Final = 4
MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class LoadCost:
    """What messages and bytes, in and out alike, cost a broker in shares of a full one."""

    each_message: float = 0.5 / 100_000
    each_byte: float = 0.5 / 100_000_000
    idle: float = 0.0

    def demand(self, messages: Floats, data: Floats) -> Floats:
        """The share of a broker that this traffic takes; above 1.0 it is more than the broker can serve."""
        return self.idle + messages * self.each_message + data * self.each_byte


@dataclass(frozen=True, eq=False)
class ClusterTrace:
    """One cluster. Sample `n` holds from `start_ms + n * step_ms` on."""

    name: str
    kind: str
    start_ms: int
    bundles: Sequence[str]
    # By rate and bundle; `course` has the row of `courses` that each base is multiplied with.
    base: Floats
    course: Ints
    # By course and sample.
    courses: Floats
    # By bundle. A bundle of a single topic cannot be divided.
    topics: Ints
    sessions: Ints
    # Every broker that ever lives, and who lives from each moment on, as numbers of `brokers`.
    brokers: Sequence[str]
    living: Sequence[tuple[int, frozenset[int]]]
    # The number of each bundle's first owner.
    owners: Ints
    cost: LoadCost = LoadCost()
    step_ms: int = MINUTE_MS

    def __post_init__(self) -> None:
        if not self.bundles or not self.living or not self.living[0][1]:
            raise BadTrace(f"{self.name}: a cluster has a bundle and a living broker at least")
        if not (np.isfinite(self.base).all() and np.isfinite(self.courses).all()):
            raise BadTrace(f"{self.name}: a rate is no number")
        if (self.base < 0).any() or (self.courses < 0).any():
            raise BadTrace(f"{self.name}: a rate is negative")

    @property
    def samples(self) -> int:
        return int(self.courses.shape[1])

    @property
    def end_ms(self) -> int:
        return self.start_ms + self.samples * self.step_ms

    @cached_property
    def versions(self) -> Ints:
        """By sample: a number that stays the same for as long as all rates do."""
        changed = (np.diff(self.courses, axis=1) != 0).any(axis=0)
        return np.concatenate(([0], np.cumsum(changed)))

    def sample(self, at_ms: int) -> int:
        return min(max(0, (at_ms - self.start_ms) // self.step_ms), self.samples - 1)

    def rates(self, sample: int) -> Floats:
        """By rate and bundle."""
        found: Floats = self.base * self.courses[self.course, sample]
        return found


def topic_places(bundle: str, count: int) -> list[int]:
    """Where the topics of a bundle lie in the hash space: spread by a hash, the same each time."""
    first, last = BundleName.parse(bundle).edges
    width = last - first + (last == HASH_SPACE_END)
    return sorted(first + zlib.crc32(f"{bundle}#{number}".encode()) % width for number in range(count))


def topic_traffic(places: Sequence[int], msg_rate: float, throughput: float) -> list[TopicTraffic]:
    """The traffic of a bundle, in equal parts for its topics."""
    parts = max(1, len(places))
    return [TopicTraffic(place, msg_rate / parts, throughput / parts) for place in places]
