"""Which brokers may own a bundle: isolation policies first, then the spread of anti-affinity groups. Pure.

A namespace with an isolation policy belongs to the policy's primary brokers, and to its secondary ones too while fewer
primary ones are available than the policy wants. A namespace without one belongs to the shared brokers: those that are
primary for no policy. Namespaces of an anti-affinity group are kept apart: a bundle of the group goes to a failure
domain with the fewest bundles of the group, and there to a broker with the fewest.

`OwnerRules` are made for one set of living brokers, and made again when the brokers or the policies change.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final

from anabranch.autoscale.verdict import counted
from anabranch.balance.core.isolation import IsolationPolicy, Matcher, broker_matches, policy_of
from anabranch.balance.core.load import namespace_of

# Pulsar's domain of brokers that are in none.
DEFAULT_DOMAIN: Final = "default"

# By group and broker: how many bundles of the group the broker owns.
GroupCounts = Mapping[str, Mapping[str, int]]
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
NO_NAMES: Final[Mapping[str, Collection[str]]] = MappingProxyType({})


class BrokerAssignment(Enum):
    """What a broker is to a namespace, by Pulsar's names."""

    PRIMARY = "primary"
    SECONDARY = "secondary"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class OwnerRules:
    """Make them with `owner_rules`."""

    brokers: tuple[str, ...]
    policies: Mapping[str, IsolationPolicy]
    groups: Mapping[str, str]
    domains: Mapping[str, str]
    matches: Matcher
    # By policy, those of the living brokers that its patterns match. A broker that is primary is not secondary.
    primaries: Mapping[str, frozenset[str]]
    secondaries: Mapping[str, frozenset[str]]
    # The brokers that are primary for a policy, with the reason why they take no other namespaces.
    unshared: Mapping[str, str]
    _policy_names: dict[str, str | None] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_open(self) -> bool:
        """Whether every broker may own every bundle."""
        return not self.policies and not self.groups

    def policy(self, namespace: str) -> str | None:
        """The name of the namespace's isolation policy. Matched once: the same patterns give the same answer."""
        if namespace not in self._policy_names:
            self._policy_names[namespace] = policy_of(namespace, self.policies, self.matches)
        return self._policy_names[namespace]

    def assignment(self, namespace: str, broker: str) -> BrokerAssignment:
        """What the broker is to the namespace. As in Pulsar, one that its policy does not name is shared."""
        name = self.policy(namespace)
        if name is not None and broker in self.primaries[name]:
            return BrokerAssignment.PRIMARY
        if name is not None and broker in self.secondaries[name]:
            return BrokerAssignment.SECONDARY
        return BrokerAssignment.SHARED

    def has_policies(self, namespace: str) -> bool:
        """Whether its bundles may go to some of the brokers only."""
        return namespace in self.groups or self.policy(namespace) is not None

    def refused(
        self, bundle: str, loads: Mapping[str, float], counts: GroupCounts, owner: str | None = None
    ) -> Mapping[str, str]:
        """The brokers that may not own the bundle, each with the reason. `loads` has the known loads of brokers;
        `owner` has the bundle now, which does not count against it."""
        if self.is_open:
            return NOTHING
        namespace = namespace_of(bundle)
        refused = self.isolated(namespace, loads)
        group = self.groups.get(namespace)
        if group is not None:
            held = Counter(counts.get(group, {}))
            if owner is not None:
                held[owner] -= 1
            refused |= self._too_close(group, [one for one in self.brokers if one not in refused], held)
        return refused

    def isolated(self, namespace: str, loads: Mapping[str, float]) -> dict[str, str]:
        """The brokers from which isolation policies keep the namespace, each with the reason."""
        name = self.policy(namespace)
        if name is None:
            return dict(self.unshared)
        policy, primaries = self.policies[name], self.primaries[name]
        available = sum(policy.is_available(loads.get(broker)) for broker in primaries)
        has_failed_over = available < policy.available_min
        refused = {}
        for broker in self.brokers:
            if broker in primaries or (has_failed_over and broker in self.secondaries[name]):
                continue
            refused[broker] = (
                f"{broker} is a secondary broker of the isolation policy {name}, of whose primary ones "
                f"{available} are available and {policy.available_min} suffice"
                if broker in self.secondaries[name]
                else f"{broker} is no broker of the isolation policy {name}"
            )
        return refused

    def _too_close(self, group: str, brokers: Collection[str], held: Mapping[str, int]) -> dict[str, str]:
        refused: dict[str, str] = {}
        by_domain: defaultdict[str, int] = defaultdict(int)
        if self.domains:
            for broker in brokers:
                by_domain[self._domain(broker)] += held.get(broker, 0)
            fewest = min(by_domain.values(), default=0)
            for broker in brokers:
                domain = self._domain(broker)
                if by_domain[domain] > fewest:
                    has = counted(by_domain[domain], "bundle")
                    refused[broker] = (
                        f"the failure domain {domain} of {broker} has {has} of the group {group}, another {fewest}"
                    )
        left = [one for one in brokers if one not in refused]
        fewest = min((held.get(one, 0) for one in left), default=0)
        for broker in left:
            if held.get(broker, 0) > fewest:
                has = counted(held[broker], "bundle")
                refused[broker] = f"{broker} has {has} of the group {group}, another broker {fewest}"
        return refused

    def _domain(self, broker: str) -> str:
        return self.domains.get(broker, DEFAULT_DOMAIN)


def owner_rules(
    brokers: Iterable[str],
    policies: Mapping[str, IsolationPolicy],
    groups: Mapping[str, str],
    domains: Mapping[str, str],
    matches: Matcher,
    *,
    known_as: Mapping[str, Collection[str]] = NO_NAMES,
) -> OwnerRules:
    """The rules for these living brokers. `groups` has the anti-affinity group of each namespace that has one,
    `domains` the failure domain of each broker in one; empty where failure domains are switched off. `known_as` has the
    other names of brokers, which patterns may match."""
    living = tuple(sorted(brokers))
    names = {one: (one, *known_as.get(one, ())) for one in living}
    primaries = {
        name: frozenset(one for one in living if broker_matches(policy.primary, names[one], matches))
        for name, policy in policies.items()
    }
    secondaries = {
        name: frozenset(one for one in living if broker_matches(policy.secondary, names[one], matches))
        - primaries[name]
        for name, policy in policies.items()
    }
    unshared = {
        broker: f"{broker} is a primary broker of the isolation policy {name}"
        for name in sorted(primaries)
        for broker in sorted(primaries[name])
    }
    # As in Pulsar, the case of a group's letters is the same to it.
    folded = {namespace: group.casefold() for namespace, group in groups.items() if group.strip()}
    return OwnerRules(living, policies, folded, domains, matches, primaries, secondaries, unshared)


def no_rules(brokers: Iterable[str]) -> OwnerRules:
    """The rules of a cluster without policies and groups: every broker may own every bundle."""
    return owner_rules(brokers, {}, {}, {}, lambda pattern, text: False)


def group_counts(owners: Mapping[str, str], rules: OwnerRules) -> dict[str, dict[str, int]]:
    """How many bundles of each anti-affinity group each broker owns. `owners` has the broker of each bundle."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    if rules.groups:
        for bundle, broker in owners.items():
            if (group := rules.groups.get(namespace_of(bundle))) is not None:
                found[group][broker] += 1
    return {group: dict(counts) for group, counts in found.items()}
