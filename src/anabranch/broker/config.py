"""A broker's settings: what they are called, what they default to, and where they are read from.

Names are Pulsar's wherever the meaning is the same; settings of our own log start with `log`. Later sources win:
defaults, the file (`broker.conf` lines or TOML), the environment (`ANABRANCH_maxMessageSize` or
`ANABRANCH_MAX_MESSAGE_SIZE`), flags. An unknown name is a warning that suggests the nearest known one, because a stock
`broker.conf` of Pulsar has hundreds of settings that mean nothing here; a bad value is an error.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from anabranch.errors import AnabranchError

MIB = 1 << 20
GIB = 1 << 30
ENVIRONMENT_PREFIX = "ANABRANCH_"

# The variables that the command line reads itself; they are no settings of a broker.
_NOT_SETTINGS = frozenset({"serviceurl", "adminurl"})


class ConfigError(AnabranchError):
    """A setting that cannot be used; the message names it, its value and its source."""


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every setting, named as users write it, so that a search for a name in a file finds its uses here.

    0 means "no limit" where a limit is counted, as in Pulsar.
    """

    # -- where it is
    clusterName: str = "standalone"
    dataDir: str = "data"
    bindAddress: str = "127.0.0.1"
    # What clients are told to connect to; empty: the bind address, or this host's name when bound to all addresses.
    advertisedAddress: str = ""
    brokerServicePort: int = 6650
    webServicePort: int = 8080

    # -- connections
    keepAliveIntervalSeconds: int = 30
    maxMessageSize: int = 5 * MIB
    brokerMaxConnections: int = 0
    maxPendingPublishRequestsPerConnection: int = 1000
    # Bytes waiting for one consumer's socket before its dispatch pauses.
    connectionWriteBufferBytes: int = 4 * MIB
    # Appended and not yet synced; above it, connections that publish are not read.
    maxPendingPublishBytes: int = 64 * MIB

    # -- topics
    allowAutoTopicCreation: bool = True
    allowAutoTopicCreationType: Literal["partitioned", "non-partitioned"] = "non-partitioned"
    defaultNumPartitions: int = 1
    maxNumPartitionsPerPartitionedTopic: int = 0
    maxTopicsPerNamespace: int = 0
    maxProducersPerTopic: int = 0
    maxConsumersPerTopic: int = 0
    maxSubscriptionsPerTopic: int = 0
    defaultNumberOfNamespaceBundles: int = 4
    # Pulsar deletes unused topics after a minute by default. Ours stay until told otherwise: nobody is surprised by a
    # topic that is there.
    brokerDeleteInactiveTopicsEnabled: bool = False
    brokerDeleteInactiveTopicsMaxInactiveDurationSeconds: int = 60

    # How often each open topic looks for what to expire, trim and measure.
    topicUpkeepSeconds: int = 5

    # -- subscriptions
    allowAutoSubscriptionCreation: bool = True
    maxConsumersPerSubscription: int = 0
    maxUnackedMessagesPerConsumer: int = 50_000
    maxUnackedMessagesPerSubscription: int = 200_000
    subscriptionExpirationTimeMinutes: int = 0
    acknowledgmentAtBatchIndexLevelEnabled: bool = True
    delayedDeliveryEnabled: bool = True
    delayedDeliveryTickTimeMillis: int = 1000
    dispatcherMaxReadBatchSize: int = 1000
    dispatcherMaxReadSizeBytes: int = 5 * MIB
    activeConsumerFailoverDelayTimeMillis: int = 1000

    # -- deduplication
    brokerDeduplicationEnabled: bool = False
    brokerDeduplicationMaxNumberOfProducers: int = 10_000
    brokerDeduplicationProducerInactivityTimeoutMinutes: int = 360

    # -- keeping and expiring
    defaultRetentionTimeInMinutes: int = 0
    defaultRetentionSizeInMB: int = 0
    ttlDurationDefaultInSeconds: int = 0
    backlogQuotaDefaultLimitBytes: int = -1
    backlogQuotaDefaultLimitSecond: int = -1
    forceDeleteNamespaceAllowed: bool = True
    forceDeleteTenantAllowed: bool = True

    # -- our log
    logFileBytes: int = 256 * MIB
    logCacheBytes: int = 64 * MIB
    logCheckpointBytes: int = 64 * MIB
    # Publishing stops while less than this is free, so that acks, deletes and rewriting can still free space.
    logDiskReserveBytes: int = 256 * MIB

    # -- watching it
    exposeTopicLevelMetricsInPrometheus: bool = True

    def builtins(self) -> dict[str, Any]:
        settings: dict[str, Any] = msgspec.to_builtins(self)
        return settings


FIELDS = {field.name: field for field in msgspec.structs.fields(BrokerConfig)}
_FOLDED = {name.lower(): name for name in FIELDS}

# Other spellings of the same setting, folded, and the factor between their units.
_ALIASES = {
    "managedledgercachesizemb": "logCacheBytes",
    "backlogquotadefaultlimitgb": "backlogQuotaDefaultLimitBytes",
}
_SCALES = {"managedledgercachesizemb": MIB, "backlogquotadefaultlimitgb": GIB}

_AT_LEAST: Mapping[str, int] = {
    "keepAliveIntervalSeconds": 1,
    "maxMessageSize": 1024,
    "defaultNumPartitions": 1,
    "defaultNumberOfNamespaceBundles": 1,
    "dispatcherMaxReadBatchSize": 1,
    "dispatcherMaxReadSizeBytes": 1,
    "connectionWriteBufferBytes": 4096,
    "maxPendingPublishBytes": MIB,
    "maxPendingPublishRequestsPerConnection": 1,
    "delayedDeliveryTickTimeMillis": 1,
    "topicUpkeepSeconds": 1,
    "logFileBytes": MIB,
    "logCacheBytes": MIB,
    "logCheckpointBytes": 64 * 1024,
    "defaultRetentionTimeInMinutes": -1,
    "defaultRetentionSizeInMB": -1,
    "backlogQuotaDefaultLimitBytes": -1,
    "backlogQuotaDefaultLimitSecond": -1,
}
_MESSAGE_SIZE_MAX = 1 * GIB
_PORT_MAX = 65_535


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
    return _check(BrokerConfig(**settings)), warnings


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
        if isinstance(value, str):
            value = value.strip()
            if value.lower() in ("true", "false"):
                value = value.lower()
        return msgspec.convert(value, FIELDS[name].type, strict=not isinstance(value, str))
    except msgspec.ValidationError as error:
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
    for name, value in config.builtins().items():
        if (
            isinstance(value, int)
            and not isinstance(value, bool)
            and value < (least := _AT_LEAST.get(name, 0))
        ):
            raise ConfigError(f"{name} = {value}: must be at least {least}")
    for port in ("brokerServicePort", "webServicePort"):
        if config.builtins()[port] > _PORT_MAX:
            raise ConfigError(f"{port} = {config.builtins()[port]}: must be at most {_PORT_MAX}")
    if config.maxMessageSize > _MESSAGE_SIZE_MAX:
        raise ConfigError(f"maxMessageSize = {config.maxMessageSize}: must be at most {_MESSAGE_SIZE_MAX}")
    if config.dataDir == "":
        raise ConfigError("dataDir is empty: name a folder")
    return config
