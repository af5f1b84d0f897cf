"""The catalogue of policies, and what is in force for a topic."""

from __future__ import annotations

from dataclasses import fields

import msgspec
import pytest

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.policy.catalogue import CATALOGUE, Policy
from anabranch.broker.policy.effective import EffectivePolicies, effective, in_force, policy_of
from anabranch.broker.policy.namespace import (
    AutoTopicCreation,
    BacklogQuota,
    NamespacePolicies,
    Retention,
)
from anabranch.broker.policy.rate_json import DispatchRate
from anabranch.broker.policy.topic import TopicPolicies

NAMESPACE_FIELDS = set(NamespacePolicies.__struct_fields__)
TOPIC_FIELDS = set(TopicPolicies.__struct_fields__)
# Fields with routes of their own, and what a namespace is besides its policies.
APART = {
    "anti_affinity_group",
    "auth_policies",
    "backlog_quota_map",
    "bundles",
    "deleted",
    "properties",
    "rates_of_subscriptions",
    "scalable_topic_auto_scale_policy",
}


def test_a_topics_rate_counts_under_whatever_name_of_a_cluster_its_namespace_has_one() -> None:
    of_namespace = NamespacePolicies(dispatch_rate={"elsewhere": DispatchRate(messages=10)})
    unlimited = DispatchRate(messages=-1)
    policies = TopicPolicies(dispatch_rate={"standalone": unlimited}).over(of_namespace)
    assert effective(BrokerConfig(), policies).dispatch_rate == unlimited
    assert effective(BrokerConfig(), TopicPolicies().over(of_namespace)).dispatch_rate.messages == 10


def test_every_field_of_a_namespace_or_topic_has_one_row() -> None:
    rows = [policy.field for policy in CATALOGUE]
    assert len(rows) == len(set(rows))
    assert set(rows) == (NAMESPACE_FIELDS | TOPIC_FIELDS) - APART


@pytest.mark.parametrize("policy", CATALOGUE, ids=lambda policy: policy.field)
def test_a_level_that_has_a_path_has_the_field(policy: Policy) -> None:
    assert policy.namespace_path or policy.topic_path
    assert not policy.topic_path or policy.field in TOPIC_FIELDS
    assert not policy.namespace_path or policy.field in NAMESPACE_FIELDS
    assert bool(policy.word) == bool(policy.help)


def test_paths_and_words_are_used_once() -> None:
    for names in (
        [policy.namespace_path for policy in CATALOGUE if policy.namespace_path],
        [policy.topic_path for policy in CATALOGUE if policy.topic_path],
        [policy.word for policy in CATALOGUE if policy.word],
    ):
        assert len(names) == len(set(names))


@pytest.mark.parametrize("policy", CATALOGUE, ids=lambda policy: policy.field)
def test_a_configured_default_is_a_value_of_the_policy(policy: Policy) -> None:
    default = policy.configured(BrokerConfig())
    if default is not None:
        msgspec.convert(msgspec.to_builtins(default), policy.kind)


def test_what_is_in_force_has_every_policy_but_those_of_the_namespace_alone() -> None:
    assert {field.name for field in fields(EffectivePolicies)} - {
        "is_retained_by_default",
        "backlog_quota_map",
    } == {policy.field for policy in CATALOGUE}


def test_a_topic_goes_before_its_namespace_and_that_before_the_configuration() -> None:
    config = BrokerConfig(max_producers_per_topic=1, max_consumers_per_topic=2, max_subscriptions_per_topic=3)
    namespace = NamespacePolicies(max_consumers_per_topic=20, max_subscriptions_per_topic=30)
    found = effective(config, TopicPolicies(max_subscriptions_per_topic=300).over(namespace))
    assert (
        found.max_producers_per_topic,
        found.max_consumers_per_topic,
        found.max_subscriptions_per_topic,
    ) == (1, 20, 300)


def test_a_zero_and_a_no_that_somebody_has_set_are_no_lack_of_a_value() -> None:
    config = BrokerConfig(max_producers_per_topic=5, broker_deduplication_enabled=True)
    found = effective(config, NamespacePolicies(max_producers_per_topic=0, deduplication_enabled=False))
    assert found.max_producers_per_topic == 0
    assert not found.deduplication_enabled


def test_retention_that_nobody_has_set_is_the_broker_s_default() -> None:
    config = BrokerConfig(default_retention_time_in_minutes=7, default_retention_size_in_mb=8)
    by_default = effective(config, NamespacePolicies())
    assert (by_default.retention_policies, by_default.is_retained_by_default) == (
        Retention(minutes=7, megabytes=8),
        True,
    )
    own = effective(config, NamespacePolicies(retention_policies=Retention(minutes=7, megabytes=8)))
    assert not own.is_retained_by_default


def test_one_kind_of_quota_leaves_the_other_to_the_configuration() -> None:
    config = BrokerConfig(backlog_quota_default_limit_second=60)
    quota = BacklogQuota(limit_size=10, policy="producer_exception")
    found = effective(config, NamespacePolicies(backlog_quota_map={"destination_storage": quota}))
    assert found.backlog_quota_map["destination_storage"] == quota
    assert found.backlog_quota_map["message_age"].limit_time == 60


def test_a_namespace_that_only_allows_topics_leaves_their_kind_to_the_broker() -> None:
    config = BrokerConfig(allow_auto_topic_creation_type="partitioned", default_num_partitions=4)
    off = AutoTopicCreation(allow_auto_topic_creation=False)
    found = effective(config, NamespacePolicies(auto_topic_creation=off)).auto_topic_creation
    assert (found.allow_auto_topic_creation, found.topic_type, found.default_num_partitions) == (
        False,
        "partitioned",
        4,
    )


def test_schemas_are_enforced_if_namespace_or_broker_says_so() -> None:
    enforced = BrokerConfig(is_schema_validation_enforced=True)
    assert effective(enforced, NamespacePolicies()).schema_validation_enforced
    assert effective(
        BrokerConfig(), NamespacePolicies(schema_validation_enforced=True)
    ).schema_validation_enforced
    assert not effective(BrokerConfig(), NamespacePolicies()).schema_validation_enforced


def test_a_rate_is_found_under_whatever_cluster_it_was_stored() -> None:
    rate = DispatchRate(messages=5)
    found = in_force(
        policy_of("dispatch_rate"), BrokerConfig(), NamespacePolicies(dispatch_rate={"old": rate})
    )
    assert found == rate
