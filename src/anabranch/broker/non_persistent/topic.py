"""Data plane. One open non-persistent topic: a publish is handed to every subscription and answered, all at once."""

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
from anabranch.broker.producer import Producer
from anabranch.broker.publishing import refusal_of, send_error
from anabranch.broker.topic_stats import publisher_stats
from anabranch.model.names import TopicName
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.encode import encode_receipts
from anabranch.wire.frames import Frame

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.session import Session


class NonPersistentTopic:
    """`is_kept` is set for one that was made by an operator: it stays when nobody uses it."""

    def __init__(
        self, broker: Broker, name: TopicName, closed: Callable[[NonPersistentTopic], None], *, is_kept: bool
    ) -> None:
        self.broker = broker
        self.name = name
        self.is_kept = is_kept
        self.is_closed = False
        self.attached = Attached(self, None)
        self.subscriptions: dict[str, NonPersistentSubscription] = {}
        self.messages_in = self.bytes_in = self.entries_in = 0
        self.rates_in = (0.0, 0.0)
        self.used_ms = broker.now_ms()
        self._rates_from = (0, 0)
        self._out_before = (0, 0)
        self._closed = closed

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
        if not producer.link.awaits_producer(producer.id):
            raise NotReadyError("the client closed this producer while it was being created")
        producer.topic = self
        self.attached.add(producer, request_id)

    def last_sequence_id(self, producer: str) -> int:
        """Nothing is known of what was published."""
        return -1

    def store_epoch(self, done: Callable[[Exception | None], None]) -> None:
        """It lives as long as the topic is open."""
        done(None)

    def close_producer(self, producer: Producer, answered: Callable[[], None]) -> None:
        producer.is_closed = True
        self.attached.remove(producer)
        answered()

    def publish(self, producer: Producer, sends: Sequence[Frame]) -> None:
        """Takes a run of SENDs of one producer. Their entries are copied before this returns."""
        entries: list[Published] = []
        frames: list[bytes] = []
        receipts: list[tuple[int, int, int, int]] = []
        for send in sends:
            _, _, sequence_id, messages, highest_id, flags, entry = send[:7]
            refusal = refusal_of(flags)
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
        config = self.broker.config
        existing = self.subscriptions.get(request.subscription)
        if existing is None:
            existing = self.subscriptions[request.subscription] = NonPersistentSubscription(
                request.subscription,
                str(self.name),
                now_ms=self.broker.now_ms,
                ended=self._ended,
                is_durable=request.durable,
                consumers_max=config.max_consumers_per_subscription,
                partition=self.name.partition_index,
                properties={item.key: item.value for item in request.subscription_properties},
            )
        consumer = Consumer.asked_for(request, session, self.name.partition_index, self.broker.now_ms())
        try:
            existing.add_consumer(consumer)
        except ConsumerBusyError:
            # It may be of a client that is gone without a word.
            holder = existing.consumers[0]
            if holder.link is not session and not await holder.link.is_alive():
                existing.remove_consumer(holder)
            existing.add_consumer(consumer)
        return consumer

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
            "replication": {},
            "topicEpoch": self.attached.epoch,
            "ownerBroker": self.broker.service_url.removeprefix("pulsar://"),
        }
