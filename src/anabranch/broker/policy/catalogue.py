"""Every policy, once: its field, its type, its REST paths, its command-line words, and its default. Pure.

REST's routes (`admin/settings`), the commands `anabranch namespaces` and `anabranch topic-policies`, and the policies
in force for a topic (`effective.py`) are made from this table. A new policy is a field of `NamespacePolicies`, a field
of `TopicPolicies` if single topics have it, and a row here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from anabranch.broker.config.choices import Strategy, TableMode
from anabranch.broker.policy.namespace import (
    AutoSubscriptionCreation,
    AutoTopicCreation,
    BacklogQuota,
    DelayedDelivery,
    InactiveTopics,
    Persistence,
    QuotaKind,
    Retention,
    SubscriptionType,
)
from anabranch.broker.policy.rate_json import DispatchRate, PublishRate, SubscribeRate
from anabranch.broker.policy.stored_json import Count, Count64, Int32

if TYPE_CHECKING:
    from anabranch.broker.config.config import BrokerConfig

_EXPIRATION = "Invalid value for subscription expiration time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    field: str  # The field of `NamespacePolicies` and `TopicPolicies`.
    kind: Any  # The type of a value, for msgspec.
    # The last words of the REST paths; "" if that level does not have the policy.
    namespace_path: str = ""
    topic_path: str = ""
    # The word behind `get-`, `set-` and `remove-` on the command line, and its help text; "" for no commands.
    word: str = ""
    help: str = ""
    # The value in force where neither topic nor namespace sets the policy.
    configured: Callable[[BrokerConfig], Any] = lambda config: None
    # REST keeps these values in a map under the cluster's name, as Pulsar does.
    is_per_cluster: bool = False
    # Pulsar's clients send a topic's value as a parameter of this name; other clients may send a body.
    topic_parameter: str | None = None
    # The answer to a number below 0, where Pulsar's clients expect other words than the usual ones.
    fault: str = ""
    # The answer to GET where nothing is set, for clients that expect a value.
    namespace_unset: Any = None
    topic_unset: Any = None
    # Pulsar's clients can remove a namespace's value only by sending nothing.
    is_removed_by_nothing: bool = False
    # The method by which Pulsar's own admin sets the policy.
    method: Literal["POST", "PUT"] = "POST"


def _count(
    field: str,
    namespace_path: str,
    topic_path: str,
    help: str,
    configured: Callable[[BrokerConfig], Any],
    *,
    word: str,
    namespace_unset: Any = None,
) -> Policy:
    return Policy(
        field=field,
        kind=Count,
        namespace_path=namespace_path,
        topic_path=topic_path,
        word=word,
        help=help,
        configured=configured,
        namespace_unset=namespace_unset,
    )


def _rate(field: str, kind: Any, path: str, word: str, help: str, unlimited: Any = None) -> Policy:
    return Policy(
        field=field,
        kind=kind,
        namespace_path=path,
        topic_path=path,
        word=word,
        help=help,
        configured=lambda config: unlimited,
        is_per_cluster=True,
    )


_UNLIMITED = DispatchRate(messages=0, bytes=0)

CATALOGUE: Final[tuple[Policy, ...]] = (
    Policy(
        field="retention_policies",
        kind=Retention,
        namespace_path="retention",
        topic_path="retention",
        word="retention",
        help="how long, and how much of, what is acknowledged is kept",
        configured=lambda config: Retention(
            minutes=config.default_retention_time_in_minutes, megabytes=config.default_retention_size_in_mb
        ),
    ),
    Policy(
        field="message_ttl_in_seconds",
        kind=Int32,
        namespace_path="messageTTL",
        topic_path="messageTTL",
        topic_parameter="messageTTL",
        word="message-ttl",
        help="after what time messages count as acknowledged",
        configured=lambda config: config.ttl_duration_default_in_seconds,
    ),
    Policy(
        field="deduplication_enabled",
        kind=bool,
        namespace_path="deduplication",
        topic_path="deduplicationEnabled",
        word="deduplication",
        help="whether messages that are sent twice are stored once",
        configured=lambda config: config.broker_deduplication_enabled,
    ),
    # Any interval is accepted without effect: the table of sequence ids is stored with every commit of the log.
    Policy(
        field="deduplication_snapshot_interval",
        kind=Count,
        namespace_path="deduplicationSnapshotInterval",
        topic_path="deduplicationSnapshotInterval",
        is_removed_by_nothing=True,
    ),
    Policy(
        field="schema_compatibility_strategy",
        kind=Strategy,
        namespace_path="schemaCompatibilityStrategy",
        topic_path="schemaCompatibilityStrategy",
        word="schema-compatibility-strategy",
        help="which schemas may follow which",
        configured=lambda config: config.schema_compatibility_strategy,
        method="PUT",
    ),
    Policy(
        field="schema_validation_enforced",
        kind=bool,
        namespace_path="schemaValidationEnforced",
        topic_path="schemaValidationEnforced",
        topic_unset=False,
        word="schema-validation-enforced",
        help="whether producers must have the topic's schema",
        configured=lambda config: config.is_schema_validation_enforced,
    ),
    Policy(
        field="is_allow_auto_update_schema",
        kind=bool,
        namespace_path="isAllowAutoUpdateSchema",
        namespace_unset=True,
        word="is-allow-auto-update-schema",
        help="whether producers may add schemas",
        configured=lambda config: config.is_allow_auto_update_schema_enabled,
    ),
    Policy(
        field="auto_topic_creation",
        kind=AutoTopicCreation,
        namespace_path="autoTopicCreation",
        word="auto-topic-creation",
        help="whether use makes topics, and of which kind",
        configured=lambda config: AutoTopicCreation(
            allow_auto_topic_creation=config.allow_auto_topic_creation,
            topic_type=config.allow_auto_topic_creation_type,
            default_num_partitions=config.default_num_partitions,
        ),
    ),
    Policy(
        field="auto_subscription_creation",
        kind=AutoSubscriptionCreation,
        namespace_path="autoSubscriptionCreation",
        topic_path="autoSubscriptionCreation",
        word="auto-subscription-creation",
        help="whether use makes subscriptions",
        configured=lambda config: AutoSubscriptionCreation(
            allow_auto_subscription_creation=config.allow_auto_subscription_creation
        ),
    ),
    Policy(
        field="compaction_threshold",
        kind=Count64,
        namespace_path="compactionThreshold",
        topic_path="compactionThreshold",
        word="compaction-threshold",
        help="after how many bytes topics are compacted by themselves",
        configured=lambda config: config.broker_service_compaction_threshold_in_bytes,
        method="PUT",
    ),
    Policy(
        field="subscription_expiration_time_minutes",
        kind=Count,
        namespace_path="subscriptionExpirationTime",
        topic_path="subscriptionExpirationTime",
        topic_parameter="subscriptionExpirationTime",
        fault=_EXPIRATION,
        word="subscription-expiration-time",
        help="after how long unused subscriptions are deleted",
        configured=lambda config: config.subscription_expiration_time_minutes,
    ),
    _count(
        "max_producers_per_topic",
        "maxProducersPerTopic",
        "maxProducers",
        "how many producers a topic may have",
        lambda config: config.max_producers_per_topic,
        word="max-producers-per-topic",
    ),
    _count(
        "max_consumers_per_topic",
        "maxConsumersPerTopic",
        "maxConsumers",
        "how many consumers a topic may have",
        lambda config: config.max_consumers_per_topic,
        word="max-consumers-per-topic",
    ),
    _count(
        "max_consumers_per_subscription",
        "maxConsumersPerSubscription",
        "maxConsumersPerSubscription",
        "how many consumers a subscription may have",
        lambda config: config.max_consumers_per_subscription,
        word="max-consumers-per-subscription",
    ),
    _count(
        "max_subscriptions_per_topic",
        "maxSubscriptionsPerTopic",
        "maxSubscriptionsPerTopic",
        "how many subscriptions a topic may have",
        lambda config: config.max_subscriptions_per_topic,
        word="max-subscriptions-per-topic",
    ),
    _count(
        "max_topics_per_namespace",
        "maxTopicsPerNamespace",
        "",
        "how many topics a namespace may have",
        lambda config: config.max_topics_per_namespace,
        word="max-topics-per-namespace",
        namespace_unset=0,
    ),
    _count(
        "max_unacked_messages_per_consumer",
        "maxUnackedMessagesPerConsumer",
        "maxUnackedMessagesOnConsumer",
        "how many messages a consumer may hold unacknowledged",
        lambda config: config.max_unacked_messages_per_consumer,
        word="max-unacked-messages-per-consumer",
    ),
    _count(
        "max_unacked_messages_per_subscription",
        "maxUnackedMessagesPerSubscription",
        "maxUnackedMessagesOnSubscription",
        "how many messages a subscription may hold unacknowledged",
        lambda config: config.max_unacked_messages_per_subscription,
        word="max-unacked-messages-per-subscription",
    ),
    _rate("publish_rate", PublishRate, "publishRate", "publish-rate", "how fast a topic may be published to"),
    _rate(
        "dispatch_rate",
        DispatchRate,
        "dispatchRate",
        "dispatch-rate",
        "how fast a topic may be read by all",
        _UNLIMITED,
    ),
    _rate(
        "subscription_dispatch_rate",
        DispatchRate,
        "subscriptionDispatchRate",
        "subscription-dispatch-rate",
        "how fast each subscription may be read",
        _UNLIMITED,
    ),
    _rate("subscribe_rate", SubscribeRate, "subscribeRate", "", "", SubscribeRate(times=0)),
    Policy(
        field="delayed_delivery_policies",
        kind=DelayedDelivery,
        namespace_path="delayedDelivery",
        topic_path="delayedDelivery",
        word="delayed-delivery",
        help="whether messages may ask to be delivered later",
        configured=lambda config: DelayedDelivery(),
    ),
    Policy(
        field="encryption_required",
        kind=bool,
        namespace_path="encryptionRequired",
        word="encryption-required",
        help="whether only encrypted messages are accepted",
    ),
    Policy(
        field="subscription_types_enabled",
        kind=tuple[SubscriptionType, ...],
        namespace_path="subscriptionTypesEnabled",
        topic_path="subscriptionTypesEnabled",
        topic_unset=(),
        word="subscription-types-enabled",
        help="which types of subscriptions there may be",
    ),
    Policy(
        field="inactive_topic_policies",
        kind=InactiveTopics,
        namespace_path="inactiveTopicPolicies",
        topic_path="inactiveTopicPolicies",
        word="inactive-topic-policies",
        help="when unused topics are deleted",
        # Unused topics stay, unless a policy says otherwise.
        configured=lambda config: InactiveTopics(delete_while_inactive=False),
    ),
    # Accepted because tools insist on it; it concerns replicas, which our log does not have.
    Policy(
        field="persistence",
        kind=Persistence,
        namespace_path="persistence",
        topic_path="persistence",
        configured=lambda config: Persistence(),
    ),
    Policy(
        field="subscription_auth_mode",
        kind=Literal["None", "Prefix"],
        namespace_path="subscriptionAuthMode",
    ),
    # Its commands are `anabranch tables`.
    Policy(
        field="table_mode",
        kind=TableMode,
        namespace_path="table",
        topic_path="table",
        configured=lambda config: config.tables_default_mode,
    ),
    Policy(field="max_message_size", kind=Count, topic_path="maxMessageSize"),
    Policy(field="replication_clusters", kind=tuple[str, ...], topic_path="replication"),
)

# Backlog quotas have their own routes and commands: two kinds, set one at a time.
QUOTA_WORD: Final = "backlog-quota"
QUOTA_HELP: Final = "how much a subscription may leave unread, and what happens beyond that"


def configured_quotas(config: BrokerConfig) -> dict[QuotaKind, BacklogQuota]:
    action = config.backlog_quota_default_retention_policy
    return {
        "destination_storage": BacklogQuota(
            limit_size=config.backlog_quota_default_limit_bytes, policy=action
        ),
        "message_age": BacklogQuota(limit_time=config.backlog_quota_default_limit_second, policy=action),
    }
