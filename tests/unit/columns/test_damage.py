"""Damaged entries are an error or what the scalar codec reads, and no kernel reads past the end of what it was given.

All input lies right before a page that cannot be read: a kernel that looks one byte too far ends the test run.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anabranch.columns import Entry, Pool, Router, decode, encode, hash_keys, recut
from anabranch.columns.singles import Singles
from anabranch.errors import AnabranchError
from anabranch.model.keyhash import murmur3_raw
from anabranch.wire import batch
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.entry import metadata_span, parse_metadata

POOL = Pool()
PAGE = mmap.PAGESIZE


class Guarded:
    """Pages of memory with one behind them that nobody may read."""

    def __init__(self, size_max: int) -> None:
        pages = -(-size_max // PAGE)
        self._memory = mmap.mmap(-1, (pages + 1) * PAGE)
        self._end = pages * PAGE
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        if sys.platform == "linux":
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.mprotect(ctypes.c_void_p(start + self._end), ctypes.c_size_t(PAGE), 0) == 0

    def put(self, data: bytes) -> memoryview:
        """The bytes, ending where the guarded page begins. What was put before is written over."""
        start = self._end - len(data)
        self._memory[start : self._end] = data
        return memoryview(self._memory)[start : self._end]


DATA, MORE, THIRD = Guarded(4 * PAGE), Guarded(4 * PAGE), Guarded(PAGE)


def metadata(**fields: Any) -> pb.MessageMetadata:
    values: dict[str, Any] = {"producer_name": "name", "sequence_id": 7, "publish_time": 1234, **fields}
    return pb.MessageMetadata(**values)


SINGLES: list[tuple[dict[str, Any], bytes]] = [
    ({"partition_key": "key", "event_time": 99, "properties": [pb.KeyValue(key="a", value="b")]}, b"one"),
    ({"partition_key": "a2V5", "partition_key_b64_encoded": True, "sequence_id": 300}, b"two" * 50),
    ({"null_value": True, "compacted_out": False, "ordering_key": b"o"}, b""),
    ({"partition_key": "k" * 40}, b"three"),
]
WHOLE = batch.build_batch(
    metadata(schema_version=b"1", properties=[pb.KeyValue(key="c", value="d")]),
    [(pb.SingleMessageMetadata(**one), payload) for one, payload in SINGLES * 2],
)
ALONE = batch.build_message(
    metadata(
        partition_key="key",
        event_time=5,
        properties=[pb.KeyValue(key="c", value="é")],
        num_chunks_from_msg=1,
        uuid="u" * 20,
    ),
    b"payload" * 3,
)
CHANGES = st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=4)


def payload_of(data: bytes) -> memoryview:
    return memoryview(data)[metadata_span(data)[1] :]


def check(data: bytes) -> None:
    """Nothing breaks, and whatever both codecs can read they read alike."""
    found = decode(POOL, [Entry(3, 0, DATA.put(data))], verify=False, strict=False)
    found.batch.validate(full=True)
    try:
        singles = batch.unpack(parse_metadata(data), payload_of(data))
    except (AnabranchError, ValueError):
        return
    if not found.bad:
        kept = [(one, payload) for one, payload in singles if not one.compacted_out]
        values = [None if one.null_value else bytes(payload) for one, payload in kept]
        assert found.batch["value"].to_pylist() == values
        events = [one.event_time if one.HasField("event_time") else None for one, _ in kept]
        signed = [time if time is None or time < 1 << 63 else time - (1 << 64) for time in events]
        assert found.batch["event_time"].cast(pa.int64()).to_pylist() == signed


@given(st.sampled_from([WHOLE, ALONE]), st.integers(0, len(WHOLE)), CHANGES, st.booleans())
@example(WHOLE, len(WHOLE), [], False)
@example(ALONE, len(ALONE), [], False)
def test_changed_and_cut_entries_are_an_error_or_read_as_the_scalar_codec_reads_them(
    data: bytes, size: int, changes: list[tuple[int, int]], is_cut: bool
) -> None:
    changed = bytearray(data)
    for at, byte in changes:
        changed[at % len(changed)] = byte
    check(bytes(changed[:size] if is_cut else changed))


@pytest.mark.parametrize("data", [WHOLE, ALONE], ids=["batch", "single"])
def test_an_entry_may_end_anywhere(data: bytes) -> None:
    for size in range(len(data)):
        check(data[:size])
        # The metadata says that the rest is there; the batch ends early.
        if size >= metadata_span(data)[1]:
            payload = payload_of(data)[: size - metadata_span(data)[1]]
            check(batch.build_entry(parse_metadata(data), payload))


@given(st.binary(max_size=60), st.integers(0, 3))
def test_any_bytes_at_all_are_an_error_or_read_as_the_scalar_codec_reads_them(
    payload: bytes, count: int
) -> None:
    size = len(payload).to_bytes(4, "big")
    check(payload)
    check(size + payload)  # Metadata of these bytes.
    check(batch.build_entry(metadata(num_messages_in_batch=count), payload))
    check(batch.build_entry(metadata(num_messages_in_batch=1), size + payload + b"rest"))
    check(batch.build_entry(metadata(num_messages_in_batch=1), size + payload))


# Wire types of every kind under known and unknown numbers, lengths that lie, and numbers of ten bytes.
FIELDS = st.lists(
    st.builds(
        lambda number, kind, rest: bytes([number << 3 | kind]) + rest,
        st.integers(0, 15),
        st.integers(0, 7),
        st.sampled_from(
            [b"\x00", b"\x01a", b"\x05abcde", b"\xff" * 9 + b"\x01", b"\xff" * 11, b"\x80", b"12345678"]
        ),
    ),
    max_size=5,
).map(b"".join)


@given(FIELDS, FIELDS)
def test_fields_of_any_kind_are_an_error_or_read_as_the_scalar_codec_reads_them(
    one: bytes, other: bytes
) -> None:
    single = len(one).to_bytes(4, "big") + one
    check(batch.build_entry(metadata(num_messages_in_batch=1), single + b"abcde"))
    check(len(one + other).to_bytes(4, "big") + one + other + b"payload")


@pytest.mark.parametrize(
    "text", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe0\x80\x80", b"\xc0\xaf"]
)
def test_properties_that_are_not_text_are_an_error(text: bytes) -> None:
    pair = b"\x0a" + bytes([len(text)]) + text + b"\x12\x01v"
    single = b"\x0a" + bytes([len(pair)]) + pair
    data = batch.build_entry(metadata(num_messages_in_batch=1), len(single).to_bytes(4, "big") + single)
    assert decode(POOL, [Entry(3, 0, DATA.put(data))], strict=False).batch.num_rows == 0
    good = single.replace(text, ("é" * 4).encode()[: len(text) & ~1] or b"e", 1)
    if len(good) == len(single):
        data = batch.build_entry(metadata(num_messages_in_batch=1), len(good).to_bytes(4, "big") + good)
        assert decode(POOL, [Entry(3, 0, DATA.put(data))]).batch.num_rows == 1


@given(st.text(max_size=40), st.binary(max_size=80))
def test_a_payload_in_memory_of_its_own_ends_where_it_ends(key: str, payload: bytes) -> None:
    entry = batch.build_message(metadata(partition_key=key, num_chunks_from_msg=2, uuid="u"), b"")
    found = decode(POOL, [Entry(3, 0, DATA.put(entry), payload=MORE.put(payload))])
    assert found.batch["value"].to_pylist() == [payload]
    assert found.batch["key"].to_pylist() == [key.encode()]


def guarded_column(items: list[bytes], kind: Any, data: Guarded, offsets: Guarded) -> Any:
    width = np.int64 if kind in (pa.large_binary(), pa.large_string()) else np.int32
    bounds = np.cumsum([0, *map(len, items)]).astype(width).tobytes()
    buffers = [None, pa.py_buffer(offsets.put(bounds)), pa.py_buffer(data.put(b"".join(items)))]
    return pa.Array.from_buffers(kind, len(items), buffers, 0)


@given(
    st.lists(st.binary(max_size=70), max_size=12),
    st.sampled_from([pa.binary(), pa.large_binary(), pa.string(), pa.large_string()]),
)
def test_columns_end_where_they_end(items: list[bytes], kind: Any) -> None:
    # Text that is not text would be sent as it is; only its place in memory matters here.
    column = guarded_column(items, kind, DATA, MORE)
    hashes = hash_keys(column)
    assert hashes.tolist() == [murmur3_raw(item) for item in items]
    singles = encode(POOL, value=column, key=column, first_sequence_id=0, hashes=hashes)
    payload = THIRD.put(bytes(singles.buffer))
    assert [bytes(found) for _, found in batch.split_batch(payload, len(items))] == items
    again = recut(POOL, [Singles(np.frombuffer(payload, np.uint8), *singles[1:])], Router([0]))
    assert bytes(again.buffer) == bytes(singles.buffer)
