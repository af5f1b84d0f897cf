"""A namespace's policies, a tenant and a cluster as values. Their JSON is Pulsar's, so REST passes it through.

None means "not set here": the broker's configuration decides. Fields unknown to this release are kept when a record is
changed (`encode_policies`), so that a newer release's settings survive an older one's edit.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, Literal

import msgspec

from anabranch.broker.config.choices import BUNDLES_MAX, QuotaAction, Strategy, TableMode
from anabranch.broker.policy.rate_json import DispatchRate, PublishRate, SubscribeRate
from anabranch.broker.policy.stored_json import (
    BadSetting,
    Count,
    Count64,
    Int32,
    Int64,
    InvalidValue,
    JsonStruct,
)
from anabranch.model.bundles import HASH_SPACE_END, WHOLE, BundleRanges, bundle_ranges


class Retention(
    JsonStruct, frozen=True, rename={"minutes": "retentionTimeInMinutes", "megabytes": "retentionSizeInMB"}
):
    """How long acknowledged messages are kept: -1 is for ever, 0 is not at all; both bounds apply."""

    minutes: Int32 = 0
    megabytes: Int32 = 0

    def check(self) -> None:
        # Java's own rule: one bound at zero switches retention off, so the other must not claim to keep something.
        if self.minutes < -1 or self.megabytes < -1:
            raise BadSetting("Invalid retention policy: time and size must be -1 (no bound), 0 or positive")
        if (self.minutes == 0) != (self.megabytes == 0):
            raise BadSetting(
                "Invalid retention policy: size-only or time-only retention needs -1 for the other bound; "
                "zero keeps nothing"
            )


class Bundles(JsonStruct, frozen=True, rename={"count": "numBundles"}):
    """The split of the namespace's hash space into bundles: `count` + 1 ascending boundaries."""

    boundaries: tuple[str, ...] = WHOLE
    count: Int32 = 1

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

    @property
    def ranges(self) -> BundleRanges:
        return bundle_ranges(self.boundaries)


SubscriptionType = Literal["Exclusive", "Shared", "Failover", "Key_Shared"]
QuotaKind = Literal["destination_storage", "message_age"]


_PARTITIONS = "[defaultNumPartitions]"


class AutoTopicCreation(JsonStruct, frozen=True, rename="camel"):
    allow_auto_topic_creation: bool = True
    # Clients send an empty type when they switch creation off.
    topic_type: Literal["partitioned", "non-partitioned", "scalable", ""] | None = None
    default_num_partitions: Int32 | None = None

    def check(self) -> None:
        if self.allow_auto_topic_creation and (fault := self._fault()):
            # Admin clients compare this text word for word.
            raise InvalidValue(f"Invalid configuration for autoTopicCreationOverride. the detail is {fault}")

    def _fault(self) -> str:
        partitions = self.default_num_partitions
        if not self.topic_type:
            return "[topicType] is missing: give partitioned or non-partitioned."
        if self.topic_type == "scalable":
            return (
                ""
                if partitions is None
                else f"{_PARTITIONS} is not allowed to be set when the type is scalable."
            )
        if self.topic_type == "non-partitioned":
            is_fine = partitions is None
            return (
                "" if is_fine else f"{_PARTITIONS} is not allowed to be set when the type is non-partition."
            )
        if partitions is None:
            return f"{_PARTITIONS} cannot be null when the type is partitioned."
        return "" if partitions >= 1 else f"{_PARTITIONS} cannot be less than 1 for partition type."


class AutoSubscriptionCreation(JsonStruct, frozen=True, rename="camel"):
    allow_auto_subscription_creation: bool = True


class BacklogQuota(JsonStruct, frozen=True, rename="camel", omit_defaults=True):
    """A limit on what a subscription may leave unacknowledged. `limit` is the older spelling of `limitSize`."""

    policy: QuotaAction
    limit_size: Int64 | None = None
    limit: Int64 | None = None
    limit_time: Int32 = -1

    @property
    def bytes_max(self) -> int:
        size = self.limit_size if self.limit_size is not None else self.limit
        return -1 if size is None else size

    def builtins(self) -> dict[str, Any]:
        """Every field, whichever was set, and both spellings of the size."""
        size = self.bytes_max
        return {"limit": size, "limitSize": size, "limitTime": self.limit_time, "policy": self.policy}

    def check(self, kind: str) -> None:
        if kind == "message_age" and self.policy != "consumer_backlog_eviction" and self.limit_time == 0:
            raise InvalidValue(
                "Invalid backlog quota: limitTime 0 would refuse every producer; use -1 for none"
            )


