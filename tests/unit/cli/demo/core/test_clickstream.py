"""The demo's events: as many as asked for, the same by seed, rising and falling, skewed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.cli.demo.core.clickstream import PAGES, Clickstream, due, peak_rate, rate_curve, running_count


@given(st.integers(1, 5000), st.floats(5, 600), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_every_event_has_its_moment_within_the_stream_and_its_place_among_its_visitors(
    events: int, seconds: float, seed: int
) -> None:
    stream = Clickstream(events, seconds, seed)
    offsets = stream.offsets_ms
    assert len(offsets) == len(stream.visitor) == events
    assert (np.diff(offsets) >= 0).all()
    assert offsets[0] >= 0
    assert offsets[-1] <= seconds * 1000
    assert stream.visitor.min() >= 0
    assert stream.visitor.max() < stream.visitors
    for visitor in np.unique(stream.visitor)[:20]:
        steps = stream.step[stream.visitor == visitor]
        assert steps.tolist() == list(range(len(steps)))


def test_the_same_seed_gives_the_same_events_and_another_gives_others() -> None:
    one, same, other = Clickstream(2000, 30), Clickstream(2000, 30), Clickstream(2000, 30, seed=8)
    assert one.table().equals(same.table())
    assert not one.table().equals(other.table())


def test_the_rate_rises_and_falls_twice_and_ends_low() -> None:
    rate = rate_curve(np.linspace(0, 1, 1001))
    slope = np.sign(np.diff(rate))
    peaks = np.flatnonzero((slope[:-1] > 0) & (slope[1:] < 0))
    assert len(peaks) == 2
    valley = rate[peaks[0] : peaks[1]].min()
    assert valley < 0.2 * rate.max()
    assert rate[-1] < 0.2 * rate.max()


def test_few_visitors_make_much_of_the_traffic() -> None:
    stream = Clickstream(100_000, 45)
    counts = np.sort(np.bincount(stream.visitor, minlength=stream.visitors))[::-1]
    tenth = counts[: stream.visitors // 10].sum() / stream.events
    assert 0.35 < tenth < 0.8
    assert stream.busiest()[1] == counts[0]


def test_a_row_says_which_event_it_is() -> None:
    stream = Clickstream(3000, 30)
    row = stream.table().slice(1234, 1).to_pylist()[0]
    value = json.loads(row["value"])
    assert value["number"] == 1234
    assert value["step"] == stream.step[1234]
    assert value["page"] == PAGES[stream.page[1234]]
    assert row["key"] == f"visitor-{stream.visitor[1234]:05d}"
    assert row["offset"] == stream.offsets_ms[1234]


@given(st.lists(st.integers(0, 5)))
def test_a_running_count_counts_what_came_before(values: list[int]) -> None:
    found = running_count(np.array(values, dtype=np.int64))
    assert found.tolist() == [values[:at].count(value) for at, value in enumerate(values)]


@pytest.mark.parametrize("elapsed", [-1.0, 0.0, 3.3, 30.0, 99.0])
def test_what_is_due_has_happened_and_nothing_else_has(elapsed: float) -> None:
    offsets = Clickstream(3000, 30).offsets_ms
    count = due(offsets, elapsed)
    assert (offsets[:count] <= elapsed * 1000).all()
    assert (offsets[count:] > elapsed * 1000).all()


def test_the_highest_rate_is_the_fullest_second() -> None:
    stream = Clickstream(9000, 30)
    assert peak_rate(stream) == max((stream.offsets_ms // 1000 == second).sum() for second in range(31))
