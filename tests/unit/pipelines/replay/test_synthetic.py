"""Made-up topics are the same each time, and a fleet of them looks like a fleet."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.pipelines.replay.synthetic import KINDS, Fleet, make
from anabranch.pipelines.replay.trace import BadTrace

HOUR = 1 / 24


@pytest.mark.parametrize("kind", KINDS)
def test_a_topic_is_the_same_each_time_it_is_made(kind: str) -> None:
    fleet = Fleet(10, HOUR, seed=3, kind=kind)
    one, other = make(fleet, 4), make(fleet, 4)
    assert one.name == other.name
    assert one.trace.consumers == other.trace.consumers
    for mine, its in zip(one.trace.streams, other.trace.streams, strict=True):
        assert np.array_equal(mine.totals, its.totals)
        assert np.array_equal(mine.keys.below, its.keys.below)


def test_another_number_and_another_seed_make_another_topic() -> None:
    totals = [
        make(Fleet(10, HOUR, seed=seed, kind="steady"), number).trace.streams[0].totals[0, -1]
        for seed, number in ((1, 1), (1, 2), (2, 1))
    ]
    assert len(set(totals)) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_what_flows_is_whole_and_never_flows_back(kind: str) -> None:
    for number in range(5):
        for stream in make(Fleet(10, 0.5, seed=1, kind=kind), number).trace.streams:
            assert (np.diff(stream.totals, axis=1) >= 0).all()
            assert (stream.totals == np.floor(stream.totals)).all()


def test_half_of_a_fleet_is_tiny_and_a_few_topics_are_huge() -> None:
    fleet = Fleet(600, HOUR, seed=5, kind="steady")
    rates = [float(make(fleet, number).trace.whole[0].mean()) for number in range(600)]
    assert 2 < np.median(rates) < 8
    assert max(rates) > 10_000
    assert 0.02 < np.mean(np.array(rates) > 1_000) < 0.05


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"topics": 0}, "one at least"),
        ({"topics": 1, "days": 0}, "more than 0"),
        ({"topics": 1, "kind": "odd"}, "odd"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused(fields: dict[str, object], why: str) -> None:
    with pytest.raises(BadTrace, match=why):
        Fleet(**fields)  # type: ignore[arg-type]  # What a user may have typed.
