"""The policies in force for one topic: its own, else its namespace's, else the broker's configuration. Pure.

This is the only place that combines the three levels. No field of the result means "not set here".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from anabranch.broker.config.choices import Strategy, TableMode
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.policy.catalogue import CATALOGUE, Policy, configured_quotas
from anabranch.broker.policy.namespace import (
    AutoSubscriptionCreation,
    AutoTopicCreation,
    BacklogQuota,
    DelayedDelivery,
    InactiveTopics,
    NamespacePolicies,
    Persistence,
    QuotaKind,
    Retention,
    SubscriptionType,
)
from anabranch.broker.policy.rate_json import DispatchRate, PublishRate, SubscribeRate


@dataclass(frozen=True, slots=True)
class EffectivePolicies:
    """Fields have the names of the policies that they come from. 0 is no limit, as in Pulsar."""

    retention_policies: Retention
    message_ttl_in_seconds: int
    deduplication_enabled: bool
    schema_compatibility_strategy: Strategy
    schema_validation_enforced: bool
    is_allow_auto_update_schema: bool
    auto_topic_creation: AutoTopicCreation
    auto_subscription_creation: AutoSubscriptionCreation
    compaction_threshold: int
    subscription_expiration_time_minutes: int
    max_producers_per_topic: int
    max_consumers_per_topic: int
    max_consumers_per_subscription: int
    max_subscriptions_per_topic: int
    max_topics_per_namespace: int
    max_unacked_messages_per_consumer: int
    max_unacked_messages_per_subscription: int
    dispatch_rate: DispatchRate
    subscription_dispatch_rate: DispatchRate
    subscribe_rate: SubscribeRate
    delayed_delivery_policies: DelayedDelivery
    encryption_required: bool
    # Empty: all types.
    subscription_types_enabled: tuple[SubscriptionType, ...]
    inactive_topic_policies: InactiveTopics
    persistence: Persistence
    subscription_auth_mode: str
    backlog_quota_map: dict[QuotaKind, BacklogQuota]
    table_mode: TableMode
    # The broker's default retention applies, which yields to a full disk.
    is_retained_by_default: bool
    publish_rate: PublishRate | None = None
    # Set for single topics only.
    max_message_size: int | None = None
    replication_clusters: tuple[str, ...] = ()
    deduplication_snapshot_interval: int | None = None


class LatestEffective:
    """Caches the policies in force: most topics of a namespace share a value."""

    __slots__ = ("_config", "_latest")

    def __init__(self, config: Callable[[], BrokerConfig]) -> None:
        self._config = config
        self._latest: tuple[BrokerConfig, NamespacePolicies, EffectivePolicies] | None = None

    def of(self, policies: NamespacePolicies) -> EffectivePolicies:
        config = self._config()
        if self._latest is None or self._latest[0] is not config or self._latest[1] is not policies:
            self._latest = (config, policies, effective(config, policies))
        return self._latest[2]


_FIELDS = {field.name for field in fields(EffectivePolicies)}
_POLICIES = tuple(policy for policy in CATALOGUE if policy.field in _FIELDS)


def effective(config: BrokerConfig, policies: NamespacePolicies) -> EffectivePolicies:
    """`policies` are the namespace's with the topic's own over them (`TopicPolicies.over`)."""
    values = {policy.field: in_force(policy, config, policies) for policy in _POLICIES}
    creation: AutoTopicCreation = values["auto_topic_creation"]
    if not creation.topic_type:
        # A namespace that only switches creation on or off leaves the kind of topic to the broker.
        of_broker: AutoTopicCreation = policy_of("auto_topic_creation").configured(config)
        values["auto_topic_creation"] = msgspec.structs.replace(
            of_broker, allow_auto_topic_creation=creation.allow_auto_topic_creation
        )
    # False also means that the namespace does not set it.
    values["schema_validation_enforced"] |= config.is_schema_validation_enforced
    return EffectivePolicies(
        **values,
        backlog_quota_map={**configured_quotas(config), **policies.backlog_quota_map},
        is_retained_by_default=policies.retention_policies is None,
    )


def in_force(policy: Policy, config: BrokerConfig, policies: Any) -> Any:
    """The value of one policy: the topic's or namespace's where it is set, else the configuration's."""
    value = getattr(policies, policy.field)
    if policy.is_per_cluster:
        # There is one cluster: a map under another name means this one.
        rates = list(value.values())
        value = next((rate for rate in rates if rate.is_limit), rates[0] if rates else None)
    if value is None or value == "UNDEFINED":
        return policy.configured(config)
    return value


def policy_of(field: str) -> Policy:
    return next(policy for policy in CATALOGUE if policy.field == field)
