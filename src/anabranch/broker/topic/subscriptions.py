"""The subscriptions of a topic: how they are created, how consumers join them, and what remains known after they end.

How a subscription serves its consumers is in `subscription.py`; this module has what needs the topic around it: which
consumers may join, where a new subscription begins, and which readers of a sealed topic have reached its end.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from anabranch.broker.catalog.properties import check_properties
from anabranch.broker.compaction.topic_compaction import COMPACTION
from anabranch.broker.compaction.view import CompactedLog
from anabranch.broker.config.listeners import Addresses
from anabranch.broker.dispatch.base import metadata_of
from anabranch.broker.dispatch.consumer import AttachedConsumer, ConsumerLink
from anabranch.broker.dispatch.entry_buckets import BucketOwnership
from anabranch.broker.dispatch.selector import check_ranges
from anabranch.broker.errors import (
    ConsumerBusyError,
    NotAllowedError,
    NotReadyError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
)
from anabranch.broker.policy.limits import TopicLimits
from anabranch.broker.policy.rate_bucket import Pace
from anabranch.broker.policy.rate_json import SubscribeRate
from anabranch.broker.ports import LogReader
from anabranch.broker.runtime.weakly import weakly
from anabranch.broker.state.cursor import Cursor
from anabranch.broker.subscription import reader_loss
from anabranch.broker.subscription.bucket_sharing import asks_to_share, check_declared, check_topic
from anabranch.broker.subscription.subscription import Subscription, start_position
from anabranch.broker.topic.confirmations import Confirmations
from anabranch.broker.topic.phase import TopicLife
from anabranch.broker.topic.services import TopicServices
from anabranch.broker.topic.throttle import TopicPacing
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.model.scalable import InitialPosition, SubscriptionKind
from anabranch.model.segment_consumers import is_segment_consumer
from anabranch.model.segments import spoken_name
from anabranch.storage.topic.topic_log import TopicLog
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.subscription_types import EXCLUSIVE, FAILOVER

# How many readers are remembered as having finished a sealed topic; beyond that the oldest are forgotten.
_FINISHED_READERS_MAX = 1000
# How many consumers have their subscribe rate tracked; beyond that the oldest are forgotten.
_COMERS_MAX = 1000
# A consumer of a scalable topic that is assigned a segment may arrive before the previous one has been notified that it
# lost the segment, or a share of it before the others have come back as sharers, too. Java's client gives up when the
# answer is "busy", or comes again only after half a minute.
HANDOVER_S = 10.0
STRANGERS_LOOK_S = 0.5


class Subscribing:
    """The subscribing half of one topic. `all` has its subscriptions by name."""

    __slots__ = (
        "__weakref__",
        "_comers",
        "_compacted",
        "_confirmations",
        "_ended",
        "_finished_readers",
        "_life",
        "_limits",
        "_log",
        "_moved",
        "_name",
        "_out_before",
        "_pacing",
        "_services",
        "all",
    )

    def __init__(
        self,
        services: TopicServices,
        name: TopicName,
        topic_log: TopicLog,
        life: TopicLife,
        confirmations: Confirmations,
        compacted: CompactedLog,
        pacing: TopicPacing,
    ) -> None:
        self._services = services
        self._name = name
        self._log = topic_log
        self._life = life
        self._confirmations = confirmations
        self._compacted = compacted
        self._pacing = pacing
        self._limits = TopicLimits()
        # As subscriptions call back: they do not keep this, which holds them.
        self._ended, self._moved = weakly(self.ended), weakly(self.moved)
        self.all: dict[str, Subscription] = {}
        # Messages and bytes that were sent to subscriptions that have ended since.
        self._out_before = (0, 0)
        self._finished_readers: dict[str, None] = {}
        # The consumers that subscribed of late, and their rates; only where that is limited. Latest last.
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
        """The durable subscriptions of users, without compaction's own cursor."""
        return [one for one in self.all.values() if one.is_durable and one.name != COMPACTION]

    def detach_all(self, moved_to: Addresses | None = None) -> None:
        """Closes every consumer and notifies its client. `moved_to`: the broker that serves the topic now, if known."""
        for subscription in list(self.all.values()):
            subscription.close(moved_to)

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
        limits = self._limits
        made = Subscription(
            name,
            str(self._name),
            self._log,
            self._log if is_durable else None,
            cursor,
            loop=self._services.loop,
            now_ms=self._services.now_ms,
            kind=kind,
            properties=properties,
            extra=extra,
            partition=self._name.partition_index,
            is_sealed=self._life.has_end,
            ended=self._ended,
            drained=self._moved,
        )
        made.limit(limits.dispatch, limits.consumers_per_subscription_max, self._pacing.of(made))
        return made

    def limit(self, limits: TopicLimits) -> None:
        """Applies the limits from now on; consumers beyond a new maximum stay."""
        self._limits = limits
        for subscription in self.all.values():
            pace = self._pacing.of(subscription)
            subscription.limit(limits.dispatch, limits.consumers_per_subscription_max, pace)

    def ended(self, subscription: Subscription) -> None:
        if self.all.get(subscription.name) is subscription:
            del self.all[subscription.name]
            messages, size = self._out_before
            self._out_before = messages + subscription.messages_out, size + subscription.bytes_out
            if self._life.is_sealed and subscription.is_durable:
                self._services.segment_progressed(self._name)

    def moved(self, subscription: Subscription) -> None:
        """Called on a sealed topic when the subscription has drained it, or was moved."""
        if not subscription.is_durable and subscription.is_drained:
            for consumer in subscription.consumers:
                if not reader_loss.tells_its_end(consumer):
                    self._reader_finished(consumer.name)
        self._services.segment_progressed(self._name)

    def _reader_finished(self, consumer: str) -> None:
        self._finished_readers[consumer] = None
        if len(self._finished_readers) > _FINISHED_READERS_MAX:
            del self._finished_readers[next(iter(self._finished_readers))]

    @property
    def finished_readers(self) -> frozenset[str]:
        """The readers, by consumer name, that have acknowledged all of this sealed topic; includes those that left
        since."""
        return frozenset(self._finished_readers)

    async def subscribe(self, link: ConsumerLink, request: pb.CommandSubscribe) -> AttachedConsumer:
        """Adds a consumer to the subscription, which is created if it does not exist. `consumer_ready` must follow."""
        if self._life.is_closed:
            raise NotReadyError(f"{self._name} is closing")
        name = request.subscription
        existing = self.all.get(name)
        if existing is not None:
            self._check_durable(existing, request)
        self._check_rate(link, request)
        wanted, record = reader_loss.topic_asked_for(request), self._log.topic_record
        is_other = reader_loss.is_other_topic(record, wanted)
        part_of = await self._services.part_of(self._name, record) if is_other else ""
        reader_loss.check(self._log, request, part_of)
        ownership = await self._ownership_for(request)
        log = await self._log_for(request)
        self._check_limits(request, is_new=existing is None)
        first = None
        registration = self._services.registration
        is_segment = (
            not self._name.is_classic or self._life.is_sealed
        )  # Sealed classic topics may be segments too.
        if existing is None and request.durable and is_segment and registration is not None:
            first = await registration.register_consumer(self._name, request)
            if self._life.is_closed:
                raise NotReadyError(f"{self._name} is closing")
            # The topic's controller may have created the subscription meanwhile.
            existing = self.all.get(name)
        consumer = AttachedConsumer.asked_for(
            request, link, self._name.partition_index, self._services.now_ms()
        )
        if existing is None:
            # Create nothing for a consumer that can never join it.
            check_ranges(consumer)
            existing = await self._make_for(request, log, first)
        if existing.ownership is None:
            existing.ownership = ownership
        try:
            await self._join(existing, consumer, request, log)
        except BaseException:
            # A reader's subscription is deleted if the reader did not join.
            existing.end_if_unused()
            raise
        return consumer

    async def _ownership_for(self, request: pb.CommandSubscribe) -> BucketOwnership | None:
        """Who owns the entry buckets, if the consumer asks for a share of them and may have it."""
        if not asks_to_share(request):
            return None
        check_topic(self._name, request)
        if self._services.bucket_owners is None:
            raise NotAllowedError("scalable topics are turned off here: set scalableTopicEnabled=true")
        found = await self._services.bucket_owners.of(self._name, request.subscription)
        check_declared(request, found.splits)
        return found

    async def _make_for(
        self, request: pb.CommandSubscribe, log: LogReader, first: InitialPosition | None
    ) -> Subscription:
        """Creates the subscription that the request names, at the position that it asks for."""
        at = start_position(log, request)
        if first is not None:
            at = self._log.first if first is InitialPosition.EARLIEST else self._log.end
        if request.start_message_rollback_duration_sec:
            since = self._services.now_ms() - request.start_message_rollback_duration_sec * 1000
            at = await log.find_by_publish_time(since)
            if self._life.is_closed:
                raise NotReadyError(f"{self._name} is closing")
        properties = {item.key: item.value for item in request.subscription_properties}
        return await self._create(request.subscription, at, properties, request.durable, request.subType, log)

    async def _join(
        self,
        subscription: Subscription,
        consumer: AttachedConsumer,
        request: pb.CommandSubscribe,
        log: LogReader,
    ) -> None:
        """Attaches the consumer as the very last step: a request that is cancelled half-way leaves nothing behind."""
        await subscription.wait_announced()
        await subscription.wait_for_seek()
        subscription.read_from(log)
        if subscription.is_compacted:
            # The index may have been released while no known consumer read with it.
            await self._compacted.open()
        if subscription.is_durable and subscription.note_compacted():
            subscription.when_compacted_is_noted(self._confirmations.stored_in_full())
        await subscription.wait_compacted_noted()
        is_watched = self._life.has_end and not request.durable and not reader_loss.tells_its_end(consumer)
        is_past_end = is_watched and await self._is_past_end(request)
        # Other consumers may have joined while this one waited.
        self._check_join(subscription, request)
        try:
            subscription.add_consumer(consumer)
        except ConsumerBusyError:
            await self._replace(subscription, consumer, request)
        if is_past_end:
            self._reader_finished(consumer.name)
            self._services.segment_progressed(self._name)

    def _check_join(self, subscription: Subscription, request: pb.CommandSubscribe) -> None:
        if self._life.is_closed:
            raise NotReadyError(f"{self._name} is closing")
        self._check_durable(subscription, request)
        self._check_consumer(request)

    def _check_durable(self, subscription: Subscription, request: pb.CommandSubscribe) -> None:
        if subscription.is_durable != request.durable:
            raise NotAllowedError(
                f"subscription {subscription.name} exists and is "
                f"{'durable' if subscription.is_durable else 'not durable'}"
            )

    async def _log_for(self, request: pb.CommandSubscribe) -> LogReader:
        """The log for the consumer to read: the topic's own, or the compacted view with the log behind it."""
        if request.subscription == COMPACTION:
            raise NotAllowedError(f"the subscription {COMPACTION} is the broker's own")
        if not request.read_compacted:
            return self._log
        if request.subType not in (EXCLUSIVE, FAILOVER):
            raise NotAllowedError("readCompacted is only possible on Exclusive and Failover subscriptions")
        if not self._name.is_classic:
            raise NotAllowedError(f"{self._name} is a segment of a scalable topic, which is not compacted")
        return await self._compacted.open()

    def _check_rate(self, link: ConsumerLink, request: pb.CommandSubscribe) -> None:
        """Raises if the consumer subscribes too often. Address, name and id identify a consumer that comes back."""
        rate = self._limits.subscribe_rate
        if rate is None:
            return
        now = self._services.loop.time()
        who = (link.address.rpartition(":")[0], request.consumer_name, request.consumer_id)
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
        # Counted only where it matters: thousands of readers may come back at the same moment.
        present = sum(len(one.consumers) for one in self.all.values()) if self._limits.consumers_max else 0
        self._limits.check_consumer(spoken_name(self._name), present, request.subType)

    def _check_new(self, name: str, *, is_by_use: bool) -> None:
        if name == COMPACTION or not self._name.is_classic:
            # The broker's own subscription; or one of a scalable topic, whose limit is checked when the subscription is
            # registered there.
            return
        present = len(self.durable()) if self._limits.subscriptions_max else 0
        self._limits.check_new_subscription(str(self._name), name, present, is_by_use=is_by_use)

    async def _replace(
        self, subscription: Subscription, consumer: AttachedConsumer, request: pb.CommandSubscribe
    ) -> None:
        """Admits the consumer once those in its way have left; raises ConsumerBusyError if one stays."""
        holders = subscription.in_the_way_of(consumer)
        # Another consumer's client may have vanished without closing it.
        others = [holder for holder in holders if holder.link is not consumer.link]
        for holder, is_alive in zip(
            others, await asyncio.gather(*(holder.link.is_alive() for holder in others)), strict=True
        ):
            if not is_alive:
                subscription.remove_consumer(holder)
        if all(is_segment_consumer(one.name) for one in (consumer, *holders)):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HANDOVER_S):
                    while subscription.in_the_way_of(consumer):
                        subscription.part_with_strangers_to(consumer)
                        # The sessions may say later who is none of them.
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(STRANGERS_LOOK_S):
                                await subscription.wait_for_departure()
        self._check_join(subscription, request)
        subscription.add_consumer(consumer)

    async def _is_past_end(self, request: pb.CommandSubscribe) -> bool:
        """Whether a reader comes back to a sealed topic and names its last message as the last one it has read.

        The reader is sent that message again and drops it silently, so it will never acknowledge the message here.
        """
        at, last = request.start_message_id, self._log.last
        if last[0] < 0 or (at.ledgerId, at.entryId) != last:
            return False
        _, entries = await self._log.read(last, 1, 1)
        messages = metadata_of(entries[0][2]).num_messages_in_batch if entries else 0
        return at.batch_index < 0 or at.batch_index >= messages - 1

    async def _create(
        self, name: str, at: Position, properties: dict[str, str], is_durable: bool, kind: int, log: LogReader
    ) -> Subscription:
        # Another request may have created it while the position was looked up.
        if (existing := self.all.get(name)) is not None:
            await existing.wait_announced()
            return existing
        if not name:
            raise NotAllowedError("a subscription needs a name")
        check_properties(properties.items())
        subscription = self.make(name, Cursor(at), is_durable=is_durable, kind=kind, properties=properties)
        # Before any caller reads its position, which the log itself may not have any more.
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
        """Creates a durable subscription at "earliest", "latest" or a position; an existing one keeps its position."""
        if (existing := self.all.get(name)) is not None:
            if must_be_new:
                raise SubscriptionBusyError(f"subscription {name} exists already")
            await existing.wait_announced()
            return existing
        if is_limited:
            self._check_new(name, is_by_use=False)
        if isinstance(position, str):
            at = self._log.first if position == "earliest" else self._log.end
        else:
            at = self._log.normalise(max(position, self._log.first))
        return await self._create(name, at, properties, True, -1, self._log)

    async def create_initial(self, name: str) -> None:
        """Creates the subscription that a producer asks for, so that its messages are kept: at the start, unless it
        exists."""
        registration = self._services.registration
        if not self._name.is_classic and name not in self.all and registration is not None:
            await registration.register(self._name, name, SubscriptionKind.QUEUE, InitialPosition.EARLIEST)
        await self.create(name, "earliest", {})

    async def delete(self, name: str, *, force: bool = False) -> None:
        subscription = self.all.get(name)
        if subscription is None:
            raise SubscriptionNotFoundError(f"{self._name} has no subscription {name}")
        await subscription.delete(force=force)
