"""Joins large messages that were sent in chunks, within bounds. Pure: entries in, messages out.

Chunks may come in any order and more than once. A message whose producer died half-way never becomes whole: another
attempt of the same message replaces it, and the caller, which has the clock, gives up a message whose chunks stop
coming.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from anabranch.wire import pulsar_pb2 as pb

Place = tuple[int, int]

INCOMPLETE_MAX: Final = 100
BYTES_MAX: Final = 256 << 20
# However small the chunks are: each costs memory beside its bytes.
CHUNKS_MAX: Final = 1 << 18


class Partial:
    """The chunks of a message that have come."""

    __slots__ = ("bytes", "chunks", "count", "places", "sent", "touched", "uuid")

    def __init__(self, metadata: pb.MessageMetadata, now: float) -> None:
        self.uuid = metadata.uuid
        self.count = metadata.num_chunks_from_msg
        self.sent = (metadata.producer_name, metadata.sequence_id)
        self.chunks: dict[int, bytes] = {}
        self.places: dict[int, Place] = {}
        self.bytes = 0
        self.touched = now

    @property
    def first(self) -> Place:
        return min(self.places.values())

    @property
    def last(self) -> Place:
        return max(self.places.values())

    def describe(self) -> str:
        return f"a message of {self.count} chunks from {self.sent[0]!r}, of which {len(self.chunks)} came"


class WholeMessage(NamedTuple):
    """A joined message, and where its chunks lie, in their order."""

    data: bytes
    places: tuple[Place, ...]


class Chunks:
    """The chunks of one segment. Those that cannot be kept or completed are in `dropped`, `replaced`, `strays` and
    `outdated`; the caller removes them from there."""

    def __init__(
        self,
        *,
        incomplete_max: int = INCOMPLETE_MAX,
        bytes_max: int = BYTES_MAX,
        chunks_max: int = CHUNKS_MAX,
    ) -> None:
        self.dropped: list[Partial] = []  # There were too many.
        self.replaced: list[Partial] = []  # These will never be completed.
        self.strays: list[Place] = []  # Their numbers are out of their message's range.
        self.outdated: list[Place] = []  # They belong to a replaced attempt.
        self.bytes = 0
        self._held = 0
        self._incomplete_max = incomplete_max
        self._bytes_max = bytes_max
        self._chunks_max = chunks_max
        self._partials: dict[str, Partial] = {}  # The oldest first.

    def __len__(self) -> int:
        return len(self._partials)

    @property
    def first(self) -> Place | None:
        """The place of the first chunk that belongs to no whole message yet."""
        return min((partial.first for partial in self._partials.values()), default=None)

    def add(self, metadata: pb.MessageMetadata, place: Place, data: bytes, now: float) -> WholeMessage | None:
        """Adds a chunk; returns the whole message if this chunk was the last missing one."""
        partial = self._partials.get(metadata.uuid)
        index = metadata.chunk_id
        if not 0 <= index < (metadata.num_chunks_from_msg if partial is None else partial.count):
            # Any producer may send such a chunk, and it completes no message.
            self.strays.append(place)
            return None
        if partial is None:
            partial = Partial(metadata, now)
            if not self._replace(place, partial):
                self.outdated.append(place)
                return None
            self._partials[partial.uuid] = partial
        partial.touched = now
        # Of a chunk that was stored twice, the last place is kept, so that acknowledging up to it covers both. Where
        # entries are acknowledged one by one, the first one needs an acknowledgement of its own.
        if (earlier := partial.places.get(index, place)) != place:
            self.outdated.append(earlier)
        self._count(partial, len(data) - len(partial.chunks.get(index, b"")))
        self._held += index not in partial.chunks
        partial.chunks[index] = data
        partial.places[index] = place
        if len(partial.chunks) == partial.count:
            self._forget(partial)
            order = range(partial.count)
            return WholeMessage(
                b"".join([partial.chunks[at] for at in order]), tuple(partial.places[at] for at in order)
            )
        while self._partials and self._has_too_many():
            oldest = next(iter(self._partials.values()))
            self._forget(oldest)
            self.dropped.append(oldest)
        return None

    def _has_too_many(self) -> bool:
        return (
            len(self._partials) > self._incomplete_max
            or self.bytes > self._bytes_max
            or self._held > self._chunks_max
        )

    def _replace(self, place: Place, newer: Partial) -> bool:
        """Drops attempts of the same message that lie before this one; False if one lies behind it. Chunks that are
        sent again may come in any order."""
        for one in [one for one in self._partials.values() if one.sent == newer.sent]:
            if one.last > place:
                return False
            self._forget(one)
            self.replaced.append(one)
        return True

    def _count(self, partial: Partial, size: int) -> None:
        partial.bytes += size
        self.bytes += size

    def _forget(self, partial: Partial) -> None:
        del self._partials[partial.uuid]
        self.bytes -= partial.bytes
        self._held -= len(partial.chunks)

    def silent_since(self, then: float) -> list[Partial]:
        """Removes and returns the messages without a new chunk since then."""
        found = [partial for partial in self._partials.values() if partial.touched <= then]
        for partial in found:
            self._forget(partial)
        return found

    def touch(self, now: float) -> None:
        """Restarts the wait for chunks: none could come until now."""
        for partial in self._partials.values():
            partial.touched = now

    def clear(self) -> None:
        """Forgets all chunks: they are delivered again."""
        self._partials.clear()
        self.bytes = self._held = 0
