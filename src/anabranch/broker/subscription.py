"""A subscription of a topic: its cursor, its consumers, and the acknowledgements on their way to the log.

Acknowledgements change the cursor at once and are written down once per turn of the event loop, all of a subscription
in one record; their answers wait until that record is confirmed. A non-durable subscription (a reader's) writes
nothing and goes with its last consumer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from anabranch.broker import state
from anabranch.broker.ack_writer import AckWriter
from anabranch.broker.consumer import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, TYPE_NAMES, Consumer
from anabranch.broker.cursor import Cursor, bits_of_words
from anabranch.broker.dispatch.base import (
    BATCH_MESSAGES_MAX,
    DispatchContext,
    Dispatcher,
    DispatchLimits,
    DispatchPacer,
    metadata_of,
)
from anabranch.broker.dispatch.key_shared import KeySharedDispatcher
from anabranch.broker.dispatch.shared import SharedDispatcher
from anabranch.broker.dispatch.single import SingleActiveDispatcher
from anabranch.broker.drain import Drain
from anabranch.broker.errors import BrokerError, NotAllowedError, NotReadyError, SubscriptionBusyError
from anabranch.broker.followed_ends import FollowedEnds
from anabranch.broker.ports import ConsumerLink, Done, Journal, LogReader
from anabranch.broker.properties import check_properties
from anabranch.broker.subscription_stats import subscription_stats
from anabranch.broker.turns import Turns
from anabranch.model.position import Position
from anabranch.storage.port import Entry
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.extensions import OTHER_TYPE

_log = logging.getLogger(__name__)

# In the state of a durable subscription whose consumers read compacted.
COMPACTED: Final = "compacted"
# How long a reader's subscription outlives the close that its own seek causes.
_ABSENCE_SECONDS_MAX: Final = 60.0
_FAILED_WAIT_S_MAX: Final = 60.0
# How many messages of one command are dealt with in one turn of the event loop: some milliseconds. As many words of ack
# sets cost as much as one message.
_IDS_PER_TURN: Final = 2_000
_IDS_PER_TURN_MIN: Final = 100
_WORDS_PER_ID: Final = 32
# What the bits of partly acknowledged batches of one subscription may take. They are written into each checkpoint.
_PARTS_BYTES_MAX: Final = 32 << 20


class NotConnectedError(BrokerError):
    """Only the one connected consumer may unsubscribe."""

    code = pb.MetadataError


class Subscription:
    """`journal` is None for a non-durable subscription. `ended` is called when the subscription is gone: deleted, or
    non-durable and without consumers. `drained` is called on a sealed topic whenever all is acknowledged, and again
    after each seek."""

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
        kind: int = -1,
        properties: dict[str, str] | None = None,
        extra: dict[str, Any] | None = None,
        partition: int = -1,
        limits: DispatchLimits | None = None,
        consumers_max: int = 0,
        is_sealed: bool = False,
        ended: Callable[[Subscription], None] | None = None,
        drained: Callable[[Subscription], None] | None = None,
    ) -> None:
        self.name = name
        self.topic = topic
        self.topic_log: LogReader = log
        self._plain_log = log
        self.cursor = cursor
        self.kind = kind
        self.properties = properties or {}
        self.consumers_max = consumers_max
        self.dispatcher: Dispatcher | None = None
        self.is_closed = False
        self.is_sealed = is_sealed
        self.created_ms = self.last_active_ms = now_ms()
        # Figures that outlive consumers.
        self.messages_out_before = 0
        self.bytes_out_before = 0
        self.messages_expired = 0
        self.last_expired_ms = 0
        self.last_advanced_ms = 0
        self._extra = extra or {}
        self._loop = loop
        self._now_ms = now_ms
        self._ended = ended
        self._drained = drained
        self._acks = AckWriter(name, journal, loop, self._acks_stored)
        self._drain = self._drain_of(log)
        self._context = DispatchContext(
            topic=topic,
            subscription=name,
            log=log,
            cursor=cursor,
            loop=loop,
            now_ms=now_ms,
            limits=limits or DispatchLimits(),
            partition=partition,
            is_durable=journal is not None,
            failed=self._dispatch_failed,
            all_sent=self._progressed if is_sealed else None,
        )
        # How often dispatch has failed in a row, and when it did last.
        self._failures = 0
        self._failed_at = 0.0
        self._is_flush_due = False
        # Commands that name very many messages.
        self._seeks = 0
        self._turns = Turns(loop, f"{topic}, subscription {name}")
        # Done when the subscription itself, and that it reads compacted, is stored. They are the subscription's own:
        # the connection that asked for it may be gone before.
        self._announced: asyncio.Future[None] | None = None
        self._noted: asyncio.Future[None] | None = None
        # Set while a seek is being stored.
        self._seeking: asyncio.Future[None] | None = None
        # Ends a reader's subscription that was closed from this side, unless the reader comes back.
        self._returning: asyncio.TimerHandle | None = None
        # Done when a consumer goes, if somebody waits for that.
        self._departure: asyncio.Future[None] | None = None
        # Who tells the clients of consumers where the topic ends, for those that want to know.
        self._followed: dict[Consumer, FollowedEnds] = {}

    # -- what it is

    @property
    def is_durable(self) -> bool:
        return self._acks.is_durable

    @property
    def consumers(self) -> list[Consumer]:
        return [] if self.dispatcher is None else self.dispatcher.consumers

    @property
    def type_name(self) -> str:
        return TYPE_NAMES.get(self.kind, "None")

    @property
    def next(self) -> Position:
        """The first entry not acknowledged, or the log's end: everything below may be trimmed."""
        return self.cursor.settle(self.topic_log)

    @property
    def mark_delete(self) -> Position:
        """The protocol's form of the same: the last entry below which, and including which, all is acknowledged."""
        at = self.next
        before = self.topic_log.before(at)
        # With nothing left below, the place just before `at`, as Pulsar answers it.
        return before if before[0] >= 0 else (at[0], at[1] - 1)

    @property
    def active_consumer(self) -> Consumer | None:
        return self.dispatcher.active if isinstance(self.dispatcher, SingleActiveDispatcher) else None

    @property
    def error(self) -> str | None:
        """Why dispatch has stopped, if it has."""
        return None if self.dispatcher is None else self.dispatcher.error

    def backlog(self) -> int:
        """Entries not acknowledged."""
        self.cursor.settle(self.topic_log)
        return self.cursor.backlog(self.topic_log)

    @property
    def is_drained(self) -> bool:
        """Sealed and acknowledged to the end, as far as is known without reading. See `drain.py`.

        An acknowledgement that may yet be lost does not count: its message would come again, and nobody would be there
        to get it, or somebody would have been given what comes after it."""
        return self.is_sealed and self._acks.is_stored and bool(self._drain.verdict)

    async def look_whether_drained(self) -> bool:
        """The same, once the remainder has been looked at."""
        return self.is_sealed and await self._drain.look() and self._acks.is_stored

    def state(self) -> state.SubscriptionState:
        """For the topic's snapshot; durable subscriptions only."""
        return state.SubscriptionState(self.cursor, self.kind, self.properties, self._extra)

    def stats(self) -> dict[str, Any]:
        return subscription_stats(self)

    def update_rates(self, seconds: float) -> None:
        for consumer in self.consumers:
            consumer.update_rates(seconds)

    # -- limits

    def limit(self, limits: DispatchLimits, consumers_max: int, pace: DispatchPacer | None) -> None:
        """From now on; consumers that are more than the new maximum stay."""
        self._context.limits = limits
        self._context.pace = pace
        self.consumers_max = consumers_max
        for consumer in self.consumers:
            consumer.limit_unacked(limits.consumer_unacked_max if self.is_durable else 0)
        if self.dispatcher is not None:
            self.dispatcher.limits_changed()

    # -- consumers

    def add_consumer(self, consumer: Consumer) -> None:
        """Raises if it cannot join. `consumer_ready` must follow once the client has its answer."""
        if self.is_closed:
            raise NotReadyError(f"subscription {self.name} is closing")
        dispatcher = self._dispatcher_for(consumer)
        if self.consumers_max and len(dispatcher.consumers) >= self.consumers_max:
            raise SubscriptionBusyError("Subscription reached max consumers limit")
        dispatcher.add(consumer)
        if dispatcher is not self.dispatcher:
            if self.dispatcher is not None:
                self.dispatcher.close()
            self.dispatcher = dispatcher
        self._stop_waiting()
        self.kind = consumer.kind
        self.last_active_ms = self._now_ms()
        consumer.subscription = self
        consumer.is_open = True

    def read_from(self, log: LogReader) -> None:
        """From now on entries come from there: the log itself, or what compaction has left and the log behind it.

        Both have the same ids. Only without consumers: they may have been sent what the other does not have.
        """
        if log is self.topic_log:
            return
        if self.consumers:
            raise SubscriptionBusyError(
                f"subscription {self.name} has consumers that read "
                f"{'compacted' if log is self._plain_log else 'all messages'}; a consumer cannot join that does not"
            )
        if self.dispatcher is not None:
            self.dispatcher.close()
            self.dispatcher = None
        self.topic_log = self._context.log = log
        self._context.is_compacted = self.is_compacted
        self._drain = self._drain_of(log)

    def _drain_of(self, log: LogReader) -> Drain:
        return Drain(self.cursor, log, self._loop, self._tell_drained, lambda: self._acks.is_stored)

    @property
    def is_compacted(self) -> bool:
        """Whether its consumers read what compaction has left."""
        return self.topic_log is not self._plain_log

    def note_compacted(self) -> bool:
        """Puts that into its state: after a restart its place may be one that only compaction has left. Whether it is
        news."""
        if self.is_compacted == bool(self._extra.get(COMPACTED, False)):
            return False
        self._extra = {**self._extra, COMPACTED: self.is_compacted}
        return True

    def _dispatcher_for(self, consumer: Consumer) -> Dispatcher:
        """The present dispatcher if it suits; without consumers the type may change freely."""
        present = self.dispatcher
        if present is not None and present.consumers:
            if present.has_failed:
                raise NotReadyError(f"dispatch of subscription {self.name} has failed and begins anew soon")
            if present.kind != consumer.kind:
                raise SubscriptionBusyError(
                    f"{OTHER_TYPE}. {self.name} is {TYPE_NAMES[present.kind]} and has consumers; "
                    f"a {TYPE_NAMES[consumer.kind]} consumer cannot join"
                )
            if isinstance(present, KeySharedDispatcher):
                present.check_policy(consumer)
            return present
        is_good = present is not None and present.kind == consumer.kind and not present.has_failed
        if present is not None and is_good and consumer.kind != KEY_SHARED:
            return present
        if consumer.kind == SHARED:
            return SharedDispatcher(self._context)
        if consumer.kind == KEY_SHARED:
            return KeySharedDispatcher(self._context, consumer)
        if consumer.kind in (EXCLUSIVE, FAILOVER):
            return SingleActiveDispatcher(self._context, consumer.kind)
        raise NotAllowedError(f"unknown subscription type {consumer.kind}")

    def consumer_ready(self, consumer: Consumer) -> None:
        """The client has been told that it is subscribed; from here on it may be sent things."""
        consumer.is_ready = True
        if self.dispatcher is not None and consumer.is_open:
            self.dispatcher.ready(consumer)
            self._check_end()
            if not self.is_durable:
                # A reader that begins at the end of a sealed topic has finished it.
                self._progressed()

    def remove_consumer(self, consumer: Consumer) -> None:
        """Its client closed it or went away. What it had not acknowledged goes to the others."""
        if not consumer.is_open or self.dispatcher is None:
            return
        if self.is_sealed and not self.is_durable:
            # What a reader acknowledged last counts while it is still known by name.
            self._flush()
        self._take_out(consumer)
        self.end_if_unused()

    @property
    def messages_out(self) -> int:
        """Sent to its consumers since the topic was opened, those gone included."""
        return self.messages_out_before + sum(consumer.messages_out for consumer in self.consumers)

    @property
    def bytes_out(self) -> int:
        return self.bytes_out_before + sum(consumer.bytes_out for consumer in self.consumers)

    def end_if_unused(self) -> None:
        """Of a non-durable one that nobody has joined in the end, or whose last consumer has left."""
        is_unused = not self.consumers and self._returning is None
        if is_unused and not self.is_durable and not self.is_closed:
            self.close()
            if self._ended is not None:
                self._ended(self)

    def _take_out(self, consumer: Consumer) -> None:
        assert self.dispatcher is not None
        consumer.is_open = False
        if self.dispatcher.has_failed:
            # What it knows is worth nothing; the next one begins at the cursor.
            self.dispatcher.consumers.remove(consumer)
            if not self.dispatcher.consumers:
                self.dispatcher = None
        else:
            # Its last acknowledgements count before its entries are handed on.
            self.dispatcher.remove(consumer)
        self._let_go(consumer)

    def _let_go(self, consumer: Consumer) -> None:
        consumer.is_open = False
        if (departure := self._departure) is not None:
            self._departure = None
            departure.set_result(None)
        if (ends := self._followed.pop(consumer, None)) is not None:
            ends.forget(consumer)
        self.messages_out_before += consumer.messages_out
        self.bytes_out_before += consumer.bytes_out
        self.last_active_ms = self._now_ms()

    def disconnect(self, consumers: Sequence[Consumer] | None = None) -> None:
        """Closes consumers from this side; their clients will come back."""
        for consumer in list(self.consumers if consumers is None else consumers):
            self._take_out(consumer)
            consumer.link.consumer_closed(consumer)

    def close(self) -> None:
        """Stops for good. Consumers still there are told."""
        if self.is_closed:
            return
        self._flush()
        self._stop_waiting()
        self.disconnect()
        self.is_closed = True
        if self.dispatcher is not None:
            self.dispatcher.close()

    def flow(self, consumer: Consumer, permits: int) -> None:
        if self.dispatcher is not None and consumer.is_open:
            consumer.flow(permits, self._now_ms())
            self.dispatcher.room_changed(consumer)

    def link_writable(self, link: ConsumerLink) -> None:
        if self.dispatcher is not None:
            for consumer in list(self.dispatcher.consumers):
                if consumer.link is link:
                    self.dispatcher.room_changed(consumer)

    # -- the log

    def entries_confirmed(self) -> None:
        if self.dispatcher is not None:
            self.dispatcher.wake()
        for consumer, ends in self._followed.items():
            ends.has_more(consumer)

    def follow_end(self, consumer: Consumer, ends: FollowedEnds) -> bool:
        """The consumer's client is told where the topic ends, from here on, until the consumer is gone.

        False if it is not: it has to ask."""
        if not consumer.is_open or not ends.follow(consumer):
            return False
        self._followed[consumer] = ends
        return True

    def _dispatch_failed(self, error: Exception) -> None:
        """Nobody foresaw it, so there is no telling what dispatch still knows: its consumers are closed and begin anew
        at the cursor. What fails there again is tried at longer and longer intervals.
        """
        now = self._loop.time()
        self._failures = self._failures + 1 if now - self._failed_at < 2 * _FAILED_WAIT_S_MAX else 1
        self._failed_at = now
        wait = 0.0 if self._failures == 1 else min(2.0 ** (self._failures - 2), _FAILED_WAIT_S_MAX)
        _log.error(
            "%s, subscription %s: dispatch failed, its consumers begin anew in %s s: %r",
            self.topic,
            self.name,
            wait,
            error,
            exc_info=error if self._failures == 1 else None,
        )
        # Never from within: whoever ran into it may be about to tell a consumer something.
        self._loop.call_later(wait, self._begin_anew, self.dispatcher)

    def _begin_anew(self, failed: Dispatcher | None) -> None:
        if self.is_closed or failed is None or self.dispatcher is not failed:
            return
        self.disconnect()
        self._wait_for_return()

    def topic_terminated(self) -> None:
        """Nothing more will be published. Consumers learn of it once all is acknowledged, and that is stored."""
        self.is_sealed = True
        self._context.all_sent = self._progressed
        self._check_end()
        self._progressed()

    def _progressed(self) -> None:
        """The cursor of a sealed topic may have reached the end: whoever waits for that is told."""
        if self.is_sealed and not self.is_closed:
            dispatcher = self.dispatcher
            self._drain.moved(is_all_sent=dispatcher is not None and dispatcher.read_at >= self.topic_log.end)

    def _tell_drained(self) -> None:
        self._check_end()
        if self._drained is not None:
            self._drained(self)

    def _check_end(self) -> None:
        if self.consumers and self.is_drained:
            for consumer in self.consumers:
                if consumer.is_ready:
                    consumer.send_reached_end()

    # -- acknowledgements

    def ack(self, consumer: Consumer, command: pb.CommandAck, done: Done | None = None) -> None:
        """`done` is called once the acknowledgement is durable, or with the error that prevents it.

        A command that is refused has acknowledged nothing.
        """
        refused = self._why_not_ack(consumer, command)
        if refused is not None:
            if done is not None:
                done(refused)
            return
        ids = command.message_id
        # Most commands name one message and no part of it: there is nothing more to look at, and this path is hot.
        if len(ids) != 1 or ids[0].ack_set:
            parts = [id for id in ids if id.ack_set] if len(ids) <= self._ids_per_turn else None
            if parts is None or any(len(id.ack_set) > _WORDS_PER_ID for id in parts):
                consumer.link.work_begun()
                self._turns.add(self._ack_in_turns(consumer, command, done))
                return
            if parts and (refused := self._why_not_parts(parts)) is not None:
                if done is not None:
                    done(refused)
                return
        now = consumer.last_acked_ms = self._now_ms()
        self.last_active_ms = now
        if command.ack_type == pb.CommandAck.Cumulative:
            self._ack_cumulative(consumer, ids[0])
        else:
            for id in ids:
                self._ack_one(consumer, id)
        if done is not None:
            self._acks.wait(done)
        self._flush_soon()

    @property
    def _ids_per_turn(self) -> int:
        # Whose a message is may have to be asked of every consumer.
        return max(_IDS_PER_TURN_MIN, _IDS_PER_TURN // (1 + len(self.consumers) // 16))

    def _ack_in_turns(self, consumer: Consumer, command: pb.CommandAck, done: Done | None) -> Iterator[None]:
        """The same for a command that would hold up everybody else."""
        refused: BrokerError | None = None
        try:
            cost = 0
            for id in command.message_id:
                if id.ack_set and (refused := self._why_not_parts((id,))) is not None:
                    return
                cost += 1 + len(id.ack_set) // _WORDS_PER_ID
                if cost >= 4 * _IDS_PER_TURN:
                    cost = 0
                    yield
            seeks = self._seeks
            self.last_active_ms = consumer.last_acked_ms = self._now_ms()
            for id in command.message_id:
                # The consumer may have closed: it is told so after this.
                if self.is_closed or seeks != self._seeks:
                    refused = NotReadyError(f"subscription {self.name} was closed or moved meanwhile")
                    return
                if command.ack_type == pb.CommandAck.Cumulative:
                    self._ack_cumulative(consumer, id)
                else:
                    self._ack_one(consumer, id)
                cost += 1 + len(id.ack_set) // _WORDS_PER_ID
                if cost >= self._ids_per_turn:
                    cost = 0
                    self._flush_soon()
                    yield
            if done is not None:
                self._acks.wait(done)
            self._flush_soon()
        finally:
            consumer.link.work_ended()
            if refused is not None and done is not None:
                done(refused)

    def _why_not_ack(self, consumer: Consumer, command: pb.CommandAck) -> BrokerError | None:
        if self.is_closed or self.dispatcher is None or not consumer.is_open:
            return NotReadyError(f"consumer {consumer.id} is closed")
        if command.HasField("txnid_most_bits") and command.HasField("txnid_least_bits"):
            return NotAllowedError("transactions are not supported")
        if command.ack_type == pb.CommandAck.Cumulative:
            if consumer.kind in (SHARED, KEY_SHARED):
                return NotAllowedError(
                    f"cumulative acknowledgement is not possible on a {self.type_name} subscription"
                )
            if len(command.message_id) != 1:
                return NotAllowedError("a cumulative acknowledgement names exactly one message")
        return None

    def _why_not_parts(self, ids: Iterable[pb.MessageIdData]) -> BrokerError | None:
        try:
            for id in ids:
                check_ack_set(id)
        except BrokerError as error:
            return error
        if self.cursor.parts_bytes > _PARTS_BYTES_MAX:
            return NotAllowedError(
                f"subscription {self.name} has too many partly acknowledged batches: acknowledge whole ones first"
            )
        return None

    def _ack_one(self, consumer: Consumer, id: pb.MessageIdData) -> None:
        at = (id.ledgerId, id.entryId)
        # What was sent is known to exist; anything else must, or a hole would stay in the cursor for ever.
        if at not in consumer.pending and (at >= self.topic_log.end or self.topic_log.normalise(at) != at):
            return
        if id.ack_set and (bits := bits_of_words(id.ack_set)):
            self._ack_part(consumer, at, bits, id.batch_size)
            return
        self.cursor.ack(at)
        self._acks.entry(at)
        if self.dispatcher is not None:
            self.dispatcher.acked(consumer, at)

    def _ack_part(self, consumer: Consumer, at: Position, bits: int, size: int) -> None:
        if not size and at in consumer.pending:
            size = consumer.pending[at][0] if at not in self.cursor.batches else 0
        count = self.cursor.ack_batch(at, bits, size)
        self._acks.part(at, bits, size)
        if self.dispatcher is None:
            return
        if self.cursor.is_acked(at):
            self.dispatcher.acked(consumer, at)
        elif count:
            self.dispatcher.acked_part(consumer, at, count)

    def _ack_cumulative(self, consumer: Consumer, id: pb.MessageIdData) -> None:
        # A client in the middle of a batch acknowledges the entry before it, which for a ledger's first entry is -1:
        # all the ledgers before this one, and nothing of it.
        at = (_signed(id.ledgerId), _signed(id.entryId))
        if at >= self.topic_log.end:
            return
        bits = bits_of_words(id.ack_set)
        below = at if bits else (at[0], at[1] + 1)
        self.cursor.ack_below(below)
        self._acks.below(below)
        if bits and self.topic_log.normalise(at) == at:
            self._ack_part(consumer, at, bits, id.batch_size)
        consumer.messages_acked += 1

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Writes down what was acknowledged since the last time, and lets dispatch look at it."""
        self._is_flush_due = False
        self._acks.flush()
        self._cursor_moved()

    def _cursor_moved(self) -> None:
        before = self.cursor.next
        self.cursor.settle(self.topic_log)
        if before is not self.cursor.next:
            self.last_advanced_ms = self._now_ms()
        if self.dispatcher is not None and not self.is_closed:
            self.dispatcher.acks_done()
            if self.is_sealed:
                self._check_end()
                self._progressed()

    def _acks_stored(self) -> None:
        if self.is_sealed and not self.is_closed:
            self._check_end()
            self._progressed()

    def when_stored(self, done: Done) -> None:
        """Calls `done` once every acknowledgement taken so far is durable, or with the error that prevents it."""
        self._turns.after_all(lambda: self._acks.when_written(done))

    # -- sending again

    def redeliver(
        self, consumer: Consumer, positions: Iterable[Position] | None, epoch: int | None = None
    ) -> None:
        """Sends those entries again, or all that the consumer has not acknowledged."""
        if self.dispatcher is None or not consumer.is_open:
            return
        consumer.link.work_begun()
        self._turns.add(self._redeliver_in_turns(consumer, positions, epoch))

    def _redeliver_in_turns(
        self, consumer: Consumer, positions: Iterable[Position] | None, epoch: int | None
    ) -> Iterator[None]:
        dispatcher = self.dispatcher
        try:
            if dispatcher is None or not consumer.is_open:
                return
            if epoch is not None and (consumer.epoch is None or epoch > consumer.epoch):
                consumer.epoch = epoch
            if isinstance(dispatcher, SingleActiveDispatcher):
                # Where order is kept, single messages cannot be sent again.
                dispatcher.redeliver_all(consumer)
                return
            left = iter(list(consumer.pending) if positions is None else positions)
            while some := list(islice(left, _IDS_PER_TURN)):
                dispatcher.redeliver(consumer, some)
                if len(some) < _IDS_PER_TURN:
                    return
                dispatcher.hold()
                yield
                if self.dispatcher is not dispatcher or not consumer.is_open:
                    return
        finally:
            if dispatcher is not None:
                dispatcher.let_go()
            consumer.link.work_ended()

    # -- moving the cursor

    async def announce(self) -> None:
        """Makes a new durable subscription known to the journal; returns once that is confirmed."""
        record = state.subscribed(self.name, self.cursor.next, self.kind, self.properties)
        self._announced = self._acks.write_down(record)
        await self.wait_announced()

    async def wait_announced(self) -> None:
        """Returns once `announce` is done, whoever began it and wherever he is by now: nobody is told of what a crash
        could still take back. Raises why it never will be."""
        if self._announced is not None:
            await asyncio.shield(self._announced)

    def when_compacted_is_noted(self, stored: asyncio.Future[None]) -> None:
        """`note_compacted` is being stored: whoever joins waits for it, too."""
        self._noted = stored

    async def wait_compacted_noted(self) -> None:
        if self._noted is not None:
            await asyncio.shield(self._noted)

    async def seek(self, at: Position, ack_set: Sequence[int] = ()) -> None:
        """Puts the cursor at `at` (inclusive) or the next entry. Consumers are closed and come back to the new place:
        the protocol has no other way to tell what was sent before the seek from what came after.
        """
        log = self.topic_log
        self._flush()
        self._seeks += 1
        wanted = at
        at = log.normalise(max(log.first, min(at, log.end)))
        # What is left of a batch means nothing for another one.
        bits = bits_of_words(ack_set) if at == wanted and at < log.end else 0
        self.cursor.reset(at, bits)
        self._drain.moved_back()
        if self.dispatcher is not None:
            self.dispatcher.forget()
        # Before a standby takes over, so that it starts at the new place.
        active = self.active_consumer
        self.disconnect([active] if active is not None else None)
        self._wait_for_return()
        seeking = self._seeking = self._acks.write_down(state.reset(self.name, at, bits))
        seeking.add_done_callback(self._seek_stored)
        await asyncio.shield(seeking)

    def _seek_stored(self, seeking: asyncio.Future[None]) -> None:
        if self._seeking is seeking:
            self._seeking = None
        if self.is_sealed and seeking.exception() is None:
            self._tell_drained()

    async def wait_for_departure(self) -> None:
        """Returns when a consumer has gone."""
        if self._departure is None:
            self._departure = self._loop.create_future()
        await asyncio.shield(self._departure)

    async def wait_for_seek(self) -> None:
        """Returns once no seek is being stored. Consumers must not join before.

        A client drops what it has received when its seek is answered: what it was sent on its return, before that
        answer, would be lost to it.
        """
        while (seeking := self._seeking) is not None:
            await asyncio.wait((seeking,))

    def _wait_for_return(self) -> None:
        """A reader that was closed from this side comes back, or its subscription ends."""
        if not self.is_durable and not self.consumers:
            self._stop_waiting()
            self._returning = self._loop.call_later(_ABSENCE_SECONDS_MAX, self._not_returned)

    def _not_returned(self) -> None:
        self._returning = None
        self.end_if_unused()

    def _stop_waiting(self) -> None:
        if self._returning is not None:
            self._returning.cancel()
            self._returning = None

    async def seek_to_time(self, publish_time_ms: int) -> None:
        await self.seek(await self.topic_log.find_by_publish_time(publish_time_ms))

    async def unsubscribe(self, consumer: Consumer, *, force: bool = False) -> None:
        """At a consumer's wish. The topic forgets the subscription through `ended`."""
        if self.dispatcher is None or not consumer.is_open:
            raise NotConnectedError("the consumer is not connected")
        if not force and not self.dispatcher.may_unsubscribe(consumer):
            raise NotConnectedError(
                f"subscription {self.name} has other consumers: they must leave first, or force it"
            )
        # The one that asks gets an answer, not a close.
        self._take_out(consumer)
        await self.delete(force=True)

    async def delete(self, *, force: bool = False) -> None:
        """Removes the subscription; refused while it has consumers, unless forced."""
        if self.consumers and not force:
            raise SubscriptionBusyError(f"subscription {self.name} has active consumers")
        self.close()
        if self._ended is not None:
            self._ended(self)
        await asyncio.shield(self._acks.write_down(state.unsubscribed(self.name)))

    async def set_properties(self, properties: dict[str, str]) -> None:
        check_properties(properties.items())
        self.properties = dict(properties)
        await asyncio.shield(self._acks.write_down(state.properties_changed(self.name, self.properties)))

    # -- an operator's wishes

    async def skip_all(self) -> None:
        await self.skip_below(self.topic_log.end)

    async def skip(self, count: int) -> None:
        """Gives up the next `count` entries not acknowledged."""
        await self.skip_below(self._unacked_at(count))

    def _unacked_at(self, index: int) -> Position:
        """The place of the index-th entry not acknowledged, or the end: by arithmetic, however many there are."""
        log, cursor = self.topic_log, self.cursor
        base = log.count(log.first, self.next)
        # With as many acknowledged ones before it as there are at most.
        low, high = base + index, base + index + cursor.held
        while low < high:
            middle = (low + high) // 2
            at = log.position_at(middle)
            if at >= log.end or middle + 1 - base - cursor.held_below((at[0], at[1] + 1)) > index:
                high = middle
            else:
                low = middle + 1
        return log.position_at(low)

    async def skip_below(self, at: Position) -> None:
        """Gives up everything below that place."""
        if self.cursor.ack_below(at):
            self.cursor.settle(self.topic_log)
            if self.dispatcher is not None:
                self.dispatcher.acked_below(self.cursor.next)
            skipped = self._acks.write_down(state.acked_below(self.name, at))
            skipped.add_done_callback(lambda _: self._progressed())
            await asyncio.shield(skipped)

    async def expire_before(self, publish_time_ms: int) -> int:
        """Gives up what was published before that time; returns how many entries that were."""
        if self.backlog() == 0:
            return 0
        return await self.give_up_below(await self.topic_log.find_by_publish_time(publish_time_ms))

    async def give_up_below(self, at: Position) -> int:
        """Gives up what lies before that place; returns how many entries that were."""
        before = self.backlog()
        await self.skip_below(at)
        expired = max(0, before - self.backlog())
        self.messages_expired += expired
        self.last_expired_ms = self._now_ms()
        return expired

    async def peek(self, index: int = 0) -> tuple[Position, Entry] | None:
        """The index-th of the entries not acknowledged, without delivering it; None if there are fewer."""
        at = self._unacked_at(index)
        if at >= self.topic_log.end:
            return None
        ledger, entries = await self.topic_log.read(at, 1, 1)
        return ((ledger, entries[0][0]), entries[0]) if entries else None

    async def earliest_publish_time(self) -> int:
        """When the oldest entry not acknowledged was published; 0 if there is none, or if it does not say."""
        found = await self.peek()
        return metadata_of(found[1][2]).publish_time if found else 0


def start_position(log: LogReader, request: pb.CommandSubscribe) -> Position:
    """Where a new subscription begins. A reader's start message is included: its client drops what it does not want."""
    is_earliest = request.initialPosition == pb.CommandSubscribe.Earliest
    if request.durable or not request.HasField("start_message_id"):
        return log.first if is_earliest else log.end
    id = request.start_message_id
    ledger, entry = _signed(id.ledgerId), _signed(id.entryId)
    if (ledger, entry) >= log.end:
        return log.first if is_earliest and ledger == 2**63 - 1 else log.end
    return log.normalise((ledger, max(entry, 0)))


def check_ack_set(id: pb.MessageIdData) -> None:
    """NotAllowedError if there is an ack set and it cannot be that of a batch."""
    words, size = len(id.ack_set), id.batch_size
    if not words:
        return
    if not 0 <= size <= BATCH_MESSAGES_MAX:
        raise NotAllowedError(f"a batch of {size} messages cannot be acknowledged: no batch has that many")
    if words > ((size or BATCH_MESSAGES_MAX) + 63) // 64:
        raise NotAllowedError(
            f"an ack set of {words} words is too long for a batch of {size or BATCH_MESSAGES_MAX} messages"
        )


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
