"""Isolation policies and failure domains as values: their JSON, what they match, what a change of one unloads. Pure.

An isolation policy gives namespaces, by patterns, their own brokers: the primary ones, and secondary ones that help
out when too few primary ones are available. A failure domain names brokers that fail together. `owner_rules.py` decides
by both. Patterns come from users and their cost must be bounded, so callers pass the function that matches one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from anabranch.errors import AnabranchError

# Whether the pattern matches the whole text.
Matcher = Callable[[str, str], bool]

MIN_AVAILABLE: Final = "min_available"
# At this threshold no usage makes a broker unavailable.
USAGE_THRESHOLD_MAX: Final = 100


class BadIsolation(AnabranchError):
    """A policy or failure domain that cannot be used; the message says what to change."""

    code = 22  # NotAllowedError


class UnloadScope(StrEnum):
    """Which namespaces are unloaded when a policy is set, by Pulsar's names."""

    ALL = "all_matching"
    NONE = "none"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class IsolationPolicy:
    """Which brokers own the bundles of some namespaces."""

    namespaces: tuple[str, ...]
    primary: tuple[str, ...]
    secondary: tuple[str, ...] = ()
    # Secondary brokers are used while fewer primary ones are available than this.
    available_min: int = 1
    # A primary broker with a load of this many percent or more is not available.
    usage_threshold: int = USAGE_THRESHOLD_MAX
    unload_scope: UnloadScope | None = None

    def is_available(self, load: float | None) -> bool:
        """Whether a living primary broker with that load counts as available; one without a known load does."""
        return (
            load is None or self.usage_threshold >= USAGE_THRESHOLD_MAX or 100 * load < self.usage_threshold
        )

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "namespaces": list(self.namespaces),
            "primary": list(self.primary),
            "secondary": list(self.secondary),
            "auto_failover_policy": {
                "policy_type": MIN_AVAILABLE,
                # Texts, as in Pulsar.
                "parameters": {
                    "min_limit": str(self.available_min),
                    "usage_threshold": str(self.usage_threshold),
                },
            },
        }
        return value if self.unload_scope is None else value | {"unload_scope": self.unload_scope.value}

    @classmethod
    def from_json(cls, value: Any) -> IsolationPolicy:
        """Raises BadIsolation for what Pulsar refuses. Whether its patterns are valid is for the caller to check."""
        if not isinstance(value, dict):
            raise BadIsolation(f"an isolation policy is an object, not {value!r:.100}")
        namespaces, primary = _texts(value, "namespaces"), _texts(value, "primary")
        if not namespaces or not primary:
            raise BadIsolation("an isolation policy has at least one namespace and one primary broker")
        failover = value.get("auto_failover_policy")
        if not isinstance(failover, dict) or failover.get("policy_type") != MIN_AVAILABLE:
            raise BadIsolation(f"auto_failover_policy has the policy_type {MIN_AVAILABLE}")
        parameters = failover.get("parameters")
        if not isinstance(parameters, dict):
            raise BadIsolation("the parameters of auto_failover_policy are min_limit and usage_threshold")
        return cls(
            namespaces,
            primary,
            _texts(value, "secondary"),
            _integer(parameters, "min_limit"),
            _integer(parameters, "usage_threshold"),
            _scope(value.get("unload_scope")),
        )

    @property
    def patterns(self) -> tuple[str, ...]:
        """Every pattern in it, for a check before it is stored."""
        return self.namespaces + self.primary + self.secondary


def _texts(value: dict[str, Any], name: str) -> tuple[str, ...]:
    found = value.get(name)
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise BadIsolation(f"{name} of an isolation policy is a list of patterns, not {found!r:.100}")
    return tuple(found)


def _integer(parameters: dict[str, Any], name: str) -> int:
    found = parameters.get(name)
    if isinstance(found, bool) or not isinstance(found, int | str):
        raise BadIsolation(f"{name} of auto_failover_policy is a number, not {found!r:.100}")
    try:
        return int(found)
    except ValueError:
        raise BadIsolation(f"{name} of auto_failover_policy is a number, not {found!r:.100}") from None


def _scope(value: Any) -> UnloadScope | None:
    if value is None:
        return None
    try:
        return UnloadScope(value)
    except ValueError:
        names = ", ".join(UnloadScope)
        raise BadIsolation(f"unload_scope is one of {names}, not {value!r:.100}") from None


