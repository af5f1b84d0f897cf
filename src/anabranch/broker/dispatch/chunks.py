"""Data plane. Which consumer has the first chunks of a message: only that one can put the others to them. Pure.

A message is begun when its first chunk is sent and ends with its last one. If its consumer leaves or hands chunks back,
it has to begin again, with somebody else perhaps. Chunks whose consumer has no room wait for it here, by position.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b
from typing import Final

from anabranch.broker.consumer import Consumer
from anabranch.model.position import Position
from anabranch.wire import pulsar_pb2 as pb

# Messages whose chunks are being handed out. The oldest is forgotten: its producer has died half-way.
BEGUN_MAX: Final = 10_000
# Chunks of one of them. Nobody's message has so many, and each is remembered: a producer may never come to the last.
CHUNKS_MAX: Final = 10_000
# Chunks waiting for room at their consumer, before reading stops.
WAITING_MAX: Final = 10_000
# Longer names are kept by their hash: any producer may send any name.
_NAME_MAX: Final = 64

Name = str | bytes


def name_of(metadata: pb.MessageMetadata) -> Name:
    """The message that a chunk is part of."""
    uuid: Name = metadata.uuid
    if len(uuid) <= _NAME_MAX:
        return uuid
    return blake2b(uuid if isinstance(uuid, bytes) else uuid.encode(), digest_size=32).digest()


class _Begun:
    """A message of which `places` were sent to `owner`."""

    __slots__ = ("owner", "places")

    def __init__(self, owner: Consumer) -> None:
        self.owner = owner
        self.places: list[Position] = []


class BegunChunks:
    """The chunked messages of one dispatcher. `waiting` counts the chunks that wait for room."""

    __slots__ = ("_begun", "_waiting", "waiting")

    @property
    def remembered(self) -> int:
        """How many chunks of begun messages are known."""
        return sum(len(one.places) for one in self._begun.values())

    def __init__(self) -> None:
        self._begun: dict[Name, _Begun] = {}
        # Position and key of each, and which message it is part of.
        self._waiting: dict[Consumer, list[tuple[Position, int, Name]]] = {}
        self.waiting = 0

    def owner(self, metadata: pb.MessageMetadata) -> Consumer | None:
        """Who must have this chunk. The first chunk starts over: a message sent again may go to somebody else."""
        if metadata.chunk_id <= 0:
            return None
        found = self._begun.get(name_of(metadata))
        return None if found is None else found.owner

    def has_room(self, owner: Consumer) -> bool:
        """Whether a chunk may be sent to him now, after those that wait for him."""
        return owner.has_room and owner not in self._waiting

    def sent(self, at: Position, metadata: pb.MessageMetadata, owner: Consumer) -> None:
        name = name_of(metadata)
        if metadata.chunk_id >= metadata.num_chunks_from_msg - 1:
            self._begun.pop(name, None)
            return
        begun = self._begun.get(name)
        if begun is None or begun.owner is not owner or metadata.chunk_id <= 0:
            begun = self._begun[name] = _Begun(owner)
            if len(self._begun) > BEGUN_MAX:
                del self._begun[next(iter(self._begun))]
        if len(begun.places) >= CHUNKS_MAX:
            del self._begun[name]
            return
        begun.places.append(at)

    def wait(self, at: Position, metadata: pb.MessageMetadata, owner: Consumer, key_hash: int = 0) -> None:
        self._waiting.setdefault(owner, []).append((at, key_hash, name_of(metadata)))
        self.waiting += 1

    def let_go(self) -> list[Position]:
        """Removes and returns the chunks whose consumers have room again."""
        if not self._waiting:
            return []
        ready = [owner for owner in self._waiting if owner.has_room]
        return [at for owner in ready for at, _, _ in self._take(owner)]

    def left(self, owner: Consumer) -> list[tuple[Position, int]]:
        """The consumer is gone: what it was sent begins again. Position and key of what waited for it."""
        if self._begun:
            self._begun = {name: one for name, one in self._begun.items() if one.owner is not owner}
        return [(at, key) for at, key, _ in self._take(owner)]

    def handed_back(self, owner: Consumer, places: Collection[Position]) -> list[tuple[Position, int]]:
        """The consumer does not have those any more: the messages that they are part of begin again. Position and key
        of what waited for it of these messages."""
        if not self._begun:
            return []
        given = set(places)
        again = {
            name
            for name, one in self._begun.items()
            if one.owner is owner and not given.isdisjoint(one.places)
        }
        for name in again:
            del self._begun[name]
        if not again or owner not in self._waiting:
            return []
        waited = self._take(owner)
        kept = [one for one in waited if one[2] not in again]
        if kept:
            self._waiting[owner] = kept
            self.waiting += len(kept)
        return [(at, key) for at, key, name in waited if name in again]

    def _take(self, owner: Consumer) -> list[tuple[Position, int, Name]]:
        waited = self._waiting.pop(owner, [])
        self.waiting -= len(waited)
        return waited

    def clear(self) -> None:
        self._begun.clear()
        self._waiting.clear()
        self.waiting = 0
