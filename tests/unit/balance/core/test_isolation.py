"""Isolation policies and failure domains: Pulsar's JSON, what they match, and what a change unloads."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.balance.core.isolation import (
    BadIsolation,
    FailureDomain,
    IsolationPolicy,
    UnloadScope,
    already_elsewhere,
    broker_isolation,
    broker_matches,
    decode_domains,
    decode_policies,
    domain_of_brokers,
    encode_domains,
    encode_policies,
    policy_of,
    unloaded_by,
)

PLAIN = IsolationPolicy(("acme/.*",), ("fast-[0-9]+",), ("spare-.*",), 2, 80)
# As Pulsar's admin client sends it.
SENT: dict[str, Any] = {
    "namespaces": ["acme/.*"],
    "primary": ["fast-[0-9]+"],
    "secondary": ["spare-.*"],
    "auto_failover_policy": {
        "policy_type": "min_available",
        "parameters": {"min_limit": "2", "usage_threshold": "80"},
    },
}


def matches(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text) is not None


# -- JSON


def test_a_policy_is_read_and_written_as_pulsar_does() -> None:
    assert IsolationPolicy.from_json(SENT) == PLAIN
    assert PLAIN.to_json() == SENT
    scoped = replace(PLAIN, unload_scope=UnloadScope.ALL)
    assert scoped.to_json() == {**SENT, "unload_scope": "all_matching"}


def test_numbers_may_be_sent_as_numbers() -> None:
    numbers = {"policy_type": "min_available", "parameters": {"min_limit": 2, "usage_threshold": 80}}
    assert IsolationPolicy.from_json({**SENT, "auto_failover_policy": numbers, "unload_scope": None}) == PLAIN


texts = st.lists(st.text(max_size=10), max_size=4).map(tuple)
some = st.lists(st.text(max_size=10), min_size=1, max_size=4).map(tuple)
policies = st.builds(
    IsolationPolicy,
    some,
    some,
    texts,
    st.integers(-5, 1_000),
    st.integers(-5, 200),
    st.sampled_from([None, *UnloadScope]),
)


@given(st.dictionaries(st.text(max_size=10), policies, max_size=4))
def test_stored_policies_are_read_back(stored: dict[str, IsolationPolicy]) -> None:
    assert decode_policies(encode_policies(stored)) == stored


@given(
    st.dictionaries(
        st.text(max_size=10), st.builds(FailureDomain, st.frozensets(st.text(max_size=9))), max_size=4
    )
)
def test_stored_domains_are_read_back(stored: dict[str, FailureDomain]) -> None:
    assert decode_domains(encode_domains(stored)) == stored


@pytest.mark.parametrize(
    "change",
    [
        {"namespaces": []},
        {"namespaces": None},
        {"namespaces": "acme/.*"},
        {"primary": []},
        {"primary": [1]},
        {"secondary": None},
        {"auto_failover_policy": None},
        {"auto_failover_policy": {"policy_type": "max_available", "parameters": {}}},
        {"auto_failover_policy": {"policy_type": "min_available"}},
        {"auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": "1"}}},
        {
            "auto_failover_policy": {
                "policy_type": "min_available",
                "parameters": {"min_limit": "x", "usage_threshold": "1"},
            }
        },
        {
            "auto_failover_policy": {
                "policy_type": "min_available",
                "parameters": {"min_limit": True, "usage_threshold": "1"},
            }
        },
        {"unload_scope": "some"},
        {"unload_scope": ["changed"]},
    ],
    ids=str,
)
def test_what_pulsar_refuses_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadIsolation):
        IsolationPolicy.from_json({**SENT, **change})


@pytest.mark.parametrize("data", [b"", b"[]", b"5", b'{"a": 5}', b'{"a": null}', b"[" * 100_000])
def test_stored_nonsense_is_refused(data: bytes) -> None:
    with pytest.raises(BadIsolation):
        decode_policies(data)
    with pytest.raises(BadIsolation):
        decode_domains(data)


def test_every_pattern_is_there_to_be_checked() -> None:
    assert PLAIN.patterns == ("acme/.*", "fast-[0-9]+", "spare-.*")


# -- what they match


def test_a_pattern_matches_the_host_of_a_broker_or_all_of_its_id() -> None:
    assert broker_matches(["fast-[0-9]+"], ["fast-7:6650"], matches)
    assert broker_matches(["localhost:666[01]"], ["localhost:6661"], matches)
    assert broker_matches(["web"], ["fast-7:6650", "web:8080"], matches)
    assert broker_matches(["::1"], ["::1:6650"], matches)
    assert not broker_matches(["fast"], ["fast-7:6650"], matches)
    assert not broker_matches([], ["fast-7:6650"], matches)


def test_of_several_policies_the_first_by_name_is_a_namespaces() -> None:
    named = {
        "b": PLAIN,
        "a": replace(PLAIN, namespaces=("acme/sales",)),
        "c": replace(PLAIN, namespaces=(".*",)),
    }
    assert policy_of("acme/sales", named, matches) == "a"
    assert policy_of("acme/stock", named, matches) == "b"
    assert policy_of("zoo/cats", named, matches) == "c"
    assert policy_of("zoo/cats", {"b": PLAIN}, matches) is None


def test_a_broker_shows_its_policies() -> None:
    named = {
        "one": PLAIN,
        "two": replace(PLAIN, namespaces=("zoo/.*",), primary=("x",), secondary=("fast-.*",)),
    }
    assert broker_isolation("fast-7:6650", named, matches) == {
        "brokerName": "fast-7:6650",
        "policyName": "two",
        "primary": False,
        "namespaceRegex": ["acme/.*", "zoo/.*"],
    }
    assert broker_isolation("other:1", named, matches) == {
        "brokerName": "other:1",
        "primary": False,
        "namespaceRegex": [],
    }


def test_a_primary_broker_is_available_below_the_usage_threshold() -> None:
    assert PLAIN.is_available(0.79)
    assert not PLAIN.is_available(0.8)
    assert PLAIN.is_available(None)
    assert replace(PLAIN, usage_threshold=100).is_available(1.5)


# -- what a change unloads

SPACES = ["acme/sales", "acme/stock", "zoo/cats"]


def test_a_new_policy_unloads_the_namespaces_that_it_matches() -> None:
    assert unloaded_by(PLAIN, None, SPACES, matches) == ["acme/sales", "acme/stock"]


def test_a_change_unloads_the_namespaces_that_come_and_go() -> None:
    old = replace(PLAIN, namespaces=("acme/sales", "acme/stock"))
    new = replace(PLAIN, namespaces=("acme/sales", "zoo/.*"))
    assert unloaded_by(new, old, SPACES, matches) == ["acme/stock", "zoo/cats"]
    assert unloaded_by(new, new, SPACES, matches) == []


def test_a_change_of_the_primary_brokers_unloads_all_of_both() -> None:
    old = replace(PLAIN, namespaces=("acme/sales",), primary=("a", "b"))
    assert unloaded_by(replace(old, primary=("b", "a")), old, SPACES, matches) == []
    assert unloaded_by(replace(old, primary=("b", "c")), old, SPACES, matches) == ["acme/sales"]


def test_the_scope_says_otherwise() -> None:
    assert unloaded_by(replace(PLAIN, unload_scope=UnloadScope.NONE), None, SPACES, matches) == []
    same = replace(PLAIN, unload_scope=UnloadScope.ALL)
    assert unloaded_by(same, same, SPACES, matches) == ["acme/sales", "acme/stock"]


# -- failure domains


def test_a_broker_is_in_one_domain_at_most() -> None:
    domains = {"east": FailureDomain(frozenset({"a:1", "b:1"})), "west": FailureDomain(frozenset({"c:1"}))}
    assert already_elsewhere("west", FailureDomain(frozenset({"b:1", "c:1"})), domains) == ("east", ["b:1"])
    assert already_elsewhere("east", FailureDomain(frozenset({"a:1", "d:1"})), domains) is None
    assert domain_of_brokers(domains) == {"a:1": "east", "b:1": "east", "c:1": "west"}


def test_a_domain_is_read_and_written_as_pulsar_does() -> None:
    assert FailureDomain.from_json({"brokers": ["b", "a"]}).to_json() == {"brokers": ["a", "b"]}
    assert FailureDomain.from_json({}) == FailureDomain(frozenset())
    nonsense: list[Any] = [None, [], {"brokers": "a"}, {"brokers": [1]}]
    for bad in nonsense:
        with pytest.raises(BadIsolation):
            FailureDomain.from_json(bad)


def test_a_policy_with_a_huge_number_is_refused_and_does_not_hang() -> None:
    huge = json.loads(json.dumps(SENT))
    huge["auto_failover_policy"]["parameters"]["min_limit"] = "9" * 5_000
    with pytest.raises(BadIsolation):
        IsolationPolicy.from_json(huge)
