"""Which broker gets a bundle: the port, and a choice by numbers of bundles alone, for when no loads are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from anabranch.autoscale.verdict import counted
from anabranch.balance.core.fold import Fold
from anabranch.balance.core.states import BrokerRun
from anabranch.broker.catalog.registry import BrokerRegistry
from anabranch.model.bundles import BundleName

NOTHING_GIVEN: Final[Mapping[BundleName, BrokerRun]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class OwnerChoice:
    """A broker for a bundle, or none, and why."""

    to: BrokerRun | None
    reason: str


class Choose(Protocol):
    def __call__(
        self,
        bundle: BundleName,
        *,
        without: Collection[str] = (),
        given: Mapping[BundleName, BrokerRun] = NOTHING_GIVEN,
    ) -> OwnerChoice:
        """A broker for the bundle, of those that live and are not about to end, except the brokers `without`.

        `given` has the brokers of bundles that were chosen a moment ago and that the channel does not show yet."""
        ...


def able_brokers(registry: BrokerRegistry, without: Collection[str] = ()) -> list[BrokerRun]:
    """The brokers that may own bundles, sorted by id."""
    return [
        BrokerRun(broker, found.run_id)
        for broker, found in sorted(registry.living().items())
        if not found.is_draining and broker not in without
    ]


def owners_with(fold: Fold, given: Mapping[BundleName, BrokerRun]) -> dict[str, str]:
    """The broker of each bundle, by their names, as soon as what was given has arrived."""
    owners = {str(now.bundle): now.to.broker for now in fold.bundles.values() if now.to is not None}
    return owners | {str(bundle): run.broker for bundle, run in given.items()}


class LeastBundles:
    """Implements `Choose`: the broker that has the fewest bundles, of equals the one with the least id."""

    def __init__(self, registry: BrokerRegistry, fold: Callable[[], Fold]) -> None:
        self._registry = registry
        self._fold = fold

    def __call__(
        self,
        bundle: BundleName,
        *,
        without: Collection[str] = (),
        given: Mapping[BundleName, BrokerRun] = NOTHING_GIVEN,
    ) -> OwnerChoice:
        able = able_brokers(self._registry, without)
        if not able:
            return OwnerChoice(None, "no broker may own it")
        has = Counter(now.to for now in self._fold().bundles.values() if now.to is not None)
        has.update(given.values())
        to = min(able, key=lambda run: (has[run], run.broker))
        return OwnerChoice(to, f"{to} has {counted(has[to], 'bundle')}, no other broker has fewer")
