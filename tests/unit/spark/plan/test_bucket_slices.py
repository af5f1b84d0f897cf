"""Slices that are cut by entry buckets: together what they were, each of whole buckets, as many as asked for."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model import buckets
from anabranch.model.segments import HASH_MAX, WHOLE, HashRange, SegmentId
from anabranch.spark.plan.bucket_slices import cut_by_bucket, room, shares
from anabranch.spark.plan.packing import SLICE_BYTES, SegmentSize, weight
from anabranch.spark.plan.plan import SegmentSlice

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
