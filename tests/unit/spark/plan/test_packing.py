"""Slices that share a task: each is in one, in order, and tasks weigh about the same."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from anabranch.model.segments import SegmentId
from anabranch.spark.plan.packing import SLICE_BYTES, TASK_BYTES, SegmentSize, packed, tasks_for, weight
from anabranch.spark.plan.plan import SegmentSlice

ONE = SegmentId(1)
weights = st.lists(st.integers(1, 1 << 40) | st.integers(1, 5), max_size=60)


@given(weights, st.integers(1, 40))
@example([7, 1, 1, 1], 2)
def test_each_is_in_one_task_in_their_order_and_no_task_is_empty(given: list[int], tasks_max: int) -> None:
    tasks = packed(given, tasks_max)
    assert sorted(place for task in tasks for place in task) == list(range(len(given)))
    assert all(task and task == sorted(task) for task in tasks)
    assert len(tasks) == min(len(given), tasks_max)


@given(weights, st.integers(1, 40))
def test_no_task_is_heavier_than_the_average_by_more_than_one_slice(given: list[int], tasks_max: int) -> None:
    loads = [sum(given[place] for place in task) for task in packed(given, tasks_max)]
    assert all(load * tasks_max <= sum(given) + max(given) * tasks_max for load in loads)


@given(weights, st.integers(1, 40))
@example([100, 1, 1, 1, 1], 3)
def test_one_that_is_heavier_than_the_average_is_alone(given: list[int], tasks_max: int) -> None:
    for task in packed(given, tasks_max):
        if any(given[place] * tasks_max > sum(given) for place in task):
            assert len(task) == 1


@given(weights, st.integers(1, 40))
def test_the_same_slices_are_packed_in_the_same_way(given: list[int], tasks_max: int) -> None:
    assert packed(given, tasks_max) == packed(list(given), tasks_max)


def test_small_batches_have_tasks_for_every_core_and_large_ones_for_their_bytes() -> None:
    assert tasks_for([SLICE_BYTES] * 500, cores=3) == 6
    assert tasks_for([TASK_BYTES] * 100, cores=3) == 100
    assert tasks_for([40 * TASK_BYTES], cores=2) == 40


def test_a_slice_weighs_what_its_entries_are_expected_to_have() -> None:
    kept = SegmentSize(bytes=1_000_000, entries=1000)
    assert weight(SegmentSlice(ONE, (5, 10, 0), (5, 30, 0)), kept) == SLICE_BYTES + 20_000
    assert weight(SegmentSlice(ONE, (5, 10, 3), (5, 10, 9)), kept) == SLICE_BYTES + 1_000
    assert weight(SegmentSlice(ONE, None, (5, 100, 0)), kept) == SLICE_BYTES + 100_000


def test_a_slice_whose_entries_cannot_be_counted_weighs_as_much_as_its_segment() -> None:
    kept = SegmentSize(bytes=1_000_000, entries=1000)
    for one in (SegmentSlice(ONE, (5, 10, 0), None), SegmentSlice(ONE, (5, 10, 0), (9, 3, 0))):
        assert weight(one, kept) == SLICE_BYTES + 1_000_000
    assert weight(SegmentSlice(ONE, (5, 0, 0), (5, 5000, 0)), kept) == SLICE_BYTES + 1_000_000


def test_of_a_segment_that_nothing_is_known_of_more_entries_weigh_more() -> None:
    few, many = SegmentSlice(ONE, (5, 0, 0), (5, 10, 0)), SegmentSlice(ONE, (5, 0, 0), (5, 900, 0))
    for kept in (None, SegmentSize(0, 0)):
        assert SLICE_BYTES < weight(few, kept) < weight(many, kept)
        assert weight(SegmentSlice(ONE, None, None), kept) == SLICE_BYTES
