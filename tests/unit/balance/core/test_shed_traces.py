"""Clusters over minutes and hours of simulated time: their loads become alike, and no bundle goes to and fro."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.balance.core.settings import BalanceSettings
from anabranch.balance.core.shed_verdict import NoShed, ShedReason
from unit.balance.core.facts import MINUTE, NOW
from unit.balance.core.fleet import Fleet, constant, placed

DEFAULT = BalanceSettings()
TARGET = DEFAULT.load_std_target
# A decision each minute: four hits and three minutes in which the loads settle leave room for two rounds of moves.
CYCLES = 10

Loads = list[list[float]]


def each_round_helps(fleet: Fleet) -> None:
    """Every round of moves lowers the deviation, and lifts no destination above the middle between the highest load
    and the mean."""
    for seen, verdict in zip(fleet.seen, fleet.verdicts, strict=True):
        if not verdict.moves:
            continue
        assert verdict.std_after < verdict.std
        after = dict(seen)
        for move in verdict.moves:
            after[move.source] -= move.load
            after[str(move.destination)] += move.load
        middle = (max(seen.values()) + verdict.mean) / 2
        assert all(after[broker] <= middle + 1e-9 for broker in seen if after[broker] > seen[broker])


# -- becoming alike


def test_a_skewed_load_becomes_alike_within_ten_cycles_and_its_reverse_too() -> None:
    owners, heavy = placed([[0.09] * 10, [0.04] * 6, [0.01] * 6, [0.005] * 8])
    # What the last broker has becomes heavy, and everything else light.
    reverse = {bundle: 0.12 if load == 0.005 else 0.01 for bundle, load in heavy.items()}
    turn = NOW + 30 * MINUTE
    fleet = Fleet(owners, lambda now: heavy if now <= turn else reverse)
    assert fleet.true_std() > TARGET
    fleet.run(CYCLES)
    assert fleet.stds[-1] <= TARGET
    fleet.run(30 - CYCLES)
    assert fleet.stds[-1] <= TARGET
    fleet.run(1)
    assert fleet.stds[-1] > TARGET
    fleet.run(CYCLES - 1)
    assert fleet.stds[-1] <= TARGET
    assert fleet.shortest_stay_ms() >= DEFAULT.shedding_delay_ms
    each_round_helps(fleet)


def test_the_reverse_of_a_load_that_was_balanced_is_balanced_again() -> None:
    """What moved away from the first broker becomes idle, and what it kept becomes heavy: others must take that."""
    owners, loads = placed([[0.05] * 20, [0.02] * 2, [0.02] * 2, [0.02] * 2])
    fleet = Fleet(owners, constant(loads)).run(CYCLES)
    assert fleet.stds[-1] <= TARGET
    before = len(fleet.made)
    gone = {one.move.bundle for one in fleet.made}
    heavy = {bundle: 0.005 if bundle in gone else 2 * loads[bundle] for bundle in loads}
    fleet.demand = constant(heavy)
    assert fleet.true_std() > TARGET
    fleet.run(CYCLES)
    assert fleet.stds[-1] <= TARGET
    assert not {one.move.bundle for one in fleet.made[before:]} & gone
    assert fleet.shortest_stay_ms() >= DEFAULT.shedding_grace_ms


parts = st.lists(st.floats(0.01, 0.15), min_size=2, max_size=10)
skewed = st.lists(parts, min_size=2, max_size=4).flatmap(
    lambda full: st.lists(st.just([0.01]), min_size=1, max_size=3).map(lambda idle: full + idle)
)


@given(skewed)
@settings(max_examples=40, deadline=None)
def test_a_divisible_load_becomes_alike_within_ten_cycles(loads: Loads) -> None:
    owners, found = placed(loads)
    fleet = Fleet(owners, constant(found)).run(CYCLES)
    assert fleet.stds[-1] <= TARGET
    assert fleet.returns() == []
    each_round_helps(fleet)


def test_sixteen_brokers_with_ten_thousand_bundles_become_alike_within_ten_cycles() -> None:
    """Six of the brokers have nearly all of a load of which few bundles are heavy."""
    chance = random.Random(3)
    weights = [chance.paretovariate(1.1) for _ in range(10_000)]
    total = sum(weights)
    loads: Loads = [[] for _ in range(16)]
    for weight in weights:
        (at,) = chance.choices(range(16), [8 if one < 6 else 1 for one in range(16)])
        loads[at].append(min(8 * weight / total, 0.3))
    owners, found = placed(loads)
    fleet = Fleet(owners, constant(found))
    assert fleet.true_std() > 0.4
    fleet.run(CYCLES)
    assert fleet.stds[-1] <= TARGET
    assert len(fleet.made) <= 2 * DEFAULT.shedding_brokers_max * DEFAULT.top_bundles_max
    assert fleet.returns() == []


def test_a_broker_that_joins_gets_its_part() -> None:
    owners, loads = placed([[0.1] * 6, [0.1] * 6, [0.1] * 6])
    fleet = Fleet(owners, constant(loads)).run(5)
    assert fleet.made == []
    fleet.brokers = (*fleet.brokers, "new")
    fleet.run(CYCLES)
    assert fleet.true_loads()["new"] >= 0.2
    assert {one.move.destination for one in fleet.made} == {"new"}


# -- leaving alone


@given(skewed, st.integers(0, 2**32))
@settings(max_examples=10, deadline=None)
def test_a_steady_load_comes_to_rest_and_no_bundle_comes_back(loads: Loads, seed: int) -> None:
    """For hours: each move lowers the deviation, so they come to an end."""
    chance = random.Random(seed)
    loads = [[*one, *(chance.uniform(0.2, 0.6) for _ in range(chance.randrange(2)))] for one in loads]
    owners, found = placed(loads)
    fleet = Fleet(owners, constant(found)).run(180)
    assert all(one.at_ms <= NOW + 120 * MINUTE for one in fleet.made)
    assert fleet.returns() == []
    each_round_helps(fleet)


def noisy(loads: Mapping[str, float], seed: int, share: float) -> Callable[[int], Mapping[str, float]]:
    """Each bundle's load, off by up to that share, another way at each moment."""

    def demand(now_ms: int) -> Mapping[str, float]:
        chance = random.Random(seed ^ now_ms)
        return {bundle: load * chance.uniform(1 - share, 1 + share) for bundle, load in loads.items()}

    return demand


