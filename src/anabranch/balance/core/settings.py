"""The settings of the load balancer as one value, the key that users know each by, and which values contradict each
other. Pure.

Defaults are those of Pulsar 5.0.0-M1 wherever Pulsar has the key. The settings file and the REST for dynamic settings
know the keys; the rules know the fields. Every field may change while brokers run: each decision is given the settings
of its moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

MEGABYTE: Final = 1024 * 1024
# Pulsar's least value of loadBalancerServiceUnitStateTombstoneDelayTimeInSeconds.
TOMBSTONE_DELAY_S_MIN: Final = 30


class SplitAlgorithm(StrEnum):
    """Where a bundle is cut, by Pulsar's names."""

    RANGE = "range_equally_divide"
    TOPIC_COUNT = "topic_count_equally_divide"
    POSITIONS = "specified_positions_divide"
    TRAFFIC = "flow_or_qps_equally_divide"


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceSettings:
    """See `KEYS` for the key of each field."""

    is_enabled: bool = True
    is_debugging: bool = False

    # -- load reports. A weight of 0 leaves the resource out.
    cpu_weight: float = 1.0
    memory_weight: float = 0.0
    direct_memory_weight: float = 0.0
    bandwidth_in_weight: float = 1.0
    bandwidth_out_weight: float = 1.0
    disk_weight: float = 1.0
    # How much of the former average remains in the next one.
    history_share: float = 0.9
    report_change_percent: int = 10
    report_interval_ms_min: int = 5_000
    report_interval_minutes_max: float = 15.0
    # An unchanged load is reported again after this time: the views lose messages, and the next report heals that.
    report_refresh_s: int = 60
    load_ttl_s: int = 1_800
    top_bundles_max: int = 10

    # -- assignment
    broker_topics_max: int = 50_000
    overloaded_percent: int = 85
    # Loads that differ by less count as equal.
    load_difference_percent: int = 10
    prefers_later_versions: bool = False
    has_failure_domains: bool = False

    # -- shedding
    is_shedding: bool = True
    shedding_interval_minutes: float = 1.0
    shedding_grace_minutes: int = 30
    shedding_hits: int = 3
    load_std_target: float = 0.25
    is_transferring: bool = True
    shedding_brokers_max: int = 3
    shedding_delay_s: int = 180
    sheds_bundles_with_policies: bool = False
    unshed_namespaces: frozenset[str] = frozenset()

    # -- splits of bundles
    is_splitting: bool = True
    unloads_split_bundles: bool = True
    split_interval_minutes: float = 1.0
    splits_max: int = 10
    split_hits: int = 3
    bundle_topics_max: int = 1_000
    # 0 is no limit.
    bundle_sessions_max: int = 1_000
    bundle_msg_rate_max: int = 30_000
    bundle_bandwidth_mbytes_max: int = 100
    namespace_bundles_max: int = 128
    split_algorithm: SplitAlgorithm = SplitAlgorithm.RANGE
    split_algorithms: tuple[SplitAlgorithm, ...] = tuple(SplitAlgorithm)
    traffic_difference_percent: int = 10

    # -- the bundle state channel
    tombstone_delay_s: int = 3_600
    in_flight_wait_ms: int = 30_000
    monitor_interval_s: int = 60
    overrides_max: int = 64
    # How long the leader cleans up nothing after the metadata store was in doubt.
    metadata_stable_s: int = 150

    @property
    def bundle_bandwidth_max(self) -> int:
        """In bytes a second."""
        return self.bundle_bandwidth_mbytes_max * MEGABYTE

    @property
    def report_age_ms_max(self) -> int:
        """How old a report may get before an unchanged load is reported again."""
        return min(1_000 * self.report_refresh_s, int(60_000 * self.report_interval_minutes_max))

    @property
    def shedding_grace_ms(self) -> int:
        """How long a bundle that was moved stays where it is; never less than the pause between two cycles."""
        return max(60_000 * self.shedding_grace_minutes, self.shedding_delay_ms)

    @property
    def shedding_delay_ms(self) -> int:
        return 1_000 * self.shedding_delay_s


