"""The ends of topics that a client follows on one connection: one answer holds all that have moved.

A reader that plans ahead (Spark's driver) has a consumer on each of many topics and needs the ends of all of them.
Asking for each one would take a request for each. Here the client names a consumer once (`anabranch_follow`), and then
asks with `anabranch_wait_ms`: the answer holds the ends that have moved since they were last sent, at once if there are
any, else as soon as one moves. A new question ends the wait of an earlier one.

An answer has as many ends as can be looked up in a few milliseconds, since the loop is blocked meanwhile. It says if
there are more: the client asks again and gets those, the ones that have waited longest first.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from anabranch.model.position import Position
from anabranch.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from anabranch.broker.dispatch.consumer import AttachedConsumer

# A client that wants to wait longer asks again: its connection may be lost without notice.
WAIT_MS_MAX: Final = 10_000
# The most time to make one answer, and the most ends in it. An end takes some 20 microseconds, and more where a topic
# has many ledgers.
TURN_S: Final = 0.005
ENDS_MAX: Final = 1_000
# How many ends are looked up between two readings of the clock.
AT_ONCE: Final = 16

# The last entry, and whether there are hidden ones behind it.
End = tuple[Position, bool]


class Moved(NamedTuple):
    """The ends to send now, and whether there are more."""

    ends: list[pb.AnabranchEnd]
    has_more: bool


class FollowedEnds:
    """The followed ends of one connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._told: dict[AttachedConsumer, End] = {}
        # One consumer of each subscription: more would only delay its topic's publishers, which notify each one.
        self._of_subscription: dict[object, AttachedConsumer] = {}
        # Consumers whose topic's end may have moved since it was last sent.
        self._moved: dict[AttachedConsumer, None] = {}
        self._waiter: asyncio.Future[None] | None = None
        self._questions = 0

    def __len__(self) -> int:
        return len(self._told)

    @property
    def is_waiting(self) -> bool:
        """Whether the client waits for an end to move."""
        return self._waiter is not None and not self._waiter.done()

    def follow(self, consumer: AttachedConsumer) -> bool:
        """Follows the end of the consumer's topic, which the client is being sent now. The subscription reports moves
        by `has_more`.

        False if another consumer of the same subscription is followed on this connection: that one has the same end."""
        if self._of_subscription.setdefault(consumer.subscription, consumer) is not consumer:
            return False
        self._told[consumer] = _end_of(consumer)
        self._moved.pop(consumer, None)
        return True

    def forget(self, consumer: AttachedConsumer) -> None:
        """The consumer is closed."""
        self._told.pop(consumer, None)
        self._moved.pop(consumer, None)
        if self._of_subscription.get(consumer.subscription) is consumer:
            del self._of_subscription[consumer.subscription]

    def has_more(self, consumer: AttachedConsumer) -> None:
        """Readers of the consumer's topic may see more than before."""
        self._moved[consumer] = None
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def moved(self, wait_ms: int) -> Moved:
        """The ends that have moved since they were last sent; they count as sent now."""
        self._questions += 1
        this = self._questions
        self._wake()
        until = self._loop.time() + min(wait_ms, WAIT_MS_MAX) / 1000
        # If several questions came together, only the last one is answered: answering all would take one long turn.
        await asyncio.sleep(0)
        while self._questions == this:
            found = self._news()
            left_s = until - self._loop.time()
            if found or (left_s <= 0 and not self._moved):
                return Moved(found, bool(self._moved))
            if self._moved:
                # None of the ends just checked has moved.
                await asyncio.sleep(0)
                continue
            waiter = self._waiter = self._loop.create_future()
            timer = self._loop.call_later(left_s, self._wake)
            try:
                await waiter
            finally:
                timer.cancel()
        # A later question came, and its answer holds the ends.
        return Moved([], bool(self._moved))

    def _news(self) -> list[pb.AnabranchEnd]:
        """The moved ends, as many as there is time for."""
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


def _end_of(consumer: AttachedConsumer) -> End:
    log = consumer.subscription.topic_log
    # Both are read at the same moment: a client that sees that a sealed topic hides nothing stops asking.
    return log.last, log.is_hiding


def _told(consumer: AttachedConsumer, end: End) -> pb.AnabranchEnd:
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
