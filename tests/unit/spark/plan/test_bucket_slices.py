"""Slices that are cut by entry buckets: together what they were, each of whole buckets, as many as asked for."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model import buckets
from anabranch.model.buckets import BucketBudget
from anabranch.model.cut import BEGINNING, BadCheckpoint, Cut, MessagePosition, Place, at_end, is_at_end
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import HASH_MAX, WHOLE, HashRange, SegmentId
from anabranch.spark.plan.bucket_slices import cut_by_bucket, room, shares
from anabranch.spark.plan.packing import SLICE_BYTES, SegmentSize, weight
from anabranch.spark.plan.plan import Known, SegmentSlice, plan, reach

ONE = SegmentId(1)
splits = st.sets(st.integers(1, HASH_MAX), max_size=12).map(lambda found: tuple(sorted(found)))
spans = st.tuples(st.integers(0, HASH_MAX), st.integers(0, HASH_MAX)).map(
    lambda ends: HashRange(min(ends), max(ends))
)


@given(splits, st.none() | spans, st.data())
def test_pieces_tile_the_slices_hashes_between_the_same_positions(
    splits: tuple[int, ...], span: HashRange | None, data: st.DataObject
) -> None:
    one = SegmentSlice(ONE, (5, 10, 3), (9, 14, 0), chunks_from=(5, 8), hashes=span)
    pieces = data.draw(st.integers(1, room(one, splits)))
    found = cut_by_bucket(one, splits, pieces)
    assert len(found) == pieces
    assert all((p.start, p.end, p.chunks_from) == (one.start, one.end, one.chunks_from) for p in found)
    ranges = [piece.hashes or WHOLE for piece in found]
    assert all(a.end + 1 == b.start for a, b in pairwise(ranges))
    assert (ranges[0].start, ranges[-1].end) == ((span or WHOLE).start, (span or WHOLE).end)
    for bucket in buckets.ranges(splits):
        within = [piece for piece in ranges if piece.overlaps(bucket)]
        assert len(within) <= 1, "a bucket lies in one slice, or its entries are unpacked by several"


@given(
    st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(1, 9)), min_size=1, max_size=8),
    st.integers(1, 60),
)
def test_slices_are_as_many_as_asked_for_or_as_there_is_room_for(
    given: list[tuple[int, int]], pieces_min: int
) -> None:
    weights, rooms = [one for one, _ in given], [two for _, two in given]
    counts = shares(weights, rooms, pieces_min)
    assert all(1 <= count <= most for count, most in zip(counts, rooms, strict=True))
    assert sum(counts) == max(len(given), min(pieces_min, sum(rooms)))


def test_the_heaviest_are_cut_first() -> None:
    assert shares([100, 10, 10], [8, 8, 8], 6) == [4, 1, 1]
    assert shares([100, 10, 10], [2, 8, 8], 6) == [2, 2, 2]
    assert shares([7, 7], [4, 4], 5) == [3, 2]


def test_four_buckets_make_two_slices_of_two() -> None:
    one = SegmentSlice(ONE, None, None)
    assert [piece.hashes for piece in cut_by_bucket(one, buckets.even(4), 2)] == [
        HashRange(0, 0x7FFF),
        HashRange(0x8000, HASH_MAX),
    ]
    assert cut_by_bucket(one, buckets.even(4), 1) == [one]
    assert room(one, ()) == 1


def test_a_slice_of_some_buckets_weighs_their_share() -> None:
    kept = SegmentSize(bytes=1_000_000, entries=1000)
    one = SegmentSlice(ONE, (5, 10, 0), (5, 30, 0), hashes=HashRange(0, 0x3FFF))
    assert weight(one, kept) == SLICE_BYTES + 5_000


# -- cuts with a position for each bucket

BUCKETS = 4
LAYOUT = SegmentLayout.initial(1, 0, budget=BucketBudget(BUCKETS))
Z = SegmentId(0)
PLACE = Place.of(LAYOUT.segments[Z])
positions = st.tuples(st.integers(3, 4), st.integers(0, 5), st.just(0))
everywhere = st.lists(positions | st.just(at_end()), min_size=BUCKETS, max_size=BUCKETS).map(tuple)


def bucket_rows(slices: list[SegmentSlice]) -> list[tuple[int, tuple[int, int, int]]]:
    """The rows of a log that has one of each bucket in each entry."""
    firsts = [span.start for span in buckets.ranges(buckets.even(BUCKETS))]
    return sorted(
        (bucket, at)
        for one in slices
        for at in ((ledger, entry, 0) for ledger in (3, 4) for entry in range(6))
        for bucket, first in enumerate(firsts)
        if first in (one.hashes or WHOLE)
        and (one.start or BEGINNING) <= at
        and (one.end is None or at < one.end)
    )


@given(everywhere, everywhere)
def test_what_lies_between_two_cuts_is_what_lies_between_them_in_each_bucket(
    start: tuple[MessagePosition, ...], end: tuple[MessagePosition, ...]
) -> None:
    one, two = Cut((PLACE.standing(start),)), Cut((PLACE.standing(end),))
    expected = [
        (bucket, at)
        for bucket in range(BUCKETS)
        for at in ((ledger, entry, 0) for ledger in (3, 4) for entry in range(6))
        if start[bucket] <= at < end[bucket]
    ]
    assert bucket_rows(plan(LAYOUT, one, two)) == sorted(expected)


@given(everywhere, st.lists(positions, max_size=4).map(sorted))
def test_batches_from_a_groups_cut_have_each_row_once_and_end_at_one_position(
    start: tuple[MessagePosition, ...], bounds: list[MessagePosition]
) -> None:
    """The segment grows; then it is sealed, and ends."""
    whole = (4, 6, 0)
    begin = cut = Cut((PLACE.standing(start),))
    found: list[tuple[int, tuple[int, int, int]]] = []
    for bound in [*bounds, whole]:
        end = reach(LAYOUT, cut, Known({Z: bound}))
        end = Cut.decode(end.encode())
        found += bucket_rows(plan(LAYOUT, cut, end))
        cut = end
    place = begin.get(0)
    assert place is not None
    expected = [] if place.is_over else bucket_rows(plan(LAYOUT, begin, Cut((PLACE.moved(whole),))))
    assert sorted(found) == expected
    last = cut.get(0)
    assert last is not None
    assert last.is_over or any(map(is_at_end, start)) or last.at == (whole,)


def test_a_bucket_that_was_read_to_the_end_is_read_no_more() -> None:
    start = Cut((PLACE.standing((at_end(7), (3, 1, 0), (3, 1, 0), at_end(7))),))
    (one,) = plan(LAYOUT, start, Cut((PLACE.over(7),)))
    assert one == SegmentSlice(Z, (3, 1, 0), None, None, HashRange(0x4000, 0xBFFF))
    assert Cut((PLACE.standing((at_end(7),) * 4),)) == Cut((PLACE.over(7),))


def test_a_cut_with_positions_for_other_buckets_than_the_segments_is_refused() -> None:
    wrong = Cut((PLACE.standing(((3, 0, 0), (3, 1, 0))),))
    with pytest.raises(BadCheckpoint, match="unknown to the topic"):
        plan(LAYOUT, wrong, wrong)


def test_chunks_are_read_again_only_where_they_lie_before_the_slice() -> None:
    start = Cut((PLACE.standing(((3, 9, 0), (3, 9, 0), (3, 2, 0), (3, 2, 0)), (3, 5)),))
    end = Cut((PLACE.moved((3, 20, 0)),))
    assert [one.chunks_from for one in plan(LAYOUT, start, end)] == [(3, 5), None]
