"""Data plane. Reads facts about a stored entry without touching its payload.

Every function takes the entry as stored (checksum, metadata, payload; an older producer's without the checksum, another
broker's with its metadata in front). For several facts about one entry, parse its metadata once and use the functions
that take metadata.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from struct import Struct
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from anabranch.errors import MalformedFrame
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.frames import MAGIC_CHECKSUM, Buffer

# What entries without a readable key hash to: Pulsar's constant, so that hashes agree.
NO_KEY: Final = b"NONE_KEY"

_HEAD: Final = Struct(">HII").unpack_from
_parse = pb.MessageMetadata.FromString


class Chunk(NamedTuple):
    """One entry's place in a message that was too large for one entry."""

    uuid: str
    chunk_id: int
    chunks: int
    message_bytes: int

    @property
    def is_last(self) -> bool:
        return self.chunk_id == self.chunks - 1


def metadata_span(entry: Buffer) -> tuple[int, int]:
    """Where the metadata starts and ends; the payload is all that follows."""
    length = len(entry)
    if length >= 10:
        magic, _, size = _HEAD(entry)
        if magic == MAGIC_CHECKSUM and size <= length - 10:
            return 10, 10 + size
    return _odd_span(entry, length)


def _odd_span(entry: Buffer, length: int) -> tuple[int, int]:
    at = 0
    if bytes(entry[:2]) == b"\x0e\x02":
        at = 6 + int.from_bytes(entry[2:6], "big")
    if bytes(entry[at : at + 2]) == b"\x0e\x01":
        at += 6
    start = at + 4
    end = start + int.from_bytes(entry[at:start], "big")
    if start > length or end > length:
        raise MalformedFrame(f"metadata would end at {end} in an entry of {length} bytes")
    return start, end


def metadata_size(entry: Buffer) -> int:
    start, end = metadata_span(entry)
    return end - start


def parse_metadata(entry: Buffer) -> pb.MessageMetadata:
    """The entry's metadata. Raises MalformedFrame if there is none."""
    start, end = metadata_span(entry)
    try:
        return _parse(bytes(entry[start:end]))
    except DecodeError as error:
        raise MalformedFrame(f"metadata cannot be read: {error}") from error


def is_encrypted(entry: Buffer) -> bool:
    """Whether the entry names the keys that its payload is encrypted with. False for unreadable entries."""
    try:
        return bool(parse_metadata(entry).encryption_keys)
    except MalformedFrame:
        return False


def payload(entry: Buffer) -> memoryview:
    """What follows the metadata, still compressed, encrypted or batched."""
    return memoryview(entry)[metadata_span(entry)[1] :]


def num_messages(entry: Buffer) -> int:
    return parse_metadata(entry).num_messages_in_batch


def is_batch(metadata: pb.MessageMetadata) -> bool:
    """Whether the payload is a batch. A batch of one is still a batch."""
    return metadata.HasField("num_messages_in_batch")


def publish_time(entry: Buffer) -> int:
    """Milliseconds since 1970 by the producer's clock."""
    return parse_metadata(entry).publish_time


def deliver_at_time(entry: Buffer) -> int | None:
    """The time (ms since 1970) before which a shared subscription must not deliver the entry; None for "at once"."""
    metadata = parse_metadata(entry)
    return metadata.deliver_at_time if metadata.HasField("deliver_at_time") else None


def producer(entry: Buffer) -> tuple[str, int, int]:
    """Producer name, first and last sequence id: deduplication is rebuilt from these."""
    metadata = parse_metadata(entry)
    return _raw(metadata.producer_name).decode(errors="replace"), *sequence_ids(metadata)


def sequence_ids(metadata: pb.MessageMetadata) -> tuple[int, int]:
    """First and last sequence id the entry covers."""
    first = metadata.sequence_id
    return first, max(first, metadata.highest_sequence_id)


def chunk(metadata: pb.MessageMetadata) -> Chunk | None:
    """The entry's place in its message, or None if the message is one entry, as nearly all are."""
    if metadata.num_chunks_from_msg < 2 or not metadata.HasField("uuid"):
        return None
    return Chunk(
        metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg, metadata.total_chunk_msg_size
    )


def sticky_key(metadata: pb.MessageMetadata) -> bytes:
    """The key by which Key_Shared orders: ordering key, else partition key, else the entry itself.

    Entries without a key are spread by producer and sequence id. A base64 key stands for its bytes.
    """
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    try:
        if not metadata.HasField("partition_key"):
            return b"%b-%d" % (_raw(metadata.producer_name), metadata.sequence_id)
        key = _raw(metadata.partition_key)
        if not metadata.partition_key_b64_encoded:
            return key
        # Padding may be missing: Pulsar's decoder does not insist on it.
        return b64decode(key + b"=" * (-len(key) % 4), validate=True)
    except binascii.Error:
        return NO_KEY


def peek_sticky_key(entry: Buffer) -> bytes:
    """`sticky_key` of an entry; `NO_KEY` for an unreadable one, because dispatch must choose some consumer."""
    try:
        return sticky_key(parse_metadata(entry))
    except MalformedFrame:
        return NO_KEY


def _raw(text: str | bytes) -> bytes:
    """The bytes of a string field. Protobuf returns a string that is not UTF-8 as bytes already."""
    return text if isinstance(text, bytes) else text.encode()