class Persistence(
    JsonStruct,
    frozen=True,
    rename={
        "ensemble": "bookkeeperEnsemble",
        "write_quorum": "bookkeeperWriteQuorum",
        "ack_quorum": "bookkeeperAckQuorum",
        "mark_delete_rate_max": "managedLedgerMaxMarkDeleteRate",
    },
):
    """Accepted and returned for compatibility: our log has one copy per medium, and acks need no rate limit."""

    ensemble: Int32 = 1
    write_quorum: Int32 = 1
    ack_quorum: Int32 = 1
    mark_delete_rate_max: float = 0.0

    def check(self) -> None:
        sizes = (self.ensemble, self.write_quorum, self.ack_quorum)
        if not sizes[0] >= sizes[1] >= sizes[2] > 0:
            raise BadSetting(
                f"Bookkeeper Ensemble ({sizes[0]}) >= WriteQuorum ({sizes[1]}) >= AckQuorum ({sizes[2]}) > 0 "
                "must hold"
            )
        if not 0 <= self.mark_delete_rate_max < math.inf:  # Clients may write "NaN".
            raise BadSetting("managedLedgerMaxMarkDeleteRate must be 0 or more")


class DelayedDelivery(JsonStruct, frozen=True, rename="camel"):
    """Whether messages may be delayed. `tickTime` is the granularity of Pulsar's delays; ours are exact."""

    tick_time: Int64 = 1000
    active: bool = True
    max_delivery_delay_in_millis: Int64 = 0

    def check(self) -> None:
        if self.max_delivery_delay_in_millis < 0:
            raise InvalidValue("Invalid delayed delivery policy: maxDeliveryDelayInMillis must be 0 or more")


class InactiveTopics(JsonStruct, frozen=True, rename="camel"):
    """When an unused topic is deleted. Without such a policy no topic ever is."""

    inactive_topic_delete_mode: Literal[
        "delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"
    ] = "delete_when_no_subscriptions"
    max_inactive_duration_seconds: Int32 = 60
    delete_while_inactive: bool = True

    def check(self) -> None:
        if self.max_inactive_duration_seconds <= 0:
            raise InvalidValue("Invalid inactive topic policy: maxInactiveDurationSeconds must be positive")


class AuthPolicies(JsonStruct, frozen=True):
    """The permissions granted to each role; `security/grants.py` interprets them."""

    namespace_auth: dict[str, list[str]] = msgspec.field(default_factory=dict)
    destination_auth: dict[str, dict[str, list[str]]] = msgspec.field(default_factory=dict)
    subscription_auth_roles: dict[str, list[str]] = msgspec.field(default_factory=dict)


class NamespacePolicies(JsonStruct, frozen=True):
    """Everything set on one namespace."""

    auth_policies: AuthPolicies = AuthPolicies()
    replication_clusters: tuple[str, ...] = ()
    bundles: Bundles = Bundles()
    backlog_quota_map: dict[QuotaKind, BacklogQuota] = msgspec.field(default_factory=dict)
    persistence: Persistence | None = None
    retention_policies: Retention | None = None
    message_ttl_in_seconds: Int32 | None = None
    subscription_expiration_time_minutes: Count | None = None
    # Bytes; 0 for never, None for the broker's setting.
    compaction_threshold: Count64 | None = None
    deduplication_enabled: bool | None = msgspec.field(default=None, name="deduplicationEnabled")
    auto_topic_creation: AutoTopicCreation | None = msgspec.field(
        default=None, name="autoTopicCreationOverride"
    )
    auto_subscription_creation: AutoSubscriptionCreation | None = msgspec.field(
        default=None, name="autoSubscriptionCreationOverride"
    )
    delayed_delivery_policies: DelayedDelivery | None = None
    inactive_topic_policies: InactiveTopics | None = None
    max_producers_per_topic: Count | None = None
    max_consumers_per_topic: Count | None = None
    max_consumers_per_subscription: Count | None = None
    max_unacked_messages_per_consumer: Count | None = None
    max_unacked_messages_per_subscription: Count | None = None
    max_subscriptions_per_topic: Count | None = None
    max_topics_per_namespace: Count | None = None
    is_allow_auto_update_schema: bool | None = None
    schema_compatibility_strategy: Strategy = "UNDEFINED"
    schema_validation_enforced: bool = False
    encryption_required: bool = False
    subscription_auth_mode: Literal["None", "Prefix"] = "None"
    subscription_types_enabled: tuple[SubscriptionType, ...] = ()
    # By cluster, as Pulsar stores them; here there is one cluster.
    publish_rate: dict[str, PublishRate] = msgspec.field(default_factory=dict, name="publishMaxMessageRate")
    dispatch_rate: dict[str, DispatchRate] = msgspec.field(default_factory=dict, name="topicDispatchRate")
    subscription_dispatch_rate: dict[str, DispatchRate] = msgspec.field(
        default_factory=dict, name="subscriptionDispatchRate"
    )
    subscribe_rate: dict[str, SubscribeRate] = msgspec.field(
        default_factory=dict, name="clusterSubscribeRate"
    )
    # Whether topics are kept as tables, and how.
    table_mode: TableMode | None = None
    # Set for single topics only.
    max_message_size: Count | None = None
    # How far the stored table of sequence ids may lag behind: ours is in every commit of the log.
    deduplication_snapshot_interval: Count | None = msgspec.field(
        default=None, name="deduplicationSnapshotIntervalSeconds"
    )
    # The parts of the automatic split and merge policy that the namespace sets for its scalable topics.
    scalable_topic_auto_scale_policy: dict[str, Any] | None = msgspec.field(
        default=None, name="scalableTopicAutoScalePolicy"
    )
    # Bundles of namespaces with the same group are kept apart. Not among what the REST shows of all policies: Pulsar
    # keeps it elsewhere.
    anti_affinity_group: str | None = msgspec.field(default=None, name="namespaceAntiAffinityGroup")
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    # Set when deletion of the namespace has begun: no topic is created in it any more.
    deleted: bool = False

    def checked(self) -> NamespacePolicies:
        """The policies, after checking that they do not contradict each other."""
        for part in (
            self.persistence,
            self.retention_policies,
            self.auto_topic_creation,
            self.delayed_delivery_policies,
            self.inactive_topic_policies,
            *self.dispatch_rate.values(),
            *self.subscription_dispatch_rate.values(),
            *self.subscribe_rate.values(),
        ):
            if part is not None:
                part.check()
        for kind, quota in self.backlog_quota_map.items():
            quota.check(kind)
        if (self.message_ttl_in_seconds or 0) < 0:
            raise InvalidValue("Invalid value for message TTL")
        self._check_quota_against_retention()
        return msgspec.structs.replace(self, bundles=self.bundles.checked())

    def _check_quota_against_retention(self) -> None:
        """Checks Pulsar's rule: a backlog quota must be below the retention, in bytes and in seconds."""
        retention = self.retention_policies
        if retention is None:
            return
        for quota in self.backlog_quota_map.values():
            is_too_large = 0 < retention.megabytes << 20 <= quota.bytes_max
            is_too_long = 0 < retention.minutes * 60 <= quota.limit_time
            if is_too_large or is_too_long:
                raise InvalidValue(
                    "Backlog Quota exceeds configured retention quota for namespace. "
                    "Please increase retention quota and retry"
                )


