"""A stream consumer: the segments its controller assigns to it, in order, acknowledged cumulatively.

Each segment is read by one consumer of the subscription at a time. Acknowledging a message acknowledges everything
this consumer delivered before it: one position for each segment.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable

from anabranch.client.connections import Backoff, Connections
from anabranch.client.controller_session import Assigned, ControllerSession
from anabranch.client.errors import TopicDeleted
from anabranch.client.layout_watch import LayoutWatch
from anabranch.client.message import Message
from anabranch.client.segment_consumer import Inbox, SegmentConsumer, Subscription, attached
from anabranch.model.segments import SegmentId
from anabranch.wire import pulsar_pb2 as pb


class StreamConsumer:
    """Made by `Client.stream_consumer`."""

    def __init__(
        self,
        connections: Connections,
        watch: LayoutWatch,
        subscription: str,
        consumer_name: str,
        *,
        earliest: bool,
        chance: random.Random,
        closed: Callable[[StreamConsumer], None] = lambda _: None,
    ) -> None:
        self._closed = closed
        self.subscription = subscription
        self.consumer_name = consumer_name
        self._connections = connections
        self._watch = watch
        self._chance = chance
        self._how = Subscription(subscription, pb.CommandSubscribe.Exclusive, consumer_name, earliest)
        self._inbox = Inbox()
        self._segments: dict[SegmentId, SegmentConsumer] = {}
        # Delivered and not acknowledged: (number of the message, ledger, entry), for the last message of each entry.
        self._unacked: dict[SegmentConsumer, deque[tuple[int, int, int]]] = {}
        # The number of the first message that came over a segment's present connection.
        self._since: dict[SegmentConsumer, int] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._session = ControllerSession(
            connections,
            watch,
            subscription,
            consumer_name,
            pb.STREAM,
            self._assigned,
            self._inbox.fail,
            Backoff(chance),
        )
        self._stop_listening = watch.listen(self._layout_changed)

    async def open(self) -> None:
        """Returns once it is subscribed to the segments it was given first, or that takes too long."""
        await self._session.open()
        await attached(self._segments.values())

    async def __aenter__(self) -> StreamConsumer:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def topic(self) -> str:
        return str(self._watch.topic)

    @property
    def assigned(self) -> frozenset[SegmentId]:
        return frozenset(self._segments)

    @property
    def attached(self) -> frozenset[SegmentId]:
        """Those of the assigned segments that it is subscribed to by now."""
        return frozenset(number for number, one in self._segments.items() if one.is_attached)

    # -- messages

    def __aiter__(self) -> StreamConsumer:
        return self

    async def __anext__(self) -> Message:
        return await self.receive()

    async def receive(self) -> Message:
        """The next message. Messages of a key come in the order they were sent, through splits and merges."""
        segment, message = await self._inbox.take()
        if message.is_last_of_entry:
            at = (message.number, message.ledger, message.entry)
            self._unacked.setdefault(segment, deque()).append(at)
        return message

    async def ack_cumulative(self, message: Message) -> bool:
        """Acknowledges everything up to that message, in all segments: one position for each.

        True once all brokers concerned have stored it. False if one could not be reached, or if the message's segment
        was lost or taken away since: then some of it comes again, here or at another consumer. A message inside a batch
        is acknowledged with the batch's last.
        """
        vector: list[tuple[SegmentConsumer, tuple[int, int]]] = []
        for segment, delivered in list(self._unacked.items()):
            last = None
            while delivered and delivered[0][0] <= message.number:
                last = delivered.popleft()[1:]
            if last is not None:
                vector.append((segment, last))
        is_covered = message.is_last_of_entry and self._is_of_this_life(message)
        stored = await asyncio.gather(*(s.ack(*at, is_cumulative=True) for s, at in vector))
        return is_covered and all(stored)

    def _is_of_this_life(self, message: Message) -> bool:
        segment = self._segments.get(SegmentId(message.segment))
        return segment is not None and message.number >= self._since.get(segment, 0)

    # -- the assignment

    def _assigned(self, assigned: Assigned) -> None:
        for number in [n for n in self._segments if n not in assigned]:
            self._release(self._segments.pop(number))
        for number, topic in assigned.items():
            if number not in self._segments:
                one = self._segments[number] = SegmentConsumer(
                    self._connections,
                    number,
                    topic,
                    self.topic,
                    self._how,
                    self._inbox,
                    chance=self._chance,
                    url=self._watch.url_of(number),
                    restarted=self._restarted,
                )
                one.open()

    def _restarted(self, segment: SegmentConsumer) -> None:
        # What was not acknowledged comes again, under new numbers; an old one must not acknowledge past a seek.
        self._unacked.pop(segment, None)
        self._since[segment] = self._inbox.arrived

    def _release(self, segment: SegmentConsumer) -> None:
        self._unacked.pop(segment, None)
        self._since.pop(segment, None)
        closing = asyncio.create_task(segment.close())
        self._closing.add(closing)  # Awaited by `close`.
        closing.add_done_callback(self._closing.discard)

    def _layout_changed(self) -> None:
        if self._watch.is_deleted:
            self._inbox.fail(TopicDeleted(f"{self.topic} was deleted"))

    # -- the end

    async def leave(self) -> None:
        """Frees the segments and tells the controller, so that others get them at once. `close` does it too."""
        self._stop_listening()
        for number in list(self._segments):
            self._release(self._segments.pop(number))
        await asyncio.gather(self._session.leave(), *self._closing)

    async def close(self) -> None:
        await self.leave()
        await self._watch.close()
        self._closed(self)

    def crash(self) -> None:
        """Drops every connection of its client without a word, as a process that dies would."""
        self._stop_listening()
        self._session.abort()
        for one in self._segments.values():
            one.abort()
        self._connections.abort()
