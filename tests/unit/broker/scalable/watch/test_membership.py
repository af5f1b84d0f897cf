"""What a watcher of a namespace is told: only what changes its set, and always enough to have the set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.scalable.watch.membership import Difference, Listed, Membership, listed
from anabranch.model.layout import SegmentLayout
from anabranch.model.scalable import BadRecord, ScalableTopic

BLUE = {"colour": "blue"}


def began(*names: str, filters: tuple[tuple[str, str], ...] = ()) -> Membership:
    """The first life of each of them, known to the watcher."""
    members = Membership(filters)
    assert members.begin({name: Listed(1, dict(filters)) for name in names}) == sorted(names)
    return members


# -- records


def test_a_record_is_read_for_its_generation_and_properties_only() -> None:
    record = ScalableTopic(SegmentLayout.initial(3, 0), 7, BLUE)
    assert listed(record.encode()) == Listed(7, BLUE)


def test_a_folder_and_a_topic_that_is_being_deleted_are_none() -> None:
    assert listed(b"") is None
    assert listed(ScalableTopic(SegmentLayout.initial(1, 0), 7, is_deleting=True).encode()) is None


@pytest.mark.parametrize("value", [b"nonsense", b"[]", b'{"properties": {"a": 1}}', b'{"generation": "x"}'])
def test_what_cannot_be_read_is_no_topic(value: bytes) -> None:
    with pytest.raises(BadRecord):
        listed(value)


# -- filters


def test_no_filter_takes_every_topic() -> None:
    assert Membership().begin({"a": Listed(1), "b": Listed(1, BLUE)}) == ["a", "b"]


def test_every_filter_must_match_with_an_equal_value() -> None:
    topics = {
        "both": Listed(1, {"colour": "blue", "size": "2", "more": "x"}),
        "one": Listed(1, {"colour": "blue"}),
        "other": Listed(1, {"colour": "blue", "size": "22"}),
        "case": Listed(1, {"Colour": "blue", "size": "2"}),
        "none": Listed(1),
    }
    assert Membership([("colour", "blue"), ("size", "2")]).begin(topics) == ["both"]


def test_no_topic_has_one_property_with_two_values() -> None:
    assert Membership([("colour", "blue"), ("colour", "red")]).begin({"a": Listed(1, BLUE)}) == []


def test_an_empty_value_is_a_value() -> None:
    topics = {"empty": Listed(1, {"colour": ""}), "none": Listed(1)}
    assert Membership([("colour", "")]).begin(topics) == ["empty"]


# -- one difference


def test_what_comes_and_goes_is_told_together() -> None:
    members = began("a", "b")
    members.see("c", Listed(2))
    members.see("b", None)
    members.see("d", Listed(3))
    assert members.take() == Difference(["c", "d"], ["b"])
    assert not members.has_news


def test_a_property_change_moves_a_topic_into_the_set_and_out_of_it() -> None:
    members = began(filters=(("colour", "blue"),))
    members.see("a", Listed(1, {"colour": "red"}))
    assert not members.has_news
    members.see("a", Listed(1, BLUE))
    assert members.take() == Difference(["a"], [])
    members.see("a", Listed(1, {"colour": "blue", "size": "2"}))
    assert not members.has_news
    members.see("a", Listed(1, {"size": "2"}))
    assert members.take() == Difference([], ["a"])


def test_what_was_never_known_and_is_gone_again_is_not_mentioned() -> None:
    members = began("a")
    members.see("b", Listed(2))
    members.see("b", None)
    assert not members.has_news
    assert members.take() == Difference([], [])


def test_a_known_topic_that_was_away_is_removed_and_added() -> None:
    members = began("a")
    members.see("a", None)
    members.see("a", Listed(1))
    assert members.take() == Difference(["a"], ["a"])


def test_a_known_topic_made_anew_is_removed_and_added_though_nobody_saw_it_gone() -> None:
    members = began("a")
    members.see("a", Listed(2))
    assert members.take() == Difference(["a"], ["a"])
    members.see("a", Listed(2))
    assert not members.has_news


def test_a_known_topic_that_is_gone_in_the_end_is_only_removed() -> None:
    members = began("a")
    members.see("a", None)
    members.see("a", Listed(2))
    members.see("a", None)
    assert members.take() == Difference([], ["a"])


def test_what_does_not_change_the_set_is_no_news() -> None:
    members = began("a")
    members.see("a", Listed(1, {"owner": "me"}))
    members.see("b", None)
    assert not members.has_news


# -- any run

seen = st.tuples(
    st.sampled_from("abcd"),
    st.one_of(st.none(), st.builds(Listed, st.integers(1, 3), st.sampled_from([None, BLUE]))),
)


@given(
    st.lists(st.one_of(seen, st.just("take")), max_size=60),
    st.dictionaries(st.sampled_from("abcd"), st.builds(Listed, st.just(1), st.sampled_from([None, BLUE]))),
    st.sampled_from([(), (("colour", "blue"),)]),
)
def test_whoever_applies_every_difference_has_the_set(
    run: list[object], first: dict[str, Listed], filters: tuple[tuple[str, str], ...]
) -> None:
    members = Membership(filters)
    now = dict(first)
    client = {name: now[name].generation for name in members.begin(now)}
    for step in [*run, "take"]:
        if isinstance(step, tuple):
            name, found = step
            now.pop(name, None) if found is None else now.__setitem__(name, found)
            members.see(name, found)
            assert members.pending <= len(client) + len(now)
            continue
        before = dict(client)
        difference = members.take()
        for name in difference.removed:
            del client[name]  # Never one that the client has not.
        for name in difference.added:
            assert name not in client
            client[name] = now[name].generation
        assert client == {name: found.generation for name, found in now.items() if members.has(found)}
        # Whoever keeps using a name uses the same topic.
        assert all(before[n] == client[n] for n in before.keys() & client.keys() - set(difference.removed))
