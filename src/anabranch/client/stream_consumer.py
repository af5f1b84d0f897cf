"""A stream consumer: the segments its controller assigns to it, in order, acknowledged cumulatively.

Each segment is read by one consumer of the subscription at a time. Acknowledging a message acknowledges everything
this consumer delivered before it: one position for each segment.
"""

from __future__ import annotations

import asyncio

from anabranch.client.ack_sender import GROUP_S
from anabranch.client.acks import Until
from anabranch.client.connections import Backoff
from anabranch.client.consumer import FLUSH_MAX_S, Consumer, Setup
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
        # The newest message that was acknowledged, until its positions are sent.
        self._up_to: Message | None = None
        self._up_to_number = -1
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
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
        entry = message.container
        index = message.index
        number = entry.number + index if index > 0 else entry.number
        if entry.owner.acking is not entry.life:
            self._tally.lost += 1
        if number >= self._up_to_number:
            self._up_to_number = number
            self._up_to = message
            if self._timer is None:
                self._timer = self._loop.call_later(GROUP_S, self._send_acks)

    def _send_acks(self) -> None:
        """Turns the newest acknowledged message into positions, and sends them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        message, self._up_to = self._up_to, None
        if message is None:
            return
        entry, index = message.container, message.index
        told = self._vector.up_to(self._up_to_number)
        for segment, place in told:
            segment.acks.add_until(Until(*place))
        if entry.owner.acking is entry.life and -1 < index < entry.count - 1:
            part = Until(entry.ledger, entry.entry, index, entry.count, entry.wanted)
            entry.owner.acks.add_until(part)
            entry.owner.acks.send()
        for segment, _ in told:
            segment.acks.send()

    async def flush(self, timeout_s: float = FLUSH_MAX_S) -> bool:
        self._send_acks()
        return await super().flush(timeout_s)

    flush.__doc__ = Consumer.flush.__doc__

    # -- the assignment

    def _assigned(self, assigned: Assigned) -> None:
        for number in [n for n in self._segments if n not in assigned]:
            self._release(number)
        for number, topic in assigned.items():
            if number not in self._segments:
                self._read(number, topic, self._how, restarted=self._restarted)

    def _restarted(self, segment: SegmentConsumer) -> None:
        self._send_acks()
        # The rest comes again, under new numbers; an old one must not acknowledge past a seek.
        self._vector.forget(segment)

    def _release(self, number: SegmentId) -> None:
        segment = self._segments[number]
        self._restarted(segment)
        segment.acking = None
        super()._release(number)

    # -- the end

    async def _left(self) -> None:
        await asyncio.gather(self._session.leave(), *self._leaving.values())

    def crash(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._session.abort()
        super().crash()