@given(st.integers(0, 2**32))
@settings(max_examples=5, deadline=None)
def test_noise_moves_nothing_once_the_loads_are_alike(seed: int) -> None:
    owners, loads = placed([[0.1] * 8, [0.05] * 4, [0.02] * 4, [0.02] * 2])
    fleet = Fleet(owners, noisy(loads, seed, 0.5)).run(CYCLES)
    moves = len(fleet.made)
    assert fleet.stds[-1] <= TARGET
    fleet.run(60)
    assert len(fleet.made) == moves
    assert {one.label for one in fleet.verdicts[-50:]} == {NoShed.BALANCED}


def test_a_peak_shorter_than_the_hits_moves_nothing() -> None:
    owners, loads = placed([[0.3] * 3, [0.3], [0.3]])
    peak = {bundle: load if owners[bundle] == "b00" else 0.01 for bundle, load in loads.items()}

    def demand(now_ms: int) -> Mapping[str, float]:
        return peak if (now_ms - NOW) // MINUTE % 15 in (5, 6) else dict.fromkeys(loads, 0.1)

    assert Fleet(owners, demand).run(120).made == []


@given(st.integers(5, 45), st.integers(0, 2**32))
@settings(max_examples=10, deadline=None)
def test_a_load_that_swings_moves_no_bundle_soon_again_nor_to_and_fro(minutes: int, seed: int) -> None:
    """Which bundles are heavy changes again and again: the worst there is for a balancer that follows."""
    chance = random.Random(seed)
    owners, loads = placed([[0.05] * 8, [0.05] * 8, [0.05] * 8])
    phases = [{bundle: chance.choice((0.01, 0.02, 0.25)) for bundle in loads} for _ in range(6)]

    def demand(now_ms: int) -> Mapping[str, float]:
        return phases[(now_ms - NOW) // (minutes * MINUTE) % len(phases)]

    fleet = Fleet(owners, demand).run(180)
    assert fleet.shortest_stay_ms() >= DEFAULT.shedding_grace_ms
    last: dict[str, tuple[int, str]] = {}
    for one in fleet.made:
        bundle = one.move.bundle
        if bundle in last and one.at_ms - last[bundle][0] < 2 * DEFAULT.shedding_grace_ms:
            assert one.move.destination != last[bundle][1]
        last[bundle] = one.at_ms, one.move.source
    each_round_helps(fleet)


def test_a_small_cluster_with_little_to_do_comes_to_rest() -> None:
    """Two topics of one message a second: one bundle goes to an idle broker, and that is all."""
    owners, loads = placed([[0.001, 0.001], [], []])
    fleet = Fleet(owners, constant(loads), brokers=("b00", "b01", "b02")).run(120)
    assert [one.move.reason for one in fleet.made] == [ShedReason.UNDERLOADED]
