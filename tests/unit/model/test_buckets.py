"""Entry buckets: how a segment divides the ring of keys' low halves, and how many buckets it has."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model import buckets
from anabranch.model.buckets import BucketBudget
from anabranch.model.keyhash import bucket_hash, segment_hash
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import HASH_MAX, HashRange, LayoutRefused
from unit.model.layouts import BUDGET, histories, layouts

hashes = st.integers(0, HASH_MAX)
# Any boundaries: a later policy may place them by traffic.
splits = st.sets(st.integers(1, HASH_MAX), max_size=20).map(lambda found: tuple(sorted(found)))


# -- the ring


def test_four_buckets_are_quarters_of_the_ring() -> None:
    assert [str(one) for one in buckets.ranges(buckets.even(4))] == [
        "0000-3fff",
        "4000-7fff",
        "8000-bfff",
        "c000-ffff",
    ]


@given(st.integers(1, HASH_MAX + 1))
def test_even_buckets_start_at_their_share_of_the_ring(count: int) -> None:
    assert (0, *buckets.even(count)) == tuple(i * 65536 // count for i in range(count))


@given(splits)
def test_the_buckets_tile_the_ring(cut: buckets.Splits) -> None:
    found = buckets.ranges(cut)
    assert (found[0].start, found[-1].end, len(found)) == (0, HASH_MAX, len(cut) + 1)
    assert all(one.end + 1 == other.start for one, other in itertools.pairwise(found))


@given(splits, hashes)
def test_a_hash_is_in_the_bucket_whose_range_holds_it(cut: buckets.Splits, value: int) -> None:
    assert value in buckets.ranges(cut)[buckets.bucket_of(cut, value)]


@given(splits, hashes, hashes)
def test_a_batch_touches_the_buckets_that_overlap_its_range(
    cut: buckets.Splits, one: int, other: int
) -> None:
    span = HashRange(min(one, other), max(one, other))
    overlapping = [n for n, bucket in enumerate(buckets.ranges(cut)) if bucket.overlaps(span)]
    assert list(buckets.touched(cut, span)) == overlapping


@given(splits)
def test_a_batch_of_unknown_range_touches_every_bucket(cut: buckets.Splits) -> None:
    assert list(buckets.touched(cut, None)) == list(range(len(cut) + 1))


@pytest.mark.parametrize("bad", [(0,), (5, 5), (7, 3), (65536,), (-1,), ("1",)])
def test_splits_that_do_not_ascend_within_the_ring_are_refused(bad: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="entry bucket"):
        buckets.checked(bad)


@pytest.mark.parametrize("count", [0, -1, 65537])
def test_a_segment_has_at_least_one_bucket_and_no_more_than_hashes(count: int) -> None:
    with pytest.raises(LayoutRefused, match=str(count)):
        buckets.even(count)


@pytest.mark.parametrize("count", [2, 4, 7])
@pytest.mark.parametrize("part", HashRange.even(4), ids=str)
def test_the_keys_of_any_part_of_the_topic_spread_evenly_over_buckets(count: int, part: HashRange) -> None:
    cut = buckets.even(count)
    found = [0] * count
    for n in range(40_000):
        key = b"key-%d" % n
        if segment_hash(key) in part:
            found[buckets.bucket_of(cut, bucket_hash(key))] += 1
    mean = sum(found) / count
    chi = sum((one - mean) ** 2 / mean for one in found)
    assert chi < 22.5  # 0.1 % of fair rings of seven exceed this, and fewer of smaller ones.


# -- how many a segment has


@pytest.mark.parametrize(("segments", "each"), [(1, 4), (2, 2), (3, 1), (4, 1), (64, 1)])
def test_a_topic_divides_its_budget_among_its_first_segments(segments: int, each: int) -> None:
    layout = SegmentLayout.initial(segments, 1, budget=BucketBudget())
    assert {one.bucket_count for one in layout.active} == {each}


def test_a_migrated_topic_divides_its_budget_among_fresh_segments() -> None:
    layout = SegmentLayout.migrated(
        ["persistent://a/b/one", "persistent://a/b/two"], 1, budget=BucketBudget()
    )
    assert [one.bucket_count for one in layout.active] == [2, 2]
    assert [one.bucket_count for one in layout.sealed] == [1, 1]


def test_no_segment_starts_with_more_than_its_maximum() -> None:
    assert SegmentLayout.initial(1, 1, budget=BucketBudget(4096)).active[0].bucket_count == 1024


@pytest.mark.parametrize(("count", "each"), [(1, 1), (2, 1), (3, 1), (4, 2), (7, 3)])
def test_the_children_of_a_split_have_half_of_the_buckets_each(count: int, each: int) -> None:
    layout = SegmentLayout.initial(1, 1, budget=BucketBudget(count)).split(0, 2)
    assert {one.bucket_splits for one in layout.active} == {buckets.even(each)}


def test_sixty_four_cold_segments_fold_into_one_with_the_topics_budget() -> None:
    budget = BucketBudget()
    layout = SegmentLayout.initial(64, 1, budget=budget)
    while len(layout.active) > 1:
        layout = layout.merge(layout.active[0].id, layout.active[1].id, 2, budget)
    assert layout.active[0].bucket_count in (3, 4)


def test_a_merge_keeps_buckets_that_demand_has_added() -> None:
    budget = BucketBudget(4, 16)
    layout = SegmentLayout.initial(2, 1, budget=budget).rebucket(0, 12, 2)
    raised, other = layout.active
    merged = layout.merge(raised.id, other.id, 3, budget)
    assert merged.active[0].bucket_count == 12


@given(
    st.integers(1, 1024), st.integers(1, 1024), st.integers(1, 64), st.integers(1, 64), st.integers(1, 1024)
)
def test_a_merged_segment_stays_within_its_parents_its_share_and_the_maximum(
    one: int, other: int, segments: int, total: int, most: int
) -> None:
    budget = BucketBudget(total, most)
    found = budget.merged(one, other, segments)
    assert 1 <= found <= min(one + other, most)
    assert found <= max(budget.share(segments), one, other)


@given(histories())
def test_no_segment_ever_changes_its_buckets(history: list[SegmentLayout]) -> None:
    known: dict[int, buckets.Splits] = {}
    for layout in history:
        layout.check()
        for number, segment in layout.segments.items():
            assert known.setdefault(number, segment.bucket_splits) == segment.bucket_splits


@given(layouts())
def test_a_topic_has_at_least_a_bucket_a_segment_and_none_beyond_the_maximum(layout: SegmentLayout) -> None:
    assert all(1 <= one.bucket_count <= BUDGET.segment_max for one in layout.active)


# -- another number of buckets


def test_a_segment_is_replaced_by_one_of_the_same_range_with_other_buckets() -> None:
    before = SegmentLayout.initial(2, 1).split(0, 5, lopsided=2).merge(2, 3, 7)
    after = before.rebucket(4, 8, 9)
    parent, child = after.segment(4), after.segment(5)
    assert (parent.is_sealed, parent.children, parent.sealed_ms) == (True, (5,), 9)
    assert (child.range, child.parents, child.bucket_splits) == (parent.range, (4,), buckets.even(8))
    # Neither a split nor a merge: what their cooldowns and limits are counted from stays.
    assert (child.merged_ms, child.lopsided) == (before.segment(4).merged_ms, before.segment(4).lopsided)
    assert (after.last_split_ms, after.last_merge_ms, after.last_rebucket_ms) == (5, 7, 9)
    assert (after.epoch, len(after.active)) == (before.epoch + 1, len(before.active))
    after.check()


@pytest.mark.parametrize(
    ("number", "count", "reason"),
    [
        (0, 4, "sealed"),
        (9, 4, "no segment 9"),
        (1, 1, "already"),
        (1, 0, "1 to 1024"),
        (1, 1025, "1 to 1024"),
    ],
)
def test_a_segment_is_not_replaced_without_need_or_beyond_bounds(
    number: int, count: int, reason: str
) -> None:
    layout = SegmentLayout.initial(2, 0).split(0, 1)
    with pytest.raises(LayoutRefused, match=reason):
        layout.rebucket(number, count, 2)
