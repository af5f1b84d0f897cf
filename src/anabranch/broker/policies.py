"""A namespace's policies, a tenant and a cluster as values. Their JSON is Pulsar's, so REST passes it through.

None means "not set here": the broker's configuration decides. Fields this release does not know are kept when a
record is changed (`encode_policies`), so that a newer release's settings survive an older one's edit.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal, Self

import msgspec

HASH_SPACE_END = 0xFFFFFFFF
BUNDLES_MAX = 4096


class InvalidValue(ValueError):
    """A policy that contradicts itself; the message is shown to the user."""


class Json(msgspec.Struct, frozen=True, kw_only=True):
    """A value stored and served as JSON. Python names become Pulsar's through each class's `rename`."""

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return msgspec.json.decode(data, type=cls)

    def builtins(self) -> dict[str, Any]:
        """Plain dicts and lists with Pulsar's names; what is not set is left out."""
        return {k: v for k, v in msgspec.to_builtins(self).items() if v is not None}


class Retention(
    Json, frozen=True, rename={"minutes": "retentionTimeInMinutes", "megabytes": "retentionSizeInMB"}
):
    """How long acknowledged messages are kept: -1 is for ever, 0 is not at all; both bounds apply."""

    minutes: int = 0
    megabytes: int = 0

    def check(self) -> None:
        # Java's own rule: one bound at zero switches retention off, so the other must not claim to keep something.
        if self.minutes < -1 or self.megabytes < -1:
            raise InvalidValue("Invalid retention policy: time and size must be -1 (no bound), 0 or positive")
        if (self.minutes == 0) != (self.megabytes == 0):
            raise InvalidValue(
                "Invalid retention policy: size-only or time-only retention needs -1 for the other bound; "
                "zero keeps nothing"
            )


class Bundles(Json, frozen=True, rename={"count": "numBundles"}):
    """How the namespace's hash space is cut into bundles: `count` + 1 ascending boundaries."""

    boundaries: tuple[str, ...] = ("0x00000000", "0xffffffff")
    count: int = 1

    @classmethod
    def even(cls, count: int) -> Bundles:
        if not 1 <= count <= BUNDLES_MAX:
            raise InvalidValue(f"Invalid number of bundles {count}: 1 to {BUNDLES_MAX} are possible")
        size = (HASH_SPACE_END + 1) // count
        starts = [f"0x{i * size:08x}" for i in range(count)]
        return cls(boundaries=(*starts, f"0x{HASH_SPACE_END:08x}"), count=count)

    def checked(self) -> Bundles:
        """The bundles a user asked for, with even boundaries when only a count was given."""
        try:
            edges = [int(text, 16) for text in self.boundaries]
        except ValueError:
            raise InvalidValue("Invalid bundles: boundaries are hexadecimal, as 0x00000000") from None
        if self.count != len(edges) - 1:
            if self.boundaries == Bundles().boundaries:
                return Bundles.even(self.count)
            raise InvalidValue(f"Invalid bundles: {len(edges)} boundaries do not make {self.count} bundles")
        if edges[0] != 0 or edges[-1] != HASH_SPACE_END or any(a >= b for a, b in pairwise(edges)):
            raise InvalidValue("Invalid bundles: boundaries must ascend from 0x00000000 to 0xffffffff")
        return self

    def range_of(self, hash32: int) -> str:
        """The bundle (`0x…_0x…`) that owns this hash."""
        edges = [int(text, 16) for text in self.boundaries]
        index = max(i for i, edge in enumerate(edges[:-1]) if edge <= hash32)
        return f"{self.boundaries[index]}_{self.boundaries[index + 1]}"


class AutoTopicCreation(Json, frozen=True, rename="camel"):
    allow_auto_topic_creation: bool = True
    topic_type: Literal["partitioned", "non-partitioned"] | None = None
    default_num_partitions: int | None = None

    def check(self) -> None:
        if not self.allow_auto_topic_creation:
            return
        if self.topic_type is None:
            raise InvalidValue("Invalid configuration for autoTopicCreationOverride: topicType is missing")
        if self.topic_type == "partitioned" and (self.default_num_partitions or 0) < 1:
            raise InvalidValue(
                "Invalid configuration for autoTopicCreationOverride: defaultNumPartitions must be at least 1 "
                "for partitioned topics"
            )
        if self.topic_type == "non-partitioned" and self.default_num_partitions is not None:
            raise InvalidValue(
                "Invalid configuration for autoTopicCreationOverride: defaultNumPartitions is for partitioned topics"
            )


class AutoSubscriptionCreation(Json, frozen=True, rename="camel"):
    allow_auto_subscription_creation: bool = True


class BacklogQuota(Json, frozen=True, rename="camel", omit_defaults=True):
    """A limit on what a subscription may leave unacknowledged. `limit` is the older spelling of `limitSize`."""

    policy: Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]
    limit_size: int | None = None
    limit: int | None = None
    limit_time: int = -1

    @property
    def bytes_max(self) -> int:
        size = self.limit_size if self.limit_size is not None else self.limit
        return -1 if size is None else size


