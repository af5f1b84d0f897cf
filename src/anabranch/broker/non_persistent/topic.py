"""Data plane. One open non-persistent topic: a publish is handed to every subscription and answered, all at once.

Its namespace's limits hold here as on any topic. A publish rate slows connections down; a dispatch rate cannot wait, as
nothing does here, and what goes beyond it is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from anabranch.broker.attached import Attached
from anabranch.broker.consumer import Consumer
from anabranch.broker.errors import (
    ConsumerBusyError,
    NotAllowedError,
    NotReadyError,
    SubscriptionNotFoundError,
)
from anabranch.broker.hidden_writes import hidden_as
from anabranch.broker.non_persistent.subscription import NOWHERE, NonPersistentSubscription, Published
from anabranch.broker.pace import Pace
from anabranch.broker.pacing import held
from anabranch.broker.policies import Policies
from anabranch.broker.producer import Producer
from anabranch.broker.publishing import refusal_of, send_error
from anabranch.broker.topic_limits import TopicLimits, limits_of
from anabranch.broker.topic_stats import NEVER_COMPACTED, NEVER_COUNTED, publisher_stats
from anabranch.model.names import TopicName
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.encode import encode_receipts
from anabranch.wire.entry import is_encrypted
from anabranch.wire.frames import Frame

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.session import Session


class NonPersistentTopic:
    """`is_kept` is set for one that was made by an operator: it stays when nobody uses it."""

    def __init__(
        self,
        broker: Broker,
        name: TopicName,
        policies: Policies,
        closed: Callable[[NonPersistentTopic], None],
        *,
        is_kept: bool,
    ) -> None:
        self.broker = broker
        self.name = name
        self.is_kept = is_kept
        self.is_closed = False
        self.attached = Attached(self, None)
        self.subscriptions: dict[str, NonPersistentSubscription] = {}
        self.messages_in = self.bytes_in = self.entries_in = 0
        self.rates_in = (0.0, 0.0)
        self.created_ms = self.used_ms = broker.now_ms()
        self._rates_from = (0, 0)
        self._out_before = (0, 0)
        self._closed = closed
        # Nothing stands between a connection and the publishing path, unless a rate does.
        self.publish: Callable[[Producer, Sequence[Frame]], None] = self._publish
        self._policies = policies
        self._limits = TopicLimits()
        self._pace: Pace | None = None
        self.apply_policies(policies)

    # -- limits

    def apply_policies(self, policies: Policies) -> None:
        """The namespace's, from now on. Those who are more than a new maximum stay."""
        self._policies = policies
        self.limits_changed()

    def limits_changed(self) -> None:
        """The policies, or the configuration behind them."""
        before, limits = self._limits, limits_of(self.broker.config, self._policies)
        self._limits = limits
        now = self.broker.loop.time()
        if limits.publish_rate != before.publish_rate:
            rate = limits.publish_rate
            paced = None if rate is None else held(self._publish, Pace.of(rate, now), self.broker.loop)
            self.publish = paced or self._publish
        if limits.dispatch_rate != before.dispatch_rate:
            self._pace = None if limits.dispatch_rate is None else Pace.of(limits.dispatch_rate, now)
        for subscription in self.subscriptions.values():
            self._limit(subscription)

    def _limit(self, subscription: NonPersistentSubscription) -> None:
        rate = self._limits.subscription_dispatch_rate
        own = [] if rate is None else [Pace.of(rate, self.broker.loop.time())]
        paces = own if self._pace is None else [self._pace, *own]
        subscription.limit(self._limits.consumers_per_subscription_max, paces)

    # -- producers

    @property
    def producers(self) -> Mapping[str, Producer]:
        return self.attached.producers

    @property
    def is_used(self) -> bool:
        """Somebody is attached."""
        return bool(self.producers) or any(one.consumers for one in self.subscriptions.values())

    async def add_producer(self, producer: Producer, request_id: int) -> None:
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

    def last_sequence_id(self, producer: str) -> int:
        """Nothing is known of what was published."""
        return -1

    async def settled_sequence_id(self, producer: str) -> int:
        return self.last_sequence_id(producer)

    def store_epoch(self, done: Callable[[Exception | None], None]) -> None:
        """It lives as long as the topic is open."""
        done(None)

    def close_producer(self, producer: Producer, answered: Callable[[], None]) -> None:
        producer.is_closed = True
        self.attached.remove(producer)
        answered()

    def _publish(self, producer: Producer, sends: Sequence[Frame]) -> None:
        """Takes a run of SENDs of one producer. Their entries are copied before this returns."""
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
        self._count(producer, entries)
        for subscription in list(self.subscriptions.values()):
            subscription.dispatch(entries)

    def _count(self, producer: Producer, entries: Sequence[Published]) -> None:
        messages, size = sum(count for count, _ in entries), sum(len(data) for _, data in entries)
        self.entries_in += len(entries)
        self.messages_in += messages
        self.bytes_in += size
        producer.messages_in += messages
        producer.bytes_in += size

    # -- consumers

    async def subscribe(self, session: Session, request: pb.CommandSubscribe) -> Consumer:
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
        consumer = Consumer.asked_for(request, session, self.name.partition_index, self.broker.now_ms())
        try:
            await self._join(existing, consumer, request)
        except BaseException:
            if not existing.consumers and not existing.is_durable:
                # A reader's, and there is no reader.
                existing.close()
            raise
        return consumer

    async def _join(
        self, subscription: NonPersistentSubscription, consumer: Consumer, request: pb.CommandSubscribe
    ) -> None:
        try:
            subscription.add_consumer(consumer)
        except ConsumerBusyError:
            # It may be of a client that is gone without a word.
            holder = subscription.consumers[0]
            if holder.link is not consumer.link and not await holder.link.is_alive():
                subscription.remove_consumer(holder)
            self._check_limits(request, is_new=False)
            subscription.add_consumer(consumer)

    def _check_limits(self, request: pb.CommandSubscribe, *, is_new: bool) -> None:
        limits, topic = self._limits, str(self.name)
        present = sum(len(one.consumers) for one in self.subscriptions.values())
        limits.check_consumer(topic, present, request.subType)
        if is_new and request.durable:
            durable = sum(one.is_durable for one in self.subscriptions.values())
            # Made by whoever comes, whatever policy says of that: nothing is kept that an operator would have to mind.
            limits.check_new_subscription(topic, request.subscription, durable, is_by_use=False)

    def _subscription(self, request: pb.CommandSubscribe) -> NonPersistentSubscription:
        made = self.subscriptions[request.subscription] = NonPersistentSubscription(
            request.subscription,
            str(self.name),
            loop=self.broker.loop,
            now_ms=self.broker.now_ms,
            ended=self._ended,
            is_durable=request.durable,
            partition=self.name.partition_index,
            has_key_ring=self.broker.config.subscription_key_shared_use_consistent_hashing,
            properties={item.key: item.value for item in request.subscription_properties},
        )
        self._limit(made)
        return made

    def _ended(self, subscription: NonPersistentSubscription) -> None:
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
            messages, size = self._out_before
            self._out_before = messages + subscription.messages_out, size + subscription.bytes_out

    def delete_subscription(self, name: str, *, force: bool = False) -> None:
        subscription = self.subscriptions.get(name)
        if subscription is None:
            raise SubscriptionNotFoundError(f"{self.name} has no subscription {name}")
        if subscription.consumers and not force:
            raise NotAllowedError(f"subscription {name} has active consumers")
        subscription.close()

    # -- its end

    def close(self) -> None:
        """Clients are told; those that come back make it anew."""
        if self.is_closed:
            return
        self.is_closed = True
        self.attached.close_all()
        for subscription in list(self.subscriptions.values()):
            subscription.close()
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
        """Messages and bytes in, messages and bytes out to all subscriptions, since the topic was opened."""
        messages, size = self._out_before
        for one in self.subscriptions.values():
            messages, size = messages + one.messages_out, size + one.bytes_out
        return self.messages_in, self.bytes_in, messages, size

    def stats(self) -> dict[str, Any]:
        """Pulsar's NonPersistentTopicStats JSON."""
        subscriptions = {name: one.stats() for name, one in self.subscriptions.items()}
        rate, throughput = self.rates_in
        messages, size = self._out_before
        return {
            **NEVER_COUNTED,
            "msgRateIn": rate,
            "msgThroughputIn": throughput,
            "msgRateOut": sum(one["msgRateOut"] for one in subscriptions.values()),
            "msgThroughputOut": sum(one["msgThroughputOut"] for one in subscriptions.values()),
            "bytesInCounter": self.bytes_in,
            "msgInCounter": self.messages_in,
            "bytesOutCounter": size + sum(one["bytesOutCounter"] for one in subscriptions.values()),
            "msgOutCounter": messages + sum(one["msgOutCounter"] for one in subscriptions.values()),
            "averageMsgSize": throughput / rate if rate else 0.0,
            "msgDropRate": sum(one["msgDropRate"] for one in subscriptions.values()),
            "storageSize": 0,
            "backlogSize": 0,
            # A publisher's own messages are never dropped before they are handed on.
            "publishers": [{**publisher_stats(one), "msgDropRate": 0.0} for one in self.producers.values()],
            "waitingPublishers": self.attached.waiting,
            "subscriptions": subscriptions,
            "backlogQuotaLimitSize": -1,
            "backlogQuotaLimitTime": -1,
            "oldestBacklogMessageAgeSeconds": -1,
            "earliestMsgPublishTimeInBacklogs": 0,
            "nonContiguousDeletedMessagesRanges": 0,
            "topicCreationTimeStamp": self.created_ms,
            "lastPublishTimeStamp": 0,
            "compaction": NEVER_COMPACTED,
            "topicEpoch": self.attached.epoch,
            "ownerBroker": self.broker.http_url.partition("://")[2],
        }
