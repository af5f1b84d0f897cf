"""Messages of a batch, written by hand: byte for byte what protobuf writes."""

from __future__ import annotations

from base64 import b64encode

from hypothesis import example, given
from hypothesis import strategies as st

from anabranch.client.producing.singles import SentKeys, encode_full, encode_single, in_pieces
from anabranch.model.keyhash import murmur3_raw
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import split_batch

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
NUMBERS = st.one_of(st.integers(0, 1 << 15), st.integers(0, (1 << 63) - 1))
PAYLOADS = st.one_of(st.binary(max_size=40), st.integers(4000, 4200).map(bytes))


def expected(single: pb.SingleMessageMetadata, payload: bytes) -> bytes:
    single.payload_size = len(payload)
    head = single.SerializeToString()
    return len(head).to_bytes(4, "big") + head + payload


@given(st.none() | TEXT, NUMBERS, PAYLOADS)
@example("k" * 300, 0x3FFF, b"")
@example(None, 0x4000, b"x")
@example("k", 0xFFFFFFF, b"x" * 300)
@example("k", 0x10000000, b"")
def test_a_message_with_a_key(key: str | None, number: int, payload: bytes) -> None:
    field = SentKeys()[key][1] if key is not None else b""
    size, pieces = encode_single(field, number, payload)
    found = b"".join(pieces)
    assert size == len(found)
    single = pb.SingleMessageMetadata(partition_key=key, sequence_id=number)
    assert found == expected(single, payload)
    assert [(one.sequence_id, bytes(data)) for one, data in split_batch(found, 1)] == [(number, payload)]


@given(
    st.none() | TEXT | st.binary(max_size=50),
    NUMBERS,
    PAYLOADS,
    st.lists(st.tuples(TEXT, TEXT), max_size=4),
    st.none() | NUMBERS,
    st.booleans(),
)
def test_a_message_with_everything(
    key: str | bytes | None,
    number: int,
    payload: bytes,
    properties: list[tuple[str, str]],
    event_time: int | None,
    is_null: bool,
) -> None:
    field = SentKeys()[key][1] if key is not None else b""
    is_base64 = isinstance(key, bytes)
    found = encode_full(field, number, payload, properties, event_time, is_base64=is_base64, is_null=is_null)
    single = pb.SingleMessageMetadata(sequence_id=number, event_time=event_time)
    if isinstance(key, bytes):
        single.partition_key = b64encode(key).decode()
        single.partition_key_b64_encoded = True
    elif key is not None:
        single.partition_key = key
    if is_null:
        single.null_value = True
    for name, value in properties:
        single.properties.add(key=name, value=value)
    assert found == expected(single, payload)


def test_keys_are_hashed_by_their_bytes_however_often_they_come() -> None:
    keys = SentKeys()
    for key in ("a", "ü", b"\xff\x00", "a", b"a"):
        raw = key.encode() if isinstance(key, str) else key
        assert keys[key][0] == murmur3_raw(raw)
    for number in range(70_000):
        keys[f"{number}"]
    assert keys["a"][0] == murmur3_raw(b"a")


@given(TEXT, NUMBERS, PAYLOADS)
def test_every_message_of_a_batch_has_as_many_pieces(key: str, number: int, payload: bytes) -> None:
    field = SentKeys()[key][1]
    whole = encode_full(field, number, payload, [("a", "b")], None)
    size, pieces = in_pieces(whole)
    assert (size, b"".join(pieces)) == (len(whole), whole)
    assert len(pieces) == len(encode_single(field, number, payload)[1])