_POLICY_NAMES = frozenset(field.encode_name for field in msgspec.structs.fields(NamespacePolicies))


def encode_policies(policies: NamespacePolicies, before: bytes | None = None) -> bytes:
    """The record to store; fields of `before` that are unknown to this release are carried over."""
    known = policies.builtins()
    if before:
        stored = msgspec.json.decode(before, type=dict[str, Any])
        known = {k: v for k, v in stored.items() if k not in _POLICY_NAMES} | known
    return NamespacePolicies.readable(msgspec.json.encode(known))


class Tenant(JsonStruct, frozen=True, rename="camel"):
    admin_roles: tuple[str, ...] = ()
    allowed_clusters: tuple[str, ...] = ()


_CLUSTER_URLS = {
    "serviceUrl": ("http://", "http://pulsar.example.com:8080"),
    "serviceUrlTls": ("https://", "https://pulsar.example.com:8443"),
    "brokerServiceUrl": ("pulsar://", "pulsar://pulsar.example.com:6650"),
    "brokerServiceUrlTls": ("pulsar+ssl://", "pulsar+ssl://pulsar.example.com:6651"),
}


class ClusterRecord(JsonStruct, frozen=True, rename="camel"):
    service_url: str = ""
    service_url_tls: str = ""
    broker_service_url: str = ""
    broker_service_url_tls: str = ""
    # How other clusters connect: stored for the tools that ask for it.
    broker_client_tls_enabled: bool = False
    broker_client_tls_enabled_with_key_store: bool = False
    tls_allow_insecure_connection: bool = False

    def builtins(self) -> dict[str, Any]:
        return {name: value for name, value in msgspec.to_builtins(self).items() if value != ""}

    def check(self) -> None:
        shown = self.builtins()
        for name, (scheme, example) in _CLUSTER_URLS.items():
            if name in shown and not shown[name].startswith(scheme):
                raise BadSetting(f"Illegal {name} {shown[name]!r}, example: {example}")


class PartitionedTopic(JsonStruct, frozen=True):
    """The record of a partitioned topic; its partitions are topics of their own."""

    partitions: int
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    deleted: bool = False
    topic_id: str = msgspec.field(default="", name="topicId")  # Random, made with the topic; "" for old ones.

    def builtins(self) -> dict[str, Any]:
        """The record as Pulsar shows it: properties only if there are any, and no fields of ours."""
        value = msgspec.to_builtins(self)
        return {name: value[name] for name in value if value[name] != {} and name != "topicId"}
