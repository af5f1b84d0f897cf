"""Builds and opens entries: checksum, batches, compression. The scalar version, one message at a time.

For clients, tools and tests. A broker stores entries as they come and never needs this module. A batch
is the payload `([metadata size u32] [SingleMessageMetadata] [bytes])…`, compressed as a whole.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeAlias

from crc32c import crc32c
from google.protobuf.message import DecodeError

from anabranch.errors import ChecksumMismatch, MalformedFrame, OversizePayload, UnsupportedCompression
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire import varint
from anabranch.wire.encode import encode_payload_header
from anabranch.wire.entry import is_batch, metadata_span, parse_metadata
from anabranch.wire.frames import MESSAGE_BYTES_MAX, Buffer, strip_broker_metadata, verify

_ZSTD_SIZE_UNKNOWN: Final = -1
# A broker that must read the messages of a batch unpacks it to at most this many times its size, and never to more than
# LOOK_INTO_BYTES_MAX.
_LOOK_INTO_RATIO: Final = 100
LOOK_INTO_BYTES_MAX: Final = 64 << 20
# The most messages that such a batch may have: as many as fit where nothing is packed.
LOOK_INTO_MESSAGES_MAX: Final = MESSAGE_BYTES_MAX >> 2

Message: TypeAlias = tuple[pb.SingleMessageMetadata, memoryview]


class Codec(NamedTuple):
    """A compression by name, its package (None for the standard library's), and its two directions."""

    name: str
    package: str | None
    pack: Callable[[Any, bytes], bytes]
    unpack: Callable[[Any, bytes, int], bytes]


def _unzip(module: Any, data: bytes, size: int) -> bytes:
    # One byte more than promised may come out, which shows that a payload is longer than it claims.
    result: bytes = zlib.decompressobj().decompress(data, size + 1)
    return result


def _unsnap(snappy: Any, data: bytes, size: int) -> bytes:
    # The format begins with the unpacked size, and the package would trust that number whatever it is.
    if (named := varint.decode(data, 0)[0]) != size:
        raise ValueError(f"it claims {named} bytes, not {size}")
    result: bytes = snappy.decompress(data)
    return result


def _unzstd(zstd: Any, data: bytes, size: int) -> bytes:
    # A frame may name its unpacked size, and then the package takes that size for the limit instead of ours.
    if (named := zstd.frame_content_size(data)) not in (size, _ZSTD_SIZE_UNKNOWN):
        raise ValueError(f"it claims {named} bytes, not {size}")
    result: bytes = zstd.ZstdDecompressor().decompress(data, max_output_size=size)
    return result


CODECS: Final[dict[int, Codec]] = {
    pb.LZ4: Codec(
        "LZ4",
        "lz4.block",
        lambda lz4, data: lz4.compress(data, store_size=False),
        lambda lz4, data, size: lz4.decompress(data, uncompressed_size=size),
    ),
    pb.ZLIB: Codec("ZLIB", None, lambda _, data: zlib.compress(data), _unzip),
    pb.ZSTD: Codec(
        "ZSTD",
        "zstandard",
        lambda zstd, data: zstd.ZstdCompressor().compress(data),
        _unzstd,
    ),
    pb.SNAPPY: Codec(
        "SNAPPY",
        "snappy",
        lambda snappy, data: snappy.compress(data),
        _unsnap,
    ),
}


def compress(kind: int, data: bytes) -> bytes:
    """`data` in the given CompressionType."""
    if kind == pb.NONE:
        return data
    codec, module = _load(kind)
    return codec.pack(module, data)


def decompress(kind: int, data: Buffer, size: int, *, size_max: int = MESSAGE_BYTES_MAX) -> bytes:
    """The `size` bytes that `data` was packed from. A payload that turns out longer or shorter is refused."""
    if size > size_max:
        raise OversizePayload(f"payload claims {size} bytes unpacked, the limit is {size_max}")
    codec, module = _load(kind)
    try:
        result = codec.unpack(module, bytes(data), size)
    except Exception as error:  # Each codec has its own error class, and all of them mean damaged data.
        raise MalformedFrame(f"{codec.name} payload cannot be unpacked: {error}") from error
    if len(result) != size:
        raise MalformedFrame(f"{codec.name} payload does not hold the {size} bytes it claims")
    return result


def look_into_max(packed_bytes: int) -> int:
    """The most bytes that a broker unpacks a batch of that size to, in order to read its messages.

    A small batch may claim up to the limit of one unpacked message. A large batch may claim more, in proportion to its
    size: so the work for each byte sent stays bounded, for a decompression bomb too.
    """
    return max(MESSAGE_BYTES_MAX, min(LOOK_INTO_BYTES_MAX, _LOOK_INTO_RATIO * packed_bytes))


def _load(kind: int) -> tuple[Codec, Any]:
    codec = CODECS.get(kind)
    if codec is None:
        raise UnsupportedCompression(f"compression {kind} is unknown")
    try:
        return codec, import_module(codec.package) if codec.package else None
    except ImportError as error:
        package = (codec.package or "").partition(".")[0]
        raise UnsupportedCompression(f"{codec.name} needs the Python package {package!r}") from error


def build_entry(metadata: pb.MessageMetadata, payload: Buffer) -> bytes:
    """The entry of a payload that is packed already, with its checksum."""
    head = metadata.SerializeToString()
    body = len(head).to_bytes(4, "big") + head
    crc = crc32c(payload, crc32c(body))
    return b"".join((b"\x0e\x01", crc.to_bytes(4, "big"), body, payload))


def build_batch(
    metadata: pb.MessageMetadata, messages: Iterable[tuple[pb.SingleMessageMetadata, Buffer]]
) -> bytes:
    """The entry of a batch. Fills in `payload_size` of each message and count and sizes of `metadata`."""
    parts: list[Buffer] = []
    count = 0
    for single, payload in messages:
        single.payload_size = len(payload)
        head = single.SerializeToString()
        parts += (len(head).to_bytes(4, "big"), head, payload)
        count += 1
    metadata.num_messages_in_batch = count
    return build_message(metadata, b"".join(parts))


def build_message(metadata: pb.MessageMetadata, payload: bytes) -> bytes:
    """The entry of one message, or of a batch's bytes, packed as `metadata.compression` says."""
    if metadata.compression != pb.NONE:
        metadata.uncompressed_size = len(payload)
        payload = compress(metadata.compression, payload)
    return build_entry(metadata, payload)


def split_batch(payload: Buffer, count: int) -> list[Message]:
    """The messages of an unpacked batch."""
    view = memoryview(payload)
    messages: list[Message] = []
    at = 0
    for index in range(count):
        head = at + 4 + int.from_bytes(view[at : at + 4], "big")
        if head > len(view) or at + 4 > len(view):
            raise MalformedFrame(f"batch ends within message {index} of {count}")
        try:
            single = pb.SingleMessageMetadata.FromString(bytes(view[at + 4 : head]))
        except DecodeError as error:
            raise MalformedFrame(f"metadata of message {index} cannot be read: {error}") from error
        at = head + single.payload_size
        if not head <= at <= len(view):
            raise MalformedFrame(f"message {index} of {count} has {single.payload_size} bytes")
        messages.append((single, view[head:at]))
    return messages


def unpack(
    metadata: pb.MessageMetadata, payload: Buffer, *, size_max: int = MESSAGE_BYTES_MAX
) -> list[Message]:
    """The messages of a payload that is complete (chunks joined) and not encrypted.

    A message outside a batch comes with the same metadata it would have had in one.
    """
    if metadata.compression != pb.NONE:
        payload = decompress(metadata.compression, payload, metadata.uncompressed_size, size_max=size_max)
    if is_batch(metadata):
        return split_batch(payload, metadata.num_messages_in_batch)
    single = pb.SingleMessageMetadata(payload_size=len(payload), properties=metadata.properties)
    try:
        for name in _COMMON:
            if metadata.HasField(name):
                setattr(single, name, getattr(metadata, name))
    except UnicodeDecodeError as error:
        # Protobuf reads a string that is not UTF-8 (as bytes) but refuses to write it.
        raise MalformedFrame(f"metadata holds a string that is not UTF-8: {error}") from error
    return [(single, memoryview(payload))]


# Fields that a message has in its own metadata inside a batch, and in the entry's metadata otherwise.
_COMMON: Final = (
    "partition_key",
    "event_time",
    "partition_key_b64_encoded",
    "ordering_key",
    "sequence_id",
    "null_value",
    "null_partition_key",
)


def open_entry(entry: Buffer) -> tuple[pb.MessageMetadata, memoryview]:
    """Metadata and raw payload, after checking the checksum."""
    view = strip_broker_metadata(memoryview(entry))
    if not verify(view):
        raise ChecksumMismatch(f"entry of {len(view)} bytes does not match its checksum")
    return parse_metadata(view), view[metadata_span(view)[1] :]


def messages(entry: Buffer) -> list[Message]:
    """All messages of an entry that is complete by itself. A chunk or an encrypted entry needs a client."""
    metadata, payload = open_entry(entry)
    if metadata.num_chunks_from_msg > 1 or metadata.encryption_keys:
        raise ValueError("a chunk or an encrypted entry has no messages of its own")
    return unpack(metadata, payload)


# The most that `starts_a_row` unpacks: more than the batches that any client sends by default.
_LOOK_BYTES_MAX: Final = 1024 * 1024


def starts_a_row(metadata: pb.MessageMetadata, entry: Buffer) -> bool:
    """Whether the sequence id in a batch's metadata is that of its first message, and the second has the next one.

    False if that cannot be found out: the batch is encrypted or too large to unpack, or its messages have no ids.
    """
    if metadata.encryption_keys or metadata.num_messages_in_batch < 2:
        return False
    try:
        payload: Buffer = memoryview(entry)[metadata_span(entry)[1] :]
        if metadata.compression != pb.NONE:
            payload = decompress(
                metadata.compression, payload, metadata.uncompressed_size, size_max=_LOOK_BYTES_MAX
            )
        first, second = (single for single, _ in split_batch(payload, 2))
    except (MalformedFrame, UnsupportedCompression):
        return False
    named = metadata.sequence_id
    return (first.sequence_id, second.sequence_id) == (named, named + 1) and second.HasField("sequence_id")


def encode_send(entry: bytes, *, producer_id: int, sequence_id: int, **fields: Any) -> bytes:
    """The SEND frame of an entry; `fields` are further fields of CommandSend."""
    send = pb.CommandSend(producer_id=producer_id, sequence_id=sequence_id, **fields)
    return encode_payload_header(pb.BaseCommand(type=pb.BaseCommand.SEND, send=send), len(entry)) + entry
