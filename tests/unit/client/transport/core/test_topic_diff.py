"""The set of topics of a namespace consumer, word by word."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.client.transport.core.topic_diff import TopicChange, TopicSet
from anabranch.model.topic_hash import topic_hash

NAMES = st.frozensets(st.sampled_from([f"topic://public/default/{c}" for c in "abcdef"]))


@given(NAMES, NAMES)
def test_a_snapshot_replaces_the_set_and_a_second_one_changes_nothing(
    old: frozenset[str], new: frozenset[str]
) -> None:
    topics, change = TopicSet(old).replaced(new)
    assert topics.names == new
    assert (old - change.closed) | change.opened == new
    assert not change.closed & new
    assert topics.replaced(new) == (topics, TopicChange())


@given(NAMES, NAMES, NAMES)
def test_a_diff_removes_before_it_adds_and_a_second_one_leaves_the_same_set(
    old: frozenset[str], removed: frozenset[str], added: frozenset[str]
) -> None:
    topics, change = TopicSet(old).moved(removed, added)
    assert topics.names == (old - removed) | added
    assert change.closed == old & removed
    assert change.opened == added - (old - removed)
    assert topics.moved(removed, added)[0] == topics


def test_a_topic_made_again_is_closed_and_opened() -> None:
    known = TopicSet(frozenset({"topic://t/n/a"}))
    topics, change = known.moved(["topic://t/n/a"], ["topic://t/n/a"])
    assert topics == known
    assert change == TopicChange(known.names, known.names)


def test_an_unknown_topic_that_is_removed_and_a_known_one_that_is_added_change_nothing() -> None:
    known = TopicSet(frozenset({"topic://t/n/a"}))
    assert known.moved(["topic://t/n/b"], ["topic://t/n/a"]) == (known, TopicChange())


@given(NAMES)
def test_the_hash_is_that_of_the_names(names: frozenset[str]) -> None:
    assert TopicSet(names).hash == topic_hash(names)
