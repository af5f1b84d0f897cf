"""What the balancer of this broker did, counted by result and reason as Pulsar's metrics name them. See
`observe/metrics_balance.py`."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Final

from anabranch.balance.core.states import BundleAction, BundleChange
from anabranch.model.histogram import Histogram

# Pulsar's bounds for the durations of moves, in milliseconds, and some between them.
MOVE_BOUNDS_MS: Final = (1.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 5000.0)
ADMIN: Final = "Admin"
UNKNOWN: Final = "Unknown"


class BalanceResult(StrEnum):
    SUCCESS = "Success"
    SKIP = "Skip"
    FAILURE = "Failure"


class ChannelEvent(StrEnum):
    """Pulsar's kinds of changes in the channel."""

    ASSIGN = "Assign"
    SPLIT = "Split"
    UNLOAD = "Unload"
    OVERRIDE = "Override"


class MoveTime(StrEnum):
    """Durations that Pulsar measures of each bundle that moves."""

    UNLOAD = "unload"  # At its source, from the decision until another broker has it.
    ASSIGN = "assign"  # At its destination.
    RELEASE = "release"  # At its source, until its topics are closed.
    DISCONNECT = "disconnect"  # At its source, from then until another broker has it.


def event_of(change: BundleChange) -> ChannelEvent:
    if change.is_override:
        return ChannelEvent.OVERRIDE
    match change.action:
        case BundleAction.SPLIT | BundleAction.CREATE:
            return ChannelEvent.SPLIT
        case BundleAction.TRANSFER | BundleAction.UNLOAD | BundleAction.DISCARD | BundleAction.TOMBSTONE:
            return ChannelEvent.UNLOAD
        case _:
            return ChannelEvent.ASSIGN


class BalanceCounts:
    """Since the broker started. Every part of the balancer counts here."""

    def __init__(self) -> None:
        self.assigned: Counter[BalanceResult] = Counter()
        self.unloads: Counter[tuple[BalanceResult, str]] = Counter()
        self.splits: Counter[tuple[BalanceResult, str]] = Counter()
        # Brokers that gave bundles, each once a cycle.
        self.shed_brokers = 0
        # Mean and deviation of the loads, as the leader last saw them.
        self.load_mean = self.load_std = 0.0
        # What this broker wrote to the channel, and what it read.
        self.published: Counter[tuple[ChannelEvent, BalanceResult]] = Counter()
        self.read: Counter[ChannelEvent] = Counter()
        # Lookups of owners by the state of the bundle, and those that ended without an owner.
        self.lookups: Counter[str] = Counter()
        self.failed_lookups: Counter[str] = Counter()
        self.lookup_waits = Histogram()
        # What the leader repaired: by the kind of the repair.
        self.repairs: Counter[str] = Counter()
        self.failed_repairs = 0
        self.reports: Counter[BalanceResult] = Counter()
        # Bundles that a rule of this broker is having moved or split at this moment: it counts and tells itself.
        self.deciding: set[str] = set()
        self.move_times = {kind: Histogram(MOVE_BOUNDS_MS) for kind in MoveTime}

    def assign(self, result: BalanceResult) -> None:
        self.assigned[result] += 1

    def unload(self, result: BalanceResult, reason: str = UNKNOWN) -> None:
        """A bundle was moved, with or without a destination, or was not; `ADMIN` is the reason if an operator asked."""
        self.unloads[result, reason] += 1

    def split(self, result: BalanceResult, reason: str = UNKNOWN) -> None:
        self.splits[result, reason] += 1

    def looked_up(self, state: str, is_failed: bool) -> None:
        """A lookup has ended that found its bundle in that state."""
        self.lookups[state] += 1
        if is_failed:
            self.failed_lookups[state] += 1

    def repair(self, kind: str) -> None:
        self.repairs[kind] += 1

    @property
    def unloaded_bundles(self) -> int:
        return sum(count for (result, _), count in self.unloads.items() if result is BalanceResult.SUCCESS)

    @property
    def split_bundles(self) -> int:
        return sum(count for (result, _), count in self.splits.items() if result is BalanceResult.SUCCESS)
