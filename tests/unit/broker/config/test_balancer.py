"""Settings of the load balancer: Pulsar's names and defaults, their checks, and which ones change at run time."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from anabranch.balance.core.settings import KEYS, OUR_KEYS, BalanceSettings, SplitAlgorithm
from anabranch.broker.catalog.dynamic_config import DYNAMIC
from anabranch.broker.config import balancer
from anabranch.broker.config.balancer import BalancerConfig, CurrentSettings, balance_settings
from anabranch.broker.config.config import FIELDS, BrokerConfig, ConfigError, changed, load
from anabranch.broker.config.load_managers import BALANCED, METADATA, SIMPLE, TOPIC
from anabranch.broker.config.pulsar_settings import DYNAMIC_NAMES, SHIPPED

NAMES = [field.encode_name for field in msgspec.structs.fields(BalancerConfig)]
# As PIP-192 lists them, and the keys beside them that it uses.
SPECIFIED = {
    "loadBalancerDebugModeEnabled": False,
    "loadBalancerBrokerLoadTargetStd": 0.25,
    "loadBalancerSheddingConditionHitCountThreshold": 3,
    "loadBalancerTransferEnabled": True,
    "loadBalancerMaxNumberOfBrokerSheddingPerCycle": 3,
    "loadBalanceSheddingDelayInSeconds": 180,
    "loadBalancerBrokerLoadDataTTLInSeconds": 1800,
    "loadBalancerMaxNumberOfBundlesInBundleLoadReport": 10,
    "loadBalancerSplitIntervalMinutes": 1.0,
    "loadBalancerMaxNumberOfBundlesToSplitPerCycle": 10,
    "loadBalancerNamespaceBundleSplitConditionHitCountThreshold": 3,
    "loadBalancerServiceUnitStateTombstoneDelayTimeInSeconds": 3600,
    "loadBalancerSheddingBundlesWithPoliciesEnabled": False,
    "loadBalancerInFlightServiceUnitStateWaitingTimeInMillis": 30_000,
    "loadBalancerServiceUnitStateMonitorIntervalInSeconds": 60,
    "loadBalancerSheddingIntervalMinutes": 1.0,
    "loadBalancerReportUpdateThresholdPercentage": 10,
    "loadBalancerReportUpdateMinIntervalMillis": 5000,
    "loadBalancerReportUpdateMaxIntervalMinutes": 15.0,
    "loadBalancerReportRefreshSeconds": 60,
    "loadBalancerHistoryResourcePercentage": 0.9,
    "loadBalancerNamespaceMaximumBundles": 128,
    "loadBalancerServiceUnitStateMaxConcurrentOverrides": 64,
    "loadBalancerMetadataStableSeconds": 150,
}


def test_defaults_are_those_of_the_specification() -> None:
    told = BrokerConfig().spelled()
    assert {name: told[name] for name in SPECIFIED} == SPECIFIED


def test_every_name_is_one_of_pulsars_but_our_own() -> None:
    assert {name for name in NAMES if name not in SHIPPED} == OUR_KEYS


def test_the_rules_have_the_same_defaults() -> None:
    assert balance_settings(BrokerConfig()) == BalanceSettings()
    assert set(KEYS.values()) <= set(NAMES)


def test_the_rules_are_given_the_settings_of_the_moment() -> None:
    config = [BrokerConfig()]
    current = CurrentSettings(lambda: config[0])
    assert current() is current()
    config[0] = changed(
        config[0],
        {
            "loadBalancerSheddingEnabled": "false",
            "loadBalancerNamespaceBundleMaxSessions": "-1",
            "loadBalancerSheddingExcludedNamespaces": "a/b, c/d",
            "defaultNamespaceBundleSplitAlgorithm": "topic_count_equally_divide",
        },
    )
    settings = current()
    assert (settings.is_shedding, settings.bundle_sessions_max) == (False, 0)
    assert settings.unshed_namespaces == {"a/b", "c/d"}
    assert settings.split_algorithm is SplitAlgorithm.TOPIC_COUNT


def test_the_balancers_settings_are_listed_after_the_others() -> None:
    assert list(FIELDS)[-len(NAMES) :] == NAMES


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("simple", SIMPLE),
        ("org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl", SIMPLE),
        ("org.apache.pulsar.broker.loadbalance.NoopLoadManager", SIMPLE),
        ("balanced", BALANCED),
        ("ExtensibleLoadManagerImpl", BALANCED),
        ("org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl", BALANCED),
    ],
)
def test_pulsars_load_managers_are_understood(given: str, meant: str) -> None:
    config, warnings = load(flags={"loadManagerClassName": given})
    assert (config.load_manager_class_name, warnings) == (meant, [])


def test_the_simple_assignment_is_the_default() -> None:
    assert BrokerConfig().load_manager_class_name == SIMPLE


def test_states_are_kept_in_a_topic_or_in_the_metadata_store() -> None:
    package = "org.apache.pulsar.broker.loadbalance.extensions.channel"
    for name, meant in (
        ("ServiceUnitStateTableViewImpl", TOPIC),
        ("ServiceUnitStateMetadataStoreTableViewImpl", METADATA),
    ):
        setting = {"loadManagerServiceUnitStateTableViewClassName": f"{package}.{name}"}
        config, _ = load(flags=setting)
        assert config.load_manager_service_unit_state_table_view_class_name == meant


def test_the_former_spelling_of_the_weights_is_understood() -> None:
    config, warnings = load(flags={"loadBalancerBandwithOutResourceWeight": "0.5"})
    assert (config.load_balancer_bandwidth_out_resource_weight, warnings) == (0.5, [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loadManagerClassName", "com.example.MyLoadManager"),
        ("loadManagerServiceUnitStateTableViewClassName", "Table"),
        ("loadBalancerCPUResourceWeight", "-0.1"),
        ("loadBalancerMemoryResourceWeight", "11"),
        ("loadBalancerHistoryResourcePercentage", "1"),
        ("loadBalancerReportUpdateThresholdPercentage", "101"),
        ("loadBalancerBrokerLoadTargetStd", "2"),
        ("loadBalancerBrokerLoadTargetStd", "nan"),
        ("loadBalancerSheddingIntervalMinutes", "0"),
        ("loadBalancerMaxNumberOfBundlesInBundleLoadReport", "0"),
        ("loadBalancerNamespaceMaximumBundles", "5000"),
        ("loadBalancerServiceUnitStateTombstoneDelayTimeInSeconds", "29"),
        ("defaultNamespaceBundleSplitAlgorithm", "halves"),
        ("supportedNamespaceBundleSplitAlgorithms", "range_equally_divide,halves"),
        ("supportedNamespaceBundleSplitAlgorithms", ","),
        ("supportedNamespaceBundleSplitAlgorithms", "topic_count_equally_divide"),
        ("loadBalancerBrokerLoadDataTTLInSeconds", "60"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        load(flags={name: value})


def test_states_are_not_forgotten_while_changes_of_them_may_be_under_way() -> None:
    """PIP-192: the tombstone delay must exceed the wait for states in flight, or start-up fails with a reason."""
    tombstone = "loadBalancerServiceUnitStateTombstoneDelayTimeInSeconds"
    in_flight = "loadBalancerInFlightServiceUnitStateWaitingTimeInMillis"
    with pytest.raises(ConfigError, match=rf"{tombstone} is 30 s, and must be longer than {in_flight}"):
        load(flags={tombstone: "30"})
    config, _ = load(flags={tombstone: "30", in_flight: "29999"})
    assert config.load_balancer_in_flight_service_unit_state_waiting_time_in_millis == 29_999


def test_minutes_may_have_a_fraction() -> None:
    config, _ = load(flags={"loadBalancerSplitIntervalMinutes": "0.05"})
    assert config.load_balancer_split_interval_minutes == 0.05


def test_what_pulsar_changes_at_run_time_changes_here_too() -> None:
    assert set(balancer.DYNAMIC) <= set(NAMES)
    assert set(balancer.DYNAMIC) <= set(DYNAMIC)
    assert not set(DYNAMIC_NAMES) & set(FIELDS) - {"brokerClientTlsEnabled"}


PAGE = (Path(__file__).parents[4] / "docs" / "load-balancer.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| (`[^`]+`|none|all four) \| (yes|no) \| .+ \|$", re.MULTILINE)


def test_the_page_has_every_setting_with_its_default_and_whether_it_changes_at_run_time() -> None:
    rows = {name: (default.strip("`"), at_run_time) for name, default, at_run_time in ROW.findall(PAGE)}
    told = BrokerConfig().spelled()
    assert list(rows) == NAMES
    for name, (default, at_run_time) in rows.items():
        assert at_run_time == ("yes" if name in balancer.DYNAMIC else "no"), name
        if default == "none":
            assert told[name] == (), name
        elif default == "all four":
            assert told[name] == balancer.ALGORITHMS, name
        else:
            shown = str(told[name]).lower() if isinstance(told[name], bool) else f"{told[name]}"
            assert shown.removesuffix(".0") == default, name
