"""Data plane. Shared: each entry goes to one consumer, in turn, the highest priority with room first.

Chunks of one message go to one consumer, since only that one can put them together. If it has no room for the next
chunk, the chunk waits for it.
"""

from __future__ import annotations

from typing import Any, Final

from anabranch.broker.consumer import SHARED, Consumer
from anabranch.broker.dispatch.base import NO_METADATA, DispatchContext
from anabranch.broker.dispatch.concurrent import ConcurrentDispatcher
from anabranch.errors import MalformedFrame
from anabranch.model.position import Position
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.entry import metadata_span

# Messages whose chunks are being handed out. The oldest is forgotten: its producer has died half-way.
_CHUNKED_MAX: Final = 10_000
# Chunks waiting for room at their consumer, before reading stops.
_WAITING_MAX: Final = 10_000

# How `deliver_at_time` and `num_chunks_from_msg` begin in encoded metadata: field number and kind.
_DELIVER_AT_TAG: Final = b"\x98\x01"
_CHUNKS_TAG: Final = b"\xd8\x01"


class SharedDispatcher(ConcurrentDispatcher):
    kind = SHARED

    def __init__(self, context: DispatchContext) -> None:
        super().__init__(context)
        self._chunked: dict[str, Consumer] = {}
        self._waiting: dict[Consumer, list[Position]] = {}
        self._waiting_count = 0

    def remove(self, consumer: Consumer) -> None:
        if self._chunked:
            self._chunked = {uuid: owner for uuid, owner in self._chunked.items() if owner is not consumer}
        self._let_go(consumer)
        super().remove(consumer)

    def rewind(self) -> None:
        super().rewind()
        self._chunked.clear()
        self._waiting.clear()
        self._waiting_count = 0

    def _metadata_of(self, data: memoryview) -> pb.MessageMetadata:
        # Looking for two tags is cheaper than parsing; where one turns up by chance, parsing settles it.
        try:
            start, end = metadata_span(data)
        except MalformedFrame:
            return NO_METADATA
        raw = bytes(data[start:end])
        if _DELIVER_AT_TAG in raw or _CHUNKS_TAG in raw:
            return super()._metadata_of(data)
        return NO_METADATA

    def _route(self, at: Position, metadata: pb.MessageMetadata) -> Consumer | None:
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

    def _turn(self, consumer: Consumer) -> None:
        """Sends the consumer at the head of its round to the end of it."""
        for _, waiting in self._rounds:
            if waiting and waiting[0] is consumer:
                waiting.rotate(-1)
                return

    def _route_chunk(self, at: Position, metadata: pb.MessageMetadata) -> Consumer | None:
        uuid, chunk = metadata.uuid, metadata.chunk_id
        # The first chunk starts over: a message sent again may go to somebody else.
        owner = None if chunk == 0 else self._chunked.get(uuid)
        if owner is None:
            owner = self._next_with_room()
            if owner is None:
                self._is_stuck = True
                return None
            self._turn(owner)
        elif not owner.has_room or owner in self._waiting:
            self._waiting.setdefault(owner, []).append(at)
            self._waiting_count += 1
            return None
        if chunk == metadata.num_chunks_from_msg - 1:
            self._chunked.pop(uuid, None)
        else:
            self._chunked[uuid] = owner
            if len(self._chunked) > _CHUNKED_MAX:
                del self._chunked[next(iter(self._chunked))]
        return owner

    def _release(self) -> None:
        if self._waiting:
            for consumer in [consumer for consumer in self._waiting if consumer.has_room]:
                self._let_go(consumer)

    def _let_go(self, consumer: Consumer) -> None:
        positions = self._waiting.pop(consumer, [])
        self._waiting_count -= len(positions)
        self._replay.add_all(positions)

    def _may_read_on(self) -> bool:
        return self._waiting_count < _WAITING_MAX and super()._may_read_on()

    def stats(self) -> dict[str, Any]:
        stats = super().stats()
        stats["msgInReplay"] += self._waiting_count
        return stats
