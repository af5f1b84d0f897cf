"""The merge pass: which neighbours merge, when none do, and the reason that goes with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.autoscale.decide import NoMerge, Observation, Split, Stay, decide
from anabranch.autoscale.load import Load, LoadReport
from anabranch.autoscale.policy import DEFAULT
from anabranch.model.buckets import BucketBudget
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import MERGE_TIMES_MAX
from unit.autoscale.facts import (
    DAY,
    HOUR,
    LONG_AGO,
    MINUTE,
    NOW,
    SECOND,
    buckets_of,
    observe,
    seg,
    segments,
    the_merge,
    the_stay,
)


def idle(layout: SegmentLayout, now_ms: int = NOW) -> Observation:
    return observe(layout, {s.id: 0.0 for s in layout.active}, now_ms=now_ms)


def merged_times(layout: SegmentLayout, number: int, times: int, last_ms: int) -> SegmentLayout:
    """With that many merges in the lineage of the segment, a minute apart."""
    merged = tuple(last_ms - MINUTE * n for n in reversed(range(times)))
    changed = replace(layout.segments[seg(number)], merged_ms=merged)
    return replace(layout, segments={**layout.segments, seg(number): changed})


# -- who may merge


def test_two_cold_neighbours_merge_with_their_reason() -> None:
    merge = the_merge(observe(segments(2), {0: 400.0, 1: 500.0}))
    assert (merge.one, merge.other, merge.suppressed) == (0, 1, frozenset())
    assert merge.because == (
        "segments 0 and 1 have been under every merge limit for 5 min or longer; "
        "together they are at 9 % of a split limit"
    )


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("warm", [0, 1])
def test_both_must_be_strictly_under_all_four_thresholds(at: int, warm: int) -> None:
    rates = [0.0] * 4
    rates[at] = DEFAULT.merge.rates[at]
    stay = the_stay(observe(segments(2), {warm: Load(*rates), 1 - warm: 0.0}))
    assert stay.no_merge is NoMerge.WARM
    rates[at] *= 0.999
    the_merge(observe(segments(2), {warm: Load(*rates), 1 - warm: 0.0}))


def test_only_neighbours_merge() -> None:
    seen = observe(segments(3), {0: 0.0, 1: 5_000.0, 2: 0.0})
    assert the_stay(seen).no_merge is NoMerge.WARM


def test_neighbours_are_those_of_the_hash_space_not_of_the_ids() -> None:
    layout = segments(2).split(0, LONG_AGO)  # In order: 2, 3, 1.
    merge = the_merge(observe(layout, {2: 5_000.0, 3: 0.0, 1: 0.0}))
    assert (merge.one, merge.other) == (3, 1)


def test_a_segment_without_a_load_record_is_never_merged() -> None:
    stay = the_stay(observe(segments(2), {0: 0.0}))
    assert stay.no_merge is NoMerge.NO_RECORD
    assert "1 of 2 segments has no load record, and without one there is no evidence of cold" in stay.because


def test_a_record_must_be_as_old_as_the_window() -> None:
    load = {seg(0): LoadReport(Load(), LONG_AGO), seg(1): LoadReport(Load(), NOW)}
    seen = Observation(segments(2), load, {}, NOW + 5 * MINUTE - 1)
    stay = the_stay(seen)
    assert (stay.no_merge, stay.look_again_ms) == (NoMerge.WINDOW, NOW + 5 * MINUTE)
    assert "segments 0 and 1 are cold, but not yet for 5 min" in stay.because
    assert "2027-01-15 08:05:00 UTC" in stay.because
    the_merge(replace(seen, now_ms=NOW + 5 * MINUTE))


def test_merges_wait_for_the_cooldown_of_the_last_one_manual_or_not() -> None:
    layout = segments(3).merge(0, 1, NOW)
    seen = idle(layout, NOW + 5 * MINUTE - 1)
    stay = the_stay(seen)
    assert (stay.no_merge, stay.look_again_ms) == (NoMerge.COOLDOWN, NOW + 5 * MINUTE)
    assert (
        "segments 3 and 2 are cold, but after the last merge there is a cooldown of 5 min until"
        in stay.because
    )
    the_merge(replace(seen, now_ms=NOW + 5 * MINUTE))


def test_a_split_does_not_start_the_merge_cooldown() -> None:
    the_merge(idle(segments(1).split(0, NOW), NOW + SECOND))


def test_the_later_of_window_and_cooldown_is_when_to_look_again() -> None:
    layout = segments(3).merge(0, 1, NOW)
    young = observe(layout, {3: 0.0, 2: 0.0}, now_ms=NOW + MINUTE, modified_ms=NOW + MINUTE)
    assert the_stay(young).look_again_ms == NOW + 6 * MINUTE
    old = observe(layout, {3: 0.0, 2: 0.0}, now_ms=NOW + MINUTE)
    assert the_stay(old).look_again_ms == NOW + 5 * MINUTE


def test_a_due_split_goes_before_a_due_merge() -> None:
    assert isinstance(decide(observe(segments(3), {0: 0.0, 1: 0.0, 2: 20_000.0}), DEFAULT), Split)


def test_a_split_that_only_waits_does_not_hold_back_a_merge_elsewhere() -> None:
    layout = replace(segments(3), last_split_ms=NOW)
    the_merge(observe(layout, {0: 0.0, 1: 0.0, 2: 20_000.0}, now_ms=NOW + SECOND))


# -- the floors


@pytest.mark.parametrize("least", [1, 3])
def test_no_merge_at_or_below_the_least_segments(least: int) -> None:
    policy = replace(DEFAULT, min_segments=least)
    for count in range(1, least + 1):
        stay = the_stay(idle(segments(count)), policy)
        assert stay.no_merge is NoMerge.MIN_SEGMENTS
        assert f"and minSegments is {least}" in stay.because
    the_merge(idle(segments(least + 1)), policy)


def test_the_largest_consumer_count_is_a_floor_with_a_reason_of_its_own() -> None:
    seen = observe(segments(3), dict.fromkeys(range(3), 0.0), {"a": 1, "orders": 3})
    stay = the_stay(seen)
    assert stay.no_merge is NoMerge.CONSUMERS
    assert "subscription 'orders' has 3 consumers, which need all of the 3 segments" in stay.because
    the_merge(replace(seen, consumers={"orders": 2}))


def test_what_a_merge_leaves_is_never_too_little_for_the_consumer_rule() -> None:
    for consumers in range(6):
        seen = observe(segments(4), dict.fromkeys(range(4), 0.0), {"orders": consumers})
        verdict = decide(seen, DEFAULT)
        assert isinstance(verdict, Split if consumers > 4 else Stay) or consumers < 4


def test_segments_that_serve_several_consumers_need_fewer_of_them() -> None:
    layout = SegmentLayout.initial(4, LONG_AGO, budget=BucketBudget(8))
    seen = observe(layout, dict.fromkeys(range(4), 0.0), {"orders": 6}, shared=True)
    the_merge(seen)
    assert the_stay(replace(seen, consumers={"orders": 7})).no_merge is NoMerge.CONSUMERS


def test_the_floor_for_consumers_is_the_room_after_the_merge() -> None:
    """A merged segment has the topic's share of entry buckets, or what demand has added to one of its parents."""
    layout = SegmentLayout.initial(4, LONG_AGO, budget=BucketBudget(8))
    budget = BucketBudget(12)  # The share of three segments is four buckets, so nothing is lost by a merge.
    seen = observe(layout, dict.fromkeys(range(4), 0.0), {"orders": 8}, shared=True)
    assert the_stay(seen).no_merge is NoMerge.CONSUMERS
    the_merge(replace(seen, budget=budget))


