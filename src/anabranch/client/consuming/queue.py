"""A queue consumer: every segment of the topic, active or sealed, shared with the subscription's other consumers.

It never registers anywhere: new segments come with the layout, and a sealed segment is dropped once it is acknowledged
to its end. A message is acknowledged, or handed back, or its time runs out; in the last two cases it is delivered
again, until it is sent to the dead-letter topic.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from anabranch.client.consuming.base import FLUSH_MAX_S, Consumer, Setup
from anabranch.client.consuming.core.redelivery import (
    DeadLetter,
    NackDelay,
    Redeliveries,
    bit_of,
    bits_of_entry,
)
from anabranch.client.consuming.dead_letters import DeadLetters, MakeSender
from anabranch.client.consuming.segment import SegmentConsumer, SubscribeOptions
from anabranch.client.message import Message, ReceivedEntry
from anabranch.client.schema.schemas import version_of
from anabranch.client.values import V
from anabranch.model.segments import SegmentId
from anabranch.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    import pyarrow as pa


class QueueConsumer(Consumer[V]):
    """Made by `Client.queue_consumer`."""

    def __init__(
        self,
        setup: Setup,
        subscription: str,
        *,
        earliest: bool = False,
        processing_timeout_s: float | None = None,
        negative_ack: NackDelay | None = None,
        dead_letter: DeadLetter | None = None,
        make_sender: MakeSender | None = None,
    ) -> None:
        super().__init__(setup)
        self.subscription = subscription
        self._how = SubscribeOptions(subscription, pb.CommandSubscribe.Shared, setup.consumer_name, earliest)
        self._drained: set[SegmentId] = set()
        self._is_timed = processing_timeout_s is not None
        self._redeliveries = Redeliveries(negative_ack or NackDelay(), processing_timeout_s)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0  # When the timer ends. Not every loop's handles know.
        self._is_left = False
        self._dead_letters: DeadLetters | None = None
        if dead_letter is not None and make_sender is not None:
            self._dead_letters = DeadLetters(
                dead_letter,
                self.topic,
                subscription,
                make_sender,
                self._written_with,
                self._dead_letter_settled,
            )
            self._holds_columns = True
        self._layout_changed()

    @property
    def drained(self) -> frozenset[SegmentId]:
        """Sealed segments in which the subscription has nothing left."""
        return frozenset(self._drained)

    @property
    def dead_letter_topic(self) -> str | None:
        """The topic for messages that are redelivered too often."""
        return None if self._dead_letters is None else self._dead_letters.topic

    # -- messages

    async def receive(self, timeout_s: float | None = None) -> Message[V]:
        """The next message. Raises TimedOut if no message comes within `timeout_s`; cancelling the call loses no
        message."""
        ready = self._ready
        message = ready.pop() if ready else await self._inbox.next(timeout_s)
        if self._is_timed:
            self.given(message)
        return message

    @property
    def gives_ready(self) -> bool:
        return not self._is_timed

    def given(self, message: Message) -> None:
        """Notes that the application has a message, and starts its processing time-out, if there is one."""
        if not self._is_timed:
            return
        self._redeliveries.given(message.container, bit_of(message.index), self._loop.time())
        if self._timer is None:
            self._set_timer()

    def given_whole(self, entries: list[ReceivedEntry]) -> None:
        """Like `given`, for all messages of those entries."""
        if self._is_timed and entries:
            for entry in entries:
                self._redeliveries.given(entry, bits_of_entry(entry), self._loop.time())
            if self._timer is None:
                self._set_timer()

    def _given_whole(self, entries: list[ReceivedEntry]) -> None:
        self.given_whole(entries)

    async def ack(self, message: Message | pa.RecordBatch) -> None:
        """Acknowledges one message, or a whole record batch.

        Returns at once; `flush` says whether the acknowledgement was stored. If not, the messages are delivered again.
        """
        if isinstance(message, Message):
            self._ack(message)
            return
        reader = self._arrow_reader()
        for entry in reader.entries_of(message):
            self.ack_whole(entry)
        reader.settled(message)

    def ack_whole(self, entry: ReceivedEntry) -> None:
        """Acknowledges all messages of an entry that were given out with it."""
        if entry.batch is None and entry.wanted < 0:
            entry.owner.ack_entry(entry)
        elif left := self._redeliveries.acked_bits(entry, bits_of_entry(entry)):
            entry.owner.acks.add((entry.ledger, entry.entry), (left, entry.count))
        else:
            entry.owner.ack_entry(entry)

    def _ack(self, message: Message) -> None:
        entry = message.container
        if entry.count == 1:
            if entry.batch is not None:
                self._redeliveries.acked(entry, 0)
            entry.owner.ack_entry(entry)
        else:
            left = self._redeliveries.acked(entry, message.index)
            entry.owner.acks.add((entry.ledger, entry.entry), (left, entry.count))

    async def nack(self, message: Message | pa.RecordBatch) -> None:
        """Hands a message, or a whole record batch, back: it is delivered again after a while, here or at another
        consumer.

        Returns at once.

        Of a producer's batch, only the messages that were handed back are delivered here again; another consumer that
        receives the batch receives all of its unacknowledged messages.
        """
        if isinstance(message, Message):
            self.hand_back(message.container, bit_of(message.index))
            return
        reader = self._arrow_reader()
        for entry in reader.entries_of(message):
            self.hand_back(entry, bits_of_entry(entry))
        reader.settled(message)

    def hand_back(self, entry: ReceivedEntry, bits: int) -> None:
        """Schedules the redelivery of those messages of an entry, or sends them to the dead-letter topic."""
        bits = self._redeliveries.take_back(entry, bits)
        if not bits:
            return
        if self._dead_letters is not None and self._dead_letters.takes(entry.redeliveries):
            self._bury(entry, bits)
        else:
            self._redeliveries.later(entry, bits, self._loop.time())
            self._set_timer()

    async def _written_with(self, message: Message) -> pb.Schema | None:
        return await version_of(self._connections, message.container.owner.topic, message.schema_version)

    def _dead_letter_settled(self, message: Message, is_stored: bool) -> None:
        if is_stored:
            self._ack(message)
        else:
            self._redeliveries.later(message.container, bit_of(message.index), self._loop.time())
            self._set_timer()

    async def flush_dead_letters(self) -> None:
        if self._dead_letters is not None:
            await self._dead_letters.flush()

    async def flush(self, timeout_s: float = FLUSH_MAX_S) -> bool:
        await self.flush_dead_letters()
        return await super().flush(timeout_s)

    flush.__doc__ = Consumer.flush.__doc__

    # -- redelivery

    def _set_timer(self) -> None:
        if self._is_left:
            return
        due = self._redeliveries.next_due
        if self._timer is not None:
            if due is not None and self._timer_s <= due:
                return
            self._timer.cancel()
        self._timer = None
        if due is not None:
            self._timer_s = due
            self._timer = self._loop.call_at(due, self._look)

    def _look(self) -> None:
        """Asks for the messages that are due."""
        self._timer = None
        again: dict[SegmentConsumer, list[ReceivedEntry]] = {}
        for entry, bits in self._redeliveries.due(self._loop.time()):
            if self._dead_letters is not None and self._dead_letters.takes(entry.redeliveries):
                self._bury(entry, bits)
            else:
                self._redeliveries.asked(entry, bits)
                again.setdefault(entry.owner, []).append(entry)
        for segment, entries in again.items():
            segment.redeliver(entries)
        self._set_timer()

    def _is_wanted(self, entry: ReceivedEntry) -> bool:
        """Whether the application gets an entry that was sent before."""
        if not self._redeliveries.is_wanted(entry):
            return False
        if self._dead_letters is None or not self._dead_letters.takes(entry.redeliveries - 1):
            return True
        # It was not handed back in time: a consumer that crashes because of a message never hands it back.
        self._bury(entry, entry.wanted)
        return False

    def _bury(self, entry: ReceivedEntry, bits: int) -> None:
        assert self._dead_letters is not None
        for message in reversed(entry.messages()):
            if bits & bit_of(message.index):
                self._redeliveries.take_back(entry, bit_of(message.index))
                self._dead_letters.send(message)

    # -- the layout

    def _layout_changed(self) -> None:
        super()._layout_changed()
        if self._watch.is_deleted:
            return
        layout = self._watch.layout
        for number in [n for n in self._segments if n not in layout.segments]:
            self._release(number)
        self._drained &= layout.segments.keys()
        for number, segment in layout.segments.items():
            if number not in self._segments and number not in self._drained:
                self._read(
                    number,
                    str(segment.topic(self._watch.topic)),
                    self._how,
                    ended=self._ended,
                    restarted=self._redeliveries.forget,
                    may_be_gone=self._watch.is_over,
                    is_wanted=self._is_wanted,
                )

    def _ended(self, segment: SegmentConsumer) -> None:
        if self._segments.get(segment.segment) is segment:
            self._drained.add(segment.segment)
            self._release(segment.segment)

    def _release(self, number: SegmentId) -> None:
        self._redeliveries.forget(self._segments[number])
        super()._release(number)

    # -- the end

    async def leave(self) -> None:
        self._is_left = True
        self._stop_timer()
        if self._dead_letters is not None:
            await self._dead_letters.close()
        await super().leave()

    leave.__doc__ = Consumer.leave.__doc__

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def crash(self) -> None:
        self._is_left = True
        self._stop_timer()
        if self._dead_letters is not None:
            self._dead_letters.abort()
        super().crash()
