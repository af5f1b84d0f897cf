"""The facts about one entry that compaction needs, and what is left of the entry. Pure; one message at a time.

An entry is a number of *slots*, one per message, and compaction decides slot by slot. A message without a key is kept
or dropped as configured. An empty payload, or a value marked as null, deletes its key. An entry that cannot be opened
(a batch that is encrypted, malformed, or unpacks to far too much) is one slot that is always kept. The pieces (chunks)
of a large message are kept or dropped with the last of them.

A rebuilt batch keeps its id: the places of the removed messages stay, marked as compacted out, so that the ids of the
remaining ones do not change. The entry's metadata lists the remaining ones: a broker sees the list without unpacking,
and acknowledges the others for clients that ignore the marks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from anabranch.errors import MalformedFrame
from anabranch.wire import entry as wire_entry
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import LOOK_INTO_MESSAGES_MAX, build_message, decompress, look_into_max, split_batch
from anabranch.wire.frames import Buffer

# In place of a key's hash, which is never negative.
KEEP: Final = -1
DROP: Final = -2

_NOTHING: Final = pb.SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
EMPTY_SLOT: Final = len(_NOTHING).to_bytes(4, "big") + _NOTHING

# (hash of the key, or KEEP or DROP; whether the message deletes its key)
Slot = tuple[int, bool]
HashKey = Callable[[bytes], int]


class Looked(NamedTuple):
    slots: list[Slot]
    # The message that the entry is a piece of, if it is one, and whether it is the first or the last piece.
    piece_of: tuple[str, str] | None = None
    is_first_piece: bool = False
    is_last_piece: bool = False


def look(entry: Buffer, hash_key: HashKey, *, keeps_keyless: bool) -> Looked:
    """The slots of an entry. Raises UnsupportedCompression if the codec of a batch is not installed here."""
    try:
        metadata = wire_entry.parse_metadata(entry)
        keyless = (KEEP if keeps_keyless else DROP, False)
        if metadata.HasField("marker_type"):
            return Looked([(DROP, False)])
        if not wire_entry.is_batch(metadata):
            return _look_at_one(metadata, wire_entry.payload(entry), hash_key, keyless)
        if metadata.encryption_keys or metadata.num_messages_in_batch > LOOK_INTO_MESSAGES_MAX:
            return Looked([(KEEP, False)])
        slots = []
        for single, payload in split_batch(_unpacked(metadata, entry), metadata.num_messages_in_batch):
            if single.compacted_out:
                slots.append((DROP, False))
            elif not single.HasField("partition_key"):
                slots.append(keyless)
            else:
                slots.append((hash_key(_raw(single.partition_key)), single.null_value or not len(payload)))
        return Looked(slots)
    except MalformedFrame:
        return Looked([(KEEP, False)])


def _look_at_one(
    metadata: pb.MessageMetadata, payload: memoryview, hash_key: HashKey, keyless: Slot
) -> Looked:
    slot = keyless
    if metadata.HasField("partition_key"):
        size = metadata.uncompressed_size if metadata.HasField("uncompressed_size") else len(payload)
        slot = (hash_key(_raw(metadata.partition_key)), metadata.null_value or size == 0)
    chunk = wire_entry.chunk(metadata)
    if chunk is None:
        return Looked([slot])
    return Looked([slot], (metadata.producer_name, chunk.uuid), chunk.chunk_id == 0, chunk.is_last)


def rebuilt(entry: Buffer, flags: Sequence[int]) -> Buffer | None:
    """The entry with only the slots whose flag is set; None if nothing is left, the same object if everything is."""
    kept = sum(flags)
    if kept == 0:
        return None
    if kept == len(flags):
        return entry
    metadata = wire_entry.parse_metadata(entry)
    payload = memoryview(_unpacked(metadata, entry))
    parts: list[Buffer] = []
    at = 0
    for flag in flags:
        head = at + 4 + int.from_bytes(payload[at : at + 4], "big")
        end = head + pb.SingleMessageMetadata.FromString(bytes(payload[at + 4 : head])).payload_size
        parts.append(payload[at:end] if flag else EMPTY_SLOT)
        at = end
    return _with_slots(metadata, b"".join(parts), [n for n, flag in enumerate(flags) if flag])


def rebuilt_from(entry: Buffer, payload: bytes, left: Sequence[int]) -> bytes:
    """The entry with that batch, in which only the messages at those places are left."""
    return _with_slots(wire_entry.parse_metadata(entry), payload, left)


def _with_slots(metadata: pb.MessageMetadata, payload: bytes, left: Sequence[int]) -> bytes:
    del metadata.compacted_batch_indexes[:]
    metadata.compacted_batch_indexes.extend(left)
    return build_message(metadata, payload)


def last_slot(entry: Buffer) -> int:
    """The place in its batch of the last remaining message; -1 for an entry that is no batch, or cannot be read.

    Any producer may claim that messages of its batch were compacted out, and where the others are.
    """
    try:
        metadata = wire_entry.parse_metadata(entry)
    except MalformedFrame:
        return -1
    if not wire_entry.is_batch(metadata):
        return -1
    end = metadata.num_messages_in_batch - 1
    last = metadata.compacted_batch_indexes[-1] if metadata.compacted_batch_indexes else end
    return max(min(last, end), -1)


def _unpacked(metadata: pb.MessageMetadata, entry: Buffer) -> Buffer:
    payload = wire_entry.payload(entry)
    if metadata.compression == pb.NONE:
        return payload
    size_max = look_into_max(len(payload))
    return decompress(metadata.compression, payload, metadata.uncompressed_size, size_max=size_max)


def _raw(text: str | bytes) -> bytes:
    """Protobuf returns a string that is not UTF-8 as bytes already."""
    return text if isinstance(text, bytes) else text.encode()
