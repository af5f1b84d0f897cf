"""Which bundles of one loaded broker go where. Pure.

The heaviest bundle that fits goes first, so that few bundles move. It goes to the least loaded broker that may own it,
and only to one below the mean that ends no more loaded than the source. Where every bundle is too heavy for that, the
source may swap: a bundle of its own for lighter ones of the least loaded broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from anabranch.autoscale.verdict import counted, moment, percent
from anabranch.balance.core.load import BrokerLoad, BundleLoad, bundle_loads, is_outdated, namespace_of
from anabranch.balance.core.owner_rules import group_counts
from anabranch.balance.core.scales import Due, Scales
from anabranch.balance.core.settings import BalanceSettings
from anabranch.balance.core.shed_verdict import (
    BundleMove,
    ClusterLoad,
    NoShed,
    NotMoved,
    ShedReason,
    ShedState,
)
from anabranch.model.names import SYSTEM_NAMESPACE

# A swap must take this share of its source's load away, as it moves two bundles at least.
SWAP_GAIN_MIN: Final = 0.25


class _Weight(NamedTuple):
    """A bundle with what it contributes to the load of its owner, as an estimate."""

    load: float
    name: str
    bundle: BundleLoad


class Relief:
    """One cycle's moves, as they are decided."""

    def __init__(
        self,
        view: ClusterLoad,
        reports: Mapping[str, BrokerLoad],
        scales: Scales,
        state: ShedState,
        settings: BalanceSettings,
    ) -> None:
        self._view = view
        self._reports = reports
        self._scales = scales
        self._state = state
        self._settings = settings
        self._counts = group_counts(view.owners, view.rules) if settings.sheds_bundles_with_policies else {}
        self._moved: set[str] = set()
        # A broker either gives or gets in a cycle, but for swaps.
        self._gave: set[str] = set()
        self.got: set[str] = set()
        self.moves: list[BundleMove] = []
        self.not_moved: list[NotMoved] = []

    def relieve(self, source: str, due: Due) -> bool:
        """Moves bundles of the source as far as that helps; False if none can be moved."""
        before = len(self.moves)
        self._relieve(source, due)
        return len(self.moves) > before

    def _relieve(self, source: str, due: Due) -> None:
        scales, loads = self._scales, self._scales.loads
        bundles = self._movable(source)
        # A nearly idle broker is filled until both are alike; else it is enough to come down to about the mean.
        is_filling = due.reason is ShedReason.UNDERLOADED
        floor = 0.0 if is_filling else scales.mean
        enough = 0.0 if is_filling else scales.mean + self._settings.load_std_target / 10
        kept = len(self._view.tops[source].bundles) if bundles else 0
        deep: list[_Weight] = []  # They fit, but would take the source below the mean.
        heavy: list[_Weight] = []
        for one in bundles:
            if loads[source] <= enough:
                return
            if kept <= 1:
                self._leave(
                    one.name, NoShed.NO_BUNDLES, f"{source} keeps one of the bundles that it reported"
                )
                return
            if not self._fits(source, one.load):
                heavy.append(one)
            elif loads[source] - one.load < floor:
                deep.append(one)
            elif self._move(source, one, due):
                kept -= 1
        if loads[source] <= enough:
            return
        # The lightest of them: it goes the least below the mean.
        for one in sorted(deep, key=_lightest_first):
            if kept > 1 and self._fits(source, one.load) and self._move(source, one, due):
                return
        if not any(self._swap(source, one, due) for one in sorted(heavy, key=_lightest_first)):
            for one in heavy:
                because = (
                    f"with about {percent(one.load)}, its destination would be more loaded than {source}"
                )
                self._leave(one.name, NoShed.HEAVY, because)

    # -- which

    def _movable(self, source: str) -> list[_Weight]:
        """The bundles of the broker that may leave it, the heaviest first."""
        top = self._view.tops.get(source)
        if top is None or not top.bundles or is_outdated(top.measured_ms, self._view.now_ms, self._settings):
            self._leave(source, NoShed.NO_LOAD, f"{source} has not reported its top bundles of late")
            return []
        if len(top.bundles) == 1:
            because = (
                f"{source} has a single bundle with traffic, {top.bundles[0].bundle}: a split of it may help"
            )
            self._leave(source, NoShed.NO_BUNDLES, because)
            return []
        loads = bundle_loads(self._reports[source], top.bundles)
        found: list[_Weight] = []
        for bundle in top.bundles:
            one = _Weight(loads[bundle.bundle], bundle.bundle, bundle)
            if (bound := self._bound(source, one)) is not None:
                self.not_moved.append(bound)
            else:
                found.append(one)
        return sorted(found, key=lambda one: (-one.load, one.name))

    def _bound(self, owner: str, one: _Weight) -> NotMoved | None:
        """Why the bundle stays whatever the destination; None if it may move."""
        name, namespace = one.name, namespace_of(one.name)
        if self._view.owners.get(name) != owner or name in self._moved:
            return NotMoved(name, NoShed.NOT_OWNED, f"{owner} does not own it, or it is being moved")
        if namespace == str(SYSTEM_NAMESPACE) or namespace in self._settings.unshed_namespaces:
            return NotMoved(name, NoShed.EXCLUDED, f"bundles of {namespace} are never shed")
        if (last := self._state.moves.get(name)) is not None:
            free_ms = last.at_ms + self._settings.shedding_grace_ms
            if self._view.now_ms < free_ms:
                return NotMoved(
                    name, NoShed.RECENT, f"it was moved of late and stays until {moment(free_ms)}"
                )
        if not self._settings.sheds_bundles_with_policies and self._view.rules.has_policies(namespace):
            return NotMoved(name, NoShed.POLICIES, f"{namespace} has policies about its brokers")
        if one.load <= 0:
            return NotMoved(name, NoShed.IDLE, "it has no traffic")
        return None

    # -- where

    def _fits(self, source: str, load: float) -> bool:
        """Whether the least loaded broker would end no more loaded than the source."""
        return self._scales.ascending[0][0] + load <= self._scales.loads[source] - load

    def _move(self, source: str, one: _Weight, due: Due) -> bool:
        """Moves the bundle to the least loaded broker that may own it; False if there is none."""
        first: NotMoved | None = None
        refused = self._refused(one.name)
        for lowest, destination in self._scales.ascending:
            if lowest > self._scales.mean or lowest + one.load > self._scales.loads[source] - one.load:
                break
            if destination in self._gave:
                continue
            refusal = self._refusal(one.name, destination, refused)
            if refusal is None:
                self._decide(source, destination, one, due)
                return True
            first = first or refusal
        if first is not None:
            self.not_moved.append(first)
        return False

    def _refused(self, bundle: str) -> Mapping[str, str]:
        owner = self._view.owners.get(bundle)
        return self._view.rules.refused(bundle, self._scales.loads, self._counts, owner)

    def _refusal(self, bundle: str, destination: str, refused: Mapping[str, str]) -> NotMoved | None:
        """Why the bundle may not go to that broker; None if it may. `refused` has the brokers that its policies
        exclude."""
        topics = self._reports[destination].topics
        if topics >= self._settings.broker_topics_max:
            return NotMoved(
                bundle, NoShed.FULL, f"{destination} has {counted(topics, 'topic')} and gets no more"
            )
        last = self._state.moves.get(bundle)
        if last is not None and last.source == destination:
            return NotMoved(bundle, NoShed.RETURN, f"it came from {destination} at {moment(last.at_ms)}")
        return NotMoved(bundle, NoShed.POLICIES, refused[destination]) if destination in refused else None

    def _swap(self, source: str, one: _Weight, due: Due) -> bool:
        """Moves the bundle to the least loaded broker, after lighter ones came from there; False if nothing there
        makes the two alike enough."""
        lowest, destination = self._scales.ascending[0]
        load = self._scales.loads[source]
        gain_max, gain_min = (load - lowest) / 2, SWAP_GAIN_MIN * load
        top = self._view.tops.get(destination)
        if not self._settings.is_transferring or top is None:
            return False
        if self._refusal(one.name, destination, self._refused(one.name)) is not None:
            return False
        loads = bundle_loads(self._reports[destination], top.bundles)
        back = [_Weight(loads[bundle.bundle], bundle.bundle, bundle) for bundle in top.bundles]
        free = [
            other
            for other in back
            if self._bound(destination, other) is None
            and self._refusal(other.name, source, self._refused(other.name)) is None
        ]
        chosen = _counterweight(free, one.load - gain_max, one.load - gain_min)
        for other in chosen:
            self._decide(destination, source, other, due, is_swap=True)
        if chosen:
            self._decide(source, destination, one, due, is_swap=True)
        return bool(chosen)

    # -- decided

    def _decide(
        self, source: str, destination: str, one: _Weight, due: Due, *, is_swap: bool = False
    ) -> None:
        loads = self._scales.loads
        because = (
            f"{due.because}; {source} has {percent(loads[source])} and {destination} {percent(loads[destination])}, "
            f"the bundle about {percent(one.load)}{', as one part of a swap' if is_swap else ''}"
        )
        target = destination if self._settings.is_transferring else None
        self.moves.append(BundleMove(one.name, source, target, one.load, due.reason, because, is_swap))
        self._moved.add(one.name)
        if not is_swap:
            self._gave.add(source)
            self.got.add(destination)
        self._scales.weigh(source, -one.load, -one.bundle.throughput)
        self._scales.weigh(destination, one.load, one.bundle.throughput)
        group = self._view.rules.groups.get(namespace_of(one.name))
        if group is not None and group in self._counts:
            held = self._counts[group]
            held[source] = held.get(source, 0) - 1
            held[destination] = held.get(destination, 0) + 1

    def _leave(self, what: str, label: NoShed, because: str) -> None:
        self.not_moved.append(NotMoved(what, label, because))


def _lightest_first(one: _Weight) -> tuple[float, str]:
    return one.load, one.name


def _counterweight(bundles: list[_Weight], least: float, most: float) -> list[_Weight]:
    """Bundles that weigh from `least` to `most` together: the lightest single one, else few heavy ones; none if they
    do not add up."""
    ascending = sorted(bundles, key=_lightest_first)
    for one in ascending:
        if least <= one.load <= most:
            return [one]
    chosen: list[_Weight] = []
    total = 0.0
    for one in reversed(ascending):
        if total + one.load <= most:
            chosen.append(one)
            total += one.load
            if total >= least:
                return chosen
    return []
