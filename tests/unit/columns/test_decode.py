"""Received entries become the rows that the scalar codec reads."""

from __future__ import annotations

from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.columns import SCHEMA, Entry, Pool, decode, encode
from anabranch.errors import ChecksumMismatch, MalformedFrame, OversizePayload
from anabranch.wire import batch
from anabranch.wire import pulsar_pb2 as pb

POOL = Pool()
Row = dict[str, Any]

TEXT = st.text(max_size=12)
MESSAGES = st.lists(
    st.tuples(
        st.fixed_dictionaries(
            {},
            optional={
                "partition_key": TEXT,
                "event_time": st.integers(0, 1 << 50),
                "sequence_id": st.integers(0, 1 << 40),
                "null_value": st.booleans(),
                "null_partition_key": st.booleans(),
                "compacted_out": st.booleans(),
                "ordering_key": st.binary(max_size=5),
                "properties": st.lists(st.builds(pb.KeyValue, key=TEXT, value=TEXT), max_size=3),
            },
        ),
        st.binary(max_size=200),
    ),
    max_size=10,
)


def metadata(**fields: Any) -> pb.MessageMetadata:
    values: dict[str, Any] = {"producer_name": "name", "sequence_id": 7, "publish_time": 1234, **fields}
    return pb.MessageMetadata(**values)


def batch_of(messages: list[tuple[Row, bytes]], **fields: Any) -> bytes:
    return batch.build_batch(
        metadata(**fields), [(pb.SingleMessageMetadata(**one), payload) for one, payload in messages]
    )


def expected(data: bytes, entry_id: int, *, in_batch: bool, skip: frozenset[int] = frozenset()) -> list[Row]:
    """The rows by way of the scalar codec."""
    head, _ = batch.open_entry(data)
    rows = []
    for index, (single, payload) in enumerate(batch.messages(data)):
        if single.compacted_out or index in skip:
            continue
        has_key = single.HasField("partition_key") and not single.null_partition_key
        key = single.partition_key if has_key else None
        raw = key.encode() if isinstance(key, str) else key
        if raw is not None and single.partition_key_b64_encoded:
            raw = b64decode(raw)
        rows.append(
            {
                "key": raw,
                "value": None if single.null_value else bytes(payload),
                "properties": [(one.key, one.value) for one in single.properties],
                "event_time": single.event_time if single.HasField("event_time") else None,
                "publish_time": head.publish_time,
                "sequence_id": single.sequence_id if single.HasField("sequence_id") else head.sequence_id,
                "ledger_id": 3,
                "entry_id": entry_id,
                "batch_index": index if in_batch else -1,
            }
        )
    return rows


def rows_of(found: pa.RecordBatch) -> list[Row]:
    found.validate(full=True)
    assert found.schema == SCHEMA
    plain = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in found.columns
    ]
    return pa.RecordBatch.from_arrays(plain, names=SCHEMA.names).to_pylist()  # type: ignore[no-any-return]


@given(st.lists(MESSAGES, max_size=4), st.sampled_from([pb.NONE, pb.ZLIB]))
def test_batches_become_the_rows_that_the_scalar_codec_reads(batches: list[Any], compression: Any) -> None:
    fields = {"compression": compression} if compression else {}
    entries = [batch_of(messages, **fields) for messages in batches]
    found = decode(POOL, [Entry(3, place, data) for place, data in enumerate(entries)])
    each = [expected(data, place, in_batch=True) for place, data in enumerate(entries)]
    assert rows_of(found.batch) == [row for rows in each for row in rows]
    assert found.counts.tolist() == [len(rows) for rows in each]
    assert found.bad == []


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "partition_key": TEXT,
            "event_time": st.integers(0, 1 << 50),
            "null_value": st.booleans(),
            "null_partition_key": st.booleans(),
            "properties": st.lists(st.builds(pb.KeyValue, key=TEXT, value=TEXT), max_size=3),
            "schema_version": st.binary(max_size=9),
            "deliver_at_time": st.integers(-5, 1 << 50),
            "uuid": TEXT,
            "num_chunks_from_msg": st.sampled_from([0, 1]),
            "encryption_algo": TEXT,
        },
    ),
    st.binary(max_size=100),
    st.booleans(),
    st.booleans(),
)
def test_single_messages_become_rows_too(
    fields: Row, payload: bytes, with_crc: bool, with_broker: bool
) -> None:
    entry = batch.build_message(metadata(**fields), payload)
    sent = entry if with_crc else entry[6:]
    if with_broker:
        broker = pb.BrokerEntryMetadata(broker_timestamp=1, index=2).SerializeToString()
        sent = b"\x0e\x02" + len(broker).to_bytes(4, "big") + broker + sent
    found = decode(POOL, [Entry(3, 0, memoryview(sent))])
    assert rows_of(found.batch) == expected(entry, 0, in_batch=False)


