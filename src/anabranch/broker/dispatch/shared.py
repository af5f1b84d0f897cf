"""Data plane. Shared: each entry goes to one consumer, in turn, the highest priority with room first.

Chunks of one message go to one consumer, since only that one can assemble them. If it has no room for the next chunk,
the chunk waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from anabranch.broker.dispatch.base import NO_METADATA, DispatchContext
from anabranch.broker.dispatch.chunks import WAITING_MAX, BegunChunks
from anabranch.broker.dispatch.concurrent import ConcurrentDispatcher
from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.errors import MalformedFrame
from anabranch.model.position import Position
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.entry import metadata_span
from anabranch.wire.subscription_types import SHARED

# The first bytes of `deliver_at_time` and `num_chunks_from_msg` in encoded metadata: field number and kind.
_DELIVER_AT_TAG: Final = b"\x98\x01"
_CHUNKS_TAG: Final = b"\xd8\x01"


class SharedDispatcher(ConcurrentDispatcher):
    kind = SHARED

    def __init__(self, context: DispatchContext) -> None:
        super().__init__(context)
        self._chunks = BegunChunks()

    def remove(self, consumer: AttachedConsumer) -> None:
        self._replay.add_all(at for at, _ in self._chunks.left(consumer))
        super().remove(consumer)

    def _hand_back(
        self, consumer: AttachedConsumer, entries: Iterable[tuple[Position, tuple[int, int]]]
    ) -> None:
        places = [at for at, _ in entries]
        self._replay.add_all(places)
        self._replay.add_all(at for at, _ in self._chunks.handed_back(consumer, places))

    def rewind(self) -> None:
        super().rewind()
        self._chunks.clear()

    def _metadata_of(self, data: memoryview) -> pb.MessageMetadata:
        # Searching for two tags is cheaper than parsing; where one occurs by chance, parsing settles it.
        try:
            start, end = metadata_span(data)
        except MalformedFrame:
            return NO_METADATA
        raw = bytes(data[start:end])
        if _DELIVER_AT_TAG in raw or _CHUNKS_TAG in raw:
            return super()._metadata_of(data)
        return NO_METADATA

    def _route(self, at: Position, metadata: pb.MessageMetadata) -> AttachedConsumer | None:
        self._is_stuck = False
        if metadata.num_chunks_from_msg > 1:
            return self._route_chunk(at, metadata)
        for _, waiting in self._rounds:
            while waiting:
                consumer = waiting[0]
                if consumer.permits > 0 and not consumer.is_blocked and consumer.link.is_writable:
                    waiting.rotate(-1)
                    return consumer
                waiting.popleft()
                consumer.is_queued = False
        self._is_stuck = True
        return None

    def _turn(self, consumer: AttachedConsumer) -> None:
        """Moves the consumer at the head of its round to the end of the round."""
        for _, waiting in self._rounds:
            if waiting and waiting[0] is consumer:
                waiting.rotate(-1)
                return

    def _route_chunk(self, at: Position, metadata: pb.MessageMetadata) -> AttachedConsumer | None:
        owner = self._chunks.owner(metadata)
        if owner is None:
            owner = self._next_with_room()
            if owner is None:
                self._is_stuck = True
                return None
            self._turn(owner)
        elif not self._chunks.has_room(owner):
            self._chunks.wait(at, metadata, owner)
            return None
        self._chunks.sent(at, metadata, owner)
        return owner

    def _release(self) -> None:
        self._replay.add_all(self._chunks.let_go())

    def _may_read_on(self) -> bool:
        return self._chunks.waiting < WAITING_MAX and super()._may_read_on()

    @property
    def is_all_sent(self) -> bool:
        return super().is_all_sent and not self._chunks.waiting

    def stats(self) -> dict[str, Any]:
        stats = super().stats()
        stats["msgInReplay"] += self._chunks.waiting
        return stats
