"""A queue consumer: every segment of the topic, active or sealed, shared with the subscription's other consumers.

It never registers anywhere: new segments come with the layout, and a sealed one is dropped once it is acknowledged to
its end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from anabranch.client.connections import Connections
from anabranch.client.errors import TopicDeleted
from anabranch.client.layout_watch import LayoutWatch
from anabranch.client.message import Message
from anabranch.client.segment_consumer import Inbox, SegmentConsumer, Subscription, attached
from anabranch.model.segments import SegmentId
from anabranch.wire import pulsar_pb2 as pb


class QueueConsumer:
    """Made by `Client.queue_consumer`."""

    def __init__(
        self,
        connections: Connections,
        watch: LayoutWatch,
        subscription: str,
        consumer_name: str,
        *,
        earliest: bool,
        chance: random.Random,
        closed: Callable[[QueueConsumer], None] = lambda _: None,
    ) -> None:
        self._closed = closed
        self.subscription = subscription
        self.consumer_name = consumer_name
        self._connections = connections
        self._watch = watch
        self._chance = chance
        self._how = Subscription(subscription, pb.CommandSubscribe.Shared, consumer_name, earliest)
        self._inbox = Inbox()
        self._segments: dict[SegmentId, SegmentConsumer] = {}
        self._drained: set[SegmentId] = set()
        # Messages of a batch that are not acknowledged yet: an entry is acknowledged whole.
        self._batches: dict[tuple[int, int, int], set[int]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._stop_listening = watch.listen(self._layout_changed)
        self._layout_changed()

    async def __aenter__(self) -> QueueConsumer:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def topic(self) -> str:
        return str(self._watch.topic)

    @property
    def attached(self) -> frozenset[SegmentId]:
        """The segments it is subscribed to by now."""
        return frozenset(number for number, one in self._segments.items() if one.is_attached)

    @property
    def drained(self) -> frozenset[SegmentId]:
        """Sealed segments in which the subscription has nothing left."""
        return frozenset(self._drained)

    async def open(self) -> None:
        """Returns once every segment of the layout is subscribed to, or drained, or that takes too long."""
        await attached(self._segments.values())

    # -- messages

    def __aiter__(self) -> QueueConsumer:
        return self

    async def __anext__(self) -> Message:
        return await self.receive()

    async def receive(self) -> Message:
        segment, message = await self._inbox.take()
        if message.index >= 0:
            at = (segment.segment, message.ledger, message.entry)
            self._batches.setdefault(at, set(range(message.size)))
        return message

    async def ack(self, message: Message) -> bool:
        """True once the broker has stored it; False if it cannot be reached: then the message comes again.

        A message of a batch waits for the others, and counts as acknowledged until then.
        """
        number = SegmentId(message.segment)
        if message.index >= 0:
            at = (number, message.ledger, message.entry)
            left = self._batches.get(at, set())
            left.discard(message.index)
            if left:
                return True
            self._batches.pop(at, None)
        segment = self._segments.get(number)
        return segment is not None and await segment.ack(message.ledger, message.entry, is_cumulative=False)

    # -- the layout

    def _layout_changed(self) -> None:
        if self._watch.is_deleted:
            self._inbox.fail(TopicDeleted(f"{self.topic} was deleted"))
            return
        layout = self._watch.layout
        for number in [n for n in self._segments if n not in layout.segments]:
            self._release(number)
        self._drained &= layout.segments.keys()
        for number, segment in layout.segments.items():
            if number not in self._segments and number not in self._drained:
                one = self._segments[number] = SegmentConsumer(
                    self._connections,
                    number,
                    str(segment.topic(self._watch.topic)),
                    self.topic,
                    self._how,
                    self._inbox,
                    chance=self._chance,
                    url=self._watch.url_of(number),
                    ended=self._ended,
                    may_be_gone=self._watch.is_over,
                )
                one.open()

    def _ended(self, segment: SegmentConsumer) -> None:
        if self._segments.get(segment.segment) is segment:
            self._drained.add(segment.segment)
            self._release(segment.segment)

    def _release(self, number: SegmentId) -> None:
        self._batches = {at: left for at, left in self._batches.items() if at[0] != number}
        closing = asyncio.create_task(self._segments.pop(number).close())
        self._closing.add(closing)  # Awaited by `close`.
        closing.add_done_callback(self._closing.discard)

    # -- the end

    async def close(self) -> None:
        self._stop_listening()
        for number in list(self._segments):
            self._release(number)
        await asyncio.gather(*self._closing)
        await self._watch.close()
        self._closed(self)

    def crash(self) -> None:
        """Drops every connection of its client without a word, as a process that dies would."""
        self._stop_listening()
        for one in self._segments.values():
            one.abort()
        self._connections.abort()
