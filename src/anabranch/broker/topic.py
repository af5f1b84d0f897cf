"""One open topic: its log, and what is done with it as a whole: opening, sealing, closing, deleting.

What is published goes through `publishing.py`, its producers are in `attached.py`, its subscriptions in
`subscribing.py`, retention in `topic_upkeep.py` and figures in `topic_rates.py`.

The topic is the log's owner: it is told what is confirmed and what is lost, and it can say its whole state at any
moment. A topic whose log is lost closes; its clients come back and open it again, here or elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from anabranch.broker import state as topic_state
from anabranch.broker.attached import Attached
from anabranch.broker.compaction.topic_compaction import TopicCompaction
from anabranch.broker.dedup import Deduplication
from anabranch.broker.errors import (
    NotAllowedError,
    NotReadyError,
    TopicTerminatedError,
)
from anabranch.broker.hidden_writes import HiddenWrites, hidden_as
from anabranch.broker.pacing import TopicPacing
from anabranch.broker.policies import Policies
from anabranch.broker.producer import Producer
from anabranch.broker.publishing import Publishing
from anabranch.broker.sequence_ids import SequenceIds
from anabranch.broker.subscribing import Subscribing
from anabranch.broker.subscription import COMPACTED, Subscription
from anabranch.broker.topic_limits import TopicLimits
from anabranch.broker.topic_rates import TopicRates
from anabranch.broker.topic_stats import internal_stats, topic_stats
from anabranch.broker.topic_upkeep import TopicUpkeep
from anabranch.errors import MalformedFrame
from anabranch.model.key_routing import KeysSeen
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.storage.port import Buffer, LogDamagedError, LogError
from anabranch.storage.topic_log import TopicLog
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.entry import parse_metadata
from anabranch.wire.frames import Frame

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker

log = logging.getLogger(__name__)

_REPLAY_ENTRIES = 1000
_REPLAY_BYTES = 4 * 1024 * 1024
# Where it is in the stored state which producers have stored more than they named.
COVERED = "producers_covered"
# The property of a producer that only asks what is stored of it: it may attach to a sealed topic too.
SEALED_OK = ("anabranch.sealed", "ok")


class Topic:
    def __init__(
        self, broker: Broker, name: TopicName, topic_log: TopicLog, state: topic_state.TopicState
    ) -> None:
        self.broker = broker
        self.name = name
        self.log = topic_log
        self.attached = Attached(self, state.extra.get("topic_epoch"), self._producer_departed)
        self.is_closed = False
        self._extra = state.extra
        dedup = Deduplication(state.producers, state.extra.pop(COVERED, None))
        self.sequence_ids = SequenceIds(self, dedup, state.extra, state.producers_as_of)
        self.is_open = False
        is_sealed = state.is_sealed or topic_log.topic_record.sealed_end is not None
        self.hidden = HiddenWrites(self, state.hidden)
        self._publishing = Publishing(
            topic_log,
            dedup,
            is_sealed=is_sealed,
            is_attached=lambda producer: producer in self.producers,
            on_full=self.attached.close_all,
            on_hidden=self.hidden.appended,
        )
        # Sealed, all that came before the seal is confirmed and nothing is hidden: until then nobody is at the end.
        self._has_end = False
        # Not a method: nothing stands between a connection and the publishing path, unless a rate does.
        self.publish: Callable[[Producer, Sequence[Frame]], None] = self._publishing.publish
        self.subscribing = Subscribing(self)
        self.subscribe = self.subscribing.subscribe
        self.create_subscription = self.subscribing.create
        self.create_initial_subscription = self.subscribing.create_initial
        self.delete_subscription = self.subscribing.delete
        self._closed = broker.loop.create_future()
        self._closings: list[tuple[int, Callable[[], object]]] = []
        self.pacing = TopicPacing(self)
        self.upkeep = TopicUpkeep(self)
        self.apply_policies = self.upkeep.apply_policies
        self.maintain = self.upkeep.maintain
        self._rates = TopicRates(self)
        self.update_rates = self._rates.update
        self.compaction = TopicCompaction(self)
        self._sealing: asyncio.Task[None] | None = None

    @staticmethod
    async def open(broker: Broker, name: TopicName, topic_log: TopicLog, policies: Policies) -> Topic:
        found = topic_log.recovered
        state = topic_state.fold(found.snapshot, found.deltas) if found else topic_state.TopicState()
        topic = Topic(broker, name, topic_log, state)
        topic.apply_policies(policies)
        is_asked = topic.publishing.is_deduplicating or (topic.is_sealed and state.producers)
        is_read = bool(is_asked or topic.hidden.has_attempts)
        if is_read:
            # Only then is opening worth a look into the log.
            await topic._replay(state.producers_as_of)
        topic.sequence_ids.opened(is_read=is_read)
        if not topic.hidden.entries.is_empty:
            topic.hidden.entries.trim(topic_log.topic_record.trimmed)
            topic.hidden.show()
        topic._has_end = topic.is_sealed and not topic.hidden.has_open
        for sub_name, stored in state.subscriptions.items():
            subscription = topic.subscribing.make(
                sub_name,
                stored.cursor,
                kind=stored.kind,
                properties=stored.properties,
                extra=stored.extra,
            )
            if stored.extra.get(COMPACTED):
                subscription.read_from(await topic.compaction.open_view())
            topic.subscriptions[sub_name] = subscription
        topic_log.start(topic)
        topic.is_open = True
        if topic.hidden.has_attempts:
            try:
                await topic.hidden.look()
            except BaseException:
                # It is written to already, and nobody will have it.
                await topic.close()
                raise
        return topic

    async def _replay(self, hidden_as_of: Position) -> None:
        """Learns from entries written after the state was last stored in full: sequence ids, and what is hidden."""
        ids_from = self.sequence_ids.unread_from or hidden_as_of
        async for ledger, number, metadata, entry in self.entries(min(ids_from, hidden_as_of), self.log.end):
            at = (ledger, number)
            is_hidden = at >= hidden_as_of and self.hidden.replay(ledger, number, metadata)
            if at >= ids_from and not is_hidden:
                self.sequence_ids.replay(metadata, entry)

    async def entries(
        self, first: Position, end: Position
    ) -> AsyncIterator[tuple[int, int, pb.MessageMetadata, Buffer]]:
        """Ledger, number, metadata and bytes of the entries in [first, end).

        It steps over damage, and over entries whose metadata nobody can read: they say nothing of anybody."""
        at = self.log.normalise(first)
        while at < end:
            try:
                ledger, entries = await self.log.read(at, _REPLAY_ENTRIES, _REPLAY_BYTES)
            except LogDamagedError as damage:
                log.error("%s: %s", self.name, damage)
                if damage.next_good is None:
                    break
                at = self.log.normalise((damage.ledger, damage.next_good))
                continue
            for number, _, data in entries:
                if (ledger, number) < end:
                    try:
                        metadata = parse_metadata(data)
                    except MalformedFrame as error:
                        log.warning("%s: entry %s:%s: %s", self.name, ledger, number, error)
                    else:
                        yield ledger, number, metadata, data
            at = self.log.normalise((ledger, entries[-1][0] + 1))

    # -- the log's owner

    def entries_confirmed(self, entries_end: int) -> None:
        try:
            self._publishing.confirmed(entries_end)
        except Exception:
            # Its producers begin anew; readers and those who wait for the log have nothing to do with it.
            log.exception("%s: answering producers failed, they are closed", self.name)
            self.attached.close_all()
        self._wake_readers()
        while self._closings and self._closings[0][0] <= entries_end:
            self._tell(self._closings.pop(0)[1])
        self.broker.progressed()

    def _wake_readers(self) -> None:
        for subscription in list(self.subscriptions.values()):
            self._tell(subscription.entries_confirmed)

    def _tell(self, one: Callable[[], object]) -> None:
        """One of several parts hears what the log did. The failure of one part does not keep it from the others."""
        try:
            one()
        except Exception:
            log.exception("%s: a part of the topic failed when it was told what the log did", self.name)

    def log_lost(self, error: LogError) -> None:
        log.error("%s: the log is lost, closing the topic: %s", self.name, error)
        closings, self._closings = self._closings, []
        # Each on its own: whatever state the topic is in, nobody waits for it for ever.
        for step in (self._publishing.abandon, self.compaction.cancel, self._detach_all):
            self._tell(step)
        for _, then in closings:
            self._tell(then)
        self._finish_close()

    def encode_state(self) -> bytes:
        extra = dict(self._extra)
        if self.attached.epoch is not None:
            extra["topic_epoch"] = self.attached.epoch
        if covered := self._publishing.dedup.covered_image():
            extra[COVERED] = covered
        extra |= self.sequence_ids.image()
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
    def subscriptions(self) -> dict[str, Subscription]:
        return self.subscribing.all

    @property
    def policies(self) -> Policies:
        """Those in force here: the namespace's, and over them the topic's own."""
        return self.upkeep.policies

    @property
    def limits(self) -> TopicLimits:
        return self.upkeep.limits

    async def add_producer(self, producer: Producer, request_id: int) -> None:
        """Attaches the producer and answers its request, or raises why not. A waiting one is answered twice."""
        key, value = SEALED_OK
        if self._publishing.is_sealed and producer.metadata.get(key) != value:
            raise _terminated(self.name)
        hidden = hidden_as(producer.metadata)
        if hidden is not None:
            await self.hidden.admit(*hidden, producer.role)
        if self.upkeep.quotas.is_set:
            await self.upkeep.quotas.admit_producer()
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
        if not producer.link.awaits_producer(producer):
            raise NotReadyError("the client closed this producer while it was being created")
        present = len(self.producers) - (producer.name in self.producers)
        self.limits.check_producer(str(self.name), present, is_encrypted=producer.is_encrypted)
        producer.topic = self
        self._publishing.dedup.began(producer.name)
        self.attached.add(producer, request_id)

    def last_sequence_id(self, producer: str) -> int:
        """What a producer that comes back is told: the last id that is stored, -1 without deduplication.

        A sealed topic goes on answering for its producers, whatever the policy is by now.
        """
        is_known = self._publishing.is_deduplicating or self._publishing.is_sealed
        return self._publishing.dedup.last_confirmed(producer) if is_known else -1

    async def settled_sequence_id(self, producer: str) -> int:
        """The same for a producer in doubt, once all that was taken of it is stored.

        Told too little, it would send again to others what this topic is about to store.
        """
        if self._publishing.dedup.is_behind(producer):
            await self._confirmed_so_far()
        if self.is_closed:
            raise NotReadyError(f"{self.name} is closing")
        return self.last_sequence_id(producer)

    def store_epoch(self, done: Callable[[Exception | None], None]) -> None:
        self.log.store_snapshot(done)

    def _producer_departed(self, producer: Producer) -> None:
        self.sequence_ids.departed(producer)

    def close_producer(self, producer: Producer, answered: Callable[[], None]) -> None:
        """The client is done: answered once everything it sent is."""

        def finish() -> None:
            producer.is_closed = True
            self.attached.remove(producer)
            answered()

        self._when_confirmed(self.log.next_entry, finish)

    def _detach_all(self) -> None:
        """Every client is told that its producer or consumer is closed; those that want to, come back."""
        self.is_closed = True
        self.attached.close_all()
        self.subscribing.detach_all()

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
            # Producers of a segment are told at once and turn to its children.
            self._publishing.seal(is_silent=self.name.is_classic)
            if self._publishing.is_deduplicating or not self._publishing.dedup.pushed:
                await self.stored(topic_state.sealed())
            else:
                # Ids of a time with deduplication. A producer that began anew since, and asks what is stored of what it
                # is in doubt about, would be told that all of it is. No delta can say so.
                self._publishing.dedup.forget_all()
                await self.stored_in_full()
        if self.log.topic_record.sealed_end is None:
            await self.log.seal()
        if self.name.is_classic:
            self.attached.close_all()
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
        self._wake_readers()
        is_sealing = self._sealing is not None and not self._sealing.done()
        if self.is_sealed and not is_sealing and not self._has_end:
            self._end()
            self.broker.on_segment_progress(self.name)

    async def stored(self, delta: bytes) -> None:
        """Waits until a state change, and with it everything appended before, is confirmed."""
        done: asyncio.Future[None] = self.broker.loop.create_future()
        self.log.record(delta, lambda error: _settle(done, error))
        await done

    def stored_in_full(self) -> asyncio.Future[None]:
        """Done once the state as it is now is confirmed, for what no delta can say."""
        done: asyncio.Future[None] = self.broker.loop.create_future()
        # Whoever asked may be gone by then.
        done.add_done_callback(lambda _: done.cancelled() or done.exception())
        self.log.store_snapshot(lambda error: _settle(done, error))
        return done

    async def close(self) -> None:
        """Lets the topic go: what was accepted is confirmed and answered, clients are told to come back."""
        if self.is_closed:
            await self.wait_closed()
            return
        self.is_closed = True
        try:
            await self.compaction.stop()
            await self._settle()
        finally:
            # However far it came: clients of a topic that is closed would wait for ever, and others wait for it to be
            # closed, to open it again.
            self._tell(self._publishing.stop)
            self._tell(self._detach_all)
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

    def when_confirmed(self, then: Callable[[], object]) -> None:
        """Calls back once everything appended so far is confirmed."""
        self._when_confirmed(self.log.next_entry, then)

    def _when_confirmed(self, entries_end: int, then: Callable[[], object]) -> None:
        if self.log.confirmed_end >= entries_end:
            then()
        else:
            self._closings.append((entries_end, then))

    def _finish_close(self) -> None:
        self.is_closed = True
        self.broker.open_topics.closed(self)
        if not self._closed.done():
            self._closed.set_result(None)

    async def wait_closed(self) -> None:
        await asyncio.shield(self._closed)

    async def delete(self, *, force: bool, if_unused: Callable[[Topic], bool] | None = None) -> None:
        # Nothing is awaited between the look and the end of it: whoever comes later finds it closing.
        if if_unused is not None:
            if not if_unused(self):
                raise NotAllowedError(f"{self.name} is in use")
        elif not force:
            self.check_deletable()
        self._detach_all()
        await self.compaction.stop()
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

    def check_deletable(self) -> None:
        """NotAllowedError while clients use the topic, or while it holds what readers may yet see: that takes force."""
        if self.producers or any(s.consumers for s in self.subscriptions.values()):
            raise NotAllowedError("Topic has active producers/subscriptions; disconnect them, or force")
        if self.hidden.has_open:
            raise NotAllowedError(
                "Topic holds entries of hidden writes that are not decided; decide or drop them, or force"
            )

    async def skip_damage(self) -> int:
        """Gives up the damaged entries that readers have met; returns how many."""
        skipped = 0
        for subscription in self.subscriptions.values():
            damage = None if subscription.dispatcher is None else subscription.dispatcher.damage
            if damage is not None and self.log.normalise(_at(damage)) == _at(damage):
                skipped += await self.log.skip_damage(damage)
            subscription.entries_confirmed()
        return skipped

    # -- figures

    @property
    def is_bare(self) -> bool:
        return self.upkeep.is_bare

    @property
    def finished_readers(self) -> frozenset[str]:
        return self.subscribing.finished_readers

    @property
    def rates_in(self) -> tuple[float, float]:
        """Messages and bytes a second."""
        return self._rates.rates_in

    @property
    def counters(self) -> tuple[int, int, int, int]:
        return self._rates.counters

    @property
    def keys_seen(self) -> KeysSeen:
        return self._rates.keys_seen

    def stats(self) -> dict[str, Any]:
        return topic_stats(self)

    def internal_stats(self) -> dict[str, Any]:
        return internal_stats(self)

    @property
    def publishing(self) -> Publishing:
        return self._publishing


def _settle(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _at(damage: LogDamagedError) -> Position:
    return damage.ledger, damage.first_bad


def _terminated(name: TopicName) -> TopicTerminatedError:
    return TopicTerminatedError(f"{name} was terminated: it takes no more messages")
