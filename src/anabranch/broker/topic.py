"""One open topic: its producers, its subscriptions, its log. The publishing path is in `publishing.py`.

The topic is the log's owner: it is told what is confirmed and what is lost, and it can say its whole state at any
moment. A topic whose log is lost closes; its clients come back and open it again, here or elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from anabranch.broker import state as topic_state
from anabranch.broker.consumer import Consumer
from anabranch.broker.cursor import Cursor
from anabranch.broker.dedup import Deduplication
from anabranch.broker.dispatch.base import DispatchLimits
from anabranch.broker.errors import (
    ConsumerBusyError,
    NotAllowedError,
    NotReadyError,
    ProducerBusyError,
    ProducerFencedError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
    TopicTerminatedError,
)
from anabranch.broker.policies import Policies
from anabranch.broker.producer import Admission, Producer, Verdict
from anabranch.broker.publishing import Publishing
from anabranch.broker.retention import NOTHING, Keep, keep_of, trim_target
from anabranch.broker.subscription import Subscription, start_position
from anabranch.broker.topic_stats import internal_stats, topic_stats
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.storage.port import LogDamagedError, LogError
from anabranch.storage.topic_log import TopicLog
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.entry import parse_metadata

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.session import Session

log = logging.getLogger(__name__)

_REPLAY_ENTRIES = 1000
_REPLAY_BYTES = 4 * 1024 * 1024


class Topic:
    def __init__(
        self, broker: Broker, name: TopicName, topic_log: TopicLog, state: topic_state.TopicState
    ) -> None:
        self.broker = broker
        self.name = name
        self.log = topic_log
        self.producers: dict[str, Producer] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.is_closed = False
        self.admission = Admission(state.extra.get("topic_epoch"))
        self._extra = state.extra
        self._dedup_as_of = state.producers_as_of
        dedup = Deduplication(state.producers)
        is_sealed = state.is_sealed or topic_log.topic_record.sealed_end is not None
        self._publishing = Publishing(topic_log, dedup, is_sealed=is_sealed, on_full=self.close_producers)
        self.publish = self._publishing.publish
        self._closed = broker.loop.create_future()
        self._closings: list[tuple[int, Callable[[], object]]] = []
        self._policies = Policies()
        self._waiting: dict[Producer, int] = {}
        self.rates_in = (0.0, 0.0)
        self._rates_from = (0, 0)

    @staticmethod
    async def open(broker: Broker, name: TopicName, topic_log: TopicLog) -> Topic:
        found = topic_log.recovered
        state = topic_state.fold(found.snapshot, found.deltas) if found else topic_state.TopicState()
        topic = Topic(broker, name, topic_log, state)
        for sub_name, stored in state.subscriptions.items():
            topic.subscriptions[sub_name] = topic._make_subscription(
                sub_name,
                stored.cursor,
                kind=stored.kind,
                properties=stored.properties,
                extra=stored.extra,
            )
        await topic._replay()
        topic_log.start(topic)
        return topic

    async def _replay(self) -> None:
        """Learns the sequence ids of entries written after the state was last stored in full."""
        at = self.log.normalise(self._dedup_as_of)
        while at < self.log.end:
            try:
                ledger, entries = await self.log.read(at, _REPLAY_ENTRIES, _REPLAY_BYTES)
            except LogDamagedError as damage:
                log.error("%s: %s", self.name, damage)
                if damage.next_good is None:
                    break
                at = self.log.normalise((damage.ledger, damage.next_good))
                continue
            for _, _, data in entries:
                self._publishing.dedup.replay(parse_metadata(data))
            at = self.log.normalise((ledger, entries[-1][0] + 1))

    # -- the log's owner

    def entries_confirmed(self, entries_end: int) -> None:
        self._publishing.confirmed(entries_end)
        for subscription in self.subscriptions.values():
            subscription.entries_confirmed()
        while self._closings and self._closings[0][0] <= entries_end:
            self._closings.pop(0)[1]()
        self.broker.progressed()

    def log_lost(self, error: LogError) -> None:
        log.error("%s: the log is lost, closing the topic: %s", self.name, error)
        self._publishing.abandon()
        self._detach_all()
        closings, self._closings = self._closings, []
        for _, then in closings:
            then()
        self._finish_close()
        self.broker.log_lost()

    def encode_state(self) -> bytes:
        extra = dict(self._extra)
        if self.admission.epoch is not None:
            extra["topic_epoch"] = self.admission.epoch
        return topic_state.encode_snapshot(
            {s.name: s.state() for s in self.subscriptions.values() if s.is_durable},
            producers=self._publishing.dedup.pushed,
            producers_as_of=self.log.appended_end,
            is_sealed=self._publishing.is_sealed,
            extra=extra,
        )

    # -- producers

    @property
    def is_sealed(self) -> bool:
        return self._publishing.is_sealed

    @property
    def is_used(self) -> bool:
        """Somebody is attached, or something was published and is kept."""
        return (
            bool(self.producers)
            or self.log.entries > 0
            or any(subscription.consumers for subscription in self.subscriptions.values())
        )

    async def add_producer(self, producer: Producer, request_id: int) -> None:
        """Attaches the producer and answers its request, or raises why not. A waiting one is answered twice."""
        if self._publishing.is_sealed:
            raise _terminated(self.name)
        await self._make_way(producer)
        if self._publishing.is_deduplicating and self._publishing.dedup.is_behind(producer.name):
            # The answer says what is stored. Were more on its way, the client would send that again cut into other
            # batches, and a batch that is a duplicate in part can be neither stored nor dropped.
            await self._confirmed_so_far()
        if self.is_closed:
            raise NotReadyError(f"{self.name} is closing")
        if not producer.link.awaits_producer(producer.id):
            raise NotReadyError("the client closed this producer while it was being created")
        others = [p for p in self.producers.values() if p is not producer]
        verdict = self.admission.judge(producer, others)
        if verdict is Verdict.BUSY:
            raise ProducerBusyError(f"{self.name} has an exclusive producer")
        if verdict is Verdict.FENCED:
            raise ProducerFencedError(f"{self.name} is held by another producer")
        producer.topic = self
        if verdict is Verdict.WAIT:
            self.admission.waiting.append(producer)
            self._waiting[producer] = request_id
            # Known to its connection, so that it can be closed; its publishes do not count before it is admitted.
            producer.is_closed = True
            self._attach(producer)
            self._answer(producer, request_id, is_ready=False)
            return
        if verdict is Verdict.FENCE_OTHERS:
            self.close_producers()
        self._admit(producer, request_id)

    async def _make_way(self, producer: Producer) -> None:
        """One producer per name: the same client's successor replaces it, a dead connection's is dropped."""
        old = self.producers.get(producer.name)
        if old is None or old.is_closed:
            return
        if producer.replaces(old):
            old.is_closed = True
            self.remove_producer(old)
            return
        busy = ProducerBusyError(f"a producer named {producer.name!r} is already connected to {self.name}")
        if old.link is producer.link or await old.link.is_alive():
            raise busy
        if self.producers.get(producer.name) is old:
            old.is_closed = True
            self.remove_producer(old)
        elif producer.name in self.producers:
            raise busy

    def _admit(self, producer: Producer, request_id: int) -> None:
        if producer.wants_all:
            self.admission.hold(producer)
            self.log.store_snapshot()
        producer.is_closed = False
        self.producers[producer.name] = producer
        self._attach(producer)
        self._answer(producer, request_id, is_ready=True)

    def _attach(self, producer: Producer) -> None:
        producer.link.attach_producer(producer)

    def answer_producer(self, producer: Producer, request_id: int) -> None:
        """The same request again: the same answer."""
        self._answer(producer, request_id, is_ready=producer not in self._waiting)

    def _answer(self, producer: Producer, request_id: int, *, is_ready: bool) -> None:
        answer = pb.BaseCommand(type=pb.BaseCommand.PRODUCER_SUCCESS)
        success = answer.producer_success
        success.request_id = request_id
        success.producer_name = producer.name
        success.last_sequence_id = (
            self._publishing.dedup.last_confirmed(producer.name) if self._publishing.is_deduplicating else -1
        )
        success.schema_version = producer.schema_version
        if self.admission.epoch is not None and producer.wants_all:
            success.topic_epoch = self.admission.epoch
        success.producer_ready = is_ready
        producer.link.send(answer)

    def close_producer(self, producer: Producer, answered: Callable[[], None]) -> None:
        """The client is done: answered once everything it sent is."""

        def finish() -> None:
            producer.is_closed = True
            self.remove_producer(producer)
            answered()

        self._when_confirmed(self.log.next_entry, finish)

    def remove_producer(self, producer: Producer) -> None:
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
        self._waiting.pop(producer, None)
        self.admission.release(producer)
        if not self.producers and self.admission.waiting and not self.is_closed:
            successor = self.admission.waiting.pop(0)
            self._admit(successor, self._waiting.pop(successor))

    def close_producers(self) -> None:
        """Every producer is closed by the broker; clients come back and are refused or admitted then."""
        waiting, self.admission.waiting = self.admission.waiting, []
        self._waiting.clear()
        for producer in [*self.producers.values(), *waiting]:
            producer.link.producer_closed(producer)
            self.remove_producer(producer)

    # -- subscriptions

    def _make_subscription(
        self,
        name: str,
        cursor: Cursor,
        *,
        is_durable: bool = True,
        kind: int = -1,
        properties: dict[str, str] | None = None,
        extra: dict[str, Any] | None = None,
    ) -> Subscription:
        config = self.broker.config
        return Subscription(
            name,
            str(self.name),
            self.log,
            self.log if is_durable else None,
            cursor,
            loop=self.broker.loop,
            now_ms=self.broker.now_ms,
            kind=kind,
            properties=properties,
            extra=extra,
            partition=self.name.partition_index,
            limits=DispatchLimits(
                burst_entries=config.dispatcher_max_read_batch_size,
                consumer_unacked_max=config.max_unacked_messages_per_consumer,
                subscription_unacked_max=config.max_unacked_messages_per_subscription,
                failover_wait_seconds=config.active_consumer_failover_delay_time_millis / 1000,
            ),
            consumers_max=config.max_consumers_per_subscription,
            is_sealed=self._publishing.is_sealed,
            ended=self._subscription_ended,
        )

    def _subscription_ended(self, subscription: Subscription) -> None:
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]

    async def subscribe(self, session: Session, request: pb.CommandSubscribe) -> Consumer:
        """A consumer on the subscription, which is made first if it does not exist. `consumer_ready` must follow."""
        if self.is_closed:
            raise NotReadyError(f"{self.name} is closing")
        name = request.subscription
        existing = self.subscriptions.get(name)
        if existing is not None and existing.is_durable != request.durable:
            raise NotAllowedError(
                f"subscription {name} exists and is {'durable' if existing.is_durable else 'not durable'}"
            )
        if existing is None:
            at = start_position(self.log, request)
            if request.start_message_rollback_duration_sec:
                since = self.broker.now_ms() - request.start_message_rollback_duration_sec * 1000
                at = await self.log.find_by_publish_time(since)
            properties = {item.key: item.value for item in request.subscription_properties}
            existing = await self._create(name, at, properties, request.durable, request.subType)
        consumer = Consumer(
            request.consumer_id,
            request.consumer_name or secrets.token_hex(5),
            session,
            kind=request.subType,
            priority=request.priority_level,
            epoch=request.consumer_epoch if request.HasField("consumer_epoch") else None,
            partition=self.name.partition_index,
            metadata={item.key: item.value for item in request.metadata},
            key_shared=request.keySharedMeta if request.HasField("keySharedMeta") else None,
            address=session.address,
            client_version=session.client_version,
            connected_ms=self.broker.now_ms(),
        )
        try:
            existing.add_consumer(consumer)
        except ConsumerBusyError:
            # The consumer in the way may be of a client that is gone without a word.
            holder = existing.consumers[0]
            if holder.link is session or await holder.link.is_alive():
                raise
            existing.remove_consumer(holder)
            existing.add_consumer(consumer)
        return consumer

    async def _create(
        self, name: str, at: Position, properties: dict[str, str], is_durable: bool, kind: int
    ) -> Subscription:
        # Somebody may have made it while a position was looked up.
        if (existing := self.subscriptions.get(name)) is not None:
            return existing
        if not name:
            raise NotAllowedError("a subscription needs a name")
        subscription = self._make_subscription(
            name, Cursor(at), is_durable=is_durable, kind=kind, properties=properties
        )
        self.subscriptions[name] = subscription
        if is_durable:
            await subscription.announce()
        return subscription

    async def create_subscription(
        self, name: str, position: Position | str, properties: dict[str, str], *, must_be_new: bool = False
    ) -> Subscription:
        """A durable subscription at "earliest", "latest" or a position; an existing one stays where it is."""
        if (existing := self.subscriptions.get(name)) is not None:
            if must_be_new:
                raise SubscriptionBusyError(f"subscription {name} exists already")
            return existing
        if isinstance(position, str):
            at = self.log.first if position == "earliest" else self.log.end
        else:
            at = self.log.normalise(max(position, self.log.first))
        return await self._create(name, at, properties, True, -1)

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        subscription = self.subscriptions.get(name)
        if subscription is None:
            raise SubscriptionNotFoundError(f"{self.name} has no subscription {name}")
        await subscription.delete(force=force)

    def _detach_all(self) -> None:
        """Every client is told that its producer or consumer is closed; those that want to, come back."""
        self.is_closed = True
        self.close_producers()
        for subscription in list(self.subscriptions.values()):
            subscription.close()

    # -- sealing, closing, deleting

    async def terminate(self) -> Position:
        """No more publishes, for good. Everything accepted before is confirmed and receipted. The last position."""
        if not self._publishing.is_sealed:
            self._publishing.seal()
            await self._stored(topic_state.sealed())
            await self.log.seal()
            for subscription in self.subscriptions.values():
                subscription.topic_terminated()
        return self.log.last

    async def _stored(self, delta: bytes) -> None:
        """Waits until a state change, and with it everything appended before, is confirmed."""
        done = self.broker.loop.create_future()

        def settle(error: Exception | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self.log.record(delta, settle)
        await done

    async def close(self) -> None:
        """Lets the topic go: what was accepted is confirmed and answered, clients are told to come back."""
        if self.is_closed:
            await self.wait_closed()
            return
        self.is_closed = True
        await self._settle()
        self._detach_all()
        self.log.close()
        self._finish_close()

    async def _settle(self) -> None:
        """Stops accepting publishes and waits until what was accepted is confirmed and answered, or lost."""
        self._publishing.stop()
        await self._confirmed_so_far()

    async def _confirmed_so_far(self) -> None:
        done: asyncio.Future[None] = self.broker.loop.create_future()
        self._when_confirmed(self.log.next_entry, lambda: _finish(done))
        await done

    def _when_confirmed(self, entries_end: int, then: Callable[[], object]) -> None:
        if self.log.confirmed_end >= entries_end:
            then()
        else:
            self._closings.append((entries_end, then))

    def _finish_close(self) -> None:
        self.is_closed = True
        self.broker.topic_closed(self)
        if not self._closed.done():
            self._closed.set_result(None)

    async def wait_closed(self) -> None:
        await asyncio.shield(self._closed)

    async def delete(self, *, force: bool) -> None:
        if not force:
            if self.producers or any(s.consumers for s in self.subscriptions.values()):
                raise NotAllowedError(f"{self.name} has connected producers or consumers")
            if self.subscriptions:
                raise NotAllowedError(f"{self.name} has subscriptions")
        self._detach_all()
        self._publishing.abandon()
        await self.log.delete()
        self._finish_close()

    async def skip_damage(self) -> int:
        """Gives up the damaged entries that readers have met; returns how many."""
        skipped = 0
        for subscription in self.subscriptions.values():
            damage = None if subscription.dispatcher is None else subscription.dispatcher.damage
            if damage is not None and self.log.normalise(_at(damage)) == _at(damage):
                skipped += await self.log.skip_damage(damage)
            subscription.entries_confirmed()
        return skipped

    # -- policies and upkeep

    def apply_policies(self, policies: Policies) -> None:
        config = self.broker.config
        enabled = policies.deduplication_enabled
        self._policies = policies
        self._publishing.deduplicate(config.broker_deduplication_enabled if enabled is None else enabled)

    async def maintain(self) -> None:
        """Expires what is too old to be consumed, and gives up what nothing keeps any more."""
        if self.is_closed:
            return
        config, policies = self.broker.config, self._policies
        ttl = policies.message_ttl_in_seconds
        if ttl is None:
            ttl = config.ttl_duration_default_in_seconds
        if ttl > 0:
            for subscription in self.subscriptions.values():
                if subscription.is_durable:
                    await subscription.expire_before(self.broker.now_ms() - ttl * 1000)
        consumed = min(
            (s.next for s in self.subscriptions.values() if s.is_durable),
            default=self.log.end,
        )
        if consumed <= self.log.first:
            return
        retention = policies.retention_policies
        minutes = config.default_retention_time_in_minutes if retention is None else retention.minutes
        megabytes = config.default_retention_size_in_mb if retention is None else retention.megabytes
        is_low = not self.broker.log.is_accepting
        linger = NOTHING if is_low else Keep(config.log_linger_seconds, config.log_linger_bytes)
        keep = keep_of(minutes, megabytes, linger)
        await self.log.trim(await trim_target(self.log, consumed, keep, self.broker.now_ms()))

    def update_rates(self, seconds: float) -> None:
        now = (self._publishing.messages_in, self._publishing.bytes_in)
        before = self._rates_from
        self.rates_in = ((now[0] - before[0]) / seconds, (now[1] - before[1]) / seconds)
        self._rates_from = now
        for producer in self.producers.values():
            producer.update_rates(seconds)
        for subscription in self.subscriptions.values():
            subscription.update_rates(seconds)

    def stats(self) -> dict[str, Any]:
        return topic_stats(self)

    def internal_stats(self) -> dict[str, Any]:
        return internal_stats(self)

    @property
    def publishing(self) -> Publishing:
        return self._publishing


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _at(damage: LogDamagedError) -> Position:
    return damage.ledger, damage.first_bad


def _terminated(name: TopicName) -> TopicTerminatedError:
    return TopicTerminatedError(f"{name} was terminated: it takes no more messages")
