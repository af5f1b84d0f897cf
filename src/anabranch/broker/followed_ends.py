"""The ends of topics that a client follows on one connection: all that have moved are told with one answer.

A reader that plans ahead (Spark's driver) has a consumer on each of many topics and wants to know where all of them
end. Asking for each one would take a request for each. Here it names a consumer once (`anabranch_follow`), and then
asks with `anabranch_wait_ms`: it is told the ends that have moved since they were told, at once if there are any, else
as soon as one moves. A question that is asked while another one waits ends the wait of that one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from anabranch.model.position import Position
from anabranch.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from anabranch.broker.consumer import Consumer

# A client that wants to wait longer asks again: its connection may be gone without a word.
WAIT_MS_MAX: Final = 10_000

# The last entry, and whether there are hidden ones behind it.
End = tuple[Position, bool]


class FollowedEnds:
    """Of one connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._told: dict[Consumer, End] = {}
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

    def follow(self, consumer: Consumer) -> None:
        """From here on: the client is being told where its topic ends now. The subscription has to say what follows."""
        self._told[consumer] = _end_of(consumer)
        self._moved.pop(consumer, None)

    def forget(self, consumer: Consumer) -> None:
        """It is closed."""
        self._told.pop(consumer, None)
        self._moved.pop(consumer, None)

    def has_more(self, consumer: Consumer) -> None:
        """Readers of its topic may see more than before."""
        self._moved[consumer] = None
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def moved(self, wait_ms: int) -> list[pb.AnabranchEnd]:
        """Those that have moved since they were told, and are told now."""
        self._questions += 1
        this = self._questions
        self._wake()
        until = self._loop.time() + min(wait_ms, WAIT_MS_MAX) / 1000
        while True:
            found = [_told(consumer, end) for consumer, end in self._news()]
            left_s = until - self._loop.time()
            if found or left_s <= 0:
                return found
            waiter = self._waiter = self._loop.create_future()
            timer = self._loop.call_later(left_s, self._wake)
            try:
                await waiter
            finally:
                timer.cancel()
            if self._questions != this:
                # Another question came, and takes what there is.
                return []

    def _news(self) -> Iterator[tuple[Consumer, End]]:
        moved, self._moved = self._moved, {}
        for consumer in moved:
            end = _end_of(consumer)
            if self._told.get(consumer, end) != end:
                self._told[consumer] = end
                yield consumer, end


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
