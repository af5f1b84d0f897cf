"""Which rows lie before a cut: exactly those that its reader had, whatever became of their segments."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.cut import BadCheckpoint, Cut, MessagePosition, Place, TopicMadeAgain
from anabranch.model.layout import SegmentLayout
from anabranch.model.rows_before import RowsBefore, rows_before
from anabranch.model.segments import SegmentId
from unit.model.readings import Message, Reader, Topic

# Not Hypothesis's own, which is slow: a failure names its seed.
chances = st.integers(0, 2**32).map(random.Random)
ONE = SegmentLayout.initial(1, 0)


def rows(topic: Topic) -> dict[Message, tuple[SegmentId, MessagePosition]]:
    return {message: (number, at) for number, log in topic.logs.items() for at, _, message in log}


@given(chances, st.booleans())
def test_the_rows_before_a_cut_are_those_that_its_reader_had(chance: random.Random, is_classic: bool) -> None:
    topic = Topic.classic(chance, 3) if is_classic else Topic(chance)
    topic.live(chance.randrange(4))
    reader = Reader(topic)
    reader.read(chance.randrange(40))
    table = rows(topic)
    # What is published later is in the table, too.
    topic.live(chance.randrange(8), prunes=True)
    table |= rows(topic)
    try:
        before = rows_before(reader.cut, topic.layout)
    except BadCheckpoint as error:
        assert "deleted long ago" in str(error)  # noqa: PT017  # It may be refused; a wrong answer may not be given.
        return
    assert {m for m, where in table.items() if before.has(*where)} == set(reader.delivered)


def test_the_empty_cut_has_no_rows_before_it() -> None:
    assert rows_before(Cut(), ONE) == RowsBefore(SegmentId(0))


def test_a_cut_of_another_topic_is_refused() -> None:
    cut = Cut((Place.of(ONE.segments[SegmentId(0)]).moved((1, 2, 0)),), "former")
    with pytest.raises(TopicMadeAgain, match=r"orders was deleted and made again"):
        rows_before(cut, replace(ONE, topic_id="present"), "orders")


def test_a_cut_with_a_position_for_each_bucket_is_refused() -> None:
    place = replace(Place.of(ONE.segments[SegmentId(0)]), at=((1, 2, 0), (1, 5, 0)))
    with pytest.raises(BadCheckpoint, match="one position for each segment"):
        rows_before(Cut((place,)), replace(ONE))
