"""Data plane. A message inside a batch: `[size u32] [SingleMessageMetadata] [payload]`, written by hand.

The bytes are those that protobuf would write: fields in rising order, each only if it is set. A protobuf object for
each message would take longer than everything else that a producer does with the message.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from struct import Struct
from typing import Final

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

_B64_FLAG: Final = b"\x30\x01"
_NULL_FLAG: Final = b"\x48\x01"


class SentKeys:
    """The encoded forms and hashes of keys: computed once for a repeated key."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str | bytes, tuple[int, bytes]] = {}

    def __call__(self, key: str | bytes) -> tuple[int, bytes]:
        """The 32-bit hash, and the field of the metadata. Bytes are sent as base64; their hash is of the raw bytes."""
        found = self._known.get(key)
        if found is None:
            if not isinstance(key, str | bytes):
                raise BadArgument(f"a key of type {type(key).__name__}: give text or bytes")
            if len(self._known) >= _KEYS_MAX:
                self._known.clear()
            raw = key.encode() if isinstance(key, str) else key
            sent = raw if isinstance(key, str) else b64encode(raw)
            found = self._known[key] = (murmur3_raw(raw), b"\x12" + varint(len(sent)) + sent)
        return found


def encode_single(key_field: bytes, number: int, payload: bytes) -> bytes:
    """Encodes a message with only a key, or without one (an empty field)."""
    size = len(payload)
    sizes = _PAYLOAD_SIZES[size] if size < 4096 else b"\x18" + varint(size) + b"\x40"
    sequence = SHORT[number] if number < 0x4000 else varint(number)
    head = len(key_field) + len(sizes) + len(sequence)
    return b"".join((_SIZES[head] if head < 256 else _U32(head), key_field, sizes, sequence, payload))


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
