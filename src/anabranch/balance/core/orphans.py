"""What the leader repairs: bundles of brokers that are gone, changes that are stuck, states of bundles that no
namespace has, and states that were kept for long enough. Pure.

The leader looks when it begins, when a broker goes, and at intervals. What it finds wrong it overrides, whatever step
the change had reached: the next owner takes the topics by their log's fence, so an override needs no consent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from anabranch.balance.core.fold import Fold
from anabranch.balance.core.states import SEMI_TERMINAL, BrokerRun, BundleChange, BundleState
from anabranch.model.bundles import BundleName


class RepairKind(StrEnum):
    REASSIGN = "reassign"  # To whichever broker suits best, or to `to`.
    REMOVE = "remove"  # No namespace has this bundle.
    FORGET = "forget"  # A semi-terminal state has been kept for long enough.


class RepairScope(StrEnum):
    ALL = "all"
    # For safe mode: brokers that are not registered may live. One that is registered with another run id was started
    # again, and its former run is certainly over.
    RESTARTED = "restarted"


@dataclass(frozen=True, slots=True)
class Repair:
    bundle: BundleName
    kind: RepairKind
    version: int  # Of the state that is repaired: it must not have changed meanwhile.
    reason: str
    # The broker that has the bundle's topics and can go on with them.
    to: BrokerRun | None = None


@dataclass(frozen=True, slots=True)
class RepairTimes:
    in_flight_max_ms: int = 30_000
    tombstone_ms: int = 3_600_000


def repairs(
    fold: Fold,
    living: Mapping[str, str],
    has_bundle: Callable[[BundleName], bool],
    now_ms: int,
    times: RepairTimes,
    scope: RepairScope = RepairScope.ALL,
) -> list[Repair]:
    """`living` has the run id of each living broker by its id, `has_bundle` says whether a namespace has the bundle.
    Both may be a moment behind. Sorted by bundle."""
    seen = _Seen(fold, living, has_bundle, now_ms, times)
    look = seen.repair if scope is RepairScope.ALL else seen.repair_of_restarted
    found = (look(fold.bundles[bundle]) for bundle in sorted(fold.bundles))
    return [one for one in found if one is not None]


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the leader sees at one moment."""

    fold: Fold
    living: Mapping[str, str]
    has_bundle: Callable[[BundleName], bool]
    now_ms: int
    times: RepairTimes

    def repair(self, now: BundleChange) -> Repair | None:
        if now.state in SEMI_TERMINAL:
            return self._of_semi_terminal(now)
        age_ms = self.now_ms - now.at_ms
        is_late = age_ms >= self.times.in_flight_max_ms
        dead = sorted(str(one) for one in now.named if not self._is_living(one))
        if not self.has_bundle(now.bundle):
            if dead and now.state is BundleState.SPLITTING:
                return _remove(now, "its children have replaced it")
            if is_late and not self._is_being_created(now):
                # Not sooner: a child is created before its namespace has it, and boundaries are read a moment late.
                return _remove(now, "its namespace has no such bundle")
        if dead and (found := self._of_dead(now, ", ".join(dead))) is not None:
            return found
        if now.is_in_flight and is_late:
            return self._reassign(now, f"it was {now.state} for {age_ms / 1000:.0f} s")
        return None

    def repair_of_restarted(self, now: BundleChange) -> Repair | None:
        dead = sorted(str(one) for one in now.named if self._is_restarted(one))
        owner = now.owner
        if not dead or (owner is not None and owner.broker not in self.living):
            # An owner that is not registered may serve the bundle.
            return None
        return self._of_dead(now, ", ".join(dead))

    def _of_semi_terminal(self, now: BundleChange) -> Repair | None:
        age_ms = self.now_ms - now.at_ms
        is_there = now.state is BundleState.DELETED and self.has_bundle(now.bundle)
        if is_there and age_ms >= self.times.in_flight_max_ms:
            # The namespace was deleted and made again, with this bundle.
            return self._reassign(now, "its namespace has the bundle again")
        if age_ms >= self.times.tombstone_ms:
            reason = f"it has been {now.state} for long enough"
            return Repair(now.bundle, RepairKind.FORGET, now.version, reason)
        return None

    def _of_dead(self, now: BundleChange, dead: str) -> Repair | None:
        if now.state is BundleState.ASSIGNING and now.to is not None and self._is_living(now.to):
            # The destination takes the topics of a source that is gone by itself; if it does not, the change is late.
            return None
        return self._reassign(now, f"{dead} is gone")

    def _reassign(self, now: BundleChange, reason: str) -> Repair:
        """To its owner, if that lives: it has the topics."""
        owner = now.owner
        to = owner if owner is not None and self._is_living(owner) else None
        return Repair(now.bundle, RepairKind.REASSIGN, now.version, reason, to)

    def _is_living(self, run: BrokerRun) -> bool:
        return self.living.get(run.broker) == run.run

    def _is_restarted(self, run: BrokerRun) -> bool:
        return self.living.get(run.broker, run.run) != run.run

    def _is_being_created(self, now: BundleChange) -> bool:
        parent = None if now.parent is None else self.fold.get(now.parent)
        is_split = parent is not None and parent.state is BundleState.SPLITTING
        return is_split and parent is not None and now.bundle in parent.children


def _remove(now: BundleChange, reason: str) -> Repair:
    return Repair(now.bundle, RepairKind.REMOVE, now.version, reason)
