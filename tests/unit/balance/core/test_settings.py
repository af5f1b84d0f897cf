"""The settings of the balancer: Pulsar's keys and defaults, and what contradicts itself is named."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from anabranch.balance.core.settings import KEYS, OUR_KEYS, BalanceSettings, SplitAlgorithm, problems

DEFAULT = BalanceSettings()
# From the configuration of Pulsar 5.0.0-M1.
PULSAR = json.loads("""{
    "defaultNamespaceBundleSplitAlgorithm": "range_equally_divide",
    "failureDomainsEnabled": false,
    "flowOrQpsDifferenceThresholdPercentage": 10,
    "loadBalanceSheddingDelayInSeconds": 180,
    "loadBalancerAutoBundleSplitEnabled": true,
    "loadBalancerAutoUnloadSplitBundlesEnabled": true,
    "loadBalancerAverageResourceUsageDifferenceThresholdPercentage": 10,
    "loadBalancerBandwidthInResourceWeight": 1.0,
    "loadBalancerBandwidthOutResourceWeight": 1.0,
    "loadBalancerBrokerLoadDataTTLInSeconds": 1800,
    "loadBalancerBrokerLoadTargetStd": 0.25,
    "loadBalancerBrokerMaxTopics": 50000,
    "loadBalancerBrokerOverloadedThresholdPercentage": 85,
    "loadBalancerCPUResourceWeight": 1.0,
    "loadBalancerDebugModeEnabled": false,
    "loadBalancerDirectMemoryResourceWeight": 0,
    "loadBalancerEnabled": true,
    "loadBalancerHistoryResourcePercentage": 0.9,
    "loadBalancerInFlightServiceUnitStateWaitingTimeInMillis": 30000,
    "loadBalancerMaxNumberOfBrokerSheddingPerCycle": 3,
    "loadBalancerMaxNumberOfBundlesInBundleLoadReport": 10,
    "loadBalancerMaxNumberOfBundlesToSplitPerCycle": 10,
    "loadBalancerMemoryResourceWeight": 0,
    "loadBalancerNamespaceBundleMaxBandwidthMbytes": 100,
    "loadBalancerNamespaceBundleMaxMsgRate": 30000,
    "loadBalancerNamespaceBundleMaxSessions": 1000,
    "loadBalancerNamespaceBundleMaxTopics": 1000,
    "loadBalancerNamespaceBundleSplitConditionHitCountThreshold": 3,
    "loadBalancerNamespaceMaximumBundles": 128,
    "loadBalancerReportUpdateMaxIntervalMinutes": 15,
    "loadBalancerReportUpdateMinIntervalMillis": 5000,
    "loadBalancerReportUpdateThresholdPercentage": 10,
    "loadBalancerServiceUnitStateMaxConcurrentOverrides": 64,
    "loadBalancerServiceUnitStateMonitorIntervalInSeconds": 60,
    "loadBalancerServiceUnitStateTombstoneDelayTimeInSeconds": 3600,
    "loadBalancerSheddingBundlesWithPoliciesEnabled": false,
    "loadBalancerSheddingConditionHitCountThreshold": 3,
    "loadBalancerSheddingEnabled": true,
    "loadBalancerSheddingExcludedNamespaces": [],
    "loadBalancerSheddingGracePeriodMinutes": 30,
    "loadBalancerSheddingIntervalMinutes": 1,
    "loadBalancerSplitIntervalMinutes": 1,
    "loadBalancerTransferEnabled": true,
    "preferLaterVersions": false,
    "supportedNamespaceBundleSplitAlgorithms": [
        "range_equally_divide", "topic_count_equally_divide", "specified_positions_divide",
        "flow_or_qps_equally_divide"
    ]
}""")


def test_every_field_has_a_key_and_no_key_stands_for_two() -> None:
    assert set(KEYS) == {one.name for one in fields(BalanceSettings)}
    assert len(set(KEYS.values())) == len(KEYS)


def test_defaults_are_pulsars_wherever_pulsar_has_the_key() -> None:
    ours: dict[str, Any] = {}
    for one in fields(BalanceSettings):
        value = getattr(DEFAULT, one.name)
        ours[KEYS[one.name]] = list(value) if isinstance(value, tuple | frozenset) else value
    assert {key: value for key, value in ours.items() if key not in OUR_KEYS} == PULSAR


def test_the_defaults_have_no_problems() -> None:
    assert problems(DEFAULT) == []


def test_a_load_lives_for_twice_pulsars_longest_time_between_reports() -> None:
    assert DEFAULT.load_ttl_s == 2 * 60 * DEFAULT.report_interval_minutes_max


def test_an_unchanged_load_is_reported_after_a_minute_and_after_pulsars_key_at_the_latest() -> None:
    assert DEFAULT.report_age_ms_max == 60_000
    assert replace(DEFAULT, report_refresh_s=100_000).report_age_ms_max == 15 * 60_000


def test_a_bundle_stays_for_the_pause_between_two_cycles_at_least() -> None:
    assert DEFAULT.shedding_grace_ms == 30 * 60_000
    assert (
        replace(DEFAULT, shedding_grace_minutes=0).shedding_grace_ms == DEFAULT.shedding_delay_ms == 180_000
    )


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (
            {"tombstone_delay_s": 29, "in_flight_wait_ms": 1_000},
            "loadBalancerServiceUnitStateTombstoneDelayTimeInSeconds is 29",
        ),
        (
            {"tombstone_delay_s": 60, "in_flight_wait_ms": 60_000},
            "must be longer than loadBalancerInFlightServiceUnitStateWaitingTimeInMillis, 60000 ms",
        ),
        ({"history_share": 1.0}, "loadBalancerHistoryResourcePercentage is 1.0"),
        ({"history_share": float("nan")}, "loadBalancerHistoryResourcePercentage is nan"),
        ({"cpu_weight": -1.0}, "loadBalancerCPUResourceWeight is -1.0, and must be at least 0"),
        ({"load_std_target": float("nan")}, "loadBalancerBrokerLoadTargetStd is nan"),
        ({"namespace_bundles_max": 0}, "loadBalancerNamespaceMaximumBundles is 0, and must be at least 1"),
        ({"load_ttl_s": 60}, "loadBalancerBrokerLoadDataTTLInSeconds is 60 s, and must be longer"),
        (
            {"report_interval_ms_min": 1_800_000},
            "loadBalancerBrokerLoadDataTTLInSeconds is 1800 s, and must be longer than loadBalancerReportUpdateMin",
        ),
        (
            {"split_algorithms": (SplitAlgorithm.TRAFFIC,)},
            "which supportedNamespaceBundleSplitAlgorithms does not list",
        ),
    ],
)
def test_a_setting_that_cannot_work_is_named_by_its_key(change: dict[str, Any], key: str) -> None:
    (found,) = problems(replace(DEFAULT, **change))
    assert key in found
