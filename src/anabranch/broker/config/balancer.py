"""The settings of the load balancer: names, defaults, allowed values, and which ones can change while brokers run.

Names and defaults are Pulsar's, but for three settings of our own. `balance.core.settings` has the same as a value with
which rules decide. docs/load-balancer.md explains each; a test keeps that page complete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, get_args

import msgspec

from anabranch.balance.core.settings import KEYS, MINUTES_MIN, BalanceSettings, SplitAlgorithm, problems
from anabranch.broker.config import load_managers, units
from anabranch.broker.config.choices import BUNDLES_MAX
from anabranch.broker.config.spelling import spelled

AlgorithmName = Literal[
    "range_equally_divide",
    "topic_count_equally_divide",
    "specified_positions_divide",
    "flow_or_qps_equally_divide",
]
ALGORITHMS: Final[tuple[AlgorithmName, ...]] = get_args(AlgorithmName)

TOMBSTONE_DELAY_MIN_S: Final = 30


class BalancerConfig(msgspec.Struct, frozen=True, kw_only=True, rename=spelled, forbid_unknown_fields=True):
    """`BrokerConfig` has these settings besides its own. Loads are shares: 1.0 is a resource in full use."""

    # -- which balancer
    # Who owns the bundles of several brokers: `simple`, a hash over the living brokers, or `balanced`, the balancer.
    # Pulsar's names of load managers mean one of them.
    load_manager_class_name: str = load_managers.SIMPLE
    # Where the balancer keeps the states of bundles: `topic` or `metadata`, or Pulsar's names of them.
    load_manager_service_unit_state_table_view_class_name: str = load_managers.METADATA

    # -- its automatic parts
    # Both of the following two need it.
    load_balancer_enabled: bool = True
    load_balancer_shedding_enabled: bool = True
    load_balancer_auto_bundle_split_enabled: bool = True
    # Whether the children of a split are offered to the leader for a transfer.
    load_balancer_auto_unload_split_bundles_enabled: bool = True
    load_balancer_debug_mode_enabled: bool = False

    # -- load reports
    # A report is sent once a figure has moved by this much, or after the longest interval, but no sooner than after the
    # shortest.
    load_balancer_report_update_threshold_percentage: int = 10
    load_balancer_report_update_min_interval_millis: int = 5000
    load_balancer_report_update_max_interval_minutes: float = 15.0
    # A load that has not moved is reported again after this time if that is sooner.
    load_balancer_report_refresh_seconds: int = 60
    # A broker whose last report is older is left out of every decision.
    load_balancer_broker_load_data_ttl_in_seconds: int = 1800
    load_balancer_max_number_of_bundles_in_bundle_load_report: int = 10
    # What the network takes, in Gbit/s; 0: what its interfaces say, or these alone.
    load_balancer_override_broker_nic_speed_gbps: float = 0.0
    load_balancer_override_broker_nics: tuple[str, ...] = ()

    # -- the load of a broker: the largest of its shares, each times its weight, smoothed
    load_balancer_cpu_resource_weight: float = 1.0
    load_balancer_memory_resource_weight: float = 0.0
    load_balancer_direct_memory_resource_weight: float = 0.0
    load_balancer_bandwidth_in_resource_weight: float = 1.0
    load_balancer_bandwidth_out_resource_weight: float = 1.0
    load_balancer_disk_resource_weight: float = 1.0
    # How much of the load before counts beside what was measured last.
    load_balancer_history_resource_percentage: float = 0.9

    # -- assignment
    load_balancer_broker_max_topics: int = 50_000
    load_balancer_broker_overloaded_threshold_percentage: int = 85
    # Brokers whose loads differ by less are equal.
    load_balancer_average_resource_usage_difference_threshold_percentage: int = 10
    prefer_later_versions: bool = False
    failure_domains_enabled: bool = False

    # -- shedding, by the leader
    load_balancer_shedding_interval_minutes: float = 1.0
    load_balancer_broker_load_target_std: float = 0.25
    load_balancer_shedding_condition_hit_count_threshold: int = 3
    load_balancer_transfer_enabled: bool = True
    load_balancer_max_number_of_broker_shedding_per_cycle: int = 3
    load_balance_shedding_delay_in_seconds: int = 180
    # How long a bundle that was moved stays where it is.
    load_balancer_shedding_grace_period_minutes: int = 30
    load_balancer_shedding_bundles_with_policies_enabled: bool = False
    load_balancer_shedding_excluded_namespaces: tuple[str, ...] = ()

    # -- splitting, by each owner
    load_balancer_split_interval_minutes: float = 1.0
    load_balancer_max_number_of_bundles_to_split_per_cycle: int = 10
    load_balancer_namespace_bundle_split_condition_hit_count_threshold: int = 3
    load_balancer_namespace_bundle_max_topics: int = 1000
    # -1: as many as there are.
    load_balancer_namespace_bundle_max_sessions: int = 1000
    load_balancer_namespace_bundle_max_msg_rate: int = 30_000
    load_balancer_namespace_bundle_max_bandwidth_mbytes: int = 100
    load_balancer_namespace_maximum_bundles: int = 128
    default_namespace_bundle_split_algorithm: AlgorithmName = "range_equally_divide"
    supported_namespace_bundle_split_algorithms: tuple[str, ...] = ALGORITHMS
    flow_or_qps_difference_threshold_percentage: int = 10

    # -- the states of bundles, and their repair by the leader
    load_balancer_in_flight_service_unit_state_waiting_time_in_millis: int = 30_000
    load_balancer_service_unit_state_monitor_interval_in_seconds: int = 60
    load_balancer_service_unit_state_tombstone_delay_time_in_seconds: int = 3600
    load_balancer_service_unit_state_max_concurrent_overrides: int = 64
    # How long the metadata store must have been well again before bundles are moved or repaired.
    load_balancer_metadata_stable_seconds: int = 150


def _algorithms(value: Any) -> tuple[str, ...]:
    found = units.names(value)
    if not found or not set(found) <= set(ALGORITHMS):
        raise ValueError(f"expected some of {', '.join(ALGORITHMS)}, with commas between them")
    return found


READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "loadManagerClassName": load_managers.load_manager,
    "loadManagerServiceUnitStateTableViewClassName": load_managers.state_channel,
    "loadBalancerOverrideBrokerNics": units.names,
    "loadBalancerSheddingExcludedNamespaces": units.names,
    "supportedNamespaceBundleSplitAlgorithms": _algorithms,
}
# Pulsar's former spellings, folded.
ALIASES: Final = {
    "loadbalancerbandwithinresourceweight": "loadBalancerBandwidthInResourceWeight",
    "loadbalancerbandwithoutresourceweight": "loadBalancerBandwidthOutResourceWeight",
}

_WEIGHTS: Final = (
    "loadBalancerDiskResourceWeight",
    "loadBalancerCPUResourceWeight",
    "loadBalancerMemoryResourceWeight",
    "loadBalancerDirectMemoryResourceWeight",
    "loadBalancerBandwidthInResourceWeight",
    "loadBalancerBandwidthOutResourceWeight",
)
AT_LEAST: Final[Mapping[str, float]] = {
    "loadBalancerReportUpdateMinIntervalMillis": 50,
    # Minutes may have a fraction.
    "loadBalancerReportUpdateMaxIntervalMinutes": MINUTES_MIN,
    "loadBalancerReportRefreshSeconds": 1,
    "loadBalancerSheddingIntervalMinutes": MINUTES_MIN,
    "loadBalancerSplitIntervalMinutes": MINUTES_MIN,
    "loadBalancerBrokerLoadDataTTLInSeconds": 1,
    "loadBalancerMaxNumberOfBundlesInBundleLoadReport": 1,
    "loadBalancerBrokerMaxTopics": 1,
    "loadBalancerNamespaceBundleMaxTopics": 1,
    "loadBalancerNamespaceBundleMaxSessions": -1,
    "loadBalancerNamespaceBundleMaxMsgRate": 1,
    "loadBalancerNamespaceBundleMaxBandwidthMbytes": 1,
    "loadBalancerNamespaceMaximumBundles": 1,
    "loadBalancerInFlightServiceUnitStateWaitingTimeInMillis": 1,
    "loadBalancerServiceUnitStateMonitorIntervalInSeconds": 1,
    "loadBalancerServiceUnitStateTombstoneDelayTimeInSeconds": TOMBSTONE_DELAY_MIN_S,
    "loadBalancerServiceUnitStateMaxConcurrentOverrides": 1,
}
AT_MOST: Final[Mapping[str, float]] = {
    **dict.fromkeys(_WEIGHTS, 10),
    # With 1 a load would stay what it was first.
    "loadBalancerHistoryResourcePercentage": 0.99,
    "loadBalancerReportUpdateThresholdPercentage": 100,
    "loadBalancerBrokerOverloadedThresholdPercentage": 100,
    "loadBalancerAverageResourceUsageDifferenceThresholdPercentage": 100,
    "loadBalancerBrokerLoadTargetStd": 1,
    "loadBalancerNamespaceMaximumBundles": BUNDLES_MAX,
}

# Read at each use, as in Pulsar. `loadManagerClassName`, which can change there too, decides what a broker is made of.
DYNAMIC: Final = (
    "defaultNamespaceBundleSplitAlgorithm",
    "failureDomainsEnabled",
    "flowOrQpsDifferenceThresholdPercentage",
    "loadBalanceSheddingDelayInSeconds",
    "loadBalancerAutoBundleSplitEnabled",
    "loadBalancerAutoUnloadSplitBundlesEnabled",
    "loadBalancerAverageResourceUsageDifferenceThresholdPercentage",
    "loadBalancerBandwidthInResourceWeight",
    "loadBalancerBandwidthOutResourceWeight",
    "loadBalancerBrokerLoadDataTTLInSeconds",
    "loadBalancerBrokerLoadTargetStd",
    "loadBalancerBrokerMaxTopics",
    "loadBalancerBrokerOverloadedThresholdPercentage",
    "loadBalancerCPUResourceWeight",
    "loadBalancerDebugModeEnabled",
    "loadBalancerDirectMemoryResourceWeight",
    "loadBalancerDiskResourceWeight",
    "loadBalancerHistoryResourcePercentage",
    "loadBalancerMaxNumberOfBrokerSheddingPerCycle",
    "loadBalancerMaxNumberOfBundlesInBundleLoadReport",
    "loadBalancerMaxNumberOfBundlesToSplitPerCycle",
    "loadBalancerMemoryResourceWeight",
    "loadBalancerNamespaceBundleMaxBandwidthMbytes",
    "loadBalancerNamespaceBundleMaxMsgRate",
    "loadBalancerNamespaceBundleMaxSessions",
    "loadBalancerNamespaceBundleMaxTopics",
    "loadBalancerNamespaceBundleSplitConditionHitCountThreshold",
    "loadBalancerNamespaceMaximumBundles",
    "loadBalancerReportRefreshSeconds",
    "loadBalancerReportUpdateMaxIntervalMinutes",
    "loadBalancerReportUpdateMinIntervalMillis",
    "loadBalancerReportUpdateThresholdPercentage",
    "loadBalancerServiceUnitStateMaxConcurrentOverrides",
    "loadBalancerSheddingBundlesWithPoliciesEnabled",
    "loadBalancerSheddingConditionHitCountThreshold",
    "loadBalancerSheddingEnabled",
    "loadBalancerSheddingExcludedNamespaces",
    "loadBalancerSheddingGracePeriodMinutes",
    "loadBalancerSheddingIntervalMinutes",
    "loadBalancerTransferEnabled",
    "preferLaterVersions",
    "supportedNamespaceBundleSplitAlgorithms",
)


_FIELDS: Final = {one.encode_name: one.name for one in msgspec.structs.fields(BalancerConfig)}


def balance_settings(config: BalancerConfig) -> BalanceSettings:
    """The settings as rules take them."""
    found = {name: getattr(config, _FIELDS[key]) for name, key in KEYS.items()}
    return BalanceSettings(
        **found
        | {
            "unshed_namespaces": frozenset(config.load_balancer_shedding_excluded_namespaces),
            # Pulsar's -1 is 0 to the rules: no limit.
            "bundle_sessions_max": max(0, config.load_balancer_namespace_bundle_max_sessions),
            "split_algorithm": SplitAlgorithm(config.default_namespace_bundle_split_algorithm),
            "split_algorithms": tuple(
                map(SplitAlgorithm, config.supported_namespace_bundle_split_algorithms)
            ),
        }
    )


class CurrentSettings:
    """The settings of the moment, as rules take them."""

    def __init__(self, config: Callable[[], BalancerConfig]) -> None:
        self._config = config
        self._of = config()
        self._settings = balance_settings(self._of)

    def __call__(self) -> BalanceSettings:
        if (config := self._config()) is not self._of:
            self._of, self._settings = config, balance_settings(config)
        return self._settings


def problem(config: BalancerConfig) -> str | None:
    """What is wrong with the settings together; None if nothing is."""
    return next(iter(problems(balance_settings(config))), None)
