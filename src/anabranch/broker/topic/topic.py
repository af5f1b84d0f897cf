"""One open topic: its log, and the operations on the whole: opening, sealing, closing, deleting.

Publishing is in `publishing.py`, producers are in `producers.py`, subscriptions in `subscriptions.py`, policies in
`in_force.py`, retention in `upkeep.py`, rates in `measured_rates.py`. Each of these gets the parts that it works with;
the topic builds them all.

The topic owns the log: the log notifies it of what is confirmed and what is lost, and the topic can give its whole
state at any moment. A topic whose log is lost closes; its clients reconnect and open it again, here or on another
broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence

from anabranch.broker.compaction.topic_compaction import TopicCompaction
from anabranch.broker.compaction.view import CompactedLog
from anabranch.broker.config.listeners import Addresses
from anabranch.broker.dispatch.consumer import AttachedConsumer, ConsumerLink
from anabranch.broker.errors import (
    NotAllowedError,
    NotReadyError,
    TopicTerminatedError,
)
from anabranch.broker.hidden_writes.topic import HiddenWrites, hidden_as
from anabranch.broker.policy.limits import TopicLimits
from anabranch.broker.policy.namespace import NamespacePolicies
from anabranch.broker.policy.retention import Keep
from anabranch.broker.runtime.weakly import weakly
from anabranch.broker.state import topic_state
from anabranch.broker.state.bucket_dedup import BucketDeduplication, StoredLanes
from anabranch.broker.state.dedup import Deduplication
from anabranch.broker.subscription.cursor_keeper import COMPACTED
from anabranch.broker.subscription.subscription import Subscription
from anabranch.broker.topic.confirmations import Confirmations
from anabranch.broker.topic.in_force import PoliciesInForce
from anabranch.broker.topic.measured_rates import TopicRates
from anabranch.broker.topic.phase import SealPhase, TopicLife, TopicPhase
from anabranch.broker.topic.producer import AttachedProducer, StoredIds
from anabranch.broker.topic.producers import TopicProducers
from anabranch.broker.topic.publishing import Publishing
from anabranch.broker.topic.quotas import BacklogQuotas
from anabranch.broker.topic.replay import entries_between
from anabranch.broker.topic.sequence_ids import BY_BUCKET, SequenceIds
from anabranch.broker.topic.services import TopicServices
from anabranch.broker.topic.stamps import Stamps
from anabranch.broker.topic.subscriptions import Subscribing
from anabranch.broker.topic.throttle import TopicPacing
from anabranch.broker.topic.upkeep import TopicUpkeep
from anabranch.model.buckets import Splits
from anabranch.model.key_routing import KeysSeen
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.model.segments import spoken_name
from anabranch.storage.port import LogDamagedError, LogError
from anabranch.storage.topic.topic_log import TopicLog
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.frames import Frame

log = logging.getLogger(__name__)

# The key, in the stored state, of the producers that have stored more than they named.
COVERED = "producers_covered"
# The property of a producer that only asks which of its messages are stored: it may attach to a sealed topic too.
SEALED_OK = ("anabranch.sealed", "ok")


class Topic:
    """`closed` is called when the topic is closed; the next request for it opens it again."""

    def __init__(
        self,
        services: TopicServices,
        name: TopicName,
        topic_log: TopicLog,
        state: topic_state.TopicState,
        closed: Callable[[Topic], None],
        own_keep: Keep | None,
        splits: Splits = (),
    ) -> None:
        """`splits` are those of a segment with several entry buckets."""
        self.services = services
        self.name = name
        self.log = topic_log
        is_sealed = state.is_sealed or topic_log.topic_record.sealed_end is not None
        self._life = TopicLife(is_sealed=is_sealed)
        self._tell_closed = closed
        self._extra = state.extra
        self._closed = services.loop.create_future()
        self._sealing: asyncio.Task[None] | None = None
        # Where the topic's clients go when it is closed, if that is known.
        self._moved_to: Addresses | None = None
        self.confirmations = Confirmations(topic_log, services.loop)
        # The parts do not hold the topic: a closed one is freed when the last caller lets go of it.
        self.attached = TopicProducers(name, state.extra.get("topic_epoch"), weakly(self._producer_departed))
        self.hidden = HiddenWrites(
            name,
            topic_log,
            state.hidden,
            self.attached,
            stored=self.confirmations.stored,
            shown=weakly(self._shown),
            records=services.write_records,
            rights=services.rights,
            metadata=services.metadata,
            config=services.config,
            loop=services.loop,
            now_ms=services.now_ms,
        )
        covered = state.extra.pop(COVERED, None)
        lanes, dedup = StoredLanes(), Deduplication(state.producers, covered)
        self.stamps: Stamps | None = None
        if splits:
            lanes = StoredLanes.of_image(state.extra.pop(BY_BUCKET, None), state.producers_as_of)
            dedup = BucketDeduplication(splits, state.producers, covered, lanes)
            self.stamps = Stamps(splits)
        self.publishing = Publishing(
            topic_log,
            dedup,
            is_sealed=is_sealed,
            producers=self.producers,
            on_full=self.attached.close_all,
            on_hidden=self.hidden.appended,
            stamps=self.stamps,
        )
        # An attribute, not a method: no call stands between a connection and the publishing path. It never changes.
        self.publish: Callable[[AttachedProducer, Sequence[Frame]], None] = self.publishing.publish
        self.sequence_ids = SequenceIds(
            name,
            topic_log,
            self.publishing,
            self.producers,
            self._life,
            self.confirmations,
            services.background,
            state.extra,
            state.producers_as_of,
            lanes.unjudged,
        )
        compacted = CompactedLog(topic_log)
        pacing = TopicPacing(services, name, self.publishing)
        self.subscribing = Subscribing(
            services, name, topic_log, self._life, self.confirmations, compacted, pacing
        )
        self.compaction = TopicCompaction(
            name,
            topic_log,
            self._life,
            compacted,
            self.subscribing,
            loop=services.loop,
            now_ms=services.now_ms,
            turn=services.compacting,
            ledger_ids=services.ledger_ids,
            config=services.config,
        )
        self._rates = TopicRates(
            name, topic_log, self.publishing, self.producers, self.subscribing, self.compaction.figures
        )
        self.quotas = BacklogQuotas(services, name, topic_log, self._life, self.attached, self.subscribing)
        self.in_force = PoliciesInForce(
            services, name, self.publishing, pacing, self.subscribing, self.sequence_ids, self.quotas
        )
        self.upkeep = TopicUpkeep(
            services,
            name,
            topic_log,
            self._life,
            self.in_force,
            self.subscribing,
            self.sequence_ids,
            self.hidden,
            self.compaction,
            own_keep,
        )

    @staticmethod
    async def open(
        services: TopicServices,
        name: TopicName,
        topic_log: TopicLog,
        policies: NamespacePolicies,
        closed: Callable[[Topic], None],
        own_keep: Keep | None,
        splits: Splits = (),
    ) -> Topic:
        found = topic_log.recovered
        state = topic_state.fold(found.snapshot, found.deltas) if found else topic_state.TopicState()
        topic = Topic(services, name, topic_log, state, closed, own_keep, splits)
        topic.in_force.apply(policies)
        has_ids = bool(state.producers) or topic.sequence_ids.were_judged
        is_asked = topic.publishing.is_deduplicating or (topic.is_sealed and has_ids)
        is_read = bool(is_asked or topic.hidden.has_attempts)
        if is_read:
            # Only in this case does opening read the log.
            await topic._replay(state.producers_as_of)
        topic.sequence_ids.opened(is_read=is_read)
        if not topic.hidden.entries.is_empty:
            topic.hidden.entries.trim(topic_log.topic_record.trimmed)
            topic.hidden.show()
        if topic.is_sealed and not topic.hidden.has_open:
            topic._life.enter_seal(SealPhase.ENDED)
        for sub_name, stored in state.subscriptions.items():
            subscription = topic.subscribing.make(
                sub_name,
                stored.cursor,
                kind=stored.kind,
                properties=stored.properties,
                extra=stored.extra,
            )
            if stored.extra.get(COMPACTED):
                subscription.read_from(await topic.compaction.view.open())
            topic.subscriptions[sub_name] = subscription
        topic_log.start(topic)
        if topic._life.is_opening:
            topic._life.enter(TopicPhase.OPEN)
        if topic.hidden.has_attempts:
            try:
                await topic.hidden.look()
            except BaseException:
                # The log has been written to already, and no caller will get the topic.
                await topic.close()
                raise
        return topic

    async def _replay(self, hidden_as_of: Position) -> None:
        """Learns sequence ids and hidden entries from the entries written after the state was last stored in full."""
        ids_from = self.sequence_ids.unread_from or hidden_as_of
        first = min(ids_from, hidden_as_of)
        async for ledger, number, metadata, entry in entries_between(
            self.name, self.log, first, self.log.end
        ):
            at = (ledger, number)
            is_hidden = at >= hidden_as_of and self.hidden.replay(ledger, number, metadata)
            if at >= ids_from and not is_hidden:
                self.sequence_ids.replay(metadata, entry)

    # -- the log's owner

    def entries_confirmed(self, entries_end: int) -> None:
        try:
            self.publishing.confirmed(entries_end)
        except Exception:
            # The producers start over; readers and callers that wait for the log are not affected.
            log.exception("%s: answering producers failed, closing them", self.name)
            self.attached.close_all()
        self._wake_readers()
        waiting = self.confirmations.waiting
        while waiting and waiting[0][0] <= entries_end:
            self._tell(waiting.pop(0)[1])
        self.services.progressed()

    def _wake_readers(self) -> None:
        for subscription in list(self.subscriptions.values()):
            self._tell(subscription.entries_confirmed)

    def _tell(self, one: Callable[[], object]) -> None:
        """Notifies one of several parts of what the log did. A part that fails does not keep the others from being
        notified."""
        try:
            one()
        except Exception:
            log.exception("%s: a part of the topic failed when it was notified by the log", self.name)

    def log_lost(self, error: LogError) -> None:
        log.error("%s: the log is lost, closing the topic: %s", self.name, error)
        waiting = list(self.confirmations.waiting)
        self.confirmations.waiting.clear()
        # Each step on its own: whatever state the topic is in, no caller may wait for ever.
        for step in (self.publishing.abandon, self.compaction.cancel, self._detach_all):
            self._tell(step)
        for _, then in waiting:
            self._tell(then)
        self._finish_close()

    def encode_state(self) -> bytes:
        extra = dict(self._extra)
        if self.attached.epoch is not None:
            extra["topic_epoch"] = self.attached.epoch
        if covered := self.publishing.dedup.covered_image():
            extra[COVERED] = covered
        extra |= self.sequence_ids.image()
        return topic_state.encode_snapshot(
            {s.name: s.state() for s in self.subscriptions.values() if s.is_durable},
            producers=self.publishing.dedup.pushed,
            producers_as_of=self.log.appended_end,
            is_sealed=self.publishing.is_sealed,
            hidden=self.hidden.entries,
            extra=extra,
        )

    # -- producers

    @property
    def is_closed(self) -> bool:
        """True as soon as closing has begun."""
        return self._life.is_closed

    @property
    def has_clients(self) -> bool:
        return bool(self.producers) or any(one.consumers for one in self.subscriptions.values())

    @property
    def is_sealed(self) -> bool:
        return self._life.is_sealed

    @property
    def has_end(self) -> bool:
        """Whether the topic is sealed and no hidden entries may still be revealed."""
        return self._life.has_end

    @property
    def producers(self) -> Mapping[str, AttachedProducer]:
        return self.attached.producers

    @property
    def subscriptions(self) -> dict[str, Subscription]:
        return self.subscribing.all

    @property
    def policies(self) -> NamespacePolicies:
        """The policies in force here: the topic's own over its namespace's."""
        return self.in_force.policies

    @property
    def limits(self) -> TopicLimits:
        return self.in_force.limits

    async def add_producer(self, producer: AttachedProducer, request_id: int) -> None:
        """Attaches the producer and answers its request, or raises the reason for a refusal. A waiting producer is
        answered twice."""
        self._check_of_clients("published to")
        key, value = SEALED_OK
        if self.publishing.is_sealed and producer.metadata.get(key) != value:
            raise _terminated(self.name)
        hidden = hidden_as(producer.metadata)
        if hidden is not None:
            await self.hidden.admit(*hidden, producer.role)
        if self.quotas.is_set:
            await self.quotas.admit_producer()
        await self.attached.make_way(producer)
        if hidden is not None:
            producer.attempt = self.hidden.check_open(*hidden)
            if self.publishing.is_sealed:
                raise _terminated(self.name)
        elif self.publishing.is_deduplicating and self.publishing.dedup.is_behind(producer.name):
            # The answer names the last stored id. If more were on its way, the client would send that again cut into
            # other batches, and a batch that is partly a duplicate can be neither stored nor dropped.
            await self.confirmations.wait()
        if self.is_closed:
            raise NotReadyError(f"{self.name} is closing")
        if not producer.link.awaits_producer(producer):
            raise NotReadyError("the client closed this producer while it was being created")
        present = len(self.producers) - (producer.name in self.producers)
        self.limits.check_producer(spoken_name(self.name), present, is_encrypted=producer.is_encrypted)
        producer.topic = self
        self.publishing.dedup.began(producer.name)
        self.attached.add(producer, request_id)

    def _check_of_clients(self, what: str) -> None:
        """Refuses what clients may not do to a topic that only brokers write to."""
        if self.services.is_of_brokers(self.name):
            raise NotAllowedError(f"{self.name} is written by brokers only: it cannot be {what}")

    def stored_ids(self, producer: str) -> StoredIds:
        """The last stored ids, for a producer that reconnects; none without deduplication.

        A sealed topic keeps answering for its producers, whatever the policy is by now.
        """
        dedup = self.publishing.dedup
        is_known = self.publishing.is_deduplicating or self.publishing.is_sealed
        last = dedup.last_confirmed(producer) if is_known else -1
        if not isinstance(dedup, BucketDeduplication):
            return StoredIds(last)
        return StoredIds(last, dedup.confirmed_by(producer) if is_known else {})

    async def settled_ids(self, producer: str) -> StoredIds:
        """The last stored ids for a producer in doubt, once everything accepted from it is stored.

        With too low an id, the producer would send again to other segments what this topic is about to store.
        """
        if self.publishing.dedup.is_behind(producer):
            await self.confirmations.wait()
        if self.is_closed:
            raise NotReadyError(f"{self.name} is closing")
        return self.stored_ids(producer)

    def store_epoch(self, done: Callable[[Exception | None], None]) -> None:
        self.log.store_snapshot(done)

    def _producer_departed(self, producer: AttachedProducer) -> None:
        self.sequence_ids.departed(producer)

    def close_producer(self, producer: AttachedProducer, answered: Callable[[], None]) -> None:
        """Closes the producer for its client; calls `answered` once everything it sent has been answered."""

        def finish() -> None:
            producer.is_closed = True
            self.attached.remove(producer)
            answered()

        self.confirmations.when_confirmed(finish)

    def _detach_all(self) -> None:
        """Notifies every client that its producer or consumer is closed; clients may reconnect."""
        if not self.is_closed:
            self._life.enter(TopicPhase.CLOSING)
        self.attached.close_all(self._moved_to)
        self.subscribing.detach_all(self._moved_to)

    # -- sealing, closing, deleting

    async def terminate(self) -> Position:
        """Refuses publishes for good. Everything accepted before is confirmed and receipted. Returns the last
        position."""
        self._check_of_clients("terminated")
        if self._sealing is None:
            # Kept, so that all callers wait for the same sealing, also when the first one is cancelled.
            self._sealing = self.services.loop.create_task(self._seal())
            self._sealing.add_done_callback(self._sealing_done)
        await asyncio.shield(self._sealing)
        return self.log.last

    def _sealing_done(self, sealing: asyncio.Task[None]) -> None:
        """Lets the next caller try again after a failure, and retrieves its error: every caller may be gone by now."""
        if sealing.cancelled() or sealing.exception() is not None:
            self._sealing = None

    async def _seal(self) -> None:
        is_new = not self.is_sealed
        if is_new:
            # Producers of a segment get the refusal at once and turn to its children.
            self.publishing.seal(is_silent=self.name.is_classic)
        if not self.has_end:
            self._life.enter_seal(SealPhase.SEALING)
        try:
            await self._store_seal(is_new=is_new)
            if self.name.is_classic:
                self.attached.close_all()
        finally:
            if self._life.seal is SealPhase.SEALING:
                self._life.enter_seal(SealPhase.SEALED)
        self._end()

    async def _store_seal(self, *, is_new: bool) -> None:
        if is_new:
            if self.publishing.is_deduplicating or not self.publishing.dedup.pushed:
                await self.confirmations.stored(topic_state.sealed())
            else:
                # These ids are from a time with deduplication. A producer that has started over since, and asks which
                # of its unanswered messages are stored, would be told that all are. No delta can express this.
                self.publishing.dedup.forget_all()
                await self.confirmations.stored_in_full()
        if self.log.topic_record.sealed_end is None:
            await self.log.seal()

    def _end(self) -> None:
        """Marks the sealed topic as ended and notifies consumers that have caught up. Does nothing while hidden entries
        may still be revealed."""
        if self.hidden.has_open:
            return
        if not self.has_end:
            self._life.enter_seal(SealPhase.ENDED)
        for subscription in list(self.subscriptions.values()):
            if not subscription.is_sealed:
                subscription.topic_terminated()

    def _shown(self) -> None:
        """Wakes readers, which can see more than before."""
        self._wake_readers()
        if self._life.seal is SealPhase.SEALED:
            self._end()
            self.services.segment_progressed(self.name)

    async def close(self, moved_to: Addresses | None = None) -> None:
        """Closes the topic: accepted publishes are confirmed and answered, then clients are notified to reconnect, at
        `moved_to` if that is known."""
        if self._moved_to is None:
            self._moved_to = moved_to
        if self.is_closed:
            await self.wait_closed()
            return
        self._life.enter(TopicPhase.CLOSING)
        try:
            await self.compaction.stop()
            await self._settle()
        finally:
            # However far closing got: clients of a closed topic would wait for ever, and callers wait for it to be
            # closed, to open it again.
            self._tell(self.publishing.stop)
            self._tell(self._detach_all)
            self.log.close()
            self._finish_close()

    async def _settle(self) -> None:
        """Stops accepting publishes and waits until accepted ones are confirmed and answered, or lost."""
        self.publishing.stop()
        await self.confirmations.wait()

    def _finish_close(self) -> None:
        if self._life.phase is not TopicPhase.CLOSED:
            self._life.enter(TopicPhase.CLOSED)
        self._tell_closed(self)
        if not self._closed.done():
            self._closed.set_result(None)

    async def wait_closed(self) -> None:
        await asyncio.shield(self._closed)

    async def delete(self, *, force: bool, if_unused: Callable[[Topic], bool] | None = None) -> None:
        self._check_of_clients("deleted")
        # Nothing is awaited between the check and the change of phase: later callers find the topic closing.
        if if_unused is not None:
            if not if_unused(self):
                raise NotAllowedError(f"{self.name} is in use")
        elif not force:
            self.check_deletable()
        self._detach_all()
        await self.compaction.stop()
        self.publishing.abandon()
        try:
            await self.log.delete()
        except BaseException:
            # The topic was not deleted, or may not be. The next caller that opens it finds out.
            with contextlib.suppress(LogError):
                self.log.close()
            raise
        finally:
            self._finish_close()

    def check_deletable(self) -> None:
        """Raises NotAllowedError while clients use the topic, or while hidden entries may still be revealed: that takes
        force."""
        if self.has_clients:
            raise NotAllowedError("Topic has active producers/subscriptions; disconnect them, or force")
        if self.hidden.has_open:
            raise NotAllowedError(
                "Topic holds entries of hidden writes that are not decided; decide or drop them, or force"
            )

    async def skip_damage(self) -> int:
        """Skips the damaged entries that readers have met; returns how many."""
        skipped = 0
        for subscription in list(self.subscriptions.values()):
            damage = None if subscription.dispatcher is None else subscription.dispatcher.damage
            if damage is not None and self.log.normalise(_at(damage)) == _at(damage):
                skipped += await self.log.skip_damage(damage)
            subscription.entries_confirmed()
        return skipped

    # -- subscriptions

    async def subscribe(self, link: ConsumerLink, request: pb.CommandSubscribe) -> AttachedConsumer:
        return await self.subscribing.subscribe(link, request)

    async def create_subscription(
        self,
        name: str,
        position: Position | str,
        properties: dict[str, str],
        *,
        must_be_new: bool = False,
        is_limited: bool = True,
    ) -> Subscription:
        return await self.subscribing.create(
            name, position, properties, must_be_new=must_be_new, is_limited=is_limited
        )

    async def create_initial_subscription(self, name: str) -> None:
        await self.subscribing.create_initial(name)

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        await self.subscribing.delete(name, force=force)

    # -- upkeep

    def apply_policies(self, policies: NamespacePolicies) -> None:
        self.in_force.apply(policies)

    async def maintain(self) -> None:
        await self.upkeep.maintain()

    async def maintain_by_and_by(self) -> None:
        """As `maintain`, but small trims wait until enough has come together."""
        await self.upkeep.maintain(at_once=False)

    def update_rates(self, seconds: float) -> None:
        self._rates.update(seconds)

    # -- figures

    @property
    def log_is_empty(self) -> bool:
        return self.upkeep.log_is_empty

    @property
    def finished_readers(self) -> frozenset[str]:
        return self.subscribing.finished_readers

    @property
    def rates_in(self) -> tuple[float, float]:
        """Incoming messages and bytes a second."""
        return self.publishing.rates_in

    @property
    def counters(self) -> tuple[int, int, int, int]:
        return self._rates.counters

    @property
    def keys_seen(self) -> KeysSeen:
        return self._rates.keys_seen


def _at(damage: LogDamagedError) -> Position:
    return damage.ledger, damage.first_bad


def _terminated(name: TopicName) -> TopicTerminatedError:
    return TopicTerminatedError(f"{name} was terminated: it takes no more messages")
