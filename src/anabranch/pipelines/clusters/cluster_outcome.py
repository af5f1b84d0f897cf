"""What settings of the balancer would have moved, and what they would have bought: figures of a replayed cluster. Pure.

Moved are bundles; each move is a pause for the topics of the bundle. Bought are brokers that are alike, and none that
has more to do than it can. Clusters that differ in size or length are compared by kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from anabranch.pipelines.clusters.replayed_cluster import (
    BalancePoint,
    ClusterTiming,
    ReplayedCluster,
    ReplayedMove,
)

# The same for all policies: the balancer's default target of the deviation, and the times within which a move counts as
# a repetition.
STD_TARGET: Final = 0.25
REPEAT_WITHIN_MS: Final = 180_000
RETURN_WITHIN_MS: Final = 3_600_000
SERIES_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class ClusterOutcome:
    """The figures of one cluster under one policy."""

    # -- what it moved
    moves: int = 0  # By decision of the balancer, or of the hash.
    moves_after_loss: int = 0  # Bundles of brokers that are gone, which any policy moves.
    splits: int = 0
    paused_topic_seconds: float = 0.0  # Of all moves.
    repeats: int = 0  # Bundles moved again within three minutes,
    returns: int = 0  # … or back to a broker that they left within the hour.
    # -- what it bought
    std_first: float = 0.0
    std_last: float = 0.0
    std_mean: float = 0.0
    unbalanced_minutes: float = 0.0  # In which the deviation was above the target;
    unbalanced_minutes_longest: float = 0.0  # … the longest such time.
    worst: float = 0.0  # The highest load of any broker.
    over_minutes: float = 0.0  # Minutes, summed over brokers, in which one had more to do than it can.
    # -- what it took
    cycles: int = 0
    reports: int = 0


def cluster_outcome(
    replayed: ReplayedCluster, timing: ClusterTiming, std_target: float = STD_TARGET
) -> ClusterOutcome:
    points, moves = replayed.points, replayed.moves
    each = replayed.look_ms / 60_000
    stretches = _unbalanced(points, std_target)
    lost = sum(one.reason == "gone" for one in moves)
    return ClusterOutcome(
        moves=len(moves) - lost,
        moves_after_loss=lost,
        splits=len(replayed.splits),
        paused_topic_seconds=sum(one.topics for one in moves) * timing.pause_ms / 1_000,
        repeats=repeats(moves, REPEAT_WITHIN_MS),
        returns=returns(moves, RETURN_WITHIN_MS),
        std_first=points[0].std,
        std_last=points[-1].std,
        std_mean=sum(one.std for one in points) / len(points),
        unbalanced_minutes=each * sum(stretches),
        unbalanced_minutes_longest=each * max(stretches, default=0),
        worst=max(one.worst for one in points),
        over_minutes=each * sum(one.over for one in points),
        cycles=replayed.cycles,
        reports=replayed.reports,
    )


def _unbalanced(points: Iterable[BalancePoint], target: float) -> list[int]:
    """The lengths of the stretches above the target, in points."""
    found = groupby(points, lambda one: one.std > target)
    return [sum(1 for _ in stretch) for is_above, stretch in found if is_above]


def repeats(moves: Iterable[ReplayedMove], within_ms: int) -> int:
    """Moves of a bundle so soon after another one of it. A broker that is gone leaves no choice, and does not count."""
    last: dict[str, int] = {}
    count = 0
    for one in moves:
        before = last.get(one.bundle)
        count += one.reason != "gone" and before is not None and one.at_ms - before < within_ms
        last[one.bundle] = one.at_ms
    return count


def returns(moves: Iterable[ReplayedMove], within_ms: int) -> int:
    """Moves of a bundle back to a broker that it has left so shortly before."""
    left: dict[tuple[str, str], int] = {}
    count = 0
    for one in moves:
        before = left.get((one.bundle, one.destination))
        count += one.source != one.destination and before is not None and one.at_ms - before < within_ms
        left[one.bundle, one.source] = one.at_ms
    return count


def series(points: Sequence[BalancePoint]) -> list[BalancePoint]:
    """The first point of each minute: enough for a plot."""
    if not points:
        return []
    start_ms = points[0].at_ms
    minutes = groupby(points, lambda one: (one.at_ms - start_ms) // SERIES_MS)
    return [next(found) for _, found in minutes]
