"""What a broker reads from an entry's metadata."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import MalformedFrame
from anabranch.wire import entry as wire_entry
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_entry


def metadata(**fields: Any) -> pb.MessageMetadata:
    values: dict[str, Any] = {"producer_name": "name", "sequence_id": 7, "publish_time": 1234, **fields}
    return pb.MessageMetadata(**values)


def wrapped(entry: bytes) -> bytes:
    extra = pb.BrokerEntryMetadata(broker_timestamp=1, index=2).SerializeToString()
    return b"\x0e\x02" + len(extra).to_bytes(4, "big") + extra + entry


@pytest.mark.parametrize("dress", [bytes, memoryview, wrapped, lambda e: e[6:], lambda e: wrapped(e[6:])])
def test_metadata_is_found_whatever_stands_in_front_of_it(dress: Any) -> None:
    fields = metadata(num_messages_in_batch=5, highest_sequence_id=11, deliver_at_time=99)
    entry = dress(build_entry(fields, b"payload"))
    assert wire_entry.parse_metadata(entry) == fields
    assert wire_entry.metadata_size(entry) == fields.ByteSize()
    assert bytes(wire_entry.payload(entry)) == b"payload"
    assert wire_entry.num_messages(entry) == 5
    assert wire_entry.publish_time(entry) == 1234
    assert wire_entry.deliver_at_time(entry) == 99
    assert wire_entry.producer(entry) == ("name", 7, 11)


def test_an_entry_without_the_optional_fields_reads_as_one_message_due_now() -> None:
    entry = build_entry(metadata(), b"")
    assert wire_entry.num_messages(entry) == 1
    assert wire_entry.deliver_at_time(entry) is None
    assert wire_entry.producer(entry) == ("name", 7, 7)
    assert wire_entry.chunk(metadata()) is None
    assert not wire_entry.is_batch(metadata())
    assert wire_entry.is_batch(metadata(num_messages_in_batch=1))


def test_a_chunk_knows_its_place_and_whether_it_is_the_last() -> None:
    fields = {"uuid": "u", "num_chunks_from_msg": 3, "total_chunk_msg_size": 2500}
    middle = wire_entry.chunk(metadata(chunk_id=1, **fields))
    last = wire_entry.chunk(metadata(chunk_id=2, **fields))
    assert middle == ("u", 1, 3, 2500)
    assert middle is not None
    assert not middle.is_last
    assert last is not None
    assert last.is_last


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"ordering_key": b"o", "partition_key": "p"}, b"o"),
        ({"ordering_key": b"", "partition_key": "p"}, b""),
        ({"partition_key": "schlüssel"}, "schlüssel".encode()),
        ({"partition_key": "AP8=", "partition_key_b64_encoded": True}, b"\x00\xff"),
        ({"partition_key": "AP8", "partition_key_b64_encoded": True}, b"\x00\xff"),
        ({"partition_key": "AP8="}, b"AP8="),
        ({"partition_key": "not base64!", "partition_key_b64_encoded": True}, wire_entry.NO_KEY),
        ({}, b"name-7"),
    ],
)
def test_sticky_key_follows_the_reference(fields: dict[str, Any], key: bytes) -> None:
    assert wire_entry.sticky_key(metadata(**fields)) == key
    assert wire_entry.peek_sticky_key(build_entry(metadata(**fields), b"x")) == key


@given(st.binary())
def test_a_base64_key_stands_for_its_bytes(key: bytes) -> None:
    text = base64.b64encode(key).decode()
    assert wire_entry.sticky_key(metadata(partition_key=text, partition_key_b64_encoded=True)) == key


def test_a_key_that_is_not_utf_8_is_its_bytes() -> None:
    odd = metadata(partition_key="??").SerializeToString().replace(b"??", b"\xff\xfe")
    entry = b"\x0e\x01" + b"\0\0\0\0" + len(odd).to_bytes(4, "big") + odd
    assert wire_entry.peek_sticky_key(entry) == b"\xff\xfe"


@given(st.binary(max_size=40))
def test_bytes_that_are_no_entry_are_malformed_and_still_get_a_key(data: bytes) -> None:
    try:
        wire_entry.parse_metadata(data)
    except MalformedFrame:
        assert wire_entry.peek_sticky_key(data) == wire_entry.NO_KEY
