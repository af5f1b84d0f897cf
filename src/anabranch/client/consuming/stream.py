"""A stream consumer: reads the segments its controller assigns to it, in order, and acknowledges cumulatively.

A segment is read by one consumer of the subscription at a time, or shared by several: then each of them has some of
its entry buckets, and only the broker knows which (PIP-486). Acknowledging a message acknowledges everything this
consumer delivered before it: one position for each segment that it reads alone, single entries of the others.

Alone and shared are two kinds of subscription. A segment whose kind changes is left and subscribed to again, and what
was not acknowledged by then comes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from anabranch.client.acking.cumulative import Cumulative
from anabranch.client.consuming.base import FLUSH_MAX_S, Consumer, Setup
from anabranch.client.consuming.segment import SegmentConsumer, SubscribeOptions
from anabranch.client.message import Message
from anabranch.client.transport.attachment import Backoff
from anabranch.client.transport.controller_session import Assigned, Assignments, ControllerSession
from anabranch.client.values import V
from anabranch.model.segment_consumers import segment_consumer
from anabranch.model.segments import SegmentId
from anabranch.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    import pyarrow as pa


log = logging.getLogger(__name__)

# How long the application may take to acknowledge what it has of a segment that is to be read in the other way. Other
# consumers wait meanwhile, so there is an end to it.
FLIP_MAX_S: Final = 1.0
# The same for an application that waits for its next message: it has handled the others, and may acknowledge them only
# with later ones.
FLIP_STARVED_S: Final = 0.1


class StreamConsumer(Consumer[V]):
    """Made by `Client.stream_consumer`."""

    def __init__(self, setup: Setup, subscription: str, *, earliest: bool = False) -> None:
        super().__init__(setup)
        self.subscription = subscription
        self._how = SubscribeOptions(
            subscription, pb.CommandSubscribe.Exclusive, setup.consumer_name, earliest, is_assigned=True
        )
        if setup.shared is None:
            self._cumulative = Cumulative(self._tally)
            self._inbox.report_to(self._cumulative)
        else:
            self._cumulative = setup.shared.cumulative
        self._assignment: Assignments = {}
        self._read_as: dict[SegmentId, Assigned] = {}
        # The segments that are being left, to be read in the other way.
        self._flips: dict[SegmentId, asyncio.Task[None]] = {}
        self._session = ControllerSession(
            setup.connections,
            setup.watch,
            subscription,
            setup.consumer_name,
            pb.STREAM,
            self._assigned,
            self._fail,
            Backoff(setup.chance),
            knows_buckets=True,
        )

    def __repr__(self) -> str:
        shared = sorted(number for number, one in self._read_as.items() if one.is_shared)
        sharing = f", sharing {', '.join(map(str, shared))}" if shared else ""
        return f"<{type(self).__name__} {self.consumer_name} of {self.topic}{sharing}>"

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
        self._assignment = assigned
        for number in [n for n in self._segments if n not in assigned]:
            self._release(number)
        for number, one in assigned.items():
            if number in self._flips:
                continue  # Once it is left, it is read as it is assigned by then.
            if number not in self._segments:
                self._begin(number, one)
            elif one != self._read_as[number]:
                self._flip(number)

    def _begin(self, number: SegmentId, assigned: Assigned) -> None:
        # Brokers know the owners of buckets by this name, and let it wait for another with such a name to leave.
        how = replace(self._how, consumer_name=segment_consumer(self.consumer_name, number))
        if assigned.is_shared:
            how = replace(how, kind=pb.CommandSubscribe.Key_Shared, bucket_ranges=assigned.bucket_ranges)
        self._read_as[number] = assigned
        self._read(number, assigned.topic, how, restarted=self._cumulative.restarted)

    def _flip(self, number: SegmentId) -> None:
        one = self._segments[number]
        log.debug("%s: leaving the segment to read it in another way", one.topic)
        # What waits here was not given out, and comes again.
        one.stop()
        self._flips[number] = asyncio.create_task(self._leave_and_begin(one))  # Awaited by `_left`.

    async def _leave_and_begin(self, one: SegmentConsumer) -> None:
        number = one.segment
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLIP_MAX_S):
                    await self._acked_or_starved(one)
            if self._segments.get(number) is one:
                self._release(number)
            if (leaving := self._leaving.get(one)) is not None:
                await asyncio.wait([leaving])
        finally:
            del self._flips[number]
        if (assigned := self._assignment.get(number)) is not None:
            self._begin(number, assigned)

    async def _acked_or_starved(self, one: SegmentConsumer) -> None:
        waits = [
            asyncio.create_task(self._cumulative.all_of(one)),
            asyncio.create_task(self._inbox.starved(FLIP_STARVED_S)),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def _release(self, number: SegmentId) -> None:
        del self._read_as[number]
        segment = self._segments[number]
        # First: what is left of a batch that the application has in part is noted when the rest is dropped.
        segment.stop()
        segment.withdraw()
        self._cumulative.restarted(segment)
        segment.acking = None
        super()._release(number)

    # -- the end

    def _stop(self) -> None:
        super()._stop()
        self._session.stop()
        self._assignment = {}

    async def _left(self) -> None:
        await asyncio.gather(self._session.leave(), *self._leaving.values(), *self._flips.values())

    def crash(self) -> None:
        for flip in self._flips.values():
            flip.cancel()
        self._cumulative.stop()
        self._session.abort()
        super().crash()
