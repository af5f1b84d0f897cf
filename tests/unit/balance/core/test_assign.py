"""Which broker gets a bundle: of two by lot the less loaded, and many at once spread by load."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.balance.core.assign import Candidate, Chosen, NoBroker, Spread, choose, older_versions, spread
from anabranch.balance.core.isolation import IsolationPolicy
from anabranch.balance.core.owner_rules import OwnerRules, no_rules, owner_rules
from anabranch.balance.core.settings import BalanceSettings
from unit.balance.core.facts import HOUR, NOW, broker_load, name

DEFAULT = BalanceSettings()


def candidate(broker: str, load: float | None = None, *, at: int = NOW, bundles: int = 10) -> Candidate:
    return Candidate(broker, None if load is None else broker_load(load, at=at, bundles=bundles))


def drawn(*numbers: int) -> Callable[[int], int]:
    """Draws these numbers."""
    left = list(numbers)

    def below(count: int) -> int:
        number = left.pop(0)
        assert 0 <= number < count
        return number

    return below


def chosen(
    *candidates: Candidate, draws: tuple[int, ...] = (0, 0), settings: BalanceSettings = DEFAULT
) -> str:
    found = choose(candidates, NOW, settings, drawn(*draws))
    assert isinstance(found, Chosen)
    assert found.broker in found.because
    return found.broker


def possible(
    *candidates: Candidate, settings: BalanceSettings = DEFAULT, refused: Mapping[str, str] | None = None
) -> set[str]:
    """Every broker that some lots choose."""
    chance = random.Random(1)
    found = set()
    for _ in range(200):
        one = choose(candidates, NOW, settings, chance.randrange, refused=refused or {})
        assert isinstance(one, Chosen)
        found.add(one.broker)
    return found


# -- one bundle


def test_the_less_loaded_of_two_by_lot_is_chosen() -> None:
    brokers = [candidate("a", 0.7), candidate("b", 0.2), candidate("c", 0.5)]
    assert chosen(*brokers, draws=(0, 1)) == "c"  # a and c.
    assert chosen(*brokers, draws=(0, 0)) == "b"  # a and b.
    assert chosen(*brokers, draws=(1, 1)) == "b"  # b and c.
    assert possible(*brokers) == {"b", "c"}


def test_the_choice_says_why() -> None:
    found = choose([candidate("a", 0.7), candidate("b", 0.2)], NOW, DEFAULT, drawn(0, 0))
    assert found == Chosen("b", "b has a load of 20 %, a 70 %")


def test_loads_that_differ_little_are_equal_and_fewer_bundles_decide() -> None:
    crowded, empty = candidate("a", 0.50, bundles=12), candidate("b", 0.58, bundles=3)
    assert chosen(crowded, empty) == "b"
    assert chosen(crowded, empty, settings=replace(DEFAULT, load_difference_percent=5)) == "a"


def test_of_equal_brokers_the_one_drawn_first_is_chosen() -> None:
    assert chosen(candidate("b", 0.5), candidate("a", 0.5), draws=(0, 0)) == "a"
    assert chosen(candidate("b", 0.5), candidate("a", 0.5), draws=(1, 0)) == "b"


def test_a_single_broker_is_chosen_whatever_its_load() -> None:
    assert chosen(candidate("a", 2.0), draws=(0,)) == "a"


def test_without_any_load_every_broker_is_possible() -> None:
    assert possible(candidate("a"), candidate("b"), candidate("c")) == {"a", "b", "c"}


def test_a_broker_without_a_load_counts_as_loaded_as_the_average() -> None:
    brokers = [candidate("a", 0.2), candidate("b", 0.8), candidate("new")]
    assert chosen(*brokers, draws=(2, 0)) == "a"
    assert chosen(*brokers, draws=(2, 1)) == "new"


def test_an_overloaded_broker_is_avoided_while_there_is_another() -> None:
    assert possible(candidate("a", 0.86), candidate("b", 0.85), candidate("c", 0.9)) == {"b"}
    assert possible(candidate("a", 0.9), candidate("b", 0.9)) == {"a", "b"}


def test_a_broker_with_an_outdated_load_is_used_only_where_there_is_no_other() -> None:
    old = candidate("a", 0.1, at=NOW - HOUR)
    assert possible(old, candidate("b", 0.95)) == {"b"}
    assert possible(old, candidate("b")) == {"b"}
    assert possible(old) == {"a"}


def test_lots_spread_a_burst_of_choices_over_equal_brokers() -> None:
    """All brokers decide by the same loads at the same moment; the least loaded must not get everything."""
    chance = random.Random(7)
    brokers = [candidate(f"b{number}", 0.1 * number) for number in range(8)]
    counts = Counter(
        found.broker
        for _ in range(8_000)
        if isinstance(found := choose(brokers, NOW, DEFAULT, chance.randrange), Chosen)
    )
    assert counts["b0"] == pytest.approx(2_000, rel=0.15)
    assert [one for one, _ in counts.most_common()] == [f"b{number}" for number in range(7)]


# -- who may


@pytest.mark.parametrize(
    ("one", "because"),
    [
        (Candidate("x", is_draining=True), "x is about to end"),
        (Candidate("x", has_balancer=False), "x has another load manager"),
        (Candidate("x", has_persistent_topics=False), "x serves no persistent topics"),
        (Candidate("x", broker_load(0.1, topics=50_000)), "x has 50,000 topics of at most 50,000"),
    ],
)
def test_a_broker_that_may_own_nothing_is_refused_with_the_reason(one: Candidate, because: str) -> None:
    found = choose([one], NOW, DEFAULT, drawn())
    assert found == NoBroker(f"no broker may own it: {because}", {"x": because})
    assert possible(one, candidate("y", 0.9)) == {"y"}


def test_topics_without_a_log_need_a_broker_that_serves_them() -> None:
    only_logs = Candidate("x", has_non_persistent_topics=False)
    found = choose([only_logs, candidate("y", 0.9)], NOW, DEFAULT, drawn(0), is_non_persistent=True)
    assert isinstance(found, Chosen)
    assert found.broker == "y"
    without = Candidate("x", has_persistent_topics=False)
    assert isinstance(choose([without], NOW, DEFAULT, drawn(0), is_non_persistent=True), Chosen)


def test_brokers_that_policies_exclude_are_refused_with_their_reason() -> None:
    brokers = [candidate("a", 0.1), candidate("b", 0.9)]
    assert possible(*brokers, refused={"a": "a is isolated"}) == {"b"}
    found = choose(brokers, NOW, DEFAULT, drawn(), refused={"a": "a is isolated", "b": "b too", "gone": "?"})
    assert found == NoBroker(
        "no broker may own it: a is isolated; b too", {"a": "a is isolated", "b": "b too"}
    )


def test_without_brokers_there_is_none_to_choose() -> None:
    assert choose([], NOW, DEFAULT, drawn()) == NoBroker("there is no living broker", {})


def test_later_releases_are_preferred_where_the_settings_say_so() -> None:
    versions = {"a": "1.2.10", "b": "1.10.0", "c": "1.10.0", "d": "1.10.0-rc.1"}
    brokers = [Candidate(broker, version=version) for broker, version in versions.items()]
    later = replace(DEFAULT, prefers_later_versions=True)
    assert possible(*brokers, settings=later) == {"b", "c"}
    assert set(older_versions(brokers)) == {"a", "d"}
    assert older_versions([*brokers, Candidate("e", version="unknown")]) == {}
    assert older_versions([]) == {}


def test_an_older_release_is_used_where_policies_leave_no_other() -> None:
    brokers = [Candidate("a", version="1.0.0"), Candidate("b", version="2.0.0")]
    later = replace(DEFAULT, prefers_later_versions=True)
    assert possible(*brokers, settings=later, refused={"b": "b is isolated"}) == {"a"}


loads = st.one_of(st.none(), st.floats(0, 2))
fleets = st.lists(
    st.builds(
        lambda number, load, drains, age: replace(
            candidate(f"b{number}", load, at=NOW - age), is_draining=drains
        ),
        st.integers(0, 30),
        loads,
        st.booleans(),
        st.sampled_from([0, 2 * HOUR]),
    ),
    unique_by=lambda one: one.id,
    max_size=12,
)


@given(fleets, st.randoms())
def test_a_broker_is_chosen_if_and_only_if_one_may(brokers: list[Candidate], chance: random.Random) -> None:
    found = choose(brokers, NOW, DEFAULT, chance.randrange)
    able = {one.id for one in brokers if not one.is_draining}
    if isinstance(found, Chosen):
        assert found.broker in able
    else:
        assert not able
        assert set(found.refused) == {one.id for one in brokers}


@given(fleets, st.integers(0, 2**32))
def test_the_same_lots_choose_the_same_broker_whatever_the_order(brokers: list[Candidate], seed: int) -> None:
    one = choose(brokers, NOW, DEFAULT, random.Random(seed).randrange)
    assert choose(list(reversed(brokers)), NOW, DEFAULT, random.Random(seed).randrange) == one


# -- many bundles


def spread_over(
    bundles: Mapping[str, float | None],
    *brokers: Candidate,
    rules: OwnerRules | None = None,
    owners: Mapping[str, str] | None = None,
) -> Spread:
    rules = rules or no_rules(one.id for one in brokers)
    return spread(bundles, brokers, owners or {}, NOW, DEFAULT, rules)


def shares(found: Spread) -> Counter[str]:
    return Counter(one.broker for one in found.chosen.values())


def test_bundles_without_a_known_load_are_spread_evenly_at_a_start() -> None:
    bundles: dict[str, float | None] = {name(number): None for number in range(64)}
    found = spread_over(bundles, *(candidate(broker) for broker in "abcd"))
    assert shares(found) == {"a": 16, "b": 16, "c": 16, "d": 16}
    assert found.unowned == {}
    assert found.chosen[name(0)].because == "a is the least loaded of those that may own it, with 0 %"


def test_the_bundles_of_a_dead_broker_go_where_there_is_room() -> None:
    bundles: dict[str, float | None] = {name(0): 0.4, name(1): 0.3, name(2): 0.1, name(3): 0.1}
    found = spread_over(bundles, candidate("a", 0.2), candidate("b", 0.5), candidate("c", 0.8))
    assert {bundle: one.broker for bundle, one in found.chosen.items()} == {
        name(0): "a",  # 0.6
        name(1): "b",  # 0.8
        name(2): "a",  # 0.7
        name(3): "a",
    }


def test_a_broker_without_a_load_gets_as_much_as_an_average_one() -> None:
    bundles: dict[str, float | None] = {name(number): 0.01 for number in range(30)}
    found = spread_over(bundles, candidate("a", 0.4), candidate("b", 0.4), candidate("new"))
    assert shares(found) == {"a": 10, "b": 10, "new": 10}


def test_idle_bundles_are_spread_too() -> None:
    bundles: dict[str, float | None] = {name(number): 0.0 for number in range(30)}
    found = spread_over(bundles, candidate("a", 0.1), candidate("b", 0.1), candidate("c", 0.1))
    assert shares(found) == {"a": 10, "b": 10, "c": 10}


def test_brokers_that_end_or_are_in_doubt_get_nothing_while_there_are_others() -> None:
    old = candidate("a", 0.0, at=NOW - HOUR)
    ending = replace(candidate("b", 0.0), is_draining=True)
    assert shares(spread_over({name(0): None, name(1): None}, old, ending, candidate("c", 0.9))) == {"c": 2}
    assert shares(spread_over({name(0): None}, old, ending)) == {"a": 1}
    found = spread_over({name(0): None}, ending)
    assert found.unowned == {
        name(0): NoBroker("no broker may own it: b is about to end", {"b": "b is about to end"})
    }


def whole(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text) is not None


def test_policies_are_honoured() -> None:
    policy = IsolationPolicy(("acme/own",), ("a",))
    rules = owner_rules("abc", {"own": policy}, {}, {}, whole)
    # The host of an id without a port is empty, so that the whole of it is matched.
    bundles: dict[str, float | None] = {name(number, "acme/own"): 0.1 for number in range(3)}
    bundles |= {name(number): 0.1 for number in range(8)}
    found = spread_over(bundles, *(candidate(one, 0.1) for one in "abc"), rules=rules)
    assert {found.chosen[name(number, "acme/own")].broker for number in range(3)} == {"a"}
    assert shares(found) == {"a": 3, "b": 4, "c": 4}


def test_a_bundle_that_no_broker_may_own_is_named_with_the_reasons() -> None:
    rules = owner_rules("bc", {"own": IsolationPolicy(("acme/own",), ("a",))}, {}, {}, whole)
    found = spread_over(
        {name(0, "acme/own"): None, name(0): None}, candidate("b"), candidate("c"), rules=rules
    )
    assert set(found.chosen) == {name(0)}
    assert found.unowned[name(0, "acme/own")].refused == {
        "b": "b is no broker of the isolation policy own",
        "c": "c is no broker of the isolation policy own",
    }


def test_bundles_of_a_group_are_kept_apart() -> None:
    rules = owner_rules("abc", {}, {"zoo/cats": "pets", "zoo/dogs": "pets"}, {}, whole)
    bundles: dict[str, float | None] = {name(0, "zoo/cats"): 0.1, name(0, "zoo/dogs"): 0.1}
    owners = {name(1, "zoo/cats"): "a"}
    found = spread_over(
        bundles, candidate("a", 0.0), candidate("b", 0.1), candidate("c", 0.9), rules=rules, owners=owners
    )
    assert shares(found) == {"b": 1, "c": 1}


@given(
    st.dictionaries(st.integers(0, 300), st.one_of(st.none(), st.floats(0, 0.2)), max_size=60),
    st.lists(st.floats(0, 0.5), min_size=1, max_size=8),
)
def test_the_load_is_spread_as_evenly_as_the_heaviest_bundle_allows(
    weights: dict[int, float | None], before: list[float]
) -> None:
    """No broker that got a bundle ends more loaded than the least loaded one and one bundle."""
    brokers = [candidate(f"b{number}", load, bundles=0) for number, load in enumerate(before)]
    bundles = {name(number): load for number, load in weights.items()}
    found = spread_over(bundles, *brokers)
    assert set(found.chosen) == set(bundles)
    after = {one.id: one.load.load for one in brokers if one.load is not None}
    heaviest = 0.0
    for bundle, one in found.chosen.items():
        weight = max(bundles[bundle] or 0.0, 0.001)
        heaviest = max(heaviest, weight)
        after[one.broker] += weight
    for broker in {one.broker for one in found.chosen.values()}:
        assert after[broker] <= min(after.values()) + heaviest + 1e-9
