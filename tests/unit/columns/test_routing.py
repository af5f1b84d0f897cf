"""Columns are routed as single messages are, and partitions keep the order of rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.client.producing.core.lanes import Routing, keyless_hash
from anabranch.columns import Router, bucket_span, hash_keys, partition
from anabranch.model.buckets import BucketBudget, bucket_of
from anabranch.model.layout import SegmentLayout

HASHES = st.lists(st.integers(0, 0xFFFFFFFF), max_size=50)
STARTS = st.sets(st.integers(1, 0xFFFF), max_size=20).map(lambda some: [0, *sorted(some)])


def uint32(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.array(values, np.uint32)


@given(HASHES, STARTS, st.booleans())
def test_each_hash_goes_to_the_last_segment_that_starts_at_or_before_it(
    hashes: list[int], starts: list[int], high: bool
) -> None:
    found = Router(starts, high=high).route(uint32(hashes)).tolist()
    halves = [one >> 16 if high else one & 0xFFFF for one in hashes]
    assert found == [max(i for i, start in enumerate(starts) if start <= half) for half in halves]


@given(HASHES, st.integers(1, 9))
def test_classic_topics_are_routed_by_remainder(hashes: list[int], partitions: int) -> None:
    router = Router.classic(partitions)
    assert router.route(uint32(hashes)).tolist() == [(one & 0x7FFFFFFF) % partitions for one in hashes]


@pytest.mark.parametrize("high", [True, False])
def test_routes_are_those_of_the_layout(high: bool) -> None:
    layout = SegmentLayout.initial(3, 0)
    layout = layout.split(layout.active[1].id, 0)
    router = Router([one.range.start for one in layout.active], high=high)
    hashes = hash_keys(pa.array([f"key-{i}" for i in range(500)]))
    halves = (hashes >> 16 if high else hashes & 0xFFFF).tolist()
    found = [layout.active[i].id for i in router.route(hashes).tolist()]
    assert found == [layout.find_active(half).id for half in halves]
    # Without keys, segments take turns and each turn's hash lies in its segment, elsewhere each time.
    turns = router.keyless(100, 7)
    assert router.route(turns).tolist() == [(7 + i) % 4 for i in range(100)]
    # Where the low half decides, it is one for the producer, and the same in each of a segment's turns.
    assert len(set(turns.tolist())) == (100 if high else 4)


SPLITS = st.sets(st.integers(1, 0xFFFF), max_size=8).map(lambda some: tuple(sorted(some)))


@given(HASHES, STARTS, st.lists(SPLITS, min_size=1, max_size=3), st.booleans())
def test_each_bucket_has_a_place_behind_those_of_the_segments_before(
    hashes: list[int], starts: list[int], some: list[tuple[int, ...]], high: bool
) -> None:
    splits = [some[n % len(some)] for n in range(len(starts))]
    router = Router(starts, high=high, splits=splits)
    bases = [sum(len(one) + 1 for one in splits[:n]) for n in range(len(starts) + 1)]
    assert len(router) == bases[-1]
    segments = Router(starts, high=high).route(uint32(hashes)).tolist()
    assert router.route(uint32(hashes)).tolist() == [
        bases[segment] + bucket_of(splits[segment], one & 0xFFFF)
        for one, segment in zip(hashes, segments, strict=True)
    ]


@pytest.mark.parametrize("routing", list(Routing))
@pytest.mark.parametrize("partitions", [0, 1, 3])
def test_rows_without_a_key_have_the_hashes_of_messages_without_one(
    routing: Routing, partitions: int
) -> None:
    high = routing is Routing.HIGH
    layout = SegmentLayout.initial(3, 0, budget=BucketBudget(12))
    router = Router(
        [one.range.start for one in layout.active],
        high=high,
        splits=[one.bucket_splits for one in layout.active],
        keyless_low=0xBEEF,
    )
    if partitions:
        layout = SegmentLayout.synthetic([f"persistent://a/b/t-partition-{n}" for n in range(partitions)], 0)
        router = Router.classic(partitions, 0xBEEF, high=high)
    expected = [keyless_hash(layout, turn, routing, 0xBEEF) for turn in range(5, 50)]
    assert router.keyless(45, 5).tolist() == expected


def test_buckets_must_be_told_for_every_segment() -> None:
    with pytest.raises(ValueError, match="1 lists of buckets for 2 segments"):
        Router([0, 5], splits=[(1,)])


def test_rows_without_a_key_take_turns_and_the_others_keep_their_hash() -> None:
    router = Router([0, 0x8000])
    keys = pa.array(["a", None, None, "b", None])
    hashes = hash_keys(keys)
    assert router.fill_keyless(hashes, keys, 0) == 3
    assert hashes[[0, 3]].tolist() == hash_keys(pa.array(["a", "b"])).tolist()
    assert router.route(hashes[[1, 2, 4]]).tolist() == [0, 1, 0]
    assert router.route(router.keyless(6, 0, run=2)).tolist() == [0, 0, 1, 1, 0, 0]
    assert Router.classic(3).route(Router.classic(3).keyless(4, 2)).tolist() == [2, 0, 1, 2]


def test_a_column_of_nothing_but_nulls_is_filled() -> None:
    router = Router([0, 0x8000])
    hashes = hash_keys(pa.nulls(2))
    assert router.fill_keyless(hashes, pa.nulls(2), 0) == 2
    assert router.route(hashes).tolist() == [0, 1]


@given(st.lists(st.integers(0, 4), max_size=60), st.integers(5, 8))
def test_a_partition_is_a_stable_sort_by_group(index: list[int], groups: int) -> None:
    order, bounds = partition(np.array(index, np.int32), groups)
    assert order.tolist() == sorted(range(len(index)), key=lambda row: index[row])
    assert np.diff(bounds).tolist() == [index.count(group) for group in range(groups)]


def test_one_group_has_all_rows() -> None:
    order, bounds = partition(np.zeros(4, np.int32), 1)
    assert (order.tolist(), bounds.tolist()) == ([0, 1, 2, 3], [0, 4])


@pytest.mark.parametrize("starts", [[], [1], [0, 5, 5], [0, 9, 3], [0, 0x10000]])
def test_starts_that_leave_hashes_without_a_segment_are_refused(starts: list[int]) -> None:
    with pytest.raises(ValueError, match="need rising 16-bit numbers from 0"):
        Router(starts)


def test_the_bucket_span_covers_the_low_halves() -> None:
    assert bucket_span(uint32([0xFFFF0005, 0x00010003, 0x0000FFF0])) == (3, 0xFFF0)
