"""SEND with its entry: every field of the command, of the metadata and of a batch's messages at its edges, and entries
that are not what they say: checksums, sizes, compression, batches, chunks."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import zstandard
from crc32c import crc32c
from google.protobuf.descriptor import Descriptor

from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.frames import FRAME_BYTES_MAX, MESSAGE_BYTES_MAX
from hostile.commands import Place, body_of, envelope, frame, plausible
from hostile.edges import Edit, apply, edits
from hostile.nodes import BYTES, VARINT, Node, described

# What stands in a case's name for SEND, and what it sends unless it is spoiled.
SINGLE, BATCH, CHUNK = "SEND", "SEND-batch", "SEND-chunk"
KINDS: Final = (SINGLE, BATCH, CHUNK)

_METADATA: Final = described(pb.MessageMetadata)
_ONE: Final = described(pb.SingleMessageMetadata)
BATCH_MESSAGES: Final = 3
# Enough to be seen in the broker's memory, and little enough for the machine to bear.
BOMB_BYTES: Final = 400 << 20
_ENTRIES: Final = (
    *("none", "short", "bad-checksum", "no-checksum", "empty-metadata", "garbage-metadata"),
    *("metadata-size-0", "metadata-size-over", "metadata-size-max"),
    *("broker-metadata", "broker-metadata-garbage", "broker-metadata-over", "largest"),
)
_PAYLOADS: Final = (
    *(
        "empty",
        "zstd-bomb",
        "zstd-lie",
        "zlib-bomb",
        "lz4-lie",
        "snappy-lie",
        "zstd-garbage",
        "unknown-codec",
    ),
    *("fewer-in-batch", "more-in-batch", "batch-of-garbage", "batch-size-over", "batch-size-negative"),
    *("largest-batch", "largest-zeros"),
)


@dataclass
class Parts:
    send: Node
    metadata: Node
    one: Node
    payload: bytes


def all_edits(kind: str) -> Iterator[Edit]:
    yield from edits(body_of("SEND"))
    yield from edits(_METADATA, ("metadata",))
    if kind == BATCH:
        yield from edits(_ONE, ("one",))
    if kind != CHUNK:
        yield from (Edit(("entry",), name) for name in _ENTRIES)
        yield from (Edit(("payload",), name) for name in _PAYLOADS)


def spoiled(
    kind: str, changes: tuple[Edit, ...], place: Place, sequence_id: int = 1, producer: str = "hostile"
) -> bytes:
    def fill(message: Descriptor) -> Node:
        return plausible(message, place)

    parts = _parts(kind, place, sequence_id, producer)
    entry_edge = payload_edge = None
    for edit in sorted(changes, key=lambda edit: edit.is_large):
        head, rest = edit.path[0], Edit(edit.path[1:], edit.edge)
        if edit.path == ("entry",):
            entry_edge = edit.edge
        elif edit.path == ("payload",):
            payload_edge = edit.edge
        elif head == "metadata":
            # The message as a whole, metadata and payload, has a limit of its own.
            apply(parts.metadata, _METADATA, rest, fill, MESSAGE_BYTES_MAX - 2_048)
        elif head == "one":
            apply(parts.one, _ONE, rest, fill, MESSAGE_BYTES_MAX - 4_096)
        else:
            apply(parts.send, body_of("SEND"), edit, fill, FRAME_BYTES_MAX - 2_048)
    payload = parts.payload
    if kind == BATCH:
        payload = _batch(parts.one, BATCH_MESSAGES)
    if payload_edge is not None:
        payload = _payload(payload_edge, parts)
    return frame(envelope("SEND", parts.send.encode()), _entry(entry_edge, parts.metadata.encode(), payload))


def good(place: Place, sequence_id: int, producer: str, payload: bytes = b"good") -> bytes:
    parts = _parts(SINGLE, place, sequence_id, producer)
    return frame(envelope("SEND", parts.send.encode()), _entry(None, parts.metadata.encode(), payload))


def _put(node: Node, message: Descriptor, **values: int | bytes) -> None:
    for name, value in values.items():
        field = message.fields_by_name[name]
        node.put(field.number, BYTES if isinstance(value, bytes) else VARINT, value)


def _parts(kind: str, place: Place, sequence_id: int, producer: str) -> Parts:
    send, metadata = plausible(body_of("SEND"), place), plausible(_METADATA, place)
    _put(send, body_of("SEND"), sequence_id=sequence_id)
    _put(metadata, _METADATA, producer_name=producer.encode(), sequence_id=sequence_id)
    if kind == BATCH:
        last = sequence_id + BATCH_MESSAGES - 1
        _put(send, body_of("SEND"), num_messages=BATCH_MESSAGES, highest_sequence_id=last)
        _put(metadata, _METADATA, num_messages_in_batch=BATCH_MESSAGES, highest_sequence_id=last)
    elif kind == CHUNK:
        _put(send, body_of("SEND"), is_chunk=1)
        _put(
            metadata, _METADATA, uuid=b"hostile-1", num_chunks_from_msg=3, total_chunk_msg_size=12, chunk_id=0
        )
    return Parts(send, metadata, plausible(_ONE, place), b"evil")


def _batch(one: Node, count: int) -> bytes:
    head = one.encode()
    return (struct.pack(">I", len(head)) + head + b"e") * count


def _entry(edge: str | None, metadata: bytes, payload: bytes) -> bytes:
    size = len(metadata)
    match edge:
        case "none":
            return b""
        case "short":
            return b"\x0e\x01\x00\x00"
        case "empty-metadata":
            metadata, size = b"", 0
        case "garbage-metadata":
            metadata = b"\xff" * 40
            size = len(metadata)
        case "metadata-size-0":
            size = 0
        case "metadata-size-over":
            size = len(metadata) + len(payload) + 1
        case "metadata-size-max":
            size = 0xFFFFFFFF
        case "largest":
            payload = bytes(MESSAGE_BYTES_MAX - len(metadata) - 10)
    body = struct.pack(">I", size) + metadata + payload
    if edge == "no-checksum":
        return body
    entry = struct.pack(">HI", 0x0E01, crc32c(body) ^ (edge == "bad-checksum")) + body
    match edge:
        case "broker-metadata":
            inner = pb.BrokerEntryMetadata(
                broker_timestamp=(1 << 64) - 1, index=(1 << 64) - 1
            ).SerializeToString()
            return struct.pack(">HI", 0x0E02, len(inner)) + inner + entry
        case "broker-metadata-garbage":
            return struct.pack(">HI", 0x0E02, 3) + b"\xff\xff\xff" + entry
        case "broker-metadata-over":
            return struct.pack(">HI", 0x0E02, 0xFFFFFFFF) + entry
    return entry


def _payload(edge: str, parts: Parts) -> bytes:
    metadata = parts.metadata

    def packed(kind: int, size: int) -> None:
        _put(metadata, _METADATA, compression=kind, uncompressed_size=size)

    def count(messages: int) -> None:
        _put(metadata, _METADATA, num_messages_in_batch=messages)

    match edge:
        case "empty":
            return b""
        case "zstd-bomb":
            packed(pb.ZSTD, 1_000)
            return _zstd_bomb()
        case "zlib-bomb":
            packed(pb.ZLIB, 1_000)
            return zlib.compress(bytes(BOMB_BYTES >> 3), 1)
        case "zstd-lie":
            packed(pb.ZSTD, (1 << 32) - 1)
            return zstandard.ZstdCompressor().compress(b"x" * 100)
        case "lz4-lie":
            packed(pb.LZ4, (1 << 31) - 1)
            return bytes(100)
        case "snappy-lie":
            packed(pb.SNAPPY, 1_000)
            return b"\xff\xff\xff\xff\x0f" + bytes(100)
        case "zstd-garbage":
            packed(pb.ZSTD, 100)
            return b"\xff" * 100
        case "unknown-codec":
            packed(99, 100)
            return b"\xff" * 100
        case "fewer-in-batch":
            count(1_000)
            return _batch(parts.one, 2)
        case "more-in-batch":
            count(1)
            return _batch(parts.one, 100)
        case "batch-of-garbage":
            count(3)
            return b"\xff" * 100
        case "batch-size-over":
            count(1)
            return struct.pack(">I", 0xFFFFFFFF) + bytes(20)
        case "batch-size-negative":
            count(1)
            _put(parts.one, _ONE, payload_size=-1)
            return _batch(parts.one, 1)
        case "largest-batch":
            one = len(_batch(parts.one, 1))
            messages = (MESSAGE_BYTES_MAX - 1_024) // one
            count(messages)
            _put(parts.send, body_of("SEND"), num_messages=messages)
            return _batch(parts.one, messages)
        case "largest-zeros":
            return bytes(MESSAGE_BYTES_MAX - 1_024)
    raise ValueError(f"no payload is called {edge}")


_BOMB: list[bytes] = []


def _zstd_bomb() -> bytes:
    """Some kilobytes that unpack to BOMB_BYTES, with the size in the frame."""
    if not _BOMB:
        _BOMB.append(zstandard.ZstdCompressor(level=1).compress(bytes(BOMB_BYTES)))
    return _BOMB[0]
