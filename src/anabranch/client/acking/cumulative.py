"""Acknowledging everything up to a message: one position for each segment, of one topic or of many.

Only the newest message is kept; it is turned into positions a moment later, so an application may acknowledge every
message at almost no cost.

Of a segment that other consumers read too, exactly the entries that were given out here are acknowledged, one by one: a
position would acknowledge the others' messages.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Hashable
from typing import Protocol

from anabranch.client.acking.core.positions import Vector
from anabranch.client.acking.core.state import Place, Until
from anabranch.client.acking.sender import GROUP_S, AckSender, LostAckTally
from anabranch.client.message import Message, ReceivedEntry


class AckedSegment(Hashable, Protocol):
    """The consumer of one segment, reduced to what acknowledging needs."""

    @property
    def acks(self) -> AckSender: ...

    @property
    def is_shared(self) -> bool: ...


class Cumulative:
    """The cumulative acknowledgements of one inbox. The inbox calls `opened` for each entry, `dropped` for dropped
    entries, and `stop` at the end."""

    def __init__(self, tally: LostAckTally) -> None:
        self._tally = tally
        # A whole entry's place is a plain pair, which is quicker to build.
        self._vector: Vector[AckedSegment, Place | Until] = Vector()
        # The newest message that was acknowledged, until its positions are sent.
        self._up_to: Message | None = None
        self._up_to_number = -1
        # From each of these numbers on, an acknowledgement includes messages that were removed before it.
        self._taken_away: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        # Those who wait until everything of a segment is acknowledged.
        self._waiters: dict[AckedSegment, asyncio.Future[None]] = {}
        self._loop = asyncio.get_running_loop()

    def opened(self, entry: ReceivedEntry) -> None:
        last = entry.number + entry.count - 1
        if not _is_alone(entry):
            self._vector.given(entry.owner, last, (entry.ledger, entry.entry))
            return
        for place in entry.chunks or ((entry.ledger, entry.entry),):
            self._vector.given_alone(entry.owner, last, place)

    def dropped(self, first: Message) -> None:
        """Notes that this message of a segment, and those behind it, left the inbox without reaching the application:
        they are delivered again. Only messages that the application has may be acknowledged with others."""
        entry, index = first.container, max(0, first.index)
        self._vector.take_back(entry.owner, entry.number + index)
        taken = entry.wanted & (1 << index) - 1
        if taken:
            last = taken.bit_length() - 1
            if self._up_to is None and entry.number + last <= self._up_to_number:
                return  # Acknowledged and sent: none of it is delivered again.
            given = self._vector.given_alone if _is_alone(entry) else self._vector.given
            given(entry.owner, entry.number + last, _part(entry, last))

    def ack_whole(self, entries: list[ReceivedEntry]) -> None:
        """Acknowledges everything up to the last of these entries."""
        for entry in {id(entry.owner): entry for entry in entries[:-1]}.values():
            if entry.owner.acking is not entry.life:
                self._tally.lost += 1
        last = entries[-1]
        self.ack(Message(last, last.count - 1 if last.in_batch else -1, 0, 0, 0, last.metadata))

    def ack(self, message: Message) -> None:
        entry = message.container
        index = message.index
        number = entry.number + index if index > 0 else entry.number
        if number <= self._up_to_number:
            return  # Acknowledged before, or told as lost then.
        if entry.owner.acking is not entry.life:
            self._tally.lost += 1
        if self._taken_away and self._taken_away[0] <= number:
            self._tally.lost += 1
            self._taken_away = [other for other in self._taken_away if other > number]
        self._up_to_number = number
        self._up_to = message
        if self._timer is None:
            self._timer = self._loop.call_later(GROUP_S, self.send)

    def send(self) -> None:
        """Turns the newest acknowledged message into positions, and sends them."""
        self.stop()
        message, self._up_to = self._up_to, None
        if message is None:
            return
        entry, index = message.container, message.index
        told = self._vector.up_to(self._up_to_number)
        for segment, place in told:
            segment.acks.add_until(Until(*place))
        for segment, place in (alone := self._vector.alone_up_to(self._up_to_number)):
            _add_alone(segment, Until(*place))
        told += alone
        if entry.owner.acking is entry.life and -1 < index < entry.count - 1:
            part = _part(entry, index)
            if _is_alone(entry):
                _add_alone(entry.owner, part)
            else:
                entry.owner.acks.add_until(part)
            entry.owner.acks.send()
        for segment, _ in told:
            segment.acks.send()
        self._look()

    async def all_of(self, segment: AckedSegment) -> None:
        """Returns once everything that was given out of the segment is acknowledged or forgotten; one caller at a
        time."""
        self.send()
        if self._vector.is_out(segment):
            self._waiters[segment] = self._loop.create_future()
            try:
                await self._waiters[segment]
            finally:
                del self._waiters[segment]

    def _look(self) -> None:
        for segment, waiter in self._waiters.items():
            if not waiter.done() and not self._vector.is_out(segment):
                waiter.set_result(None)

    def restarted(self, segment: AckedSegment) -> None:
        """The segment's messages are delivered again, under new numbers; an old number must not acknowledge past a
        seek."""
        self.send()
        first = self._vector.forget(segment)
        if first is not None:
            insort(self._taken_away, first)
        self._look()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _is_alone(entry: ReceivedEntry) -> bool:
    """Whether acknowledging up to the entry would acknowledge what the application does not have."""
    return entry.is_inside or entry.owner.is_shared


def _part(entry: ReceivedEntry, index: int) -> Until:
    """The place of a message within a batch."""
    return Until(entry.ledger, entry.entry, index, entry.count, entry.wanted)


def _add_alone(segment: AckedSegment, until: Until) -> None:
    """Acknowledges an entry, or some of its messages, and nothing before the entry."""
    segment.acks.add(until[:2], (until.left, until.size))
