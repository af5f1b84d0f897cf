"""Reading from a cut in a later layout: exactly what comes behind it, once and in order, or the gap's name."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.cut import BEGINNING, BadCheckpoint, Cut, Place, TopicMadeAgain
from anabranch.model.layout import SegmentLayout
from anabranch.model.resuming import DataLost, Gap, check_topic, epoch_of, is_unproved, positions_of, resume
from anabranch.model.segments import WHOLE, HashRange, SegmentId
from unit.model.readings import Group, Message, Reader, Topic, assert_in_order

ONE = SegmentLayout.initial(1, 0)
# 0 splits into 1 and 2; 1 splits into 3 and 4; 2 and 4 merge into 5.
RIVER = ONE.split(0, 0).split(1, 0).merge(4, 2, 0)

# Not Hypothesis's own, which is slow: a failure names its seed.
chances = st.integers(0, 2**32).map(random.Random)


def at(number: int, *position: int, is_apart: bool = False) -> Place:
    place = Place.of(RIVER.segments[SegmentId(number)], is_apart=is_apart)
    return place.moved((position[0], position[1], position[2])) if position else place


def over(number: int) -> Place:
    segment = RIVER.segments[SegmentId(number)]
    return Place.of(segment).over(segment.sealed_epoch)


def state(place: Place | None) -> object:
    if place is None:
        return "earliest"
    return "over" if place.is_over else place.at[0]


def states(layout: SegmentLayout, cut: Cut) -> list[object]:
    return [state(place) for place in resume(layout, cut).places.values()]


# -- whose cut it is


def named(layout: SegmentLayout, topic_id: str) -> SegmentLayout:
    return replace(layout, topic_id=topic_id)


def test_a_cut_of_another_topic_of_the_same_name_is_refused() -> None:
    cut = Cut((at(4, 7, 9, 0), over(2), at(3)), "former")
    assert resume(named(RIVER, "former"), cut).readable == (3, 4)
    with pytest.raises(TopicMadeAgain, match=r"deleted and made again.*id former.*id present.*'earliest'"):
        resume(named(RIVER, "present"), cut)
    # Whatever it says, also if all of it is in the layout, or nothing is.
    with pytest.raises(TopicMadeAgain):
        resume(named(ONE, "present"), cut)
    with pytest.raises(TopicMadeAgain, match="orders was deleted and made again"):
        check_topic(named(RIVER, "present"), Cut((at(0),), "former"), "orders")


def test_the_empty_cut_is_of_any_topic() -> None:
    assert resume(named(RIVER, "present"), Cut()).readable == (0,)


@pytest.mark.parametrize(("of_layout", "of_cut"), [("present", ""), ("", "former")])
def test_where_one_side_has_no_id_positions_must_tell_the_topic(of_layout: str, of_cut: str) -> None:
    layout = named(RIVER, of_layout)
    proved = Cut((at(4, 7, 9, 0), over(2), at(3)), of_cut)
    assert resume(layout, proved).readable == (3, 4)
    assert is_unproved(layout, proved)
    assert positions_of(proved) == {4: (7, 9, 0)}
    for cut in (Cut((at(1), at(2)), of_cut), Cut((over(2), at(3), at(4)), of_cut)):
        with pytest.raises(TopicMadeAgain, match="no position to tell it by"):
            resume(layout, cut)


@pytest.mark.parametrize(("of_layout", "of_cut"), [("present", ""), ("", "former")])
def test_a_cut_according_to_which_nothing_was_read_needs_no_proof(of_layout: str, of_cut: str) -> None:
    assert resume(named(RIVER, of_layout), Cut((at(0),), of_cut)).readable == (0,)
    assert resume(named(RIVER, of_layout), Cut((at(3, is_apart=True),), of_cut)).readable == (0,)


def test_without_ids_on_either_side_a_cut_is_taken_as_it_was() -> None:
    cut = Cut((at(1), at(2)))
    assert not is_unproved(RIVER, cut)
    assert resume(RIVER, cut).readable == (1, 2)


def test_the_id_stays_through_every_change_of_the_layout() -> None:
    layout = SegmentLayout.initial(1, 0, "topic").split(0, 0).split(1, 0).merge(4, 2, 0)
    assert layout.topic_id == "topic"
    assert layout.mark_deleting([SegmentId(0)]).prune([0]).topic_id == "topic"


# -- examples


def test_the_empty_cut_is_the_earliest_of_everything() -> None:
    found = resume(RIVER, Cut())
    assert states(RIVER, Cut()) == ["earliest"] * 6
    assert found.readable == (0,)
    assert found.gaps == ()


def test_ancestors_of_a_segment_with_a_place_are_over_and_its_descendants_are_new() -> None:
    cut = Cut((at(4, 7, 9, 0), over(2), at(3)))
    assert states(RIVER, cut) == ["over", "over", "over", BEGINNING, (7, 9, 0), BEGINNING]
    assert resume(RIVER, cut).readable == (3, 4)


def test_a_merged_child_waits_for_both_parents() -> None:
    assert resume(RIVER, Cut((over(2), at(3), at(4)))).readable == (3, 4)
    assert resume(RIVER, Cut((at(2), at(3), over(4)))).readable == (2, 3)
    assert resume(RIVER, Cut((over(2), at(3), over(4)))).readable == (3, 5)


def test_a_sibling_that_nobody_came_to_starts_at_its_beginning() -> None:
    cut = Cut((over(1), at(3, 5, 5, 0), at(2)))
    assert states(RIVER, cut)[4] == BEGINNING


def test_a_stretch_without_places_is_read_from_the_earliest_there_is() -> None:
    cut = Cut((at(3, 5, 5, 0),))
    # 2 and 5 share no hash with 3, 4 only with its parent.
    assert states(RIVER, cut) == ["over", "over", "earliest", (5, 5, 0), "earliest", "earliest"]


def test_ancestors_of_a_place_apart_are_read_first() -> None:
    found = resume(RIVER, Cut((at(3, 5, 5, 0, is_apart=True),)))
    assert state(found.places[SegmentId(3)]) == (5, 5, 0)
    assert found.readable == (0,)


def test_order_holds_where_a_generation_between_is_gone() -> None:
    # 4 is gone: the links do not tell that 5 comes after 1.
    layout = RIVER.prune([4])
    cut = Cut((over(0), at(1), at(2)))
    assert SegmentId(5) not in resume(layout, cut).readable
    assert resume(layout, cut).gaps == (Gap(SegmentId(1), HashRange(0x4000, 0x7FFF), None),)


def test_a_pruned_segment_that_was_finished_is_no_gap() -> None:
    cut = Cut((over(4), at(2, 1, 1, 0), at(3)))
    found = resume(RIVER.prune([0, 1, 4]), cut)
    assert found.gaps == ()
    assert found.readable == (2, 3)


def test_a_pruned_segment_that_was_not_finished_is_named_with_the_first_missing_position() -> None:
    cut = Cut((over(4), at(2, 6, 1, 3), at(3)))
    gap = Gap(SegmentId(2), HashRange(0x8000, 0xFFFF), (6, 1, 3))
    assert resume(RIVER.prune([0, 1, 2]), cut).gaps == (gap,)
    assert "segment 2 (range 8000-ffff) from ledger 6, entry 1, message 3 of its batch on" in str(
        DataLost.of("topic://t/n/x", [gap])
    )


def test_a_generation_that_came_and_went_after_the_cut_is_a_gap() -> None:
    cut = Cut((over(0),))
    assert resume(RIVER.prune([0]), cut).gaps == ()
    gaps = resume(RIVER.prune([0, 1]), cut).gaps
    assert gaps == (Gap(SegmentId(0), HashRange(0, 0x7FFF), None),)
    assert "behind segment 0" in str(gaps[0])


def test_earliest_has_no_gaps() -> None:
    assert resume(RIVER.prune([1]), Cut()).gaps == ()


def test_a_cut_of_another_topic_is_refused() -> None:
    stranger = Place(SegmentId(5), WHOLE, 0)
    with pytest.raises(BadCheckpoint, match="another one"):
        resume(RIVER, Cut((stranger,)))
    with pytest.raises(BadCheckpoint, match="another one"):
        resume(ONE, Cut((at(3),)))
    with pytest.raises(BadCheckpoint, match="another one"):
        resume(SegmentLayout.synthetic(["a"], 0), Cut((at(0),)))


def test_a_cut_tells_the_epoch_it_needs() -> None:
    assert epoch_of(Cut((over(4), at(2), at(3)))) == 3
    assert epoch_of(Cut()) == 0


def test_partitions_wait_for_nobody_and_the_segments_of_a_migrated_topic_for_all_of_them() -> None:
    layout = SegmentLayout.synthetic(["a", "b"], 0)
    first, second = (Place.of(s).moved((1, s.id, 0)) for s in layout.active)
    cut = Cut((first, second))
    assert resume(layout, cut).readable == (0, 1)
    migrated = SegmentLayout.migrated(["a", "b"], 0)
    assert resume(migrated, cut).readable == (0, 1)
    assert states(migrated, cut) == [(1, 0, 0), (1, 1, 0), BEGINNING, BEGINNING]
    assert resume(migrated, Cut((first, second.over(2)))).readable == (0,)
    done = Cut((first.over(2), second.over(2)))
    assert resume(migrated, done).readable == (2, 3)
    assert resume(migrated.prune([0, 1]), done).gaps == ()
    assert resume(migrated.prune([0, 1]), cut).gaps == (
        Gap(SegmentId(0), WHOLE, (1, 0, 0)),
        Gap(SegmentId(1), WHOLE, (1, 1, 0)),
    )


def test_a_partition_that_was_added_is_read_from_its_beginning() -> None:
    cut = Cut((Place.of(SegmentLayout.synthetic(["a"], 0).active[0]).moved((5, 5, 0)),))
    assert states(SegmentLayout.synthetic(["a", "b"], 0), cut) == [(5, 5, 0), BEGINNING]


# -- any history


def topics(chance: random.Random) -> Topic:
    return Topic(chance) if chance.random() < 0.7 else Topic.classic(chance, chance.randrange(1, 4))


@given(chances)
def test_a_reader_gets_every_message_once_and_each_key_in_order_through_restarts(
    chance: random.Random,
) -> None:
    topic = topics(chance)
    reader = Reader(topic)
    delivered: list[Message] = []
    for _ in range(6):
        topic.live(chance.randrange(3))
        reader.follow()
        reader.read(chance.randrange(20))
        delivered += reader.delivered
        kept = reader.cut.encode()
        topic.live(chance.randrange(3))
        reader = Reader(topic, Cut.decode(kept))
    reader.read(10_000)
    delivered += reader.delivered
    assert Counter(delivered) == Counter(topic.messages)
    assert_in_order(topic, delivered)


@given(chances)
def test_with_pruning_the_rest_is_delivered_once_and_in_order_or_the_loss_is_told(
    chance: random.Random,
) -> None:
    topic = topics(chance)
    topic.live(chance.randrange(4))
    reader = Reader(topic)
    reader.read(chance.randrange(40))
    kept, read = reader.cut, set(reader.delivered)
    owed = {message for message in topic.messages if message not in read}
    before = topic.published
    topic.live(chance.randrange(8), prunes=True)
    owed |= {message for message in topic.messages if message[1] >= before}
    # Also what was published after the cut and is gone by now.
    is_lost = not owed <= topic.messages or topic.published - before > len(
        {m for m in topic.messages if m[1] >= before}
    )
    if is_lost:
        with pytest.raises(DataLost):
            Reader(topic, kept)
        return
    after = Reader(topic, kept)
    after.read(10_000)
    assert Counter(after.delivered) == Counter(owed)
    assert_in_order(topic, after.delivered)


@given(chances)
def test_pruning_what_was_finished_loses_nothing(chance: random.Random) -> None:
    topic = topics(chance)
    reader = Reader(topic)
    for _ in range(8):
        topic.live(chance.randrange(3))
        reader.follow()
        reader.read(chance.randrange(20))
        known = resume(topic.layout, reader.cut).places
        done = [s.id for s in topic.layout.sealed if (place := known[s.id]) is not None and place.is_over]
        if done:
            gone = chance.sample(done, chance.randrange(1, len(done) + 1))
            topic.layout = topic.layout.prune(gone)
        reader.follow()
    total = len(reader.delivered)
    kept = Reader(topic, Cut.decode(reader.cut.encode()))
    kept.read(10_000)
    assert total + len(kept.delivered) == topic.published
    assert_in_order(topic, [*reader.delivered, *kept.delivered])


@given(chances)
def test_the_merged_cut_of_a_group_is_what_its_members_had_read_whenever_each_of_them_said_so(
    chance: random.Random,
) -> None:
    topic = Topic(chance)
    topic.publish(10)
    group = Group(topic, 3)
    whole, read = group.start, set[Message]()
    for _ in range(5):
        topic.live(1)
        group.run(chance.randrange(30))
        # Some say how far they are, at different times: the cuts of the others stay as they were.
        for member in chance.sample(group.members, chance.randrange(4)):
            whole = Cut.merge(whole, member.checkpoint())
            read |= member.delivered
            group.run(chance.randrange(6))
    topic.live(2)
    rest = Reader(topic, Cut.decode(whole.encode()))
    rest.read(10_000)
    assert Counter(rest.delivered) == Counter(topic.messages - read)
    assert_in_order(topic, rest.delivered)


@given(chances)
def test_the_merged_cut_of_a_group_that_shares_segments_is_what_its_members_had_read(
    chance: random.Random,
) -> None:
    """By entry buckets, through splits, merges and rollovers; and so for the group that goes on from there."""
    topic = Topic.bucketed(chance)
    topic.publish(20)
    whole, read = Reader(topic).cut, set[Message]()
    for _ in range(3):
        group, before = Group(topic, 4, Cut.decode(whole.encode())), frozenset(read)
        for _ in range(3):
            topic.live(1)
            group.run(chance.randrange(60))
            for member in chance.sample(group.members, chance.randrange(4)):
                whole = Cut.merge(whole, member.checkpoint())
                read |= member.delivered
        whole = Cut.merge(whole, *(member.checkpoint() for member in group.members))
        for member in group.members:
            assert member.delivered.isdisjoint(before)
            read |= member.delivered
    topic.live(2)
    rest = Reader(topic, Cut.decode(whole.encode()))
    rest.read(10_000)
    assert Counter(rest.delivered) == Counter(topic.messages - read)
    assert_in_order(topic, rest.delivered)


@given(chances)
def test_a_group_goes_on_from_the_cut_of_a_lone_reader_and_the_other_way_round(chance: random.Random) -> None:
    topic = Topic(chance)
    alone = Reader(topic)
    topic.live(3)
    alone.follow()
    alone.read(chance.randrange(30))
    topic.live(2)
    group = Group(topic, 2, alone.cut)
    group.run(60)
    whole = Cut.merge(group.start, *(member.checkpoint() for member in group.members))
    topic.live(1)
    rest = Reader(topic, whole)
    rest.read(10_000)
    read = set(alone.delivered).union(*(member.delivered for member in group.members))
    assert Counter(rest.delivered) == Counter(topic.messages - read)
    assert_in_order(topic, rest.delivered)
