"""Layouts: what every run of splits, merges and prunes keeps true, and what is refused."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from anabranch.model.layout import SegmentLayout
from anabranch.model.scalable import ScalableTopic
from anabranch.model.segments import HASH_MAX, MERGE_TIMES_MAX, WHOLE, HashRange, LayoutRefused, SegmentId
from unit.model.layouts import histories, layouts, roots

hashes = st.integers(0, HASH_MAX)


def image(layout: SegmentLayout) -> bytes:
    return ScalableTopic(layout, generation=1).encode()


# -- any history


@given(histories(roots_first=False))
def test_every_hash_has_exactly_one_active_segment_in_every_layout(history: list[SegmentLayout]) -> None:
    for layout in history:
        layout.check()
        ends = Counter(value for s in layout.active for value in (s.range.start, s.range.end + 1))
        # Each cut is the start of one range and the end of another, but for the two ends of the space.
        assert all(ends[cut] == (1 if cut in (0, HASH_MAX + 1) else 2) for cut in ends)
        assert sum(len(s.range) for s in layout.active) == HASH_MAX + 1


@given(layouts(), hashes)
def test_a_hash_finds_the_active_segment_that_contains_it(layout: SegmentLayout, value: int) -> None:
    assert [layout.find_active(value)] == [s for s in layout.active if value in s.range]


@pytest.mark.parametrize("value", [-1, HASH_MAX + 1])
def test_a_number_that_is_no_hash_finds_nothing(value: int) -> None:
    with pytest.raises(LayoutRefused, match="not a hash"):
        SegmentLayout.initial(3, 0).find_active(value)


@given(histories(), hashes)
def test_the_segments_of_a_key_follow_each_other_as_ancestor_and_descendant(
    history: list[SegmentLayout], value: int
) -> None:
    layout = history[-1]
    way = [s for s in layout.segments.values() if value in s.range]
    assert way[-1].is_active
    for older, newer in pairwise(way):
        assert older.id in layout.ancestors(newer.id)
        assert newer.id in layout.descendants(older.id)
        assert older.sealed_epoch <= newer.created_epoch


@given(layouts(roots_first=False), hashes)
def test_ids_tell_the_order_of_a_keys_segments_even_where_a_pruned_one_left_a_hole(
    layout: SegmentLayout, value: int
) -> None:
    way = [s for s in layout.segments.values() if value in s.range]
    assert [s.id for s in way] == sorted(s.id for s in way)
    assert all(0 < older.sealed_epoch <= newer.created_epoch for older, newer in pairwise(way))


@given(histories(roots_first=False))
def test_the_epoch_starts_at_0_and_every_change_raises_it(history: list[SegmentLayout]) -> None:
    assert [layout.epoch for layout in history] == list(range(len(history)))


@given(histories(roots_first=False))
def test_an_id_is_never_given_twice_even_after_its_segment_was_pruned(history: list[SegmentLayout]) -> None:
    for before, after in pairwise(history):
        assert after.next_id >= before.next_id
        new = after.segments.keys() - before.segments.keys()
        assert sorted(new) == list(range(before.next_id, after.next_id))


@given(histories(roots_first=False))
def test_a_segment_keeps_its_range_and_parents_until_they_are_pruned(history: list[SegmentLayout]) -> None:
    for before, after in pairwise(history):
        for number in before.segments.keys() & after.segments.keys():
            old, new = before.segments[number], after.segments[number]
            assert (new.range, new.created_epoch, new.created_ms) == (
                old.range,
                old.created_epoch,
                old.created_ms,
            )
            assert new.parents == tuple(p for p in old.parents if p in after.segments)
            if old.is_sealed:
                assert (new.sealed_epoch, new.sealed_ms) == (old.sealed_epoch, old.sealed_ms)


@given(histories(roots_first=False))
def test_the_epoch_of_sealing_is_0_while_active_and_never_again(history: list[SegmentLayout]) -> None:
    for layout in history:
        for segment in layout.segments.values():
            assert (segment.sealed_epoch == 0) == segment.is_active == (segment.sealed_ms == 0)
            assert segment.is_active or segment.sealed_epoch > segment.created_epoch


@given(layouts(roots_first=False))
def test_a_layout_is_untouched_by_the_changes_made_from_it(layout: SegmentLayout) -> None:
    before = image(layout)
    for segment in layout.active:
        if len(segment.range) > 1:
            layout.split(segment.id, 99)
    for one, other in pairwise(layout.active):
        layout.merge(one.id, other.id, 99)
    for segment in layout.sealed:
        layout.prune([segment.id])
        layout.mark_deleting([segment.id])
    assert image(layout) == before
    assert layout == ScalableTopic.decode(before).layout


def test_the_segments_of_a_layout_cannot_be_assigned_to() -> None:
    layout = SegmentLayout.initial(1, 0)
    with pytest.raises(TypeError):
        layout.segments[SegmentId(0)] = layout.segment(0)  # type: ignore[index]


@given(layouts(roots_first=False))
def test_lineage_is_every_ancestor_and_every_descendant_once(layout: SegmentLayout) -> None:
    def up(number: SegmentId) -> set[SegmentId]:
        return {number}.union(*(up(p) for p in layout.segments[number].parents))

    def down(number: SegmentId) -> set[SegmentId]:
        return {number}.union(*(down(c) for c in layout.segments[number].children))

    for number in layout.segments:
        assert layout.ancestors(number) == up(number) - {number}
        assert layout.descendants(number) == down(number) - {number}
        assert layout.lineage(number) == up(number) | down(number)


# -- split


def test_a_split_halves_at_the_midpoint_and_seals_the_parent() -> None:
    layout = SegmentLayout.initial(2, 5).split(0, 10)
    parent, left, right = layout.segment(0), layout.segment(2), layout.segment(3)
    assert (left.range, right.range) == (HashRange(0, 0x3FFF), HashRange(0x4000, 0x7FFF))
    assert (parent.is_sealed, parent.children, parent.sealed_epoch, parent.sealed_ms) == (True, (2, 3), 1, 10)
    assert left.parents == right.parents == (0,)
    assert (left.created_epoch, left.created_ms, left.is_active) == (1, 10, True)
    assert (layout.epoch, layout.next_id, layout.last_split_ms, layout.last_merge_ms) == (1, 4, 10, 0)


def test_a_range_of_odd_length_gives_its_first_half_the_hash_more() -> None:
    layout = SegmentLayout.initial(3, 0)
    assert len(layout.segment(0).range) % 2 == 1
    left, right = (layout.split(0, 1).segment(n) for n in (3, 4))
    assert len(left.range) == len(right.range) + 1


def test_a_segment_of_one_hash_cannot_be_split() -> None:
    layout = SegmentLayout.initial(HASH_MAX + 1, 0)
    with pytest.raises(LayoutRefused, match="one hash"):
        layout.split(17, 1)


@pytest.mark.parametrize(("number", "reason"), [(0, "sealed"), (9, "no segment 9"), (-1, "no segment")])
def test_a_sealed_or_unknown_segment_cannot_be_split(number: int, reason: str) -> None:
    layout = SegmentLayout.initial(2, 0).split(0, 1)
    before = image(layout)
    with pytest.raises(LayoutRefused, match=reason):
        layout.split(number, 2)
    assert image(layout) == before


# -- merge


@pytest.mark.parametrize("pair", [(0, 1), (1, 0)])
def test_a_merge_takes_its_segments_in_either_order(pair: tuple[int, int]) -> None:
    layout = SegmentLayout.initial(3, 0).merge(*pair, now_ms=20)
    child = layout.segment(3)
    assert (child.range, child.parents, child.is_active) == (HashRange(0, 2 * 21845 - 1), (0, 1), True)
    for parent in (layout.segment(0), layout.segment(1)):
        assert (parent.children, parent.sealed_epoch, parent.sealed_ms) == ((3,), 1, 20)
    assert (layout.epoch, layout.next_id, layout.last_merge_ms, layout.last_split_ms) == (1, 4, 20, 0)


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        (1, 1, "itself"),
        (1, 3, "not neighbours"),
        (3, 1, "not neighbours"),
        (0, 1, "sealed"),
        (1, 0, "sealed"),
        (1, 77, "no segment 77"),
        (77, 1, "no segment 77"),
        (77, 77, "itself"),
    ],
)
def test_a_merge_is_refused_with_the_reason_and_changes_nothing(one: int, other: int, reason: str) -> None:
    layout = SegmentLayout.initial(4, 0).split(0, 1)
    before = image(layout)
    with pytest.raises(LayoutRefused, match=reason):
        layout.merge(one, other, 2)
    assert image(layout) == before


@given(layouts(roots_first=False))
def test_segments_merge_exactly_when_their_ranges_touch(layout: SegmentLayout) -> None:
    for one in layout.active:
        for other in layout.active:
            if one is other or not one.range.is_adjacent_to(other.range):
                with pytest.raises(LayoutRefused):
                    layout.merge(one.id, other.id, 99)
            else:
                layout.merge(one.id, other.id, 99).check()


def test_the_times_of_merges_outlive_the_pruned_parents_and_are_kept_in_a_bounded_number() -> None:
    layout = SegmentLayout.initial(1, 0)
    for n in range(1, MERGE_TIMES_MAX + 11):
        layout = layout.split(layout.active[0].id, 10 * n)
        layout = layout.merge(layout.active[0].id, layout.active[1].id, 10 * n + 1)
        layout = layout.prune(roots(layout))
    expected = [10 * n + 1 for n in range(11, MERGE_TIMES_MAX + 11)]
    assert list(layout.active[0].merged_ms) == expected
    assert (layout.last_split_ms, layout.last_merge_ms) == (expected[-1] - 1, expected[-1])


@given(histories(changes_max=20, roots_first=False), st.integers(0, 250))
def test_the_merges_since_any_moment_are_counted_along_the_chain_that_has_the_most(
    history: list[SegmentLayout], since_ms: int
) -> None:
    # Reckoned along every chain of parents, over layouts of which nothing is pruned.
    chains: dict[SegmentId, int] = {}
    for layout in history:
        for segment in layout.segments.values():
            if segment.id not in chains:
                was_merged = len(segment.parents) == 2
                longest = max((chains[p] for p in segment.parents), default=0)
                chains[segment.id] = longest + (was_merged and segment.created_ms >= since_ms)
    for segment in history[-1].active:
        assert sum(at >= since_ms for at in segment.merged_ms) == chains[segment.id]


def test_a_split_notes_down_how_lopsided_it_was_and_a_merge_keeps_the_larger() -> None:
    layout = SegmentLayout.initial(2, 0).split(0, 1, lopsided=3)
    assert [s.lopsided for s in layout.active] == [3, 3, 0]
    layout = layout.merge(3, 1, 2)
    assert [s.lopsided for s in layout.active] == [3, 3]
    assert [s.lopsided for s in layout.split(2, 3).active] == [0, 0, 3]


# -- prune


@given(layouts(roots_first=False))
def test_a_prune_leaves_no_trace_among_relatives_and_moves_no_key(layout: SegmentLayout) -> None:
    for gone in layout.sealed:
        after = layout.prune([gone.id])
        assert after.segments.keys() == layout.segments.keys() - {gone.id}
        assert all(gone.id not in (*s.parents, *s.children) for s in after.segments.values())
        assert [s.range for s in after.active] == [s.range for s in layout.active]
        assert after.next_id == layout.next_id
        assert after.epoch == layout.epoch + 1


@given(layouts(roots_first=False), st.data())
def test_pruning_several_at_once_is_pruning_one_after_the_other_but_for_the_epoch(
    layout: SegmentLayout, data: st.DataObject
) -> None:
    assume(layout.sealed)
    gone = data.draw(st.lists(st.sampled_from([s.id for s in layout.sealed]), min_size=1))
    one_by_one = layout
    for number in dict.fromkeys(gone):
        one_by_one = one_by_one.prune([number])
    assert layout.prune(gone).segments == one_by_one.segments
    assert layout.prune(gone).epoch == layout.epoch + 1


@pytest.mark.parametrize(("number", "reason"), [(1, "active"), (2, "active"), (9, "no segment 9")])
def test_only_a_sealed_segment_is_pruned_or_marked_for_deletion(number: int, reason: str) -> None:
    layout = SegmentLayout.initial(2, 0).split(0, 1)
    before = image(layout)
    with pytest.raises(LayoutRefused, match=reason):
        layout.prune([0, number])
    with pytest.raises(LayoutRefused, match=reason):
        layout.mark_deleting([SegmentId(number)])
    assert image(layout) == before


def test_a_mark_for_deletion_is_no_new_layout_to_clients() -> None:
    layout = SegmentLayout.initial(2, 0).split(0, 1)
    marked = layout.mark_deleting([SegmentId(0)])
    assert marked.segment(0).is_deleting
    assert marked.epoch == layout.epoch
    assert not layout.segment(0).is_deleting


# -- beginnings


@given(st.integers(1, 300))
def test_a_new_topic_has_n_equal_active_segments_at_epoch_0(count: int) -> None:
    layout = SegmentLayout.initial(count, 42)
    layout.check()
    assert [s.id for s in layout.active] == list(range(count))
    assert (layout.epoch, layout.next_id, layout.sealed) == (0, count, ())
    assert all(s.created_ms == 42 and not s.parents and not s.created_epoch for s in layout.active)


@pytest.mark.parametrize("count", [0, -3, HASH_MAX + 2])
def test_a_topic_without_segments_is_refused(count: int) -> None:
    with pytest.raises(LayoutRefused):
        SegmentLayout.initial(count, 0)


def test_a_migrated_topic_waits_for_every_old_partition() -> None:
    names = [f"persistent://a/b/t-partition-{n}" for n in range(3)]
    layout = SegmentLayout.migrated(names, 7)
    layout.check()
    assert [s.classic_topic for s in layout.sealed] == names
    assert {s.range for s in layout.sealed} == {WHOLE}
    assert all(layout.ancestors(s.id) == {0, 1, 2} for s in layout.active)
    assert [s.range for s in layout.active] == HashRange.even(3)


def test_the_layout_of_a_classic_topic_is_its_partitions_all_active() -> None:
    names = [f"persistent://a/b/t-partition-{n}" for n in range(4)]
    layout = SegmentLayout.synthetic(names, 7)
    layout.check()
    assert [s.classic_topic for s in layout.active] == names
    assert layout.sealed == ()


@given(st.integers(1, 20))
def test_a_classic_topic_that_grows_or_is_migrated_never_goes_back_in_epoch(count: int) -> None:
    names = [f"persistent://a/b/t-partition-{n}" for n in range(count + 1)]
    fewer, more = SegmentLayout.synthetic(names[:-1], 7), SegmentLayout.synthetic(names, 7)
    migrated = SegmentLayout.migrated(names, 8)
    assert 0 <= fewer.epoch < more.epoch < migrated.epoch
    assert all(migrated.segment(s.id).classic_topic == s.classic_topic for s in more.active)