# By field. Those that are not in OUR_KEYS are Pulsar's.
KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "is_enabled": "loadBalancerEnabled",
        "is_debugging": "loadBalancerDebugModeEnabled",
        "cpu_weight": "loadBalancerCPUResourceWeight",
        "memory_weight": "loadBalancerMemoryResourceWeight",
        "direct_memory_weight": "loadBalancerDirectMemoryResourceWeight",
        "bandwidth_in_weight": "loadBalancerBandwidthInResourceWeight",
        "bandwidth_out_weight": "loadBalancerBandwidthOutResourceWeight",
        "disk_weight": "loadBalancerDiskResourceWeight",
        "history_share": "loadBalancerHistoryResourcePercentage",
        "report_change_percent": "loadBalancerReportUpdateThresholdPercentage",
        "report_interval_ms_min": "loadBalancerReportUpdateMinIntervalMillis",
        "report_interval_minutes_max": "loadBalancerReportUpdateMaxIntervalMinutes",
        "report_refresh_s": "loadBalancerReportRefreshSeconds",
        "load_ttl_s": "loadBalancerBrokerLoadDataTTLInSeconds",
        "top_bundles_max": "loadBalancerMaxNumberOfBundlesInBundleLoadReport",
        "broker_topics_max": "loadBalancerBrokerMaxTopics",
        "overloaded_percent": "loadBalancerBrokerOverloadedThresholdPercentage",
        "load_difference_percent": "loadBalancerAverageResourceUsageDifferenceThresholdPercentage",
        "prefers_later_versions": "preferLaterVersions",
        "has_failure_domains": "failureDomainsEnabled",
        "is_shedding": "loadBalancerSheddingEnabled",
        "shedding_interval_minutes": "loadBalancerSheddingIntervalMinutes",
        "shedding_grace_minutes": "loadBalancerSheddingGracePeriodMinutes",
        "shedding_hits": "loadBalancerSheddingConditionHitCountThreshold",
        "load_std_target": "loadBalancerBrokerLoadTargetStd",
        "is_transferring": "loadBalancerTransferEnabled",
        "shedding_brokers_max": "loadBalancerMaxNumberOfBrokerSheddingPerCycle",
        "shedding_delay_s": "loadBalanceSheddingDelayInSeconds",  # So spelt.
        "sheds_bundles_with_policies": "loadBalancerSheddingBundlesWithPoliciesEnabled",
        "unshed_namespaces": "loadBalancerSheddingExcludedNamespaces",
        "is_splitting": "loadBalancerAutoBundleSplitEnabled",
        "unloads_split_bundles": "loadBalancerAutoUnloadSplitBundlesEnabled",
        "split_interval_minutes": "loadBalancerSplitIntervalMinutes",
        "splits_max": "loadBalancerMaxNumberOfBundlesToSplitPerCycle",
        "split_hits": "loadBalancerNamespaceBundleSplitConditionHitCountThreshold",
        "bundle_topics_max": "loadBalancerNamespaceBundleMaxTopics",
        "bundle_sessions_max": "loadBalancerNamespaceBundleMaxSessions",
        "bundle_msg_rate_max": "loadBalancerNamespaceBundleMaxMsgRate",
        "bundle_bandwidth_mbytes_max": "loadBalancerNamespaceBundleMaxBandwidthMbytes",
        "namespace_bundles_max": "loadBalancerNamespaceMaximumBundles",
        "split_algorithm": "defaultNamespaceBundleSplitAlgorithm",
        "split_algorithms": "supportedNamespaceBundleSplitAlgorithms",
        "traffic_difference_percent": "flowOrQpsDifferenceThresholdPercentage",
        "tombstone_delay_s": "loadBalancerServiceUnitStateTombstoneDelayTimeInSeconds",
        "in_flight_wait_ms": "loadBalancerInFlightServiceUnitStateWaitingTimeInMillis",
        "monitor_interval_s": "loadBalancerServiceUnitStateMonitorIntervalInSeconds",
        "overrides_max": "loadBalancerServiceUnitStateMaxConcurrentOverrides",
        "metadata_stable_s": "loadBalancerMetadataStableSeconds",
    }
)
OUR_KEYS: Final = frozenset(
    {
        "loadBalancerDiskResourceWeight",
        "loadBalancerReportRefreshSeconds",
        "loadBalancerMetadataStableSeconds",
    }
)

