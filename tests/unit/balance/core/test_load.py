"""Loads: how they are smoothed, when they are reported, how long they count, which bundles are the heaviest."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.balance.core.load import (
    BrokerLoad,
    BundleLoad,
    bundle_loads,
    is_outdated,
    measured,
    outdated,
    report_due,
    smoothed,
    top_bundles,
    weighted,
)
from anabranch.balance.core.settings import BalanceSettings
from unit.balance.core.facts import MINUTE, NOW, SECOND, broker_load, bundle_load, name

DEFAULT = BalanceSettings()
shares = st.floats(0, 2)


# -- one number


def test_the_load_is_the_largest_resource_by_its_weight() -> None:
    load = BrokerLoad(measured_ms=NOW, cpu=0.3, memory=0.9, direct_memory=0.8, bandwidth_in=0.4, disk=0.35)
    assert weighted(load, DEFAULT) == 0.4
    assert weighted(load, replace(DEFAULT, memory_weight=0.5)) == 0.45
    assert weighted(load, replace(DEFAULT, bandwidth_in_weight=0.0)) == 0.35
    assert weighted(load, replace(DEFAULT, direct_memory_weight=1.0, cpu_weight=3.0)) == pytest.approx(0.9)


def test_nine_tenths_of_the_average_are_history() -> None:
    first = measured(BrokerLoad(measured_ms=NOW, cpu=0.5, throughput_in=100.0), None, DEFAULT)
    assert (first.load, first.throughput) == (0.5, 100.0)
    second = measured(BrokerLoad(measured_ms=NOW, cpu=1.0, throughput_out=200.0), first, DEFAULT)
    assert second.load == pytest.approx(0.55)
    assert second.throughput == pytest.approx(110.0)


def test_the_average_starts_again_where_there_is_no_sample_before() -> None:
    busy = broker_load(0.9)
    assert measured(BrokerLoad(measured_ms=NOW, cpu=0.1), None, DEFAULT).load == 0.1
    assert measured(BrokerLoad(measured_ms=NOW, cpu=0.1), busy, DEFAULT).load == pytest.approx(0.82)


@given(st.lists(shares, min_size=1, max_size=50), st.floats(0, 0.99))
def test_an_average_lies_between_the_least_and_the_largest_sample(
    samples: list[float], history: float
) -> None:
    average = samples[0]
    for sample in samples[1:]:
        average = smoothed(average, sample, history)
    assert min(samples) - 1e-9 <= average <= max(samples) + 1e-9


@given(shares, shares)
def test_an_average_comes_as_close_to_a_steady_load_as_one_waits(before: float, steady: float) -> None:
    average = before
    for _ in range(36):  # 180 s of samples, 5 s apart.
        average = smoothed(average, steady, 0.9)
    assert abs(average - steady) <= 0.03 * abs(before - steady) + 1e-9


# -- reports


def later(load: BrokerLoad, ms: int = 10 * SECOND) -> BrokerLoad:
    return replace(load, measured_ms=load.measured_ms + ms)


def test_the_first_load_is_reported() -> None:
    assert report_due(broker_load(0.1), None, DEFAULT).is_due


def test_a_change_of_more_than_ten_percent_is_reported_and_one_of_ten_is_not() -> None:
    last = BrokerLoad(measured_ms=NOW, msg_rate_in=50.0, msg_rate_out=50.0)
    assert not report_due(later(replace(last, msg_rate_out=60.0)), last, DEFAULT).is_due
    due = report_due(later(replace(last, msg_rate_out=61.0)), last, DEFAULT)
    assert due.is_due
    assert due.because == "the message rate changed by 11 %"


def test_a_load_changes_in_points_and_the_rates_relative_to_themselves() -> None:
    last = BrokerLoad(measured_ms=NOW, cpu=0.05, throughput_in=1e6, bundles=10)
    assert not report_due(later(replace(last, cpu=0.14)), last, DEFAULT).is_due
    assert report_due(later(replace(last, cpu=0.16)), last, DEFAULT).because == "the load changed by 11 %"
    assert report_due(later(replace(last, throughput_in=0.8e6)), last, DEFAULT).is_due
    assert report_due(later(replace(last, bundles=12)), last, DEFAULT).is_due


def test_a_resource_without_weight_changes_nothing() -> None:
    last = BrokerLoad(measured_ms=NOW, cpu=0.5, memory=0.1)
    assert not report_due(later(replace(last, memory=0.9)), last, DEFAULT).is_due


def test_traffic_that_begins_is_reported() -> None:
    last = BrokerLoad(measured_ms=NOW)
    due = report_due(later(replace(last, msg_rate_in=0.1)), last, DEFAULT)
    assert due.is_due
    assert due.because == "the message rate changed from zero"


def test_an_unchanged_load_is_reported_after_a_minute() -> None:
    last = broker_load(0.4)
    assert not report_due(later(last, MINUTE - 1), last, DEFAULT).is_due
    assert report_due(later(last, MINUTE), last, DEFAULT).is_due


def test_no_change_is_reported_before_the_shortest_interval() -> None:
    last = broker_load(0.1)
    changed = replace(broker_load(0.9), measured_ms=NOW + 4_999)
    assert not report_due(changed, last, DEFAULT).is_due
    assert report_due(replace(changed, measured_ms=NOW + 5_000), last, DEFAULT).is_due


# -- time to live


def test_a_report_counts_for_its_time_to_live_and_no_longer() -> None:
    assert not is_outdated(NOW, NOW + 1_800_000, DEFAULT)
    assert is_outdated(NOW, NOW + 1_800_001, DEFAULT)


def test_keys_that_are_too_old_are_listed_in_order() -> None:
    reports = {
        name: broker_load(0.1, at=at) for name, at in (("c", NOW), ("b", NOW - 10**7), ("a", NOW - 10**7))
    }
    assert outdated(reports, NOW, DEFAULT) == ["a", "b"]


# -- top bundles


def listed(*bundles: BundleLoad, settings: BalanceSettings = DEFAULT) -> list[str]:
    top = top_bundles(bundles, NOW, lambda namespace: namespace == "acme/own", settings)
    assert top.measured_ms == NOW
    return [one.bundle for one in top.bundles]


def test_the_heaviest_are_reported_the_lightest_of_them_first() -> None:
    bundles = [bundle_load(name(number), load) for number, load in enumerate((0.3, 0.1, 0.5, 0.2))]
    few = replace(DEFAULT, top_bundles_max=3)
    assert listed(*bundles, settings=few) == [name(3), name(0), name(2)]


def test_bytes_in_come_before_bytes_out_before_messages_before_topics_and_sessions() -> None:
    bundles = [
        BundleLoad(bundle=name(1), msg_rate_in=1.0, topics=600, sessions=600),
        BundleLoad(bundle=name(2), msg_rate_out=1_000.0),
        BundleLoad(bundle=name(3), throughput_out=1e7),
        BundleLoad(bundle=name(4), throughput_in=2e5),
        BundleLoad(bundle=name(5), msg_rate_in=1.0),
    ]
    assert listed(*bundles) == [name(5), name(1), name(2), name(3), name(4)]


def test_small_differences_do_not_change_the_order() -> None:
    busy = BundleLoad(bundle=name(1), throughput_in=1_040_000.0)
    same = BundleLoad(bundle=name(2), throughput_in=960_000.0)
    more = BundleLoad(bundle=name(0), throughput_in=1_060_000.0)
    # Both are 1.0 MB/s to Pulsar's order, so that the name decides.
    assert listed(busy, same, more) == [name(1), name(2), name(0)]


def test_bundles_that_must_not_move_are_left_out() -> None:
    idle = BundleLoad(bundle=name(1), topics=5_000)
    system = bundle_load(name(2, "pulsar/system"), 0.9)
    bound = bundle_load(name(3, "acme/own"), 0.8)
    unshed = bundle_load(name(4, "acme/still"), 0.7)
    free = bundle_load(name(5), 0.1)
    settings = replace(DEFAULT, unshed_namespaces=frozenset({"acme/still"}))
    assert listed(idle, system, bound, unshed, free, settings=settings) == [name(5)]
    settings = replace(settings, sheds_bundles_with_policies=True)
    assert listed(idle, system, bound, unshed, free, settings=settings) == [name(5), name(3, "acme/own")]


rates = st.floats(0, 1e8)
bundle_lists = st.lists(
    st.builds(
        lambda number, i, o, m: BundleLoad(
            bundle=name(number), throughput_in=i, throughput_out=o, msg_rate_in=m
        ),
        st.integers(0, 4_095),
        rates,
        rates,
        rates,
    ),
    unique_by=lambda one: one.bundle,
    max_size=40,
)


@given(bundle_lists, st.randoms())
def test_the_same_bundles_are_reported_whatever_their_order(
    bundles: list[BundleLoad], chance: Random
) -> None:
    shuffled = list(bundles)
    chance.shuffle(shuffled)
    assert listed(*bundles) == listed(*shuffled)


# -- estimates


def test_a_bundles_part_is_the_mean_of_its_shares_of_messages_and_bytes() -> None:
    load = BrokerLoad(measured_ms=NOW, load=0.8, msg_rate_in=1_000.0, throughput_in=1e6)
    small = BundleLoad(bundle=name(0), msg_rate_in=900.0, throughput_in=1e5)
    large = BundleLoad(bundle=name(1), msg_rate_in=100.0, throughput_in=9e5)
    assert bundle_loads(load, [small, large]) == {name(0): pytest.approx(0.4), name(1): pytest.approx(0.4)}
    # The broker has other bundles, too.
    busier = replace(load, msg_rate_in=2_000.0, throughput_in=4e6)
    assert bundle_loads(busier, [small]) == {name(0): pytest.approx(0.8 * (0.45 + 0.025) / 2)}


def test_a_part_without_bytes_counts_by_its_messages_alone() -> None:
    load = BrokerLoad(measured_ms=NOW, load=0.8, msg_rate_in=1_000.0)
    assert bundle_loads(load, [BundleLoad(bundle=name(0), msg_rate_in=500.0)]) == {
        name(0): pytest.approx(0.4)
    }


def test_bundles_of_an_idle_broker_are_idle() -> None:
    assert bundle_loads(BrokerLoad(measured_ms=NOW, load=0.1), [BundleLoad(bundle=name(0))]) == {name(0): 0.0}


@given(st.builds(broker_load, shares, throughput=rates), bundle_lists)
def test_bundles_together_are_never_heavier_than_their_broker(
    load: BrokerLoad, bundles: list[BundleLoad]
) -> None:
    parts = bundle_loads(load, bundles)
    assert set(parts) == {one.bundle for one in bundles}
    assert all(part >= 0 for part in parts.values())
    assert math.fsum(parts.values()) <= load.load * (1 + 1e-9)
