"""Where everything of a log lies, as one object: how locations are exchanged when objects are rewritten. Pure.

A map says of every entry that is wanted in which object it lies, as of a checkpoint. Maps are numbered 1, 2, 3 …, and
the newest counts. A rewriter reads the newest one first, creates the rewritten objects, and then the map of the
next number, once. Two rules keep that safe, however long anybody sleeps in between; `swap_explorer.py` goes through
every interleaving.

* A map has counted from its beginning only if it is the newest right after it was created. Maps are deleted once newer
  ones exist, so a rewriter that slept for long may create one again, under a number that all others have passed.
* An object that no map names was made for the map after the one that was the newest then. It is garbage once a map
  exists that is newer than the newest was when the object was seen: its maker comes too late.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec
from crc32c import crc32c

from anabranch.storage.port import Buffer, LogError

_MAGIC: Final = b"anbrmap1"


class MappedLedger(msgspec.Struct, array_like=True):
    ledger: int
    namespace: str
    # The path of the topic's record; "" if unknown.
    record: str
    # Its runs' first entries, numbers of objects, and bytes. Packed integers of 8, 8 and 4 bytes, little endian.
    firsts: bytes
    numbers: bytes
    sizes: bytes


class MapNote(msgspec.Struct, array_like=True):
    number: int
    # Everything is in it that checkpoints up to this one tell.
    states: int
    # Commits that are in none of those lie at this number or above.
    scan_from: int
    # The log has ended, and all of its commits are in it.
    has_all: bool
    # Objects that were not deleted yet, wanted or not, and their bytes: packed integers of 8 and 4 bytes. A map
    # may have a million of them, and is read while other work waits.
    objects: bytes
    sizes: bytes
    # The namespaces of rewritten objects.
    namespaces: dict[int, str]
    ledgers: list[MappedLedger]


def has_counted(created: bool, number: int, newest: int) -> bool:
    """Whether a map that was tried to be created has exchanged locations; `newest` was listed after that."""
    return created and number == newest


def is_garbage(seen_with: int, newest: int, *, is_named: bool) -> bool:
    """Whether a rewritten object that was seen while map `seen_with` was the newest can never be named any more."""
    return not is_named and newest > seen_with


def encode_map(note: MapNote) -> bytes:
    body = _MAGIC + msgspec.msgpack.encode(note)
    return body + crc32c(body).to_bytes(4, "little")


def decode_map(data: Buffer, key: str) -> MapNote:
    body = bytes(data)
    if body[:8] != _MAGIC or crc32c(body[:-4]).to_bytes(4, "little") != body[-4:]:
        raise LogError(f"{key} is damaged, or no map")
    return _decode(body[8:-4])


_decode = msgspec.msgpack.Decoder(MapNote).decode


def rewritten_number(base: int, map_number: int, index: int, chance: int) -> int:
    """A number that no other rewriter chooses: the map that is to name it, its place among the objects of that job, and
    32 bits of chance. Numbers grow with maps."""
    return base | (map_number & 0x3FFFFF) << 41 | (index & 0x1FF) << 32 | (chance & 0xFFFFFFFF)


def is_proved_garbage(number: int, newest: int) -> bool:
    """Whether a rewritten object that the map `newest` does not name can never be named: the map for which it was made,
    by its number, exists, or others have passed it."""
    made_for = number >> 41 & 0x3FFFFF
    return 0 < made_for <= newest < 0x3FFFFF


def namespaces_of(named: Mapping[int, str], numbers: Collection[int]) -> dict[int, str]:
    """The namespaces of those that exist."""
    return {number: namespace for number, namespace in named.items() if number in numbers}