def test_nothing_gives_no_rows() -> None:
    found = decode(POOL, [])
    assert rows_of(found.batch) == []
    assert found.counts.tolist() == []


@given(st.lists(st.binary(max_size=12), max_size=20))
def test_binary_keys_come_back_as_they_were_sent(keys: list[bytes]) -> None:
    singles = encode(
        POOL, value=pa.array(keys, pa.binary()), key=pa.array(keys, pa.binary()), first_sequence_id=0
    )
    head = metadata(num_messages_in_batch=len(keys))
    found = decode(POOL, [Entry(3, 0, batch.build_entry(head, singles.payload(0, len(keys))))])
    assert found.batch["key"].to_pylist() == found.batch["value"].to_pylist() == keys


@pytest.mark.parametrize(
    ("text", "key"),
    [("YQ==", b"a"), ("YQ", b"a"), ("YQ=", b"a"), ("YWI", b"ab"), ("", b""), ("a", b"a"), ("?!?!", b"?!?!")],
)
def test_base64_keys_need_no_padding_and_come_as_text_if_they_are_none(text: str, key: bytes) -> None:
    data = batch_of([({"partition_key": text, "partition_key_b64_encoded": True}, b"")])
    assert decode(POOL, [Entry(3, 0, data)]).batch["key"].to_pylist() == [key]


@given(st.sets(st.integers(0, 129)), st.booleans())
def test_messages_acknowledged_before_are_left_out(acked: set[int], short: bool) -> None:
    messages: list[tuple[Row, bytes]] = [
        ({"properties": [pb.KeyValue(key="n", value=str(n))]}, str(n).encode()) for n in range(130)
    ]
    data = batch_of(messages)
    bits = sum(1 << index for index in range(130) if index not in acked)
    words = [(bits >> shift & (1 << 64) - 1) for shift in (0, 64, 128)]
    signed = [word - (1 << 64) if word >> 63 else word for word in words]
    if short:
        # Words that hold nothing may be left off the end.
        signed, acked = signed[:2], acked | {128, 129}
    found = decode(POOL, [Entry(3, 0, data, signed), Entry(3, 1, data)])
    first = expected(data, 0, in_batch=True, skip=frozenset(acked))
    assert rows_of(found.batch) == first + expected(data, 1, in_batch=True)
    assert found.counts.tolist() == [len(first), 130]


def test_long_keys_have_room() -> None:
    data = batch_of([({"partition_key": "k" * 5000}, b"v"), ({"partition_key": "l" * 100}, b"")] * 3)
    single = batch.build_message(metadata(partition_key="m" * 9000), b"")
    found = decode(POOL, [Entry(3, 0, data), Entry(3, 1, single), Entry(3, 2, data)])
    three = [b"k" * 5000, b"l" * 100] * 3
    assert found.batch["key"].to_pylist() == [*three, b"m" * 9000, *three]