def test_a_pair_whose_buckets_are_needed_stays_while_another_is_merged() -> None:
    layout = SegmentLayout.initial(4, LONG_AGO).rebucket(0, 8, LONG_AGO).rebucket(1, 8, LONG_AGO)
    seen = observe(layout, {n: 0.0 for n in (2, 3, 4, 5)}, {"orders": 17}, shared=True)
    assert {s.id: s.bucket_count for s in layout.active} == {4: 8, 5: 8, 2: 1, 3: 1}
    merge = the_merge(seen)
    assert {merge.one, merge.other} != {4, 5}
    assert the_stay(replace(seen, consumers={"orders": 18})).no_merge is NoMerge.CONSUMERS


def test_one_subscription_that_cannot_share_keeps_its_segments() -> None:
    layout = SegmentLayout.initial(2, LONG_AGO, budget=BucketBudget(8))
    seen = observe(layout, {0: 0.0, 1: 0.0}, {"new": 1, "old": 2})
    shares = replace(seen, capacity={"new": buckets_of(layout)}, budget=BucketBudget(8))
    assert the_stay(shares).no_merge is NoMerge.CONSUMERS
    the_merge(replace(shares, consumers={"new": 8, "old": 1}))


# -- which of several


def test_the_shallower_lineage_goes_before_the_colder() -> None:
    layout = merged_times(segments(4), 1, 2, NOW - HOUR)
    merge = the_merge(observe(layout, {0: 0.0, 1: 0.0, 2: 900.0, 3: 900.0}))
    assert (merge.one, merge.other) == (2, 3)


