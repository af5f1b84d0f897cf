"""The split pass: which segment splits, when none does, and the reason that goes with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.autoscale.decide import NoSplit, Observation, Split, decide
from anabranch.autoscale.load import Load
from anabranch.autoscale.policy import DEFAULT
from anabranch.autoscale.splits import LOPSIDED_MAX
from anabranch.model.buckets import BucketBudget
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import HashRange, Segment
from unit.autoscale.facts import (
    HOUR,
    LONG_AGO,
    MINUTE,
    NOW,
    SECOND,
    observe,
    seg,
    segments,
    the_merge,
    the_split,
    the_stay,
)

# -- rule a: consumers


def test_more_consumers_than_segments_split_the_one_that_takes_in_the_most() -> None:
    split = the_split(observe(segments(3), {0: 10.0, 1: 500.0, 2: 20.0}, {"orders": 4}))
    assert (split.segment, split.rule, split.lopsided) == (1, "consumers", 0)
    assert split.because == (
        "subscription 'orders' has 4 consumers and the topic 3 segments; "
        "segment 1 takes in the most, msgRateIn 500/s"
    )


def test_the_largest_subscription_counts_not_the_sum() -> None:
    assert the_stay(observe(segments(3), {}, {"a": 3, "b": 3, "c": 2})).no_split is NoSplit.NOT_NEEDED
    assert "'b' has 4 consumers" in the_split(observe(segments(3), {}, {"a": 3, "b": 4})).because


def test_the_consumer_rule_works_without_load_records_and_takes_the_lowest_id() -> None:
    layout = segments(2).split(0, LONG_AGO).split(1, LONG_AGO)  # Ids 2 to 5.
    assert the_split(observe(layout, {}, {"orders": 5})).segment == 2


def test_equal_rates_go_to_the_lowest_id_not_to_the_lowest_range() -> None:
    layout = segments(2).split(0, LONG_AGO)  # 2 and 3 lie before 1.
    assert the_split(observe(layout, {1: 7.0, 2: 7.0, 3: 7.0}, {"orders": 4})).segment == 1


def test_the_consumer_rule_looks_at_message_rate_in_only() -> None:
    seen = observe(segments(2), {0: Load(9.0), 1: Load(8.0, 9e9, 9e9, 9e9)}, {"orders": 3})
    assert the_split(seen).segment == 0


def test_a_segment_without_a_record_counts_as_idle_for_the_consumer_rule() -> None:
    assert the_split(observe(segments(3), {2: 1.0}, {"orders": 4})).segment == 2


def test_consumers_go_before_load() -> None:
    seen = observe(segments(2), {0: Load(9_000.0), 1: Load(1.0, 9e9)}, {"orders": 3})
    assert (the_split(seen).segment, the_split(seen).rule) == (0, "consumers")


@pytest.mark.parametrize(("consumers", "splits"), [(4, False), (5, True), (6, True)])
def test_a_segment_that_serves_more_ordered_consumers_is_split_later(consumers: int, splits: bool) -> None:
    layout = SegmentLayout.initial(2, LONG_AGO, budget=BucketBudget(4))
    seen = observe(layout, {0: 3_000.0, 1: 2_500.0}, {"orders": consumers}, shared=True)
    assert isinstance(decide(seen, DEFAULT), Split) is splits


def test_a_topic_without_ordered_consumers_never_splits_for_them() -> None:
    stay = the_stay(observe(segments(1), {0: 1.0}, {}), consumers_only=True)
    assert stay.because == "No split: no subscription has ordered consumers."


def test_when_only_consumers_are_asked_about_load_neither_splits_nor_merges() -> None:
    hot = observe(segments(2), {0: 90_000.0, 1: 0.0}, {"orders": 2})
    stay = the_stay(hot, consumers_only=True)
    assert stay.because == (
        "No split: 2 segments are enough for consumers, as subscription 'orders' has 2 consumers at most."
    )
    the_stay(observe(segments(2), {0: 0.0, 1: 0.0}), consumers_only=True)
    assert the_split(observe(segments(2), {}, {"orders": 3}), consumers_only=True).rule == "consumers"


# -- rule b: load


@pytest.mark.parametrize("at", range(4))
def test_any_one_rate_strictly_over_its_threshold_splits(at: int) -> None:
    limit = DEFAULT.split.rates[at]
    rates = [0.0] * 4
    rates[at] = limit
    on_it = observe(segments(2), {0: 5_000.0, 1: Load(*rates)})
    assert the_stay(on_it).no_split is NoSplit.NOT_NEEDED
    rates[at] = limit * 1.0001
    split = the_split(observe(segments(2), {0: 5_000.0, 1: Load(*rates)}))
    assert (split.segment, split.rule) == (1, "load")


def test_the_most_overloaded_is_the_one_with_the_highest_ratio_to_its_own_limit() -> None:
    # Many more bytes than messages, and yet less hot.
    split = the_split(observe(segments(3), {0: Load(0, 60e6), 1: 13_000.0, 2: Load(0, 0, 55_000)}))
    assert split.segment == 1
    assert split.because == "segment 1 has msgRateIn 13,000/s, 130 % of its split limit of 10,000/s"


def test_equally_hot_segments_split_from_the_lowest_id() -> None:
    layout = segments(2).split(0, LONG_AGO)
    assert the_split(observe(layout, {1: 20_000.0, 2: 20_000.0, 3: 20_000.0})).segment == 1


def test_a_queue_only_topic_splits_on_traffic() -> None:
    assert the_split(observe(segments(1), {0: Load(0, 0, 50_001)}, {})).rule == "load"


def test_a_load_record_of_a_sealed_segment_means_nothing() -> None:
    layout = segments(1).split(0, LONG_AGO)
    assert the_stay(observe(layout, {0: 90_000.0, 1: 2_000.0, 2: 2_000.0})).no_split is NoSplit.NOT_NEEDED


def test_a_rate_over_its_limit_by_the_least_there_is_splits() -> None:
    limit = 10_000.000000000002
    assert limit > DEFAULT.split.msg_rate_in
    assert the_split(observe(segments(1), {0: limit})).rule == "load"


# -- the brakes


def test_a_split_waits_for_the_cooldown_of_the_last_one_and_says_until_when() -> None:
    layout = replace(segments(2), last_split_ms=NOW)
    seen = observe(layout, {}, {"orders": 3}, now_ms=NOW + 59_999)
    stay = the_stay(seen)
    assert (stay.no_split, stay.look_again_ms, stay.suppressed) == (
        NoSplit.COOLDOWN,
        NOW + MINUTE,
        frozenset(),
    )
    assert "cooldown of 1 min until 2027-01-15 08:01:00 UTC" in stay.because
    assert the_stay(seen, consumers_only=True).look_again_ms == NOW + MINUTE
    assert the_split(replace(seen, now_ms=NOW + MINUTE)).rule == "consumers"


def test_a_manual_split_starts_the_cooldown_because_the_layout_remembers_it() -> None:
    layout = segments(1).split(0, NOW)
    assert (
        the_stay(observe(layout, {1: 20_000.0, 2: 20_000.0}, now_ms=NOW + SECOND)).no_split
        is NoSplit.COOLDOWN
    )


def test_a_merge_does_not_start_the_split_cooldown() -> None:
    layout = segments(2).merge(0, 1, NOW)
    assert the_split(observe(layout, {2: 20_000.0}, now_ms=NOW + SECOND)).rule == "load"


def test_the_reason_for_idleness_is_not_a_cooldown_that_stops_nothing() -> None:
    layout = replace(segments(1), last_split_ms=NOW - SECOND)
    stay = the_stay(observe(layout, {0: 10.0}))
    assert (stay.no_split, stay.look_again_ms) == (NoSplit.NOT_NEEDED, None)


@pytest.mark.parametrize(
    "seen", [observe(segments(64), {7: 20_000.0}), observe(segments(64), {}, {"orders": 65})]
)
def test_at_the_most_segments_a_due_split_is_suppressed_with_the_reason(seen: Observation) -> None:
    stay = the_stay(seen)
    assert (stay.no_split, stay.suppressed) == (NoSplit.MAX_SEGMENTS, frozenset({"max_segments"}))
    assert "but the topic has 64 segments and maxSegments is 64" in stay.because


def test_beyond_the_most_segments_nothing_splits_and_nothing_is_forced_to_merge() -> None:
    lowered = replace(DEFAULT, max_segments=2)
    stay = the_stay(observe(segments(4), dict.fromkeys(range(4), 5_000.0)), lowered)
    assert stay.suppressed == frozenset()
    assert the_stay(observe(segments(4), dict.fromkeys(range(4), 50_000.0)), lowered).suppressed == {
        "max_segments"
    }


def test_fewer_than_the_least_segments_force_no_split() -> None:
    raised = replace(DEFAULT, min_segments=8)
    assert the_stay(observe(segments(2), {0: 5_000.0, 1: 5_000.0}), raised).no_split is NoSplit.NOT_NEEDED


def test_the_cap_suppresses_nothing_while_nothing_is_due() -> None:
    assert the_stay(observe(segments(64), dict.fromkeys(range(64), 9_000.0))).suppressed == frozenset()


def test_the_cap_is_not_to_blame_while_the_cooldown_runs() -> None:
    layout = replace(segments(64), last_split_ms=NOW - SECOND)
    stay = the_stay(observe(layout, {7: 20_000.0}))
    assert (stay.no_split, stay.suppressed) == (NoSplit.COOLDOWN, frozenset())


def test_a_merge_at_the_cap_makes_room_and_still_says_that_a_split_was_suppressed() -> None:
    merge = the_merge(
        observe(segments(4), {0: 20_000.0, 1: 5_000.0, 2: 0.0, 3: 0.0}), replace(DEFAULT, max_segments=4)
    )
    assert (merge.one, merge.other, merge.suppressed) == (2, 3, frozenset({"max_segments"}))


def test_switched_off_gives_none_also_for_consumers() -> None:
    off = replace(DEFAULT, enabled=False)
    seen = observe(segments(2), {0: 90_000.0}, {"orders": 9})
    stay = the_stay(seen, off)
    assert (stay.no_split, stay.look_again_ms) == (NoSplit.OFF, None)
    assert stay.because == "Automatic split and merge is switched off (enabled is false)."
    assert the_stay(seen, off, consumers_only=True).because == stay.because


def test_a_contradictory_policy_is_treated_as_switched_off_and_named() -> None:
    stay = the_stay(observe(segments(1), {0: 90_000.0}), replace(DEFAULT, min_segments=0))
    assert stay.no_split is NoSplit.OFF
    assert "invalid: minSegments is 0" in stay.because


def test_raising_the_limit_counts_from_the_next_evaluation() -> None:
    seen = observe(segments(1), {0: 15_000.0})
    assert the_split(seen).rule == "load"
    assert (
        the_stay(seen, replace(DEFAULT, split=Load(20_000, 50e6, 50_000, 250e6))).no_split
        is NoSplit.NOT_NEEDED
    )


# -- hot keys


def halves(lopsided: int = 0, at_ms: int = NOW) -> SegmentLayout:
    """Segments 1 and 2, just split from 0."""
    return segments(1).split(0, at_ms, lopsided)


@pytest.mark.parametrize("lopsided", range(4))
def test_a_split_that_left_one_child_nearly_all_the_heat_doubles_the_wait(lopsided: int) -> None:
    layout = halves(lopsided)
    free_ms = NOW + MINUTE * 2 ** (lopsided + 1)
    seen = observe(layout, {1: 40_000.0, 2: 4_000.0}, now_ms=free_ms - 1)
    stay = the_stay(seen)
    assert (stay.no_split, stay.look_again_ms) == (NoSplit.HOT_KEY, free_ms)
    split = the_split(replace(seen, now_ms=free_ms))
    assert (split.segment, split.lopsided) == (1, lopsided + 1)


def test_the_reason_for_the_wait_speaks_of_the_hot_key() -> None:
    stay = the_stay(observe(halves(1), {1: 40_000.0, 2: 0.0}, now_ms=NOW + 2 * MINUTE))
    assert stay.because.startswith(
        "No split: segment 1 has msgRateIn 40,000/s, 400 % of its split limit of 10,000/s, but the split that made it "
        "left it nearly all of the load, 2 times in a row: its keys cannot be told apart by splitting, so it waits "
        "until 2027-01-15 08:04:00 UTC. No merge:"
    )


def test_a_sibling_with_a_tenth_is_a_fair_split_and_the_row_ends() -> None:
    split = the_split(observe(halves(3), {1: 36_000.0, 2: 4_000.0}, now_ms=NOW + MINUTE))
    assert (split.segment, split.lopsided) == (1, 0)


def test_the_rate_that_is_hot_is_the_one_compared() -> None:
    # The sibling takes in as many messages, but all of the bytes go to one of them.
    seen = observe(halves(), {1: Load(5_000, 90e6), 2: Load(5_000, 1e6)}, now_ms=NOW + MINUTE)
    assert the_stay(seen).no_split is NoSplit.HOT_KEY


def test_another_hot_segment_does_not_wait_for_the_hot_key() -> None:
    layout = segments(2).split(0, NOW)  # 2 and 3; 1 is older.
    split = the_split(observe(layout, {2: 90_000.0, 3: 0.0, 1: 20_000.0}, now_ms=NOW + MINUTE))
    assert (split.segment, split.lopsided) == (1, 0)


def test_of_several_hot_keys_the_one_that_is_free_first_tells_when_to_look_again() -> None:
    layout = segments(2).split(0, NOW - 30 * SECOND, lopsided=2).split(1, NOW)  # 2, 3 and 4, 5.
    seen = observe(layout, {2: 90_000.0, 3: 0.0, 4: 20_000.0, 5: 0.0}, now_ms=NOW + MINUTE)
    assert the_stay(seen).look_again_ms == NOW + 2 * MINUTE


def test_consumers_do_not_wait_for_a_hot_key_but_the_row_goes_on() -> None:
    split = the_split(observe(halves(2), {1: 40_000.0, 2: 0.0}, {"orders": 3}, now_ms=NOW + MINUTE))
    assert (split.segment, split.rule, split.lopsided) == (1, "consumers", 3)


def test_a_sibling_that_was_merged_away_was_cold() -> None:
    layout = segments(2).split(0, NOW, lopsided=4).merge(3, 1, NOW + 6 * MINUTE)  # 2 is hot, 3 went into 4.
    seen = observe(layout, {2: 40_000.0, 4: 0.0}, now_ms=NOW + 7 * MINUTE)
    assert the_stay(seen).look_again_ms == NOW + 32 * MINUTE


def test_a_sibling_that_was_split_itself_was_not_cold() -> None:
    layout = halves().split(2, NOW + MINUTE)
    split = the_split(observe(layout, {1: 40_000.0, 3: 0.0, 4: 0.0}, now_ms=NOW + 2 * MINUTE - 1 + SECOND))
    assert (split.segment, split.lopsided) == (1, 0)


def test_a_sibling_that_got_other_entry_buckets_is_as_hot_as_its_successor() -> None:
    layout = halves().rebucket(2, 4, NOW + SECOND).rebucket(3, 8, NOW + 2 * SECOND)
    seen = observe(layout, {1: 40_000.0, 4: 36_000.0}, now_ms=NOW + MINUTE)
    split = the_split(seen)
    assert (split.segment, split.lopsided) == (1, 0)
    assert the_stay(observe(layout, {1: 40_000.0, 4: 0.0}, now_ms=NOW + MINUTE)).no_split is NoSplit.HOT_KEY
    merged = layout.split(1, NOW + MINUTE).merge(6, 4, NOW + 2 * MINUTE)
    seen = observe(merged, {5: 40_000.0, 7: 0.0}, now_ms=NOW + 2 * MINUTE)
    assert the_stay(seen).no_split is NoSplit.HOT_KEY, "merged away, so it was cold"


@pytest.mark.parametrize(("lopsided", "waits"), [(0, False), (1, True)])
def test_a_sibling_without_a_record_neither_starts_nor_ends_a_row(lopsided: int, waits: bool) -> None:
    seen = observe(halves(lopsided), {1: 40_000.0}, now_ms=NOW + MINUTE)
    assert (decide(seen, DEFAULT) == the_stay(seen)) if waits else the_split(seen).lopsided == 0


def test_a_pruned_sibling_neither_starts_nor_ends_a_row() -> None:
    layout = segments(2).split(0, NOW, lopsided=4).merge(3, 1, NOW + 6 * MINUTE).prune([0, 1, 3])
    seen = observe(layout, {2: 40_000.0, 4: 0.0}, now_ms=NOW + 7 * MINUTE)
    assert the_stay(seen).look_again_ms == NOW + 32 * MINUTE


def test_what_was_merged_is_free_to_split_and_remembers_the_row() -> None:
    layout = halves(5).merge(1, 2, NOW + HOUR)
    split = the_split(observe(layout, {3: 40_000.0}, now_ms=NOW + HOUR + SECOND))
    assert (split.segment, split.lopsided) == (3, 5)
    pruned = layout.prune([0, 1, 2])
    assert the_split(observe(pruned, {3: 40_000.0}, now_ms=NOW + HOUR + SECOND)) == split


def test_the_first_segments_of_a_topic_are_no_siblings() -> None:
    assert the_split(observe(segments(2), {0: 40_000.0, 1: 0.0})).lopsided == 0


def test_the_wait_stops_doubling_so_that_no_segment_is_locked_for_life() -> None:
    layout = halves(LOPSIDED_MAX)
    seen = observe(layout, {1: 40_000.0, 2: 0.0}, now_ms=NOW + MINUTE * 2**LOPSIDED_MAX)
    assert the_split(seen).lopsided == LOPSIDED_MAX


def single_hashes() -> SegmentLayout:
    """Hash 0 and hash 1 have a segment each, 0 and 1; 2 has the rest."""
    ranges = [HashRange(0, 0), HashRange(1, 1), HashRange(2, 0xFFFF)]
    return SegmentLayout(
        0, seg(3), {seg(n): Segment(seg(n), span, created_ms=LONG_AGO) for n, span in enumerate(ranges)}
    )


def test_a_single_hash_cannot_split_and_says_so() -> None:
    stay = the_stay(observe(single_hashes(), {0: 40_000.0, 1: 0.0, 2: 5_000.0}))
    assert (stay.no_split, stay.suppressed, stay.look_again_ms) == (NoSplit.ONE_HASH, frozenset(), None)
    assert "its range is a single hash" in stay.because


def test_what_cannot_split_is_passed_over_by_both_rules() -> None:
    assert the_split(observe(single_hashes(), {0: 40_000.0, 2: 11_000.0})).segment == 2
    assert the_split(observe(single_hashes(), {0: 40_000.0}, {"orders": 4})).segment == 2


# -- the reasons for nothing


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (
            observe(segments(1)),
            "No split: no segment has a load record yet, and no subscription has ordered consumers.",
        ),
        (
            observe(segments(1), {0: 0.0}, {"orders": 1}),
            "No split: every segment is idle, and 1 segment is enough for consumers, "
            "as subscription 'orders' has 1 consumer at most.",
        ),
        (
            observe(segments(2), {0: 4_200.0, 1: 50.0}),
            "No split: segment 0 is the hottest, with msgRateIn 4,200/s, 42 % of its split limit of 10,000/s, "
            "and no subscription has ordered consumers.",
        ),
        (
            observe(segments(1), {0: Load(1.0, 2_000_000.0)}),
            "No split: segment 0 is the hottest, with bytesRateIn 2.0 MB/s, 4 % of its split limit of 50.0 MB/s",
        ),
        (observe(segments(1), {0: 1.0}), "msgRateIn 1/s, under 1 % of its split limit"),
    ],
)
def test_no_split_has_its_reason_in_a_sentence_with_numbers(seen: Observation, reason: str) -> None:
    assert reason in the_stay(seen).because