_AT_LEAST_ONE: Final = (
    "report_interval_ms_min",
    "report_refresh_s",
    "load_ttl_s",
    "broker_topics_max",
    "namespace_bundles_max",
    "in_flight_wait_ms",
    "monitor_interval_s",
    "overrides_max",
)
# They may have a fraction.
_MINUTES: Final = ("report_interval_minutes_max", "shedding_interval_minutes", "split_interval_minutes")
MINUTES_MIN: Final = 0.001
_AT_LEAST_ZERO: Final = (
    "cpu_weight",
    "memory_weight",
    "direct_memory_weight",
    "bandwidth_in_weight",
    "bandwidth_out_weight",
    "disk_weight",
    "report_change_percent",
    "top_bundles_max",
    "overloaded_percent",
    "load_difference_percent",
    "shedding_grace_minutes",
    "shedding_hits",
    "load_std_target",
    "shedding_brokers_max",
    "shedding_delay_s",
    "splits_max",
    "split_hits",
    "bundle_topics_max",
    "bundle_sessions_max",
    "bundle_msg_rate_max",
    "bundle_bandwidth_mbytes_max",
    "traffic_difference_percent",
    "metadata_stable_s",
)


def problems(settings: BalanceSettings) -> list[str]:
    """What is wrong with the settings, a sentence each; a broker does not start with any, and refuses such a change."""
    found = [
        f"{KEYS[name]} is {getattr(settings, name)}, and must be at least {least}"
        for names, least in ((_AT_LEAST_ONE, 1), (_MINUTES, MINUTES_MIN), (_AT_LEAST_ZERO, 0))
        for name in names
        # Not `<`: a share that is not a number would pass.
        if not getattr(settings, name) >= least
    ]
    if not 0 <= settings.history_share < 1:
        found.append(
            f"{KEYS['history_share']} is {settings.history_share}, and must be at least 0 and below 1"
        )
    if settings.tombstone_delay_s < TOMBSTONE_DELAY_S_MIN:
        found.append(
            f"{KEYS['tombstone_delay_s']} is {settings.tombstone_delay_s}, and must be at least "
            f"{TOMBSTONE_DELAY_S_MIN}"
        )
    if 1_000 * settings.tombstone_delay_s <= settings.in_flight_wait_ms:
        found.append(
            f"{KEYS['tombstone_delay_s']} is {settings.tombstone_delay_s} s, and must be longer than "
            f"{KEYS['in_flight_wait_ms']}, {settings.in_flight_wait_ms} ms"
        )
    if 1_000 * settings.load_ttl_s <= settings.report_age_ms_max:
        found.append(
            f"{KEYS['load_ttl_s']} is {settings.load_ttl_s} s, and must be longer than the time after which an "
            f"unchanged load is reported again, {settings.report_age_ms_max // 1_000} s"
        )
    if 1_000 * settings.load_ttl_s <= settings.report_interval_ms_min:
        found.append(
            f"{KEYS['load_ttl_s']} is {settings.load_ttl_s} s, and must be longer than "
            f"{KEYS['report_interval_ms_min']}, {settings.report_interval_ms_min} ms: no load would ever count"
        )
    if settings.split_algorithm not in settings.split_algorithms:
        found.append(
            f"{KEYS['split_algorithm']} is {settings.split_algorithm}, which {KEYS['split_algorithms']} does not list"
        )
    return found
