"""Cuts: their text, their normal form, and what merging them says."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.cut import (
    BEGINNING,
    VERSION,
    BadCheckpoint,
    Cut,
    MessagePosition,
    Place,
    at_end,
    behind,
    uncovered,
)
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import HASH_MAX, WHOLE, HashRange, SegmentId
from unit.model.readings import Group, Reader, Topic

ONE = SegmentLayout.initial(1, 0)
# 0 splits into 1 and 2; 1 splits into 3 and 4; 2 and 4 merge into 5.
RIVER = ONE.split(0, 0).split(1, 0).merge(4, 2, 0)

longs = st.integers(0, 2**63 - 1)
hashes = st.integers(0, HASH_MAX)
ranges = st.tuples(hashes, hashes).map(lambda pair: HashRange(min(pair), max(pair)))
# The last ledger of all stands for the end of a bucket.
positions = st.tuples(st.integers(0, 2**63 - 2), longs, st.integers(0, 2**31 - 1))

# Not Hypothesis's own, which is slow: a failure names its seed.
chances = st.integers(0, 2**32).map(random.Random)


@st.composite
def places(draw: st.DrawFn) -> Place:
    number, span, epoch = SegmentId(draw(longs)), draw(ranges), draw(longs)
    if draw(st.booleans()):
        number, span, epoch = SegmentId(number), WHOLE, 0
        base = Place(number, span, epoch, is_classic=True)
    else:
        base = Place(number, span, epoch, is_apart=draw(st.booleans()))
    if draw(st.booleans()):
        return base.over(draw(longs))
    at = tuple(draw(st.lists(positions, min_size=1, max_size=3, unique=True)))
    chunks = draw(st.none() | st.tuples(longs, longs))
    return Place(number, span, epoch, at, 0, base.is_apart, base.is_classic, chunks)


ids = st.sampled_from(("", "0123456789abcdef0123456789abcdef", "generation-17"))
cuts = st.builds(
    lambda ps, topic_id: Cut(tuple(ps), topic_id),
    st.lists(places(), max_size=8, unique_by=lambda place: place.segment),
    ids,
)


def at(number: int, *position: int, is_apart: bool = False) -> Place:
    place = Place.of(RIVER.segments[SegmentId(number)], is_apart=is_apart)
    return place.moved((position[0], position[1], position[2])) if position else place


def over(number: int, *, is_apart: bool = False) -> Place:
    segment = RIVER.segments[SegmentId(number)]
    return Place.of(segment, is_apart=is_apart).over(segment.sealed_epoch)


def numbers(cut: Cut) -> list[int]:
    return [place.segment for place in cut.places]


# -- text


@given(cuts)
def test_text_comes_back_as_the_same_cut(cut: Cut) -> None:
    assert Cut.decode(cut.encode()) == cut
    assert Cut.decode(cut.encode()).encode() == cut.encode()
    assert Cut.decode(cut.encode().decode()) == cut


@given(cuts, st.randoms(use_true_random=False))
def test_equal_cuts_have_equal_text_whatever_the_order_of_their_places(
    cut: Cut, chance: random.Random
) -> None:
    shuffled = list(cut.places)
    chance.shuffle(shuffled)
    assert Cut(tuple(shuffled), cut.topic_id).encode() == cut.encode()


def test_the_text_is_sorted_compact_json_of_a_known_form() -> None:
    cut = Cut((at(3, 7, 9, 0), over(4), Place.of(RIVER.segments[SegmentId(2)]).moved((8, 0, 5), (8, 0))))
    assert cut.encode() == (
        b'{"places":['
        b'{"at":[[8,0,5]],"chunks":[8,0],"epoch":1,"range":"8000-ffff","segment":2},'
        b'{"at":[[7,9,0]],"epoch":2,"range":"0000-3fff","segment":3},'
        b'{"epoch":2,"over":3,"range":"4000-7fff","segment":4}],"version":1}'
    )


def test_a_cut_that_names_its_topic_is_of_version_2() -> None:
    cut = Cut((at(3, 7, 9, 0), over(4), at(2)), "7f3a0c5e9b1d4826a0f1e2d3c4b5a697")
    assert cut.encode() == (
        b'{"places":['
        b'{"at":[[0,0,0]],"epoch":1,"range":"8000-ffff","segment":2},'
        b'{"at":[[7,9,0]],"epoch":2,"range":"0000-3fff","segment":3},'
        b'{"epoch":2,"over":3,"range":"4000-7fff","segment":4}],'
        b'"topic":"7f3a0c5e9b1d4826a0f1e2d3c4b5a697","version":2}'
    )


@given(cuts)
def test_cuts_that_name_no_topic_are_written_as_they_always_were(cut: Cut) -> None:
    value = json.loads(Cut(cut.places).encode())
    assert sorted(value) == ["places", "version"]
    assert value["version"] == 1


def test_the_empty_cut_is_of_any_topic() -> None:
    assert Cut((), "7f3a0c5e") == Cut()
    assert Cut((), "7f3a0c5e").encode() == b'{"places":[],"version":1}'


def test_spaces_and_the_order_of_keys_do_not_matter() -> None:
    value = json.loads(Cut((at(3, 7, 9, 0),)).encode())
    text = json.dumps(dict(reversed(value.items())), indent=2)
    assert Cut.decode(text) == Cut((at(3, 7, 9, 0),))


def test_a_newer_version_is_refused_with_the_reason() -> None:
    text = b'{"version":3,"somewhere":"else"}'
    with pytest.raises(BadCheckpoint, match=f"version 3.*reads up to {VERSION}.*later release"):
        Cut.decode(text)


PLACE = {"at": [[1, 2, 3]], "epoch": 0, "range": "0000-ffff", "segment": 0}


@pytest.mark.parametrize(
    "place",
    [
        None,
        [],
        {},
        {**PLACE, "segment": -1},
        {**PLACE, "segment": True},
        {**PLACE, "segment": 1.0},
        {**PLACE, "segment": 2**63},
        {**PLACE, "range": "ffff-0000"},
        {**PLACE, "range": "0-1"},
        {**PLACE, "range": "0000-fff٣"},
        {**PLACE, "at": []},
        {**PLACE, "at": [[1, 2]]},
        {**PLACE, "at": [[1, 2, "3"]]},
        {**PLACE, "over": 1},
        {**PLACE, "apart": False},
        {**PLACE, "classic": 1},
        {**PLACE, "classic": True, "range": "0000-7fff"},
        {**PLACE, "classic": True, "apart": True},
        {**PLACE, "chunks": [1]},
        {**PLACE, "more": 1},
        {"epoch": 0, "range": "0000-ffff", "segment": 0, "over": 1, "chunks": [1, 2]},
    ],
)
def test_a_place_that_cannot_be_meant_is_refused(place: object) -> None:
    assert Cut.decode(json.dumps({"places": [PLACE], "version": 1}))
    with pytest.raises(BadCheckpoint):
        Cut.decode(json.dumps({"places": [place], "version": 1}))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"places":[],"version":0}',
        b'{"places":[],"version":"1"}',
        b'{"places":{},"version":1}',
        b'{"places":[],"version":1,"version":1}',
        b'{"places":[],"version":1,"x":NaN}',
        b'{"version":' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        json.dumps({"places": [PLACE, PLACE], "version": 1}).encode(),
        json.dumps({"places": [PLACE], "version": 1, "topic": "abc"}).encode(),
        json.dumps({"places": [PLACE], "version": 2}).encode(),
        json.dumps({"places": [PLACE], "version": 2, "topic": ""}).encode(),
        json.dumps({"places": [PLACE], "version": 2, "topic": 7}).encode(),
        json.dumps({"places": [PLACE], "version": 2, "topic": "A B"}).encode(),
        json.dumps({"places": [PLACE], "version": 2, "topic": "a" * 65}).encode(),
        json.dumps({"places": [], "version": 2, "topic": "abc"}).encode(),
    ],
)
def test_other_text_is_refused(text: bytes) -> None:
    with pytest.raises(BadCheckpoint):
        Cut.decode(text)


@given(cuts, st.data())
def test_damaged_text_is_refused_or_means_something_else_that_can_be_written(
    cut: Cut, data: st.DataObject
) -> None:
    text = bytearray(cut.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        where = data.draw(st.integers(0, len(text) - 1))
        kind = data.draw(st.sampled_from(("change", "remove", "insert", "cut off")))
        if kind == "change":
            text[where] = data.draw(st.integers(0, 255))
        elif kind == "remove" and len(text) > 1:
            del text[where]
        elif kind == "insert":
            text.insert(where, data.draw(st.sampled_from(b'0129-{}[],":aef \x00')))
        elif where:
            del text[where:]
    try:
        found = Cut.decode(bytes(text))
    except BadCheckpoint:
        return
    assert Cut.decode(found.encode()) == found


# -- positions


def test_behind_the_last_message_of_an_entry_comes_the_next_entry() -> None:
    assert behind(5, 6, -1, is_last_of_entry=True) == (5, 7, 0)
    assert behind(5, 6, 3, is_last_of_entry=False) == (5, 6, 4)
    assert BEGINNING <= (0, 0, 0)


@given(ranges, st.lists(ranges, max_size=5))
def test_what_is_uncovered_is_exactly_what_no_cover_has(span: HashRange, covers: list[HashRange]) -> None:
    left = uncovered(span, covers)
    points = {span.start, span.end} | {p for c in covers for p in (c.start - 1, c.start, c.end, c.end + 1)}
    for point in points:
        is_left = any(point in part for part in left)
        assert is_left == (point in span and not any(point in cover for cover in covers))


# -- normal form


def test_a_finished_parent_goes_once_its_children_have_places() -> None:
    assert numbers(Cut((over(1), at(2)))) == [1, 2]
    assert numbers(Cut((over(1), at(2), at(3), at(4)))) == [2, 3, 4]
    # A merged child has the range of both parents.
    assert numbers(Cut((at(3), over(4), at(2)))) == [2, 3, 4]
    assert numbers(Cut((at(3), over(4), over(2), at(5)))) == [3, 5]


def test_a_finished_parent_stays_while_a_part_of_its_range_has_nothing_newer() -> None:
    cut = Cut((over(1), at(3, 5, 5, 0)))
    assert numbers(cut) == [1, 3]


def test_a_segment_is_over_once_something_newer_in_its_range_was_read() -> None:
    assert Cut((at(1, 1, 1, 0), at(3))).get(1) == over(1).over(0)


def test_a_place_apart_says_nothing_of_older_ones() -> None:
    cut = Cut((at(1, 1, 1, 0), at(3, 2, 2, 0, is_apart=True)))
    assert cut.get(1) == at(1, 1, 1, 0)


@given(chances)
def test_the_cut_of_a_lone_reader_is_no_wider_than_the_layouts_it_is_between(chance: random.Random) -> None:
    topic = Topic(chance)
    reader = Reader(topic)
    widest = len(topic.layout.active)
    for _ in range(12):
        topic.live(1)
        widest = max(widest, len(topic.layout.active))
        reader.follow()
        reader.read(chance.randrange(12))
        assert len(reader.cut.places) <= 2 * widest
    reader.read(1000)
    assert {p.segment for p in reader.cut.places} == {s.id for s in topic.layout.active}


# -- merging


def test_merging_takes_the_further_position_and_an_end_before_any() -> None:
    one, other = Cut((at(3, 4, 4, 0), at(4, 1, 1, 1))), Cut((at(3, 4, 3, 9), over(4)))
    assert Cut.merge(one, other) == Cut((at(3, 4, 4, 0), over(4)))


def test_positions_of_entry_buckets_are_merged_one_by_one() -> None:
    def buckets(*entries: int) -> Cut:
        where: tuple[MessagePosition, ...] = tuple((1, entry, 0) for entry in entries)
        return Cut((Place(SegmentId(0), WHOLE, 0, where),))

    assert Cut.merge(buckets(1, 5, 2), buckets(4, 3, 2)) == buckets(4, 5, 2)
    assert Cut.merge(buckets(3), buckets(1, 5)) == buckets(3, 5)
    with pytest.raises(BadCheckpoint, match="entry buckets"):
        Cut.merge(buckets(1, 2), buckets(1, 2, 3))


def test_buckets_that_were_read_to_the_end_by_several_are_the_whole_segment() -> None:
    def buckets(*where: MessagePosition) -> Cut:
        return Cut((Place(SegmentId(0), WHOLE, 0, where),))

    end, here = at_end(7), (1, 5, 0)
    over = Cut((Place(SegmentId(0), WHOLE, 0).over(7),))
    assert Cut.merge(buckets(end, here), buckets(here, end)) == over
    assert Cut.merge(buckets(end, here), buckets((1, 9, 0))) == buckets(end, (1, 9, 0))
    assert Cut.merge(buckets(at_end(), here), buckets(here, end)) == over
    assert Cut.decode(buckets(end, here).encode()) == buckets(end, here)
    assert Cut.merge(buckets(end, here), over) == over


def test_positions_that_are_equal_are_one() -> None:
    """So a cut of readers of whole segments is what it always was."""
    here = (1, 5, 0)
    one = Cut((Place(SegmentId(0), WHOLE, 0, (here,)),))
    assert Cut((Place(SegmentId(0), WHOLE, 0, (here, here, here)),)) == one
    assert (
        one.encode() == b'{"places":[{"at":[[1,5,0]],"epoch":0,"range":"0000-ffff","segment":0}],"version":1}'
    )


def test_chunks_are_read_again_for_whoever_came_further() -> None:
    def place(entry: int, chunks: tuple[int, int] | None) -> Cut:
        return Cut((at(3).moved((1, entry, 0), chunks),))

    assert Cut.merge(place(5, (1, 2)), place(9, None)) == place(9, None)
    assert Cut.merge(place(5, None), place(9, (1, 2))) == place(9, (1, 2))
    assert Cut.merge(place(9, (1, 4)), place(9, (1, 2))) == place(9, (1, 2))


def test_cuts_of_different_topics_do_not_merge() -> None:
    other = Place(SegmentId(3), WHOLE, 2)
    with pytest.raises(BadCheckpoint, match="different topics"):
        Cut.merge(Cut((at(3),)), Cut((other,)))


def test_cuts_of_two_topics_of_one_name_do_not_merge() -> None:
    with pytest.raises(BadCheckpoint, match="different topics"):
        Cut.merge(Cut((at(3),), "first"), Cut((at(4),), "second"))


def test_a_merged_cut_names_the_topic_that_any_of_them_names() -> None:
    assert Cut.merge(Cut((at(3),)), Cut((at(4),), "first"), Cut()) == Cut((at(3), at(4)), "first")


def test_a_place_apart_joins_the_others_once_its_parents_are_known_to_be_over() -> None:
    lower, upper = at(3, 9, 9, 0, is_apart=True), at(4, 8, 8, 0, is_apart=True)
    whole = Cut.merge(Cut((over(1), at(2))), Cut((lower,)), Cut((upper,)))
    assert whole == Cut((at(2), at(3, 9, 9, 0), at(4, 8, 8, 0)))
    # A grandparent is not enough.
    assert [p.is_apart for p in Cut.merge(Cut((over(0),)), Cut((lower,))).places] == [False, True]


@given(chances)
def test_merging_is_the_same_in_any_order_and_twice(chance: random.Random) -> None:
    topic = Topic(chance)
    topic.publish(10)
    group = Group(topic, 3)
    seen = [group.start]
    for _ in range(6):
        topic.live(1)
        group.run(12)
        seen += [member.checkpoint() for member in group.members]
    whole = Cut.merge(*seen)
    chance.shuffle(seen)
    assert Cut.merge(*seen) == whole
    left = Cut()
    for cut in seen:
        left = Cut.merge(left, cut)
    assert left == whole
    assert Cut.merge(whole, whole) == whole
