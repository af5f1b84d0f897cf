"""When a segment gets another number of entry buckets, and when it does not."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.autoscale.decide import NoRebucket, NoSplit, Observation, Rebucket, Split, Stay, decide
from anabranch.autoscale.load import Load
from anabranch.autoscale.policy import DEFAULT, ScalePolicy
from anabranch.model.buckets import ONE_BUCKET, BucketBudget
from anabranch.model.layout import SegmentLayout
from unit.autoscale.facts import (
    HOUR,
    LONG_AGO,
    MINUTE,
    NOW,
    SECOND,
    buckets_of,
    observations,
    observe,
    policies,
    segments,
    the_merge,
    the_rebucket,
    the_split,
    the_stay,
)
from unit.autoscale.plant import Plant, constant

FOUR = BucketBudget(4)
CAPPED = replace(DEFAULT, max_segments=1)


def topic(count: int, buckets: int, now_ms: int = LONG_AGO) -> SegmentLayout:
    """So many segments with so many entry buckets each."""
    return SegmentLayout.initial(count, now_ms, budget=BucketBudget(count * buckets))


def crowded(
    layout: SegmentLayout, consumers: int, loads: dict[int, Load | float] | None = None
) -> Observation:
    return observe(layout, loads, {"orders": consumers}, shared=True, budget=FOUR)


def raised(count: int, buckets: int, at_ms: int) -> SegmentLayout:
    """A topic of so many segments, of which the first was given so many buckets then."""
    return segments(count).rebucket(0, buckets, at_ms)


# -- raising


@pytest.mark.parametrize(("consumers", "buckets"), [(5, 8), (8, 8), (9, 16), (100, 128)])
def test_one_segment_gets_the_next_power_of_two_that_serves_all_consumers(
    consumers: int, buckets: int
) -> None:
    verdict = the_rebucket(crowded(topic(1, 4), consumers))
    assert (verdict.segment, verdict.buckets, verdict.rule) == (0, buckets, "consumers")


def test_a_consumer_finds_a_free_bucket_before_anything_is_split_or_replaced() -> None:
    for consumers in range(5):
        the_stay(crowded(topic(1, 4), consumers))


def test_joining_consumers_are_served_at_once_not_at_the_next_look() -> None:
    assert the_rebucket(crowded(topic(1, 4), 5), consumers_only=True).buckets == 8


def test_the_reason_says_who_needs_what_and_why_that_segment() -> None:
    verdict = the_rebucket(crowded(topic(2, 2), 5, {0: 3.0, 1: 7.0}))
    assert verdict.because == (
        "subscription 'orders' has 5 consumers and the topic 2 segments with room for 4 consumers; "
        "segment 1 takes in the most, msgRateIn 7/s, and gets 4 entry buckets"
    )


def test_many_segments_share_the_consumers() -> None:
    """64 segments with 4 buckets each serve 200 consumers, rather than one segment 137 of them."""
    layout, now_ms, rollovers = segments(64), NOW, 0
    while isinstance(verdict := decide(replace(crowded(layout, 200), now_ms=now_ms), DEFAULT), Rebucket):
        layout, rollovers = layout.rebucket(verdict.segment, verdict.buckets, now_ms), rollovers + 1
        now_ms += SECOND
    assert {s.bucket_count for s in layout.active} == {1, 4}
    assert 200 <= sum(s.bucket_count for s in layout.active) < 204
    # Within a minute: replacing further segments for the same number is one change.
    assert now_ms - NOW < DEFAULT.rebucket_cooldown_ms
    assert rollovers == 46


def test_the_segment_that_takes_in_the_most_is_replaced_first_and_of_equals_the_lowest_id() -> None:
    assert the_rebucket(crowded(topic(3, 1), 4, {0: 1.0, 1: 5.0, 2: 5.0})).segment == 1


def test_a_segment_that_has_the_number_already_is_passed_over() -> None:
    layout = raised(2, 2, LONG_AGO)
    verdict = the_rebucket(crowded(layout, 4, {2: 90.0, 1: 1.0}))
    assert (verdict.segment, verdict.buckets) == (1, 2)


def test_where_throughput_justifies_it_a_split_comes_first() -> None:
    """Both halves stay above a merge limit, so they are not merged back."""
    limit = DEFAULT.merge.msg_rate_in
    assert the_split(crowded(topic(1, 4), 5, {0: 2 * limit})).rule == "consumers"
    assert the_rebucket(crowded(topic(1, 4), 5, {0: 2 * limit - 2})).buckets == 8
    by_bytes = Load(1.0, 2 * DEFAULT.merge.bytes_rate_in)
    assert the_split(crowded(topic(1, 4), 5, {0: by_bytes})).segment == 0


def test_of_several_segments_only_those_that_are_worth_it_are_split() -> None:
    busy = Load(5.0, 2 * DEFAULT.merge.bytes_rate_in)
    assert the_split(crowded(topic(2, 1), 3, {0: 900.0, 1: busy})).segment == 1


def test_at_the_most_segments_buckets_are_raised_and_the_split_counts_as_suppressed() -> None:
    verdict = the_rebucket(crowded(topic(1, 4), 5, {0: 90_000.0}), CAPPED)
    assert verdict.buckets == 8
    assert verdict.suppressed == {"max_segments"}


def test_a_split_that_makes_room_is_waited_for_and_one_that_does_not_is_not() -> None:
    """The halves of a segment have no more entry buckets than the whole, unless that has just one."""
    single = replace(topic(1, 1), last_split_ms=NOW - SECOND)
    stay = the_stay(crowded(single, 2, {0: 5_000.0}))
    assert (stay.no_split, stay.no_rebucket) == (NoSplit.COOLDOWN, NoRebucket.NOT_NEEDED)
    assert (
        the_rebucket(crowded(replace(topic(1, 4), last_split_ms=NOW - SECOND), 5, {0: 5_000.0})).buckets == 8
    )


def test_no_segment_gets_more_buckets_than_the_limit() -> None:
    seen = replace(crowded(topic(1, 4), 50), budget=BucketBudget(4, 24))
    assert the_rebucket(seen).buckets == 24
    full = replace(crowded(topic(1, 24), 50), budget=BucketBudget(4, 24))
    stay = the_stay(full)
    assert (stay.no_rebucket, stay.no_split) == (NoRebucket.MAX_BUCKETS, NoSplit.NOT_WORTH)
    assert "a segment may have 24 entry buckets at most" in stay.because


def test_another_number_waits_for_the_cooldown_and_says_until_when() -> None:
    layout = raised(1, 8, NOW - 20 * SECOND)
    stay = the_stay(crowded(layout, 9))
    assert stay.no_rebucket is NoRebucket.COOLDOWN
    assert stay.look_again_ms == NOW + 40 * SECOND
    assert "No rebucket: subscription 'orders' has 9 consumers" in stay.because
    assert the_rebucket(replace(crowded(layout, 9), now_ms=NOW + 40 * SECOND)).buckets == 16


def test_neither_splits_nor_merges_wait_for_a_rebucket_nor_it_for_them() -> None:
    layout = raised(1, 8, NOW - SECOND)
    assert the_split(crowded(layout, 3, {1: 90_000.0})).rule == "load"
    recent = replace(segments(2), last_merge_ms=NOW - SECOND, last_split_ms=NOW - SECOND)
    assert the_rebucket(crowded(recent, 3)).buckets == 2


def test_consumers_that_know_no_buckets_get_the_split_that_they_got_before_there_were_buckets() -> None:
    seen = observe(topic(1, 4), {0: 1.0}, {"orders": 2}, budget=FOUR)
    assert the_split(seen).because == (
        "subscription 'orders' has 2 consumers and the topic 1 segment; segment 0 takes in the most, msgRateIn 1/s"
    )


@given(observations(), policies(), st.booleans())
def test_without_sharing_the_verdict_is_the_one_of_a_segment_for_each_consumer(
    seen: Observation, policy: ScalePolicy, consumers_only: bool
) -> None:
    """However many buckets segments have: splits for consumers, by their number alone."""
    alone = replace(seen, capacity={})
    verdict = decide(alone, policy, consumers_only=consumers_only)
    most, active = max(seen.consumers.values(), default=0), len(seen.layout.active)
    assert not isinstance(verdict, Rebucket) or verdict.rule == "idle"
    if isinstance(verdict, Split) and verdict.rule == "consumers":
        assert most > active
    elif most > active and isinstance(verdict, Stay):
        assert verdict.no_split in (NoSplit.COOLDOWN, NoSplit.MAX_SEGMENTS, NoSplit.ONE_HASH, NoSplit.HOT_KEY)


def test_segments_whose_entries_are_not_stamped_do_not_count_as_room() -> None:
    layout = topic(2, 4)
    seen = crowded(layout, 5)
    half = replace(seen, capacity={"orders": {layout.active[1].id: 4}})
    assert decide(seen, DEFAULT) == the_stay(seen)
    the_stay(half)  # One for the unstamped, four for the other.
    assert the_rebucket(replace(half, consumers={"orders": 6})).segment == 1
    nothing = replace(half, capacity={"orders": {}})
    assert the_split(nothing).rule == "consumers"


def test_each_subscription_is_judged_by_what_its_own_members_can_share() -> None:
    layout = topic(1, 4)
    seen = observe(layout, {}, {"new": 4, "old": 2}, budget=FOUR)
    mixed = replace(seen, capacity={"new": buckets_of(layout)})
    assert "'old'" in the_split(mixed).because
    the_stay(replace(mixed, consumers={"new": 4, "old": 1}))


# -- lowering


def test_buckets_that_nobody_needs_for_the_idle_window_go_back_to_the_share() -> None:
    layout = raised(1, 16, NOW - HOUR)
    seen = replace(crowded(layout, 1), last_left_ms=NOW - 30 * MINUTE)
    verdict = the_rebucket(seen)
    assert (verdict.segment, verdict.buckets, verdict.rule) == (1, 4, "idle")
    assert verdict.because == ("segment 1 has 16 entry buckets and 4 would be enough, for 30 min or longer")


def test_the_window_starts_when_a_consumer_leaves() -> None:
    layout = raised(1, 16, NOW - HOUR)
    stay = the_stay(replace(crowded(layout, 1), last_left_ms=NOW - MINUTE))
    assert stay.no_rebucket is NoRebucket.WINDOW
    assert stay.look_again_ms == NOW + 29 * MINUTE
    assert "No rebucket: segment 1 has 16 entry buckets and 4 would be enough, but not yet" in stay.because


def test_several_segments_give_back_one_in_each_cooldown() -> None:
    layout = segments(3).rebucket(0, 4, LONG_AGO).rebucket(1, 4, LONG_AGO)
    first = the_rebucket(crowded(layout, 0))
    after = layout.rebucket(first.segment, first.buckets, NOW)
    assert (first.segment, first.buckets) == (3, 1)
    stay = the_stay(crowded(after, 0))
    assert (stay.no_rebucket, stay.look_again_ms) == (NoRebucket.WINDOW, NOW + MINUTE)
    assert the_rebucket(replace(crowded(after, 0), now_ms=NOW + MINUTE)).segment == 4


def test_what_consumers_need_is_kept() -> None:
    layout = raised(1, 16, NOW - HOUR)
    assert the_stay(crowded(layout, 9)).no_rebucket is NoRebucket.CONSUMERS
    assert the_rebucket(crowded(layout, 7)).buckets == 8


def test_a_topic_that_was_never_raised_keeps_what_it_was_made_with() -> None:
    """A smaller budget is for new topics: old ones are not replaced for it."""
    the_stay(observe(topic(3, 16), budget=ONE_BUCKET))


def test_a_topic_within_its_budget_is_left_alone_however_its_splits_have_shared_the_buckets() -> None:
    layout = segments(1).rebucket(0, 4, LONG_AGO).split(1, LONG_AGO).split(2, LONG_AGO)
    assert sorted(s.bucket_count for s in layout.active) == [1, 1, 2]
    the_stay(observe(layout, budget=FOUR))


def test_merges_go_before_buckets_are_given_back() -> None:
    layout = raised(2, 16, NOW - HOUR)
    the_merge(crowded(layout, 0, {1: 0.0, 2: 0.0}))


def test_when_only_consumers_are_asked_about_nothing_is_given_back() -> None:
    assert isinstance(decide(crowded(raised(1, 16, NOW - HOUR), 1), DEFAULT, consumers_only=True), Stay)


# -- no flapping


@settings(max_examples=60, deadline=None)
@given(
    consumers=st.integers(0, 40),
    rate=st.sampled_from([0.0, 500.0, 3_000.0, 25_000.0]),
    count=st.integers(1, 5),
    budget=st.sampled_from([1, 2, 4, 7]),
    most=st.sampled_from([1, 4, 64]),
)
def test_constant_load_and_consumers_come_to_a_fixed_point_with_one_change_a_cooldown(
    consumers: int, rate: float, count: int, budget: int, most: int
) -> None:
    topic_budget = BucketBudget(budget)
    plant = Plant(
        constant(rate),
        policy=replace(DEFAULT, max_segments=most),
        layout=SegmentLayout.initial(count, NOW, budget=topic_budget),
        consumers={"orders": consumers},
        shares=True,
        budget=topic_budget,
    )
    plant.run(3 * HOUR)
    actions = len(plant.actions)
    plant.run(5 * HOUR)
    assert len(plant.actions) == actions
    # Every consumer is served, and nothing that was raised was given back.
    assert sum(s.bucket_count for s in plant.layout.active) >= consumers
    assert {one.verdict.rule for one in plant.rebuckets if isinstance(one.verdict, Rebucket)} <= {"consumers"}
    chosen = [
        (one.at_ms, one.verdict.buckets) for one in plant.rebuckets if isinstance(one.verdict, Rebucket)
    ]
    for (before_ms, before), (after_ms, after) in pairwise(chosen):
        assert after == before or after_ms - before_ms >= DEFAULT.rebucket_cooldown_ms


def test_consumers_that_come_and_go_every_ten_minutes_are_never_without_room_twice() -> None:
    plant = Plant(constant(10.0), layout=topic(1, 4, NOW), shares=True, budget=FOUR)
    for _ in range(12):
        plant.attend({"orders": 12}).run(5 * MINUTE)
        plant.attend({"orders": 1}).run(5 * MINUTE)
    assert len(plant.rebuckets) == 1
    plant.run(HOUR)
    assert [s.bucket_count for s in plant.layout.active] == [4]
    assert len(plant.rebuckets) == 2


def test_a_cold_topic_folds_back_to_one_segment_with_its_share() -> None:
    plant = Plant(constant(0.0), layout=topic(8, 1, NOW), consumers={"orders": 40}, shares=True, budget=FOUR)
    plant.run(HOUR)
    assert sum(s.bucket_count for s in plant.layout.active) >= 40
    plant.attend({}).run(12 * HOUR)
    assert [s.bucket_count for s in plant.layout.active] == [4]
