"""Bytes captured from Pulsar's own client and broker: we read them, and write the same bytes again."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from anabranch.errors import UnsupportedCompression
from anabranch.model.topic_hash import topic_hash
from anabranch.wire import batch
from anabranch.wire import entry as wire_entry
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.connection import PING_FRAME, PONG_FRAME
from anabranch.wire.encode import (
    encode_command,
    encode_message_header,
    encode_payload_header,
    encode_receipts,
)
from anabranch.wire.frames import BAD_CHECKSUM, IS_CHUNK, Frame, FrameDecoder

FOLDER = Path(__file__).parents[2] / "vectors"


class Vector(NamedTuple):
    kind: int
    from_client: bool
    data: bytes


def load(path: Path) -> list[Vector]:
    vectors = []
    kind = 0
    for line in path.read_text().splitlines()[1:]:
        if line.startswith("# "):
            kind = pb.BaseCommand.Type.Value(line[2:])
        else:
            vectors.append(Vector(kind, line.startswith(">"), bytes.fromhex(line[2:])))
    return vectors


FILES = {path.stem: load(path) for path in sorted(FOLDER.glob("*.hex"))}
ALL = [
    pytest.param(vector, id=f"{name}-{number}")
    for name, vectors in FILES.items()
    for number, vector in enumerate(vectors)
]


def decode(data: bytes) -> Frame:
    (frame,) = FrameDecoder().feed(data)
    return frame


def commands(name: str, kind: int) -> list[pb.BaseCommand]:
    return [decode(vector.data)[1] for vector in FILES[name] if vector.kind == kind]


def entries(name: str) -> list[bytes]:
    return [bytes(decode(vector.data)[6]) for vector in FILES[name] if vector.kind == pb.BaseCommand.SEND]


@pytest.mark.parametrize("name", FILES)
def test_each_file_says_how_it_was_captured(name: str) -> None:
    how = (FOLDER / f"{name}.hex").read_text().splitlines()[0]
    clients = (
        "Captured by capture.py: pulsar-client 3.13",
        "Captured by capture_scalable.py: pulsar-client-v5",
        "Written by NamespaceWatch.java: pulsar-client-v5",
    )
    assert how.startswith(tuple(f"# {client}" for client in clients))
    assert "Apache Pulsar 5.0.0-M1" in how


@pytest.mark.parametrize("vector", ALL)
def test_a_captured_frame_is_read_whole_byte_by_byte_and_with_more_behind_it(vector: Vector) -> None:
    whole = decode(vector.data)
    assert whole[0] == vector.kind
    bytewise = FrameDecoder()
    drops = [frame for at in range(len(vector.data)) for frame in bytewise.feed(vector.data[at : at + 1])]
    assert drops == [whole]
    assert FrameDecoder().feed(vector.data + PING_FRAME[:5]) == [whole]
    assert FrameDecoder().feed(vector.data * 2 + b"\x00") == [whole, whole]


@pytest.mark.parametrize("vector", ALL)
def test_a_captured_frame_is_written_as_it_was(vector: Vector) -> None:
    frame = decode(vector.data)
    if frame[0] == pb.BaseCommand.SEND:
        assert rebuilt_send(frame) == vector.data
    elif frame[0] == pb.BaseCommand.MESSAGE:
        message, payload = frame[1].message, bytes(frame[2])
        place = message.message_id
        header = encode_message_header(
            message.consumer_id,
            place.ledgerId,
            place.entryId,
            message.redelivery_count,
            place.partition,
            message.ack_set,
            None,
            len(payload),
        )
        assert header + payload == vector.data
        assert encode_payload_header(frame[1], len(payload)) == header
    else:
        assert encode_command(frame[1]) == vector.data
    if frame[0] == pb.BaseCommand.SEND_RECEIPT:
        receipt = frame[1].send_receipt
        place = receipt.message_id
        row = (receipt.sequence_id, receipt.highest_sequence_id, place.ledgerId, place.entryId)
        assert encode_receipts(receipt.producer_id, [row]) == vector.data


def rebuilt_send(frame: Frame) -> bytes:
    """The SEND frame made anew from what was understood of it."""
    _, producer_id, sequence_id, num_messages, _, flags, entry = frame
    assert not flags & BAD_CHECKSUM
    metadata, payload = batch.open_entry(entry)
    optional: dict[str, object] = {}
    if wire_entry.is_batch(metadata):
        optional["num_messages"] = num_messages
    if flags & IS_CHUNK:
        optional["is_chunk"] = True
    rebuilt = batch.build_entry(metadata, payload)
    return batch.encode_send(rebuilt, producer_id=producer_id, sequence_id=sequence_id, **optional)


EXPECTED = [b"message %d " % number * 4 for number in range(3)]


@pytest.mark.parametrize("name", ["send_batch", "send_zlib", "send_lz4", "send_zstd", "send_snappy"])
def test_the_messages_of_a_captured_batch_are_those_that_were_sent(name: str) -> None:
    (entry,) = entries(name)
    assert wire_entry.num_messages(entry) == 3
    try:
        found = batch.messages(entry)
    except UnsupportedCompression as error:
        pytest.skip(str(error))
    assert [bytes(payload) for _, payload in found] == EXPECTED


def test_single_messages_come_one_to_an_entry() -> None:
    found = [bytes(payload) for entry in entries("send_single") for _, payload in batch.messages(entry)]
    assert found == EXPECTED


def test_keys_times_and_sequence_ids_are_read_from_a_captured_entry() -> None:
    first, second = entries("send_keyed")
    ((single, payload),) = batch.messages(first)
    assert (single.partition_key, single.event_time, bytes(payload)) == ("key", 1234567890123, b"payload")
    assert wire_entry.peek_sticky_key(first) == b"order"
    assert wire_entry.producer(first) == ("golden", 300, 300)
    assert wire_entry.deliver_at_time(second) == 4102444800000


def test_captured_chunks_join_to_the_message() -> None:
    parts = [
        (wire_entry.chunk(wire_entry.parse_metadata(e)), wire_entry.payload(e))
        for e in entries("send_chunked")
    ]
    places = [place for place, _ in parts if place is not None]
    assert [(place.chunk_id, place.chunks, place.message_bytes) for place in places] == [
        (0, 2, 15_000),
        (1, 2, 15_000),
    ]
    assert b"".join(bytes(payload) for _, payload in parts) == b"0123456789" * 1500


def test_an_encrypted_entry_passes_but_is_not_opened() -> None:
    (entry,) = entries("send_encrypted")
    assert wire_entry.parse_metadata(entry).encryption_keys[0].key == "river"
    with pytest.raises(ValueError, match="encrypted"):
        batch.messages(entry)


def test_what_the_captured_commands_say() -> None:
    (connect,) = commands("connect", pb.BaseCommand.CONNECT)
    (connected,) = commands("connect", pb.BaseCommand.CONNECTED)
    assert connect.connect.protocol_version == connected.connected.protocol_version == 20
    assert connected.connected.max_message_size == 10240
    (error,) = commands("error", pb.BaseCommand.ERROR)
    assert error.error.error == pb.ConsumerBusy
    (answer,) = commands("error_lookup", pb.BaseCommand.PARTITIONED_METADATA_RESPONSE)
    assert answer.partitionMetadataResponse.error == pb.TopicNotFound
    by_id, by_time = commands("seek", pb.BaseCommand.SEEK)
    assert by_id.seek.message_id.ledgerId == 2**64 - 1
    assert by_time.seek.message_publish_time == 1234567890123
    (ack,) = commands("key_shared", pb.BaseCommand.ACK)
    assert list(ack.ack.message_id[0].ack_set) == [0b101]


def test_pings_and_pongs_are_byte_for_byte_ours() -> None:
    assert {vector.data for vector in FILES["ping"]} == {PING_FRAME, PONG_FRAME}


def test_a_captured_split_is_told_to_watchers_and_to_the_consumer() -> None:
    lookup, *_ = commands("scalable", pb.BaseCommand.SCALABLE_TOPIC_LOOKUP)
    assert lookup.scalableTopicLookup.topic == "topic://public/default/golden"
    assert lookup.scalableTopicLookup.create_if_missing
    updates = [
        c.scalableTopicUpdate
        for c in commands("scalable", pb.BaseCommand.SCALABLE_TOPIC_UPDATE)
        if c.scalableTopicUpdate.session_id == lookup.scalableTopicLookup.session_id
    ]
    assert {update.resolved_topic_name for update in updates} == {"topic://public/default/golden"}
    first, last = updates[0].dag, updates[-1].dag
    assert (first.epoch, last.epoch) == (0, 1)
    assert [(s.hash_start, s.hash_end, s.state) for s in last.segments] == [
        (0, 0xFFFF, pb.SEALED),
        (0, 0x7FFF, pb.ACTIVE),
        (0x8000, 0xFFFF, pb.ACTIVE),
    ]
    assert [list(s.parent_ids) for s in last.segments] == [[], [0], [0]]
    assert list(last.segments[0].child_ids) == [1, 2]
    assert sorted(b.segment_id for b in last.segment_brokers) == [1, 2]
    assert last.controller_broker_url.startswith("pulsar://")
    (subscribe,) = commands("scalable", pb.BaseCommand.SCALABLE_TOPIC_SUBSCRIBE)
    (answer,) = commands("scalable", pb.BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE)
    asked, answered = subscribe.scalableTopicSubscribe, answer.scalableTopicSubscribeResponse
    assert (asked.subscription, asked.consumer_name, asked.consumer_type) == ("sub", "golden", pb.STREAM)
    assert asked.request_id == answered.request_id
    pushed = commands("scalable", pb.BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE)[-1]
    assignment = pushed.scalableTopicAssignmentUpdate.assignment
    assert assignment.layout_epoch == 1
    assert {s.segment_topic for s in assignment.segments} == {
        f"segment://public/default/golden/{name}" for name in ("0000-ffff-0", "0000-7fff-1", "8000-ffff-2")
    }


def test_a_namespaces_watch_is_read_as_pulsar_writes_it() -> None:
    first, again = (c.watchScalableTopics for c in commands("namespace_watch", 76))
    assert (first.watch_id, first.namespace, len(first.property_filters)) == (7, "public/default", 0)
    assert not first.HasField("current_hash")
    assert [(pair.key, pair.value) for pair in again.property_filters] == [("owner", "billing")]
    snapshot, diff, empty, error = (c.watchScalableTopicsUpdate for c in commands("namespace_watch", 77))
    names = ["topic://public/default/a", "topic://public/default/b"]
    assert (snapshot.watch_id, list(snapshot.snapshot.topics)) == (7, names)
    assert again.current_hash == topic_hash(names)
    assert (list(diff.diff.added), list(diff.diff.removed)) == (names[:1], names)
    assert (empty.WhichOneof("event"), len(empty.snapshot.topics)) == ("snapshot", 0)
    assert (error.WhichOneof("event"), error.error, error.message) == (
        None,
        pb.AuthorizationError,
        "not allowed",
    )
    (close,) = commands("namespace_watch", 78)
    assert close.watchScalableTopicsClose.watch_id == 7
