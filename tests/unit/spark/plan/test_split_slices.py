"""Slices that are cut up: nothing is lost, nothing is doubled, and the pieces are even."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.cut import BEGINNING, MessagePosition
from anabranch.model.segments import SegmentId
from anabranch.spark.plan.plan import SegmentSlice
from anabranch.spark.plan.split_slices import Ledgers, cut_up, needs_ledgers

ONE = SegmentId(1)
ledgers = st.lists(st.integers(0, 40), min_size=1, max_size=4).map(
    lambda sizes: [(7 + 5 * n, size) for n, size in enumerate(sizes)]
)


def entries(one: SegmentSlice, known: Ledgers) -> list[MessagePosition]:
    """Those that a task would read some message of."""
    return [
        (ledger, entry, 0)
        for ledger, count in known
        for entry in range(count)
        if (one.start is None or (ledger, entry) >= one.start[:2])
        and (one.end is None or (ledger, entry, 0) < one.end)
    ]


@st.composite
def slices(draw: st.DrawFn) -> tuple[SegmentSlice, Ledgers]:
    known = draw(ledgers)
    places = st.sampled_from(
        [(ledger, entry, index) for ledger, n in known for entry in range(n + 1) for index in (0, 2)]
    )
    start, end = draw(st.none() | places), draw(st.none() | places)
    if start is not None and end is not None and end < start:
        start, end = end, start
    return SegmentSlice(ONE, start, end), known


@given(st.lists(slices(), min_size=1, max_size=4), st.integers(1, 50))
def test_pieces_join_to_what_they_were_cut_from_and_are_as_many_as_asked_for(
    given: list[tuple[SegmentSlice, Ledgers]], pieces_min: int
) -> None:
    found = cut_up(given, pieces_min)
    sizes: list[int] = []
    for (one, known), parts in zip(given, found, strict=True):
        assert (parts[0].start, parts[-1].end) == (one.start, one.end)
        assert all(a.end == b.start for a, b in pairwise(parts))
        assert [at for part in parts for at in entries(part, known)] == entries(one, known)
        sizes += [len(entries(part, known)) for part in parts]
    total = sum(sizes)
    if total >= pieces_min:
        assert len(sizes) >= pieces_min
    fair = total / pieces_min
    assert all(size <= fair + 1 for size in sizes)


def test_a_slice_whose_entries_cannot_be_counted_stays_whole() -> None:
    whole = SegmentSlice(ONE, None, None)
    assert needs_ledgers(whole)
    assert cut_up([(whole, ())], 4) == [[whole]]


def test_within_one_ledger_positions_tell_how_many_entries_there_are() -> None:
    one = SegmentSlice(ONE, (5, 10, 3), (5, 14, 0), chunks_from=(5, 8))
    assert not needs_ledgers(one)
    assert cut_up([(one, ())], 2) == [
        [SegmentSlice(ONE, (5, 10, 3), (5, 12, 0), (5, 8)), SegmentSlice(ONE, (5, 12, 0), (5, 14, 0))]
    ]


def test_a_segment_without_entries_is_one_piece() -> None:
    one = SegmentSlice(ONE, BEGINNING, None)
    assert cut_up([(one, [(3, 0)])], 9) == [[one]]
