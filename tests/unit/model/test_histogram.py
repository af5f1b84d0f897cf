"""Histograms: what is counted where, and what they say about shares of it."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.histogram import LATENCIES, Histogram, Recent, quantile


def test_a_value_on_a_bound_belongs_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert (histogram.count, histogram.sum) == (5, 14.0)


def test_one_observation_may_stand_for_many() -> None:
    histogram = Histogram((1.0,))
    histogram.observe(0.5, 4)
    assert (histogram.counts, histogram.sum) == ([4, 0], 2.0)


@given(st.lists(st.floats(0, 10), min_size=1), st.floats(0, 1))
def test_a_quantile_lies_between_the_bounds_of_its_value(values: list[float], share: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    found = quantile(histogram.bounds, histogram.counts, share)
    true = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    upper = next(bound for bound in LATENCIES if true <= bound)
    assert found <= upper
    assert found >= max((bound for bound in LATENCIES if bound < true), default=0.0)


def test_only_what_came_lately_counts() -> None:
    histogram = Histogram((1.0, 2.0))
    recent = Recent(histogram, turns=2)
    assert math.isnan(recent.quantile(0.5))
    histogram.observe(0.5)
    assert recent.quantile(1.0) == 1.0
    recent.turn()
    recent.turn()
    assert math.isnan(recent.quantile(0.5))
    histogram.observe(1.5)
    assert recent.quantile(1.0) == 2.0


def test_recent_events_are_summed_between_coarser_bounds() -> None:
    histogram = Histogram()
    recent = Recent(histogram)
    for value in (0.0001, 0.0005, 0.00051, 0.02, 0.021, 7.0, 100.0):
        histogram.observe(value)
    assert recent.between((0.0005, 0.02, 1.0)) == [2, 2, 1, 2]
    recent = Recent(histogram)
    assert recent.between((0.0005, 0.02, 1.0)) == [0, 0, 0, 0]
