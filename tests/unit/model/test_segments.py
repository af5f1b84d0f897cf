"""Hash ranges, segments and the names of both."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.names import Domain, InvalidName, NamespaceName, TopicName
from anabranch.model.segments import (
    HASH_MAX,
    WHOLE,
    HashRange,
    LayoutRefused,
    Segment,
    SegmentId,
    SegmentState,
    parse_descriptor,
    segment_of,
)

hashes = st.integers(0, HASH_MAX)
ranges = st.tuples(hashes, hashes).map(lambda pair: HashRange(min(pair), max(pair)))
ids = st.integers(0, 2**63 - 1).map(SegmentId)
namespace = NamespaceName("acme", "sales")
# Parts of local names as users choose them: slashes inside, any script.
locals_ = st.lists(
    st.text(st.characters(blacklist_categories=["Cs", "Cc", "Zs"], blacklist_characters="/"), min_size=1), min_size=1
).map("/".join).filter(lambda s: s.strip() == s and 0 < len(s.encode()) < 1000)  # fmt: skip


@given(ranges, ids)
def test_a_descriptor_parses_back_to_the_range_and_id_it_was_printed_from(
    span: HashRange, number: SegmentId
) -> None:
    assert parse_descriptor(Segment(number, span).descriptor) == (span, number)


def test_a_descriptor_reads_as_hex_start_hex_end_and_decimal_id() -> None:
    assert Segment(SegmentId(1), HashRange(0, 0x7FFF)).descriptor == "0000-7fff-1"
    assert parse_descriptor("00ff-abcd-120") == (HashRange(0xFF, 0xABCD), 120)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0000-7fff",
        "0000-7fff-",
        "0000-7fff-1-2",
        "0000-7fff--1",
        "0000-7fff-01",
        "0000-7fff-1 ",
        " 0000-7fff-1",
        "0000-7fff-1\n",
        "0-7fff-1",
        "0000-7FFF-1",
        "0000-10000-1",
        "7fff-0000-1",
        "zzzz-7fff-1",
        "0000_7fff_1",
        "0000-7fff-x",
        "0000-7fff-\u0661",
    ],
)
def test_a_malformed_descriptor_is_refused(text: str) -> None:
    with pytest.raises(InvalidName):
        parse_descriptor(text)


@given(locals_, ranges, ids)
def test_the_name_of_a_segment_leads_back_to_its_topic(
    local: str, span: HashRange, number: SegmentId
) -> None:
    parent = TopicName(Domain.TOPIC, namespace, local)
    name = Segment(number, span).topic(parent)
    assert str(name) == f"segment://acme/sales/{local}/{span}-{number}"
    assert TopicName.parse(str(name)) == name
    assert segment_of(name) == (parent, span, number)


def test_a_segment_that_stands_for_a_classic_topic_is_that_topic() -> None:
    classic = "persistent://acme/sales/orders-partition-3"
    segment = Segment(SegmentId(3), WHOLE, classic_topic=classic)
    assert str(segment.topic(TopicName.parse("topic://acme/sales/orders"))) == classic


@pytest.mark.parametrize("text", ["topic://a/b/t", "persistent://a/b/t"])
def test_only_a_segment_name_has_a_segment_in_it(text: str) -> None:
    with pytest.raises(InvalidName, match="not a segment"):
        segment_of(TopicName.parse(text))


@pytest.mark.parametrize(
    "text",
    [
        "segment://a/b/0000-7fff-1",
        "segment://a/b/t/0000-7fff",
        "segment://a/b/t/8000-7fff-1",
        "segment://a/b/t/",
    ],
)
def test_a_malformed_segment_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidName):
        segment_of(TopicName.parse(text))


@given(ranges, hashes)
def test_a_range_includes_both_its_ends(span: HashRange, value: int) -> None:
    assert span.start in span
    assert span.end in span
    assert (value in span) == (span.start <= value <= span.end)
    assert len(span) == span.end - span.start + 1


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (5, 4), (0, HASH_MAX + 1)])
def test_a_range_outside_the_hash_space_is_refused(start: int, end: int) -> None:
    with pytest.raises(InvalidName):
        HashRange(start, end)


@given(ranges.filter(lambda span: len(span) > 1))
def test_halves_meet_at_the_midpoint_and_join_to_the_whole(span: HashRange) -> None:
    left, right = span.halves()
    middle = (span.start + span.end) // 2
    assert (left.start, left.end, right.start, right.end) == (span.start, middle, middle + 1, span.end)
    assert left.is_adjacent_to(right)
    assert right.is_adjacent_to(left)
    assert not left.overlaps(right)
    assert left.joined(right) == right.joined(left) == span


@given(hashes)
def test_one_hash_cannot_be_halved(value: int) -> None:
    with pytest.raises(LayoutRefused, match="one hash"):
        HashRange(value, value).halves()


@given(ranges, ranges)
def test_neighbours_never_overlap(one: HashRange, other: HashRange) -> None:
    assert one.overlaps(other) == bool(max(one.start, other.start) <= min(one.end, other.end))
    assert not (one.overlaps(other) and one.is_adjacent_to(other))


@given(st.integers(1, 500) | st.sampled_from([1000, 4096, 32_768, 32_769, HASH_MAX, HASH_MAX + 1]))
def test_even_ranges_cover_the_space_and_the_last_takes_the_remainder(count: int) -> None:
    spans = HashRange.even(count)
    assert len(spans) == count
    assert spans[0].start == 0
    assert spans[-1].end == HASH_MAX
    assert all(left.end + 1 == right.start for left, right in pairwise(spans))
    widths = {len(span) for span in spans[:-1]}
    assert len(widths) <= 1
    assert len(spans[-1]) >= max(widths, default=0)


@pytest.mark.parametrize("count", [0, -1, HASH_MAX + 2])
def test_no_ranges_and_more_ranges_than_hashes_are_refused(count: int) -> None:
    with pytest.raises(LayoutRefused):
        HashRange.even(count)


def test_a_segment_is_sealed_exactly_when_it_has_an_epoch_of_sealing() -> None:
    active = Segment(SegmentId(0), WHOLE)
    sealed = active.sealed(7, 1234, (SegmentId(1),))
    assert (active.state, active.is_active, active.is_sealed, active.sealed_epoch) == (
        SegmentState.ACTIVE,
        True,
        False,
        0,
    )
    assert (sealed.state, sealed.is_active, sealed.is_sealed) == (SegmentState.SEALED, False, True)
    assert (sealed.sealed_epoch, sealed.sealed_ms, sealed.children) == (7, 1234, (1,))
