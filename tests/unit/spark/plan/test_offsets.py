"""How offsets are written, and which are refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.cut import BadCheckpoint, Cut
from anabranch.spark.plan.offsets import Offset, check_is_of, initial
from anabranch.spark.plan.selection import Choice
from unit.model.test_cut import cuts

TOPIC, OTHER = "topic://public/default/orders", "topic://public/default/other"
ONE = Choice.of(TOPIC)

names = st.sampled_from([TOPIC, OTHER, "topic://public/default/c", "persistent://public/default/d"])
wishes = st.just("latest") | st.integers(0, 2**62)
offsets = (
    st.builds(Offset, wish=wishes)
    | st.builds(Offset, cuts=st.dictionaries(names, cuts))
    | st.builds(Offset, cuts=st.dictionaries(names, cuts), wishes=st.dictionaries(names, wishes))
)


def kept(offset: Offset) -> str:
    """As Spark keeps it."""
    return json.dumps(offset.encode())


@given(offsets)
def test_an_offset_that_spark_kept_as_text_has_the_same_text_again(offset: Offset) -> None:
    read = Offset.decode(json.loads(kept(offset)))
    assert read == offset
    assert kept(read) == kept(offset)


@given(st.dictionaries(names, cuts))
def test_the_order_in_which_topics_came_does_not_show(found: dict[str, Cut]) -> None:
    assert kept(Offset(dict(reversed(found.items())))) == kept(Offset(found))


def test_offsets_of_one_topic_are_what_they_always_were() -> None:
    assert initial(ONE, Cut()).encode() == {"topics": {TOPIC: {"places": [], "version": 1}}, "version": 1}
    assert initial(ONE, "latest").encode() == {"start": "latest", "version": 1}
    assert initial(ONE, 1000).encode() == {"start": 1000, "version": 1}


def test_a_namespace_from_the_earliest_names_no_topic_yet() -> None:
    offset = initial(Choice(namespace="public/default"), Cut())
    assert offset.encode() == {"topics": {}, "version": 1}
    assert offset.is_resolved
    assert offset.begin_of(TOPIC) == Cut()


def test_topics_may_start_at_different_places() -> None:
    offset = initial(Choice.of(TOPIC, OTHER, "c"), {TOPIC: "latest", OTHER: Cut()})
    assert not offset.is_resolved
    assert [offset.begin_of(name) for name in (TOPIC, OTHER, "c")] == ["latest", Cut(), Cut()]
    assert Offset.decode(offset.encode()) == offset


@pytest.mark.parametrize(
    ("offset", "said"),
    [
        ({}, "version None"),
        ({"version": 2}, "version 2"),
        ({"version": 1}, "checkpointLocation"),
        ({"version": 1, "start": "soon"}, "checkpointLocation"),
        ({"version": 1, "start": True}, "checkpointLocation"),
        ({"version": 1, "start": {TOPIC: "soon"}}, "checkpointLocation"),
        ({"version": 1, "start": {}}, "checkpointLocation"),
        ({"version": 1, "topics": []}, "checkpointLocation"),
        ({"version": 1, "topics": {TOPIC: 5}}, "not a checkpoint"),
        (Offset({OTHER: Cut()}).encode(), "other.*and the query reads.*checkpointLocation"),
    ],
)
def test_an_offset_of_something_else_is_refused(offset: dict[str, object], said: str) -> None:
    with pytest.raises(BadCheckpoint, match=said):
        check_is_of(ONE, Offset.decode(offset))


def test_topics_may_be_added_to_a_query_and_taken_away() -> None:
    check_is_of(Choice.of(TOPIC, "new"), Offset({TOPIC: Cut(), OTHER: Cut()}))
    check_is_of(Choice(namespace="public/default"), Offset({OTHER: Cut()}))
