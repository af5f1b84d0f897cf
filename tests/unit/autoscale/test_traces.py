"""Topics over hours and days of simulated time: they grow, they shrink, and they do not flap."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.autoscale.decide import NoMerge, NoSplit
from anabranch.autoscale.load import Load
from anabranch.autoscale.policy import DEFAULT
from anabranch.model.layout import SegmentLayout
from unit.autoscale.facts import DAY, HOUR, MINUTE, NOW, SECOND
from unit.autoscale.plant import Keys, Plant, constant, messages, square

# Within an hour, both ends included, the cooldown lets through no more merges than this.
MERGES_AN_HOUR = HOUR // DEFAULT.merge_cooldown_ms + 1


def minutes(times: list[int]) -> list[float]:
    return [(at - NOW) / MINUTE for at in times]


def many_keys(seed: int) -> Keys:
    """Two thousand keys, the busiest with six times the load of the least."""
    chance = random.Random(seed)
    return Keys({chance.randrange(65536): chance.random() + 0.2 for _ in range(2000)})


# -- growing


def test_a_hot_topic_splits_at_the_first_tick_and_once_per_cooldown_until_it_is_cool() -> None:
    plant = Plant(constant(80_000.0)).run(6 * HOUR)
    assert minutes(plant.splits) == [
        1,
        2,
        3,
        4,
        5,
        6,
        7,
    ]  # Eight segments have 10,000/s each: on the limit, not over.
    assert plant.merges == []
    assert plant.size == 8
    assert plant.last is not None
    assert plant.last.no_split is NoSplit.NOT_NEEDED


@pytest.mark.parametrize("seed", range(3))
def test_a_skewed_topic_is_split_where_it_is_hot_until_no_segment_is_over_its_limit(seed: int) -> None:
    chance = random.Random(seed)
    keys = Keys({chance.randrange(20_000): chance.random() for _ in range(3000)})
    plant = Plant(constant(60_000.0), keys).run(2 * HOUR)
    assert all(not r.load.is_over_any(DEFAULT.split) for r in plant.records.values())
    assert 6 <= plant.size <= 20
    assert max(plant.splits) < NOW + HOUR


def test_consumers_get_a_segment_each_one_per_cooldown_and_keep_them_while_idle() -> None:
    plant = Plant(constant(0.0), consumers={"orders": 5}).run(3 * HOUR)
    assert minutes(plant.splits) == [1, 2, 3, 4]
    assert (plant.merges, plant.size) == ([], 5)
    assert plant.last is not None
    assert plant.last.no_merge is NoMerge.CONSUMERS


def test_a_topic_that_outgrows_the_cap_stays_at_the_cap() -> None:
    plant = Plant(constant(5_000_000.0), many_keys(1)).run(2 * HOUR)
    assert plant.size == plant.most == 64
    assert plant.suppressed > 50


# -- shrinking


def test_a_cold_topic_returns_to_one_by_one_merge_per_cooldown() -> None:
    plant = Plant(constant(0.0), layout=SegmentLayout.initial(64, NOW)).run(6 * HOUR)
    assert plant.size == 1
    assert len(plant.merges) == 63
    assert plant.merges[0] - NOW >= DEFAULT.merge_window_ms
    # No gap but the cooldown, and at times the sample that a fresh segment is first measured with.
    gaps = [later - at - DEFAULT.merge_cooldown_ms for at, later in pairwise(plant.merges)]
    assert 0 <= min(gaps) <= max(gaps) <= plant.step_ms


@pytest.mark.parametrize("low", [0.0, 0.5, 60.0])
def test_a_trickle_does_not_keep_a_topic_from_returning_to_one(low: float) -> None:
    """The trickle comes and goes every other minute; the record of a cold segment stays old all the same."""

    def demand(now_ms: int) -> Load:
        if now_ms < NOW + 10 * MINUTE:
            return messages(40_000.0)
        return messages(low if (now_ms // MINUTE) % 2 else 0.0)

    plant = Plant(demand).run(2 * HOUR)
    assert plant.most == 4
    assert plant.size == 1


def test_thirty_days_and_nights_end_in_one_segment_each() -> None:
    plant = Plant(square(60_000.0, 12 * HOUR, 12 * HOUR, low=20.0), many_keys(2), step_ms=MINUTE)
    for _ in range(30):
        plant.run(12 * HOUR)
        assert plant.size == 8
        plant.run(12 * HOUR - MINUTE)
        assert plant.size == 1
        plant.run(MINUTE)
    assert len(plant.splits) - len(plant.merges) <= 1


@pytest.mark.parametrize("seed", range(2))
def test_even_the_largest_topic_is_back_at_one_every_night(seed: int) -> None:
    plant = Plant(square(500_000.0, 12 * HOUR, 12 * HOUR, low=20.0), many_keys(seed), step_ms=MINUTE)
    for _ in range(6):
        plant.run(12 * HOUR)
        assert plant.size == 64
        plant.run(12 * HOUR - MINUTE)
        assert plant.size == 1
        plant.run(MINUTE)


# -- not flapping


@pytest.mark.parametrize("half", [30, 60, 90, 150, 300])
@pytest.mark.parametrize("phase", [0, 20, 50])
def test_a_square_wave_at_a_cooldown_s_period_makes_the_topic_grow_once_and_then_stay(
    half: int, phase: int
) -> None:
    wave = square(40_000.0, half * SECOND, half * SECOND)
    plant = Plant(lambda now_ms: wave(now_ms + phase * SECOND)).run(12 * HOUR)
    assert plant.merges == []
    assert len(plant.splits) <= 3
    assert all(at <= NOW + HOUR for at in plant.splits)


def test_a_single_hot_key_splits_ever_more_rarely() -> None:
    plant = Plant(constant(50_000.0), Keys({12_345: 1.0})).run(DAY)
    waits = [later - at for at, later in pairwise(plant.splits)]
    assert waits == [MINUTE * 2**n for n in range(1, len(waits) + 1)]
    assert len(plant.splits) == 10
    assert sum(at <= NOW + HOUR for at in plant.splits) == 5


def test_around_a_hot_key_the_cold_rest_is_merged_and_never_split_again() -> None:
    plant = Plant(constant(50_000.0), Keys({12_345: 1.0})).run(DAY)
    assert plant.merges
    assert all(12_345 in action.span for action in plant.actions if action.is_split)
    assert not any(12_345 in action.span for action in plant.actions if not action.is_split)
    assert plant.size <= 4


def test_a_hot_key_among_others_does_not_slow_down_the_others() -> None:
    keys = Keys({100: 0.5, **{32_768 + 16 * n: 0.0005 for n in range(1000)}})
    plant = Plant(constant(80_000.0), keys).run(30 * MINUTE)
    assert all(
        plant.records[s.id].load.msg_rate_in <= 10_000 for s in plant.layout.active if 100 not in s.range
    )
    assert sum(100 not in action.span for action in plant.actions if action.is_split) >= 4


def test_a_hot_key_that_cools_leaves_one_segment_and_a_fair_load_then_splits_without_delay() -> None:
    hot = Plant(constant(50_000.0), Keys({12_345: 1.0})).run(3 * HOUR)
    cold = Plant(constant(0.0), layout=hot.layout, now_ms=hot.now_ms).run(3 * HOUR)
    assert cold.size == 1
    fair = Plant(constant(80_000.0), layout=cold.layout, now_ms=cold.now_ms).run(20 * MINUTE)
    assert fair.size == 8
    assert fair.splits[-1] - fair.splits[0] == 6 * MINUTE


def flapping(prunes: bool) -> Plant:
    """Hot for five minutes, cold for twelve: long enough to be split and merged every time."""
    return Plant(square(15_000.0, 5 * MINUTE, 12 * MINUTE), prunes=prunes)


def test_a_trace_that_flaps_stops_at_the_depth_cap() -> None:
    plant = flapping(prunes=True).run(DAY)
    assert len(plant.merges) == DEFAULT.max_dag_depth
    assert len(plant.splits) == DEFAULT.max_dag_depth + 1  # A split is never held back.
    assert plant.splits[-1] < NOW + 4 * HOUR
    assert plant.suppressed > 0
    assert plant.last is not None
    assert plant.last.no_merge in (NoMerge.MAX_DEPTH, NoMerge.WARM, NoMerge.WINDOW)


def test_the_cap_gives_way_as_merges_grow_old_so_no_topic_is_locked_for_life() -> None:
    plant = flapping(prunes=True).run(DAY)
    calm = Plant(constant(0.0), layout=plant.layout, now_ms=plant.now_ms, records=plant.records).run(HOUR)
    assert calm.size == 1


def test_pruning_does_not_forget_merge_depth() -> None:
    assert flapping(prunes=True).run(DAY).actions == flapping(prunes=False).run(DAY).actions


# -- over random traces

levels = st.sampled_from([0.0, 5.0, 200.0, 900.0, 1_500.0, 9_000.0, 12_000.0, 30_000.0, 90_000.0])
pieces = st.lists(st.tuples(levels, st.integers(1, 90)), min_size=1, max_size=8)
keys = st.one_of(
    st.builds(many_keys, st.integers(0, 5)),
    st.dictionaries(st.integers(0, 65535), st.floats(0.01, 1.0), min_size=1, max_size=6).map(Keys),
)


def repeated(parts: list[tuple[float, int]], unit_ms: int) -> Callable[[int], Load]:
    """Each level for its number of units, over and over."""
    loads = [messages(level) for level, _ in parts]
    ends = [sum(units for _, units in parts[: n + 1]) * unit_ms for n in range(len(parts))]
    return lambda now_ms: loads[bisect_right(ends, (now_ms - NOW) % ends[-1])]


@settings(max_examples=40, deadline=None)
@given(pieces, keys, st.integers(0, 6))
def test_on_no_trace_more_than_one_split_a_minute_or_one_merge_in_five(
    parts: list[tuple[float, int]], keys: Keys, consumers: int
) -> None:
    plant = Plant(repeated(parts, 10 * SECOND), keys, consumers={"orders": consumers}).run(4 * HOUR)
    assert all(later - at >= MINUTE for at, later in pairwise(plant.splits))
    assert all(later - at >= 5 * MINUTE for at, later in pairwise(plant.merges))


@settings(max_examples=40, deadline=None)
@given(pieces, keys)
def test_on_no_trace_more_splits_and_merges_an_hour_than_growth_and_a_bounded_churn(
    parts: list[tuple[float, int]], keys: Keys
) -> None:
    """Each split either makes the topic larger than it was or undoes a merge, and merges are rare."""
    plant = Plant(repeated(parts, 10 * SECOND), keys).run(4 * HOUR)
    growth = plant.most - 1
    assert plant.most_within(HOUR) <= growth + 2 * MERGES_AN_HOUR
    # A load that repeats itself needs no more segments the second time.
    late = [at for at in plant.splits if at > NOW + 3 * HOUR]
    assert len(late) <= growth + MERGES_AN_HOUR


@settings(max_examples=25, deadline=None)
@given(pieces, keys)
def test_no_key_sees_more_merges_a_day_than_the_cap_nor_more_splits_than_these_and_the_hash_space_allow(
    parts: list[tuple[float, int]], keys: Keys
) -> None:
    plant = Plant(repeated(parts, MINUTE), keys, step_ms=MINUTE).run(30 * HOUR)
    assert len(plant.splits) == len(plant.merges) + plant.size - 1
    for at in {action.span.start for action in plant.actions}:
        merges = [a.at_ms for a in plant.actions if not a.is_split and at in a.span]
        for n, first in enumerate(merges):
            assert bisect_right(merges, first + DAY) - n <= DEFAULT.max_dag_depth
        # Sixteen halvings lead from the whole space to one hash, and after each merge perhaps again.
        splits = sum(a.is_split and at in a.span for a in plant.actions)
        assert splits <= 16 * (len(merges) + 1)


# The figures are observed and not derived, hence the same traces each time.
@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 65535), pieces)
def test_a_hot_key_that_comes_and_goes_as_it_likes_is_bounded_too(
    at: int, parts: list[tuple[float, int]]
) -> None:
    plant = Plant(repeated(parts, MINUTE), Keys({at: 1.0}), step_ms=MINUTE).run(DAY)
    assert len(plant.merges) <= 3 * DEFAULT.max_dag_depth
    assert len(plant.splits) <= 3 * DEFAULT.max_dag_depth
    assert plant.most_within(HOUR) <= 20


@settings(max_examples=30, deadline=None, derandomize=True)  # As above.
@given(st.integers(1, 60), st.integers(1, 60), keys)
def test_a_square_wave_of_any_period_moves_a_topic_a_few_times_an_hour_over_the_day(
    high: int, low: int, keys: Keys
) -> None:
    plant = Plant(square(40_000.0, high * MINUTE, low * MINUTE), keys, step_ms=MINUTE).run(DAY)
    assert len(plant.actions) <= 24 * 6