class Persistence(
    Json,
    frozen=True,
    rename={
        "ensemble": "bookkeeperEnsemble",
        "write_quorum": "bookkeeperWriteQuorum",
        "ack_quorum": "bookkeeperAckQuorum",
        "mark_delete_rate_max": "managedLedgerMaxMarkDeleteRate",
    },
):
    """Accepted and returned for compatibility: our log has one copy per medium, and acks need no rate limit."""

    ensemble: int = 1
    write_quorum: int = 1
    ack_quorum: int = 1
    mark_delete_rate_max: float = 0.0


class DelayedDelivery(Json, frozen=True, rename="camel"):
    tick_time: int = 1000
    active: bool = True
    max_delivery_delay_in_millis: int = 0


class InactiveTopics(Json, frozen=True, rename="camel"):
    inactive_topic_delete_mode: str = "delete_when_no_subscriptions"
    max_inactive_duration_seconds: int = 60
    delete_while_inactive: bool = True


class AuthPolicies(Json, frozen=True):
    """What is granted to which role; `permissions.py` says what it means."""

    namespace_auth: dict[str, list[str]] = {}
    destination_auth: dict[str, dict[str, list[str]]] = {}
    subscription_auth_roles: dict[str, list[str]] = {}


class Policies(Json, frozen=True):
    """Everything set on one namespace."""

    auth_policies: AuthPolicies = AuthPolicies()
    replication_clusters: tuple[str, ...] = ()
    bundles: Bundles = Bundles()
    backlog_quota_map: dict[Literal["destination_storage", "message_age"], BacklogQuota] = {}
    persistence: Persistence | None = None
    retention_policies: Retention | None = None
    message_ttl_in_seconds: int | None = None
    subscription_expiration_time_minutes: int | None = None
    # Bytes; 0 for never, None for what the broker is told.
    compaction_threshold: int | None = None
    deduplication_enabled: bool | None = msgspec.field(default=None, name="deduplicationEnabled")
    auto_topic_creation: AutoTopicCreation | None = msgspec.field(
        default=None, name="autoTopicCreationOverride"
    )
    auto_subscription_creation: AutoSubscriptionCreation | None = msgspec.field(
        default=None, name="autoSubscriptionCreationOverride"
    )
    delayed_delivery_policies: DelayedDelivery | None = None
    inactive_topic_policies: InactiveTopics | None = None
    max_producers_per_topic: int | None = None
    max_consumers_per_topic: int | None = None
    max_consumers_per_subscription: int | None = None
    max_unacked_messages_per_consumer: int | None = None
    max_unacked_messages_per_subscription: int | None = None
    max_subscriptions_per_topic: int | None = None
    max_topics_per_namespace: int | None = None
    is_allow_auto_update_schema: bool | None = None
    schema_compatibility_strategy: str = "UNDEFINED"
    schema_validation_enforced: bool = False
    encryption_required: bool = False
    subscription_auth_mode: Literal["None", "Prefix"] = "None"
    subscription_types_enabled: tuple[str, ...] = ()
    # What the namespace sets of the automatic split and merge policy of its scalable topics.
    scalable_topic_auto_scale_policy: dict[str, Any] | None = msgspec.field(
        default=None, name="scalableTopicAutoScalePolicy"
    )
    properties: dict[str, str] = {}
    # Set when deletion of the namespace has begun: no topic is created in it any more.
    deleted: bool = False

    def checked(self) -> Policies:
        """The policies once nothing in them contradicts itself."""
        if self.retention_policies is not None:
            self.retention_policies.check()
        if self.auto_topic_creation is not None:
            self.auto_topic_creation.check()
        if (self.message_ttl_in_seconds or 0) < 0:
            raise InvalidValue("Invalid value for message TTL")
        return msgspec.structs.replace(self, bundles=self.bundles.checked())


_POLICY_NAMES = frozenset(field.encode_name for field in msgspec.structs.fields(Policies))


def encode_policies(policies: Policies, before: bytes | None = None) -> bytes:
    """The record to store; what `before` held under names unknown to this release is carried over."""
    known = policies.builtins()
    if before:
        stored = msgspec.json.decode(before, type=dict[str, Any])
        known = {k: v for k, v in stored.items() if k not in _POLICY_NAMES} | known
    return msgspec.json.encode(known)


class Tenant(Json, frozen=True, rename="camel"):
    admin_roles: tuple[str, ...] = ()
    allowed_clusters: tuple[str, ...] = ()


class Cluster(Json, frozen=True, rename="camel"):
    service_url: str = ""
    service_url_tls: str = ""
    broker_service_url: str = ""
    broker_service_url_tls: str = ""


class PartitionedTopic(Json, frozen=True):
    """The record of a partitioned topic; its partitions are topics of their own."""

    partitions: int
    properties: dict[str, str] = {}
    deleted: bool = False
