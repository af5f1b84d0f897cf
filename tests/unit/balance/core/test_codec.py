"""Changes as JSON: what is written is read, and nothing else raises anything but BadChange."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anabranch.balance.core.codec import BadChange, decode_change, encode_change
from anabranch.balance.core.states import BundleAction, BundleChange, BundleState
from unit.balance.core.changes import CHILDREN, A, B, X, any_changes, before, change

KEY = str(X)


@given(any_changes)
def test_every_change_reads_back_as_it_was(made: BundleChange) -> None:
    assert decode_change(str(made.bundle), encode_change(made)) == made


def test_the_fields_have_the_names_of_the_specification() -> None:
    made = change(before(BundleState.ASSIGNED), BundleAction.TRANSFER)
    value = json.loads(encode_change(made))
    assert (value["action"], value["state"], value["leaderEpoch"]) == ("transfer", "assigning", 7)
    assert value["from"] == {"broker": A.broker, "run": A.run}
    assert value["to"] == {"broker": B.broker, "run": B.run}
    made = change(before(BundleState.ASSIGNED), BundleAction.SPLIT)
    assert json.loads(encode_change(made))["children"] == [str(child) for child in CHILDREN]


def test_fields_of_a_later_release_are_ignored() -> None:
    made = change(before(BundleState.ASSIGNED), BundleAction.UNLOAD)
    value = {**json.loads(encode_change(made)), "mood": ["calm"]}
    assert decode_change(KEY, json.dumps(value).encode()) == made


@given(st.text(), st.binary() | st.text().map(str.encode))
@example(KEY, b"")
@example(KEY, b"[]")
@example(KEY, b"null")
@example(KEY, b"{}")
@example(KEY, b"[" * 100_000)
def test_bytes_that_are_no_change_raise_one_error(key: str, body: bytes) -> None:
    with pytest.raises(BadChange):
        decode_change(key, body)


SENSELESS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FULL = change(before(BundleState.ASSIGNED), BundleAction.SPLIT)
NAMES = [
    "v", "flow", "action", "state", "from", "to", "version", "author", "leaderEpoch", "override", "at", "reason",
    "parent", "children",
]  # fmt: skip


@given(st.sampled_from(NAMES), SENSELESS)
@example("version", 1e999)
@example("at", float("nan"))
@example("version", True)
@example("version", 0)
@example("override", "false")
@example("author", None)
@example("v", 2)
def test_a_change_with_any_other_value_is_read_or_is_bad(name: str, value: object) -> None:
    body = json.dumps({**json.loads(encode_change(FULL)), name: value}).encode()
    try:
        read = decode_change(KEY, body)
    except BadChange:
        return
    # What was read is a whole change.
    assert decode_change(KEY, encode_change(read)) == read


@pytest.mark.parametrize("name", ["v", "flow", "action", "version", "author"])
def test_a_change_without_what_every_change_has_is_bad(name: str) -> None:
    value = json.loads(encode_change(FULL))
    del value[name]
    with pytest.raises(BadChange):
        decode_change(KEY, json.dumps(value).encode())


@pytest.mark.parametrize(
    "key", ["", "acme", "acme/sales", "acme/sales/0x0_0x1", "acme//0x00000000_0xffffffff"]
)
def test_a_key_that_names_no_bundle_is_bad(key: str) -> None:
    with pytest.raises(BadChange):
        decode_change(key, encode_change(FULL))