def encode_policies(policies: Mapping[str, IsolationPolicy]) -> bytes:
    """All policies of a cluster, as they are stored and as the REST shows them."""
    return json.dumps({name: policies[name].to_json() for name in sorted(policies)}).encode()


def decode_policies(data: bytes) -> dict[str, IsolationPolicy]:
    return {name: IsolationPolicy.from_json(one) for name, one in _object(data).items()}


# -- what they match


def broker_matches(patterns: Iterable[str], names: Iterable[str], matches: Matcher) -> bool:
    """Whether a pattern matches the host in one of the broker's names, as in Pulsar, or all of `host:port`: brokers of
    one machine differ in their ports alone."""
    texts = {text for name in names for text in (name.rpartition(":")[0], name)}
    return any(matches(pattern, text) for pattern in patterns for text in sorted(texts))


def policy_of(namespace: str, policies: Mapping[str, IsolationPolicy], matches: Matcher) -> str | None:
    """The name of the namespace's policy: the first by name of those that match it."""
    for name in sorted(policies):
        if any(matches(pattern, namespace) for pattern in policies[name].namespaces):
            return name
    return None


def broker_isolation(
    broker: str, policies: Mapping[str, IsolationPolicy], matches: Matcher, *, names: Iterable[str] = ()
) -> dict[str, Any]:
    """What `…/namespaceIsolationPolicies/brokers/{broker}` answers. As in Pulsar, the last policy names itself. The
    broker is known by the other `names`, too."""
    known = (broker, *names)
    found: dict[str, Any] = {"brokerName": broker, "primary": False, "namespaceRegex": []}
    for name in sorted(policies):
        policy = policies[name]
        is_primary = broker_matches(policy.primary, known, matches)
        if is_primary or broker_matches(policy.secondary, known, matches):
            found["policyName"] = name
            found["primary"] = is_primary
            found["namespaceRegex"] += policy.namespaces
    return found


def unloaded_by(
    new: IsolationPolicy, old: IsolationPolicy | None, namespaces: Iterable[str], matches: Matcher
) -> list[str]:
    """The namespaces that are unloaded when `new` takes the place of `old`, so that they come to their brokers.

    As in Pulsar: without a scope those that the policy gains or loses, and all of both once the primary brokers change.
    """
    if new.unload_scope is UnloadScope.NONE:
        return []
    before = set() if old is None else set(old.namespaces)
    patterns = before | set(new.namespaces)
    is_replaced = old is not None and sorted(old.primary) != sorted(new.primary)
    if new.unload_scope is not UnloadScope.ALL and not is_replaced:
        patterns -= before & set(new.namespaces)
    return sorted(
        one for one in set(namespaces) if any(matches(pattern, one) for pattern in sorted(patterns))
    )


# -- failure domains


@dataclass(frozen=True, slots=True)
class FailureDomain:
    """Brokers that fail together: of one rack, one zone, one machine."""

    brokers: frozenset[str]

    def to_json(self) -> dict[str, Any]:
        return {"brokers": sorted(self.brokers)}

    @classmethod
    def from_json(cls, value: Any) -> FailureDomain:
        if not isinstance(value, dict):
            raise BadIsolation(f"a failure domain is an object, not {value!r:.100}")
        return cls(frozenset(_texts({"brokers": value.get("brokers", [])}, "brokers")))


def encode_domains(domains: Mapping[str, FailureDomain]) -> bytes:
    return json.dumps({name: domains[name].to_json() for name in sorted(domains)}).encode()


def decode_domains(data: bytes) -> dict[str, FailureDomain]:
    return {name: FailureDomain.from_json(one) for name, one in _object(data).items()}


def already_elsewhere(
    name: str, domain: FailureDomain, domains: Mapping[str, FailureDomain]
) -> tuple[str, list[str]] | None:
    """Another domain that has brokers of this one, and which; a broker is in one domain at most."""
    for other in sorted(domains):
        if other != name and (shared := domains[other].brokers & domain.brokers):
            return other, sorted(shared)
    return None


def domain_of_brokers(domains: Mapping[str, FailureDomain]) -> dict[str, str]:
    return {broker: name for name in sorted(domains) for broker in domains[name].brokers}


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadIsolation(f"stored policies or domains are not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadIsolation(f"stored policies or domains are an object, not {value!r:.100}")
    return value