def test_equally_shallow_the_colder_by_ratio_goes_first() -> None:
    # In plain numbers the second pair is the larger: bytes. As a part of its limit it is the smaller.
    loads = {0: Load(900.0), 1: Load(900.0), 2: Load(0, 1e6), 3: Load(0, 1e6)}
    merge = the_merge(observe(segments(4), loads))
    assert (merge.one, merge.other) == (2, 3)


def test_equally_cold_the_lower_id_goes_first() -> None:
    layout = segments(2).split(0, LONG_AGO).split(1, LONG_AGO)  # In order: 2, 3, 4, 5.
    assert the_merge(idle(layout)).one == 2
    layout = segments(3).split(0, LONG_AGO)  # In order: 3, 4, 1, 2.
    merge = the_merge(idle(layout))
    assert (merge.one, merge.other) == (1, 2)


def test_two_that_are_cold_but_hot_together_stay_apart() -> None:
    close = replace(DEFAULT, split=replace(DEFAULT.split, msg_rate_in=1_100.0))
    stay = the_stay(observe(segments(2), {0: 600.0, 1: 600.0}), close)
    assert stay.no_merge is NoMerge.WARM_TOGETHER
    assert "together would have msgRateIn 1,200/s, over the split limit of 1,100/s" in stay.because
    the_merge(observe(segments(2), {0: 550.0, 1: 550.0}), close)


# -- depth


def test_a_lineage_at_the_cap_is_left_alone_and_counted_as_suppressed() -> None:
    layout = merged_times(segments(2), 0, 10, NOW - HOUR)
    stay = the_stay(idle(layout))
    assert (stay.no_merge, stay.suppressed) == (NoMerge.MAX_DEPTH, frozenset({"max_depth"}))
    assert "their range was merged 10 times within 24 h and maxDagDepth is 10" in stay.because
    the_merge(idle(merged_times(segments(2), 0, 9, NOW - HOUR)))


@pytest.mark.parametrize("deep", [0, 1])
def test_either_side_at_the_cap_stops_the_merge(deep: int) -> None:
    assert the_stay(idle(merged_times(segments(2), deep, 10, NOW - HOUR))).no_merge is NoMerge.MAX_DEPTH


