"""Which bundles leave their brokers: each rule by an example, and what holds for every verdict."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.balance.core.isolation import IsolationPolicy
from anabranch.balance.core.load import BrokerLoad, TopBundles, bundle_loads
from anabranch.balance.core.owner_rules import OwnerRules, no_rules, owner_rules
from anabranch.balance.core.settings import BalanceSettings
from anabranch.balance.core.shed import shed
from anabranch.balance.core.shed_verdict import (
    BundleMove,
    ClusterLoad,
    LastMove,
    NoShed,
    ShedReason,
    ShedState,
    ShedVerdict,
)
from unit.balance.core.facts import HOUR, MINUTE, NOW, SECOND, broker_load, bundle_load, name

DEFAULT = BalanceSettings()
# One hit is enough, so that an example is one decision.
AT_ONCE = replace(DEFAULT, shedding_hits=0)


def cluster(
    bundles: Mapping[str, Sequence[float]],
    *,
    now: int = NOW,
    rest: Mapping[str, float] | None = None,
    rules: OwnerRules | None = None,
    space: str | Mapping[str, str] = "acme/sales",
) -> ClusterLoad:
    """Brokers with bundles of these loads, numbered through. `rest` is load that no reported bundle has, `space` the
    namespace of all bundles or of those of each broker."""
    loads: dict[str, BrokerLoad] = {}
    tops: dict[str, TopBundles] = {}
    owners: dict[str, str] = {}
    number = 0
    for broker, parts in bundles.items():
        names = [
            name(number + at, space if isinstance(space, str) else space[broker]) for at in range(len(parts))
        ]
        number += len(parts)
        owners |= dict.fromkeys(names, broker)
        tops[broker] = TopBundles(
            now, tuple(bundle_load(one, part) for one, part in zip(names, parts, strict=True))
        )
        loads[broker] = broker_load(
            math.fsum(parts) + (rest or {}).get(broker, 0.0), at=now, bundles=len(parts)
        )
    return ClusterLoad(
        now_ms=now,
        brokers=list(bundles),
        loads=loads,
        tops=tops,
        owners=owners,
        rules=rules or no_rules(bundles),
    )


def moved_numbers(verdict: ShedVerdict) -> list[tuple[int, str, str | None]]:
    return [(int(one.bundle[-21:-11], 16) >> 20, one.source, one.destination) for one in verdict.moves]


def why(verdict: ShedVerdict) -> dict[str, NoShed]:
    return {one.what: one.label for one in verdict.not_moved}


# -- whether


def test_loads_that_are_alike_are_left_alone() -> None:
    verdict = shed(cluster({"a": [0.3, 0.3], "b": [0.2, 0.2]}), ShedState(hits=3), DEFAULT)
    assert (verdict.moves, verdict.label, verdict.state.hits) == ((), NoShed.BALANCED, 0)
    assert (
        verdict.because == "The loads are balanced: their deviation is 0.10 around 50 %, and the target 0.25."
    )


def test_shedding_begins_after_more_hits_than_the_threshold() -> None:
    view, state = cluster({"a": [0.3, 0.3, 0.3], "b": [0.1]}), ShedState()
    labels = []
    for minute in range(5):
        verdict = shed(replace(view, now_ms=NOW + minute * MINUTE), state, DEFAULT)
        labels.append(verdict.label)
        state = verdict.state
    assert labels == [NoShed.HIT_COUNT, NoShed.HIT_COUNT, NoShed.HIT_COUNT, None, NoShed.COOL_DOWN]


def test_hits_count_only_in_a_row() -> None:
    skewed, even = cluster({"a": [0.3, 0.3, 0.3], "b": [0.1]}), cluster({"a": [0.3, 0.3], "b": [0.3]})
    state = ShedState()
    for view in (skewed, skewed, skewed, even, skewed, skewed, skewed):
        verdict = shed(view, state, DEFAULT)
        assert verdict.moves == ()
        state = verdict.state
    assert state.hits == 3
    assert shed(skewed, state, DEFAULT).moves


def test_a_deviation_on_its_target_is_no_hit() -> None:
    exact = replace(AT_ONCE, load_std_target=0.5)
    assert shed(cluster({"a": [0.5, 0.5, 0.5], "b": [0.5]}), ShedState(), exact).label is NoShed.BALANCED
    below = replace(AT_ONCE, load_std_target=0.49)
    assert shed(cluster({"a": [0.5, 0.5, 0.5], "b": [0.5]}), ShedState(), below).moves


@pytest.mark.parametrize("off", [{"is_shedding": False}, {"is_enabled": False}])
def test_nothing_moves_while_shedding_is_switched_off(off: dict[str, bool]) -> None:
    verdict = shed(cluster({"a": [0.9, 0.9], "b": []}), ShedState(hits=9), replace(AT_ONCE, **off))  # type: ignore[arg-type]
    assert (verdict.moves, verdict.label, verdict.state.hits) == ((), NoShed.OFF, 0)


def test_one_overloaded_broker_of_many_is_relieved_though_the_deviation_is_small() -> None:
    view = cluster({"a": [0.5, 0.3, 0.1], **{f"b{at:02}": [0.2, 0.1] for at in range(20)}})
    verdict = shed(view, ShedState(), AT_ONCE)
    assert verdict.std < AT_ONCE.load_std_target
    assert {one.reason for one in verdict.moves} == {ShedReason.OVERLOADED}
    assert "a is overloaded, at 90 % beside a mean of 33 %" in verdict.because
    at_the_limit = cluster({"a": [0.5, 0.3, 0.05], **{f"b{at:02}": [0.2, 0.1] for at in range(20)}})
    assert shed(at_the_limit, ShedState(), AT_ONCE).label is NoShed.BALANCED


def test_a_new_broker_without_traffic_gets_bundles_though_the_deviation_is_small() -> None:
    verdict = shed(cluster({"a": [0.1, 0.1, 0.1], "b": [0.1, 0.1, 0.1], "new": []}), ShedState(), AT_ONCE)
    assert verdict.std < AT_ONCE.load_std_target
    assert [(one.source, one.destination, one.reason) for one in verdict.moves] == [
        ("a", "new", ShedReason.UNDERLOADED)
    ]
    assert "new is nearly idle, at 0 % beside a mean of 20 %" in verdict.because


def test_a_broker_with_next_to_no_traffic_gets_bundles_though_it_has_load() -> None:
    view = cluster({"a": [0.1, 0.1, 0.1, 0.1], "b": [0.01]}, rest={"b": 0.14})
    idle = replace(view.loads["b"], throughput=1e6)
    verdict = shed(replace(view, loads={**view.loads, "b": idle}), ShedState(), AT_ONCE)
    assert [(one.source, one.destination, one.reason) for one in verdict.moves] == [
        ("a", "b", ShedReason.UNDERLOADED)
    ]


# -- how much, and where


def test_a_loaded_broker_comes_down_to_the_mean_with_few_moves() -> None:
    verdict = shed(cluster({"a": [0.05, 0.1, 0.1, 0.3, 0.4], "b": [0.05]}), ShedState(), AT_ONCE)
    assert [one.load for one in verdict.moves] == [pytest.approx(0.4), pytest.approx(0.05)]
    assert verdict.std_after == pytest.approx(0.0, abs=1e-6)
    assert verdict.because == (
        "The deviation of the loads is 0.45, above the target 0.25: 2 moves, after which the deviation is 0.00."
    )


def test_a_broker_that_is_nearly_down_to_the_mean_keeps_its_small_bundles() -> None:
    verdict = shed(cluster({"a": [0.01, 0.01, 0.39, 0.49], "b": [0.1]}), ShedState(), AT_ONCE)
    assert [one.load for one in verdict.moves] == [pytest.approx(0.39)]


def test_each_bundle_goes_to_the_broker_that_is_then_the_least_loaded() -> None:
    view = cluster({"a": [0.2] * 6, "b": [0.1], "c": [0.0], "d": [0.05]})
    verdict = shed(view, ShedState(), AT_ONCE)
    assert [one.destination for one in verdict.moves] == ["c", "d", "b", "c"]
    assert all(one.source == "a" for one in verdict.moves)


def test_ties_go_to_the_lower_id() -> None:
    verdict = shed(cluster({"b": [0.2] * 5, "d": [], "c": [], "a": [0.2] * 5}), ShedState(), AT_ONCE)
    assert [(one.source, one.destination) for one in verdict.moves[:2]] == [("a", "c"), ("a", "d")]
    names = [one.bundle for one in verdict.moves if one.source == "a"]
    assert names == sorted(names)


def test_a_bundle_that_would_only_swap_the_imbalance_stays() -> None:
    verdict = shed(cluster({"a": [0.8, 0.02], "b": []}), ShedState(), AT_ONCE)
    assert [one.load for one in verdict.moves] == [pytest.approx(0.02)]
    assert why(verdict)[name(0)] is NoShed.HEAVY
    alone = shed(cluster({"a": [0.8, 0.7], "b": [0.2]}, rest={"b": 0.5}), ShedState(), AT_ONCE)
    assert (alone.moves, alone.label) == ((), NoShed.NO_BUNDLES)
    assert set(why(alone).values()) == {NoShed.HEAVY}
    assert alone.state.hits == 1


def test_a_bundle_may_take_its_broker_below_the_mean_where_no_other_fits() -> None:
    verdict = shed(cluster({"a": [0.5, 0.4], "b": [0.45, 0.45], "c": []}), ShedState(), AT_ONCE)
    assert moved_numbers(verdict)[0] == (1, "a", "c")
    assert verdict.std_after < verdict.std


def test_of_those_the_lightest_goes_as_it_goes_the_least_below() -> None:
    view = cluster({"a": [0.55, 0.5], "b": [], "c": []}, rest={"a": 0.15, "b": 1.2})
    assert moved_numbers(shed(view, ShedState(), AT_ONCE)) == [(1, "a", "c")]


def test_a_bundle_below_the_mean_is_not_the_last_to_go_either() -> None:
    view = cluster({"a": [0.32, 0.05], "b": [], "c": []}, rest={"a": 0.53, "b": 0.9})
    assert moved_numbers(shed(view, ShedState(), AT_ONCE)) == [(1, "a", "c")]


def test_the_last_of_the_reported_bundles_stays() -> None:
    verdict = shed(cluster({"a": [0.2, 0.2], "b": []}, rest={"a": 0.6}), ShedState(), AT_ONCE)
    assert len(verdict.moves) == 1
    assert why(verdict) == {name(1): NoShed.NO_BUNDLES}


def test_a_single_bundle_stays_and_a_split_is_suggested() -> None:
    verdict = shed(cluster({"a": [0.9], "b": []}), ShedState(), AT_ONCE)
    assert verdict.label is NoShed.NO_BUNDLES
    assert [one.because for one in verdict.not_moved] == [
        f"a has a single bundle with traffic, {name(0)}: a split of it may help"
    ]


def test_so_many_brokers_give_bundles_in_a_cycle_and_no_more() -> None:
    view = cluster({**{one: [0.3, 0.3, 0.3] for one in "abcd"}, **{one: [] for one in "wxyz"}})
    verdict = shed(view, ShedState(), AT_ONCE)
    assert {one.source for one in verdict.moves} == {"a", "b", "c"}
    assert why(verdict)["d"] is NoShed.LIMIT
    assert {
        one.source for one in shed(view, ShedState(), replace(AT_ONCE, shedding_brokers_max=1)).moves
    } == {"a"}


def test_a_broker_either_gives_or_gets_in_a_cycle() -> None:
    tight = replace(AT_ONCE, load_std_target=0.05)
    view = cluster({"a": [], "b": [0.5, 0.125], "c": [0.5, 0.5, 0.375], "d": [0.5, 0.5, 0.5, 0.25]})
    verdict = shed(view, ShedState(), tight)
    # b is above the mean by the time when it comes up.
    assert {one.source for one in verdict.moves} == {"c", "d"}
    assert {one.destination for one in verdict.moves} == {"a", "b"}


def test_brokers_that_have_nothing_to_give_do_not_count_towards_the_limit() -> None:
    view = cluster({"a": [0.95], "b": [0.95], "c": [0.95], "d": [0.3, 0.3, 0.3], "e": []})
    verdict = shed(view, ShedState(), AT_ONCE)
    assert {one.source for one in verdict.moves} == {"d"}
    assert [why(verdict)[one] for one in "abc"] == [NoShed.NO_BUNDLES] * 3


def test_after_a_hundred_brokers_without_anything_to_give_no_more_are_looked_at() -> None:
    stuck = {f"b{at:03}": [0.95] for at in range(100)}
    idle: dict[str, list[float]] = {f"c{at:03}": [] for at in range(100)}
    verdict = shed(cluster({**stuck, "bx": [0.3, 0.3, 0.3], **idle}), ShedState(), AT_ONCE)
    assert verdict.label is NoShed.NO_BUNDLES
    assert verdict.not_moved[-1].label is NoShed.LIMIT
    one_less = dict(list(stuck.items())[1:])
    assert shed(cluster({**one_less, "bx": [0.3, 0.3, 0.3], **idle}), ShedState(), AT_ONCE).moves


def test_without_transfers_the_next_lookup_finds_the_destination() -> None:
    view = cluster({"a": [0.2] * 5, "b": []})
    with_one = shed(view, ShedState(), AT_ONCE)
    without = shed(view, ShedState(), replace(AT_ONCE, is_transferring=False))
    assert [one.destination for one in without.moves] == [None, None]
    assert [one.bundle for one in without.moves] == [one.bundle for one in with_one.moves]
    assert set(without.state.touched_ms) == {"a"}


# -- swaps


def test_a_heavy_bundle_is_swapped_for_a_lighter_one() -> None:
    verdict = shed(cluster({"a": [0.5, 0.4], "b": [0.1, 0.1]}), ShedState(), AT_ONCE)
    assert [(one.source, one.destination, one.is_swap) for one in verdict.moves] == [
        ("b", "a", True),
        ("a", "b", True),
    ]
    assert verdict.moves[1].load == pytest.approx(0.4)
    assert verdict.std_after == pytest.approx(0.05)


def test_several_light_bundles_may_make_room() -> None:
    verdict = shed(cluster({"a": [0.45, 0.45], "b": [0.07] * 3}), ShedState(), AT_ONCE)
    assert [one.source for one in verdict.moves] == ["b", "b", "a"]
    assert verdict.std_after == pytest.approx(0.035)


def test_no_swap_is_made_that_gains_little() -> None:
    verdict = shed(cluster({"a": [0.9, 0.9], "b": [0.8]}, rest={"b": 0.2}), ShedState(), AT_ONCE)
    assert verdict.label is NoShed.NO_BUNDLES


def test_no_swap_is_made_without_transfers() -> None:
    single = replace(AT_ONCE, is_transferring=False)
    assert shed(cluster({"a": [0.5, 0.4], "b": [0.1, 0.1]}), ShedState(), single).moves == ()


def test_a_bundle_that_was_moved_of_late_is_not_swapped_back() -> None:
    view = cluster({"a": [0.5, 0.4], "b": [0.1]}, rest={"b": 0.1})
    state = ShedState(moves={name(2): LastMove(NOW - 20 * MINUTE, "c")})
    assert shed(view, state, AT_ONCE).moves == ()
    assert shed(view, ShedState(), AT_ONCE).moves


def test_a_bundle_is_part_of_one_swap_at_most() -> None:
    """All numbers are binary fractions: the bundle that came from c would fit the swap with b exactly, too."""
    verdict = shed(cluster({"a": [1.0, 1.0], "b": [0.875, 1.125], "c": [0.375]}), ShedState(), AT_ONCE)
    assert moved_numbers(verdict) == [(4, "c", "a"), (0, "a", "c")]


# -- time


def test_the_loads_settle_for_the_delay_after_moves() -> None:
    view = cluster({"a": [0.2] * 5, "b": []})
    state = ShedState(acted_ms=NOW)
    early = shed(replace(view, now_ms=NOW + 179 * SECOND), state, AT_ONCE)
    assert (early.moves, early.label) == ((), NoShed.COOL_DOWN)
    assert shed(replace(view, now_ms=NOW + 180 * SECOND), state, AT_ONCE).moves


def test_a_cycle_waits_for_reports_from_after_the_moves() -> None:
    view = cluster({"a": [0.2] * 5, "b": []})
    state = ShedState(touched_ms={"b": NOW + 1, "gone": NOW + 1})
    verdict = shed(replace(view, now_ms=NOW + HOUR // 4), state, AT_ONCE)
    assert verdict.label is NoShed.COOL_DOWN
    assert (
        verdict.because
        == "b gave or got a bundle at 2027-01-15 08:00:00 UTC and has not reported a load since."
    )
    newer = {one: replace(load, measured_ms=NOW + 2) for one, load in view.loads.items()}
    assert shed(replace(view, loads=newer, now_ms=NOW + HOUR // 4), state, AT_ONCE).moves


def test_a_bundle_that_was_moved_stays_for_the_grace() -> None:
    view = cluster({"a": [0.4, 0.3, 0.2], "b": []})
    state = ShedState(moves={name(0): LastMove(NOW - 30 * MINUTE + 1, "z")})
    verdict = shed(view, state, AT_ONCE)
    assert moved_numbers(verdict) == [(1, "a", "b")]
    assert why(verdict)[name(0)] is NoShed.RECENT
    free = ShedState(moves={name(0): LastMove(NOW - 30 * MINUTE, "z")})
    assert moved_numbers(shed(view, free, AT_ONCE)) == [(0, "a", "b")]


def test_a_bundle_does_not_go_back_for_twice_the_grace() -> None:
    view = cluster({"a": [0.4, 0.3, 0.2], "b": [], "c": [0.1]})
    state = ShedState(moves={name(0): LastMove(NOW - 59 * MINUTE, "b")})
    assert moved_numbers(shed(view, state, AT_ONCE))[0] == (0, "a", "c")
    free = ShedState(moves={name(0): LastMove(NOW - 60 * MINUTE, "b")})
    assert moved_numbers(shed(view, free, AT_ONCE))[0] == (0, "a", "b")


def test_moves_are_remembered_and_forgotten_in_time() -> None:
    verdict = shed(cluster({"a": [0.2] * 5, "b": []}), ShedState(hits=7), AT_ONCE)
    state = verdict.state
    assert state.hits == 0
    assert state.acted_ms == NOW
    assert state.moves == {one.bundle: LastMove(NOW, "a") for one in verdict.moves}
    assert state.touched_ms == {"a": NOW, "b": NOW}
    assert state.pruned(NOW + 59 * MINUTE, DEFAULT) == state
    assert state.pruned(NOW + 60 * MINUTE, DEFAULT) == ShedState(0, NOW)


def test_moves_of_others_count_too() -> None:
    state = ShedState().noted(name(0), "a", "b", NOW).noted(name(1), "c", None, NOW + 5)
    assert state == ShedState(
        moves={name(0): LastMove(NOW, "a"), name(1): LastMove(NOW + 5, "c")},
        touched_ms={"a": NOW, "b": NOW, "c": NOW + 5},
    )
    assert state.forgot(name(0)).moves == {name(1): LastMove(NOW + 5, "c")}


def test_a_new_leader_goes_on_where_the_last_one_stopped() -> None:
    view = cluster({"a": [0.2] * 5, "b": []})
    verdict = shed(view, ShedState(), AT_ONCE)
    told = [(one.bundle, one.source, one.destination, NOW) for one in reversed(verdict.moves)]
    assert ShedState.remembered(told) == verdict.state


# -- who and what is left out


def test_brokers_without_a_load_or_with_an_outdated_one_are_left_out() -> None:
    view = cluster({"a": [0.3, 0.3, 0.3], "b": [0.1], "old": [], "new": []})
    loads = {"a": view.loads["a"], "b": view.loads["b"], "old": broker_load(0.0, at=NOW - HOUR)}
    verdict = shed(replace(view, loads=loads), ShedState(), AT_ONCE)
    assert {one.destination for one in verdict.moves} == {"b"}
    assert verdict.mean == pytest.approx(0.5)
    assert {one: why(verdict)[one] for one in ("old", "new")} == {
        "old": NoShed.OUTDATED,
        "new": NoShed.NO_LOAD,
    }


def test_brokers_that_are_gone_or_about_to_end_are_left_out() -> None:
    view = cluster({"a": [0.3, 0.3, 0.3], "b": [0.1], "gone": []})
    verdict = shed(replace(view, brokers=["a", "b"]), ShedState(), AT_ONCE)
    assert {one.destination for one in verdict.moves} == {"b"}


@pytest.mark.parametrize(
    ("loads", "label"),
    [
        ({}, NoShed.NO_LOAD),
        ({"a": NOW}, NoShed.NO_LOAD),
        ({"a": NOW - HOUR, "b": NOW - HOUR}, NoShed.OUTDATED),
    ],
)
def test_with_fewer_than_two_loads_there_is_nothing_to_balance(loads: dict[str, int], label: NoShed) -> None:
    view = cluster({"a": [0.9, 0.5], "b": []})
    reports = {one: broker_load(0.9, at=at) for one, at in loads.items()}
    verdict = shed(replace(view, loads=reports), ShedState(hits=2), AT_ONCE)
    assert (verdict.moves, verdict.label, verdict.state.hits) == ((), label, 2)
    alone = shed(cluster({"a": [0.9, 0.5]}), ShedState(), AT_ONCE)
    assert alone.label is NoShed.NO_BROKERS


def test_a_broker_without_a_report_of_its_bundles_gives_none() -> None:
    view = cluster({"a": [0.3, 0.3, 0.3], "b": []})
    for tops in ({}, {"a": replace(view.tops["a"], measured_ms=NOW - HOUR)}, {"a": TopBundles(NOW)}):
        verdict = shed(replace(view, tops=tops), ShedState(), AT_ONCE)
        assert (verdict.label, why(verdict)) == (NoShed.NO_BUNDLES, {"a": NoShed.NO_LOAD})


def test_bundles_that_are_owned_elsewhere_by_now_or_in_flight_stay() -> None:
    view = cluster({"a": [0.4, 0.3, 0.2], "b": []})
    owners = {name(0): "b", name(2): "a"}
    verdict = shed(replace(view, owners=owners), ShedState(), AT_ONCE)
    assert moved_numbers(verdict) == [(2, "a", "b")]
    assert [why(verdict)[name(at)] for at in (0, 1)] == [NoShed.NOT_OWNED] * 2


@pytest.mark.parametrize("space", ["pulsar/system", "acme/still"])
def test_bundles_of_some_namespaces_are_never_shed(space: str) -> None:
    settings = replace(AT_ONCE, unshed_namespaces=frozenset({"acme/still"}))
    verdict = shed(cluster({"a": [0.3, 0.3, 0.3], "b": []}, space=space), ShedState(), settings)
    assert verdict.moves == ()
    assert set(why(verdict).values()) == {NoShed.EXCLUDED}


def test_a_full_broker_gets_nothing() -> None:
    view = cluster({"a": [0.3, 0.3, 0.3], "b": [], "c": [0.1]})
    full = broker_load(0.0, topics=50_000)
    verdict = shed(replace(view, loads={**view.loads, "b": full}), ShedState(), AT_ONCE)
    assert {one.destination for one in verdict.moves} == {"c"}
    only = shed(
        replace(view, loads={"a": view.loads["a"], "b": full}, brokers=["a", "b"]), ShedState(), AT_ONCE
    )
    assert set(why(only).values()) == {NoShed.FULL}


# -- policies

ALLOWED = replace(AT_ONCE, sheds_bundles_with_policies=True)


def isolated(*brokers: str, namespaces: str = "acme/sales", primary: str = "b") -> OwnerRules:
    policy = IsolationPolicy((namespaces,), (primary,), available_min=0)
    return owner_rules(
        brokers, {"own": policy}, {}, {}, lambda pattern, text: re.fullmatch(pattern, text) is not None
    )


def test_bundles_with_policies_are_not_shed_unless_allowed() -> None:
    view = cluster({"a": [0.3, 0.3, 0.3], "b": []}, rules=isolated("a", "b"))
    verdict = shed(view, ShedState(), AT_ONCE)
    assert verdict.moves == ()
    assert set(why(verdict).values()) == {NoShed.POLICIES}
    assert {one.destination for one in shed(view, ShedState(), ALLOWED).moves} == {"b"}


def test_a_bundle_with_a_policy_goes_to_its_brokers_only() -> None:
    view = cluster({"a": [0.3, 0.3, 0.3], "b": [0.2], "c": []}, rules=isolated("a", "b", "c"))
    verdict = shed(view, ShedState(), ALLOWED)
    assert {one.destination for one in verdict.moves} == {"b"}


def test_an_idle_isolated_broker_does_not_stop_shedding_among_the_others() -> None:
    rules = isolated("a", "b", "c", namespaces="zoo/.*", primary="c")
    verdict = shed(cluster({"a": [0.3, 0.3, 0.3], "b": [0.1], "c": []}, rules=rules), ShedState(), AT_ONCE)
    assert {one.destination for one in verdict.moves} == {"b"}
    nowhere = isolated("a", "b", namespaces="zoo/.*", primary="b")
    stuck = shed(cluster({"a": [0.3, 0.3, 0.3], "b": []}, rules=nowhere), ShedState(), AT_ONCE)
    assert why(stuck) == dict.fromkeys([name(0), name(1), name(2)], NoShed.POLICIES)


def test_a_destination_that_policies_leave_is_not_made_more_loaded_than_the_source() -> None:
    rules = isolated("a", "b", "c", namespaces="zoo/.*", primary="c")
    view = cluster({"a": [0.3, 0.3, 0.3], "b": [0.4], "c": []}, rules=rules)
    assert shed(view, ShedState(), AT_ONCE).moves == ()


def test_no_broker_above_the_mean_gets_a_bundle_though_policies_leave_no_other() -> None:
    rules = isolated("a", "b", "c", namespaces="zoo/.*", primary="c")
    view = cluster({"a": [0.1] * 10, "b": [0.1] * 7, "c": []}, rules=rules)
    assert shed(view, ShedState(), AT_ONCE).moves == ()


def test_bundles_of_a_group_are_not_gathered_on_one_destination() -> None:
    rules = owner_rules("abcd", {}, {"acme/sales": "apart"}, {}, lambda pattern, text: False)
    view = cluster({"a": [0.2] * 5, "b": [], "c": [], "d": [0.1]}, rules=rules)
    verdict = shed(view, ShedState(), ALLOWED)
    # A bundle of the group is on d already.
    assert [one.destination for one in verdict.moves] == ["b", "c", "d"]


def test_the_count_of_a_group_falls_where_a_bundle_left() -> None:
    domains = {"a": "d1", "b": "d1", "c": "d2"}
    rules = owner_rules("abc", {}, {"acme/sales": "apart"}, domains, lambda pattern, text: False)
    view = cluster({"a": [0.3, 0.3, 0.3], "b": [], "c": []}, rules=rules)
    # The first goes to the other domain; then both domains have as many, and b has none.
    assert moved_numbers(shed(view, ShedState(), ALLOWED)) == [(0, "a", "c"), (1, "a", "b")]


@pytest.mark.parametrize("bound", ["a", "b"])
def test_a_swap_honours_policies_in_both_directions(bound: str) -> None:
    spaces = {"a": "acme/sales", "b": "acme/sales", bound: "zoo/cats"}
    bundles = {"a": [0.5, 0.4], "b": [0.1, 0.1]}
    # The namespace of one broker's bundles is bound to it, that of the other's may be on both.
    policies = {
        "own": IsolationPolicy(("zoo/.*",), (bound,)),
        "both": IsolationPolicy(("acme/.*",), ("a|b",)),
    }
    rules = owner_rules("ab", policies, {}, {}, lambda pattern, text: re.fullmatch(pattern, text) is not None)
    assert shed(cluster(bundles, space=spaces), ShedState(), ALLOWED).moves
    assert shed(cluster(bundles, space=spaces, rules=rules), ShedState(), ALLOWED).moves == ()


# -- every verdict

brokers = st.sampled_from([f"b{at}" for at in range(8)])
parts = st.lists(st.floats(0.001, 0.6), max_size=8)
clusters = st.dictionaries(brokers, parts, min_size=2, max_size=8).map(cluster)
recent = st.dictionaries(
    st.integers(0, 20).map(name), st.builds(LastMove, st.integers(NOW - 2 * HOUR, NOW), brokers), max_size=6
).map(lambda moves: ShedState(moves=moves))
kinds = st.sampled_from(
    [AT_ONCE, replace(AT_ONCE, load_std_target=0.05), replace(AT_ONCE, shedding_brokers_max=8)]
)


def loads_after(view: ClusterLoad, moves: Sequence[BundleMove]) -> dict[str, float]:
    loads = {one: load.load for one, load in view.loads.items()}
    for move in moves:
        assert move.destination is not None
        loads[move.source] -= move.load
        loads[move.destination] += move.load
    return loads


def deviation(loads: Mapping[str, float]) -> float:
    mean = math.fsum(loads.values()) / len(loads)
    return math.sqrt(math.fsum((one - mean) ** 2 for one in loads.values()) / len(loads))


@given(clusters, recent, kinds)
def test_moves_make_the_loads_more_alike_and_lift_no_broker_too_high(
    view: ClusterLoad, state: ShedState, settings: BalanceSettings
) -> None:
    verdict = shed(view, state, settings)
    before = loads_after(view, ())
    after = loads_after(view, verdict.moves)
    assert verdict.std == pytest.approx(deviation(before), abs=1e-6)
    assert verdict.std_after == pytest.approx(deviation(after), abs=1e-6)
    assert (verdict.label is None) == bool(verdict.moves)
    if verdict.moves:
        assert verdict.std_after < verdict.std
        middle = (max(before.values()) + verdict.mean) / 2
        for one in {move.destination for move in verdict.moves}:
            assert one is not None
            assert after[one] <= max(middle, before[one]) + 1e-9


@given(clusters, recent, kinds)
def test_a_bundle_moves_once_from_its_owner_to_another_broker_and_not_soon_again(
    view: ClusterLoad, state: ShedState, settings: BalanceSettings
) -> None:
    verdict = shed(view, state, settings)
    assert len({one.bundle for one in verdict.moves}) == len(verdict.moves)
    for move in verdict.moves:
        assert view.owners[move.bundle] == move.source != move.destination
        assert move.because
        assert move.load == pytest.approx(
            bundle_loads(view.loads[move.source], view.tops[move.source].bundles)[move.bundle]
        )
        last = state.moves.get(move.bundle)
        assert last is None or NOW - last.at_ms >= settings.shedding_grace_ms
        if last is not None and NOW - last.at_ms < 2 * settings.shedding_grace_ms:
            assert move.destination != last.source
    givers = {one.source for one in verdict.moves if not one.is_swap}
    getters = {one.destination for one in verdict.moves if not one.is_swap}
    assert len(givers) <= settings.shedding_brokers_max
    assert not givers & getters


@given(clusters, recent, kinds)
def test_the_same_facts_give_the_same_verdict_in_any_order(
    view: ClusterLoad, state: ShedState, settings: BalanceSettings
) -> None:
    other = replace(
        view,
        brokers=list(reversed(list(view.brokers))),
        loads=dict(reversed(list(view.loads.items()))),
        owners=dict(reversed(list(view.owners.items()))),
        tops={one: replace(top, bundles=top.bundles[::-1]) for one, top in reversed(list(view.tops.items()))},
    )
    one, two = shed(view, state, settings), shed(other, state, settings)
    assert (one.moves, one.because, one.label, one.state) == (two.moves, two.because, two.label, two.state)
    assert set(one.not_moved) == set(two.not_moved)
