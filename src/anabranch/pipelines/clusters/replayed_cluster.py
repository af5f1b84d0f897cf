"""What a replay of a cluster comes to: moves, splits and the loads of the brokers over time, as plain values. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClusterTiming:
    """What a replay assumes about moves."""

    move_ms: int = 1_000  # From the decision until the destination has the bundle.
    pause_ms: int = 200  # How long each topic of a moved bundle is not served.


@dataclass(frozen=True, slots=True)
class ReplayedMove:
    """A bundle that got another owner, or was to be unloaded."""

    at_ms: int
    bundle: str
    source: str  # Empty if its broker is gone.
    destination: str
    topics: int
    load: float
    # "shed", "split" for a part of a bundle that was split, "gone" if its broker is; "hash" without a balancer.
    reason: str
    because: str
    is_swap: bool = False


@dataclass(frozen=True, slots=True)
class ReplayedSplit:
    at_ms: int
    bundle: str
    broker: str
    parts: tuple[str, ...]
    because: str


@dataclass(frozen=True, slots=True)
class BalancePoint:
    """How loaded the living brokers were at one moment, by what their bundles take and not by reports."""

    at_ms: int
    std: float
    mean: float
    worst: float
    over: int  # Brokers with more than they can serve.


@dataclass(frozen=True, slots=True)
class ReplayedCluster:
    moves: tuple[ReplayedMove, ...]
    splits: tuple[ReplayedSplit, ...]
    points: tuple[BalancePoint, ...]
    look_ms: int  # Between two points.
    cycles: int  # How often `shed` was called.
    reports: int
