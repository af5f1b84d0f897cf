"""Where a bundle is cut, by Pulsar's four algorithms, from the hashes and the traffic of its topics. Pure.

A point is the first hash of the part to its right. Every algorithm but two leaves topics in each part: the one that
halves the range, and positions that an operator has named.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import assert_never

from anabranch.autoscale.verdict import counted
from anabranch.balance.core.settings import BalanceSettings, SplitAlgorithm
from anabranch.model.bundles import HASH_SPACE_END, BundleName, bundle_hash
from anabranch.model.names import TopicName


@dataclass(frozen=True, slots=True)
class TopicTraffic:
    """A topic by its place in the hash space, with what flows through it in both directions."""

    place: int
    msg_rate: float = 0.0
    throughput: float = 0.0

    @classmethod
    def of(cls, topic: TopicName, msg_rate: float = 0.0, throughput: float = 0.0) -> TopicTraffic:
        return cls(bundle_hash(topic), msg_rate, throughput)


@dataclass(frozen=True, slots=True)
class SplitPoints:
    points: tuple[int, ...]  # Ascending, strictly within the bundle; one at least.
    because: str


@dataclass(frozen=True, slots=True)
class NoPoints:
    because: str


def children(bundle: BundleName, points: Sequence[int]) -> tuple[BundleName, ...]:
    """The bundles that a split at these points makes, ascending."""
    first, last = bundle.edges
    edges = (first, *points, last)
    assert all(one < other for one, other in pairwise(edges))
    return tuple(BundleName(bundle.namespace, f"0x{one:08x}_0x{other:08x}") for one, other in pairwise(edges))


def split_points(
    bundle: BundleName,
    algorithm: SplitAlgorithm,
    topics: Iterable[TopicTraffic],
    settings: BalanceSettings,
    *,
    positions: Iterable[int] = (),
    is_forced: bool = False,
) -> SplitPoints | NoPoints:
    """Where an operator's split cuts the bundle. `topics` are those of the bundle: topics that hash elsewhere do not
    count. Positions are for their algorithm; with `is_forced` the bundle need not have topics to be cut there."""
    first, last = bundle.edges
    if last - first < 2:
        return NoPoints(f"{bundle} covers a single hash and cannot be divided further")
    inside = _inside(bundle, topics)
    match algorithm:
        case SplitAlgorithm.RANGE:
            return SplitPoints((first + (last - first) // 2,), "the range is halved")
        case SplitAlgorithm.TOPIC_COUNT:
            return _by_count(inside)
        case SplitAlgorithm.TRAFFIC:
            return _by_traffic(inside, settings)
        case SplitAlgorithm.POSITIONS:
            points = tuple(sorted({one for one in positions if first < one < last}))
            if not points:
                return NoPoints(f"no position lies within {bundle}")
            if len(inside) < 2 and not is_forced:
                return NoPoints(_few(inside))
            return SplitPoints(points, f"{counted(len(points), 'position')} given by hand")
        case _:
            assert_never(algorithm)


def automatic_points(
    bundle: BundleName, topics: Iterable[TopicTraffic], room: int, settings: BalanceSettings
) -> SplitPoints | NoPoints:
    """Where an automatic split cuts the bundle, into so many bundles more as there is room for.

    The configured algorithm decides if it leaves topics in each part. Where it does not, the number of topics does: a
    cut that leaves a part empty would be followed by another and another, until the namespace has all its bundles.
    """
    listed = _inside(bundle, topics)
    algorithm = settings.split_algorithm
    found = split_points(bundle, algorithm, listed, settings)
    if isinstance(found, SplitPoints) and algorithm is SplitAlgorithm.RANGE and not _divides(found, listed):
        found = NoPoints("a half of the range would have no topics")
    if isinstance(found, NoPoints) and algorithm is not SplitAlgorithm.TOPIC_COUNT:
        by_count = split_points(bundle, SplitAlgorithm.TOPIC_COUNT, listed, settings)
        if isinstance(by_count, NoPoints):
            return by_count
        found = SplitPoints(by_count.points, f"{by_count.because}, as {found.because}")
    if isinstance(found, NoPoints) or len(found.points) <= room:
        return found
    if room < 1:
        return NoPoints("the namespace has as many bundles as it may")
    return SplitPoints(found.points[:room], f"{found.because}, as far as there is room for bundles")


def _inside(bundle: BundleName, topics: Iterable[TopicTraffic]) -> list[TopicTraffic]:
    """The topics of the bundle. A point lies below the end of the hash space, so that the very last hash cannot be told
    apart from the one before."""
    first, last = bundle.edges
    found = []
    for one in topics:
        if one.place == last == HASH_SPACE_END:
            found.append(replace(one, place=last - 1))
        elif first <= one.place < last:
            found.append(one)
    return found


def _divides(found: SplitPoints, topics: Iterable[TopicTraffic]) -> bool:
    places = sorted(one.place for one in topics)
    cuts = [0, *(bisect_left(places, point) for point in found.points), len(places)]
    return all(one < other for one, other in pairwise(cuts))


def _few(topics: Sequence[TopicTraffic]) -> str:
    return f"the bundle has {counted(len(topics), 'topic')}, and two are needed to divide them"


def _by_count(topics: Sequence[TopicTraffic]) -> SplitPoints | NoPoints:
    """As many topics on both sides, as far as their hashes can be told apart."""
    places = sorted(one.place for one in topics)
    if len(places) < 2:
        return NoPoints(_few(topics))
    cuts = [at for at in range(1, len(places)) if places[at - 1] < places[at]]
    if not cuts:
        return NoPoints(f"all {len(places)} topics have the same hash")
    # The lower one of two that are equally near the middle.
    at = min(cuts, key=lambda cut: (abs(2 * cut - len(places)), cut))
    left, right = places[at - 1], places[at]
    point = max(left + (right - left) // 2, left + 1)
    return SplitPoints((point,), f"{at} of the topics on one side and {len(places) - at} on the other")


def _by_traffic(topics: Iterable[TopicTraffic], settings: BalanceSettings) -> SplitPoints | NoPoints:
    """A cut wherever the next topic would take a part above what a bundle may have."""
    rates: dict[int, tuple[float, float]] = {}
    for one in topics:
        if one.msg_rate > 0 or one.throughput > 0:
            rate, data = rates.get(one.place, (0.0, 0.0))
            rates[one.place] = rate + one.msg_rate, data + one.throughput
    if len(rates) < 2:
        return NoPoints("fewer than two topics have traffic")
    rate_max, data_max = settings.bundle_msg_rate_max, settings.bundle_bandwidth_max
    enough = 1 + settings.traffic_difference_percent / 100
    rate, data = (sum(one[at] for one in rates.values()) for at in (0, 1))
    if rate < rate_max * enough and data < data_max * enough:
        return NoPoints(
            f"its traffic is not {settings.traffic_difference_percent} % over what a bundle may have"
        )
    points: list[int] = []
    places = sorted(rates)
    rate, data = rates[places[0]]
    for left, right in pairwise(places):
        more = rates[right]
        if rate + more[0] > rate_max or data + more[1] > data_max:
            points.append(left + (right - left) // 2 + 1)
            rate, data = more
        else:
            rate, data = rate + more[0], data + more[1]
    if not points:
        return NoPoints("no cut would divide its traffic")
    return SplitPoints(tuple(points), f"the traffic makes {counted(len(points) + 1, 'part')}")
