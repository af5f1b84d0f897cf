"""Messages read from entries: batches taken apart by hand agree with protobuf; what is damaged is refused."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.client.errors import CryptoFailed
from anabranch.client.message import EntryOrigin, Message, ReceivedEntry, read_entry
from anabranch.client.message_id import MessageId
from anabranch.errors import AnabranchError, MalformedFrame
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_batch, build_entry, build_message, open_entry
from anabranch.wire.frames import MESSAGE_BYTES_MAX

ORIGIN = EntryOrigin("topic://public/default/t", segment=3)

singles = st.builds(
    lambda payload, key, properties, times: (
        pb.SingleMessageMetadata(
            payload_size=0,
            partition_key=key,
            properties=[pb.KeyValue(key=k, value=v) for k, v in properties.items()],
            **times,
        ),
        payload,
    ),
    st.one_of(st.binary(max_size=40), st.integers(0, 2).map(lambda n: b"x" * 129**n)),
    st.one_of(st.none(), st.text(max_size=10), st.just("k" * 200)),
    st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2),
    st.fixed_dictionaries(
        {}, optional={"event_time": st.integers(1, 1 << 40), "sequence_id": st.integers(0, 9)}
    ),
)


def entry_of(data: bytes) -> ReceivedEntry:
    body = pb.CommandMessage(
        consumer_id=0, message_id=pb.MessageIdData(ledgerId=5, entryId=6), redelivery_count=2
    )
    return read_entry(ORIGIN, body, memoryview(data))


def metadata(**fields: object) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=9, publish_time=77, **fields)  # type: ignore[arg-type]


@given(st.lists(singles, min_size=1, max_size=8), st.sampled_from([pb.NONE, pb.ZLIB]))
def test_a_batch_gives_the_messages_it_was_built_from(
    batch: list[tuple[pb.SingleMessageMetadata, bytes]], compression: int
) -> None:
    found = entry_of(build_batch(metadata(compression=compression), batch)).messages()[::-1]
    assert [m.payload for m in found] == [payload for _, payload in batch]
    assert [m.key for m in found] == [
        s.partition_key if s.HasField("partition_key") else None for s, _ in batch
    ]
    assert [m.event_time_ms for m in found] == [s.event_time for s, _ in batch]
    assert [m.properties for m in found] == [{p.key: p.value for p in s.properties} for s, _ in batch]
    assert [m.sequence_id for m in found] == [
        s.sequence_id if s.HasField("sequence_id") else 9 for s, _ in batch
    ]
    assert [m.id for m in found] == [MessageId(3, 5, 6, index) for index in range(len(batch))]


def test_a_message_outside_of_a_batch_has_the_entrys_metadata() -> None:
    (message,) = entry_of(build_message(metadata(partition_key="k", event_time=5), b"hello")).messages()
    assert (message.payload, message.value, message.key, message.key_bytes) == (b"hello", b"hello", "k", b"k")
    assert (message.topic, message.segment, message.redeliveries) == ("topic://public/default/t", 3, 2)
    assert (message.producer, message.sequence_id, message.publish_time_ms) == ("p", 9, 77)
    assert message.id == MessageId(3, 5, 6, -1)
    assert repr(message) == "<Message 3:5:6:-1 of topic://public/default/t, 5 bytes>"


def test_a_key_of_bytes_is_given_as_bytes() -> None:
    (message,) = entry_of(
        build_message(metadata(partition_key="/wA", partition_key_b64_encoded=True), b"")
    ).messages()
    assert message.key_bytes == b"\xff\x00"


def test_a_null_value_is_none_and_has_no_bytes() -> None:
    (message,) = entry_of(build_message(metadata(null_value=True), b"")).messages()
    assert message.value is None
    assert message.payload == b""


def test_messages_that_are_not_wanted_are_left_out() -> None:
    batch = [(pb.SingleMessageMetadata(payload_size=0), b"%d" % n) for n in range(5)]
    entry = entry_of(build_batch(metadata(), batch))
    entry.want(0b01010)
    assert entry.waiting == 2
    assert [m.payload for m in entry.messages()] == [b"3", b"1"]


def test_a_schema_makes_values() -> None:
    class Upper:
        def decode(self, payload: bytes, version: bytes) -> str:
            return payload.decode().upper() + version.decode()

    data, payload = open_entry(build_message(metadata(schema_version=b"1"), b"hello"))
    entry = ReceivedEntry(EntryOrigin("t", schema=Upper()), 1, 1, data, bytes(payload))
    assert [m.value for m in entry.messages()] == ["HELLO1"]


def test_a_message_may_be_larger_unpacked_than_brokers_let_messages_be() -> None:
    payload = bytes(MESSAGE_BYTES_MAX + 1)
    (message,) = entry_of(build_message(metadata(compression=pb.ZSTD), payload)).messages()
    assert message.payload == payload


def test_a_damaged_entry_is_refused_when_it_is_opened() -> None:
    data = bytearray(build_message(metadata(), b"hello"))
    data[-1] ^= 1
    with pytest.raises(AnabranchError, match="checksum"):
        entry_of(bytes(data)).messages()


@given(st.binary(max_size=60), st.integers(-1, 4))
def test_a_batch_of_rubbish_is_refused_or_read_within_its_bytes(payload: bytes, count: int) -> None:
    entry = entry_of(build_message(metadata(num_messages_in_batch=count), payload))
    found: list[Message] = []
    try:
        found = entry.messages()
    except AnabranchError:
        return
    assert len(found) == count
    assert sum(len(m.payload) for m in found) <= len(payload)


def test_a_size_without_an_end_costs_no_more_than_reading_it() -> None:
    # By hand a number of a megabyte of digits: more than ten bytes are no number of protobuf's.
    payload = (1 << 20).to_bytes(4, "big") + b"\x18" + b"\xff" * (1 << 20)
    entry = entry_of(build_message(metadata(num_messages_in_batch=1), payload))
    before_s = time.process_time()
    with pytest.raises(MalformedFrame):
        entry.messages()
    # Milliseconds; put together as one number it took minutes.
    assert time.process_time() - before_s < 5


def test_a_key_that_is_no_base64_is_its_text() -> None:
    fields = {"partition_key": "a", "partition_key_b64_encoded": True}
    (message,) = entry_of(build_message(metadata(**fields), b"x")).messages()
    assert message.key_bytes == b"a"


class Keys:
    """Reverses what it decrypts, and knows one key."""

    def __init__(self, on_failure: str) -> None:
        self.on_failure = on_failure

    def decrypt(self, metadata: pb.MessageMetadata, payload: bytes) -> bytes:
        if metadata.encryption_keys[0].key != "ours":
            raise CryptoFailed("no key")
        return payload[::-1]


def encrypted(key: str, on_failure: str = "fail") -> ReceivedEntry:
    batch = [(pb.SingleMessageMetadata(payload_size=0), b"%d" % n) for n in range(3)]
    parsed, payload = open_entry(build_batch(metadata(), batch))
    parsed.encryption_keys.add(key=key, value=b"")
    return ReceivedEntry(EntryOrigin("t", decryption=Keys(on_failure)), 1, 1, parsed, bytes(payload)[::-1])


def test_an_encrypted_batch_is_decrypted_and_taken_apart() -> None:
    assert [m.payload for m in encrypted("ours").messages()] == [b"2", b"1", b"0"]


def test_an_encrypted_entry_without_its_key_fails_or_is_delivered_as_it_is() -> None:
    with pytest.raises(CryptoFailed):
        encrypted("theirs").messages()
    entry = encrypted("theirs", "deliver")
    (message,) = entry.messages()
    assert message.payload == entry.data
    assert (message.index, entry.count) == (-1, 1)


class Vault:
    """Keys of an application that cannot be had."""

    on_failure = "fail"

    def decrypt(self, metadata: pb.MessageMetadata, payload: bytes) -> bytes:
        raise OSError("the vault is sealed")


@pytest.mark.parametrize("decryption", [None, Vault()])
def test_whatever_is_wrong_with_an_encrypted_message_is_told_as_such(decryption: Vault | None) -> None:
    # A key's name that is no UTF-8: a field of bytes has the same form on the wire.
    named = metadata().SerializeToString() + bytes([13 << 3 | 2, 7, 10, 1, 0xFF, 18, 2]) + b"xx"
    parsed = pb.MessageMetadata.FromString(named)
    assert parsed.encryption_keys[0].key == b"\xff"  # type: ignore[comparison-overlap]
    with pytest.raises(CryptoFailed):
        ReceivedEntry(EntryOrigin("t", decryption=decryption), 1, 1, parsed, b"x").messages()


def test_a_consumer_without_keys_says_what_is_missing() -> None:
    parsed, payload = open_entry(build_message(metadata(), b"x"))
    parsed.encryption_keys.add(key="billing", value=b"")
    with pytest.raises(CryptoFailed, match="encrypted for billing: open the consumer with encryption="):
        ReceivedEntry(ORIGIN, 1, 1, parsed, bytes(payload)).messages()


@pytest.mark.parametrize("is_base64", [False, True])
def test_strings_that_are_not_utf_8_can_be_read(is_base64: bool) -> None:
    about = pb.SingleMessageMetadata(partition_key="key!", payload_size=1)
    about.partition_key_b64_encoded = is_base64
    about.properties.add(key="name", value="value")
    raw = about.SerializeToString().replace(b"value", b"v\xa4lue")
    if not is_base64:
        raw = raw.replace(b"key!", b"k\xa4y!")
    body = len(raw).to_bytes(4, "big") + raw + b"x"
    (message,) = entry_of(build_message(metadata(num_messages_in_batch=1), body)).messages()
    assert message.key == ("key!" if is_base64 else "k\ufffdy!")
    if not is_base64:
        assert message.key_bytes == b"k\xa4y!"
    assert message.properties == {"name": "v\ufffdlue"}


def test_a_message_that_unpacks_to_more_than_it_promises_is_refused() -> None:
    zstandard = pytest.importorskip("zstandard")
    packed = zstandard.ZstdCompressor().compress(bytes(32 << 20))
    head = metadata(compression=pb.ZSTD, uncompressed_size=100)
    with pytest.raises(MalformedFrame):
        entry_of(build_entry(head, packed)).messages()[0].payload  # noqa: B018 - Reading it unpacks it.
