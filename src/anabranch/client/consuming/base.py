"""The common part of stream, queue and checkpoint consumers: an inbox, the segments that fill it, and closing.

`Receiver` is the application's side of an inbox, `Consumer` the topic's.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Self

from anabranch.client.acking.cumulative import Cumulative
from anabranch.client.acking.sender import LostAckTally
from anabranch.client.consuming.inbox import MESSAGES_MAX, Inbox
from anabranch.client.consuming.segment import SegmentConsumer, SubscribeOptions, ValueReading, attached
from anabranch.client.errors import Closed, TopicDeleted, Unsupported
from anabranch.client.message import Message, ReceivedEntry
from anabranch.client.transport.layout_watch import LayoutWatch
from anabranch.client.transport.pool import Connections
from anabranch.client.values import V
from anabranch.model.segments import SegmentId

if TYPE_CHECKING:
    import pyarrow as pa

    from anabranch.client.consuming.arrow_reader import ArrowReader

FLUSH_MAX_S: Final = 30.0
ROWS_MAX: Final = 65_536


@dataclass(frozen=True, slots=True)
class Shared:
    """What the consumers of several topics share, so that their application sees one consumer."""

    inbox: Inbox
    tally: LostAckTally
    cumulative: Cumulative
    failed: Callable[[Exception], None]
    # Called with each consumer before it is opened: it gives messages out before all of its segments are subscribed.
    made: Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Setup:
    """What a client gives to each consumer it makes."""

    connections: Connections
    watch: LayoutWatch
    consumer_name: str
    chance: random.Random
    reading: ValueReading = field(default_factory=ValueReading)
    receive_queue: int = MESSAGES_MAX
    closed: Callable[[Any], None] = lambda _: None
    shared: Shared | None = None


class Receiver(ABC, Generic[V]):
    """Takes messages from an inbox, and knows the segments whose acknowledgements to wait for."""

    def __init__(self, inbox: Inbox, tally: LostAckTally) -> None:
        self._inbox = inbox
        self._tally = tally
        self._lost_told = 0
        self._ready = inbox.ready
        self._arrow: ArrowReader | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @abstractmethod
    async def close(self) -> None:
        """Sends waiting acknowledgements, and leaves at once."""

    @abstractmethod
    def _acking(self) -> Iterable[SegmentConsumer]:
        """The segments whose acknowledgements may not be stored yet."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message[V]:
        try:
            return await self.receive()
        except Closed:
            raise StopAsyncIteration from None

    async def receive(self, timeout_s: float | None = None) -> Message[V]:
        """The next message. Raises TimedOut if no message comes within `timeout_s`; cancelling the call loses no
        message."""
        ready = self._ready
        if ready:
            return ready.pop()
        return await self._inbox.next(timeout_s)

    # -- for other threads

    @property
    def gives_ready(self) -> bool:
        """Whether `take_ready` may be used: false where each message that is given out must be noted."""
        return True

    def take_ready(self) -> Message[V] | None:
        """The next message if one is at hand; None if it has to be received. Any thread may call this."""
        try:
            return self._ready.pop()
        except IndexError:
            return None

    async def receive_ahead(self, timeout_s: float | None = None) -> Message[V]:
        """Like `receive`, and prepares more messages for `take_ready`."""
        if not self.gives_ready:
            return await self.receive(timeout_s)
        message = await self._inbox.next(timeout_s)
        self._inbox.open_ahead()
        return message

    def put_back(self, message: Message) -> None:
        """Makes a message that was received and did not reach the application the next one again."""
        self._ready.append(message)
        self._inbox.wake()

    # -- columns

    async def receive_arrow(self, rows_max: int = ROWS_MAX, timeout_s: float | None = None) -> pa.RecordBatch:
        """The messages at hand, as an Arrow record batch: a row for each, made by compiled kernels.

        Columns: key, value, properties, event_time, publish_time, sequence_id, ledger_id, entry_id, batch_index,
        segment_id, topic. Values are the bytes that were sent. There are at most about `rows_max` rows: producers'
        batches are not cut. Raises TimedOut if no message comes within `timeout_s`; cancelling the call loses no
        message. Acknowledge the batch as a whole.
        """
        batch, entries = await self._arrow_reader().read(rows_max, timeout_s)
        self._given_whole(entries)
        return batch

    # Whether batches of columns are acknowledged, and whether their messages may be needed again.
    _keeps_columns = True
    _holds_columns = False
    # Whether there is one more column: the version of the topic's schema.
    _names_versions = False

    def _arrow_reader(self) -> ArrowReader:
        if self._arrow is None:
            try:
                from anabranch.client.consuming.arrow_reader import ArrowReader
            except ImportError as error:
                raise Unsupported(f"receive_arrow needs {error.name}: pip install anabranch[arrow]") from None
            self._arrow = ArrowReader(
                self._inbox,
                keeps=self._keeps_columns,
                holds=self._holds_columns,
                versions=self._names_versions,
            )
        return self._arrow

    def _ack_columns(self, batch: pa.RecordBatch, cumulative: Cumulative) -> None:
        """Acknowledges everything up to a batch of columns."""
        reader = self._arrow_reader()
        entries = reader.entries_of(batch)
        if entries:
            cumulative.ack_whole(entries)
        reader.settled(batch, and_earlier=True)

    def _given_whole(self, entries: list[ReceivedEntry]) -> None:
        """Called when the application has all messages of those entries."""
        return

    async def flush(self, timeout_s: float = FLUSH_MAX_S) -> bool:
        """True once all acknowledgements so far are stored.

        False if some could not be stored since the last flush, or not in time: their messages are delivered again.
        """
        told, in_time = self._lost_told, True
        with contextlib.suppress(TimeoutError):
            in_time = False
            async with asyncio.timeout(timeout_s):
                for one in self._acking():
                    await one.acks.settled()
            in_time = True
        self._lost_told = max(self._lost_told, self._tally.lost)
        return in_time and self._tally.lost == told


