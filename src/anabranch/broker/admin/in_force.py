"""What is in force where neither a topic nor its namespace sets anything: the broker's configuration, as settings."""

from __future__ import annotations

from typing import Any

from anabranch.broker.config import BrokerConfig
from anabranch.broker.policies import (
    AutoSubscriptionCreation,
    BacklogQuota,
    DelayedDelivery,
    InactiveTopics,
    Persistence,
    QuotaKind,
    Retention,
)
from anabranch.broker.rates import DispatchRate, SubscribeRate

_UNLIMITED = DispatchRate(messages=0, bytes=0)


def configured(config: BrokerConfig) -> dict[str, Any]:
    """By the name of the policy that takes its place."""
    return {
        "retention_policies": Retention(
            minutes=config.default_retention_time_in_minutes, megabytes=config.default_retention_size_in_mb
        ),
        "message_ttl_in_seconds": config.ttl_duration_default_in_seconds,
        "compaction_threshold": config.broker_service_compaction_threshold_in_bytes,
        "deduplication_enabled": config.broker_deduplication_enabled,
        "persistence": Persistence(),
        "delayed_delivery_policies": DelayedDelivery(),
        # Topics that nobody uses stay, unless a policy says otherwise.
        "inactive_topic_policies": InactiveTopics(delete_while_inactive=False),
        "auto_subscription_creation": AutoSubscriptionCreation(
            allow_auto_subscription_creation=config.allow_auto_subscription_creation
        ),
        "max_producers_per_topic": config.max_producers_per_topic,
        "max_consumers_per_topic": config.max_consumers_per_topic,
        "max_consumers_per_subscription": config.max_consumers_per_subscription,
        "max_subscriptions_per_topic": config.max_subscriptions_per_topic,
        "max_unacked_messages_per_consumer": config.max_unacked_messages_per_consumer,
        "max_unacked_messages_per_subscription": config.max_unacked_messages_per_subscription,
        "subscription_expiration_time_minutes": config.subscription_expiration_time_minutes,
        "dispatch_rate": _UNLIMITED,
        "subscription_dispatch_rate": _UNLIMITED,
        "subscribe_rate": SubscribeRate(times=0),
    }


def configured_quotas(config: BrokerConfig) -> dict[QuotaKind, BacklogQuota]:
    action = config.backlog_quota_default_retention_policy
    return {
        "destination_storage": BacklogQuota(
            limit_size=config.backlog_quota_default_limit_bytes, policy=action
        ),
        "message_age": BacklogQuota(limit_time=config.backlog_quota_default_limit_second, policy=action),
    }
