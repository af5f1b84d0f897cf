"""Stored state: snapshots and deltas fold to the same thing, however they are cut."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.broker.state import topic_state as state
from anabranch.broker.state.cursor import Cursor
from anabranch.broker.state.topic_state import StateError, SubscriptionState, TopicState

names = st.sampled_from(["a", "b"])
places = st.tuples(st.sampled_from([3, 7]), st.integers(0, 40))
entries = st.lists(st.integers(0, 40), min_size=1, max_size=10)
parts = st.lists(st.tuples(places, st.integers(1, 15), st.sampled_from([0, 4])), max_size=3)

deltas = st.one_of(
    st.builds(state.subscribed, names, places, st.integers(0, 3), st.just({"k": "v"})),
    st.builds(state.unsubscribed, names),
    st.builds(state.properties_changed, names, st.dictionaries(st.text(max_size=3), st.text(max_size=3))),
    st.builds(state.acked_below, names, places),
    st.builds(state.acked, names, st.dictionaries(st.sampled_from([3, 7]), entries), parts),
    st.builds(state.reset, names, places, st.integers(0, 15)),
    st.builds(state.producer_forgotten, st.sampled_from(["p", "q"])),
    st.just(state.sealed()),
)


@settings(deadline=None)
@given(st.lists(deltas, max_size=25), st.integers(0, 25))
def test_a_snapshot_anywhere_and_what_follows_equal_all_deltas(steps: list[bytes], cut: int) -> None:
    start = TopicState(producers={"p": 4, "q": 9}, producers_as_of=(3, 2), extra={"later": [1, 2]}).encode()
    whole = state.fold(start, steps)
    snapshot = state.fold(start, steps[:cut]).encode()
    assert state.fold(snapshot, steps[cut:]) == whole
    assert whole.extra == {"later": [1, 2]}


acks = st.one_of(
    st.builds(state.acked_below, names, places),
    st.builds(state.acked, names, st.dictionaries(st.sampled_from([3, 7]), entries), parts),
)


@settings(deadline=None)
@given(st.lists(acks, max_size=15), st.integers(0, 15), st.integers(0, 15))
def test_acknowledgements_may_stand_in_the_snapshot_and_again_behind_it(
    steps: list[bytes], cut: int, overlap: int
) -> None:
    start = [state.subscribed("a", (3, 0)), state.subscribed("b", (3, 5))]
    whole = state.fold(None, start + steps)
    snapshot = state.fold(None, start + steps[:cut]).encode()
    assert state.fold(snapshot, steps[max(0, cut - overlap) :]) == whole


def test_creating_a_subscription_again_does_not_move_it() -> None:
    made = state.subscribed("a", (3, 0))
    folded = state.fold(None, [made, state.acked_below("a", (3, 9)), made])
    assert folded.subscriptions["a"].cursor.next == (3, 9)


def test_deltas_of_a_subscription_that_is_gone_are_passed_over() -> None:
    assert state.fold(None, [state.acked_below("gone", (3, 9)), state.reset("gone", (1, 1))]) == TopicState()


def test_what_a_later_version_stored_is_kept() -> None:
    stored = TopicState(subscriptions={"a": SubscriptionState(Cursor((1, 2)), kind=1)}).encode()
    value = msgspec.msgpack.decode(stored[1:])
    value["schema"] = {"x": 1}
    value["subscriptions"]["a"]["filter"] = "even"
    again = state.decode_snapshot(stored[:1] + msgspec.msgpack.encode(value))
    assert again.extra == {"schema": {"x": 1}}
    assert state.decode_snapshot(again.encode()) == again
    assert again.subscriptions["a"].extra == {"filter": "even"}


@pytest.mark.parametrize("data", [b"", b"\x02\x80", b"\x01\xc1", b"\x01\x90"])
def test_state_that_cannot_be_read_is_refused(data: bytes) -> None:
    with pytest.raises(StateError):
        state.decode_snapshot(data)


def test_an_unknown_kind_of_delta_is_refused() -> None:
    with pytest.raises(StateError, match="kind 99"):
        state.fold(None, [b"\x01" + msgspec.msgpack.encode((99, "x"))])


def test_runs_of_single_acknowledgements_take_a_few_bytes() -> None:
    assert len(state.acked("sub", {123_456: list(range(1000, 2000))}, [])) < 30
