"""A subscription of a topic: the consumers on its cursor. Joining and leaving, the dispatcher, seeks, deletion.

A non-durable subscription (a reader's) stores nothing and ends with its last consumer. The cursor and the
acknowledgements are the layers below: `cursor_keeper.py`, `acknowledging.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, Protocol

from anabranch.broker.config.listeners import Addresses
from anabranch.broker.dispatch.base import (
    DispatchContext,
    Dispatcher,
    DispatchPacer,
)
from anabranch.broker.dispatch.consumer import AttachedConsumer, ConsumerLink
from anabranch.broker.dispatch.entry_buckets import BucketOwnership, EntryBucketDispatcher, is_by_buckets
from anabranch.broker.dispatch.key_shared import KeySharedDispatcher
from anabranch.broker.dispatch.shared import SharedDispatcher
from anabranch.broker.dispatch.single import SingleActiveDispatcher
from anabranch.broker.errors import (
    BrokerError,
    ConsumerBusyError,
    NotAllowedError,
    NotReadyError,
    SubscriptionBusyError,
)
from anabranch.broker.policy.limits import DispatchLimits
from anabranch.broker.ports import Journal, LogReader
from anabranch.broker.runtime.outcomes import outcome
from anabranch.broker.runtime.weakly import weakly
from anabranch.broker.state import topic_state as state
from anabranch.broker.state.cursor import Cursor, bits_of_words
from anabranch.broker.subscription.acknowledging import IDS_PER_TURN, AckedCursor, signed
from anabranch.model.position import Position
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.extensions import OTHER_TYPE
from anabranch.wire.subscription_types import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, TYPE_NAMES

_log = logging.getLogger(__name__)

# How long a reader's subscription outlives the disconnect that its own seek causes.
_ABSENCE_SECONDS_MAX: Final = 60.0
_FAILED_WAIT_S_MAX: Final = 60.0
# What is in the way of a consumer that does not, or does, share by entry buckets.
_HOW: Final = {False: "share by entry buckets", True: "do not share by entry buckets"}


class NotConnectedError(BrokerError):
    """A consumer may unsubscribe only while it is the one connected consumer."""

    code = pb.MetadataError


class EndFollower(Protocol):
    """Notifies a client over its connection where the topics of its consumers end."""

    def follow(self, consumer: AttachedConsumer) -> bool:
        """Starts notifying; False if another consumer of the same subscription is followed on this connection."""

    def has_more(self, consumer: AttachedConsumer) -> None:
        """Readers of the consumer's topic may see more than before."""

    def forget(self, consumer: AttachedConsumer) -> None: ...