def test_other_lineages_merge_on_and_then_nothing_was_suppressed() -> None:
    merge = the_merge(idle(merged_times(segments(4), 0, 10, NOW - HOUR)))
    assert (merge.one, merge.other, merge.suppressed) == (1, 2, frozenset())


def test_the_cap_never_stops_a_split() -> None:
    layout = merged_times(segments(1), 0, 30, NOW - HOUR)
    assert isinstance(decide(observe(layout, {0: 20_000.0}), DEFAULT), Split)


def test_a_merge_longer_ago_than_the_window_no_longer_counts() -> None:
    layout = merged_times(segments(2), 0, 10, NOW)
    oldest = NOW - 9 * MINUTE
    seen = idle(layout, oldest + DAY)
    stay = the_stay(seen)
    assert (stay.no_merge, stay.look_again_ms) == (NoMerge.MAX_DEPTH, oldest + DAY + 1)
    the_merge(replace(seen, now_ms=oldest + DAY + 1))


def test_depth_is_the_longest_chain_not_the_number_of_merges() -> None:
    # Eight become one by seven merges, three of them on any chain.
    layout = segments(8)
    for n in range(7):
        at = LONG_AGO + n
        one, other = min(
            zip(layout.active, layout.active[1:], strict=False), key=lambda p: len(p[0].merged_ms)
        )
        layout = layout.merge(one.id, other.id, at)
    assert len(layout.active) == 1
    assert len(layout.active[0].merged_ms) == 3


def test_pruning_the_parents_forgets_no_merge() -> None:
    layout = segments(1)
    for n in range(10):
        at = NOW + n * 10 * MINUTE
        layout = layout.split(layout.active[0].id, at)
        layout = layout.merge(layout.active[0].id, layout.active[1].id, at + MINUTE)
    layout = layout.split(layout.active[0].id, NOW + 2 * HOUR)
    bare = layout.prune([s.id for s in layout.sealed])
    now_ms = NOW + 3 * HOUR
    assert the_stay(idle(layout, now_ms)).suppressed == {"max_depth"}
    assert decide(idle(bare, now_ms), DEFAULT) == decide(idle(layout, now_ms), DEFAULT)


def test_the_cap_is_not_to_blame_while_window_or_cooldown_run() -> None:
    layout = merged_times(segments(2), 0, 10, NOW - HOUR)
    young = observe(layout, {0: 0.0, 1: 0.0}, modified_ms=NOW)
    assert (the_stay(young).no_merge, the_stay(young).suppressed) == (NoMerge.WINDOW, frozenset())
    lately = idle(replace(layout, last_merge_ms=NOW - SECOND))
    assert (the_stay(lately).no_merge, the_stay(lately).suppressed) == (NoMerge.COOLDOWN, frozenset())


def test_a_cap_of_zero_forbids_merges_for_good() -> None:
    stay = the_stay(idle(segments(2)), replace(DEFAULT, max_dag_depth=0))
    assert (stay.no_merge, stay.look_again_ms) == (NoMerge.MAX_DEPTH, None)
    assert stay.because.endswith("and maxDagDepth is 0; it is left alone.")


def test_a_cap_beyond_what_is_remembered_is_no_cap() -> None:
    layout = merged_times(segments(2), 0, MERGE_TIMES_MAX, NOW)
    the_merge(idle(layout), replace(DEFAULT, max_dag_depth=MERGE_TIMES_MAX + 1))
    assert the_stay(idle(layout), replace(DEFAULT, max_dag_depth=MERGE_TIMES_MAX)).suppressed == {"max_depth"}


# -- the reason for nothing


def test_the_least_busy_neighbours_tell_why_nothing_is_cold() -> None:
    stay = the_stay(observe(segments(3), {0: 9_000.0, 1: 1_500.0, 2: 200.0}))
    assert stay.because.endswith(
        "No merge: no two neighbours are cold; the least busy are segments 1 and 2, and segment 1 has "
        "msgRateIn 1,500/s, not under its merge limit of 1,000/s."
    )
