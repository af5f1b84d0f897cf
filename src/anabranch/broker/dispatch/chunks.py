"""Data plane. Which consumer has the first chunks of a message: only that one can assemble the message. Pure.

A message begins when its first chunk is sent and ends when all of them were. If its consumer leaves or hands chunks
back, the message begins again, perhaps with another consumer. Chunks whose consumer has no room may wait here, by
position.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b
from typing import Final

from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.model.position import Position
from anabranch.wire import pulsar_pb2 as pb

# The most messages whose chunks are being sent. Beyond it the oldest is forgotten: its producer has died half-way.
BEGUN_MAX: Final = 10_000
# The most chunks of one such message. No real message has so many, and each is remembered: a producer may never send
# the last one.
CHUNKS_MAX: Final = 10_000
# The most chunks that wait for room at their consumer, before reading stops.
WAITING_MAX: Final = 10_000
# Longer names are replaced by their hash: a producer may send a name of any length.
_NAME_MAX: Final = 64

Name = str | bytes


def name_of(metadata: pb.MessageMetadata) -> Name:
    """The name of the message that a chunk belongs to."""
    uuid: Name = metadata.uuid
    if len(uuid) <= _NAME_MAX:
        return uuid
    return blake2b(uuid if isinstance(uuid, bytes) else uuid.encode(), digest_size=32).digest()


class _Begun:
    """A message whose chunks at `places`, with those numbers, were sent to `owner`."""

    __slots__ = ("numbers", "owner", "places")

    def __init__(self, owner: AttachedConsumer) -> None:
        self.owner = owner
        self.places: list[Position] = []
        self.numbers: set[int] = set()


class BegunChunks:
    """The chunked messages of one dispatcher. `waiting` counts the chunks that wait for room."""

    __slots__ = ("_begun", "_waiting", "waiting")

    @property
    def remembered(self) -> int:
        """How many chunks of begun messages are remembered."""
        return sum(len(one.places) for one in self._begun.values())

    def __init__(self) -> None:
        self._begun: dict[Name, _Begun] = {}
        # The position and key of each waiting chunk, and its message's name.
        self._waiting: dict[AttachedConsumer, list[tuple[Position, int, Name]]] = {}
        self.waiting = 0

    def owner(self, metadata: pb.MessageMetadata) -> AttachedConsumer | None:
        """The consumer that must get this chunk. The first chunk starts over: a message sent again may go to another
        consumer."""
        if metadata.chunk_id <= 0:
            return None
        found = self._begun.get(name_of(metadata))
        return None if found is None else found.owner

    def has_room(self, owner: AttachedConsumer) -> bool:
        """Whether a chunk may be sent to the consumer now, after the chunks that wait for it."""
        return owner.has_room and owner not in self._waiting

    def sent(self, at: Position, metadata: pb.MessageMetadata, owner: AttachedConsumer) -> bool:
        """Notes a chunk as sent; whether the consumer has the whole message now."""
        name = name_of(metadata)
        begun = self._begun.get(name)
        is_again = begun is not None and metadata.chunk_id <= 0 and metadata.chunk_id in begun.numbers
        if begun is None or begun.owner is not owner or is_again:
            begun = self._begun[name] = _Begun(owner)
            if len(self._begun) > BEGUN_MAX:
                del self._begun[next(iter(self._begun))]
        if len(begun.places) >= CHUNKS_MAX:
            del self._begun[name]
            return False
        begun.places.append(at)
        if 0 <= metadata.chunk_id < metadata.num_chunks_from_msg:
            begun.numbers.add(metadata.chunk_id)
        is_whole = len(begun.numbers) == metadata.num_chunks_from_msg
        if is_whole:
            del self._begun[name]
        return is_whole

    def wait(
        self, at: Position, metadata: pb.MessageMetadata, owner: AttachedConsumer, key_hash: int = 0
    ) -> None:
        self._waiting.setdefault(owner, []).append((at, key_hash, name_of(metadata)))
        self.waiting += 1

    def let_go(self) -> list[Position]:
        """Removes and returns the chunks whose consumers have room again."""
        if not self._waiting:
            return []
        ready = [owner for owner in self._waiting if owner.has_room]
        return [at for owner in ready for at, _, _ in self._take(owner)]

    def left(self, owner: AttachedConsumer) -> list[tuple[Position, int]]:
        """Removes a consumer that has left: its messages begin again. Returns position and key of the chunks that
        waited for it."""
        if self._begun:
            self._begun = {name: one for name, one in self._begun.items() if one.owner is not owner}
        return [(at, key) for at, key, _ in self._take(owner)]

    def handed_back(
        self, owner: AttachedConsumer, places: Collection[Position]
    ) -> list[tuple[Position, int]]:
        """Starts the messages over whose chunks at `places` the consumer has handed back. Returns position and key of
        their chunks that waited for it."""
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

    def _take(self, owner: AttachedConsumer) -> list[tuple[Position, int, Name]]:
        waited = self._waiting.pop(owner, [])
        self.waiting -= len(waited)
        return waited

    def clear(self) -> None:
        self._begun.clear()
        self._waiting.clear()
        self.waiting = 0
