"""A checkpoint consumer: reads without a cursor at the broker, from where its application says it was.

Alone it reads every segment, children after all of their ancestors. In a group the controller hands segments out, and
is told which sealed ones were read to their end, so that their children can follow.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from anabranch.client.checkpoint import Checkpoint, Edge, Position, Start, readable, start_of
from anabranch.client.connections import Backoff, Connections
from anabranch.client.controller_session import Assigned, ControllerSession
from anabranch.client.errors import TopicDeleted
from anabranch.client.inbox import Inbox
from anabranch.client.layout_watch import LayoutWatch
from anabranch.client.message import Message
from anabranch.client.segment_consumer import BEFORE_ALL, SegmentConsumer, Subscription, attached
from anabranch.model.segments import SegmentId
from anabranch.wire import pulsar_pb2 as pb


class CheckpointConsumer:
    """Made by `Client.checkpoint_consumer`."""

    def __init__(
        self,
        connections: Connections,
        watch: LayoutWatch,
        consumer_name: str,
        *,
        group: str | None,
        start: Start,
        chance: random.Random,
        closed: Callable[[CheckpointConsumer], None] = lambda _: None,
    ) -> None:
        self._closed = closed
        self.consumer_name = consumer_name
        self._connections = connections
        self._watch = watch
        self._chance = chance
        self._start = start
        self._since = watch.layout.epoch
        self._inbox = Inbox()
        self._readers: dict[SegmentId, SegmentConsumer] = {}
        self._positions: dict[int, Position] = {}
        self._finished: set[SegmentId] = set()
        # Read to their end, but perhaps the application is still busy with their last message.
        self._ending: list[SegmentConsumer] = []
        self._unreported: set[SegmentId] = set()
        self._reporting: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._session: ControllerSession | None = None
        if group is not None:
            self._session = ControllerSession(
                connections,
                watch,
                group,
                consumer_name,
                pb.CHECKPOINT,
                self._assigned,
                self._inbox.fail,
                Backoff(chance),
            )
        self._stop_listening = watch.listen(self._layout_changed)

    async def open(self) -> None:
        if self._session is None:
            self._layout_changed()
        else:
            await self._session.open()
        await attached(self._readers.values())

    async def __aenter__(self) -> CheckpointConsumer:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def topic(self) -> str:
        return str(self._watch.topic)

    @property
    def reading(self) -> frozenset[SegmentId]:
        return frozenset(self._readers)

    # -- messages

    def __aiter__(self) -> CheckpointConsumer:
        return self

    async def __anext__(self) -> Message:
        return await self.receive()

    async def receive(self) -> Message:
        """The next message. Asking for it says that the one before is dealt with."""
        self._finish_ending()
        segment, message = await self._inbox.take(self._finish_ending)
        self._positions[segment.segment] = (message.ledger, message.entry, message.index)
        if message.is_last_of_entry:
            # The broker keeps nothing of it; it tells the reader when it has come to the end.
            segment.tell_ack(message.ledger, message.entry)
        return message

    def checkpoint(self) -> Checkpoint:
        """How far the application has come: everything received is taken to be dealt with."""
        self._finish_ending()
        known = self._watch.layout.segments
        return Checkpoint(dict(self._positions), frozenset(n for n in self._finished if n in known))

    # -- segments

    def _layout_changed(self) -> None:
        if self._watch.is_deleted:
            self._inbox.fail(TopicDeleted(f"{self.topic} was deleted"))
        elif self._session is None:
            layout = self._watch.layout
            for number in [n for n in self._readers if n not in layout.segments]:
                self._release(number)
            while self._read(
                {n: self._watch.topic_of(n) for n in readable(layout, frozenset(self._finished))}
            ):
                pass  # Those that are over make room for their children.

    def _assigned(self, assigned: Assigned) -> None:
        for number in [n for n in self._readers if n not in assigned]:
            self._positions.pop(number, None)
            self._release(number)
        self._read(assigned)

    def _read(self, topics: Assigned) -> bool:
        """Starts to read those that are not being read; whether some turned out to be over."""
        were_over = False
        for number, topic in topics.items():
            if number in self._readers:
                continue
            where = start_of(self._watch.layout, number, self._start, self._since)
            if number in self._finished or where is Edge.OVER:
                were_over |= number not in self._finished
                self._finish(number)
            else:
                self._open(number, topic, where)
        return were_over

    def _open(self, number: SegmentId, topic: str, where: Position | Edge) -> None:
        name = f"{self.consumer_name}-seg-{number}"
        suffix = f"{self._chance.getrandbits(32):08x}"
        how = Subscription(f"reader-{suffix}", pb.CommandSubscribe.Exclusive, name, is_durable=False)
        start: Position | None = BEFORE_ALL if where is Edge.EARLIEST else None
        if not isinstance(where, Edge):
            start = self._positions[number] = where
        reader = self._readers[number] = SegmentConsumer(
            self._connections,
            number,
            topic,
            self.topic,
            how,
            self._inbox,
            chance=self._chance,
            url=self._watch.url_of(number),
            start=start,
            ended=self._ended,
            may_be_gone=self._watch.is_over,
        )
        reader.open()

    def _ended(self, reader: SegmentConsumer) -> None:
        self._ending.append(reader)
        self._inbox.wake()

    def _finish_ending(self) -> None:
        over = [reader for reader in self._ending if reader.queued == 0]
        if not over:
            return
        self._ending = [reader for reader in self._ending if reader.queued]
        for reader in over:
            if self._readers.get(reader.segment) is reader:
                self._release(reader.segment)
                self._finish(reader.segment)
        self._layout_changed()

    def _finish(self, number: SegmentId) -> None:
        self._finished.add(number)
        self._positions.pop(number, None)
        if self._session is not None:
            self._unreported.add(number)
            if self._reporting is None or self._reporting.done():
                self._reporting = asyncio.create_task(self._report(self._session))  # Ended by `close`.

    async def _report(self, session: ControllerSession) -> None:
        """Until the controller has heard of every finished segment."""
        backoff = Backoff(self._chance)
        while self._unreported:
            now = sorted(self._unreported)
            if await session.report_finished(now):
                self._unreported.difference_update(now)
            else:
                await backoff.wait()

    def _release(self, number: SegmentId) -> None:
        closing = asyncio.create_task(self._readers.pop(number).close())
        self._closing.add(closing)  # Awaited by `close`.
        closing.add_done_callback(self._closing.discard)

    # -- the end

    async def close(self) -> None:
        self._stop_listening()
        if self._reporting is not None:
            self._reporting.cancel()
        for number in list(self._readers):
            self._release(number)
        if self._session is not None:
            await self._session.leave()
        await asyncio.gather(*self._closing)
        await self._watch.close()
        self._closed(self)

    def crash(self) -> None:
        """Drops every connection of its client without a word, as a process that dies would."""
        self._stop_listening()
        ends: list[Callable[[], object]] = [one.abort for one in self._readers.values()]
        if self._reporting is not None:
            ends.append(self._reporting.cancel)
        if self._session is not None:
            ends.append(self._session.abort)
        for end in ends:
            end()
        self._connections.abort()
