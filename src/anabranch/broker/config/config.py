"""A broker's settings: their names, defaults, allowed values, and the source of each.

Names are Pulsar's wherever the meaning is the same; settings of our own log start with `log`. Later sources win:
defaults, the file (`broker.conf` lines or TOML), the environment (`ANABRANCH_maxMessageSize` or
`ANABRANCH_MAX_MESSAGE_SIZE`), flags. An unknown name causes a warning that suggests the nearest known one. A stock
`broker.conf` of Pulsar has hundreds of settings without meaning here: one line summarises them. A bad value is an
error. A setting without effect is not listed here, so that setting it causes a warning: for example
`brokerDeleteInactiveTopicsEnabled`, since only a policy deletes unused topics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import msgspec

from anabranch.broker.config import balancer, listeners, units
from anabranch.broker.config import unknown as unknown_settings
from anabranch.broker.config.balancer import BalancerConfig
from anabranch.broker.config.choices import BUNDLES_MAX, QuotaAction, Strategy, TableMode
from anabranch.broker.config.sources import (
    DEFAULT,
    ConfigError,
    GivenSetting,
    SettingOrigin,
    folded,
    from_environment,
    from_file,
)
from anabranch.broker.config.spelling import spelled
from anabranch.model.buckets import BUCKETS_MAX

__all__ = ["FIELDS", "BrokerConfig", "ConfigError", "Loaded", "changed", "load", "loaded"]

MIB = 1 << 20
GIB = 1 << 30


class BrokerConfig(BalancerConfig, frozen=True, kw_only=True, rename=spelled, forbid_unknown_fields=True):
    """Every setting; `spelled` returns them under the names that users write. Those of the load balancer are inherited.

    0 means "no limit" where a limit is counted, as in Pulsar.
    """

    # -- addresses
    cluster_name: str = "standalone"
    data_dir: str = "data"
    bind_address: str = "127.0.0.1"
    # The address that clients connect to; empty: the bind address, or this host's name when bound to all addresses.
    advertised_address: str = ""
    # More addresses, for clients that name them: `name:pulsar://host:port`. Clients that name none get the internal
    # one.
    advertised_listeners: tuple[str, ...] = ()
    # Empty: the first listener.
    internal_listener_name: str = ""
    broker_service_port: int = 6650
    web_service_port: int = 8080
    # 0: none.
    broker_service_port_tls: int = 0
    web_service_port_tls: int = 0
    # In PEM. Client certificates are requested if an authority for them is named.
    tls_certificate_file_path: str = ""
    tls_key_file_path: str = ""
    tls_trust_certs_file_path: str = ""
    tls_require_trusted_client_cert_on_connect: bool = False
    # For the links between brokers: whether they use TLS, the authorities that they trust ("": the system's), the
    # certificate that this broker shows to others that require one.
    broker_client_tls_enabled: bool = False
    broker_client_trust_certs_file_path: str = ""
    broker_client_certificate_file_path: str = ""
    broker_client_key_file_path: str = ""
    # Whether another broker's certificate must be for the host name of its address.
    tls_hostname_verification_enabled: bool = True
    # How often these files are checked for changes.
    tls_cert_refresh_check_duration_sec: int = 300

    # -- several brokers on one machine, which share its ports above
    # How many; `auto`: one for each core but one.
    brokers: str = "1"
    # The ports of the first one's own, to which lookups send clients; the others' follow. 0: any free port. Those with
    # TLS are opened if the shared one is.
    brokers_first_port: int = 6660
    brokers_first_web_port: int = 8090
    brokers_first_port_tls: int = 6760
    brokers_first_web_port_tls: int = 8190
    # Whether clients use the shared port for all brokers, where no other can be reached.
    brokers_one_port: bool = False

    # -- a broker of several machines, `anabranch broker`
    # Where the brokers share their metadata: `zk://host1,host2,host3/folder`.
    metadata_store_url: str = ""
    # How long ZooKeeper waits for a silent broker before its topics go to others.
    metadata_store_session_timeout_millis: int = 6_000
    # A file with `user:password`, by which ZooKeeper knows the brokers. Empty: nodes are open to all.
    zoo_keeper_auth_file: str = ""
    zoo_keeper_tls_enabled: bool = False
    # In PEM: the authorities to trust ("": the system's), and what this broker shows to servers that require it.
    zoo_keeper_tls_trust_certs_file_path: str = ""
    zoo_keeper_tls_certificate_file_path: str = ""
    zoo_keeper_tls_key_file_path: str = ""
    zoo_keeper_tls_hostname_verification_enabled: bool = True

    # -- authentication
    authentication_enabled: bool = False
    # Pulsar's names of the providers to use, with or without their package; empty: all that have their settings below.
    authentication_providers: tuple[str, ...] = ()
    # The role of clients without credentials; empty: they are refused.
    anonymous_user_role: str = ""
    # `file:///path`, or `data:;base64,…`.
    token_secret_key: str = ""
    token_public_key: str = ""
    token_public_alg: str = "RS256"
    token_auth_claim: str = "sub"
    token_audience_claim: str = ""
    token_audience: str = ""
    # The largest difference between the clocks of token issuers and this broker's.
    token_allowed_clock_skew_seconds: int = 0
    # An htpasswd file, or `data:;base64,…` with its content.
    basic_auth_conf: str = ""
    # How often a connection's credentials are checked for expiry. The client has as long to send newer ones.
    authentication_refresh_check_seconds: float = 30.0
    authenticate_metrics_endpoint: bool = False

    # -- authorization
    authorization_enabled: bool = False
    super_user_roles: tuple[str, ...] = ()
    # Roles of proxies; their connections must send an original principal.
    proxy_roles: tuple[str, ...] = ()
    # A star at the start or the end of a role in a grant matches anything.
    authorization_allow_wildcards_matching: bool = False
    # Whether permissions may be granted on a topic that does not exist.
    allow_acl_changes_on_non_existent_topics: bool = False

    # -- connections
    broker_max_connections: int = 0
    broker_max_connections_per_ip: int = 0
    max_http_server_connections: int = 2048
    # Milliseconds in which an HTTP request must arrive in full, and its response be read.
    http_server_idle_timeout: int = 30_000
    # The most bytes of a request's path and headers.
    http_max_request_header_size: int = 8192
    keep_alive_interval_seconds: int = 30
    max_message_size: int = 5 * MIB
    # Bytes waiting for one consumer's socket before its dispatch pauses.
    connection_write_buffer_bytes: int = 1 * MIB
    # The most unanswered publishes of one connection; above it, that connection is not read.
    max_pending_publish_requests_per_connection: int = 1000
    # Bytes appended and not yet synced; above it, connections that publish are not read.
    max_pending_publish_bytes: int = 64 * MIB

    # -- topics
    allow_auto_topic_creation: bool = True
    # With "scalable", clients that know scalable topics get one for a name without a domain; others get what they know.
    allow_auto_topic_creation_type: Literal["partitioned", "non-partitioned", "scalable"] = "non-partitioned"
    default_num_partitions: int = 1
    max_num_partitions_per_partitioned_topic: int = 0
    default_number_of_namespace_bundles: int = 4

    max_producers_per_topic: int = 0
    max_consumers_per_topic: int = 0
    # The most bytes of the names and values of a consumer's metadata.
    max_consumer_metadata_size: int = 1024
    max_subscriptions_per_topic: int = 0
    max_topics_per_namespace: int = 0
    # How often topics are checked that an inactive topic policy may delete. Without a policy none is deleted.
    broker_delete_inactive_topics_frequency_seconds: int = 60

    # -- schemas
    schema_compatibility_strategy: Strategy = "FULL"
    is_schema_validation_enforced: bool = False
    is_allow_auto_update_schema_enabled: bool = True

    # -- subscriptions
    allow_auto_subscription_creation: bool = True
    # Durable subscriptions without a consumer for that long are deleted; 0: never.
    subscription_expiration_time_minutes: int = 0
    max_consumers_per_subscription: int = 0
    max_unacked_messages_per_consumer: int = 50_000
    max_unacked_messages_per_subscription: int = 200_000
    dispatcher_max_read_batch_size: int = 1000
    # Key_Shared: keys by points on a ring, of which few move; otherwise by ranges that are halved, which are even.
    subscription_key_shared_use_consistent_hashing: bool = True
    active_consumer_failover_delay_time_millis: int = 1000

    # -- non-persistent topics
    enable_non_persistent_topics: bool = True

    # -- keyed compaction
    # A topic with more than this to compact is compacted automatically; 0: only on request.
    broker_service_compaction_threshold_in_bytes: int = 0
    broker_service_compaction_monitor_interval_in_seconds: int = 60
    # Whether compaction keeps messages without a key.
    topic_compaction_retain_null_key: bool = False

    # -- deduplication
    broker_deduplication_enabled: bool = False

    # -- hidden writes
    # An attempt that has no producer and is undecided for that long is dropped; batches that take longer fail.
    hidden_writes_timeout_seconds: int = 3600
    # All attempts at a batch are dropped once no producer of it was connected to any topic for that long; 0: never.
    hidden_writes_lease_seconds: int = 120
    # An attempt that has held a topic's readers for that long is dropped even if its producer is connected; 0: never.
    hidden_writes_open_max_seconds: int = 86_400
    # How often an owner checks whether an open batch was decided without the owner being notified.
    hidden_writes_check_interval_seconds: float = 5.0
    # How long the winning attempts are remembered: a batch that is run again after that is written again.
    hidden_writes_retention_seconds: int = 7 * 86_400

    # -- keeping and expiring
    # How much is kept of messages that every subscription has acknowledged, or that have no subscription, where neither
    # the topic nor its namespace has a retention policy. -1: no bound; 0 in either: messages only linger.
    default_retention_time_in_minutes: int = 7 * 24 * 60
    default_retention_size_in_mb: int = -1
    ttl_duration_default_in_seconds: int = 0
    # How often each open topic expires and trims. Pulsar waits 120 s; freeing disk space sooner costs little here.
    retention_check_interval_in_seconds: int = 10
    # -1: no quota. A quota on a namespace or a topic replaces the default of the same kind (size or time).
    backlog_quota_default_limit_bytes: int = -1
    backlog_quota_default_limit_second: int = -1
    backlog_quota_default_retention_policy: QuotaAction = "producer_request_hold"
    backlog_quota_check_enabled: bool = True
    backlog_quota_check_interval_in_seconds: int = 60
    force_delete_namespace_allowed: bool = True
    force_delete_tenant_allowed: bool = True

    # -- scalable topics
    scalable_topic_enabled: bool = True
    # How many segments an auto-created topic starts with.
    scalable_topic_default_segments: int = 1
    # Entry buckets (PIP-486) of a topic in all, and of one segment at most.
    scalable_topic_entry_bucket_budget: int = 4
    scalable_topic_entry_buckets_per_segment_max: int = 1024
    # Whether consumers share sealed segments too, so that a backlog is read by several.
    scalable_topic_sealed_drain_sharing_enabled: bool = True
    # A disconnected stream consumer keeps its segments this long; only then are they assigned to others.
    scalable_topic_consumer_session_grace_period_seconds: int = 60

    # -- automatic splits and merges of scalable topics. Durations are in seconds, rates a second.
    scalable_topic_auto_scale_enabled: bool = True
    scalable_topic_auto_scale_interval: float = 60.0
    # Both limit automation only: an operator may exceed them.
    scalable_topic_max_segments: int = 64
    scalable_topic_min_segments: int = 1
    # How many merges a segment's ancestry may hold, and how long each counts.
    scalable_topic_max_dag_depth: int = 10
    scalable_topic_merge_depth_window: float = 86_400.0
    scalable_topic_split_cooldown: float = 60.0
    scalable_topic_merge_cooldown: float = 300.0
    # How long a segment must have been cold before it is merged.
    scalable_topic_merge_window: float = 300.0
    # Between two changes of the number of entry buckets of segments, and how long consumers must not have needed the
    # buckets beyond the budget before they are given back.
    scalable_topic_rebucket_cooldown: float = 60.0
    scalable_topic_rebucket_idle_window: float = 1_800.0
    # One rate above its threshold splits a segment; only a segment with all four below theirs is merged.
    scalable_topic_split_msg_rate_in_threshold: float = 10_000.0
    scalable_topic_split_bytes_rate_in_threshold: float = 50_000_000.0
    scalable_topic_split_msg_rate_out_threshold: float = 50_000.0
    scalable_topic_split_bytes_rate_out_threshold: float = 250_000_000.0
    scalable_topic_merge_msg_rate_in_threshold: float = 1_000.0
    scalable_topic_merge_bytes_rate_in_threshold: float = 5_000_000.0
    scalable_topic_merge_msg_rate_out_threshold: float = 5_000.0
    scalable_topic_merge_bytes_rate_out_threshold: float = 25_000_000.0
    # How often a segment's owner measures its rates, the change that is large enough to be written, and the time over
    # which rates are averaged.
    scalable_topic_load_report_interval: float = 10.0
    scalable_topic_load_report_rate_change_threshold: float = 0.25
    scalable_topic_load_report_window: float = 60.0

    # -- load history: the load of segments, decisions and numbers of consumers, published to
    # persistent://pulsar/system/__load_history. Durations are in seconds.
    load_history_enabled: bool = True
    # How much the topic keeps, regardless of its subscriptions; 0: no limit.
    load_history_retention: float = 7 * 86_400.0
    load_history_retention_bytes: int = 512 * MIB
    # Samples of a segment that differ by less are reported together, for at most one heartbeat interval.
    load_history_rate_change_threshold: float = 0.05
    load_history_heartbeat_interval: float = 60.0

    # -- our log
    # Where the log is, if not in the data folder: `s3://bucket/prefix?endpoint=https://…`, with credentials from the
    # environment. For brokers of several machines also `file:///folder`, files in a folder that all of them use.
    log_url: str = ""
    # The most commits a second that are put into an object store, after a burst of twice as many; 0: no limit. Each put
    # is paid for; between two of them, what is published waits.
    log_object_puts_per_second: float = 10.0
    # How often an object store is looked through for space to give back, and how long objects are kept in which nothing
    # lives any more, or that were rewritten: readers may be on their way.
    log_object_reclaim_seconds: int = 600
    log_object_delete_delay_seconds: int = 1800
    # Objects that are mostly dead are rewritten once they waste so many bytes together, and so many bytes of them are
    # read in a second; 0 for the second: nothing is rewritten.
    log_object_rewrite_waste_bytes: int = 64 * MIB
    log_object_rewrite_bytes_per_second: int = 16 * MIB
    # Where the oldest files of a log on disk go once it has more bytes there than the second says:
    # `s3://bucket/prefix?endpoint=https://…`, with credentials from the environment, or `file:///folder`, another disk.
    # No more than a quarter of what there is room for stays, and nothing that can be moved while the disk is full.
    log_tier_url: str = ""
    log_tier_local_bytes: int = 8 << 30
    log_file_bytes: int = 64 * MIB
    log_cache_bytes: int = 64 * MIB
    # Consumed entries that no retention keeps stay this long, or until a topic has this many bytes of them: a consumer
    # that seeks back a moment, or subscribes a moment late, still finds them. A full disk ends this at once.
    log_linger_seconds: int = 60
    log_linger_bytes: int = 64 * MIB
    # Several brokers: entries that nothing keeps any more are trimmed once they are so many bytes, or after so many
    # seconds, since each trim changes a record that all brokers follow. One broker trims at each check.
    log_trim_bytes: int = 64 * MIB
    log_trim_seconds: int = 600
    # Entries that only the default retention keeps are trimmed, the oldest of all topics first, while messages take
    # more than this share of the log's capacity: of logDiskBytesMax, or of what the log takes and what is free.
    log_retained_disk_share: float = 0.5
    # Publishing stops while less than this is free, so that acks, deletes and rewriting can still free space.
    log_disk_reserve_bytes: int = 256 * MIB
    # The most bytes of disk for the log, including the reserve; 0: the whole disk.
    log_disk_bytes_max: int = 0
    # Whether super users may ask where a topic's entries lie and read the files themselves. The files hold all tenants'
    # entries.
    log_direct_reads_allowed: bool = True

    # -- topics as tables, written by a process of its own
    # Where tables are: the path of a folder, or `s3://bucket/prefix?endpoint=https://…`. Empty: no topic is a table.
    tables_url: str = ""
    # Whether topics are tables where neither they nor their namespace say so.
    tables_default_mode: TableMode = "off"
    # How often a topic with new messages is committed.
    tables_commit_seconds: float = 60.0
    # The most bytes of messages of a commit.
    tables_commit_bytes: int = 64 * MIB
    # The most bytes of a merged file.
    tables_merge_bytes: int = 512 * MIB
    # How long files stay that were merged into others.
    tables_retention_hours: int = 7 * 24
    # Whether `standalone` runs a writer. Elsewhere, `anabranch tables run` is one.
    tables_writer_enabled: bool = True
    # The token of the writer's role, a super user, where authentication is on: `file:///path` or the token.
    tables_writer_token: str = ""

    # -- metrics and logging
    expose_topic_level_metrics_in_prometheus: bool = True
    # Whether producers and consumers are listed one by one, beside their topics.
    expose_producer_level_metrics_in_prometheus: bool = False
    expose_consumer_level_metrics_in_prometheus: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    # One event per line in both; in JSON an event is an object with its facts as fields.
    log_format: Literal["text", "json"] = "text"

    @property
    def hidden_writes_lease_ms(self) -> int:
        """The lease in milliseconds, no shorter than owners need to renew it; 0: there is none."""
        lease_s, interval_s = self.hidden_writes_lease_seconds, self.hidden_writes_check_interval_seconds
        return int(max(lease_s, 3 * interval_s) * 1000) if lease_s > 0 else 0

    def spelled(self) -> dict[str, Any]:
        """The settings as users write them. A key given as a value is masked."""
        settings: dict[str, Any] = msgspec.to_builtins(self)
        for name in SECRETS:
            settings[name] = _masked(settings[name])
        return settings


# Shown only if they name a file.
SECRETS = frozenset({"tokenSecretKey", "basicAuthConf", "tablesWriterToken"})


def _masked(value: Any) -> Any:
    return value if not value or str(value).startswith("file:") else "*****"


_INHERITED = len(msgspec.structs.fields(BalancerConfig))
_ALL = msgspec.structs.fields(BrokerConfig)
# The balancer's last.
FIELDS = {field.encode_name: field for field in (*_ALL[_INHERITED:], *_ALL[:_INHERITED])}
_FOLDED = {name.lower(): name for name in FIELDS}

# Other spellings of the same setting, folded, and the factor between their units.
_ALIASES = {
    "managedledgercachesizemb": "logCacheBytes",
    "maxmessagepublishbuffersizeinmb": "maxPendingPublishBytes",
    "scalabletopicsenabled": "scalableTopicEnabled",
    **balancer.ALIASES,
}
_SCALES = {"managedledgercachesizemb": MIB, "maxmessagepublishbuffersizeinmb": MIB}

# Settings that are written with a unit.
_DURATIONS = (
    "scalableTopicAutoScaleInterval",
    "scalableTopicMergeDepthWindow",
    "scalableTopicSplitCooldown",
    "scalableTopicMergeCooldown",
    "scalableTopicMergeWindow",
    "scalableTopicRebucketCooldown",
    "scalableTopicRebucketIdleWindow",
    "scalableTopicLoadReportInterval",
    "scalableTopicLoadReportWindow",
    "loadHistoryRetention",
    "loadHistoryHeartbeatInterval",
)
_READERS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_DURATIONS, units.seconds),
    **{
        name: units.bytes_rate if "Bytes" in name else units.rate
        for name in FIELDS
        if name.startswith(("scalableTopicSplit", "scalableTopicMerge")) and name.endswith("Threshold")
    },
    "scalableTopicLoadReportRateChangeThreshold": units.fraction,
    **dict.fromkeys(
        ("authenticationProviders", "superUserRoles", "proxyRoles", "advertisedListeners"), units.names
    ),
    "loadHistoryRateChangeThreshold": units.fraction,
    "brokers": units.brokers,
    **balancer.READERS,
}
# Pulsar's own names of durations include their unit.
_ALIASES |= {f"{name}Seconds".lower(): name for name in _DURATIONS}

_AT_LEAST: Mapping[str, float] = {
    "authenticationRefreshCheckSeconds": 0.05,
    "keepAliveIntervalSeconds": 1,
    "maxHttpServerConnections": 1,
    "httpServerIdleTimeout": 100,
    "httpMaxRequestHeaderSize": 1024,
    "maxMessageSize": 1024,
    "defaultNumPartitions": 1,
    "defaultNumberOfNamespaceBundles": 1,
    "dispatcherMaxReadBatchSize": 1,
    "connectionWriteBufferBytes": 4096,
    "maxPendingPublishBytes": MIB,
    "retentionCheckIntervalInSeconds": 1,
    "brokerServiceCompactionMonitorIntervalInSeconds": 1,
    "backlogQuotaCheckIntervalInSeconds": 1,
    "brokerDeleteInactiveTopicsFrequencySeconds": 1,
    "backlogQuotaDefaultLimitBytes": -1,
    "backlogQuotaDefaultLimitSecond": -1,
    "hiddenWritesTimeoutSeconds": 1,
    "hiddenWritesCheckIntervalSeconds": 0.05,
    "logFileBytes": MIB,
    "logCacheBytes": MIB,
    "scalableTopicDefaultSegments": 1,
    "scalableTopicEntryBucketBudget": 1,
    "scalableTopicEntryBucketsPerSegmentMax": 1,
    # Often enough for any test, and not so often that a broker does nothing else.
    "scalableTopicAutoScaleInterval": 0.05,
    "scalableTopicLoadReportInterval": 0.05,
    "scalableTopicLoadReportWindow": 0.05,
    "loadHistoryHeartbeatInterval": 0.05,
    "scalableTopicMaxSegments": 1,
    "scalableTopicMinSegments": 1,
    "tablesCommitSeconds": 0.05,
    "tablesCommitBytes": MIB,
    "tablesMergeBytes": MIB,
    "defaultRetentionTimeInMinutes": -1,
    "defaultRetentionSizeInMB": -1,
    **balancer.AT_LEAST,
}
_AT_MOST: Mapping[str, float] = {
    "logRetainedDiskShare": 1,
    "brokerServicePort": 65_535,
    "webServicePort": 65_535,
    "brokerServicePortTls": 65_535,
    "webServicePortTls": 65_535,
    "brokersFirstPort": 65_535 - units.BROKERS_MAX,
    "brokersFirstWebPort": 65_535 - units.BROKERS_MAX,
    "brokersFirstPortTls": 65_535 - units.BROKERS_MAX,
    "brokersFirstWebPortTls": 65_535 - units.BROKERS_MAX,
    "maxMessageSize": 1 * GIB,
    "defaultNumberOfNamespaceBundles": BUNDLES_MAX,
    "scalableTopicDefaultSegments": 4096,
    "scalableTopicEntryBucketBudget": 65_536,
    "scalableTopicEntryBucketsPerSegmentMax": BUCKETS_MAX,
    **balancer.AT_MOST,
}


# Java's long. Larger numbers can be neither converted nor added to a time.
_NUMBER_MAX: Final = 2**63 - 1


@dataclass
class Loaded:
    """A configuration, with the source of each setting and the warnings."""

    config: BrokerConfig
    origins: dict[str, SettingOrigin]  # The origins of settings that are not left at their defaults.
    warnings: list[str] = field(default_factory=list)
    unused: list[GivenSetting] = field(default_factory=list)  # Settings of Pulsar's without meaning here.
    # The unused settings that differ from Pulsar's defaults: an operator wanted something.
    missed: list[GivenSetting] = field(default_factory=list)

    def origin(self, name: str) -> SettingOrigin:
        return self.origins.get(name, DEFAULT)


def load(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> tuple[BrokerConfig, list[str]]:
    """The configuration and the warnings to print. Flags that are None were not given."""
    given = [
        GivenSetting(key, value, SettingOrigin("flag", f"--set {key}"))
        for key, value in (flags or {}).items()
        if value is not None
    ]
    found = loaded(file, environ, given)
    return found.config, found.warnings


def loaded(
    file: Path | None = None, environ: Mapping[str, str] | None = None, flags: Iterable[GivenSetting] = ()
) -> Loaded:
    """The configuration, the source of each setting, and the warnings about them."""
    settings: dict[str, Any] = {}
    found = Loaded(BrokerConfig(), {})
    strangers: list[GivenSetting] = []
    for given in [*(from_file(file) if file else []), *from_environment(environ or {}), *flags]:
        key = folded(given.key)
        name = _FOLDED.get(key) or _ALIASES.get(key)
        if name is None:
            strangers.append(given)
        elif given.value != "" or given.origin.kind == "flag":
            # Empty means "not set" in a broker.conf, which lists every setting.
            settings[name] = _convert(name, given, _SCALES.get(key))
            found.origins[name] = given.origin
    told = unknown_settings.sort(strangers, _FOLDED)
    found.warnings, found.unused, found.missed = told.warnings, told.unused, told.missed
    found.config = BrokerConfig(**{FIELDS[key].name: value for key, value in settings.items()})
    _check(found)
    return found


def changed(config: BrokerConfig, values: Mapping[str, str]) -> BrokerConfig:
    """The configuration with some settings, under the names users write, changed at run time."""
    origin = SettingOrigin("dynamic", "the dynamic configuration")
    fields = {
        FIELDS[name].name: _convert(name, GivenSetting(name, text, origin), None)
        for name, text in values.items()
    }
    found = Loaded(msgspec.structs.replace(config, **fields), dict.fromkeys(values, origin))
    _check(found)
    return found.config


def _convert(name: str, given: GivenSetting, scale: int | None) -> Any:
    value = given.value
    try:
        if scale is not None:
            number = msgspec.convert(value, float, strict=False)
            return int(number * scale) if number >= 0 else -1
        if (read := _READERS.get(name)) is not None:
            return read(value)
        if isinstance(value, str):
            value = value.strip()
            if value.lower() in _words(FIELDS[name].type):
                value = value.lower()
        return msgspec.convert(value, FIELDS[name].type, strict=not isinstance(value, str))
    except (ValueError, OverflowError) as error:  # These include msgspec's own errors.
        reason = str(error) if name in _READERS else f"expected {allowed(name)}"
        raise _refusal(name, given.value, reason, given.origin) from None


def _refusal(name: str, value: Any, reason: str, origin: SettingOrigin) -> ConfigError:
    shown = "*****" if name in SECRETS else repr(value)
    return ConfigError(f"{name} = {shown}{f' in {origin}' if origin.where else ''}: {reason}")


def _words(kind: Any) -> tuple[str, ...]:
    """The values of an enumerated setting, which are read without regard to case."""
    if kind is bool:
        return ("true", "false")
    return get_args(kind) if get_origin(kind) is Literal else ()


def allowed(name: str) -> str:
    """The allowed values of a setting, in words."""
    kind = FIELDS[name].type
    if kind is bool:
        return "true or false"
    if words := _words(kind):
        return " or ".join(words) if len(words) == 2 else "one of " + ", ".join(words)
    if kind is str:
        return "text"
    if _READERS.get(name) is units.names:
        return "names with commas between them"
    least, most = _AT_LEAST.get(name, 0), _AT_MOST.get(name)
    number = "a whole number" if kind is int else "a number"
    return f"{number} from {least} to {most}" if most is not None else f"{number} of at least {least}"


def _check(found: Loaded) -> None:
    config = found.config
    for name, value in config.spelled().items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        # NaN is between no two numbers.
        if not _AT_LEAST.get(name, 0) <= value <= _AT_MOST.get(name, _NUMBER_MAX):
            raise _refusal(name, value, f"expected {allowed(name)}", found.origin(name))
    has_tls = config.broker_service_port_tls or config.web_service_port_tls
    if has_tls and not (config.tls_certificate_file_path and config.tls_key_file_path):
        raise ConfigError("a TLS port needs tlsCertificateFilePath and tlsKeyFilePath")
    if config.tls_require_trusted_client_cert_on_connect and not config.tls_trust_certs_file_path:
        raise ConfigError("tlsRequireTrustedClientCertOnConnect needs tlsTrustCertsFilePath")
    if bool(config.broker_client_certificate_file_path) != bool(config.broker_client_key_file_path):
        raise ConfigError("brokerClientCertificateFilePath and brokerClientKeyFilePath belong together")
    if config.authorization_enabled and not config.authentication_enabled:
        raise ConfigError(
            "authorizationEnabled needs authenticationEnabled=true: permissions apply to authenticated roles"
        )
    try:
        filled = listeners.filled(config.advertised_listeners, 0, {})
        listeners.read(filled, config.internal_listener_name)
    except ValueError as error:
        raise ConfigError(f"advertisedListeners: {error}") from None
    if (wrong := balancer.problem(config)) is not None:
        raise ConfigError(wrong)
    if config.data_dir == "":
        raise ConfigError("dataDir is empty: name a folder")
