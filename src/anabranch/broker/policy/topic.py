"""The policies set on one topic, over those of its namespace. Pure; `catalog/topic_policies.py` stores them."""

from __future__ import annotations

from typing import Any

import msgspec

from anabranch.broker.config.choices import Strategy, TableMode
from anabranch.broker.policy.namespace import (
    AutoSubscriptionCreation,
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
from anabranch.broker.policy.stored_json import Count, Count64, Int32, JsonStruct


class TopicPolicies(JsonStruct, frozen=True, omit_defaults=True):
    """Each field has the name of the namespace's policy that it replaces; None leaves that in force."""

    backlog_quota_map: dict[QuotaKind, BacklogQuota] = msgspec.field(default_factory=dict)
    persistence: Persistence | None = None
    retention_policies: Retention | None = None
    message_ttl_in_seconds: Int32 | None = None
    subscription_expiration_time_minutes: Count | None = None
    deduplication_enabled: bool | None = None
    deduplication_snapshot_interval: Count | None = None
    auto_subscription_creation: AutoSubscriptionCreation | None = None
    delayed_delivery_policies: DelayedDelivery | None = None
    inactive_topic_policies: InactiveTopics | None = None
    max_producers_per_topic: Count | None = None
    max_consumers_per_topic: Count | None = None
    max_consumers_per_subscription: Count | None = None
    max_unacked_messages_per_consumer: Count | None = None
    max_unacked_messages_per_subscription: Count | None = None
    max_subscriptions_per_topic: Count | None = None
    schema_compatibility_strategy: Strategy | None = None
    schema_validation_enforced: bool | None = None
    subscription_types_enabled: tuple[SubscriptionType, ...] | None = None
    publish_rate: dict[str, PublishRate] = msgspec.field(default_factory=dict)
    dispatch_rate: dict[str, DispatchRate] = msgspec.field(default_factory=dict)
    subscription_dispatch_rate: dict[str, DispatchRate] = msgspec.field(default_factory=dict)
    compaction_threshold: Count64 | None = None
    # By subscription, over `subscription_dispatch_rate`.
    rates_of_subscriptions: dict[str, DispatchRate] = msgspec.field(default_factory=dict)
    subscribe_rate: dict[str, SubscribeRate] = msgspec.field(default_factory=dict)
    table_mode: TableMode | None = None
    max_message_size: Count | None = None
    replication_clusters: tuple[str, ...] | None = None

    def over(self, policies: NamespacePolicies) -> NamespacePolicies:
        """The namespace's policies with this topic's own over them."""
        changes: dict[str, Any] = {}
        for field in _SHARED:
            value = getattr(self, field)
            if field == "backlog_quota_map":
                # Kinds of quota that the topic does not set are still the namespace's.
                value = {**policies.backlog_quota_map, **value}
            if value == {}:
                value = None
            if value is not None and not (field == "schema_compatibility_strategy" and value == "UNDEFINED"):
                changes[field] = value
        return msgspec.structs.replace(policies, **changes) if changes else policies


_SHARED = frozenset(TopicPolicies.__struct_fields__) & frozenset(NamespacePolicies.__struct_fields__)
NO_TOPIC_POLICIES = TopicPolicies()
