"""What a namespace's policies grant to which role, and how grants are changed. Pure.

The rules are those of Pulsar's own provider. A grant on a namespace counts for every topic in it, a grant on a topic
for its partitions too. `persistent://t/n/x` and `topic://t/n/x` never exist side by side, so a grant on either counts
for both, and for the segments: a classic topic keeps its grants when it is migrated to a scalable one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from anabranch.broker.policy.namespace import AuthPolicies, NamespacePolicies
from anabranch.broker.policy.stored_json import InvalidValue
from anabranch.model.names import Domain, TopicName

ROLE_CHARACTERS_MAX = 1000


class Action(StrEnum):
    PRODUCE = "produce"
    CONSUME = "consume"
    FUNCTIONS = "functions"
    SOURCES = "sources"
    SINKS = "sinks"
    PACKAGES = "packages"


Roles = Mapping[str, Collection[str]]


# -- checking


def is_granted(
    auth: AuthPolicies, role: str, action: Action, topic: TopicName | None = None, *, wildcards: bool = False
) -> bool:
    """Whether `role` may perform the action on that topic; without one, on every topic of the namespace."""
    if not role:
        return False
    tables: list[Roles] = [auth.namespace_auth]
    if topic is not None:
        tables += [auth.destination_auth[key] for key in _keys(topic) if key in auth.destination_auth]
    return any(
        action in actions
        for table in tables
        for granted, actions in table.items()
        if granted == role or (wildcards and _matches(granted, role))
    )


def _keys(topic: TopicName) -> Iterator[str]:
    """The names under which grants on the topic are stored."""
    if topic.domain is Domain.NON_PERSISTENT:
        yield str(topic)
        yield str(topic.base)
        return
    if topic.is_partition:
        yield str(topic)
    for domain in (Domain.PERSISTENT, Domain.TOPIC):
        yield f"{domain.value}://{topic.namespace}/{topic.base.local}"


def _matches(granted: str, role: str) -> bool:
    """A star matches anything at the start or at the end of a name, nowhere else."""
    return (granted.endswith("*") and role.startswith(granted[:-1])) or (
        granted.startswith("*") and role.endswith(granted[1:])
    )


def subscription_fault(policies: NamespacePolicies, role: str, subscription: str) -> str:
    """Why the role may not use a subscription of that name, whatever else it may consume; empty if it may."""
    if not subscription:
        return ""
    roles = policies.auth_policies.subscription_auth_roles.get(subscription)
    if roles and role not in roles:
        return f"subscription {subscription!r} is granted to other roles only"
    if policies.subscription_auth_mode == "Prefix" and not subscription.startswith(role):
        return f"the name of a subscription must start with the role here, as in {role}-xxxx"
    return ""


def granted_on(auth: AuthPolicies, topic: TopicName) -> dict[str, list[str]]:
    """What each role may do on the topic, granted on the namespace or on the topic itself."""
    tables = [auth.namespace_auth, *(auth.destination_auth.get(key, {}) for key in _keys(topic))]
    found: dict[str, list[str]] = {}
    for table in tables:
        for role, actions in table.items():
            found[role] = sorted({*found.get(role, ()), *actions})
    return found


# -- changing: each function returns the changed policies


def grant(
    policies: NamespacePolicies, role: str, actions: Collection[str], topic: TopicName | None = None
) -> NamespacePolicies:
    """From now on the role may perform exactly these actions; on the namespace, or on a topic."""
    wanted = sorted({_action(action) for action in actions})
    _check_role(role)
    auth = policies.auth_policies
    if topic is None:
        return _with(policies, namespace_auth={**auth.namespace_auth, role: wanted})
    roles = {**auth.destination_auth.get(str(topic), {}), role: wanted}
    return _with(policies, destination_auth={**auth.destination_auth, str(topic): roles})


def revoke(
    policies: NamespacePolicies, role: str, topics: Sequence[TopicName] | None = None
) -> NamespacePolicies:
    """Removes the role's grants on the namespace, or on these topics."""
    auth = policies.auth_policies
    if topics is None:
        return _with(policies, namespace_auth={r: a for r, a in auth.namespace_auth.items() if r != role})
    gone = {str(topic) for topic in topics}
    left = {
        name: {r: a for r, a in roles.items() if r != role} if name in gone else roles
        for name, roles in auth.destination_auth.items()
    }
    return _with(policies, destination_auth={name: roles for name, roles in left.items() if roles})


def forget_topic(policies: NamespacePolicies, topic: TopicName) -> NamespacePolicies:
    """A later topic of the same name, which another user may create, must not inherit grants on this one."""
    gone = set(_keys(topic))
    auth = policies.auth_policies
    if gone.isdisjoint(auth.destination_auth):
        return policies
    return _with(policies, destination_auth={n: r for n, r in auth.destination_auth.items() if n not in gone})


def grant_subscription(
    policies: NamespacePolicies, subscription: str, roles: Collection[str]
) -> NamespacePolicies:
    """Allows only these roles to use subscriptions of that name."""
    for role in roles:
        _check_role(role)
    table = {**policies.auth_policies.subscription_auth_roles, subscription: sorted(set(roles))}
    return _with(policies, subscription_auth_roles=table)


def revoke_subscription(policies: NamespacePolicies, subscription: str, role: str) -> NamespacePolicies:
    """Without its last role the subscription is open to all roles that may consume. KeyError if it has no roles."""
    table = dict(policies.auth_policies.subscription_auth_roles)
    left = [one for one in table.pop(subscription) if one != role]
    return _with(policies, subscription_auth_roles={**table, subscription: left} if left else table)


def _with(policies: NamespacePolicies, **changed: object) -> NamespacePolicies:
    auth = msgspec.structs.replace(policies.auth_policies, **changed)
    return msgspec.structs.replace(policies, auth_policies=auth)


def _action(text: str) -> str:
    if text not in set(Action):
        raise InvalidValue(f"Invalid action {text!r}: give some of {', '.join(Action)}")
    return text


def _check_role(role: str) -> None:
    if not role.strip() or len(role) > ROLE_CHARACTERS_MAX:
        raise InvalidValue(f"Invalid role: a name of 1 to {ROLE_CHARACTERS_MAX} characters is needed")
