"""A stream consumer: the segments its controller assigns to it, in order, acknowledged cumulatively.

Each segment is read by one consumer of the subscription at a time. Acknowledging a message acknowledges everything
this consumer delivered before it: one position for each segment.
"""

from __future__ import annotations

import asyncio

from anabranch.client.connections import Backoff
from anabranch.client.consumer import Consumer, Setup
from anabranch.client.controller_session import Assigned, ControllerSession
from anabranch.client.message import Entry, Message
from anabranch.client.segment_consumer import SegmentConsumer, Subscription
from anabranch.client.vector import Vector
from anabranch.model.segments import SegmentId
from anabranch.wire import pulsar_pb2 as pb


class StreamConsumer(Consumer):
    """Made by `Client.stream_consumer`."""

    def __init__(self, setup: Setup, subscription: str, *, earliest: bool = False) -> None:
        super().__init__(setup)
        self.subscription = subscription
        self._how = Subscription(subscription, pb.CommandSubscribe.Exclusive, setup.consumer_name, earliest)
        self._vector: Vector[SegmentConsumer] = Vector()
        self._inbox.opened = self._opened
        self._session = ControllerSession(
            setup.connections,
            setup.watch,
            subscription,
            setup.consumer_name,
            pb.STREAM,
            self._assigned,
            self._inbox.fail,
            Backoff(setup.chance),
        )

    async def open(self) -> None:
        """Returns once it is subscribed to the segments it was given first, or that takes too long."""
        await self._session.open()
        await super().open()

    @property
    def assigned(self) -> frozenset[SegmentId]:
        return frozenset(self._segments)

    # -- messages

    def _opened(self, entry: Entry) -> None:
        self._vector.given(entry.owner, entry.number + entry.count - 1, (entry.ledger, entry.entry))

    async def ack_cumulative(self, message: Message) -> None:
        """Acknowledges everything up to that message, in all segments: one position for each.

        Returns at once; `flush` tells whether it was stored. It is not if the message's segment was lost or taken away
        since the message came: then it comes again, here or at another consumer.
        """
        for segment, (ledger, number) in self._vector.up_to(message.number):
            segment.ack_until(ledger, number)
        entry = message.container
        if entry.owner.acking is not entry.life:
            self._tally.lost += 1
        elif not message.is_last_of_entry:
            behind = (1 << entry.count) - (2 << message.index)
            left = behind if entry.left < 0 else behind & entry.left
            entry.owner.ack_until(entry.ledger, entry.entry, message.index, left, entry.count)

    # -- the assignment

    def _assigned(self, assigned: Assigned) -> None:
        for number in [n for n in self._segments if n not in assigned]:
            self._release(number)
        for number, topic in assigned.items():
            if number not in self._segments:
                self._read(number, topic, self._how, restarted=self._vector.forget)

    def _release(self, number: SegmentId) -> None:
        segment = self._segments[number]
        segment.acking = None
        self._vector.forget(segment)
        super()._release(number)

    # -- the end

    async def _left(self) -> None:
        await asyncio.gather(self._session.leave(), *self._leaving.values())

    def crash(self) -> None:
        self._session.abort()
        super().crash()
