"""What is granted to whom, and how grants are given and taken. Pure."""

from __future__ import annotations

import pytest

from anabranch.broker.policy.namespace import AuthPolicies, NamespacePolicies
from anabranch.broker.policy.stored_json import InvalidValue
from anabranch.broker.security import grants as permissions
from anabranch.broker.security.grants import Action, is_granted, subscription_fault
from anabranch.model.names import TopicName

T = TopicName.parse("persistent://acme/news/t")
SCALABLE = TopicName.parse("topic://acme/news/t")
SEGMENT = TopicName.parse("segment://acme/news/t/0000-7fff-1")
OTHER = TopicName.parse("persistent://acme/news/other")
FLEETING = TopicName.parse("non-persistent://acme/news/t")


def on_topic(topic: TopicName) -> AuthPolicies:
    return permissions.grant(NamespacePolicies(), "ann", ["produce"], topic).auth_policies


def test_a_grant_on_the_namespace_counts_for_every_topic_and_no_other_action() -> None:
    auth = permissions.grant(NamespacePolicies(), "ann", ["produce"]).auth_policies
    for topic in (None, T, SCALABLE, SEGMENT, FLEETING, T.partition(3)):
        assert is_granted(auth, "ann", Action.PRODUCE, topic)
        assert not is_granted(auth, "ann", Action.CONSUME, topic)
        assert not is_granted(auth, "bob", Action.PRODUCE, topic)
        assert not is_granted(auth, "", Action.PRODUCE, topic)


@pytest.mark.parametrize("granted", [T, SCALABLE])
def test_a_grant_on_a_topic_counts_for_its_partitions_and_segments_in_either_domain(
    granted: TopicName,
) -> None:
    auth = on_topic(granted)
    for topic in (T, SCALABLE, SEGMENT, T.partition(0)):
        assert is_granted(auth, "ann", Action.PRODUCE, topic), topic
    for elsewhere in (None, OTHER, FLEETING):
        assert not is_granted(auth, "ann", Action.PRODUCE, elsewhere), elsewhere


def test_a_grant_on_a_partition_is_for_that_partition() -> None:
    auth = on_topic(T.partition(1))
    assert is_granted(auth, "ann", Action.PRODUCE, T.partition(1))
    assert not is_granted(auth, "ann", Action.PRODUCE, T.partition(0))
    assert not is_granted(auth, "ann", Action.PRODUCE, T)


def test_a_grant_on_a_topic_that_is_not_persistent_is_for_that_one() -> None:
    auth = on_topic(FLEETING)
    assert is_granted(auth, "ann", Action.PRODUCE, FLEETING)
    assert not is_granted(auth, "ann", Action.PRODUCE, T)


@pytest.mark.parametrize(
    ("granted", "role", "fits"),
    [
        ("team.*", "team.ann", True),
        ("*.team", "ann.team", True),
        ("*", "anybody", True),
        ("team.*", "teamann", False),
        ("te*am", "team", False),
    ],
)
def test_a_star_counts_at_either_end_and_only_if_it_is_allowed_to(
    granted: str, role: str, fits: bool
) -> None:
    auth = permissions.grant(NamespacePolicies(), granted, ["consume"]).auth_policies
    assert is_granted(auth, role, Action.CONSUME, T, wildcards=True) is fits
    assert not is_granted(auth, role, Action.CONSUME, T)


def test_what_is_granted_replaces_what_was() -> None:
    policies = permissions.grant(NamespacePolicies(), "ann", ["produce", "consume"])
    policies = permissions.grant(policies, "ann", ["sinks"])
    assert policies.auth_policies.namespace_auth == {"ann": ["sinks"]}
    assert permissions.revoke(policies, "ann").auth_policies == AuthPolicies()


def test_a_topic_shows_both_kinds_of_grants() -> None:
    policies = permissions.grant(NamespacePolicies(), "ann", ["produce"])
    policies = permissions.grant(policies, "ann", ["consume"], T)
    policies = permissions.grant(policies, "bob", ["consume"], T)
    shown = permissions.granted_on(policies.auth_policies, T)
    assert shown == {"ann": ["consume", "produce"], "bob": ["consume"]}
    assert permissions.granted_on(policies.auth_policies, OTHER) == {"ann": ["produce"]}
    left = permissions.revoke(policies, "ann", [T, T.partition(0)])
    assert left.auth_policies.destination_auth == {str(T): {"bob": ["consume"]}}
    assert permissions.forget_topic(left, T).auth_policies.destination_auth == {}
    assert permissions.forget_topic(left, OTHER) is left


def test_a_subscription_may_be_kept_for_some_roles() -> None:
    policies = permissions.grant_subscription(NamespacePolicies(), "s", ["bob", "ann"])
    assert subscription_fault(policies, "ann", "s") == ""
    assert "other roles" in subscription_fault(policies, "eve", "s")
    assert subscription_fault(policies, "eve", "another") == ""
    policies = permissions.revoke_subscription(policies, "s", "bob")
    assert policies.auth_policies.subscription_auth_roles == {"s": ["ann"]}
    assert permissions.revoke_subscription(policies, "s", "ann").auth_policies == AuthPolicies()
    with pytest.raises(KeyError):
        permissions.revoke_subscription(NamespacePolicies(), "s", "ann")


def test_names_of_subscriptions_may_have_to_start_with_the_role() -> None:
    policies = NamespacePolicies(subscription_auth_mode="Prefix")
    assert subscription_fault(policies, "ann", "ann-1") == ""
    assert subscription_fault(policies, "ann", "") == ""
    assert "ann-xxxx" in subscription_fault(policies, "ann", "s")


@pytest.mark.parametrize(("role", "actions"), [("", ["produce"]), ("ann", ["write"]), ("x" * 2000, [])])
def test_what_nobody_can_have_meant_is_refused(role: str, actions: list[str]) -> None:
    with pytest.raises(InvalidValue):
        permissions.grant(NamespacePolicies(), role, actions)
