"""What a replayed cluster comes to: figures of moves and of loads."""

from __future__ import annotations

from anabranch.pipelines.clusters.cluster_outcome import cluster_outcome, repeats, returns, series
from anabranch.pipelines.clusters.replayed_cluster import (
    BalancePoint,
    ClusterTiming,
    ReplayedCluster,
    ReplayedMove,
)

MINUTE = 60_000


def move(minute: int, bundle: str, source: str, destination: str, reason: str = "shed") -> ReplayedMove:
    return ReplayedMove(minute * MINUTE, bundle, source, destination, 10, 0.1, reason, "because")


def points(*stds: float, over: int = 0) -> tuple[BalancePoint, ...]:
    return tuple(BalancePoint(n * MINUTE, std, 0.5, 0.5 + std, over) for n, std in enumerate(stds))


def test_moves_are_told_from_those_that_a_lost_broker_makes_necessary() -> None:
    moves = (move(1, "a", "x", "y"), move(2, "b", "", "y", "gone"))
    found = cluster_outcome(
        ReplayedCluster(moves, (), points(0.1), MINUTE, 5, 7), ClusterTiming(pause_ms=500)
    )
    assert (found.moves, found.moves_after_loss) == (1, 1)
    assert found.paused_topic_seconds == 10.0
    assert (found.cycles, found.reports) == (5, 7)


def test_time_above_the_target_counts_and_the_longest_stretch_of_it() -> None:
    stds = (0.3, 0.4, 0.25, 0.3, 0.1)
    found = cluster_outcome(ReplayedCluster((), (), points(*stds, over=2), MINUTE, 0, 0), ClusterTiming())
    assert (found.unbalanced_minutes, found.unbalanced_minutes_longest) == (3, 2)
    assert (found.std_first, found.std_last, found.worst) == (0.3, 0.1, 0.9)
    assert found.over_minutes == 10


def test_a_bundle_that_moves_again_too_soon_is_a_repetition() -> None:
    moves = [move(1, "a", "x", "y"), move(3, "b", "x", "y"), move(3, "a", "y", "z"), move(6, "a", "z", "w")]
    assert repeats(moves, 3 * MINUTE) == 1
    assert repeats([*moves, move(7, "a", "", "q", "gone")], 3 * MINUTE) == 1


def test_a_bundle_that_comes_back_is_a_return() -> None:
    moves = [move(1, "a", "x", "y"), move(30, "a", "y", "z"), move(50, "a", "z", "x")]
    assert returns(moves, 60 * MINUTE) == 1
    assert returns(moves, 40 * MINUTE) == 0


def test_a_series_has_a_point_a_minute() -> None:
    told = [BalancePoint(7 + n * 20_000, 0.0, 0.0, 0.0, 0) for n in range(7)]
    assert [one.at_ms for one in series(told)] == [7, 60_007, 120_007]
    assert series([]) == []