class Subscription(AckedCursor):
    """`journal` is None for a non-durable subscription. `ended` is called when the subscription is gone: deleted, or
    non-durable and without consumers. `drained` is called on a sealed topic whenever everything is acknowledged, and
    again after each seek."""

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
        super().__init__(
            name,
            topic,
            log,
            journal,
            cursor,
            loop=loop,
            now_ms=now_ms,
            kind=kind,
            properties=properties,
            extra=extra,
        )
        self.consumers_max = consumers_max
        # What was sent to consumers that have left.
        self.messages_out_before = 0
        self.bytes_out_before = 0
        self._ended = ended
        self._drained = drained
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
            failed=weakly(self._dispatch_failed),
        )
        # Who owns which entry bucket; set before the first consumer that shares by buckets joins.
        self.ownership: BucketOwnership | None = None
        # The number of consecutive dispatch failures, and the time of the last one.
        self._failures = 0
        self._failed_at = 0.0
        # Set while a seek is being stored.
        self._seeking: asyncio.Future[None] | None = None
        # Ends a reader's subscription that the broker disconnected, unless the reader comes back.
        self._returning: asyncio.TimerHandle | None = None
        # Done when a consumer leaves, if a caller waits for that.
        self._departure: asyncio.Future[None] | None = None
        # The follower that notifies the client of each consumer that wants to know where the topic ends.
        self._followed: dict[AttachedConsumer, EndFollower] = {}
        if is_sealed:
            self._seal()

    # -- properties

    @property
    def active_consumer(self) -> AttachedConsumer | None:
        return self.dispatcher.active if isinstance(self.dispatcher, SingleActiveDispatcher) else None

    @property
    def error(self) -> str | None:
        """Why dispatch has stopped; None while it runs."""
        return None if self.dispatcher is None else self.dispatcher.error

    def update_rates(self, seconds: float) -> None:
        for consumer in self.consumers:
            consumer.update_rates(seconds)

    # -- limits

    def limit(self, limits: DispatchLimits, consumers_max: int, pace: DispatchPacer | None) -> None:
        """Applies the limits from now on; consumers beyond the new maximum stay."""
        self._context.limits = limits
        self._context.pace = pace
        self.consumers_max = consumers_max
        if self.dispatcher is not None:
            for consumer in self.consumers:
                consumer.limit_unacked(self.dispatcher.unacked_max)
            self.dispatcher.limits_changed()

    # -- consumers

    def add_consumer(self, consumer: AttachedConsumer) -> None:
        """Adds the consumer, or raises if it cannot join. `consumer_ready` must follow once the client has its
        answer."""
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
        """Switches to reading from `log`: the topic's own, or the compacted view with the log behind it.

        Both have the same ids. Only without consumers: they may have been sent entries that the other log does not
        have.
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
        self._look_for_drain()

    def _dispatcher_for(self, consumer: AttachedConsumer) -> Dispatcher:
        """The present dispatcher if it suits the consumer; without consumers the type may change freely."""
        present = self.dispatcher
        if present is not None and present.consumers:
            if present.has_failed:
                raise NotReadyError(f"dispatch of subscription {self.name} has failed and starts again soon")
            if self._is_other_way_of_order(present, consumer):
                # One at a time, or several by buckets: the change has to wait until the last holder has left.
                raise ConsumerBusyError(
                    f"ConsumerBusy: {self.name} has consumers that {_HOW[is_by_buckets(consumer)]}; "
                    "they must leave first"
                )
            if present.kind != consumer.kind or (
                isinstance(present, EntryBucketDispatcher) != is_by_buckets(consumer)
            ):
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
        if is_by_buckets(consumer):
            assert self.ownership is not None  # Checked before the consumer joins.
            return EntryBucketDispatcher(self._context, self.ownership)
        if consumer.kind == KEY_SHARED:
            return KeySharedDispatcher(self._context, consumer)
        if consumer.kind in (EXCLUSIVE, FAILOVER):
            return SingleActiveDispatcher(self._context, consumer.kind)
        raise NotAllowedError(f"unknown subscription type {consumer.kind}")

    @staticmethod
    def _is_other_way_of_order(present: Dispatcher, consumer: AttachedConsumer) -> bool:
        """Whether one is Exclusive and the other shares by entry buckets: a consumer of a scalable topic changes from
        one to the other as its group grows and shrinks."""
        if isinstance(present, EntryBucketDispatcher):
            return consumer.kind == EXCLUSIVE
        return present.kind == EXCLUSIVE and is_by_buckets(consumer)

    def in_the_way_of(self, consumer: AttachedConsumer) -> list[AttachedConsumer]:
        """The consumers that must leave before this one can join, for which it may wait."""
        present = self.dispatcher
        if isinstance(present, EntryBucketDispatcher) and is_by_buckets(consumer):
            return [one for one in present.consumers if one.name == consumer.name]
        return list(self.consumers)

    def part_with_strangers_to(self, consumer: AttachedConsumer) -> None:
        """Disconnects sharers that would only keep waiting the one that has the whole segment."""
        if isinstance(self.dispatcher, EntryBucketDispatcher):
            self.disconnect(self.dispatcher.strangers_to(consumer.name))

    def consumer_ready(self, consumer: AttachedConsumer) -> None:
        """Allows sending to the consumer: its client has the answer that it is subscribed."""
        consumer.is_ready = True
        if self.dispatcher is not None and consumer.is_open:
            self.dispatcher.ready(consumer)
            self._check_end()
            if not self.is_durable:
                # A reader that begins at the end of a sealed topic has finished it.
                self._progressed()

    def remove_consumer(self, consumer: AttachedConsumer) -> None:
        """Removes a consumer that its client closed or that went away. Its unacknowledged entries go to the others."""
        if not consumer.is_open or self.dispatcher is None:
            return
        if self.is_sealed and not self.is_durable:
            # The reader's last acknowledgements count while it is still known by name.
            self._flush()
        self._take_out(consumer)
        self.end_if_unused()

    @property
    def messages_out(self) -> int:
        """Messages sent to its consumers since the topic was opened, including those that have left."""
        return self.messages_out_before + sum(consumer.messages_out for consumer in self.consumers)

    @property
    def bytes_out(self) -> int:
        return self.bytes_out_before + sum(consumer.bytes_out for consumer in self.consumers)

    def end_if_unused(self) -> None:
        """Ends a non-durable subscription that no consumer has joined after all, or whose last consumer has left."""
        is_unused = not self.consumers and self._returning is None
        if is_unused and not self.is_durable and not self.is_closed:
            self.close()
            if self._ended is not None:
                self._ended(self)

    def _take_out(self, consumer: AttachedConsumer) -> None:
        assert self.dispatcher is not None
        consumer.is_open = False
        if self.dispatcher.has_failed:
            # The failed dispatcher's state is not reliable; the next one begins at the cursor.
            self.dispatcher.consumers.remove(consumer)
            if not self.dispatcher.consumers:
                self.dispatcher = None
        else:
            # The consumer's last acknowledgements count before its entries go to others.
            self.dispatcher.remove(consumer)
        self._let_go(consumer)

    def _let_go(self, consumer: AttachedConsumer) -> None:
        consumer.is_open = False
        if (departure := self._departure) is not None:
            self._departure = None
            departure.set_result(None)
        if (ends := self._followed.pop(consumer, None)) is not None:
            ends.forget(consumer)
        self.messages_out_before += consumer.messages_out
        self.bytes_out_before += consumer.bytes_out
        self.last_active_ms = self._now_ms()

    def disconnect(
        self, consumers: Sequence[AttachedConsumer] | None = None, moved_to: Addresses | None = None
    ) -> None:
        """Disconnects consumers; their clients will reconnect."""
        for consumer in list(self.consumers if consumers is None else consumers):
            self._take_out(consumer)
            consumer.link.consumer_closed(consumer, moved_to)

    def close(self, moved_to: Addresses | None = None) -> None:
        """Stops for good and closes the consumers that are left. `moved_to`: the broker that serves the topic now, if
        known."""
        if self.is_closed:
            return
        self._flush()
        self._stop_waiting()
        self.disconnect(moved_to=moved_to)
        self.is_closed = True
        if self.dispatcher is not None:
            self.dispatcher.close()

    def flow(self, consumer: AttachedConsumer, permits: int) -> None:
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

    def follow_end(self, consumer: AttachedConsumer, ends: EndFollower) -> bool:
        """Notifies the consumer's client where the topic ends, from now until the consumer has left.

        False if the client is not notified: it has to ask.
        """
        if not consumer.is_open or not ends.follow(consumer):
            return False
        self._followed[consumer] = ends
        return True

    def _dispatch_failed(self, error: Exception) -> None:
        """Restarts dispatch after an unexpected error. The dispatcher's state is not reliable, so its consumers are
        closed and start again at the cursor. Repeated failures are retried at longer and longer intervals.
        """
        now = self._loop.time()
        self._failures = self._failures + 1 if now - self._failed_at < 2 * _FAILED_WAIT_S_MAX else 1
        self._failed_at = now
        wait = 0.0 if self._failures == 1 else min(2.0 ** (self._failures - 2), _FAILED_WAIT_S_MAX)
        _log.error(
            "%s, subscription %s: dispatch failed, closing its consumers and starting again in %s s: %r",
            self.topic,
            self.name,
            wait,
            error,
            exc_info=error if self._failures == 1 else None,
        )
        # Never synchronously: the caller that failed may be about to send something to a consumer.
        self._loop.call_later(wait, self._begin_anew, self.dispatcher)

    def _begin_anew(self, failed: Dispatcher | None) -> None:
        if self.is_closed or failed is None or self.dispatcher is not failed:
            return
        self.disconnect()
        self._wait_for_return()

    def topic_terminated(self) -> None:
        """Marks the topic as sealed. Consumers are notified once everything is acknowledged, and that is stored."""
        self._seal()
        self._check_end()
        self._progressed()

    def _seal(self) -> None:
        super()._seal()
        self._context.all_sent = weakly(self._progressed)

    def _tell_drained(self) -> None:
        super()._tell_drained()
        if self._drained is not None:
            self._drained(self)

    # -- sending again

    def redeliver(
        self, consumer: AttachedConsumer, positions: Iterable[Position] | None, epoch: int | None = None
    ) -> None:
        """Sends those entries again, or all that the consumer has not acknowledged."""
        if self.dispatcher is None or not consumer.is_open:
            return
        consumer.link.work_begun()
        self._turns.add(self._redeliver_in_turns(consumer, positions, epoch))

    def _redeliver_in_turns(
        self, consumer: AttachedConsumer, positions: Iterable[Position] | None, epoch: int | None
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
            while some := list(islice(left, IDS_PER_TURN)):
                dispatcher.redeliver(consumer, some)
                if len(some) < IDS_PER_TURN:
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

    async def seek(self, at: Position, ack_set: Sequence[int] = ()) -> None:
        """Puts the cursor at `at` (inclusive) or the next entry. Consumers are closed and reconnect at the new
        position: the protocol has no other way to distinguish what was sent before the seek from what came after.
        """
        self._check_open()
        log = self.topic_log
        self._flush()
        self._seeks += 1
        wanted = at
        at = log.normalise(max(log.first, min(at, log.end)))
        # The remaining messages of one batch mean nothing for another batch.
        bits = bits_of_words(ack_set) if at == wanted and at < log.end else 0
        self.cursor.reset(at, bits)
        if self._drain is not None:
            self._drain.moved_back()
        if self.dispatcher is not None:
            self.dispatcher.forget()
        # Before a standby takes over, so that it starts at the new position.
        active = self.active_consumer
        self.disconnect([active] if active is not None else None)
        self._wait_for_return()
        seeking = self._seeking = self._acks.write_down(state.reset(self.name, at, bits))
        seeking.add_done_callback(self._seek_stored)
        await outcome(seeking)

    def _seek_stored(self, seeking: asyncio.Future[None]) -> None:
        if self._seeking is seeking:
            self._seeking = None
        if self.is_sealed and seeking.exception() is None:
            self._tell_drained()

    async def wait_for_departure(self) -> None:
        """Returns when a consumer has left."""
        if self._departure is None:
            self._departure = self._loop.create_future()
        await asyncio.shield(self._departure)

    async def wait_for_seek(self) -> None:
        """Returns once no seek is being stored. Consumers must not join before.

        A client drops what it has received when its seek is answered: messages sent to it on its return, before that
        answer, would be lost to it.
        """
        while (seeking := self._seeking) is not None:
            await asyncio.wait((seeking,))

    def _wait_for_return(self) -> None:
        """Ends the subscription of a disconnected reader unless the reader comes back in time."""
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

    async def unsubscribe(self, consumer: AttachedConsumer, *, force: bool = False) -> None:
        """Deletes the subscription at a consumer's request. The topic forgets it through `ended`."""
        if self.dispatcher is None or not consumer.is_open:
            raise NotConnectedError("the consumer is not connected")
        if not force and not self.dispatcher.may_unsubscribe(consumer):
            raise NotConnectedError(
                f"subscription {self.name} has other consumers: they must leave first, or force it"
            )
        # The asking consumer gets an answer, not a close.
        self._take_out(consumer)
        await self.delete(force=True)

    async def delete(self, *, force: bool = False) -> None:
        """Removes the subscription; refused while it has consumers, unless forced."""
        if self.consumers and not force:
            raise SubscriptionBusyError(f"subscription {self.name} has active consumers")
        self.close()
        if self._ended is not None:
            self._ended(self)
        await outcome(self._acks.write_down(state.unsubscribed(self.name)))


def start_position(log: LogReader, request: pb.CommandSubscribe) -> Position:
    """Where a new subscription begins. A reader's start message is included: its client drops the messages it does not
    want."""
    is_earliest = request.initialPosition == pb.CommandSubscribe.Earliest
    if request.durable or not request.HasField("start_message_id"):
        return log.first if is_earliest else log.end
    id = request.start_message_id
    ledger, entry = signed(id.ledgerId), signed(id.entryId)
    if (ledger, entry) >= log.end:
        return log.first if is_earliest and ledger == 2**63 - 1 else log.end
    return log.normalise((ledger, max(entry, 0)))
