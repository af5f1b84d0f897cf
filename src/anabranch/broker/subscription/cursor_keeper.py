"""The cursor of a subscription in its topic's log: what is unacknowledged, what is stored, whether a sealed topic is
drained; and the operations of operators and policies: skipping, expiring, peeking at the next entry.

Acknowledgements of consumers are in `acknowledging.py`, consumers in `subscription.py`. The three are layers of one
object, rather than objects that call each other: each acknowledgement touches the cursor, the dispatcher and the
journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from anabranch.broker.catalog.properties import check_properties
from anabranch.broker.dispatch.base import Dispatcher, metadata_of
from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.errors import NotReadyError
from anabranch.broker.ports import Journal, LogReader
from anabranch.broker.runtime.outcomes import outcome
from anabranch.broker.runtime.turns import Turns
from anabranch.broker.runtime.weakly import weakly
from anabranch.broker.state import topic_state as state
from anabranch.broker.state.cursor import Cursor
from anabranch.broker.subscription.ack_writer import AckWriter
from anabranch.broker.subscription.drain import Drain
from anabranch.model.position import Position
from anabranch.storage.port import Entry
from anabranch.wire.subscription_types import TYPE_NAMES

# An item in the state of a durable subscription whose consumers read compacted.
COMPACTED: Final = "compacted"


class CursorKeeper:
    """`journal` is None for a non-durable subscription."""

    def __init__(
        self,
        name: str,
        topic: str,
        log: LogReader,
        journal: Journal | None,
        cursor: Cursor,
        *,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        kind: int,
        properties: dict[str, str] | None,
        extra: dict[str, Any] | None,
    ) -> None:
        self.name = name
        self.topic = topic
        self.topic_log: LogReader = log
        self._plain_log = log
        self.cursor = cursor
        self.kind = kind
        self.properties = properties or {}
        self.dispatcher: Dispatcher | None = None
        self.is_closed = False
        self.is_sealed = False
        self.created_ms = self.last_active_ms = now_ms()
        self.messages_expired = 0
        self.last_expired_ms = 0
        self.last_advanced_ms = 0
        self._extra = extra or {}
        self._loop = loop
        self._now_ms = now_ms
        self._acks = AckWriter(name, journal, loop)
        # Set where the topic is sealed.
        self._drain: Drain | None = None
        # Done when the subscription itself is stored, and that it reads compacted. The futures belong to the
        # subscription: the connection that asked for it may close before.
        self._announced: asyncio.Future[None] | None = None
        self._noted: asyncio.Future[None] | None = None
        # Commands that name very many messages, and a count of the seeks that moved the cursor under them.
        self._turns = Turns(loop, f"{topic}, subscription {name}")
        self._seeks = 0

    @property
    def is_durable(self) -> bool:
        return self._acks.is_durable

    @property
    def consumers(self) -> list[AttachedConsumer]:
        return [] if self.dispatcher is None else self.dispatcher.consumers

    @property
    def type_name(self) -> str:
        return TYPE_NAMES.get(self.kind, "None")

    @property
    def next(self) -> Position:
        """The first unacknowledged entry, or the log's end: everything below may be trimmed."""
        return self.cursor.settle(self.topic_log)

    @property
    def mark_delete(self) -> Position:
        """The protocol's form of `next`: the last entry up to and including which everything is acknowledged."""
        at = self.next
        before = self.topic_log.before(at)
        # With no entry left below, the position just before `at`, as Pulsar answers it.
        return before if before[0] >= 0 else (at[0], at[1] - 1)

    def backlog(self) -> int:
        """The number of unacknowledged entries."""
        self.cursor.settle(self.topic_log)
        return self.cursor.backlog(self.topic_log)

    def backlog_messages(self) -> int:
        """The number of unacknowledged messages; see `Cursor.backlog_messages`."""
        self.cursor.settle(self.topic_log)
        return self.cursor.backlog_messages(self.topic_log)

    def state(self) -> state.SubscriptionState:
        """The state for the topic's snapshot; durable subscriptions only."""
        return state.SubscriptionState(self.cursor, self.kind, self.properties, self._extra)

    # -- the end

    @property
    def is_drained(self) -> bool:
        """Whether the topic is sealed and acknowledged to the end, as far as is known without reading. See `drain.py`.

        An acknowledgement that may still be lost does not count: its message would come again, when no consumer is left
        to receive it, or when a consumer has already been sent what comes after it.
        """
        return self._drain is not None and self._acks.is_stored and bool(self._drain.verdict)

    async def look_whether_drained(self) -> bool:
        """Like `is_drained`, after reading the remainder."""
        return self._drain is not None and await self._drain.look() and self._acks.is_stored

    def _progressed(self) -> None:
        """Notifies those that wait for a sealed topic to be drained, if the cursor has reached its end."""
        if self._drain is not None and not self.is_closed:
            dispatcher = self.dispatcher
            self._drain.moved(is_all_sent=dispatcher is not None and dispatcher.is_all_sent)

    def _seal(self) -> None:
        """The topic is sealed: from now on acknowledgements may drain it."""
        self.is_sealed = True
        self._acks.stored = weakly(self._acks_stored)
        self._look_for_drain()

    def _look_for_drain(self) -> None:
        if self.is_sealed:
            tell = weakly(self._tell_drained)
            self._drain = Drain(self.cursor, self.topic_log, self._loop, self._acks, tell)

    def _tell_drained(self) -> None:
        self._check_end()

    def _check_end(self) -> None:
        if self.consumers and self.is_drained:
            for consumer in self.consumers:
                if consumer.is_ready:
                    consumer.send_reached_end()

    def _acks_stored(self) -> None:
        if not self.is_closed:
            self._check_end()
            self._progressed()

    # -- storing

    async def announce(self) -> None:
        """Writes a new durable subscription to the journal; returns once that is confirmed."""
        record = state.subscribed(self.name, self.cursor.next, self.kind, self.properties)
        self._announced = self._acks.write_down(record)
        await self.wait_announced()

    async def wait_announced(self) -> None:
        """Returns once `announce` is done, even if its caller has gone: no client is told of a subscription that a
        crash could still undo. Raises the error if it never will be."""
        if self._announced is not None:
            await outcome(self._announced)

    @property
    def is_compacted(self) -> bool:
        """Whether its consumers read the compacted view."""
        return self.topic_log is not self._plain_log

    def note_compacted(self) -> bool:
        """Records that consumers read compacted: after a restart the cursor may be at an entry that only the compacted
        ledger has. True if this changed."""
        if self.is_compacted == bool(self._extra.get(COMPACTED, False)):
            return False
        self._extra = {**self._extra, COMPACTED: self.is_compacted}
        return True

    def when_compacted_is_noted(self, stored: asyncio.Future[None]) -> None:
        """Keeps the future of storing `note_compacted`: consumers that join wait for it, too."""
        self._noted = stored

    async def wait_compacted_noted(self) -> None:
        if self._noted is not None:
            await outcome(self._noted)

    def _check_open(self) -> None:
        """Raises NotReadyError if the subscription has ended. Records name it: after a crash they would count for the
        next subscription of the same name."""
        if self.is_closed:
            raise NotReadyError(f"subscription {self.name} was closed or deleted meanwhile")

    async def set_properties(self, properties: dict[str, str]) -> None:
        check_properties(properties.items())
        self._check_open()
        self.properties = dict(properties)
        await outcome(self._acks.write_down(state.properties_changed(self.name, self.properties)))

    # -- operators' commands

    async def skip_all(self) -> None:
        await self.skip_below(self.topic_log.end)

    async def skip(self, count: int) -> None:
        """Skips the next `count` unacknowledged entries."""
        await self.skip_below(self._unacked_at(count))

    def _unacked_at(self, index: int) -> Position:
        """The position of the index-th unacknowledged entry, or the end: by arithmetic, however many there are."""
        log, cursor = self.topic_log, self.cursor
        base = log.count(log.first, self.next)
        # The first bound is without acknowledged entries before it, the second with all of them.
        low, high = base + index, base + index + cursor.held
        while low < high:
            middle = (low + high) // 2
            at = log.position_at(middle)
            if at >= log.end or middle + 1 - base - cursor.held_below((at[0], at[1] + 1)) > index:
                high = middle
            else:
                low = middle + 1
        return log.position_at(low)

    def unacked_below(self, at: Position) -> int:
        """The number of unacknowledged entries below that position."""
        log = self.topic_log
        if at <= self.next:
            return 0
        return log.count(log.first, at) - log.count(log.first, self.next) - self.cursor.held_below(at)

    async def skip_below(self, at: Position) -> None:
        """Skips everything below that position."""
        self._check_open()
        if self.cursor.ack_below(at):
            self.cursor.settle(self.topic_log)
            if self.dispatcher is not None:
                self.dispatcher.acked_below(self.cursor.next)
            skipped = self._acks.write_down(state.acked_below(self.name, at))
            skipped.add_done_callback(lambda _: self._progressed())
            await outcome(skipped)

    async def expire_before(self, publish_time_ms: int) -> int:
        """Expires the entries published before that time; returns the number of their messages."""
        if self.backlog() == 0:
            return 0
        at = await self.topic_log.find_by_publish_time(publish_time_ms)
        return 0 if self.is_closed else await self.give_up_below(at)

    async def give_up_below(self, at: Position) -> int:
        """Expires the entries below that position; returns the number of their messages."""
        before = self.backlog_messages()
        await self.skip_below(at)
        expired = max(0, before - self.backlog_messages())
        self.messages_expired += expired
        self.last_expired_ms = self._now_ms()
        return expired

    async def peek(self, index: int = 0) -> tuple[Position, Entry] | None:
        """The index-th unacknowledged entry, without delivering it; None if there are fewer."""
        at = self._unacked_at(index)
        if at >= self.topic_log.end:
            return None
        ledger, entries = await self.topic_log.read(at, 1, 1)
        return ((ledger, entries[0][0]), entries[0]) if entries else None

    async def earliest_publish_time(self) -> int:
        """When the oldest unacknowledged entry was published; 0 if there is none, or if its publish time is unknown."""
        found = await self.peek()
        return metadata_of(found[1][2]).publish_time if found else 0