def test_a_joined_or_decrypted_payload_is_taken_with_its_entrys_metadata() -> None:
    chunk = batch.build_message(
        metadata(num_chunks_from_msg=2, uuid="u", chunk_id=1, partition_key="k"), b"lf"
    )
    secret = batch.build_message(
        metadata(encryption_keys=[pb.EncryptionKeys(key="a", value=b"b")], compression=pb.LZ4), b"?"
    )
    found = decode(POOL, [Entry(3, 0, chunk, payload=b"whole"), Entry(3, 1, secret, payload=b"plain")])
    assert found.batch["value"].to_pylist() == [b"whole", b"plain"]
    assert found.batch["key"].to_pylist() == [b"k", None]
    for data in (chunk, secret):
        with pytest.raises(MalformedFrame, match="give its whole payload beside it"):
            decode(POOL, [Entry(3, 0, data)])


def test_a_damaged_entry_is_left_out_and_named_and_the_others_come() -> None:
    good = batch_of([({"partition_key": "a", "event_time": 1}, b"x")] * 3)
    damaged = good[:-1] + b"!"
    lying = batch_of([({}, b"x"), ({"null_value": True}, b"")])
    lying = batch.build_entry(metadata(num_messages_in_batch=3), batch.open_entry(lying)[1])
    entries = [Entry(3, place, data) for place, data in enumerate([good, damaged, lying, b"", good])]
    found = decode(POOL, entries, strict=False)
    assert rows_of(found.batch) == expected(good, 0, in_batch=True) + expected(good, 4, in_batch=True)
    assert found.counts.tolist() == [3, 0, 0, 0, 3]
    assert [(place, type(error)) for place, error in found.bad] == [
        (1, ChecksumMismatch),
        (2, MalformedFrame),
        (3, MalformedFrame),
    ]
    assert str(found.bad[1][1]) == "entry 3:2: message 2 of 3: the batch ends within it"
    with pytest.raises(ChecksumMismatch, match="entry 3:1 does not match its checksum"):
        decode(POOL, entries)
    assert decode(POOL, [Entry(3, 1, damaged)], verify=False).batch.num_rows == 3


def test_a_count_that_cannot_be_true_takes_no_memory() -> None:
    lying = batch.build_entry(metadata(num_messages_in_batch=(1 << 31) - 1), b"1234")
    with pytest.raises(MalformedFrame, match="2147483647 messages in 4 bytes"):
        decode(POOL, [Entry(3, 0, lying)])
    negative = batch.build_entry(metadata(num_messages_in_batch=-1), b"1234")
    assert decode(POOL, [Entry(3, 0, negative)]).batch.num_rows == 0


def test_a_packed_message_may_be_larger_than_what_brokers_store() -> None:
    value = bytes(6 << 20)
    packed = batch.build_message(metadata(compression=pb.ZSTD), value)
    assert len(packed) < 1 << 20
    (row,) = decode(POOL, [Entry(1, 0, packed)]).batch.to_pylist()
    assert row["value"] == value
    with pytest.raises(OversizePayload):
        decode(POOL, [Entry(1, 0, packed)], unpacked_bytes_max=len(value) - 1)


def test_what_a_user_holds_is_never_written_over() -> None:
    pool = Pool()
    data = batch_of([({"partition_key": "key"}, b"x" * 100)] * 2000)
    other = batch_of([({"partition_key": "KEY"}, b"y" * 100)] * 2000)
    first = decode(pool, [Entry(3, 0, data)]).batch
    value = first["value"]
    del first
    for _ in range(3):
        decode(pool, [Entry(3, 0, other)])
    assert pool.idle_bytes > 0
    assert value[0].as_py() == value[1999].as_py() == b"x" * 100


def test_threads_share_a_pool() -> None:
    pool = Pool()
    batches = [batch_of([({"partition_key": str(n)}, bytes([n]) * 200)] * 1000) for n in range(8)]

    def check(n: int) -> bool:
        found = [decode(pool, [Entry(3, 0, batches[n])]).batch for _ in range(5)]
        return all(one["value"].to_pylist() == [bytes([n]) * 200] * 1000 for one in found)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(check, range(8)))
