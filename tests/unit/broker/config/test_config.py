"""Settings: defaults, sources and their order, slips and bad values."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.autoscale.policy import DEFAULT
from anabranch.broker.config.config import FIELDS, BrokerConfig, ConfigError, load, loaded
from anabranch.broker.config.pulsar_settings import SHIPPED
from anabranch.broker.config.sources import GivenSetting, SettingOrigin
from anabranch.broker.scalable.load.auto_policy import broker_policy


def conf(folder: Path, text: str, name: str = "broker.conf") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_defaults_are_pulsars_where_the_meaning_is_the_same() -> None:
    config, warnings = load()
    assert (config, warnings) == (BrokerConfig(), [])
    assert config.max_message_size == 5 * 1024 * 1024
    assert config.keep_alive_interval_seconds == 30


def test_names_are_spelled_as_users_know_them() -> None:
    for name in (
        "maxMessageSize",
        "defaultRetentionSizeInMB",
        "ttlDurationDefaultInSeconds",
        "logCacheBytes",
    ):
        assert name in FIELDS


def test_later_sources_win(tmp_path: Path) -> None:
    file = conf(
        tmp_path, "brokerServicePort=1\nwebServicePort=2\nkeepAliveIntervalSeconds=3\nmaxMessageSize=4096\n"
    )
    environ = {"ANABRANCH_WEB_SERVICE_PORT": "20", "ANABRANCH_keepAliveIntervalSeconds": "30", "HOME": "/"}
    config, warnings = load(file, environ, {"keepAliveIntervalSeconds": 300, "brokerServicePort": None})
    assert warnings == []
    assert config.broker_service_port == 1
    assert config.web_service_port == 20
    assert config.keep_alive_interval_seconds == 300
    assert config.max_message_size == 4096


def test_a_stock_broker_conf_reads(tmp_path: Path) -> None:
    file = conf(
        tmp_path,
        "### --- General ---\n\n! old comment\nbrokerDeduplicationEnabled=True\nwebServicePort=\n"
        "managedLedgerCacheSizeMB=10\nallowAutoTopicCreationType=partitioned\n",
    )
    config, _ = load(file)
    assert config.broker_deduplication_enabled
    assert config.web_service_port == 8080
    assert config.log_cache_bytes == 10 * 1024 * 1024
    assert config.allow_auto_topic_creation_type == "partitioned"


def test_what_nothing_would_obey_is_told(tmp_path: Path) -> None:
    _, warnings = load(conf(tmp_path, "brokerDeleteInactiveTopicsEnabled=true\n"))
    assert "brokerDeleteInactiveTopicsEnabled" in warnings[0]


def test_toml_tables_are_only_for_the_eye(tmp_path: Path) -> None:
    file = conf(tmp_path, "maxMessageSize = 2048\n[log]\nlogCacheBytes = 1048576\n", "broker.toml")
    config, warnings = load(file)
    assert warnings == []
    assert (config.max_message_size, config.log_cache_bytes) == (2048, 1048576)


def test_a_slip_is_told_with_the_nearest_name_and_strangers_share_a_line(tmp_path: Path) -> None:
    strangers = "".join(f"stranger{i}=x\n" for i in range(8))
    _, warnings = load(conf(tmp_path, "maxMesageSize=1\n" + strangers))
    assert len(warnings) == 2
    assert "did you mean maxMessageSize" in warnings[0]
    assert "and 3 more" in warnings[1]


@pytest.mark.parametrize(
    "text",
    [
        "maxMessageSize=lots",
        "maxMessageSize=1",
        "maxMessageSize=99999999999",
        "brokerServicePort=70000",
        "brokerServicePort=-1",
        "defaultNumberOfNamespaceBundles=5000",
        "allowAutoTopicCreation=perhaps",
        "allowAutoTopicCreationType=both",
        "logRetainedDiskShare=nan",
        "logLingerSeconds=1" + "0" * 400,
        "defaultRetentionTimeInMinutes=9223372036854775808",
        "just words",
    ],
)
def test_a_bad_value_names_the_setting(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(conf(tmp_path, text))
    assert text.partition("=")[0] in str(refused.value)


def test_unreadable_files_are_told_in_one_line(tmp_path: Path) -> None:
    for file in (tmp_path / "absent.conf", conf(tmp_path, "a = = 1", "bad.toml")):
        with pytest.raises(ConfigError) as refused:
            load(file)
        assert file.name in str(refused.value)


def test_scalable_topics_are_on_and_pulsars_spelling_of_the_switch_is_understood(tmp_path: Path) -> None:
    assert BrokerConfig().scalable_topic_enabled
    assert BrokerConfig().scalable_topic_consumer_session_grace_period_seconds == 60
    for spelling in ("scalableTopicEnabled", "scalableTopicsEnabled"):
        config, warnings = load(conf(tmp_path, f"{spelling}=false\n"))
        assert (config.scalable_topic_enabled, warnings) == (False, [])


def test_a_topic_starts_with_at_least_one_segment(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="scalableTopicDefaultSegments"):
        load(conf(tmp_path, "scalableTopicDefaultSegments=0\n"))


# -- where settings come from


def test_each_value_knows_where_it_comes_from(tmp_path: Path) -> None:
    file = conf(tmp_path, "# mine\nmaxMessageSize=4096\n\nmanagedLedgerCacheSizeMB=10\nwebServicePort=2\n")
    environ = {"ANABRANCH_WEB_SERVICE_PORT": "20", "PULSAR_PREFIX_clusterName": "east"}
    found = loaded(file, environ, [GivenSetting("logLevel", "DEBUG", SettingOrigin("flag", "--log-level"))])
    assert found.config.log_level == "debug"
    told = {name: str(found.origin(name)) for name in FIELDS if found.origin(name).kind != "default"}
    assert told == {
        "maxMessageSize": f"{file}:2",
        "logCacheBytes": f"{file}:4",
        "webServicePort": "$ANABRANCH_WEB_SERVICE_PORT",
        "clusterName": "$PULSAR_PREFIX_clusterName",
        "logLevel": "--log-level",
    }
    assert str(found.origin("dataDir")) == "default"


def test_our_own_variables_win_over_those_of_pulsars_container_image() -> None:
    environ = {"ANABRANCH_maxMessageSize": "2048", "PULSAR_PREFIX_maxMessageSize": "4096"}
    assert load(None, environ)[0].max_message_size == 2048


def test_a_line_of_toml_is_found(tmp_path: Path) -> None:
    file = conf(tmp_path, '[log]\n"logCacheBytes" = 1048576\n  maxMessageSize=2048\n', "broker.toml")
    found = loaded(file)
    assert str(found.origin("logCacheBytes")) == f"{file}:2"
    assert str(found.origin("maxMessageSize")) == f"{file}:3"


def test_a_line_may_go_on_in_the_next_and_the_last_of_two_counts(tmp_path: Path) -> None:
    file = conf(tmp_path, "clusterName=we\\\n   st\nmaxMessageSize=2048\nmaxMessageSize=4096\n")
    found = loaded(file)
    assert (found.config.cluster_name, found.config.max_message_size) == ("west", 4096)
    assert str(found.origin("maxMessageSize")) == f"{file}:4"


def test_every_setting_of_pulsars_reads_and_those_without_meaning_share_a_line(tmp_path: Path) -> None:
    text = "".join(f"{name}=\n" for name in sorted(set(SHIPPED) | set(FIELDS)))
    found = loaded(conf(tmp_path, text))
    assert found.config == BrokerConfig()
    assert len(found.warnings) == 1
    assert "mean nothing here" in found.warnings[0]
    assert {given.key for given in found.unused} >= {"managedLedgerDefaultEnsembleSize", "zookeeperServers"}


def test_what_is_as_pulsar_ships_it_is_told_apart_from_what_somebody_wanted(tmp_path: Path) -> None:
    as_shipped = "".join(f"{name}={values[-1]}\n" for name, values in SHIPPED.items() if name not in FIELDS)
    wanted = "encryptionRequireOnProducer=true\nbrokerClientAuthenticationParameters=token:abc\n"
    found = loaded(conf(tmp_path, as_shipped + wanted))
    missed = {given.key for given in found.missed}
    assert missed == {"encryptionRequireOnProducer", "brokerClientAuthenticationParameters"} - set(FIELDS)
    told = next(line for line in found.warnings if "NOT obeyed" in line)
    assert all(name in told for name in missed)
    assert "token:abc" not in told
    assert len(loaded(conf(tmp_path, as_shipped)).missed) == 0


def test_an_empty_value_leaves_the_default(tmp_path: Path) -> None:
    found = loaded(conf(tmp_path, "clusterName=\nbrokerServicePortTls=\n"), {"ANABRANCH_bindAddress": ""})
    assert found.config == BrokerConfig()
    assert found.origins == {}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("maxMessageSize=lots", "a whole number from 1024 to 1073741824"),
        ("maxMessageSize=1", "a whole number from 1024 to 1073741824"),
        ("keepAliveIntervalSeconds=0", "a whole number of at least 1"),
        ("brokerDeduplicationEnabled=perhaps", "true or false"),
        ("logLevel=loud", "one of debug, info, warning, error"),
        ("logFormat=xml", "text or json"),
        ("scalableTopicSplitCooldown=soon", "a duration such as"),
    ],
)
def test_a_refusal_says_what_is_allowed_and_where_it_is_written(
    tmp_path: Path, line: str, expected: str
) -> None:
    file = conf(tmp_path, f"# first\n{line}\n")
    with pytest.raises(ConfigError) as refused:
        load(file)
    name, _, value = line.partition("=")
    text = str(refused.value)
    assert text.startswith(f"{name} = ")
    assert value in text
    assert f"{file}:2" in text
    assert expected in text


def test_a_secret_is_neither_shown_nor_told() -> None:
    config, _ = load(flags={"tokenSecretKey": "data:;base64,c2VjcmV0"})
    assert "c2VjcmV0" not in str(config.spelled())


# -- topics that scale themselves


def test_the_defaults_of_automatic_scaling_are_the_specifications() -> None:
    settings = BrokerConfig().spelled()
    assert {name: settings[name] for name in settings if name in SCALING} == SCALING


SCALING = {
    "scalableTopicAutoScaleEnabled": True,
    "scalableTopicAutoScaleInterval": 60.0,
    "scalableTopicMaxSegments": 64,
    "scalableTopicMinSegments": 1,
    "scalableTopicMaxDagDepth": 10,
    "scalableTopicMergeDepthWindow": 86_400.0,
    "scalableTopicSplitCooldown": 60.0,
    "scalableTopicMergeCooldown": 300.0,
    "scalableTopicMergeWindow": 300.0,
    "scalableTopicRebucketCooldown": 60.0,
    "scalableTopicRebucketIdleWindow": 1_800.0,
    "scalableTopicSplitMsgRateInThreshold": 10_000.0,
    "scalableTopicSplitBytesRateInThreshold": 50_000_000.0,
    "scalableTopicSplitMsgRateOutThreshold": 50_000.0,
    "scalableTopicSplitBytesRateOutThreshold": 250_000_000.0,
    "scalableTopicMergeMsgRateInThreshold": 1_000.0,
    "scalableTopicMergeBytesRateInThreshold": 5_000_000.0,
    "scalableTopicMergeMsgRateOutThreshold": 5_000.0,
    "scalableTopicMergeBytesRateOutThreshold": 25_000_000.0,
    "scalableTopicLoadReportInterval": 10.0,
    "scalableTopicLoadReportRateChangeThreshold": 0.25,
    "scalableTopicLoadReportWindow": 60.0,
}


def test_the_settings_make_the_policy_of_the_specification() -> None:
    assert broker_policy(BrokerConfig()) == DEFAULT


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("scalableTopicAutoScaleInterval=90s", "scalable_topic_auto_scale_interval", 90.0),
        ("scalableTopicSplitCooldown=2m", "scalable_topic_split_cooldown", 120.0),
        ("scalableTopicMergeWindow=1h", "scalable_topic_merge_window", 3600.0),
        ("scalableTopicRebucketCooldown=5s", "scalable_topic_rebucket_cooldown", 5.0),
        ("scalableTopicRebucketIdleWindowSeconds=90", "scalable_topic_rebucket_idle_window", 90.0),
        ("scalableTopicMergeDepthWindow=2d", "scalable_topic_merge_depth_window", 172_800.0),
        ("scalableTopicLoadReportInterval=500ms", "scalable_topic_load_report_interval", 0.5),
        ("scalableTopicMergeCooldown=45", "scalable_topic_merge_cooldown", 45.0),
        ("scalableTopicAutoScaleIntervalSeconds=30", "scalable_topic_auto_scale_interval", 30.0),
        ("scalableTopicSplitCooldownSeconds=61", "scalable_topic_split_cooldown", 61.0),
        ("scalableTopicMergeCooldownSeconds=62", "scalable_topic_merge_cooldown", 62.0),
        ("scalableTopicMergeWindowSeconds=63", "scalable_topic_merge_window", 63.0),
        ("scalableTopicLoadReportIntervalSeconds=5", "scalable_topic_load_report_interval", 5.0),
        (
            "scalableTopicSplitBytesRateInThreshold=64MB",
            "scalable_topic_split_bytes_rate_in_threshold",
            64_000_000.0,
        ),
        (
            "scalableTopicMergeBytesRateOutThreshold=1.5 GB",
            "scalable_topic_merge_bytes_rate_out_threshold",
            1.5e9,
        ),
        (
            "scalableTopicMergeBytesRateInThreshold=500000",
            "scalable_topic_merge_bytes_rate_in_threshold",
            500_000.0,
        ),
        (
            "scalableTopicSplitMsgRateInThreshold=12000",
            "scalable_topic_split_msg_rate_in_threshold",
            12_000.0,
        ),
        (
            "scalableTopicLoadReportRateChangeThreshold=30%",
            "scalable_topic_load_report_rate_change_threshold",
            0.3,
        ),
        (
            "scalableTopicLoadReportRateChangeThreshold=0.4",
            "scalable_topic_load_report_rate_change_threshold",
            0.4,
        ),
        ("scalableTopicMaxSegments=128", "scalable_topic_max_segments", 128),
        ("scalableTopicAutoScaleEnabled=false", "scalable_topic_auto_scale_enabled", False),
    ],
)
def test_scaling_is_set_with_units_or_in_pulsars_spelling(
    tmp_path: Path, line: str, field: str, value: object
) -> None:
    config, warnings = load(conf(tmp_path, line + "\n"))
    assert warnings == []
    assert getattr(config, field) == value


@pytest.mark.parametrize(
    "line",
    [
        "scalableTopicSplitCooldown=soon",
        "scalableTopicSplitCooldown=5 parsecs",
        "scalableTopicSplitCooldown=-1s",
        "scalableTopicAutoScaleInterval=0",
        "scalableTopicLoadReportInterval=0s",
        "scalableTopicSplitBytesRateInThreshold=50MW",
        "scalableTopicSplitMsgRateInThreshold=10k",
        "scalableTopicMergeMsgRateInThreshold=nan",
        "scalableTopicLoadReportRateChangeThreshold=a quarter",
        "scalableTopicMinSegments=0",
    ],
)
def test_a_bad_setting_of_scaling_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match=line.partition("=")[0]):
        load(conf(tmp_path, line + "\n"))
