"""A producer to a scalable topic: routes by key, follows the layout, keeps every key in order, loses nothing.

`lanes.Lanes` decides which message goes where and when; here are the connections. Each segment in use has an
attached producer. When its connection is lost it attaches again and sends its whole lane again; the broker drops what
it has already if deduplication is on. A segment that turns out to be sealed is asked for its last sequence id first
wherever a receipt may have been lost, so that nothing is stored twice; then the rest of its lane goes to its children.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Final

from anabranch.client.connections import Connections
from anabranch.client.errors import ConnectionLost, TopicDeleted
from anabranch.client.lanes import Lanes, Routing, keyless_hash
from anabranch.client.layout_watch import LayoutWatch
from anabranch.client.segment_producer import Pending, Receipt, SegmentProducer
from anabranch.model.keyhash import murmur3_raw
from anabranch.model.segments import SegmentId
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_message

PENDING_MAX: Final = 1000
# Segments asked at once for what they hold.
RECALL_MAX: Final = 50


class Producer:
    """Made by `Client.producer`. One loop, no locks: everything happens between two awaits."""

    def __init__(
        self,
        connections: Connections,
        watch: LayoutWatch,
        name: str,
        *,
        chance: random.Random,
        now_ms: Callable[[], int],
        is_named: bool = False,
        routing: Routing = Routing.HIGH,
        pending_max: int = PENDING_MAX,
        closed: Callable[[Producer], None] = lambda _: None,
    ) -> None:
        self._is_named = is_named
        self._closed = closed
        self.name = name
        self.watch = watch
        self.connections = connections
        self.chance = chance
        self.lanes: Lanes[Pending] = Lanes(watch.layout, routing)
        self._routing = routing
        self._now_ms = now_ms
        self._room = asyncio.Semaphore(pending_max)
        self._next_sequence = 0
        self._turn = 0
        # The highest sequence id that was found when the producer was opened, and what each sealed segment holds.
        self._recalled = -1
        self._held: dict[SegmentId, int] = {}
        self._segments: dict[SegmentId, SegmentProducer] = {}
        self._error: Exception | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self._stop_listening = watch.listen(self._layout_changed)

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        await self.close(flush=kind is None)

    @property
    def topic(self) -> str:
        return str(self.watch.topic)

    @property
    def last_sequence_id(self) -> int:
        """The highest one given out, or found in the topic when the producer was opened; -1 for none."""
        return self._next_sequence - 1

    # -- what an earlier life of this producer has stored

    async def open(self) -> None:
        if self._is_named:
            await self._recall()

    async def _recall(self) -> None:
        """Finds out what the topic holds already of a producer with this name, so that nothing is sent twice."""
        asking = asyncio.Semaphore(RECALL_MAX)

        async def last(number: SegmentId, is_sealed: bool) -> int:
            async with asking:
                return await (self._ask(number) if is_sealed else self._of(number).last_sequence_id())

        known = [last(number, one.is_sealed) for number, one in self.watch.layout.segments.items()]
        self._recalled = max(await asyncio.gather(*known), default=-1)
        self._next_sequence = self._recalled + 1

    async def _ask(self, sealed: SegmentId) -> int:
        if sealed not in self._held:
            is_there = sealed in self.watch.layout.segments
            self._held[sealed] = await SegmentProducer(self, sealed).ask_sealed() if is_there else -1
        return self._held[sealed]

    def _past(self, hash32: int) -> list[SegmentId]:
        """The sealed segments that a key of this hash went through, as far as the layout remembers.

        Partitions of a migrated topic are left out: which of them had the key cannot be told when some are pruned.
        """
        hash16 = self._routing.of(hash32)
        return [
            number
            for number, segment in self.watch.layout.segments.items()
            if segment.is_sealed and hash16 in segment.range and not segment.legacy_topic
        ]

    async def _stored_in(self, sequence: int, hash32: int) -> SegmentId | None:
        """The sealed segment that holds a message from before this producer was opened, if one does.

        Messages of a hash go through its segments in order, so one with a higher sequence id in a sealed segment that
        covered the hash means that this one is stored there or in an ancestor. An active segment is not asked: it drops
        what it has by itself.
        """
        while unasked := [number for number in self._past(hash32) if number not in self._held]:
            await self._ask(unasked[0])
        return next((n for n in self._past(hash32) if self._held[n] >= sequence), None)

    # -- sending

    async def send(
        self,
        payload: bytes,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        sequence_id: int | None = None,
    ) -> asyncio.Future[Receipt]:
        """Sends one message, waiting while too many have no receipt. The future is where it was stored.

        Sequence ids are given out in order; an application that gives its own must give rising ones.
        """
        await self._room.acquire()
        try:
            hash32 = self._hash(key)
            held = None
            if sequence_id is not None and sequence_id <= self._recalled:
                held = await self._stored_in(sequence_id, hash32)
            if self._error is not None:
                raise self._error
        except BaseException:
            self._room.release()
            raise
        # From here on nothing is awaited: messages join their lanes in the order of their numbers.
        receipt: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        if held is not None:
            self._room.release()
            receipt.set_result(Receipt(held, -1, -1))
            return receipt
        number = self._next_sequence if sequence_id is None else sequence_id
        self._next_sequence = max(self._next_sequence, number + 1)
        metadata = pb.MessageMetadata(
            producer_name=self.name, sequence_id=number, publish_time=self._now_ms(), partition_key=key
        )
        for item in (properties or {}).items():
            metadata.properties.add(key=item[0], value=item[1])
        self._empty.clear()
        message = Pending(number, hash32, build_message(metadata, payload), receipt)
        segment = self.lanes.add(message)
        if segment is not None:
            self._of(segment).send(message)
        return receipt

    def _hash(self, key: str | None) -> int:
        if key is not None:
            return murmur3_raw(key.encode())
        self._turn += 1
        return keyless_hash(self.lanes.layout, self._turn - 1, self._routing)

    async def flush(self) -> None:
        """Waits for every receipt; raises the error that ended the producer, if one did."""
        await self._empty.wait()
        if self._error is not None:
            raise self._error

    async def close(self, *, flush: bool = True) -> None:
        """Waits for every receipt, if asked to, and detaches."""
        try:
            if flush and self._error is None:
                await self.flush()
        finally:
            self._end(ConnectionLost("the producer is closed"))
            await asyncio.gather(*(one.close() for one in self._segments.values()))
            await self.watch.close()
            self._closed(self)

    def crash(self) -> None:
        """Drops every connection of its client without a word, as a process that dies would."""
        self._end(ConnectionLost("the producer crashed"))
        for one in self._segments.values():
            one.abort()
        self.connections.abort()

    # -- what happens

    def _layout_changed(self) -> None:
        if self.watch.is_deleted:
            self._end(TopicDeleted(f"{self.topic} was deleted"))
            return
        self.lanes.learned(self.watch.layout)
        for number, one in list(self._segments.items()):
            is_idle = self.lanes.first_number(number) is None
            if is_idle and self.watch.is_over(number) and one.retire():
                del self._segments[number]
        self.dispatch()

    def dispatch(self) -> None:
        for segment, message in self.lanes.ready():
            self._of(segment).send(message)

    def _of(self, segment: SegmentId) -> SegmentProducer:
        found = self._segments.get(segment)
        if found is None:
            found = self._segments[segment] = SegmentProducer(self, segment)
        return found

    def settled(self, segment: SegmentId, upto: int, at: Receipt) -> None:
        """The segment holds everything up to a sequence id; the last of it lies at `at`."""
        for message in self.lanes.settled(segment, upto):
            mine = message.number == upto
            self._answer(message, at if mine else Receipt(segment, -1, -1))
        self._after_change(segment)

    def refused(self, segment: SegmentId, number: int, error: Exception) -> None:
        """The segment will not have that one message."""
        message = self.lanes.dropped(segment, number)
        if message is not None:
            self._answer(message, error)
        self._after_change(segment)

    def sealed(self, segment: SegmentId) -> None:
        """What the segment did not take goes to its children, at once or when they are known."""
        self.lanes.sealed(segment)
        self._segments.pop(segment, None)
        self.dispatch()

    def _after_change(self, segment: SegmentId) -> None:
        if self.lanes.first_number(segment) is None and self.watch.is_over(segment):
            one = self._segments.get(segment)
            if one is not None and one.retire():
                del self._segments[segment]
            self.dispatch()

    def failed(self, error: Exception) -> None:
        self._end(error)

    def _answer(self, message: Pending, result: Receipt | Exception) -> None:
        self._room.release()
        if len(self.lanes) == 0:
            self._empty.set()
        if message.receipt.done():
            return
        if isinstance(result, Exception):
            message.receipt.set_exception(result)
            message.receipt.exception()  # The error is also raised by `flush` and the next `send`.
        else:
            message.receipt.set_result(result)

    def _end(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        self._stop_listening()
        for message in self.lanes.clear():
            self._answer(message, self._error)
        self._empty.set()
