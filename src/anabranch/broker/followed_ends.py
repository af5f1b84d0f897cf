"""The ends of topics that a client follows on one connection: all that have moved are told with one answer.

A reader that plans ahead (Spark's driver) has a consumer on each of many topics and wants to know where all of them
end. Asking for each one would take a request for each. Here it names a consumer once (`anabranch_follow`), and then
asks with `anabranch_wait_ms`: it is told the ends that have moved since they were told, at once if there are any, else
as soon as one moves. A question that is asked while another one waits ends the wait of that one.

An answer has as many ends as can be looked up in a moment, since the loop does nothing else meanwhile. It says if there
are more: whoever asks again is told those, the ones that have waited longest first.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from anabranch.model.position import Position
from anabranch.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from anabranch.broker.consumer import Consumer

# A client that wants to wait longer asks again: its connection may be gone without a word.
WAIT_MS_MAX: Final = 10_000
# What one answer may take to make, and how many ends it has at most. Each takes some 20 microseconds, and more where a
# topic has many ledgers.
TURN_S: Final = 0.005
ENDS_MAX: Final = 1_000
# So many are looked up between two looks at the clock.
AT_ONCE: Final = 16

# The last entry, and whether there are hidden ones behind it.
End = tuple[Position, bool]


class Moved(NamedTuple):
    """What is told at once, and whether there is more to tell."""

    ends: list[pb.AnabranchEnd]
    has_more: bool


class FollowedEnds:
    """Of one connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._told: dict[Consumer, End] = {}
        # One of each: others would only make its topic's publishers wait while they are all noted.
        self._of_subscription: dict[object, Consumer] = {}
        # Those that may have moved since.
        self._moved: dict[Consumer, None] = {}
        self._waiter: asyncio.Future[None] | None = None
        self._questions = 0

    def __len__(self) -> int:
        return len(self._told)

    @property
    def is_waiting(self) -> bool:
        """Whether the client waits for an end to move."""
        return self._waiter is not None and not self._waiter.done()

    def follow(self, consumer: Consumer) -> bool:
        """From here on: the client is being told where its topic ends now. The subscription has to say what follows.

        False if another consumer of the same subscription is followed on this connection: that one has the same end."""
        if self._of_subscription.setdefault(consumer.subscription, consumer) is not consumer:
            return False
        self._told[consumer] = _end_of(consumer)
        self._moved.pop(consumer, None)
        return True

    def forget(self, consumer: Consumer) -> None:
        """It is closed."""
        self._told.pop(consumer, None)
        self._moved.pop(consumer, None)
        if self._of_subscription.get(consumer.subscription) is consumer:
            del self._of_subscription[consumer.subscription]

    def has_more(self, consumer: Consumer) -> None:
        """Readers of its topic may see more than before."""
        self._moved[consumer] = None
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def moved(self, wait_ms: int) -> Moved:
        """Those that have moved since they were told, and are told now."""
        self._questions += 1
        this = self._questions
        self._wake()
        until = self._loop.time() + min(wait_ms, WAIT_MS_MAX) / 1000
        # Of questions that came together only the last one is dealt with: all of them would take one long turn.
        await asyncio.sleep(0)
        while self._questions == this:
            found = self._news()
            left_s = until - self._loop.time()
            if found or (left_s <= 0 and not self._moved):
                return Moved(found, bool(self._moved))
            if self._moved:
                # None of those that were looked at has moved.
                await asyncio.sleep(0)
                continue
            waiter = self._waiter = self._loop.create_future()
            timer = self._loop.call_later(left_s, self._wake)
            try:
                await waiter
            finally:
                timer.cancel()
        # Another question came, and takes what there is.
        return Moved([], bool(self._moved))

    def _news(self) -> list[pb.AnabranchEnd]:
        """Of those that may have moved, as many as there is time for."""
        found: list[pb.AnabranchEnd] = []
        until = self._loop.time() + TURN_S
        while self._moved:
            for consumer in list(islice(self._moved, AT_ONCE)):
                del self._moved[consumer]
                end = _end_of(consumer)
                if self._told.get(consumer, end) != end:
                    self._told[consumer] = end
                    found.append(_told(consumer, end))
            if len(found) >= ENDS_MAX or self._loop.time() >= until:
                break
        return found


def _end_of(consumer: Consumer) -> End:
    log = consumer.subscription.topic_log
    # At the same moment: who is told that a sealed topic hides nothing will ask no more.
    return log.last, log.is_hiding


def _told(consumer: Consumer, end: End) -> pb.AnabranchEnd:
    (ledger, entry), is_hiding = end
    log = consumer.subscription.topic_log
    return pb.AnabranchEnd(
        consumer_id=consumer.id,
        ledger_id=ledger & _ALL_BITS,
        entry_id=entry & _ALL_BITS,
        is_hiding=is_hiding,
        bytes=log.size_bytes,
        entries=log.count(log.first, log.end),
    )


_ALL_BITS: Final = 0xFFFFFFFFFFFFFFFF
