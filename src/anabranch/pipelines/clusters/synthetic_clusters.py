"""Synthetic clusters: brokers whose loads differ in one of several ways, the same each time for the same seed. Pure.

All begin with the placement by hash. The loads of bundles are drawn so that a few are much heavier than the others, and
are then scaled so that each broker has the load that the kind of the cluster gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from anabranch.model.bundles import HASH_SPACE_END
from anabranch.pipelines.clusters.cluster_trace import MINUTE_MS, ClusterTrace, Ints, LoadCost
from anabranch.pipelines.clusters.hashed_placement import hashed_owners
from anabranch.pipelines.replay.synthetic import START_MS
from anabranch.pipelines.replay.trace import BadTrace, Floats

NAMESPACE_BUNDLES: Final = 64
HOT, COLD, USUAL = 0.95, 0.1, 0.35
HOT_BUNDLE: Final = 0.8
MESSAGE_BYTES: Final = 1_000
ZONES: Final = 24


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """What a synthetic cluster follows from."""

    kind: str
    brokers: int
    bundles: int
    hours: float = 2.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in CLUSTER_KINDS:
            raise BadTrace(
                f"there is no kind of clusters {self.kind!r}; there are {', '.join(CLUSTER_KINDS)}"
            )
        if self.brokers < 2 or self.bundles < 2 * self.brokers:
            raise BadTrace(
                f"{self.brokers} brokers with {self.bundles} bundles: there must be 2 brokers at least, and 2 bundles "
                "for each"
            )
        if not 0.25 <= self.hours <= 744:
            raise BadTrace(f"{self.hours:g} hours: give a quarter of an hour at least, and 744 hours at most")

    @property
    def samples(self) -> int:
        return round(self.hours * 60)

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.brokers}x{self.bundles}-{self.seed}"


@dataclass(eq=False)
class _Draft:
    """A cluster in the making. A kind changes what it is about."""

    spec: ClusterSpec
    chance: np.random.Generator
    owners: Ints
    weights: Floats  # By bundle: the share of a broker that it takes while its course is 1.
    course: Ints  # By bundle.
    courses: Floats
    topics: Ints
    living: list[tuple[int, frozenset[int]]]

    def scale(self, demand: Floats) -> None:
        """Gives each broker that share of its full load."""
        sums = np.bincount(self.owners, self.weights, minlength=len(demand))
        self.weights *= (demand / np.maximum(sums, 1e-12))[self.owners]


def made_cluster(spec: ClusterSpec) -> ClusterTrace:
    """Makes that cluster, the same each time."""
    chance = np.random.default_rng(
        (spec.seed, spec.brokers, spec.bundles, list(CLUSTER_KINDS).index(spec.kind))
    )
    bundles = _bundle_names(spec)
    joining = spec.brokers // 4 if spec.kind == "brokers" else 0
    brokers = [f"broker-{number:04}:6650" for number in range(spec.brokers + joining)]
    first = frozenset(range(spec.brokers))
    draft = _Draft(
        spec,
        chance,
        hashed_owners(bundles, brokers[: spec.brokers]),
        np.minimum(chance.pareto(1.5, spec.bundles) + 1, 10.0),
        np.zeros(spec.bundles, dtype=np.int64),
        np.ones((1, spec.samples)),
        chance.integers(2, 60, spec.bundles),
        [(START_MS, first)],
    )
    CLUSTER_KINDS[spec.kind](draft)
    cost = LoadCost()
    # As many messages out as in: each of both is half of the bundle's share.
    messages = draft.weights / (cost.each_message + MESSAGE_BYTES * cost.each_byte) / 2
    base = np.array([messages, MESSAGE_BYTES * messages, messages, MESSAGE_BYTES * messages])
    return ClusterTrace(
        name=spec.name,
        kind=spec.kind,
        start_ms=START_MS,
        bundles=bundles,
        base=base,
        course=np.broadcast_to(draft.course, base.shape),
        courses=draft.courses,
        topics=draft.topics,
        sessions=2 * draft.topics,
        brokers=brokers,
        living=draft.living,
        owners=draft.owners,
        cost=cost,
    )


def _bundle_names(spec: ClusterSpec) -> list[str]:
    """Namespaces of `NAMESPACE_BUNDLES` bundles of equal width; the last one may have fewer, wider ones."""
    names: list[str] = []
    for number in range(-(-spec.bundles // NAMESPACE_BUNDLES)):
        count = min(NAMESPACE_BUNDLES, spec.bundles - len(names))
        edges = [at * (HASH_SPACE_END + 1) // count for at in range(count)] + [HASH_SPACE_END]
        names += [
            f"tenant-{number % 100:02}/ns-{number:05}/0x{low:08x}_0x{high:08x}"
            for low, high in pairwise(edges)
        ]
    return names


# -- kinds


def _skewed(draft: _Draft) -> None:
    """A third of the brokers is nearly full, the others are nearly idle, all the time."""
    demand = np.where(np.arange(draft.spec.brokers) % 3 == 0, HOT, COLD)
    draft.scale(demand * draft.chance.uniform(0.9, 1.1, len(demand)))


def _reversed(draft: _Draft) -> None:
    """Every second broker is nearly full, the others are nearly idle; after half of the time, the bundles that were
    idle are busy and those that were busy are idle."""
    is_hot = np.arange(draft.spec.brokers) % 2 == 0
    draft.scale(np.where(is_hot, HOT, COLD))
    is_late = np.arange(draft.spec.samples) >= draft.spec.samples // 2
    draft.course = is_hot[draft.owners].astype(np.int64)
    draft.courses = np.array([np.where(is_late, HOT / COLD, 1.0), np.where(is_late, COLD / HOT, 1.0)])


def _diurnal(draft: _Draft) -> None:
    """Bundles are busy by day and quiet by night, in 24 zones; brokers differ in what they have by chance."""
    draft.scale(draft.chance.uniform(0.15, 0.75, draft.spec.brokers))
    hours = np.arange(draft.spec.samples) / 60
    phases = np.arange(ZONES)[:, None]
    draft.courses = 1 + 0.9 * np.sin(2 * np.pi * (hours[None, :] - phases) / 24)
    # The bundles of a broker are not in one zone, but most are near one: load wanders through the cluster.
    near = draft.chance.integers(0, ZONES, draft.spec.brokers)[draft.owners]
    draft.course = (near + draft.chance.integers(-3, 4, draft.spec.bundles)) % ZONES


def _hot_bundle(draft: _Draft) -> None:
    """A bundle of a single topic gets hot for half of the time: it can be neither divided nor shared. Another one has
    many topics and can be divided."""
    draft.scale(np.full(draft.spec.brokers, USUAL))
    samples = np.arange(draft.spec.samples)
    is_hot = (samples >= len(samples) // 4) & (samples < 3 * len(samples) // 4)
    single, many = (int(one) for one in draft.chance.choice(draft.spec.bundles, 2, replace=False))
    for row, bundle in enumerate((single, many), start=1):
        draft.course[bundle] = row
        rest = np.where(is_hot, HOT_BUNDLE / draft.weights[bundle], 1.0)
        draft.courses = np.concatenate((draft.courses, rest[None, :]))
    draft.topics[single], draft.topics[many] = 1, 100


def _brokers(draft: _Draft) -> None:
    """A quarter more brokers join after a quarter of the time; an eighth of the first ones leave after half of it."""
    count = draft.spec.brokers
    draft.scale(draft.chance.uniform(0.8, 1.2, count) * USUAL)
    more, leaving = count // 4, max(1, count // 8)
    at = [START_MS + part * draft.spec.samples // 4 * MINUTE_MS for part in (1, 2)]
    every = frozenset(range(count + more))
    draft.living += [(at[0], every), (at[1], every - frozenset(range(leaving)))]


CLUSTER_KINDS: Final[Mapping[str, Callable[[_Draft], None]]] = {
    "skewed": _skewed,
    "reversed": _reversed,
    "diurnal": _diurnal,
    "hot-bundle": _hot_bundle,
    "brokers": _brokers,
}
