"""A broker's settings: what they are called, what they default to, and where they are read from.

Names are Pulsar's wherever the meaning is the same; settings of our own log start with `log`. Later sources win:
defaults, the file (`broker.conf` lines or TOML), the environment (`ANABRANCH_maxMessageSize` or
`ANABRANCH_MAX_MESSAGE_SIZE`), flags. An unknown name is a warning that suggests the nearest known one, because a stock
`broker.conf` of Pulsar has hundreds of settings that mean nothing here; a bad value is an error. A setting that nothing
would obey is not listed, so that setting it is told: topics, for one, are never deleted merely for being unused.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from anabranch.broker import units
from anabranch.broker.policies import BUNDLES_MAX
from anabranch.errors import AnabranchError

MIB = 1 << 20
GIB = 1 << 30
ENVIRONMENT_PREFIX = "ANABRANCH_"

# The variables that the command line reads itself; they are no settings of a broker.
_NOT_SETTINGS = frozenset({"serviceurl", "adminurl", "loglevel"})
_ABBREVIATIONS = {"_in_mb": "InMB", "_in_gb": "InGB"}


class ConfigError(AnabranchError):
    """A setting that cannot be used; the message names it, its value and its source."""


def _spelled(name: str) -> str:
    """`max_message_size` as users write it: `maxMessageSize`."""
    for tail, replacement in _ABBREVIATIONS.items():
        if name.endswith(tail):
            return _spelled(name.removesuffix(tail)) + replacement
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True, rename=_spelled, forbid_unknown_fields=True):
    """Every setting; `spelled` has them under the names users write.

    0 means "no limit" where a limit is counted, as in Pulsar.
    """

    # -- where it is
    cluster_name: str = "standalone"
    data_dir: str = "data"
    bind_address: str = "127.0.0.1"
    # What clients are told to connect to; empty: the bind address, or this host's name when bound to all addresses.
    advertised_address: str = ""
    broker_service_port: int = 6650
    web_service_port: int = 8080
    # 0: none.
    broker_service_port_tls: int = 0
    web_service_port_tls: int = 0
    # In PEM. Client certificates are asked for where an authority for them is named.
    tls_certificate_file_path: str = ""
    tls_key_file_path: str = ""
    tls_trust_certs_file_path: str = ""
    tls_require_trusted_client_cert_on_connect: bool = False

    # -- who is let in
    authentication_enabled: bool = False
    # Of those who show nothing; empty: they are refused.
    anonymous_user_role: str = ""
    # `file:///path`, or `data:;base64,…`.
    token_secret_key: str = ""
    token_public_key: str = ""
    token_public_alg: str = "RS256"
    token_auth_claim: str = "sub"
    token_audience_claim: str = ""
    token_audience: str = ""

    # -- connections
    keep_alive_interval_seconds: int = 30
    max_message_size: int = 5 * MIB
    # Bytes waiting for one consumer's socket before its dispatch pauses.
    connection_write_buffer_bytes: int = 1 * MIB
    # Appended and not yet synced; above it, connections that publish are not read.
    max_pending_publish_bytes: int = 64 * MIB

    # -- topics
    allow_auto_topic_creation: bool = True
    allow_auto_topic_creation_type: Literal["partitioned", "non-partitioned"] = "non-partitioned"
    default_num_partitions: int = 1
    max_num_partitions_per_partitioned_topic: int = 0
    default_number_of_namespace_bundles: int = 4

    # -- subscriptions
    max_consumers_per_subscription: int = 0
    max_unacked_messages_per_consumer: int = 50_000
    max_unacked_messages_per_subscription: int = 200_000
    dispatcher_max_read_batch_size: int = 1000
    active_consumer_failover_delay_time_millis: int = 1000

    # -- deduplication
    broker_deduplication_enabled: bool = False

    # -- hidden writes
    # An attempt that has no producer and is not decided for so long is dropped; batches that take longer fail.
    hidden_writes_timeout_seconds: int = 3600
    # How often an owner looks whether something open was decided without it being told.
    hidden_writes_check_interval_seconds: float = 5.0
    # How long it is known which attempts won: a batch that is run again after that is written again.
    hidden_writes_retention_seconds: int = 7 * 86_400

    # -- keeping and expiring
    default_retention_time_in_minutes: int = 0
    default_retention_size_in_mb: int = 0
    ttl_duration_default_in_seconds: int = 0
    # How often each open topic expires and trims. Pulsar waits 120 s; giving disk back sooner costs little here.
    retention_check_interval_in_seconds: int = 10
    force_delete_namespace_allowed: bool = True
    force_delete_tenant_allowed: bool = True

    # -- scalable topics
    scalable_topic_enabled: bool = True
    # How many segments a topic starts with that is made by a lookup.
    scalable_topic_default_segments: int = 1
    # A stream consumer that is cut off keeps its segments this long; only then are they given to others.
    scalable_topic_consumer_session_grace_period_seconds: int = 60

    # -- scalable topics that split and merge by themselves. Durations are in seconds, rates a second.
    scalable_topic_auto_scale_enabled: bool = True
    scalable_topic_auto_scale_interval: float = 60.0
    # Both bind automation only: an operator may go beyond.
    scalable_topic_max_segments: int = 64
    scalable_topic_min_segments: int = 1
    # How many merges a segment's past may hold, and how long each counts.
    scalable_topic_max_dag_depth: int = 10
    scalable_topic_merge_depth_window: float = 86_400.0
    scalable_topic_split_cooldown: float = 60.0
    scalable_topic_merge_cooldown: float = 300.0
    # How long a segment must have been cold before it is merged.
    scalable_topic_merge_window: float = 300.0
    # One rate above its threshold splits a segment; only one with all four below theirs is merged.
    scalable_topic_split_msg_rate_in_threshold: float = 10_000.0
    scalable_topic_split_bytes_rate_in_threshold: float = 50_000_000.0
    scalable_topic_split_msg_rate_out_threshold: float = 50_000.0
    scalable_topic_split_bytes_rate_out_threshold: float = 250_000_000.0
    scalable_topic_merge_msg_rate_in_threshold: float = 1_000.0
    scalable_topic_merge_bytes_rate_in_threshold: float = 5_000_000.0
    scalable_topic_merge_msg_rate_out_threshold: float = 5_000.0
    scalable_topic_merge_bytes_rate_out_threshold: float = 25_000_000.0
    # How often a segment's owner looks at its rates, by how much one must have moved to be written, and over how long
    # they are averaged.
    scalable_topic_load_report_interval: float = 10.0
    scalable_topic_load_report_rate_change_threshold: float = 0.25
    scalable_topic_load_report_window: float = 60.0

    # -- our log
    log_file_bytes: int = 64 * MIB
    log_cache_bytes: int = 64 * MIB
    # Consumed entries that no retention keeps stay this long, or until a topic has this many bytes of them: a consumer
    # that seeks back a moment, or subscribes a moment late, still finds them. A full disk ends this at once.
    log_linger_seconds: int = 60
    log_linger_bytes: int = 64 * MIB
    # Publishing stops while less than this is free, so that acks, deletes and rewriting can still free space.
    log_disk_reserve_bytes: int = 256 * MIB
    # What the log may take of the disk, reserve included; 0: all of it.
    log_disk_bytes_max: int = 0
    # Super users may ask where a topic's entries lie and read the files themselves. The files hold every tenant's.
    log_direct_reads_allowed: bool = True

    # -- watching it
    expose_topic_level_metrics_in_prometheus: bool = True

    def spelled(self) -> dict[str, Any]:
        """As users write them. A key that is written out is not shown."""
        settings: dict[str, Any] = msgspec.to_builtins(self)
        if settings["tokenSecretKey"] and not settings["tokenSecretKey"].startswith("file:"):
            settings["tokenSecretKey"] = "*****"
        return settings


FIELDS = {field.encode_name: field for field in msgspec.structs.fields(BrokerConfig)}
_FOLDED = {name.lower(): name for name in FIELDS}

# Other spellings of the same setting, folded, and the factor between their units.
_ALIASES = {
    "managedledgercachesizemb": "logCacheBytes",
    "scalabletopicsenabled": "scalableTopicEnabled",
}
_SCALES = {"managedledgercachesizemb": MIB}

# Settings that are written with a unit.
_DURATIONS = (
    "scalableTopicAutoScaleInterval",
    "scalableTopicMergeDepthWindow",
    "scalableTopicSplitCooldown",
    "scalableTopicMergeCooldown",
    "scalableTopicMergeWindow",
    "scalableTopicLoadReportInterval",
    "scalableTopicLoadReportWindow",
)
_READERS: Mapping[str, units.Reader] = {
    **dict.fromkeys(_DURATIONS, units.seconds),
    **{
        name: units.bytes_rate if "Bytes" in name else units.rate
        for name in FIELDS
        if name.startswith(("scalableTopicSplit", "scalableTopicMerge")) and name.endswith("Threshold")
    },
    "scalableTopicLoadReportRateChangeThreshold": units.fraction,
}
# Pulsar's own names of durations say their unit.
_ALIASES |= {f"{name}Seconds".lower(): name for name in _DURATIONS}

_AT_LEAST: Mapping[str, float] = {
    "keepAliveIntervalSeconds": 1,
    "maxMessageSize": 1024,
    "defaultNumPartitions": 1,
    "defaultNumberOfNamespaceBundles": 1,
    "dispatcherMaxReadBatchSize": 1,
    "connectionWriteBufferBytes": 4096,
    "maxPendingPublishBytes": MIB,
    "retentionCheckIntervalInSeconds": 1,
    "hiddenWritesTimeoutSeconds": 1,
    "hiddenWritesCheckIntervalSeconds": 0.05,
    "logFileBytes": MIB,
    "logCacheBytes": MIB,
    "scalableTopicDefaultSegments": 1,
    # Often enough for any test, and not so often that a broker does nothing else.
    "scalableTopicAutoScaleInterval": 0.05,
    "scalableTopicLoadReportInterval": 0.05,
    "scalableTopicLoadReportWindow": 0.05,
    "scalableTopicMaxSegments": 1,
    "scalableTopicMinSegments": 1,
    "defaultRetentionTimeInMinutes": -1,
    "defaultRetentionSizeInMB": -1,
}
_AT_MOST: Mapping[str, int] = {
    "brokerServicePort": 65_535,
    "webServicePort": 65_535,
    "brokerServicePortTls": 65_535,
    "webServicePortTls": 65_535,
    "maxMessageSize": 1 * GIB,
    "defaultNumberOfNamespaceBundles": BUNDLES_MAX,
    "scalableTopicDefaultSegments": 4096,
}


def load(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> tuple[BrokerConfig, list[str]]:
    """The configuration and the warnings to print. Flags that are None were not given."""
    settings: dict[str, Any] = {}
    warnings: list[str] = []
    if file is not None:
        _take(settings, warnings, _read_file(file), str(file))
    variables = {
        key.removeprefix(ENVIRONMENT_PREFIX): value
        for key, value in (environ or {}).items()
        if key.startswith(ENVIRONMENT_PREFIX)
        and _fold(key.removeprefix(ENVIRONMENT_PREFIX)) not in _NOT_SETTINGS
    }
    _take(settings, warnings, variables, "the environment")
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    _take(settings, warnings, given, "the command line")
    return _check(BrokerConfig(**{FIELDS[key].name: value for key, value in settings.items()})), warnings


def _take(settings: dict[str, Any], warnings: list[str], found: Mapping[str, Any], source: str) -> None:
    unknown: list[str] = []
    for key, value in found.items():
        folded = _fold(key)
        name = _FOLDED.get(folded) or _ALIASES.get(folded)
        if name is None:
            unknown.append(key)
        elif not (isinstance(value, str) and not value.strip() and FIELDS[name].type is not str):
            # An empty value of a number means "not set" in a broker.conf.
            settings[name] = _convert(name, value, _SCALES.get(folded), source)
    warnings.extend(_complaints(unknown, source))


def _fold(key: str) -> str:
    return key.replace("_", "").replace("-", "").lower()


def _convert(name: str, value: Any, scale: int | None, source: str) -> Any:
    try:
        if scale is not None:
            number = msgspec.convert(value, float, strict=False)
            return int(number * scale) if number >= 0 else -1
        if (read := _READERS.get(name)) is not None:
            return read(value)
        if isinstance(value, str):
            value = value.strip()
            if value.lower() in ("true", "false"):
                value = value.lower()
        return msgspec.convert(value, FIELDS[name].type, strict=not isinstance(value, str))
    except ValueError as error:  # msgspec's own included.
        raise ConfigError(f"{name} = {value!r} in {source}: {error}") from None


def _complaints(unknown: Iterable[str], source: str) -> list[str]:
    """One line for each name that looks like a slip, one for all the others together."""
    slips: list[str] = []
    others: list[str] = []
    for key in unknown:
        near = difflib.get_close_matches(_fold(key), _FOLDED, n=1, cutoff=0.85)
        if near:
            slips.append(f"unknown setting {key} in {source}; did you mean {_FOLDED[near[0]]}?")
        else:
            others.append(key)
    if others:
        shown = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
        slips.append(f"not a setting of this broker, in {source}: {shown}")
    return slips


def _read_file(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from None
    if file.suffix != ".toml":
        return _parse_conf(text, file)
    try:
        parsed = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: {error}") from None
    # Tables are for the reader's eye only: names are unique without them.
    flat: dict[str, Any] = {}
    for key, value in parsed.items():
        flat.update(value if isinstance(value, dict) else {key: value})
    return flat


def _parse_conf(text: str, file: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        key, equals, value = line.partition("=")
        if not equals:
            raise ConfigError(f"{file}, line {number}: expected name=value, found {line!r}")
        found[key.strip()] = value.strip()
    return found


def _check(config: BrokerConfig) -> BrokerConfig:
    for name, value in config.spelled().items():
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and value < (least := _AT_LEAST.get(name, 0))
        ):
            raise ConfigError(f"{name} = {value}: must be at least {least}")
        if name in _AT_MOST and value > _AT_MOST[name]:
            raise ConfigError(f"{name} = {value}: must be at most {_AT_MOST[name]}")
    has_tls = config.broker_service_port_tls or config.web_service_port_tls
    if has_tls and not (config.tls_certificate_file_path and config.tls_key_file_path):
        raise ConfigError("a TLS port needs tlsCertificateFilePath and tlsKeyFilePath")
    if config.tls_require_trusted_client_cert_on_connect and not config.tls_trust_certs_file_path:
        raise ConfigError("tlsRequireTrustedClientCertOnConnect needs tlsTrustCertsFilePath")
    if config.data_dir == "":
        raise ConfigError("dataDir is empty: name a folder")
    return config
