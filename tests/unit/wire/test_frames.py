"""The frame decoder: any chunking gives the same frames, the fast reading of SEND agrees with protobuf."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.errors import MalformedFrame, OversizeFrame, PeerError
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_entry, encode_send
from anabranch.wire.encode import encode_command, encode_payload_header
from anabranch.wire.frames import (
    BAD_CHECKSUM,
    BAD_IDS,
    BAD_METADATA,
    COMMAND_BYTES_MAX,
    COMMAND_ITEMS_MAX,
    EXTENDED,
    FRAME_BYTES_MAX,
    IS_CHUNK,
    IS_MARKER,
    METADATA_BYTES_MAX,
    NO_CHECKSUM,
    SEQUENCE_ID_MAX,
    Frame,
    FrameDecoder,
    verify,
)

U64 = st.integers(0, 2**64 - 1)
SMALL = st.integers(0, 300) | st.integers(0, 2**32) | U64
SEND = st.fixed_dictionaries(
    {"producer_id": SMALL, "sequence_id": SMALL},
    optional={
        "num_messages": st.integers(0, 1000) | st.integers(-(2**31), 2**31 - 1),
        "highest_sequence_id": SMALL,
        "is_chunk": st.booleans(),
        "marker": st.booleans(),
        "txnid_least_bits": SMALL,
        "txnid_most_bits": SMALL,
        "message_id": st.builds(pb.MessageIdData, ledgerId=SMALL, entryId=SMALL),
    },
)


def entry(payload: bytes = b"payload", **fields: Any) -> bytes:
    values: dict[str, Any] = {"producer_name": "p", "sequence_id": 1, "publish_time": 2, **fields}
    return build_entry(pb.MessageMetadata(**values), payload)


def flow(permits: int) -> bytes:
    body = pb.CommandFlow(consumer_id=1, messagePermits=permits)
    return encode_command(pb.BaseCommand(type=pb.BaseCommand.FLOW, flow=body))


def plain(frames: list[Frame]) -> list[tuple[Any, ...]]:
    """Frames as values that can be compared."""
    return [tuple(bytes(part) if isinstance(part, memoryview) else part for part in f) for f in frames]


def raw_frame(command: bytes, payload: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(command) + len(payload), len(command)) + command + payload


def ids_flag(highest: int) -> int:
    return BAD_IDS if highest > SEQUENCE_ID_MAX else 0


@given(SEND, st.none() | st.integers(1, 5000))
@settings(max_examples=400)
def test_send_reads_as_protobuf_reads_it(fields: dict[str, Any], messages: int | None) -> None:
    stored = entry(
        b"x" * 6 * (messages or 0), **({} if messages is None else {"num_messages_in_batch": messages})
    )
    (frame,) = FrameDecoder().feed(encode_send(stored, **fields))
    send = pb.CommandSend(**fields)
    flags = (IS_CHUNK if send.is_chunk else 0) | (IS_MARKER if send.marker else 0)
    extended = any(send.HasField(f) for f in ("txnid_least_bits", "txnid_most_bits", "message_id"))
    highest = max(send.sequence_id, send.highest_sequence_id)
    # What consumers count is what the metadata says.
    assert frame[:5] == (6, send.producer_id, send.sequence_id, messages or 1, highest)
    assert frame[5] == flags | (EXTENDED if extended else 0) | ids_flag(highest)
    assert bytes(frame[6]) == stored
    assert (frame[7].send == send) if extended else (len(frame) == 7)


@given(st.lists(st.tuples(st.sampled_from([8, 16, 24, 48, 56, 64]), SMALL), max_size=8), st.data())
def test_send_with_fields_in_any_order_reads_as_protobuf_reads_it(
    fields: list[tuple[int, int]], data: st.DataObject
) -> None:
    def varint(n: int) -> bytes:
        return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)

    parts = data.draw(st.permutations([(8, 5), (16, 9), *fields]))
    body = b"".join(bytes([tag]) + varint(n) for tag, n in parts)
    send = pb.CommandSend.FromString(body)
    (frame,) = FrameDecoder().feed(raw_frame(b"\x08\x06\x32" + varint(len(body)) + body, entry()))
    highest = max(send.sequence_id, send.highest_sequence_id)
    assert frame[:5] == (6, send.producer_id, send.sequence_id, 1, highest)
    assert frame[5] & BAD_IDS == ids_flag(highest)
    assert bool(frame[5] & IS_CHUNK) == send.is_chunk
    assert bool(frame[5] & IS_MARKER) == send.marker


@pytest.mark.parametrize("said", [1, 2, 0, -1, 2_000_000_000, -(2**31)])
@pytest.mark.parametrize("sequence_id", [7, 2**40])  # The second is read by protobuf.
@pytest.mark.parametrize("name", ["p", "X marks the spot"])
def test_a_send_has_as_many_messages_as_its_metadata_says(said: int, sequence_id: int, name: str) -> None:
    decoder = FrameDecoder()
    one = entry(producer_name=name)
    three = entry(b"x" * 18, producer_name=name, num_messages_in_batch=3)
    packed = entry(
        b"x", producer_name=name, num_messages_in_batch=3, compression=pb.ZSTD, uncompressed_size=18
    )
    for stored, count in ((one, 1), (three, 3), (packed, 3), (one, 1)):
        (frame,) = decoder.feed(
            encode_send(stored, producer_id=1, sequence_id=sequence_id, num_messages=said)
        )
        assert (frame[3], frame[5]) == (count, 0)


def test_many_sends_of_one_read_have_as_many_messages_as_each_one_says() -> None:
    parts = [
        entry(b"X" * (n % 3), **({} if n % 5 else {"num_messages_in_batch": 1}))
        if n % 7
        else entry(b"x" * 12, num_messages_in_batch=2)
        for n in range(300)
    ]
    frames = FrameDecoder().feed(
        b"".join(encode_send(part, producer_id=1, sequence_id=n) for n, part in enumerate(parts))
    )
    assert [frame[3] for frame in frames] == [1 if n % 7 else 2 for n in range(300)]


@pytest.mark.parametrize("sequence_id", [7, 2**40])
@pytest.mark.parametrize(
    "fields",
    [
        {"num_messages_in_batch": 0},
        {"num_messages_in_batch": -1},
        {"num_messages_in_batch": -(2**31)},
        {"num_messages_in_batch": 2},  # There are 7 bytes.
        {"num_messages_in_batch": 2**31 - 1},
        {"num_messages_in_batch": 4, "compression": pb.ZSTD, "uncompressed_size": 23},
        {"num_messages_in_batch": 1_000_001, "compression": pb.ZSTD, "uncompressed_size": 2**32 - 1},
    ],
)
def test_metadata_that_counts_messages_which_cannot_be_there_is_flagged(
    sequence_id: int, fields: dict[str, Any]
) -> None:
    decoder = FrameDecoder()
    sent = encode_send(entry(**fields), producer_id=1, sequence_id=sequence_id)
    frames = decoder.feed(sent + flow(3))
    assert frames[0][5] == BAD_METADATA
    assert frames[0][3] == 1
    assert frames[1][0] == pb.BaseCommand.FLOW


@pytest.mark.parametrize("sequence_id", [7, 2**40])
def test_metadata_that_takes_a_long_turn_to_read_is_flagged(sequence_id: int) -> None:
    for key_bytes, flag in ((METADATA_BYTES_MAX - 100, 0), (METADATA_BYTES_MAX, BAD_METADATA)):
        (frame,) = FrameDecoder().feed(
            encode_send(entry(partition_key="k" * key_bytes), producer_id=1, sequence_id=sequence_id)
        )
        assert frame[5] == flag


@pytest.mark.parametrize("sequence_id", [7, 2**40])
def test_metadata_that_nobody_can_read_is_flagged_where_it_is_read(sequence_id: int) -> None:
    head = b"\xff\x58\xff"
    body = len(head).to_bytes(4, "big") + head + b"payload"
    stored = b"\x0e\x01" + crc32c(body).to_bytes(4, "big") + body
    for said in (1, 2):
        (frame,) = FrameDecoder().feed(
            encode_send(stored, producer_id=1, sequence_id=sequence_id, num_messages=said)
        )
        assert frame[5] == BAD_METADATA


@pytest.mark.parametrize(
    ("sequence_id", "highest", "flag"),
    [
        (2**63 - 1, 0, 0),
        (2**63, 0, BAD_IDS),
        (2**64 - 1, 0, BAD_IDS),
        (1, 2**63, BAD_IDS),
        (1, 2**63 - 1, 0),
    ],
)
def test_sequence_ids_that_no_answer_could_name_are_flagged(
    sequence_id: int, highest: int, flag: int
) -> None:
    sent = encode_send(entry(), producer_id=1, sequence_id=sequence_id, highest_sequence_id=highest)
    (frame,) = FrameDecoder().feed(sent)
    assert frame[5] == flag


FRAMES = st.one_of(
    st.builds(flow, st.integers(1, 10_000)),
    st.builds(lambda size, seq: encode_send(entry(b"x" * size), producer_id=200, sequence_id=seq),
              st.integers(0, 3000), st.integers(0, 2**30)),
)  # fmt: skip


@given(st.lists(FRAMES, max_size=12), st.lists(st.integers(1, 700), min_size=1))
def test_any_chunking_yields_the_same_frames(parts: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(parts)
    whole = plain(FrameDecoder().feed(stream))
    assert len(whole) == len(parts)
    decoder = FrameDecoder(buffer_bytes_min=64, buffer_bytes_max=512)
    frames: list[Frame] = []
    at = turn = 0
    while at < len(stream):
        # As a socket does: as much as fits the room, or less.
        room = decoder.writable()
        count = min(cuts[turn % len(cuts)], len(room), len(stream) - at)
        room[:count] = stream[at : at + count]
        frames += plain(decoder.received(count))
        at, turn = at + count, turn + 1
    assert frames == whole
    assert decoder.pending == 0


@given(st.binary(max_size=200))
def test_garbage_never_gets_further_than_a_peer_error(data: bytes) -> None:
    decoder = FrameDecoder(frame_bytes_max=1000)
    with suppress(PeerError):
        decoder.feed(data)
        decoder.feed(struct.pack(">I", len(data)) + data)


@given(st.binary(min_size=1, max_size=60), st.integers(0, 255), SEND)
def test_a_damaged_send_is_refused_or_flagged_or_harmless(
    junk: bytes, at: int, fields: dict[str, Any]
) -> None:
    good = encode_send(entry(), **fields)
    at = 8 + at % (len(good) - 8)
    bad = (good[:at] + junk)[: len(good)].ljust(len(good), b"\xff")
    try:
        frames = FrameDecoder().feed(bad)
    except PeerError:
        return
    assert len(frames) == 1


def test_a_damaged_entry_is_flagged_and_the_connection_goes_on() -> None:
    good = entry(b"hello")
    bad = good[:-1] + b"!"
    decoder = FrameDecoder()
    frames = decoder.feed(encode_send(bad, producer_id=1, sequence_id=1) + flow(3))
    assert frames[0][5] == BAD_CHECKSUM
    assert frames[1][0] == pb.BaseCommand.FLOW
    (batch,) = decoder.feed(encode_send(bad, producer_id=1, sequence_id=1, num_messages=7))
    assert batch[5] == BAD_CHECKSUM
    torn = b"\x0e\x01\x00\x00\x00\x00\xff\xff\xff\xff"
    assert decoder.feed(encode_send(torn, producer_id=1, sequence_id=1))[0][5] == BAD_CHECKSUM
    assert verify(good)
    assert verify(memoryview(good))
    assert not verify(bad)


def test_an_entry_without_checksum_is_legal() -> None:
    bare = entry(b"hello")[6:]
    (frame,) = FrameDecoder().feed(encode_send(bare, producer_id=1, sequence_id=1))
    assert frame[5] == NO_CHECKSUM
    assert bytes(frame[6]) == bare
    assert verify(bare)


def test_broker_metadata_in_front_of_an_entry_is_taken_off() -> None:
    stored = entry(b"hello")
    extra = pb.BrokerEntryMetadata(index=5).SerializeToString()
    wrapped = b"\x0e\x02" + len(extra).to_bytes(4, "big") + extra + stored
    (frame,) = FrameDecoder().feed(encode_send(wrapped, producer_id=1, sequence_id=1))
    assert (frame[5], bytes(frame[6])) == (0, stored)
    assert verify(wrapped)
    with pytest.raises(MalformedFrame):
        FrameDecoder().feed(encode_send(b"\x0e\x02\x00\x00\x00\xff", producer_id=1, sequence_id=1))


def test_metadata_larger_than_its_entry_is_malformed() -> None:
    with pytest.raises(MalformedFrame, match="metadata of"):
        FrameDecoder().feed(encode_send(b"\x00\x00\x01\x00rest", producer_id=1, sequence_id=1))
    with pytest.raises(MalformedFrame, match="metadata of"):
        FrameDecoder().feed(encode_send(b"", producer_id=1, sequence_id=1))
    rest = b"\x00\x00\x01\x00rest"
    signed = b"\x0e\x01" + crc32c(rest).to_bytes(4, "big") + rest
    with pytest.raises(MalformedFrame, match="metadata of"):
        FrameDecoder().feed(encode_send(signed, producer_id=1, sequence_id=1))


def test_a_message_frame_hands_over_command_and_payload() -> None:
    message = pb.CommandMessage(consumer_id=3, message_id=pb.MessageIdData(ledgerId=1, entryId=2))
    command = pb.BaseCommand(type=pb.BaseCommand.MESSAGE, message=message)
    stored = entry()
    (frame,) = FrameDecoder().feed(encode_payload_header(command, len(stored)) + stored)
    assert frame[:2] == (9, command)
    assert bytes(frame[2]) == stored


def test_an_oversize_frame_is_refused_from_its_header() -> None:
    decoder = FrameDecoder(frame_bytes_max=1000)
    with pytest.raises(OversizeFrame, match="limit is 1000"):
        decoder.feed(struct.pack(">II", 1001, 5))
    FrameDecoder(frame_bytes_max=1000).feed(struct.pack(">II", 1000, 5))


@pytest.mark.parametrize(
    ("name", "stream"),
    [
        ("a command larger than its frame", struct.pack(">II", 10, 20) + b"x" * 6),
        ("a frame too small for its own sizes", struct.pack(">II", 3, 0)),
        ("an empty command", raw_frame(b"")),
        ("bytes that are no command", raw_frame(b"\xff\xff\xff\xff")),
        ("a type of the future", raw_frame(b"\x08\x7f")),
        ("a type without its body", raw_frame(b"\x08\x17")),
        ("a body without required fields", raw_frame(b"\x08\x17\xba\x01\x00")),
        ("a topic that is not UTF-8", raw_frame(b"\x08\x17\xba\x01\x06\x0a\x02\xff\xfe\x10\x01")),
    ],
)
def test_what_is_no_command_is_malformed(name: str, stream: bytes) -> None:
    with pytest.raises(MalformedFrame):
        FrameDecoder().feed(stream)


def test_ping_needs_no_body() -> None:
    (frame,) = FrameDecoder().feed(raw_frame(b"\x08\x12"))
    assert frame[0] == pb.BaseCommand.PING


def read(decoder: FrameDecoder, stream: bytes, chunk: int = 1 << 30) -> list[Frame]:
    """Plays a socket that has `stream` ready; payloads are views, as a shell would see them."""
    frames: list[Frame] = []
    at = 0
    while at < len(stream):
        room = decoder.writable()
        count = min(len(room), len(stream) - at, chunk)
        room[:count] = stream[at : at + count]
        frames = decoder.received(count) or frames
        at += count
    return frames


def test_a_large_frame_is_received_whole_and_its_memory_given_back() -> None:
    decoder = FrameDecoder()
    stored = entry(b"x" * (5 * 1024 * 1024))
    (frame,) = read(decoder, encode_send(stored, producer_id=1, sequence_id=1), 50_000)
    assert bytes(frame[6]) == stored
    assert decoder.buffer_bytes >= len(stored)
    for permits in range(1, 400):
        read(decoder, flow(permits))
    assert decoder.buffer_bytes <= 16 * 1024


def test_a_large_frame_in_small_reads_is_not_copied_at_each_of_them() -> None:
    decoder = FrameDecoder()
    stream = encode_send(entry(b"x" * (2 * 1024 * 1024)), producer_id=1, sequence_id=1)
    sizes = set()
    for at in range(0, len(stream) - 1000, 1000):
        read(decoder, stream[at : at + 1000])
        sizes.add(decoder.buffer_bytes)
    assert len(sizes) <= 10


def test_a_header_alone_does_not_allocate_what_it_claims() -> None:
    decoder = FrameDecoder()
    read(decoder, struct.pack(">II", 5 * 1024 * 1024, 20) + b"x" * 1000)
    assert len(decoder.writable()) > 0
    assert decoder.buffer_bytes <= 16 * 1024


def test_the_buffer_grows_only_while_reads_fill_it() -> None:
    decoder = FrameDecoder()
    for _ in range(50):
        read(decoder, flow(1))
    assert decoder.buffer_bytes == 16 * 1024
    read(decoder, encode_send(entry(b"x" * 1000), producer_id=1, sequence_id=1) * 3000)
    decoder.writable()
    assert decoder.buffer_bytes == 1024 * 1024
    decoder.release()
    assert decoder.buffer_bytes == 0
    assert len(read(decoder, flow(1) * 3)) == 3


def test_no_read_of_a_flood_of_small_frames_has_many_more_than_it_may() -> None:
    decoder = FrameDecoder(frames_max=100)
    stream = memoryview(flow(1) * 100_000)
    counts: list[int] = []
    while len(stream):
        room = decoder.writable()
        count = min(len(room), len(stream))
        room[:count] = stream[:count]
        stream = stream[count:]
        counts.append(len(decoder.received(count)))
        assert decoder.was_filled is (count == len(room))
    # The smallest buffer may have more.
    assert max(counts) <= max(100, 16 * 1024 // len(flow(1)) + 1)
    assert sum(counts) == 100_000


def test_large_frames_are_read_as_many_as_fit() -> None:
    decoder = FrameDecoder(frames_max=100)
    read(decoder, encode_send(entry(b"x" * 100_000), producer_id=1, sequence_id=1) * 50)
    decoder.writable()
    assert decoder.buffer_bytes == 1024 * 1024


def test_release_keeps_a_frame_that_is_half_here() -> None:
    decoder = FrameDecoder()
    frame = flow(77)
    read(decoder, frame[:10])
    decoder.release()
    assert decoder.pending == 10
    ((_, command, _),) = read(decoder, frame[10:])
    assert command.flow.messagePermits == 77


def command_of(**fields: Any) -> bytes:
    subscribe = pb.CommandSubscribe(
        topic="t", subscription="s", subType=pb.CommandSubscribe.Shared, consumer_id=1, request_id=1, **fields
    )
    return encode_command(pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE, subscribe=subscribe))


def test_a_command_larger_than_any_is_refused_before_it_is_parsed() -> None:
    ids = [pb.MessageIdData(ledgerId=1, entryId=n) for n in range(200_000)]
    ack = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=ids)
    frame = encode_command(pb.BaseCommand(type=pb.BaseCommand.ACK, ack=ack))
    assert COMMAND_BYTES_MAX < len(frame) < FRAME_BYTES_MAX
    with pytest.raises(OversizeFrame):
        FrameDecoder(command_bytes_max=COMMAND_BYTES_MAX).feed(frame)
    # A client believes its broker.
    assert len(FrameDecoder().feed(frame)) == 1


def test_a_command_may_have_thousands_of_properties_and_not_any_number() -> None:
    few = [pb.KeyValue(key="k", value="v") for _ in range(COMMAND_ITEMS_MAX)]
    decoder = FrameDecoder(command_items_max=COMMAND_ITEMS_MAX)
    assert len(decoder.feed(command_of(metadata=few))) == 1
    with pytest.raises(MalformedFrame):
        decoder.feed(command_of(metadata=[*few, few[0]]))
    assert len(FrameDecoder().feed(command_of(metadata=[*few, few[0]]))) == 1


def test_a_string_that_is_not_utf_8_is_found_however_deep_it_lies() -> None:
    good = command_of(schema=pb.Schema(name="name", schema_data=b"", type=pb.Schema.String))
    assert len(FrameDecoder().feed(good)) == 1
    with pytest.raises(MalformedFrame):
        FrameDecoder().feed(good.replace(b"name", b"n\xa4me"))


def test_many_ids_are_not_looked_through_for_strings() -> None:
    ids = [pb.MessageIdData(ledgerId=1, entryId=n % 100) for n in range(100_000)]
    redeliver = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=ids)
    kind = pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES
    frame = encode_command(pb.BaseCommand(type=kind, redeliverUnacknowledgedMessages=redeliver))
    ((_, command, _),) = FrameDecoder().feed(frame)
    assert len(command.redeliverUnacknowledgedMessages.message_ids) == 100_000
