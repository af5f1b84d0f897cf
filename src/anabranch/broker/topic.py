"""One open topic: its producers, its subscriptions, its log. The publishing path is in `publishing.py`.

The topic is the log's owner: it is told what is confirmed and what is lost, and it can say its whole state at any
moment. A topic whose log is lost closes; its clients come back and open it again, here or elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from anabranch.broker import owed
from anabranch.broker import state as topic_state
from anabranch.broker.attached import Attached
from anabranch.broker.consumer import Consumer
from anabranch.broker.cursor import Cursor
from anabranch.broker.dedup import Deduplication
from anabranch.broker.dispatch.base import DispatchLimits
from anabranch.broker.errors import (
    ConsumerBusyError,
    NotAllowedError,
    NotReadyError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
    TopicTerminatedError,
)
from anabranch.broker.hidden_writes import HiddenWrites, hidden_as
from anabranch.broker.policies import Policies
from anabranch.broker.producer import Producer
from anabranch.broker.publishing import Publishing
from anabranch.broker.retention import NOTHING, Keep, keep_of, trim_target
from anabranch.broker.scalable.key_sample import KeySample
from anabranch.broker.scalable.naming import is_segment_consumer
from anabranch.broker.subscription import Subscription, start_position
from anabranch.broker.topic_stats import internal_stats, topic_stats
from anabranch.model.key_routing import KeysSeen
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.model.scalable import InitialPosition, SubscriptionKind
from anabranch.model.segments import segment_of
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
# Readers remembered as having finished a sealed topic; beyond it the first ones are forgotten.
_FINISHED_READERS_MAX = 1000
# At each turn of the rates, to tell whether producers agree on where a key belongs.
_KEYS_LOOKED_AT = 8
_KEYS_BYTES = 256 * 1024
# The property of a producer that only asks what is stored of it: it may attach to a sealed topic too.
# A consumer of a scalable topic that is handed a segment may be here before the last one has heard that it is not its
# own any more. Java's client takes "busy" for an answer and gives up.
HANDOVER_S = 10.0

SEALED_OK = ("anabranch.sealed", "ok")


class Topic:
    def __init__(
        self, broker: Broker, name: TopicName, topic_log: TopicLog, state: topic_state.TopicState
    ) -> None:
        self.broker = broker
        self.name = name
        self.log = topic_log
        self.attached = Attached(self, state.extra.get("topic_epoch"))
        self.subscriptions: dict[str, Subscription] = {}
        self.is_closed = False
        self._extra = state.extra
        self._dedup_as_of = state.producers_as_of
        dedup = Deduplication(state.producers)
        is_sealed = state.is_sealed or topic_log.topic_record.sealed_end is not None
        self.hidden = HiddenWrites(self, state.hidden)
        self._publishing = Publishing(
            topic_log,
            dedup,
            is_sealed=is_sealed,
            on_full=self.attached.close_all,
            on_hidden=self.hidden.appended,
        )
        # Sealed, all that came before the seal is confirmed and nothing is hidden: until then nobody is at the end.
        self._has_end = False
        self.publish = self._publishing.publish
        self._closed = broker.loop.create_future()
        self._closings: list[tuple[int, Callable[[], object]]] = []
        self._policies = Policies()
        self.rates_in = (0.0, 0.0)
        self._rates_from = (0, 0)
        self._bare_at = -1
        # What subscriptions that have ended since had been sent: messages and bytes.
        self._out_before = (0, 0)
        self._keys = None if name.is_classic else KeySample(segment_of(name)[1])
        self._finished_readers: dict[str, None] = {}
        self._sealing: asyncio.Task[None] | None = None

    @staticmethod
    async def open(broker: Broker, name: TopicName, topic_log: TopicLog, policies: Policies) -> Topic:
        found = topic_log.recovered
        state = topic_state.fold(found.snapshot, found.deltas) if found else topic_state.TopicState()
        topic = Topic(broker, name, topic_log, state)
        topic.apply_policies(policies)
        is_asked = topic.publishing.is_deduplicating or (topic.is_sealed and state.producers)
        if is_asked or topic.hidden.has_attempts:
            # Only then is a table kept, and only then is opening worth a look into the log.
            await topic._replay()
        if not topic.hidden.entries.is_empty:
            topic.hidden.entries.trim(topic_log.topic_record.trimmed)
            topic.hidden.show()
        topic._has_end = topic.is_sealed and not topic.hidden.has_open
        for sub_name, stored in state.subscriptions.items():
            topic.subscriptions[sub_name] = topic._make_subscription(
                sub_name,
                stored.cursor,
                kind=stored.kind,
                properties=stored.properties,
                extra=stored.extra,
            )
        topic_log.start(topic)
        if topic.hidden.has_attempts:
            await topic.hidden.look()
        return topic

    async def _replay(self) -> None:
        """Learns from entries written after the state was last stored in full: sequence ids, and what is hidden."""
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
            for number, _, data in entries:
                metadata = parse_metadata(data)
                if not self.hidden.replay(ledger, number, metadata):
                    self._publishing.dedup.replay(metadata)
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
        if self.attached.epoch is not None:
            extra["topic_epoch"] = self.attached.epoch
        return topic_state.encode_snapshot(
            {s.name: s.state() for s in self.subscriptions.values() if s.is_durable},
            producers=self._publishing.dedup.pushed,
            producers_as_of=self.log.appended_end,
            is_sealed=self._publishing.is_sealed,
            hidden=self.hidden.entries,
            extra=extra,
        )

    # -- producers

    @property
    def is_sealed(self) -> bool:
        return self._publishing.is_sealed

    @property
    def producers(self) -> Mapping[str, Producer]:
        return self.attached.producers

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
        key, value = SEALED_OK
        if self._publishing.is_sealed and producer.metadata.get(key) != value:
            raise _terminated(self.name)
        hidden = hidden_as(producer.metadata)
        if hidden is not None:
            await self.hidden.admit(*hidden)
        await self.attached.make_way(producer)
        if hidden is not None:
            producer.attempt = self.hidden.check_open(*hidden)
            if self._publishing.is_sealed:
                raise _terminated(self.name)
        elif self._publishing.is_deduplicating and self._publishing.dedup.is_behind(producer.name):
            # The answer says what is stored. Were more on its way, the client would send that again cut into other
            # batches, and a batch that is a duplicate in part can be neither stored nor dropped.
            await self._confirmed_so_far()
        if self.is_closed:
            raise NotReadyError(f"{self.name} is closing")
        if not producer.link.awaits_producer(producer.id):
            raise NotReadyError("the client closed this producer while it was being created")
        producer.topic = self
        self.attached.add(producer, request_id)

    def last_sequence_id(self, producer: str) -> int:
        """What a producer that comes back is told: the last id that is stored, -1 without deduplication.

        A sealed topic goes on answering for its producers, whatever the policy is by now.
        """
        is_known = self._publishing.is_deduplicating or self._publishing.is_sealed
        return self._publishing.dedup.last_confirmed(producer) if is_known else -1

    def close_producer(self, producer: Producer, answered: Callable[[], None]) -> None:
        """The client is done: answered once everything it sent is."""

        def finish() -> None:
            producer.is_closed = True
            self.attached.remove(producer)
            answered()

        self._when_confirmed(self.log.next_entry, finish)

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
            is_sealed=self._has_end,
            ended=self._subscription_ended,
            drained=self._subscription_moved,
        )

    def _subscription_ended(self, subscription: Subscription) -> None:
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
            messages, size = self._out_before
            self._out_before = messages + subscription.messages_out, size + subscription.bytes_out
            if self.is_sealed and subscription.is_durable:
                self.broker.on_segment_progress(self.name)

    def _subscription_moved(self, subscription: Subscription) -> None:
        """On a sealed topic: the subscription has drained it, or was moved."""
        if not subscription.is_durable and subscription.is_drained:
            for consumer in subscription.consumers:
                if not owed.tells_its_end(consumer):
                    self._reader_finished(consumer.name)
        self.broker.on_segment_progress(self.name)

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
        if self.is_closed:
            raise NotReadyError(f"{self.name} is closing")
        name = request.subscription
        existing = self.subscriptions.get(name)
        if existing is not None and existing.is_durable != request.durable:
            raise NotAllowedError(
                f"subscription {name} exists and is {'durable' if existing.is_durable else 'not durable'}"
            )
        owed.check(self.log, request)
        first = None
        registration = self.broker.registration
        is_segment = not self.name.is_classic or self.is_sealed  # Sealed classic topics may be segments too.
        if existing is None and request.durable and is_segment and registration is not None:
            first = await registration.register_consumer(self.name, request)
            if self.is_closed:
                raise NotReadyError(f"{self.name} is closing")
            # The topic's controller may have made it meanwhile.
            existing = self.subscriptions.get(name)
        if existing is None:
            at = start_position(self.log, request)
            if first is not None:
                at = self.log.first if first is InitialPosition.EARLIEST else self.log.end
            if request.start_message_rollback_duration_sec:
                since = self.broker.now_ms() - request.start_message_rollback_duration_sec * 1000
                at = await self.log.find_by_publish_time(since)
            properties = {item.key: item.value for item in request.subscription_properties}
            existing = await self._create(name, at, properties, request.durable, request.subType)
        await existing.wait_announced()
        await existing.wait_for_seek()
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
            await self._replace(existing, consumer)
        is_watched = self._has_end and not request.durable and not owed.tells_its_end(consumer)
        if is_watched and await self._is_past_end(request):
            self._reader_finished(consumer.name)
            self.broker.on_segment_progress(self.name)
        return consumer

    async def _replace(self, subscription: Subscription, consumer: Consumer) -> None:
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
        subscription.add_consumer(consumer)

    async def _is_past_end(self, request: pb.CommandSubscribe) -> bool:
        """Whether a reader comes back to a sealed topic with its last message as the one it has read last.

        It is sent that message again and drops it without a word, so it will never acknowledge it here.
        """
        at, last = request.start_message_id, self.log.last
        if last[0] < 0 or (at.ledgerId, at.entryId) != last:
            return False
        _, entries = await self.log.read(last, 1, 1)
        messages = parse_metadata(entries[0][2]).num_messages_in_batch if entries else 0
        return at.batch_index < 0 or at.batch_index >= messages - 1

    async def _create(
        self, name: str, at: Position, properties: dict[str, str], is_durable: bool, kind: int
    ) -> Subscription:
        # Somebody may have made it while a position was looked up.
        if (existing := self.subscriptions.get(name)) is not None:
            await existing.wait_announced()
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
            await existing.wait_announced()
            return existing
        if isinstance(position, str):
            at = self.log.first if position == "earliest" else self.log.end
        else:
            at = self.log.normalise(max(position, self.log.first))
        return await self._create(name, at, properties, True, -1)

    async def create_initial_subscription(self, name: str) -> None:
        """At a producer's wish, so that what it publishes is kept: at the start, unless it exists."""
        registration = self.broker.registration
        if not self.name.is_classic and name not in self.subscriptions and registration is not None:
            await registration.register(self.name, name, SubscriptionKind.QUEUE, InitialPosition.EARLIEST)
        await self.create_subscription(name, "earliest", {})

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        subscription = self.subscriptions.get(name)
        if subscription is None:
            raise SubscriptionNotFoundError(f"{self.name} has no subscription {name}")
        await subscription.delete(force=force)

    def _detach_all(self) -> None:
        """Every client is told that its producer or consumer is closed; those that want to, come back."""
        self.is_closed = True
        self.attached.close_all()
        for subscription in list(self.subscriptions.values()):
            subscription.close()

    # -- sealing, closing, deleting

    async def terminate(self) -> Position:
        """No more publishes, for good. Everything accepted before is confirmed and receipted. The last position."""
        if self._sealing is None:
            # Kept, so that everybody who asks waits for the same sealing, also when the first one gives up.
            self._sealing = self.broker.loop.create_task(self._seal())
        sealing = self._sealing
        try:
            await asyncio.shield(sealing)
        except BaseException:
            if sealing.done() and self._sealing is sealing:
                self._sealing = None
            raise
        return self.log.last

    async def _seal(self) -> None:
        if not self._publishing.is_sealed:
            self._publishing.seal()
            await self.stored(topic_state.sealed())
        if self.log.topic_record.sealed_end is None:
            await self.log.seal()
        self._end()

    def _end(self) -> None:
        """Of a topic that is sealed in full: readers may be told, unless something hidden may yet be shown to them."""
        if self.hidden.has_open:
            return
        self._has_end = True
        for subscription in list(self.subscriptions.values()):
            if not subscription.is_sealed:
                subscription.topic_terminated()

    @property
    def has_end(self) -> bool:
        """Sealed, and nothing is hidden that readers may yet see."""
        return self._has_end

    def shown(self) -> None:
        """Readers see more than before."""
        for subscription in list(self.subscriptions.values()):
            subscription.entries_confirmed()
        is_sealing = self._sealing is not None and not self._sealing.done()
        if self.is_sealed and not is_sealing and not self._has_end:
            self._end()
            self.broker.on_segment_progress(self.name)

    async def stored(self, delta: bytes) -> None:
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
        try:
            await self.log.delete()
        except BaseException:
            # Not deleted, or not known to be. Whoever wants the topic opens it and finds out.
            with contextlib.suppress(LogError):
                self.log.close()
            raise
        finally:
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

    @property
    def is_bare(self) -> bool:
        """Whether `maintain` has found the log empty, and nothing was appended since: there is nothing to maintain."""
        return self.log.next_entry == self._bare_at

    async def maintain(self) -> None:
        """Expires what is too old to be consumed, and gives up what nothing keeps any more."""
        if self.is_closed:
            return
        is_settled = self.log.confirmed_end == self.log.next_entry
        is_empty = self.log.kept_first == self.log.kept_end
        self._bare_at = self.log.next_entry if is_settled and is_empty else -1
        if self.is_bare:
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
        if consumed <= self.log.kept_first:
            return
        retention = policies.retention_policies
        minutes = config.default_retention_time_in_minutes if retention is None else retention.minutes
        megabytes = config.default_retention_size_in_mb if retention is None else retention.megabytes
        is_low = not self.broker.log.is_accepting
        linger = NOTHING if is_low else Keep(config.log_linger_seconds, config.log_linger_bytes)
        keep = keep_of(minutes, megabytes, linger)
        target = await trim_target(self.log, consumed, keep, self.broker.now_ms())
        late = owed.behind(self.subscriptions.values(), target)
        await self.log.trim(target)
        self.hidden.trimmed(self.log.topic_record.trimmed)
        for reader in late:
            reader.close()
            self._subscription_ended(reader)

    def update_rates(self, seconds: float) -> None:
        now = (self._publishing.messages_in, self._publishing.bytes_in)
        before = self._rates_from
        # If nothing came now and nothing came then, all rates are zero already, those of producers too.
        if now != before or self.rates_in != (0.0, 0.0):
            self.rates_in = ((now[0] - before[0]) / seconds, (now[1] - before[1]) / seconds)
            self._rates_from = now
            if self._keys is not None and now[0] != before[0]:
                self._look_at_keys(self._keys)
            for producer in self.producers.values():
                producer.update_rates(seconds)
        for subscription in self.subscriptions.values():
            subscription.update_rates(seconds)

    def _look_at_keys(self, keys: KeySample) -> None:
        """At those of the latest messages, if they are at hand."""
        ledger, last = self.log.last
        first = (ledger, max(0, last - _KEYS_LOOKED_AT + 1))
        _, entries = self.log.read_cached(first, _KEYS_LOOKED_AT, _KEYS_BYTES) or (0, [])
        for _, _, data in entries:
            keys.look(data)

    @property
    def counters(self) -> tuple[int, int, int, int]:
        """Messages and bytes in, messages and bytes out to all subscriptions, since the topic was opened."""
        messages, size = self._out_before
        for subscription in self.subscriptions.values():
            messages += subscription.messages_out
            size += subscription.bytes_out
        return self._publishing.messages_in, self._publishing.bytes_in, messages, size

    @property
    def keys_seen(self) -> KeysSeen:
        """Where the keys belong that were published here. A sample: see `scalable/key_sample.py`."""
        return KeysSeen() if self._keys is None else self._keys.seen

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
