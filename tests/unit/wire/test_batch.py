"""Entries built are entries opened: batches, single messages and each compression."""

from __future__ import annotations

import tracemalloc
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import ChecksumMismatch, MalformedFrame, UnsupportedCompression
from anabranch.wire import batch
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.frames import MESSAGE_BYTES_MAX, verify


def metadata(**fields: Any) -> pb.MessageMetadata:
    values: dict[str, Any] = {"producer_name": "name", "sequence_id": 7, "publish_time": 1234, **fields}
    return pb.MessageMetadata(**values)


def single(key: str) -> pb.SingleMessageMetadata:
    return pb.SingleMessageMetadata(partition_key=key)


@given(
    st.lists(st.tuples(st.text(), st.binary(max_size=300)), max_size=20), st.sampled_from([pb.NONE, pb.ZLIB])
)
def test_a_batch_comes_back_as_it_was(pairs: list[tuple[str, bytes]], compression: Any) -> None:
    fields = metadata()
    if compression:
        fields.compression = compression
    entry = batch.build_batch(fields, [(single(key), payload) for key, payload in pairs])
    assert verify(entry)
    found = [(one.partition_key, bytes(payload)) for one, payload in batch.messages(entry)]
    assert found == pairs


def test_a_single_message_comes_with_the_metadata_it_would_have_in_a_batch() -> None:
    fields = metadata(partition_key="k", event_time=5, properties=[pb.KeyValue(key="a", value="b")])
    ((one, payload),) = batch.messages(batch.build_message(fields, b"hello"))
    assert bytes(payload) == b"hello"
    assert one == pb.SingleMessageMetadata(
        payload_size=5,
        partition_key="k",
        event_time=5,
        sequence_id=7,
        properties=[pb.KeyValue(key="a", value="b")],
    )


def test_a_damaged_entry_is_not_opened() -> None:
    entry = batch.build_message(metadata(), b"hello")
    with pytest.raises(ChecksumMismatch):
        batch.open_entry(entry[:-1] + b"!")


def test_a_chunk_or_an_encrypted_entry_is_left_to_its_client() -> None:
    chunk = batch.build_message(metadata(num_chunks_from_msg=2, uuid="u", chunk_id=0), b"half")
    with pytest.raises(ValueError, match="chunk"):
        batch.messages(chunk)


@pytest.mark.parametrize("size", [4, 6, 10_000_000])
def test_a_payload_that_lies_about_its_size_is_refused(size: int) -> None:
    fields = metadata(compression=pb.ZLIB, uncompressed_size=size)
    with pytest.raises(MalformedFrame):
        batch.messages(batch.build_entry(fields, zlib.compress(b"hello")))


def test_a_payload_that_is_not_compressed_at_all_is_refused() -> None:
    with pytest.raises(MalformedFrame, match="ZLIB"):
        batch.messages(batch.build_entry(metadata(compression=pb.ZLIB, uncompressed_size=5), b"hello"))


def test_an_unknown_compression_is_named() -> None:
    with pytest.raises(UnsupportedCompression, match="9"):
        batch.compress(9, b"")


@pytest.mark.parametrize("kind", sorted(batch.CODECS))
def test_every_codec_works_or_says_which_package_it_needs(kind: int) -> None:
    data = b"river " * 1000
    try:
        packed = batch.compress(kind, data)
    except UnsupportedCompression as error:
        package = str(batch.CODECS[kind].package).partition(".")[0]
        assert package in str(error)  # noqa: PT017 - either outcome is right, on different machines
    else:
        assert batch.decompress(kind, packed, len(data)) == data
        with pytest.raises(MalformedFrame):
            batch.decompress(kind, packed, len(data) - 1)


@given(st.binary(max_size=60), st.integers(0, 5))
def test_bytes_that_are_no_batch_are_malformed(data: bytes, count: int) -> None:
    try:
        found = batch.split_batch(data, count)
    except MalformedFrame:
        return
    assert len(found) == count


def test_a_batch_cut_short_is_malformed() -> None:
    entry = batch.build_batch(metadata(), [(single("a"), b"1"), (single("b"), b"2")])
    _, payload = batch.open_entry(entry)
    with pytest.raises(MalformedFrame):
        batch.split_batch(payload[:-1], 2)
    with pytest.raises(MalformedFrame):
        batch.split_batch(payload, 3)


def test_a_key_that_is_not_text_is_refused_as_such() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, partition_key="key")
    raw = metadata.SerializeToString().replace(b"key", b"k\xa4y")
    with pytest.raises(MalformedFrame, match="not UTF-8"):
        batch.messages(len(raw).to_bytes(4, "big") + raw + b"payload")


def bomb(kind: int, size: int = 64 << 20) -> bytes:
    """Zeros, packed so that the payload itself says what it unpacks to, where its format can."""
    try:
        return batch.compress(kind, bytes(size))
    except UnsupportedCompression:
        pytest.skip("its package is not installed")


@pytest.mark.parametrize("kind", sorted(batch.CODECS))
@pytest.mark.parametrize("claimed", [0, 100, MESSAGE_BYTES_MAX])
def test_no_payload_unpacks_to_more_than_it_promises(kind: int, claimed: int) -> None:
    packed = bomb(kind)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedFrame):
            batch.decompress(kind, packed, claimed)
        assert tracemalloc.get_traced_memory()[1] < 2 * claimed + len(packed) + (1 << 20)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("names_its_size", [True, False])
def test_a_zstd_frame_may_leave_its_size_unsaid(names_its_size: bool) -> None:
    zstandard = pytest.importorskip("zstandard")
    data = b"river " * 1000
    packed = zstandard.ZstdCompressor(write_content_size=names_its_size).compress(data)
    assert batch.decompress(pb.ZSTD, packed, len(data)) == data
    for wrong in (len(data) - 1, len(data) + 1, 0):
        with pytest.raises(MalformedFrame):
            batch.decompress(pb.ZSTD, packed, wrong)
