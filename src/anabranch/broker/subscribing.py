"""The subscriptions of a topic: how they are made, how consumers join them, and what is known once they are gone.

What a subscription does with its consumers is in `subscription.py`; here is what needs the topic around it: who may
join, where a new one begins, and which readers of a sealed topic have got to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from anabranch.broker import owed
from anabranch.broker.compaction.topic_compaction import COMPACTION
from anabranch.broker.consumer import EXCLUSIVE, FAILOVER, Consumer
from anabranch.broker.cursor import Cursor
from anabranch.broker.dispatch.base import metadata_of
from anabranch.broker.dispatch.selector import check_ranges
from anabranch.broker.errors import (
    ConsumerBusyError,
    NotAllowedError,
    NotReadyError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
)
from anabranch.broker.pace import Pace
from anabranch.broker.ports import LogReader
from anabranch.broker.properties import check_properties
from anabranch.broker.rates import SubscribeRate
from anabranch.broker.scalable.naming import is_segment_consumer
from anabranch.broker.subscription import Subscription, start_position
from anabranch.model.position import Position
from anabranch.model.scalable import InitialPosition, SubscriptionKind
from anabranch.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from anabranch.broker.session import Session
    from anabranch.broker.topic import Topic

# Readers remembered as having finished a sealed topic; beyond it the first ones are forgotten.
_FINISHED_READERS_MAX = 1000
# Consumers of which it is known how often they subscribe; beyond it the first ones are forgotten.
_COMERS_MAX = 1000
# A consumer of a scalable topic that is handed a segment may be here before the last one has heard that it is not its
# own any more. Java's client takes "busy" for an answer and gives up.
HANDOVER_S = 10.0


class Subscribing:
    """The subscribing half of one topic. `all` are its subscriptions by name."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self.all: dict[str, Subscription] = {}
        # What subscriptions that have ended since had been sent: messages and bytes.
        self._out_before = (0, 0)
        self._finished_readers: dict[str, None] = {}
        # Who has subscribed, and how often of late; only where that is limited. Latest last.
        self._comers: dict[tuple[str, str, int], tuple[SubscribeRate, Pace]] = {}

    @property
    def sent(self) -> tuple[int, int]:
        """Messages and bytes sent to all subscriptions since the topic was opened."""
        messages, size = self._out_before
        for subscription in self.all.values():
            messages += subscription.messages_out
            size += subscription.bytes_out
        return messages, size

    def durable(self) -> list[Subscription]:
        """Those that users have made: compaction's own cursor is not owed anything by them."""
        return [one for one in self.all.values() if one.is_durable and one.name != COMPACTION]

    def detach_all(self) -> None:
        """Every consumer is told that it is closed."""
        for subscription in list(self.all.values()):
            subscription.close()

    def make(
        self,
        name: str,
        cursor: Cursor,
        *,
        is_durable: bool = True,
        kind: int = -1,
        properties: dict[str, str] | None = None,
        extra: dict[str, Any] | None = None,
    ) -> Subscription:
        limits = self._topic.limits
        made = Subscription(
            name,
            str(self._topic.name),
            self._topic.log,
            self._topic.log if is_durable else None,
            cursor,
            loop=self._topic.broker.loop,
            now_ms=self._topic.broker.now_ms,
            kind=kind,
            properties=properties,
            extra=extra,
            partition=self._topic.name.partition_index,
            is_sealed=self._topic.has_end,
            ended=self.ended,
            drained=self._moved,
        )
        made.limit(limits.dispatch, limits.consumers_per_subscription_max, self._topic.pacing.of(made))
        return made

    def limits_changed(self) -> None:
        limits = self._topic.limits
        for subscription in self.all.values():
            pace = self._topic.pacing.of(subscription)
            subscription.limit(limits.dispatch, limits.consumers_per_subscription_max, pace)

    def ended(self, subscription: Subscription) -> None:
        if self.all.get(subscription.name) is subscription:
            del self.all[subscription.name]
            messages, size = self._out_before
            self._out_before = messages + subscription.messages_out, size + subscription.bytes_out
            if self._topic.is_sealed and subscription.is_durable:
                self._topic.broker.on_segment_progress(self._topic.name)

    def _moved(self, subscription: Subscription) -> None:
        """On a sealed topic: the subscription has drained it, or was moved."""
        if not subscription.is_durable and subscription.is_drained:
            for consumer in subscription.consumers:
                if not owed.tells_its_end(consumer):
                    self._reader_finished(consumer.name)
        self._topic.broker.on_segment_progress(self._topic.name)

    def _reader_finished(self, consumer: str) -> None:
        self._finished_readers[consumer] = None
        if len(self._finished_readers) > _FINISHED_READERS_MAX:
            del self._finished_readers[next(iter(self._finished_readers))]

    @property
    def finished_readers(self) -> frozenset[str]:
        """The readers, by consumer name, that have acknowledged all of this sealed topic; also those gone since."""
        return frozenset(self._finished_readers)

    async def subscribe(self, session: Session, request: pb.CommandSubscribe) -> Consumer:
        """A consumer on the subscription, which is made first if it does not exist. `consumer_ready` must follow."""
        if self._topic.is_closed:
            raise NotReadyError(f"{self._topic.name} is closing")
        name = request.subscription
        existing = self.all.get(name)
        if existing is not None:
            self._check_durable(existing, request)
        self._check_rate(session, request)
        wanted, record = owed.topic_asked_for(request), self._topic.log.topic_record
        is_other = owed.is_other_topic(record, wanted)
        part_of = await self._topic.broker.part_of(self._topic.name, record) if is_other else ""
        owed.check(self._topic.log, request, part_of)
        log = await self._log_for(request)
        self._check_limits(request, is_new=existing is None)
        first = None
        registration = self._topic.broker.registration
        is_segment = (
            not self._topic.name.is_classic or self._topic.is_sealed
        )  # Sealed classic topics may be segments too.
        if existing is None and request.durable and is_segment and registration is not None:
            first = await registration.register_consumer(self._topic.name, request)
            if self._topic.is_closed:
                raise NotReadyError(f"{self._topic.name} is closing")
            # The topic's controller may have made it meanwhile.
            existing = self.all.get(name)
        topic = self._topic
        consumer = Consumer.asked_for(request, session, topic.name.partition_index, topic.broker.now_ms())
        if existing is None:
            # Nothing is made for somebody who can never join it.
            check_ranges(consumer)
            existing = await self._make_for(request, log, first)
        try:
            await self._join(existing, consumer, request, log)
        except BaseException:
            # A reader's, and there is no reader.
            existing.end_if_unused()
            raise
        return consumer

    async def _make_for(
        self, request: pb.CommandSubscribe, log: LogReader, first: InitialPosition | None
    ) -> Subscription:
        """The subscription that the request names, at the place that it asks for."""
        at = start_position(log, request)
        if first is not None:
            at = self._topic.log.first if first is InitialPosition.EARLIEST else self._topic.log.end
        if request.start_message_rollback_duration_sec:
            since = self._topic.broker.now_ms() - request.start_message_rollback_duration_sec * 1000
            at = await log.find_by_publish_time(since)
            if self._topic.is_closed:
                raise NotReadyError(f"{self._topic.name} is closing")
        properties = {item.key: item.value for item in request.subscription_properties}
        return await self._create(request.subscription, at, properties, request.durable, request.subType, log)

    async def _join(
        self, subscription: Subscription, consumer: Consumer, request: pb.CommandSubscribe, log: LogReader
    ) -> None:
        """Attaches the consumer as the last thing of all: a request that is given up half-way leaves nothing."""
        await subscription.wait_announced()
        await subscription.wait_for_seek()
        subscription.read_from(log)
        if subscription.is_compacted:
            # Its index may have been given back while nobody was known to read with it.
            await self._topic.compaction.open_view()
        if subscription.is_durable and subscription.note_compacted():
            subscription.when_compacted_is_noted(self._topic.stored_in_full())
        await subscription.wait_compacted_noted()
        is_watched = self._topic.has_end and not request.durable and not owed.tells_its_end(consumer)
        is_past_end = is_watched and await self._is_past_end(request)
        # Others may have come while this one was on its way.
        self._check_join(subscription, request)
        try:
            subscription.add_consumer(consumer)
        except ConsumerBusyError:
            await self._replace(subscription, consumer, request)
        if is_past_end:
            self._reader_finished(consumer.name)
            self._topic.broker.on_segment_progress(self._topic.name)

    def _check_join(self, subscription: Subscription, request: pb.CommandSubscribe) -> None:
        if self._topic.is_closed:
            raise NotReadyError(f"{self._topic.name} is closing")
        self._check_durable(subscription, request)
        self._check_consumer(request)

    def _check_durable(self, subscription: Subscription, request: pb.CommandSubscribe) -> None:
        if subscription.is_durable != request.durable:
            raise NotAllowedError(
                f"subscription {subscription.name} exists and is "
                f"{'durable' if subscription.is_durable else 'not durable'}"
            )

    async def _log_for(self, request: pb.CommandSubscribe) -> LogReader:
        """What the consumer is to read: the log, or what compaction has left and the log behind it."""
        if request.subscription == COMPACTION:
            raise NotAllowedError(f"the subscription {COMPACTION} is the broker's own")
        if not request.read_compacted:
            return self._topic.log
        if request.subType not in (EXCLUSIVE, FAILOVER):
            raise NotAllowedError("readCompacted is only possible on Exclusive and Failover subscriptions")
        self._topic.compaction.check_readable(str(self._topic.name))
        return await self._topic.compaction.open_view()

    def _check_rate(self, session: Session, request: pb.CommandSubscribe) -> None:
        """One that comes back again and again is one of the same address, name and id."""
        rate = self._topic.limits.subscribe_rate
        if rate is None:
            return
        now = self._topic.broker.loop.time()
        who = (session.address.rpartition(":")[0], request.consumer_name, request.consumer_id)
        pace = self._comers.pop(who, None)
        if pace is None or pace[0] != rate:
            pace = (rate, Pace(rate.times, 0, rate.seconds, now=now))
        self._comers[who] = pace
        if len(self._comers) > _COMERS_MAX:
            del self._comers[next(iter(self._comers))]
        if pace[1].wait_s(now) > 0:
            raise NotAllowedError("Subscribe limited by subscribe rate limit per consumer.")
        pace[1].spend(1, 0, now)

    def _check_limits(self, request: pb.CommandSubscribe, *, is_new: bool) -> None:
        self._check_consumer(request)
        if is_new and request.durable:
            self._check_new(request.subscription, is_by_use=True)

    def _check_consumer(self, request: pb.CommandSubscribe) -> None:
        present = sum(len(one.consumers) for one in self.all.values())
        self._topic.limits.check_consumer(str(self._topic.name), present, request.subType)

    def _check_new(self, name: str, *, is_by_use: bool) -> None:
        if name == COMPACTION or not self._topic.name.is_classic:
            # The broker's own, and no user's; or one of a scalable topic, whose own limit is looked at when it is
            # registered there.
            return
        present = len(self.durable())
        self._topic.limits.check_new_subscription(str(self._topic.name), name, present, is_by_use=is_by_use)

    async def _replace(
        self, subscription: Subscription, consumer: Consumer, request: pb.CommandSubscribe
    ) -> None:
        """Lets the consumer in once the one in its way is gone; ConsumerBusyError if it stays."""
        # It may be of a client that is gone without a word.
        holder = subscription.consumers[0]
        if holder.link is not consumer.link and not await holder.link.is_alive():
            subscription.remove_consumer(holder)
        elif is_segment_consumer(holder.name) and is_segment_consumer(consumer.name):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HANDOVER_S):
                    while subscription.consumers:
                        await subscription.wait_for_departure()
        self._check_join(subscription, request)
        subscription.add_consumer(consumer)

    async def _is_past_end(self, request: pb.CommandSubscribe) -> bool:
        """Whether a reader comes back to a sealed topic with its last message as the one it has read last.

        It is sent that message again and drops it without a word, so it will never acknowledge it here.
        """
        at, last = request.start_message_id, self._topic.log.last
        if last[0] < 0 or (at.ledgerId, at.entryId) != last:
            return False
        _, entries = await self._topic.log.read(last, 1, 1)
        messages = metadata_of(entries[0][2]).num_messages_in_batch if entries else 0
        return at.batch_index < 0 or at.batch_index >= messages - 1

    async def _create(
        self, name: str, at: Position, properties: dict[str, str], is_durable: bool, kind: int, log: LogReader
    ) -> Subscription:
        # Somebody may have made it while a position was looked up.
        if (existing := self.all.get(name)) is not None:
            await existing.wait_announced()
            return existing
        if not name:
            raise NotAllowedError("a subscription needs a name")
        check_properties(properties.items())
        subscription = self.make(name, Cursor(at), is_durable=is_durable, kind=kind, properties=properties)
        # Before anybody looks at its place, which the log itself may not have any more.
        subscription.read_from(log)
        self.all[name] = subscription
        if is_durable:
            await subscription.announce()
        return subscription

    async def create(
        self,
        name: str,
        position: Position | str,
        properties: dict[str, str],
        *,
        must_be_new: bool = False,
        is_limited: bool = True,
    ) -> Subscription:
        """A durable subscription at "earliest", "latest" or a position; an existing one stays where it is."""
        if (existing := self.all.get(name)) is not None:
            if must_be_new:
                raise SubscriptionBusyError(f"subscription {name} exists already")
            await existing.wait_announced()
            return existing
        if is_limited:
            self._check_new(name, is_by_use=False)
        if isinstance(position, str):
            at = self._topic.log.first if position == "earliest" else self._topic.log.end
        else:
            at = self._topic.log.normalise(max(position, self._topic.log.first))
        return await self._create(name, at, properties, True, -1, self._topic.log)

    async def create_initial(self, name: str) -> None:
        """At a producer's wish, so that what it publishes is kept: at the start, unless it exists."""
        registration = self._topic.broker.registration
        if not self._topic.name.is_classic and name not in self.all and registration is not None:
            await registration.register(
                self._topic.name, name, SubscriptionKind.QUEUE, InitialPosition.EARLIEST
            )
        await self.create(name, "earliest", {})

    async def delete(self, name: str, *, force: bool = False) -> None:
        subscription = self.all.get(name)
        if subscription is None:
            raise SubscriptionNotFoundError(f"{self._topic.name} has no subscription {name}")
        await subscription.delete(force=force)
