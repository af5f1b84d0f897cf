"""What policies cost: overload, flaps, classes, the front, and which policy is recommended."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.autoscale.load import Load
from anabranch.autoscale.policy import DEFAULT
from anabranch.model.buckets import BucketBudget
from anabranch.model.segments import WHOLE, HashRange
from anabranch.pipelines.replay.outcomes import (
    CLASSES,
    PolicyOutcome,
    Weights,
    classify,
    flaps,
    front,
    objectives,
    outcome,
    recommend,
)
from anabranch.pipelines.replay.replay import Replayed, ReplayedReshape, Timing, replay
from anabranch.pipelines.replay.trace import BadTrace, KeyShares, Trace, TraceStream

START = 1_800_000_000_000
MINUTE = 60_000
HOUR = 60 * MINUTE


def trace(*pieces: tuple[float, int], keys: KeyShares | None = None) -> Trace:
    """Messages a second, each for so many minutes."""
    rates = np.concatenate([np.full(6 * minutes, level) for level, minutes in pieces])
    messages = rates * 10
    return Trace(
        START, [TraceStream.of(np.array([messages, 100 * messages, messages, 100 * messages]), keys)]
    )


def decided(at_ms: int, kind: str, span: HashRange, rule: str = "") -> ReplayedReshape:
    return ReplayedReshape(START + at_ms, kind, (), rule, "", span, 2)


def test_segments_are_paid_by_the_hour_and_overload_by_the_minute() -> None:
    busy = trace((15_000.0, 60), (100.0, 60))
    found = outcome(busy, replay(busy, DEFAULT), DEFAULT.split)
    # Overloaded until the first tick; then in two halves, until they have been cold for a while.
    assert found.hot_minutes == found.over_minutes == 1.0
    assert (found.splits, found.merges, found.segments_max) == (1, 1, 2)
    assert 3 < found.segment_hours < 3.3


def test_overload_is_held_against_the_policy_s_limits_and_against_those_of_all() -> None:
    busy = trace((15_000.0, 10))
    alone = Replayed((), replay(trace((0.0, 10)), DEFAULT).lives, 0, 0)
    found = outcome(busy, alone, own=Load(20_000.0, 1e9, 1e9, 1e9), shared=DEFAULT.split)
    assert (found.hot_minutes, found.over_minutes) == (0.0, 10.0)


def test_a_flap_undoes_what_was_done_to_the_same_keys_within_the_hour() -> None:
    left, right = WHOLE.halves()
    split, merge = decided(0, "split", WHOLE), decided(HOUR, "merge", WHOLE)
    assert flaps([split, merge]) == 1
    assert flaps([split, decided(HOUR + 1, "merge", WHOLE)]) == 0
    assert flaps([split, merge, decided(HOUR + 1, "split", WHOLE)]) == 2
    assert flaps([split, decided(1, "split", left), decided(2, "merge", right)]) == 0


def test_a_rebucket_flaps_with_one_that_takes_it_back_and_with_no_split() -> None:
    more, fewer = decided(0, "rebucket", WHOLE, "consumers"), decided(HOUR, "rebucket", WHOLE, "idle")
    assert flaps([more, fewer]) == 1
    assert flaps([more, decided(9, "rebucket", WHOLE, "consumers")]) == 0
    assert flaps([more, decided(HOUR + 1, "rebucket", WHOLE, "idle")]) == 0
    assert flaps([decided(0, "merge", WHOLE), more, decided(9, "split", WHOLE)]) == 1


def test_consumers_that_share_segments_are_paid_for_by_rebuckets_instead_of_segments() -> None:
    quiet = replace(trace((10.0, 120)), consumers=[(START, {"orders": 6})])
    alone = outcome(quiet, replay(quiet, DEFAULT), DEFAULT.split)
    shared = outcome(quiet, replay(quiet, DEFAULT, Timing(buckets=BucketBudget(4))), DEFAULT.split)
    assert (alone.splits, alone.rebuckets, alone.segments_max) == (5, 0, 6)
    assert (shared.splits, shared.rebuckets, shared.segments_max) == (0, 1, 1)
    assert shared.segment_hours == 2.0


@pytest.mark.parametrize(
    ("load", "wanted"),
    [
        (trace((10.0, 60)), "cold"),
        (trace((5_000.0, 60)), "small, steady"),
        (trace((20_000.0, 30), (5_000.0, 60)), "medium, varying"),
        (trace((100_000.0, 10), (100.0, 200)), "large, bursty"),
        (trace((5_000.0, 60), keys=KeyShares.of({7: 1.0})), "small, hot key"),
    ],
)
def test_a_topic_is_classed_by_its_load(load: Trace, wanted: str) -> None:
    assert classify(load) == wanted
    assert wanted in CLASSES


def test_the_front_leaves_out_what_another_beats() -> None:
    found = {
        "few": PolicyOutcome(segment_hours=10, over_minutes=50, splits=1),
        "many": PolicyOutcome(segment_hours=90, over_minutes=0, splits=5),
        "worse than few": PolicyOutcome(segment_hours=11, over_minutes=50, splits=1),
        "twin of few": PolicyOutcome(segment_hours=10, over_minutes=50, merges=1),
    }
    assert front(found) == ["few", "many", "twin of few"]


outcomes = st.builds(
    PolicyOutcome,
    segment_hours=st.integers(0, 5).map(float),
    over_minutes=st.integers(0, 5).map(float),
    splits=st.integers(0, 5),
)


@given(st.dictionaries(st.text(max_size=3), outcomes, min_size=1, max_size=8))
def test_what_is_not_on_the_front_is_beaten_by_something_on_it(found: dict[str, PolicyOutcome]) -> None:
    best = front(found)
    assert best
    for name, one in found.items():
        mine = objectives(one)
        beaten = [b for b in best if all(x <= y for x, y in zip(objectives(found[b]), mine, strict=True))]
        assert beaten
        assert (name in best) == all(objectives(found[b]) == mine for b in beaten)


def test_the_least_costly_policy_is_recommended_for_each_class_and_the_first_unless_another_is_worth_it() -> (
    None
):
    table = {
        "large, steady": {"now": PolicyOutcome(segment_hours=10), "other": PolicyOutcome(segment_hours=4)},
        "cold": {"now": PolicyOutcome(segment_hours=1), "other": PolicyOutcome(segment_hours=0.996)},
    }
    found = recommend(table, {"cold": 9, "large, steady": 1}, Weights())
    assert [(one.topic_class, one.policy, one.topics) for one in found] == [
        ("cold", "now", 9),
        ("large, steady", "other", 1),
    ]
    assert (found[1].cost, found[1].cost_of_first) == (4, 10)


def test_costs_are_weighed_as_asked() -> None:
    one = PolicyOutcome(segment_hours=2, over_minutes=3, splits=4, merges=1, flaps=6)
    assert Weights(1, 10, 100, 1000).cost(one) == 2 + 30 + 500 + 6000
    assert Weights.of({"over-minute": 2.0}) == Weights(over_minute=2.0)
    with pytest.raises(BadTrace, match="segment-hour"):
        Weights.of({"hours": 2.0})
    with pytest.raises(BadTrace, match="negative"):
        Weights.of({"flap": -1.0})
