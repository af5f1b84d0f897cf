"""Messages of the channel's topic: what is written is read, and a message that cannot be read hides no other."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.balance.core.channel import (
    ChannelEvent,
    SnapshotBegan,
    SnapshotEnded,
    SnapshotPart,
    TermBegan,
)
from anabranch.balance.core.codec import BadChange
from anabranch.balance.core.states import BundleAction, BundleState
from anabranch.broker.balance.channel.channel_messages import decode_events, encode_events
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_batch, messages
from unit.balance.core.changes import X, any_changes, before, change

TRANSFER = change(before(BundleState.ASSIGNED), BundleAction.TRANSFER)
TOMBSTONE = change(before(BundleState.FREED), BundleAction.TOMBSTONE)

events = st.one_of(
    any_changes,
    st.builds(TermBegan, st.integers(0, 2**40)),
    st.builds(SnapshotBegan, st.text(), st.integers(0, 2**40)),
    st.builds(SnapshotPart, st.text(), any_changes.filter(lambda one: one.state is not None)),
    st.builds(SnapshotEnded, st.text(), st.integers(0, 2**40)),
)


@given(st.lists(events, min_size=1, max_size=5))
def test_every_event_reads_back_as_it_was(written: list[ChannelEvent]) -> None:
    assert decode_events(encode_events(written, "leader", 7, 5)) == written


def test_a_change_is_a_message_with_the_bundle_as_its_key_and_json_as_its_value() -> None:
    ((single, value),) = messages(encode_events([TRANSFER], "leader", 7, 5))
    assert single.partition_key == str(X)
    assert json.loads(bytes(value))["action"] == "transfer"
    assert not single.properties


def test_a_tombstone_has_a_key_and_no_value() -> None:
    ((single, value),) = messages(encode_events([TOMBSTONE], "leader", 7, 5))
    assert single.partition_key == str(X)
    assert bytes(value) == b""


def test_marks_have_neither() -> None:
    marks: list[ChannelEvent] = [TermBegan(3), SnapshotBegan("one", 3), SnapshotEnded("one", 0)]
    for single, value in messages(encode_events(marks, "leader", 7, 5)):
        assert not single.HasField("partition_key")
        assert bytes(value) == b""


@pytest.mark.parametrize(
    ("properties", "key", "value"),
    [
        ({}, None, b""),
        ({}, str(X), b""),
        ({}, str(X), b"{}"),
        ({}, "nonsense", b"{}"),
        ({"mark": "term-began"}, None, b""),
        ({"mark": "term-began", "term": "x"}, None, b""),
        ({"mark": "snapshot-ended", "snapshot": "one"}, None, b""),
        ({"mark": "of a later release"}, None, b""),
    ],
)
def test_a_message_that_cannot_be_read_hides_no_other(
    properties: dict[str, str], key: str | None, value: bytes
) -> None:
    pairs = [pb.KeyValue(key=name, value=text) for name, text in properties.items()]
    bad = pb.SingleMessageMetadata(payload_size=0, partition_key=key, properties=pairs)
    good, told = messages(encode_events([TRANSFER], "leader", 7, 5))[0]
    metadata = pb.MessageMetadata(producer_name="leader", sequence_id=7, publish_time=5)
    first, second = decode_events(build_batch(metadata, [(bad, value), (good, told)]))
    assert isinstance(first, BadChange)
    assert second == TRANSFER


@given(st.binary())
def test_bytes_that_are_no_entry_are_one_event_that_cannot_be_read(entry: bytes) -> None:
    (found,) = decode_events(entry)
    assert isinstance(found, BadChange)
