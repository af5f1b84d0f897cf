"""Data plane. A message inside a batch: `[size u32] [SingleMessageMetadata] [payload]`, written by hand.

The bytes are those that protobuf would write: fields in rising order, each only if it is set. A protobuf object for
each message would take longer than everything else that a producer does with the message.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final, TypeAlias

from anabranch.client.errors import BadArgument
from anabranch.model.keyhash import murmur3_raw
from anabranch.wire.varint import SHORT
from anabranch.wire.varint import encode as varint

_U32: Final = Struct(">I").pack
# The size field of short metadata.
_SIZES: Final = tuple(_U32(n) for n in range(256))
# `payload_size`, and the tag of `sequence_id`, which nearly always follows directly.
_PAYLOAD_SIZES: Final = tuple(b"\x18" + SHORT[n] + b"\x40" for n in range(4096))
_KEYS_MAX: Final = 1 << 16

# What is joined to an encoded message, when its batch is: its size, the fields of its metadata, its payload. Most are
# objects that other messages have too.
SinglePieces: TypeAlias = tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes]
# Seven bits of a number when more follow. The table of twice as many bits has as many objects as the caches hold.
_MORE: Final = tuple(bytes((n | 0x80,)) for n in range(128))

_B64_FLAG: Final = b"\x30\x01"
_NULL_FLAG: Final = b"\x48\x01"


class SentKeys(dict[str | bytes, tuple[int, bytes]]):
    """By key: the 32-bit hash, and the field of the metadata. Both are computed when a key is first looked up.

    Bytes are sent as base64; their hash is of the raw bytes.
    """

    __slots__ = ()

    def __missing__(self, key: str | bytes) -> tuple[int, bytes]:
        if not isinstance(key, str | bytes):
            raise BadArgument(f"a key of type {type(key).__name__}: give text or bytes")
        if len(self) >= _KEYS_MAX:
            self.clear()
        raw = key.encode() if isinstance(key, str) else key
        sent = raw if isinstance(key, str) else b64encode(raw)
        found = self[key] = (murmur3_raw(raw), b"\x12" + varint(len(sent)) + sent)
        return found


def encode_single(key_field: bytes, number: int, payload: bytes) -> tuple[int, SinglePieces]:
    """The size and the pieces of an encoded message with only a key, or without one (an empty field)."""
    size = len(payload)
    sizes = _PAYLOAD_SIZES[size] if size < 4096 else b"\x18" + varint(size) + b"\x40"
    if 0x4000 <= number < 0x10000000:
        low, middle, high = _MORE[number & 0x7F], _MORE[number >> 7 & 0x7F], SHORT[number >> 14]
        head = len(key_field) + len(sizes) + 2 + len(high)
    else:
        low, middle, high = varint(number), b"", b""
        head = len(key_field) + len(sizes) + len(low)
    prefix = _SIZES[head] if head < 256 else _U32(head)
    return 4 + head + size, (prefix, key_field, sizes, low, middle, high, payload)


def in_pieces(encoded: bytes) -> tuple[int, SinglePieces]:
    """The same for a message encoded as a whole: beside others in a batch, it must have as many pieces."""
    return len(encoded), (encoded, b"", b"", b"", b"", b"", b"")


def encode_full(
    key_field: bytes,
    number: int,
    payload: bytes,
    properties: Iterable[tuple[str, str]],
    event_time_ms: int | None,
    *,
    is_base64: bool = False,
    is_null: bool = False,
) -> bytes:
    """Encodes a message with any field that a message of a batch can have."""
    parts = [_pair(name, value) for name, value in properties]
    parts += (key_field, b"\x18", varint(len(payload)))
    if event_time_ms is not None:
        parts += (b"\x28", varint(event_time_ms))
    if is_base64:
        parts.append(_B64_FLAG)
    parts += (b"\x40", varint(number))
    if is_null:
        parts.append(_NULL_FLAG)
    head = b"".join(parts)
    return b"".join((_U32(len(head)), head, payload))


def pairs_of(properties: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    try:
        return properties.items()
    except AttributeError:
        raise BadArgument(f"properties={properties!r}: give a mapping of text to text") from None


def encode_properties(properties: Iterable[tuple[str, str]]) -> bytes:
    """Encodes properties, which precede the key, so that the result plus the key's field may be given in place of a
    key's field."""
    return b"".join([_pair(name, value) for name, value in properties])


def _pair(name: str, value: str) -> bytes:
    try:
        left, right = name.encode(), value.encode()
    except AttributeError:
        raise BadArgument(f"property {name!r}={value!r}: both must be text") from None
    pair = b"\x0a%b%b\x12%b%b" % (varint(len(left)), left, varint(len(right)), right)
    return b"\x0a" + varint(len(pair)) + pair
