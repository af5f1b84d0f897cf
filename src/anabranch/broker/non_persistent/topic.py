"""Data plane. One open non-persistent topic: a publish is passed to every subscription and answered at once.

The limits of its namespace apply as to any topic. A publish rate slows connections down; a dispatch rate cannot delay
messages, as nothing waits here, so messages beyond it are dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.config.listeners import Addresses
from anabranch.broker.dispatch.consumer import AttachedConsumer, ConsumerLink
from anabranch.broker.errors import (
    ConsumerBusyError,
    NotAllowedError,
    NotReadyError,
    SubscriptionNotFoundError,
)
from anabranch.broker.hidden_writes.topic import hidden_as
from anabranch.broker.non_persistent.subscription import NOWHERE, NonPersistentSubscription, Published
from anabranch.broker.policy.effective import effective
from anabranch.broker.policy.limits import TopicLimits, limits_of
from anabranch.broker.policy.namespace import NamespacePolicies
from anabranch.broker.policy.rate_bucket import Pace
from anabranch.broker.runtime.weakly import weakly
from anabranch.broker.topic.producer import AttachedProducer, StoredIds
from anabranch.broker.topic.producers import TopicProducers
from anabranch.broker.topic.publishing import refusal_of, send_error
from anabranch.broker.topic.throttle import PublishPace
from anabranch.model.names import TopicName
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.encode import encode_receipts
from anabranch.wire.entry import is_encrypted
from anabranch.wire.frames import Frame


class NonPersistentTopic:
    """`is_kept` is set for a topic that an operator created: it stays when no client uses it. `is_of_brokers`: clients
    may read it, and not publish to it."""

    def __init__(
        self,
        name: TopicName,
        policies: NamespacePolicies,
        closed: Callable[[NonPersistentTopic], None],
        *,
        is_kept: bool,
        is_of_brokers: bool,
        config: Callable[[], BrokerConfig],
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._loop = loop
        self._now_ms = now_ms
        self.name = name
        self.is_kept = is_kept
        self._is_of_brokers = is_of_brokers
        self.is_closed = False
        self.attached = TopicProducers(name, None)
        self.subscriptions: dict[str, NonPersistentSubscription] = {}
        self.messages_in = self.bytes_in = self.entries_in = 0
        self.rates_in = (0.0, 0.0)
        self.created_ms = self.used_ms = now_ms()
        self._rates_from = (0, 0)
        # Messages and bytes that were sent to subscriptions that have ended since.
        self.out_before = (0, 0)
        self._closed = closed
        self._publish_pace: PublishPace | None = None
        self._policies = policies
        self._limits = TopicLimits()
        self._pace: Pace | None = None
        self.apply_policies(policies)

    # -- limits

    def apply_policies(self, policies: NamespacePolicies) -> None:
        """Applies the namespace's policies from now on. Producers and consumers beyond a new maximum stay."""
        self._policies = policies
        self.limits_changed()

    def limits_changed(self) -> None:
        """Applies a change of the policies, or of the configuration behind them."""
        config = self._config()
        before, limits = self._limits, limits_of(config, effective(config, self._policies))
        self._limits = limits
        now = self._loop.time()
        if limits.publish_rate != before.publish_rate:
            rate = limits.publish_rate
            self._publish_pace = None if rate is None else PublishPace(Pace.of(rate, now), self._loop)
        if limits.dispatch_rate != before.dispatch_rate:
            self._pace = None if limits.dispatch_rate is None else Pace.of(limits.dispatch_rate, now)
        for subscription in self.subscriptions.values():
            self._limit(subscription)

    def _limit(self, subscription: NonPersistentSubscription) -> None:
        rate = self._limits.subscription_dispatch_rate
        own = [] if rate is None else [Pace.of(rate, self._loop.time())]
        paces = own if self._pace is None else [self._pace, *own]
        subscription.limit(self._limits.consumers_per_subscription_max, paces)

    # -- producers

    @property
    def producers(self) -> Mapping[str, AttachedProducer]:
        return self.attached.producers

    @property
    def is_used(self) -> bool:
        """Whether a producer or consumer is attached."""
        return bool(self.producers) or any(one.consumers for one in self.subscriptions.values())

    async def add_producer(self, producer: AttachedProducer, request_id: int) -> None:
        if self._is_of_brokers:
            raise NotAllowedError(f"{self.name} is written by brokers only: clients may read it")
        if hidden_as(producer.metadata) is not None:
            raise NotAllowedError(f"{self.name} keeps no messages: hidden writes need a persistent topic")
        await self.attached.make_way(producer)
        if self.is_closed:
            raise NotReadyError(f"{self.name} is closing")
        if not producer.link.awaits_producer(producer):
            raise NotReadyError("the client closed this producer while it was being created")
        present = len(self.producers) - (producer.name in self.producers)
        self._limits.check_producer(str(self.name), present, is_encrypted=producer.is_encrypted)
        producer.topic = self
        self.attached.add(producer, request_id)

    def stored_ids(self, producer: str) -> StoredIds:
        """None: publishes are not remembered."""
        return StoredIds()

    async def settled_ids(self, producer: str) -> StoredIds:
        return self.stored_ids(producer)

    def store_epoch(self, done: Callable[[Exception | None], None]) -> None:
        """Calls back at once: the epoch lasts only while the topic is open."""
        done(None)

    def close_producer(self, producer: AttachedProducer, answered: Callable[[], None]) -> None:
        producer.is_closed = True
        self.attached.remove(producer)
        answered()

    def publish(self, producer: AttachedProducer, sends: Sequence[Frame]) -> None:
        """Accepts consecutive SENDs of one producer. Their entries are copied before this returns."""
        if self._publish_pace is not None:
            self._publish_pace.spend(producer, sends)
        entries: list[Published] = []
        frames: list[bytes] = []
        receipts: list[tuple[int, int, int, int]] = []
        for send in sends:
            _, _, sequence_id, messages, highest_id, flags, entry = send[:7]
            refusal = refusal_of(flags)
            if refusal is None and self._limits.is_encryption_required and not is_encrypted(entry):
                refusal = (pb.MetadataError, "Messages must be encrypted")
            if refusal is not None:
                frames.append(send_error(producer.id, sequence_id, *refusal))
                continue
            entries.append((messages, bytes(entry)))
            receipts.append((sequence_id, highest_id, *NOWHERE))
        if receipts:
            frames.append(encode_receipts(producer.id, receipts))
        producer.link.write(frames)
        messages, size = self.publish_own(entries)
        producer.messages_in += messages
        producer.bytes_in += size

    def publish_own(self, entries: Sequence[Published]) -> tuple[int, int]:
        """Passes entries to every subscription, which no client need have published; how many messages and bytes."""
        messages, size = sum(count for count, _ in entries), sum(len(data) for _, data in entries)
        self.entries_in += len(entries)
        self.messages_in += messages
        self.bytes_in += size
        for subscription in list(self.subscriptions.values()):
            subscription.dispatch(entries)
        return messages, size

    # -- consumers

    async def subscribe(self, link: ConsumerLink, request: pb.CommandSubscribe) -> AttachedConsumer:
        if self.is_closed:
            raise NotReadyError(f"{self.name} is closing")
        if request.read_compacted:
            raise NotAllowedError("readCompacted is only possible on persistent topics")
        if not request.subscription:
            raise NotAllowedError("a subscription needs a name")
        existing = self.subscriptions.get(request.subscription)
        self._check_limits(request, is_new=existing is None)
        if existing is None:
            existing = self._subscription(request)
        consumer = AttachedConsumer.asked_for(request, link, self.name.partition_index, self._now_ms())
        try:
            await self._join(existing, consumer, request)
        except BaseException:
            if not existing.consumers and not existing.is_durable:
                # A reader's subscription is deleted if the reader did not join.
                existing.close()
            raise
        return consumer

    async def _join(
        self,
        subscription: NonPersistentSubscription,
        consumer: AttachedConsumer,
        request: pb.CommandSubscribe,
    ) -> None:
        try:
            subscription.add_consumer(consumer)
        except ConsumerBusyError:
            # The other consumer's client may have vanished without closing it.
            holder = subscription.consumers[0]
            if holder.link is not consumer.link and not await holder.link.is_alive():
                subscription.remove_consumer(holder)
            self._check_limits(request, is_new=False)
            subscription.add_consumer(consumer)

    def _check_limits(self, request: pb.CommandSubscribe, *, is_new: bool) -> None:
        limits, topic = self._limits, str(self.name)
        present = (
            sum(len(one.consumers) for one in self.subscriptions.values()) if limits.consumers_max else 0
        )
        limits.check_consumer(topic, present, request.subType)
        if is_new and request.durable:
            durable = (
                sum(one.is_durable for one in self.subscriptions.values()) if limits.subscriptions_max else 0
            )
            # Any consumer may create it, whatever policy says of auto-creation: nothing is stored that an operator
            # would have to manage.
            limits.check_new_subscription(topic, request.subscription, durable, is_by_use=False)

    def _subscription(self, request: pb.CommandSubscribe) -> NonPersistentSubscription:
        made = self.subscriptions[request.subscription] = NonPersistentSubscription(
            request.subscription,
            str(self.name),
            loop=self._loop,
            now_ms=self._now_ms,
            ended=weakly(self._ended),
            is_durable=request.durable,
            partition=self.name.partition_index,
            has_key_ring=self._config().subscription_key_shared_use_consistent_hashing,
            properties={item.key: item.value for item in request.subscription_properties},
        )
        self._limit(made)
        return made

    def _ended(self, subscription: NonPersistentSubscription) -> None:
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
            messages, size = self.out_before
            self.out_before = messages + subscription.messages_out, size + subscription.bytes_out

    def delete_subscription(self, name: str, *, force: bool = False) -> None:
        subscription = self.subscriptions.get(name)
        if subscription is None:
            raise SubscriptionNotFoundError(f"{self.name} has no subscription {name}")
        if subscription.consumers and not force:
            raise NotAllowedError(f"subscription {name} has active consumers")
        subscription.close()

    # -- closing

    def close(self, moved_to: Addresses | None = None) -> None:
        """Closes all clients; those that reconnect create the topic again, at `moved_to` if that is known."""
        if self.is_closed:
            return
        self.is_closed = True
        self.attached.close_all(moved_to)
        for subscription in list(self.subscriptions.values()):
            subscription.close(moved_to)
        self._closed(self)

    # -- figures

    def update_rates(self, seconds: float) -> None:
        now = (self.messages_in, self.bytes_in)
        self.rates_in = (
            (now[0] - self._rates_from[0]) / seconds,
            (now[1] - self._rates_from[1]) / seconds,
        )
        self._rates_from = now
        for producer in self.producers.values():
            producer.update_rates(seconds)
        for subscription in self.subscriptions.values():
            subscription.update_rates(seconds)

    @property
    def counters(self) -> tuple[int, int, int, int]:
        """Messages and bytes in, then messages and bytes out to all subscriptions, since the topic was opened."""
        messages, size = self.out_before
        for one in self.subscriptions.values():
            messages, size = messages + one.messages_out, size + one.bytes_out
        return self.messages_in, self.bytes_in, messages, size