class Consumer(Receiver[V]):
    """Made by a client. Its subclasses decide which segments it reads, and what becomes of a message."""

    def __init__(self, setup: Setup) -> None:
        shared = setup.shared
        if shared is None:
            super().__init__(Inbox(messages_max=setup.receive_queue), LostAckTally())
        else:
            super().__init__(shared.inbox, shared.tally)
        self.consumer_name = setup.consumer_name
        self._fail = self._inbox.fail if shared is None else shared.failed
        self._setup = setup
        self._connections = setup.connections
        self._watch = setup.watch
        self._chance = setup.chance
        self._segments: dict[SegmentId, SegmentConsumer] = {}
        self._leaving: dict[SegmentConsumer, asyncio.Task[None]] = {}
        self._stop_listening = setup.watch.listen(self._layout_changed)
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.consumer_name} of {self.topic}>"

    @property
    def topic(self) -> str:
        return self._watch.shown_topic

    @property
    def attached(self) -> frozenset[SegmentId]:
        """The segments that it is subscribed to by now."""
        return frozenset(number for number, one in self._segments.items() if one.is_attached)

    def _acking(self) -> Iterable[SegmentConsumer]:
        return (*self._segments.values(), *self._leaving)

    # -- segments

    def _layout_changed(self) -> None:
        if self._watch.is_deleted:
            self._fail(TopicDeleted(f"{self.topic} was deleted"))

    def _read(self, number: SegmentId, topic: str, how: SubscribeOptions, **options: Any) -> SegmentConsumer:
        """Starts to read a segment."""
        one = self._segments[number] = SegmentConsumer(
            self._connections,
            number,
            topic,
            self.topic,
            how,
            self._inbox,
            chance=self._chance,
            url=self._watch.url_of(number),
            reading=self._setup.reading,
            tally=self._tally,
            failed=self._fail,
            **options,
        )
        one.open()
        return one

    def _release(self, number: SegmentId) -> None:
        """Stops reading a segment."""
        one = self._segments.pop(number)
        one.stop()
        closing = self._leaving[one] = asyncio.create_task(one.close())  # Awaited by `close`.
        closing.add_done_callback(lambda _: self._leaving.pop(one, None))

    async def open(self) -> None:
        """Returns once it is subscribed to its first segments, or that takes too long."""
        await attached(self._segments.values())

    # -- the end

    def _stop(self) -> None:
        """From here on it starts to read no segment, whatever the controller assigns."""
        self._stop_listening()

    async def leave(self) -> None:
        """Sends waiting acknowledgements and frees the segments. `close` does it too."""
        self._stop()
        for number in list(self._segments):
            self._release(number)
        await self._left()

    async def _left(self) -> None:
        await asyncio.gather(*self._leaving.values())

    async def close(self) -> None:
        """Sends waiting acknowledgements, and leaves at once."""
        if self._closing is None:
            # The caller may be cancelled; closing continues, or its segments would stay attached for ever.
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self.leave()
        if self._setup.shared is None:
            self._inbox.fail(Closed("the consumer is closed: make another"))
        await self._watch.close()
        self._setup.closed(self)

    def crash(self) -> None:
        """Drops every connection of its client without closing it properly, like a dying process."""
        self._stop()
        for one in self._segments.values():
            one.abort()
        self._connections.abort()
