"""Data plane. Entry buckets (PIP-486): the consumers of a segment share it by the buckets of its keys, in order.

A producer stamps each entry with the least and the greatest bucket hash of its keys. The entry goes whole to the owner
of its first bucket, once no other consumer has an unacknowledged entry of any bucket in that range; so a bucket that
moves is withheld until its former owner has acknowledged, and other buckets continue. An entry without a usable stamp
may have keys of every bucket. Nothing is unpacked, and no key is hashed.

Who owns a bucket is told by name, from the stored sessions. A bucket is withheld while no consumer is named for it,
or one that is not connected. As for an Exclusive consumer, delivery times are ignored and any number of messages may be
unacknowledged; only the number of entries is bounded.

The chunks of a message that was begun go to the consumer that has the others, also once another one owns the bucket. A
message counts in the order of its key where it becomes whole, as it does for a lone consumer. Until then its chunks
hold no bucket: they are not acknowledged, and the rest of the message may never come.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from anabranch.broker.dispatch.base import DispatchContext
from anabranch.broker.dispatch.bucket_queues import BucketQueues
from anabranch.broker.dispatch.bucket_scan import BucketScan
from anabranch.broker.dispatch.chunks import BegunChunks
from anabranch.broker.dispatch.concurrent import ConcurrentDispatcher
from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.dispatch.every_bucket import Span, WaitingEntry
from anabranch.broker.dispatch.kept import KeptBudget, KeptEntries
from anabranch.broker.dispatch.replay import ReplayRun
from anabranch.broker.errors import ConsumerBusyError
from anabranch.broker.ports import EntryBatch
from anabranch.model import buckets
from anabranch.model.buckets import Splits
from anabranch.model.position import Position
from anabranch.model.segments import HashRange
from anabranch.storage.port import Entry
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.stamps import stamp_of
from anabranch.wire.subscription_types import KEY_SHARED

# The most unacknowledged entries of one consumer. An application that acknowledges every 100,000 messages must not come
# to a stop, even if each is an entry of its own.
ENTRIES_UNACKED_MAX: Final = 200_000
# A span as one integer, as it is noted with a sent entry.
_SHIFT: Final = 16
_LOW: Final = (1 << _SHIFT) - 1
# With the span of a chunk that left its message incomplete.
_HOLDS_NOTHING: Final = 1 << (2 * _SHIFT)

# The name of each bucket's owner, None where no consumer is named.
OwnerNames = Sequence[str | None]


class BucketOwnership(Protocol):
    """Who owns the buckets of one segment in one subscription, as far as that is stored."""

    @property
    def splits(self) -> Splits: ...

    @property
    def reassignments(self) -> int:
        """How many times a bucket was given to another consumer."""

    @property
    def kept_budget(self) -> KeptBudget:
        """Shared by the subscriptions of a broker."""

    def follow(self, tell: Callable[[OwnerNames], None]) -> Callable[[], None]:
        """Calls `tell` with the names, and again whenever they change; the result ends that."""


def is_by_buckets(consumer: AttachedConsumer) -> bool:
    """Whether the consumer shares a segment by entry buckets."""
    meta = consumer.key_shared
    return consumer.kind == KEY_SHARED and meta is not None and meta.entryBucketDispatch


class EntryBucketDispatcher(ConcurrentDispatcher):
    kind = KEY_SHARED
    _honours_delays = False

    def __init__(self, context: DispatchContext, ownership: BucketOwnership) -> None:
        self._splits = ownership.splits
        self._queues = BucketQueues(len(self._splits) + 1, context.cursor.next)
        self._scan = BucketScan(self._queues.all, context.cursor.next)
        self._kept = KeptEntries(ownership.kept_budget, len(self._queues.all))
        super().__init__(context)
        self._ownership = ownership
        self._names: OwnerNames = ()
        self._stop_following: Callable[[], None] | None = None
        self._chunks = BegunChunks()
        # An entry of every bucket at which reading stands.
        self._barrier: Position | None = None
        self._is_scanning = False
        # Whether entries were acknowledged by consumers that did not have them.
        self._are_others_acked = False
        # How many messages and bytes an entry has, by the last ones read.
        self._entry_messages = 1
        self._entry_bytes = 1
        # Whether the entries that have arrived were read from a file, and the bucket of the one that has just been put
        # aside, or -1.
        self._is_cold = False
        self._was_cold = False
        self._waits_in = -1
        self._all: Final = (0, len(self._splits))

    # -- consumers

    @property
    def unacked_max(self) -> int:
        return 0

    def add(self, consumer: AttachedConsumer) -> None:
        for other in self.consumers:
            if other.name == consumer.name:
                raise ConsumerBusyError(
                    f"a consumer named {other.name} is connected to {self._ctx.subscription} already"
                )
        super().add(consumer)
        if self._stop_following is None:
            self._stop_following = self._ownership.follow(self._told)
        else:
            self._appoint()

    def strangers_to(self, newcomer: str) -> list[AttachedConsumer]:
        """Where the sessions give that consumer every bucket: the consumers that hold nothing. Others of the group have
        left, or are about to; these would keep it waiting for as long as they like."""
        if not self._names or any(name != newcomer for name in self._names):
            return []
        return [one for one in self.consumers if one.name != newcomer and not one.pending]

    def remove(self, consumer: AttachedConsumer) -> None:
        self._chunks.left(consumer)
        super().remove(consumer)
        self._queues.forget_destined(consumer)
        self._appoint()
        if not self.consumers:
            self._stop()

    def close(self) -> None:
        super().close()
        self._kept.clear()
        self._stop()

    def _stop(self) -> None:
        if self._stop_following is not None:
            self._stop_following()
            self._stop_following = None

    def _told(self, names: OwnerNames) -> None:
        self._names = names
        self._appoint()
        self.wake_soon()

    def _appoint(self) -> None:
        """Sets the owner of each bucket to the connected consumer that is named for it."""
        connected = {consumer.name: consumer for consumer in self.consumers}
        names = self._names
        for number, bucket in enumerate(self._queues.all):
            name = names[number] if number < len(names) else None
            owner = None if name is None else connected.get(name)
            bucket.owner = owner
        self._queues.check_all()

    def rewind(self) -> None:
        super().rewind()
        owners = [bucket.owner for bucket in self._queues.all]
        self._queues = BucketQueues(len(self._splits) + 1, self.read_at)
        for bucket, owner in zip(self._queues.all, owners, strict=True):
            bucket.owner = owner
        self._scan = BucketScan(self._queues.all, self.read_at)
        self._chunks.clear()
        self._kept.clear()
        self._barrier = None

    # -- who has what

    def acked(self, consumer: AttachedConsumer, at: Position) -> None:
        if at not in consumer.pending:
            # A consumer that comes back repeats acknowledgements of entries that wait here by now.
            self._are_others_acked = True
            self._queues.destine(at, None)
            self._kept.take(at)
        super().acked(consumer, at)

    def acks_done(self) -> None:
        if self._are_others_acked:
            self._are_others_acked = False
            self._queues.check_all()
        super().acks_done()

    def acked_below(self, at: Position) -> None:
        self._queues.drop_below(at)
        self._kept.drop_below(at)
        super().acked_below(at)

    def _given_back(self, owner: AttachedConsumer, key_hash: int) -> None:
        if not key_hash & _HOLDS_NOTHING:
            self._queues.give_back(_span(key_hash), owner)
        if owner.is_blocked and len(owner.pending) <= ENTRIES_UNACKED_MAX // 2:
            owner.is_blocked = False

    def _hand_back(
        self, consumer: AttachedConsumer, entries: Iterable[tuple[Position, tuple[int, int]]]
    ) -> None:
        places: list[Position] = []
        collected = self._scan.collected_by_all()
        for at, (messages, code) in entries:
            places.append(at)
            span = _span(code)
            if not code & _HOLDS_NOTHING:
                self._queues.give_back(span, consumer)
            self._wait_again(at, span, messages, collected)
        self._chunks.handed_back(consumer, places)
        self._queues.forget_destined(consumer)

    def _wait_again(
        self, at: Position, span: Span, messages: int, collected_by_all: Position | None = None
    ) -> None:
        """Lets an entry wait for its turn again; buckets that have not got to it yet will read it."""
        one = WaitingEntry(at, span, messages)
        if self._queues.is_of_every(span):
            if at < (collected_by_all or self._scan.collected_by_all()):
                self._queues.every.wait(one)
                return
            behind = [bucket for bucket in self._queues.all if at >= self._scan.collected(bucket)]
            if len(behind) < len(self._queues.all):
                self._queues.every.wait(one)
            for bucket in behind:
                bucket.await_entry(at)
            return
        for number in range(span[0], span[1] + 1):
            bucket = self._queues.all[number]
            if at < self._scan.collected(bucket):
                self._queues.wait(number, one)
            else:
                bucket.await_entry(at)

    # -- dispatch

    def _span_of(self, metadata: pb.MessageMetadata) -> Span:
        """The buckets that the entry may have keys of: all of them unless its stamp is sound."""
        stamp = stamp_of(metadata)
        if stamp is None:
            return self._all
        low, high = stamp
        return self._queues.span(bisect_right(self._splits, low), bisect_right(self._splits, high))

    def _route(self, at: Position, metadata: pb.MessageMetadata) -> AttachedConsumer | None:
        span = self._span_of(metadata)
        self._key_hash = span[0] << _SHIFT | span[1]
        self._is_stuck = False
        queues = self._queues
        is_chunk = metadata.num_chunks_from_msg > 1
        if span[0] == span[1] and not is_chunk:
            # Nearly every entry; what follows would come to the same, and takes twice as long.
            bucket, every = queues.all[span[0]], queues.every
            owner = bucket.owner
            if (
                owner is not None
                and not bucket.aside
                and not every.waiting
                and (bucket.holder is None or bucket.holder is owner)
                and (every.holder is None or every.holder is owner)
                and (not self._is_scanning or (bucket.is_following and at >= bucket.since))
                and self._has_room(owner)
            ):
                bucket.holder = owner
                bucket.held += 1
                return owner
        is_fresh = True
        if self._is_scanning and (self._scan.is_split or not queues.is_of_every(span)):
            touched = queues.touched(span)
            is_uncollected = False
            for bucket in touched:
                if at < bucket.since:
                    is_fresh = False
                else:
                    is_uncollected = True
                    is_fresh = is_fresh and bucket.is_following
            if not is_uncollected:
                return None
        if is_chunk and is_fresh:
            queues.destine(at, self._chunks.owner(metadata))
        consumer = queues.receiver(at, span) if is_fresh else None
        if consumer is not None and self._has_room(consumer):
            if is_chunk and not self._chunks.sent(at, metadata, consumer):
                self._key_hash |= _HOLDS_NOTHING
            else:
                queues.take(span, consumer)
            queues.destine(at, None)
            return consumer
        self._put_aside(at, span, metadata)
        return None

    def _has_room(self, consumer: AttachedConsumer) -> bool:
        if len(consumer.pending) >= ENTRIES_UNACKED_MAX:
            consumer.is_blocked = True
        return consumer.has_room

    def _put_aside(self, at: Position, span: Span, metadata: pb.MessageMetadata) -> None:
        messages = max(1, metadata.num_messages_in_batch)
        one = WaitingEntry(at, span, messages)
        if not self._is_scanning:
            self._waits_in = span[0]
            self._wait_again(at, span, messages)
            return
        if span == self._all and not self._scan.is_split:
            # Nothing can pass it: it is read again when it can be sent.
            self._barrier = at
            self._is_stuck = True
            return
        if self._queues.is_of_every(span):
            self._put_every_aside(one)
            return
        aside_max, left_out = self._aside_max, []
        for number in range(span[0], span[1] + 1):
            bucket = self._queues.all[number]
            if at < bucket.since:
                continue
            if bucket.is_following and len(bucket.aside) < aside_max:
                self._queues.wait(number, one)
                self._waits_in = span[0]
                continue
            if bucket.is_following:
                self._scan.pass_over(bucket, at)
            left_out.append(bucket)
        if len(left_out) <= span[1] - span[0]:
            for bucket in left_out:
                bucket.await_entry(at)

    def _put_every_aside(self, one: WaitingEntry) -> None:
        """The entry waits once, whichever buckets have got to it; the others will."""
        at, every = one.at, self._queues.every
        has_room = at in every or len(every.waiting) < self._aside_max
        left_out = []
        for bucket in self._queues.all:
            if at < bucket.since:
                continue
            if bucket.is_following and has_room:
                continue
            if bucket.is_following:
                self._scan.pass_over(bucket, at)
            left_out.append(bucket)
        if len(left_out) < len(self._queues.all):
            every.wait(one)
            for bucket in left_out:
                bucket.await_entry(at)

    @property
    def _aside_max(self) -> int:
        """How many entries may wait in a bucket before it is passed over."""
        limits = self._ctx.limits
        return max(1, min(limits.held_per_consumer_max, limits.held_max // len(self._queues.all)))

    # -- reading

    def _pump(self) -> None:
        self._is_cold = False
        super()._pump()

    def _release(self) -> None:
        collected = self._scan.collected_by_all()
        self._replay.add_all(
            self._queues.release(self._ctx.limits.burst_entries, self._cursor.is_acked, collected)
        )

    def _next_read(self) -> Position | None:
        if self._scan.is_split:
            chosen = self._scan.choose(self._aside_max, self._unread)
            if chosen is None:
                return None
            self._scan.move(chosen)
            self.read_at = chosen
        elif not self._may_go_on():
            return None
        if self._cursor.held or self.read_at < self._cursor.next:
            self.read_at = self._cursor.first_unacked(self.read_at)
            self._scan.reached(self.read_at)
        return self.read_at

    def _may_go_on(self) -> bool:
        """Whether something of what comes next can be sent, where all buckets have got equally far."""
        if self._barrier is not None and not self._cursor.is_acked(self._barrier):
            consumer = self._queues.receiver(self._barrier, self._all)
            return consumer is not None and consumer.has_room
        return any(bucket.is_open for bucket in self._queues.all)

    def _unread(self, at: Position) -> Position | None:
        """The first unacknowledged entry from that position on; None if there is none."""
        while (at := self._log.normalise(self._cursor.first_unacked(at))) < self._log.end:
            if not self._cursor.is_acked(at):
                return at
        return None

    def _burst(self, entries_max: int) -> int:
        # Of batches, fewer entries can be sent than there is room for messages. What is read beyond that waits; it is
        # read again by itself, entry by entry, unless there is room to keep it.
        sendable = 1 + self._room(entries_max * self._entry_messages) // self._entry_messages
        return min(entries_max, max(sendable, self._kept.room // self._entry_bytes if self._was_cold else 0))

    def _read(self, at: Position, entries_max: int, then: Callable[[EntryBatch], None]) -> None:
        self._is_cold = True
        super()._read(at, entries_max, then)

    def _new_arrived(self, batch: EntryBatch) -> None:
        if batch[1]:
            self._entry_messages = max(1, sum(one[1] for one in batch[1]) // len(batch[1]))
            self._entry_bytes = max(1, sum(len(one[2]) for one in batch[1]) // len(batch[1]))
            self._barrier = None
        self._is_scanning = True
        self._was_cold = self._is_cold
        try:
            super()._new_arrived(batch)
        finally:
            self._is_scanning = False
        if batch[1]:
            self._scan.reached(self.read_at)
            if self._scan.is_split:
                self.wake_soon()

    def _set_aside(self, ledger: int, entry: Entry) -> None:
        bucket, self._waits_in = self._waits_in, -1
        if bucket >= 0 and self._is_cold:
            self._kept.keep((ledger, entry[0]), entry, bucket)

    def _next_run(self, room: int) -> ReplayRun | None:
        return self._replay.take_run(room, self._kept)

    def _pump_replay(self) -> None:
        if not len(self._kept):
            super()._pump_replay()
            return
        places = self._replay.take_those(self._kept, self._ctx.limits.burst_entries)
        if not places:
            super()._pump_replay()
            return
        # In the order of the log: those that are not kept come in their turn.
        self._is_cold = True
        self._deliver(places[0][0], [one for at in places if (one := self._kept.take(at)) is not None])
        self.wake_soon()

    def _is_over_unacked(self) -> bool:
        return False

    @property
    def is_all_sent(self) -> bool:
        if len(self._replay) or self._queues.waiting:
            return False
        return not self._are_unread({self._scan.collected(one) for one in self._queues.all})

    def _are_unread(self, places: set[Position]) -> set[Position]:
        """Those of the positions from which on something is unacknowledged."""
        return {at for at in places if self._unread(at) is not None}

    # -- figures

    @property
    def bucket_count(self) -> int:
        return len(self._queues.all)

    @property
    def reassignments(self) -> int:
        return self._ownership.reassignments

    @property
    def withheld(self) -> int:
        """How many buckets have entries that wait for another consumer or for an owner."""
        if not self.consumers:
            return 0
        unread = self._are_unread({self._scan.collected(one) for one in self._queues.all})
        return self._queues.withheld(one for one in self._queues.all if self._scan.collected(one) in unread)

    def ranges(self) -> dict[AttachedConsumer, list[HashRange]]:
        """The buckets of each consumer."""
        found: dict[AttachedConsumer, list[HashRange]] = {}
        for bucket, span in zip(self._queues.all, buckets.ranges(self._splits), strict=True):
            if bucket.owner is not None:
                found.setdefault(bucket.owner, []).append(span)
        return found

    def stats(self) -> dict[str, Any]:
        stats = super().stats()
        stats["msgInReplay"] += self._queues.waiting
        stats["keySharedMode"] = pb.KeySharedMode.Name(pb.STICKY)
        # These fields are not Pulsar's.
        stats["entryBuckets"] = self.bucket_count
        stats["entryBucketsWithheld"] = self.withheld
        stats["entryBucketReassignments"] = self.reassignments
        stats["unackedEntries"] = sum(len(one.pending) for one in self.consumers)
        stats["unackedEntriesPerConsumerMax"] = ENTRIES_UNACKED_MAX
        return stats


def _span(code: int) -> Span:
    return code >> _SHIFT & _LOW, code & _LOW
