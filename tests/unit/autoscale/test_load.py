"""Load records: their JSON, and which samples are worth writing."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.autoscale.load import IDLE, RATES, Load, UnstampedLoad, describe_rate
from anabranch.autoscale.policy import DEFAULT
from anabranch.autoscale.reporting import should_write
from anabranch.model.scalable import BadRecord

QUARTER = 0.25
rates = st.floats(0, 1e12, allow_nan=False)
loads = st.builds(Load, rates, rates, rates, rates) | st.builds(UnstampedLoad, rates, rates, rates, rates)
# Each rate alone, as (its name in Python, its index).
EACH = [("msg_rate_in", 0), ("bytes_rate_in", 1), ("msg_rate_out", 2), ("bytes_rate_out", 3)]


def is_written(now: float, last: float, name: str = "msg_rate_in") -> bool:
    return should_write(replace(IDLE, **{name: now}), replace(IDLE, **{name: last}), DEFAULT, QUARTER)


# -- JSON


def test_the_record_has_the_four_rates_of_the_specification_as_doubles_and_no_time() -> None:
    record = Load(12000, 64000000, 48000, 256000000).encode()
    assert json.loads(record) == {
        "msgRateIn": 12000.0,
        "bytesRateIn": 64000000.0,
        "msgRateOut": 48000.0,
        "bytesRateOut": 256000000.0,
    }


def test_entries_in_no_single_bucket_are_told_where_there_are_such_and_are_always_news() -> None:
    unstamped = UnstampedLoad()
    assert json.loads(unstamped.encode())["unstamped"] is True
    assert "unstamped" not in json.loads(IDLE.encode())
    assert should_write(unstamped, IDLE, DEFAULT, QUARTER)
    assert should_write(IDLE, unstamped, DEFAULT, QUARTER)
    assert not should_write(unstamped, unstamped, DEFAULT, QUARTER)


@given(loads)
def test_a_load_reads_back_as_it_was_written(load: Load) -> None:
    assert Load.decode(load.encode()) == load


def test_rates_that_are_missing_are_zero_and_further_fields_are_passed_over() -> None:
    assert Load.decode(b'{"msgRateIn": 7, "backlog": 3}') == Load(7.0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"7",
        b"null",
        b'{"msgRateIn": "7"}',
        b'{"msgRateIn": true}',
        b'{"msgRateIn": -1}',
        b'{"bytesRateOut": NaN}',
        b'{"bytesRateOut": Infinity}',
        b'{"msgRateIn": null}',
        b"\xff",
    ],
)
def test_a_record_that_is_no_load_is_refused(data: bytes) -> None:
    with pytest.raises(BadRecord):
        Load.decode(data)


# -- when a sample is written


def test_a_first_sample_is_written_even_when_all_rates_are_zero() -> None:
    assert should_write(IDLE, None, DEFAULT, QUARTER)


@given(loads)
def test_a_steady_segment_writes_once_and_is_silent(load: Load) -> None:
    assert should_write(load, None, DEFAULT, QUARTER)
    assert not should_write(load, load, DEFAULT, QUARTER)


@given(loads)
def test_a_new_owner_that_measures_the_stored_rates_does_not_write_them_again(load: Load) -> None:
    stored = Load.decode(load.encode())
    assert not should_write(load, stored, DEFAULT, QUARTER)


@pytest.mark.parametrize(("name", "at"), EACH)
def test_a_move_of_more_than_a_quarter_of_any_one_rate_is_written(name: str, at: int) -> None:
    # Between the thresholds, where nothing is crossed.
    last = DEFAULT.merge.rates[at] * 2
    assert is_written(last * 1.26, last, name)
    assert is_written(last * 0.74, last, name)
    assert not is_written(last * 1.25, last, name)
    assert not is_written(last * 0.75, last, name)


@pytest.mark.parametrize(("name", "at"), EACH)
def test_a_move_within_a_tenth_of_the_merge_threshold_is_an_idle_topic_wobbling(name: str, at: int) -> None:
    quiet = DEFAULT.merge.rates[at] / 10
    assert not is_written(quiet * 1.5, quiet * 0.5, name)
    assert not is_written(0.0, quiet, name)
    assert is_written(quiet * 1.51, quiet * 0.5, name)


@pytest.mark.parametrize(("name", "at"), EACH)
def test_leaving_zero_is_always_a_change(name: str, at: int) -> None:
    assert is_written(1e-9, 0.0, name)


def test_a_trickle_that_comes_and_goes_is_written_once_and_keeps_the_record_old() -> None:
    stored, writes = IDLE, 0
    for sample in [Load(1.0), IDLE, Load(3.0), IDLE, Load(0.2), Load(90.0), IDLE]:
        if should_write(sample, stored, DEFAULT, QUARTER):
            stored, writes = sample, writes + 1
    assert writes == 1


@pytest.mark.parametrize(("name", "at"), EACH)
def test_crossing_an_effective_threshold_is_written_however_small_the_step(name: str, at: int) -> None:
    for limit in (DEFAULT.split.rates[at], DEFAULT.merge.rates[at]):
        for low, high in ((limit * 0.999, limit * 1.001), (limit * 1.001, limit * 0.999)):
            assert is_written(low, high, name)
    # On a threshold nothing is due, beyond it something is; that too is a crossing.
    assert is_written(DEFAULT.split.rates[at] * 1.001, DEFAULT.split.rates[at], name)
    assert is_written(DEFAULT.merge.rates[at], DEFAULT.merge.rates[at] * 0.999, name)
    assert not is_written(DEFAULT.split.rates[at], DEFAULT.split.rates[at] * 0.999, name)


def test_the_thresholds_in_force_are_those_of_the_topic_s_own_policy() -> None:
    own = replace(DEFAULT, split=replace(DEFAULT.split, msg_rate_in=2_000.0))
    assert should_write(Load(2_001.0), Load(1_999.0), own, QUARTER)
    assert not should_write(Load(2_001.0), Load(1_999.0), DEFAULT, QUARTER)


@given(loads, loads, st.floats(0.01, 1.0))
def test_what_decide_would_see_differently_is_never_kept_from_it(
    now: Load, last: Load, change: float
) -> None:
    if not should_write(now, last, DEFAULT, change):
        assert now.is_over_any(DEFAULT.split) == last.is_over_any(DEFAULT.split)
        assert now.is_under_all(DEFAULT.merge) == last.is_under_all(DEFAULT.merge)


# -- heat


def test_heat_is_a_ratio_to_its_own_limit_and_the_largest_counts() -> None:
    load = Load(5_000, 1e6, 60_000, 1e6)
    assert load.heat(DEFAULT.split) == pytest.approx(1.2)
    assert RATES[load.hottest(DEFAULT.split)] == "msgRateOut"


@pytest.mark.parametrize(
    ("at", "rate", "text"),
    [
        (0, 12000.4, "msgRateIn 12,000/s"),
        (0, 0.5, "msgRateIn 0.5/s"),
        (1, 64e6, "bytesRateIn 64.0 MB/s"),
        (2, 0, "msgRateOut 0/s"),
        (3, 2.5e9, "bytesRateOut 2.5 GB/s"),
        (3, 1500, "bytesRateOut 1.5 kB/s"),
        (3, 20, "bytesRateOut 20 B/s"),
    ],
)
def test_rates_are_told_with_their_unit(at: int, rate: float, text: str) -> None:
    assert describe_rate(at, rate) == text
