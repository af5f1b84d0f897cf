"""Policies: defaults, the override's JSON, resolution field by field, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.autoscale.load import Load
from anabranch.autoscale.policy import (
    DEFAULT,
    FIELDS,
    InvalidPolicy,
    Override,
    ScalePolicy,
    check,
    problems,
    resolve,
)

# As Pulsar's Java class names them.
JAVA_FIELDS = [
    "enabled",
    "maxSegments",
    "minSegments",
    "maxDagDepth",
    "splitCooldownSeconds",
    "mergeCooldownSeconds",
    "mergeWindowSeconds",
    "splitMsgRateInThreshold",
    "splitBytesRateInThreshold",
    "splitMsgRateOutThreshold",
    "splitBytesRateOutThreshold",
    "mergeMsgRateInThreshold",
    "mergeBytesRateInThreshold",
    "mergeMsgRateOutThreshold",
    "mergeBytesRateOutThreshold",
]


@st.composite
def overrides(draw: st.DrawFn) -> Override:
    values: dict[str, Any] = {}
    for name, field in FIELDS.items():
        if draw(st.booleans()):
            values[name] = draw(st.booleans() if field.kind is bool else st.integers(-5, 10**9))
    return Override.decode(values)


# -- defaults


def test_the_defaults_are_those_of_the_specification() -> None:
    assert DEFAULT.to_json() == {
        "enabled": True,
        "maxSegments": 64,
        "minSegments": 1,
        "maxDagDepth": 10,
        "splitCooldownSeconds": 60,
        "mergeCooldownSeconds": 300,
        "mergeWindowSeconds": 300,
        "rebucketCooldownSeconds": 60,
        "rebucketIdleWindowSeconds": 1_800,
        "splitMsgRateInThreshold": 10_000,
        "splitBytesRateInThreshold": 50_000_000,
        "splitMsgRateOutThreshold": 50_000,
        "splitBytesRateOutThreshold": 250_000_000,
        "mergeMsgRateInThreshold": 1_000,
        "mergeBytesRateInThreshold": 5_000_000,
        "mergeMsgRateOutThreshold": 5_000,
        "mergeBytesRateOutThreshold": 25_000_000,
        "mergeDepthWindowSeconds": 86_400,
    }


def test_the_defaults_have_no_problem() -> None:
    assert problems(DEFAULT) == []


# -- JSON


def test_the_fields_are_those_of_the_java_class_and_after_them_two_of_our_own() -> None:
    assert list(FIELDS) == [*JAVA_FIELDS, "rebucketCooldownSeconds", "rebucketIdleWindowSeconds"]


def test_a_policy_recorded_before_there_were_rebuckets_has_their_defaults() -> None:
    recorded = DEFAULT.to_json()
    del recorded["rebucketCooldownSeconds"], recorded["rebucketIdleWindowSeconds"]
    assert ScalePolicy.of_json(recorded) == DEFAULT


@given(overrides())
def test_an_override_reads_back_as_it_was_written(override: Override) -> None:
    assert Override.decode(json.loads(json.dumps(override.encode()))) == override


def test_nulls_are_unset_unknown_fields_are_left_out_and_whole_doubles_are_numbers() -> None:
    override = Override.decode({"maxSegments": None, "minSegments": 2.0, "somethingNew": {"a": 1}})
    assert override == Override(min_segments=2)
    assert override.encode() == {"minSegments": 2}


def test_byte_rates_are_whole_numbers_in_json_because_java_reads_them_as_long() -> None:
    encoded = Override.decode({"splitBytesRateInThreshold": 5e7, "splitMsgRateInThreshold": 10}).encode()
    assert json.dumps(encoded) == '{"splitMsgRateInThreshold": 10.0, "splitBytesRateInThreshold": 50000000}'


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        ([], "JSON object"),
        (None, "JSON object"),
        ("x", "JSON object"),
        ({"enabled": "yes"}, "enabled is 'yes'; give true or false"),
        ({"enabled": 1}, "true or false"),
        ({"maxSegments": "16"}, "maxSegments is '16'; give a number"),
        ({"maxSegments": True}, "give a number"),
        ({"maxSegments": 1.5}, "give a whole number up to 2147483647"),
        ({"maxSegments": 2**31}, "whole number up to 2147483647"),
        ({"splitCooldownSeconds": "60s"}, "without quotes or a unit"),
        ({"splitCooldownSeconds": 2**63}, "whole number"),
        ({"splitBytesRateInThreshold": 0.5}, "whole number"),
        ({"splitMsgRateInThreshold": float("nan")}, "give a number"),
        ({"splitMsgRateInThreshold": float("inf")}, "give a number"),
        ({"splitMsgRateInThreshold": 10**400}, "give a number"),
        ({"maxSegments": -(10**400)}, "give a number"),
        ({"mergeMsgRateInThreshold": {}}, "give a number"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_with_advice(value: object, advice: str) -> None:
    with pytest.raises(InvalidPolicy, match=advice) as caught:
        Override.decode(value)
    assert (caught.value.status, caught.value.code) == (412, 22)


# -- resolution


def test_the_topic_goes_before_the_namespace_and_that_before_the_broker_field_by_field() -> None:
    namespace = Override(max_segments=32, merge_window_seconds=7, split_msg_rate_in_threshold=5_000.0)
    topic = Override(max_segments=16, split_bytes_rate_out_threshold=300_000_000)
    found = resolve(DEFAULT, namespace, topic)
    assert found.policy == replace(
        DEFAULT,
        max_segments=16,
        merge_window_ms=7_000,
        split=Load(5_000.0, 50e6, 50_000.0, 300e6),
    )
    assert {name: level for name, level in found.origin.items() if level != "broker"} == {
        "maxSegments": "topic",
        "mergeWindowSeconds": "namespace",
        "splitMsgRateInThreshold": "namespace",
        "splitBytesRateOutThreshold": "topic",
    }


def test_without_overrides_everything_is_the_broker_s() -> None:
    broker = replace(DEFAULT, max_segments=8)
    found = resolve(broker, None, None)
    assert found.policy == broker
    assert set(found.origin.values()) == {"broker"}
    assert resolve(broker, Override(), Override()) == found


@given(overrides(), overrides())
def test_every_field_comes_from_the_most_specific_level_that_sets_it(
    namespace: Override, topic: Override
) -> None:
    found = resolve(DEFAULT, namespace, topic).to_json()
    for name in JAVA_FIELDS:
        for level, values in (
            ("topic", topic.encode()),
            ("namespace", namespace.encode()),
            ("broker", DEFAULT.to_json()),
        ):
            if name in values:
                assert found[name] == {"value": values[name], "from": level}
                break


@pytest.mark.parametrize("level", ["namespace", "topic"])
def test_enabled_false_opts_out_at_either_level(level: str) -> None:
    off = Override(enabled=False)
    found = resolve(DEFAULT, off if level == "namespace" else None, off if level == "topic" else None)
    assert not found.policy.enabled
    assert found.origin["enabled"] == level


def test_a_topic_may_opt_in_again_where_its_namespace_is_out() -> None:
    assert resolve(DEFAULT, Override(enabled=False), Override(enabled=True)).policy.enabled


# -- what is refused


def over(**limits: float) -> ScalePolicy:
    return replace(DEFAULT, split=replace(DEFAULT.split, **limits))


def under(**limits: float) -> ScalePolicy:
    return replace(DEFAULT, merge=replace(DEFAULT.merge, **limits))


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (over(msg_rate_in=1_000.0), "splitMsgRateInThreshold is 1,000 and mergeMsgRateInThreshold 1,000"),
        (over(bytes_rate_in=4e6), "splitBytesRateInThreshold is 4,000,000 and mergeBytesRateInThreshold"),
        (under(msg_rate_out=50_000.0), "splitMsgRateOutThreshold is 50,000 and mergeMsgRateOutThreshold"),
        (under(bytes_rate_out=3e8), "splitBytesRateOutThreshold is 250,000,000 and mergeBytesRateOut"),
        (replace(DEFAULT, min_segments=65), "minSegments is 65 and maxSegments 64"),
        (replace(DEFAULT, min_segments=0), "minSegments is 0; it must be at least 1"),
        (replace(DEFAULT, max_dag_depth=-1), "maxDagDepth is -1; it must not be negative"),
        (replace(DEFAULT, split_cooldown_ms=-1000), "splitCooldownSeconds is -1; it must not be negative"),
        (replace(DEFAULT, merge_cooldown_ms=-1000), "mergeCooldownSeconds is -1"),
        (replace(DEFAULT, merge_window_ms=-500), r"mergeWindowSeconds is -0\.5"),
        (replace(DEFAULT, merge_depth_window_ms=-1000), "mergeDepthWindowSeconds is -1"),
        (over(msg_rate_in=0.0), "splitMsgRateInThreshold is 0; it must be above 0"),
        (over(bytes_rate_out=-1.0), "splitBytesRateOutThreshold is -1; it must be above 0"),
        (under(bytes_rate_in=-1.0), "mergeBytesRateInThreshold is -1; it must not be negative"),
        (over(msg_rate_out=float("nan")), "splitMsgRateOutThreshold is nan; it must be above 0"),
    ],
)
def test_each_contradiction_is_named_and_refused(policy: ScalePolicy, problem: str) -> None:
    assert len(problems(policy)) == 1
    with pytest.raises(InvalidPolicy, match=problem):
        check(policy)


def test_every_problem_is_told_at_once() -> None:
    policy = replace(over(msg_rate_in=0.0), min_segments=0, merge_window_ms=-1000)
    assert len(problems(policy)) == 3
    with pytest.raises(InvalidPolicy, match=r"minSegments.*mergeWindow.*splitMsgRateIn"):
        check(policy)


def test_an_override_that_is_fine_alone_may_contradict_another_level() -> None:
    namespace, topic = Override(min_segments=20), Override(max_segments=10)
    assert problems(resolve(DEFAULT, namespace, None).policy) == []
    assert problems(resolve(DEFAULT, None, topic).policy) == []
    assert problems(resolve(DEFAULT, namespace, topic).policy) != []


def test_limits_on_the_edge_are_allowed() -> None:
    check(replace(DEFAULT, min_segments=64, max_dag_depth=0, split_cooldown_ms=0, merge=Load()))
