"""Which brokers may own a bundle, by isolation policies, anti-affinity groups and failure domains."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from anabranch.balance.core.isolation import IsolationPolicy
from anabranch.balance.core.owner_rules import OwnerRules, group_counts, no_rules, owner_rules
from unit.balance.core.facts import name

BROKERS = ("fast-1:1", "fast-2:1", "plain-1:1", "spare-1:1", "spare-2:1")
FAST = IsolationPolicy(("acme/.*",), ("fast-.*",), ("spare-.*",), available_min=1, usage_threshold=80)
SALES = name(0, "acme/sales")
CATS = name(0, "zoo/cats")


def matches(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text) is not None


def rules(
    policies: dict[str, IsolationPolicy] | None = None,
    groups: dict[str, str] | None = None,
    domains: dict[str, str] | None = None,
    brokers: tuple[str, ...] = BROKERS,
) -> OwnerRules:
    return owner_rules(brokers, policies or {}, groups or {}, domains or {}, matches)


def allowed(
    given_rules: OwnerRules,
    bundle: str,
    loads: dict[str, float] | None = None,
    owners: dict[str, str] | None = None,
    owner: str | None = None,
) -> list[str]:
    refused = given_rules.refused(bundle, loads or {}, group_counts(owners or {}, given_rules), owner)
    assert all(broker in because or "failure domain" in because for broker, because in refused.items())
    return [one for one in given_rules.brokers if one not in refused]


# -- isolation


def test_without_policies_every_broker_may_own_every_bundle() -> None:
    assert allowed(no_rules(BROKERS), CATS) == list(BROKERS)
    assert no_rules(BROKERS).is_open
    assert not no_rules(BROKERS).has_policies("zoo/cats")


def test_an_isolated_namespace_belongs_to_its_primary_brokers() -> None:
    assert allowed(rules({"fast": FAST}), SALES) == ["fast-1:1", "fast-2:1"]


def test_other_namespaces_belong_to_the_shared_brokers() -> None:
    assert allowed(rules({"fast": FAST}), CATS) == ["plain-1:1", "spare-1:1", "spare-2:1"]


def test_secondary_brokers_help_while_too_few_primary_ones_live() -> None:
    two = replace(FAST, available_min=2)
    assert allowed(rules({"fast": two}), SALES) == ["fast-1:1", "fast-2:1"]
    left = ("fast-1:1", "plain-1:1", "spare-1:1")
    assert allowed(rules({"fast": two}, brokers=left), SALES) == ["fast-1:1", "spare-1:1"]
    assert allowed(rules({"fast": two}, brokers=("plain-1:1", "spare-1:1")), SALES) == ["spare-1:1"]
    assert allowed(rules({"fast": two}, brokers=("plain-1:1",)), SALES) == []


def test_a_primary_broker_above_its_usage_threshold_is_not_available_but_may_still_own() -> None:
    two = replace(FAST, available_min=2)
    assert allowed(rules({"fast": two}), SALES, {"fast-1:1": 0.79, "fast-2:1": 0.5}) == [
        "fast-1:1",
        "fast-2:1",
    ]
    found = allowed(rules({"fast": two}), SALES, {"fast-1:1": 0.81, "fast-2:1": 0.5})
    assert found == ["fast-1:1", "fast-2:1", "spare-1:1", "spare-2:1"]


def test_a_broker_that_is_primary_and_secondary_is_primary() -> None:
    both = replace(FAST, secondary=(".*",))
    found = rules({"fast": both})
    assert found.primaries["fast"] == {"fast-1:1", "fast-2:1"}
    assert found.secondaries["fast"] == {"plain-1:1", "spare-1:1", "spare-2:1"}


def test_namespaces_with_a_policy_or_a_group_are_known() -> None:
    found = rules({"fast": FAST}, {"zoo/cats": "pets", "zoo/dogs": " "})
    assert [found.has_policies(one) for one in ("acme/a", "zoo/cats", "zoo/dogs", "zoo/fish")] == [
        True,
        True,
        False,
        False,
    ]


# -- anti-affinity

PETS = {"zoo/cats": "pets", "zoo/dogs": "Pets", "zoo/mice": "mice"}


def test_bundles_of_a_group_go_to_brokers_with_the_fewest_of_it() -> None:
    owners = {
        name(1, "zoo/cats"): "fast-1:1",
        name(2, "zoo/dogs"): "fast-2:1",
        name(3, "zoo/dogs"): "spare-1:1",
        name(1, "zoo/mice"): "plain-1:1",
    }
    assert allowed(rules(groups=PETS), CATS, owners=owners) == ["plain-1:1", "spare-2:1"]
    assert allowed(rules(groups=PETS), name(0, "zoo/fish"), owners=owners) == list(BROKERS)


def test_failure_domains_come_before_brokers() -> None:
    domains = {"fast-1:1": "d1", "fast-2:1": "d1", "plain-1:1": "d2", "spare-1:1": "d2", "spare-2:1": "d3"}
    owners = {
        **{name(one, "zoo/cats"): "fast-1:1" for one in (1, 2)},
        name(3, "zoo/cats"): "fast-2:1",
        **{name(one, "zoo/cats"): "plain-1:1" for one in (4, 5)},
        name(6, "zoo/cats"): "spare-1:1",
        **{name(one, "zoo/cats"): "spare-2:1" for one in (7, 8, 9, 10)},
    }
    found = rules(groups=PETS, domains=domains)
    assert allowed(found, CATS, owners=owners) == ["fast-2:1", "spare-1:1"]
    assert allowed(found, CATS, owners={name(1, "zoo/cats"): "fast-1:1"}) == [
        "plain-1:1",
        "spare-1:1",
        "spare-2:1",
    ]


def test_brokers_in_no_domain_are_one_domain() -> None:
    domains = {"fast-1:1": "d1"}
    found = allowed(rules(groups=PETS, domains=domains), CATS, owners={name(1, "zoo/cats"): "spare-1:1"})
    assert found == ["fast-1:1"]


def test_a_bundle_does_not_count_against_itself() -> None:
    owners = {CATS: "fast-1:1", name(1, "zoo/dogs"): "fast-2:1"}
    two = rules(groups=PETS, brokers=("fast-1:1", "fast-2:1"))
    assert allowed(two, CATS, owners=owners, owner="fast-1:1") == ["fast-1:1"]
    assert allowed(two, CATS, owners=owners) == ["fast-1:1", "fast-2:1"]


def test_a_group_is_spread_over_the_brokers_of_its_policy() -> None:
    policy = replace(FAST, namespaces=("zoo/.*",))
    found = rules({"fast": policy}, PETS)
    assert allowed(found, CATS, owners={name(1, "zoo/dogs"): "fast-1:1"}) == ["fast-2:1"]


@given(
    st.lists(st.sampled_from(["zoo/cats", "zoo/dogs"]), max_size=30),
    st.dictionaries(st.sampled_from(BROKERS), st.sampled_from(["d1", "d2"])),
)
def test_a_group_that_is_placed_one_by_one_is_spread_evenly(
    spaces: list[str], domains: dict[str, str]
) -> None:
    """Some broker may always own the next bundle, domains differ by one bundle, and so do brokers of a domain."""
    found = rules(groups=PETS, domains=domains)
    owners: dict[str, str] = {}
    for number, space in enumerate(spaces):
        bundle = name(number, space)
        choice = allowed(found, bundle, owners=owners)
        assert choice
        owners[bundle] = choice[0]
    held = Counter(owners.values())
    by_domain: dict[str, list[int]] = {}
    for broker in BROKERS:
        by_domain.setdefault(domains.get(broker, "default") if domains else "", []).append(held[broker])
    sums = [sum(one) for one in by_domain.values()]
    assert max(sums) - min(sums) <= 1
    for one in by_domain.values():
        assert max(one) - min(one) <= 1
