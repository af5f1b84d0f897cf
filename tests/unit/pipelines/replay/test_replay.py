"""The replay decides as a live broker would; its short cuts change nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.autoscale.load import Load
from anabranch.autoscale.policy import DEFAULT, InvalidPolicy, ScalePolicy
from anabranch.model.buckets import BucketBudget
from anabranch.pipelines.replay.replay import Replayed, Timing, replay
from anabranch.pipelines.replay.trace import BadTrace, Floats, KeyShares, Trace, TraceStream
from unit.pipelines.replay.naive import Naive

START = 1_800_000_000_000
MINUTE = 60_000
HOUR = 60 * MINUTE


def stream(
    rates: list[float] | Floats, keys: KeyShares | None = None, size: int = 100, out: int = 2
) -> TraceStream:
    """Of messages a second in each sample."""
    messages = np.round(np.asarray(rates, dtype=float) * 10)
    return TraceStream.of(np.array([messages, size * messages, out * messages, out * size * messages]), keys)


def held(level: float, minutes: int) -> list[float]:
    return [level] * (6 * minutes)


def minutes(replayed: Replayed, kind: str) -> list[float]:
    return [(d.at_ms - START) / MINUTE for d in replayed.decisions if d.kind == kind]


def test_a_hot_topic_splits_once_a_cooldown_until_it_is_cool() -> None:
    found = replay(Trace(START, [stream(held(80_000.0, 60))]), DEFAULT)
    assert minutes(found, "split") == [1, 2, 3, 4, 5, 6, 7]
    assert found.decisions[-1].active == 8
    assert minutes(found, "merge") == []


def test_an_idle_day_is_asked_about_a_handful_of_times() -> None:
    found = replay(Trace(START, [stream(held(5.0, 1440))]), DEFAULT)
    assert found.decisions == ()
    assert (found.evaluations, found.reports) == (0, 1)
    assert [(life.from_ms, life.until_ms) for life in found.lives] == [(START, START + 24 * HOUR)]


def test_consumers_get_their_segments_at_once_and_then_one_a_cooldown() -> None:
    trace = Trace(START, [stream(held(1.0, 60))], consumers=[(START + 95_000, {"orders": 3})])
    assert minutes(replay(trace, DEFAULT), "split") == [95 / 60, 155 / 60]


def test_what_was_split_for_a_burst_is_merged_when_it_has_been_cold_for_the_window() -> None:
    trace = Trace(START, [stream(held(15_000.0, 20) + held(10.0, 100))])
    found = replay(trace, DEFAULT)
    assert [d.kind for d in found.decisions] == ["split", "merge"]
    assert 25 < minutes(found, "merge")[0] < 30


def test_a_hot_key_makes_splits_ever_more_rare() -> None:
    trace = Trace(START, [stream(held(50_000.0, 1440), KeyShares.of({12_345: 1.0}))])
    found = replay(trace, DEFAULT)
    assert len(minutes(found, "split")) == 10
    assert any(life.span.start <= 12_345 <= life.span.end for life in found.lives)


def test_lives_cover_every_key_at_every_moment() -> None:
    trace = Trace(START, [stream(held(30_000.0, 30) + held(0.0, 90))])
    lives = replay(trace, DEFAULT).lives
    assert sum(len(life.span) * (life.until_ms - life.from_ms) for life in lives) == 65_536 * 2 * HOUR


def test_a_policy_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(InvalidPolicy, match="minSegments"):
        replay(Trace(START, [stream([1.0])]), replace(DEFAULT, min_segments=99))


def test_samples_that_do_not_divide_the_window_are_refused() -> None:
    with pytest.raises(BadTrace, match="does not divide"):
        replay(Trace(START, [stream([1.0])], step_ms=7_000), DEFAULT)


def test_a_policy_that_is_switched_off_decides_nothing() -> None:
    trace = Trace(START, [stream(held(80_000.0, 60))])
    assert replay(trace, replace(DEFAULT, enabled=False)).decisions == ()


# -- the short cuts

levels = st.sampled_from(
    [0.0, 0.3, 7.0, 400.0, 999.9, 1_000.0, 1_900.0, 9_000.0, 10_000.0, 10_500.0, 2e4, 7e4]
)
pieces = st.lists(st.tuples(levels, st.integers(1, 60)), min_size=1, max_size=12)
some_keys = st.one_of(
    st.just(KeyShares.even()),
    st.dictionaries(st.integers(0, 65_535), st.floats(0.01, 1.0), min_size=1, max_size=6).map(KeyShares.of),
)
policies = st.builds(
    ScalePolicy,
    max_segments=st.sampled_from([3, 8, 64]),
    min_segments=st.sampled_from([1, 2]),
    max_dag_depth=st.sampled_from([0, 1, 2, 10]),
    split_cooldown_ms=st.sampled_from([0, 20_000, 60_000, 95_000]),
    merge_cooldown_ms=st.sampled_from([0, 65_000, 300_000]),
    merge_window_ms=st.sampled_from([0, 45_000, 60_000, 300_000]),
    merge=st.sampled_from([DEFAULT.merge, Load(5_000.0, 2e7, 9_000.0, 1e8), Load(0.0, 0.0, 0.0, 0.0)]),
    merge_depth_window_ms=st.sampled_from([10 * MINUTE, 24 * HOUR]),
    rebucket_cooldown_ms=st.sampled_from([0, 60_000, 95_000]),
    rebucket_idle_window_ms=st.sampled_from([0, 65_000, 300_000]),
)
timings = st.builds(
    Timing,
    tick_ms=st.sampled_from([60_000, 25_000, 130_000]),
    first_tick_ms=st.sampled_from([60_000, 7_000, 1]),
    window_ms=st.sampled_from([60_000, 20_000]),
    kept_ms=st.sampled_from([60_000, 0, None]),
    buckets=st.sampled_from([None, BucketBudget(1), BucketBudget(4), BucketBudget(4, 2)]),
)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    step_ms = draw(st.sampled_from([10_000, 10_000, 20_000]))
    length = draw(st.integers(2, 300))
    streams = []
    for _ in range(draw(st.integers(1, 2))):
        parts = [level for level, times in draw(pieces) for _ in range(times)]
        rates = np.resize(np.array(parts), length)
        streams.append(stream(rates, draw(some_keys), draw(st.sampled_from([1, 100, 6_000]))))
    joins = draw(
        st.lists(
            st.tuples(st.integers(0, length * step_ms), st.sampled_from([0, 1, 2, 3, 5, 6, 20])),
            max_size=5,
            unique_by=lambda j: j[0],
        )
    )
    consumers = [(START + at, {"orders": count, "audit": 1}) for at, count in sorted(joins)]
    return Trace(START, streams, consumers, step_ms, draw(st.sampled_from([1, 1, 3])))


@settings(max_examples=60, deadline=None)
@given(traces(), policies, timings)
def test_skipping_what_cannot_change_the_verdict_changes_no_decision(
    trace: Trace, policy: ScalePolicy, timing: Timing
) -> None:
    naive = Naive(trace, policy, timing).run()
    found = replay(trace, policy, timing)
    assert list(found.decisions) == naive.decisions
    assert found.reports == naive.reports
    assert found.evaluations <= naive.evaluations
