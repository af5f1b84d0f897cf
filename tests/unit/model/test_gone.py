"""What layouts remember of pruned segments."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.gone import EMPTY, Gone, remember
from anabranch.model.layout import SegmentLayout
from anabranch.model.scalable import ScalableTopic
from anabranch.model.segments import HASH_MAX, HashRange, Segment, SegmentId

hashes = st.integers(0, HASH_MAX)
ranges = st.tuples(hashes, hashes).map(lambda pair: HashRange(min(pair), max(pair)))
ends = st.none() | st.just(EMPTY) | st.tuples(st.integers(0, 9), st.integers(1, 9))


def pruned(number: int, span: HashRange, end: tuple[int, int] | None, *, is_classic: bool = False) -> Segment:
    return Segment(SegmentId(number), span, classic_topic="t-partition-0" if is_classic else "", end=end)


@given(st.lists(st.tuples(ranges, ends), max_size=8), st.data())
def test_the_newest_that_held_anything_is_remembered_for_every_hash_whatever_the_order(
    given_: list[tuple[HashRange, tuple[int, int] | None]], data: st.DataObject
) -> None:
    segments = [pruned(number, span, end) for number, (span, end) in enumerate(given_)]
    known: tuple[Gone, ...] = ()
    for segment in data.draw(st.permutations(segments)):
        known = remember(known, [segment])
    points = {point for s in segments for point in (s.range.start, s.range.end)} | {0, HASH_MAX}
    for point in points:
        there = [g for g in known if point in g.range]
        held = [s for s in segments if point in s.range and s.end != EMPTY]
        assert [(g.segment, g.end) for g in there] == [(s.id, s.end) for s in held[-1:]]
    assert len(known) <= 2 * len(segments)


def test_partitions_are_remembered_one_by_one() -> None:
    whole = HashRange(0, HASH_MAX)
    known = remember((), [pruned(n, whole, (5, n), is_classic=True) for n in (1, 2)])
    known = remember(known, [pruned(7, whole, (6, 6))])
    assert [(g.segment, g.is_classic) for g in known] == [(1, True), (2, True), (7, False)]


def test_a_layout_remembers_what_it_prunes_and_so_does_its_record() -> None:
    layout = SegmentLayout.initial(1, 0).split(0, 0)
    marked = layout.mark_deleting([SegmentId(0)], {SegmentId(0): (4, 9)})
    assert ScalableTopic.decode(ScalableTopic(marked, 1).encode()).layout == marked
    # A leader that goes on with it does not know the end any more, and does not take it back.
    after = marked.mark_deleting([SegmentId(0)]).prune([0])
    assert after.gone == (Gone(SegmentId(0), HashRange(0, HASH_MAX), (4, 9)),)
    assert ScalableTopic.decode(ScalableTopic(after, 1).encode()).layout == after
    split = after.split(1, 0)
    assert split.gone == after.gone


def test_an_empty_segment_leaves_no_trace_and_one_of_unknown_end_does() -> None:
    layout = SegmentLayout.initial(1, 0).split(0, 0)
    assert layout.mark_deleting([SegmentId(0)], {SegmentId(0): EMPTY}).prune([0]).gone == ()
    assert layout.prune([0]).gone == (Gone(SegmentId(0), HashRange(0, HASH_MAX), None),)
