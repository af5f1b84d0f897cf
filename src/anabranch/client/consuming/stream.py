"""A stream consumer: reads the segments its controller assigns to it, in order, and acknowledges cumulatively.

Each segment is read by one consumer of the subscription at a time. Acknowledging a message acknowledges everything
this consumer delivered before it: one position for each segment.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from anabranch.client.acking.cumulative import Cumulative
from anabranch.client.consuming.base import FLUSH_MAX_S, Consumer, Setup
from anabranch.client.consuming.segment import SubscribeOptions
from anabranch.client.message import Message
from anabranch.client.transport.attachment import Backoff
from anabranch.client.transport.controller_session import Assigned, Assignments, ControllerSession
from anabranch.model.segments import SegmentId
from anabranch.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    import pyarrow as pa


class StreamConsumer(Consumer):
    """Made by `Client.stream_consumer`."""

    def __init__(self, setup: Setup, subscription: str, *, earliest: bool = False) -> None:
        super().__init__(setup)
        self.subscription = subscription
        self._how = SubscribeOptions(
            subscription, pb.CommandSubscribe.Exclusive, setup.consumer_name, earliest
        )
        if setup.shared is None:
            self._cumulative = Cumulative(self._tally)
            self._inbox.report_to(self._cumulative)
        else:
            self._cumulative = setup.shared.cumulative
        self._read_as: dict[SegmentId, Assigned] = {}
        self._session = ControllerSession(
            setup.connections,
            setup.watch,
            subscription,
            setup.consumer_name,
            pb.STREAM,
            self._assigned,
            self._fail,
            Backoff(setup.chance),
        )

    async def open(self) -> None:
        """Returns once it is subscribed to its first segments, or that takes too long."""
        await self._session.open()
        await super().open()

    @property
    def assigned(self) -> frozenset[SegmentId]:
        return frozenset(self._segments)

    @property
    def drained(self) -> frozenset[SegmentId]:
        """Those of its segments that are sealed and in which the subscription has no message left."""
        return frozenset(number for number, one in self._segments.items() if one.has_ended)

    # -- messages

    async def ack_cumulative(self, message: Message | pa.RecordBatch) -> None:
        """Acknowledges everything up to that message, or record batch, in all segments: one position for each.

        Returns at once; `flush` says whether the acknowledgement was stored. It is not stored if the message's segment
        was lost or reassigned since the message came: then the message is delivered again, here or at another consumer.
        """
        if isinstance(message, Message):
            self._cumulative.ack(message)
        else:
            self._ack_columns(message, self._cumulative)

    async def flush(self, timeout_s: float = FLUSH_MAX_S) -> bool:
        self._cumulative.send()
        return await super().flush(timeout_s)

    flush.__doc__ = Consumer.flush.__doc__

    # -- the assignment

    def _assigned(self, assigned: Assignments) -> None:
        for number in [n for n in self._segments if assigned.get(n) != self._read_as[n]]:
            self._release(number)
        for number, one in assigned.items():
            if number not in self._segments:
                self._read_as[number] = one
                self._read(number, one.topic, self._how, restarted=self._cumulative.restarted)

    def _release(self, number: SegmentId) -> None:
        del self._read_as[number]
        segment = self._segments[number]
        self._cumulative.restarted(segment)
        segment.acking = None
        super()._release(number)

    # -- the end

    def _stop(self) -> None:
        super()._stop()
        self._session.stop()

    async def _left(self) -> None:
        await asyncio.gather(self._session.leave(), *self._leaving.values())

    def crash(self) -> None:
        self._cumulative.stop()
        self._session.abort()
        super().crash()
