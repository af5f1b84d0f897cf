"""Series of several brokers as one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.ui.sums import summed


def test_brokers_that_sample_at_different_times_are_summed_on_one_grid() -> None:
    one = [[1_003, 5.0], [2_003, 6.0], [3_003, 7.0]]
    other = [[1_700, 10.0], [2_700, 20.0], [3_700, 30.0]]
    assert summed([one, other], 1_000, 0, 5_000) == [[2_000, 15.0], [3_000, 26.0], [4_000, 37.0]]


def test_a_point_is_told_once_every_broker_had_the_time_to_sample_it() -> None:
    assert summed([[[1_000, 5.0], [2_000, 5.0]]], 1_000, 0, 2_900) == [[1_000, 5.0]]


def test_a_broker_that_stopped_sampling_counts_no_more_after_a_while() -> None:
    gone = [[1_000, 5.0], [2_000, 5.0]]
    living = [[at, 1.0] for at in range(1_000, 8_000, 1_000)]
    found = {at: value for at, value in summed([gone, living], 1_000, 0, 8_000)}
    assert (found[3_000], found[4_000], found[5_000]) == (6.0, 6.0, 1.0)


def test_a_stretch_without_change_is_its_first_and_last_sample() -> None:
    still = [[1_000, 0.0], [9_000, 0.0], [10_000, 4.0]]
    found = summed([still], 1_000, 0, 11_000)
    assert [value for _, value in found] == [0.0] * 9 + [4.0]


def test_what_the_page_has_is_told_again_only_for_a_few_steps() -> None:
    series = [[at, 1.0] for at in range(0, 60_000, 1_000)]
    found = summed([series], 1_000, 50_000, 60_000)
    assert found[0][0] == 48_000
    assert summed([], 1_000, 0, 60_000) == []


@given(st.lists(st.lists(st.integers(0, 1_000), min_size=3, max_size=20), min_size=1, max_size=4))
def test_nothing_is_counted_twice(brokers: list[list[int]]) -> None:
    series = [[[1_000 * (at + 1), float(value)] for at, value in enumerate(one)] for one in brokers]
    length = min(map(len, series))
    found = summed(series, 1_000, 0, 1_000 * (length + 1))
    assert [value for _, value in found] == [float(sum(one[at] for one in brokers)) for at in range(length)]
