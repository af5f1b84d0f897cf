"""Samples for the page, and rates from counters: pure parts of the load reporter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.autoscale.load import IDLE, Load
from anabranch.broker.scalable.load.rates import NOTHING, Rates
from anabranch.broker.scalable.load.recent import LoadHistory
from anabranch.model.names import TopicName
from anabranch.model.segments import SegmentId

TOPIC = TopicName.parse("topic://public/default/orders")
OTHER = TopicName.parse("topic://public/default/payments")
ZERO, ONE = SegmentId(0), SegmentId(1)
BUSY = Load(msg_rate_in=5.0)


def test_samples_come_back_by_segment_and_from_a_time_on() -> None:
    history = LoadHistory()
    for at in (10, 20, 30):
        history.add(TOPIC, ONE, at, BUSY)
        history.add(TOPIC, ZERO, at, Load(float(at)))
    history.add(OTHER, ZERO, 30, BUSY)
    found = history.since(TOPIC, 20)
    assert list(found) == [ZERO, ONE]
    assert [(s.at_ms, s.load.msg_rate_in) for s in found[ZERO]] == [(20, 20.0), (30, 30.0)]
    assert history.since(TOPIC, 31) == {}
    assert history.latest(TOPIC)[ONE].at_ms == 30


def test_a_stretch_of_nothing_is_two_samples() -> None:
    history = LoadHistory()
    history.add(TOPIC, ZERO, 0, BUSY)
    for at in range(10, 1000, 10):
        history.add(TOPIC, ZERO, at, IDLE)
    history.add(TOPIC, ZERO, 1000, BUSY)
    assert [s.at_ms for s in history.since(TOPIC, 0)[ZERO]] == [0, 10, 990, 1000]
    assert len(history) == 4


def rounds(flows: list[bool], *, is_lazy: bool, kept_ms: int = 10_000) -> LoadHistory:
    """A sample in every round, or none while the segment is at rest."""
    history = LoadHistory(kept_ms=kept_ms)
    is_resting = False
    for number, flows_now in enumerate(flows, 1):
        at_ms = number * 10
        history.begin_round(at_ms)
        if is_resting and not flows_now:
            continue
        history.wake(TOPIC, ZERO)
        history.add(TOPIC, ZERO, at_ms, BUSY if flows_now else IDLE)
        is_resting = is_lazy and not flows_now and number > 1 and not flows[number - 2]
        if is_resting:
            history.rest(TOPIC, ZERO)
    return history


@given(st.lists(st.booleans(), max_size=40))
def test_rest_reads_as_if_it_had_been_sampled(flows: list[bool]) -> None:
    sampled, lazy = rounds(flows, is_lazy=False), rounds(flows, is_lazy=True)
    assert lazy.since(TOPIC, 0) == sampled.since(TOPIC, 0)
    assert lazy.latest(TOPIC) == sampled.latest(TOPIC)
    assert len(lazy) == len(sampled)


def test_a_segment_at_rest_outlives_the_hour_and_one_that_left_does_not() -> None:
    flows = [True, *([False] * 30)]
    history = rounds(flows, is_lazy=True, kept_ms=100)
    history.expire(310)
    assert [s.at_ms for s in history.since(TOPIC, 0)[ZERO]] == [210, 310]
    history.begin_round(320)
    history.wake(TOPIC, ZERO)
    history.expire(500)
    assert history.since(TOPIC, 0) == {}


def test_a_segment_may_rest_from_its_first_sample_on() -> None:
    history = LoadHistory()
    history.begin_round(10)
    history.add(TOPIC, ZERO, 10, IDLE)
    history.rest(TOPIC, ZERO)
    history.begin_round(20)
    assert [s.at_ms for s in history.since(TOPIC, 0)[ZERO]] == [10, 20]


def test_an_hour_is_kept_also_of_segments_that_are_gone() -> None:
    history = LoadHistory(kept_ms=100)
    history.add(TOPIC, ZERO, 0, BUSY)
    history.add(TOPIC, ONE, 0, IDLE)
    history.add(TOPIC, ONE, 90, IDLE)
    history.expire(150)
    assert [s.at_ms for s in history.since(TOPIC, 0)[ONE]] == [50, 90]
    assert ZERO not in history.since(TOPIC, 0)
    history.expire(500)
    assert history.since(TOPIC, 0) == {}
    assert len(history) == 0


def test_the_number_of_samples_is_bounded_and_the_oldest_go_first() -> None:
    history = LoadHistory(kept_ms=1_000_000, samples_max=100)
    for at in range(1000):
        history.add(TOPIC, SegmentId(at % 3), at * 1000, BUSY)
        assert len(history) <= 100
    assert history.latest(TOPIC)[ZERO].at_ms == 999_000


def test_rates_are_averages_over_the_window_once_there_is_one() -> None:
    rates = Rates(60.0, since=0.0)
    for step in range(1, 13):
        average, lately = rates.look(step * 10.0, (step * 100, step * 1000, 0, 0))
    assert average == lately == Load(10.0, 100.0)
    for step in range(13, 16):
        average, lately = rates.look(step * 10.0, (1200, 12_000, 0, 0))
    assert (average.msg_rate_in, lately) == (5.0, IDLE)


def test_at_first_the_average_is_over_half_the_window_at_least() -> None:
    rates = Rates(60.0, since=0.0)
    assert rates.look(10.0, (300, 0, 0, 0))[0].msg_rate_in == 10.0
    assert rates.look(40.0, (400, 0, 0, 0))[0].msg_rate_in == 10.0


def test_what_was_stored_stands_for_the_time_before() -> None:
    rates = Rates(60.0, since=0.0, seed=Load(10.0))
    assert rates.look(10.0, (100, 0, 0, 0))[0].msg_rate_in == pytest.approx(10.0)
    assert rates.look(30.0, (100, 0, 0, 0))[0].msg_rate_in == pytest.approx(400 / 60)
    assert rates.look(60.0, (100, 0, 0, 0))[0].msg_rate_in == pytest.approx(100 / 60)


def test_rates_at_rest_stay_so_until_something_moves() -> None:
    rates = Rates(60.0, since=0.0)
    assert rates.is_still(NOTHING)
    rates.rest(500.0)
    assert not rates.is_still((1, 0, 0, 0))
    assert rates.look(510.0, (300, 0, 0, 0))[0].msg_rate_in == 5.0
    for step in range(52, 59):
        average, _ = rates.look(step * 10.0, (300, 0, 0, 0))
    assert average is IDLE
    assert rates.is_still((300, 0, 0, 0))
