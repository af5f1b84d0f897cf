"""Which brokers may own which bundles here and now: the rules of `balance/core/owner_rules.py`, made from what is
stored and from who lives, and made again when one of them changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from anabranch.balance.core.isolation import domain_of_brokers
from anabranch.balance.core.load import BrokerLoad
from anabranch.balance.core.owner_rules import OwnerRules, group_counts, owner_rules
from anabranch.broker.balance.choosing import able_brokers
from anabranch.broker.catalog.isolation import IsolationStore
from anabranch.broker.catalog.registry import BrokerRegistry
from anabranch.broker.policy.bounded_patterns import matches
from anabranch.model.bundles import BundleName


class Bounds(Protocol):
    """What a move by hand must respect."""

    def why_not(self, bundle: BundleName, broker: str) -> str | None:
        """Why an isolation policy keeps the bundle from that broker; None if none does."""
        ...

    async def refresh(self) -> None:
        """Reads what is stored: another broker may have changed it a moment ago."""
        ...


class Unbound:
    """Implements `Bounds`: every broker may own every bundle."""

    def why_not(self, bundle: BundleName, broker: str) -> str | None:
        return None

    async def refresh(self) -> None:
        pass


class Placement:
    """Implements `Bounds`. Calling it gives the rules in force."""

    def __init__(
        self,
        registry: BrokerRegistry,
        stored: IsolationStore,
        groups: Callable[[], Mapping[str, str]],
        loads: Callable[[], Mapping[str, BrokerLoad]],
        has_domains: Callable[[], bool],
    ) -> None:
        """`groups` has the anti-affinity group of each namespace that has one: call `changed` when they have changed.
        `has_domains`: groups are kept apart by failure domain, too."""
        self._registry = registry
        self._stored = stored
        self._groups = groups
        self._loads = loads
        self._has_domains = has_domains
        self._rules: OwnerRules | None = None
        self._with_domains = False
        registry.on_change(self.changed)
        stored.on_change(self.changed)

    def changed(self) -> None:
        self._rules = None

    def __call__(self) -> OwnerRules:
        with_domains = self._has_domains()
        if self._rules is None or with_domains != self._with_domains:
            self._rules, self._with_domains = self._made(with_domains), with_domains
        return self._rules

    def _made(self, with_domains: bool) -> OwnerRules:
        known_as = {broker: found.web_names for broker, found in self._registry.living().items()}
        domains: dict[str, str] = {}
        if with_domains:
            listed = domain_of_brokers(self._stored.domains)
            for broker, names in known_as.items():
                domain = next((listed[name] for name in (broker, *names) if name in listed), None)
                if domain is not None:
                    domains[broker] = domain
        able = [run.broker for run in able_brokers(self._registry)]
        return owner_rules(able, self._stored.policies, self._groups(), domains, matches, known_as=known_as)

    def why_not(self, bundle: BundleName, broker: str) -> str | None:
        rules = self()
        if rules.is_open:
            return None
        loads = {one: load.load for one, load in self._loads().items()}
        return rules.isolated(str(bundle.namespace), loads).get(broker)

    def too_close(self, bundle: BundleName, broker: str, owners: Mapping[str, str]) -> str | None:
        """Why the anti-affinity group of the bundle's namespace keeps the bundle from that broker; None if nothing
        does. `owners` has the broker of each bundle."""
        rules = self()
        if str(bundle.namespace) not in rules.groups:
            return None
        loads = {one: load.load for one, load in self._loads().items()}
        counts = group_counts(owners, rules)
        return rules.refused(str(bundle), loads, counts, owners.get(str(bundle))).get(broker)

    async def refresh(self) -> None:
        await self._stored.refresh()
