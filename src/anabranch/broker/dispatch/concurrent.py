"""Data plane. The common part of Shared and Key_Shared: several consumers at once, each acknowledging single entries.

Every sent entry is noted with the consumer that has it, so that it can go to another if that one leaves or refuses it.
Entries to be sent again come before new ones, the lowest position first. Metadata is searched for the two tags that
mark a delayed message or a chunk, and parsed only if it has one of them.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any

from anabranch.broker.dispatch.base import (
    BATCH_MESSAGES_MAX,
    DispatchContext,
    Dispatcher,
    messages_of,
    metadata_of,
)
from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.dispatch.delayed import DelayedEntries
from anabranch.broker.dispatch.replay import ReplayQueue, ReplayRun
from anabranch.broker.ports import EntryBatch
from anabranch.model.position import Position
from anabranch.storage.port import Buffer, Entry
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.encode import encode_message_header


class ConcurrentDispatcher(Dispatcher):
    def __init__(self, context: DispatchContext) -> None:
        super().__init__(context)
        self.unacked = 0
        self.is_blocked = False
        # Consumers that may have room, in turn, by priority; the highest (0) first.
        self._rounds: list[tuple[int, deque[AttachedConsumer]]] = []
        self._replay = ReplayQueue()
        self._delayed = DelayedEntries()
        self._delay_timer: asyncio.TimerHandle | None = None
        self._delay_timer_ms = 0
        # How often consumers handed an entry back; clients use it to decide when to give up on a message.
        self._redeliveries: dict[Position, int] = {}

    # -- consumers

    def add(self, consumer: AttachedConsumer) -> None:
        if not self.consumers:
            # No consumer holds any entry: the cursor alone determines what is to be sent.
            self.rewind()
        self.consumers.append(consumer)
        consumer.unacked_max = self.unacked_max
        if all(level != consumer.priority for level, _ in self._rounds):
            self._rounds = sorted(
                [*self._rounds, (consumer.priority, deque[AttachedConsumer]())], key=lambda one: one[0]
            )
        self._queue(consumer)

    def remove(self, consumer: AttachedConsumer) -> None:
        self.consumers.remove(consumer)
        for _, waiting in self._rounds:
            if consumer in waiting:
                waiting.remove(consumer)
        consumer.is_queued = False
        # Levels without consumers would be checked for each entry.
        levels = {one.priority for one in self.consumers}
        self._rounds = [one for one in self._rounds if one[0] in levels]
        self._lower_unacked(consumer.unacked)
        pending, consumer.pending = consumer.pending, {}
        consumer.unacked = 0
        if self.consumers:
            self._hand_back(consumer, pending.items())
            self.wake_soon()
        else:
            self.rewind()

    def ready(self, consumer: AttachedConsumer) -> None:
        self.wake()

    def may_unsubscribe(self, consumer: AttachedConsumer) -> bool:
        return self.consumers == [consumer]

    def room_changed(self, consumer: AttachedConsumer) -> None:
        if consumer.has_room:
            self._queue(consumer)
            self.wake()

    @property
    def levels(self) -> list[int]:
        """The priorities of its consumers, the highest first."""
        return [level for level, _ in self._rounds]

    def _queue(self, consumer: AttachedConsumer) -> None:
        if not consumer.is_queued:
            consumer.is_queued = True
            next(waiting for level, waiting in self._rounds if level == consumer.priority).append(consumer)

    def _next_with_room(self) -> AttachedConsumer | None:
        """The consumer whose turn it is, left at the head of its round; consumers without room leave the round."""
        for _, waiting in self._rounds:
            while waiting:
                consumer = waiting[0]
                if consumer.has_room:
                    return consumer
                waiting.popleft()
                consumer.is_queued = False
        return None

    def _room(self, count_max: int) -> int:
        """How many messages may be sent now, counted up to a limit: reading more would be wasted."""
        total = 0
        for _, waiting in self._rounds:
            for consumer in waiting:
                if consumer.has_room:
                    total += consumer.permits
                    if total >= count_max:
                        return count_max
        return total

    def limits_changed(self) -> None:
        for consumer in self.consumers:
            if consumer.has_room:
                self._queue(consumer)
        self.is_blocked = False
        self._is_over_unacked()
        super().limits_changed()

    # -- acknowledgements

    def acked(self, consumer: AttachedConsumer, at: Position) -> None:
        owner, found = consumer, consumer.give_back(at)
        if found is None:
            for other in self.consumers:
                if at in other.pending:
                    owner, found = other, other.give_back(at)
                    break
        if self._redeliveries:
            self._redeliveries.pop(at, None)
        if found is not None:
            consumer.messages_acked += found[0]
            self._lower_unacked(found[0])
            self._given_back(owner, found[1])
            if not owner.is_queued and owner.has_room:
                self._queue(owner)

    def acked_part(self, consumer: AttachedConsumer, at: Position, messages: int) -> None:
        owner = next((c for c in (consumer, *self.consumers) if at in c.pending), None)
        if owner is not None:
            left, key_hash = owner.pending[at]
            messages = min(messages, left)
            owner.pending[at] = (left - messages, key_hash)
            owner.lower_unacked(messages)
            self._lower_unacked(messages)
            consumer.messages_acked += messages
            if not owner.is_queued and owner.has_room:
                self._queue(owner)

    def acks_done(self) -> None:
        self.wake()

    def acked_below(self, at: Position) -> None:
        for consumer in self.consumers:
            for place in [place for place in consumer.pending if place < at]:
                self.acked(consumer, place)
        self._replay.drop_below(at)
        self._delayed.drop_below(at)
        self._redeliveries = {place: n for place, n in self._redeliveries.items() if place >= at}
        self.acks_done()

    def _lower_unacked(self, messages: int) -> None:
        self.unacked -= messages
        if self.is_blocked and self.unacked < self._ctx.limits.subscription_unacked_max // 2:
            self.is_blocked = False

    def _given_back(self, owner: AttachedConsumer, key_hash: int) -> None:
        """Called when an entry with this key has left the consumer that had it."""

    @property
    def is_all_sent(self) -> bool:
        return super().is_all_sent and not len(self._replay) and not len(self._delayed)

    # -- sending again

    def redeliver_all(self, consumer: AttachedConsumer) -> None:
        self.redeliver(consumer, list(consumer.pending))

    def redeliver(self, consumer: AttachedConsumer, positions: list[Position]) -> None:
        back: list[tuple[Position, tuple[int, int]]] = []
        for at in positions:
            found = consumer.give_back(at)
            if found is None:
                continue
            back.append((at, found))
            consumer.messages_redelivered += found[0]
            self._redeliveries[at] = self._redeliveries.get(at, 0) + 1
            self._lower_unacked(found[0])
        self._hand_back(consumer, back)
        if consumer.has_room:
            self._queue(consumer)
        self.wake_soon()

    def _hand_back(
        self, consumer: AttachedConsumer, entries: Iterable[tuple[Position, tuple[int, int]]]
    ) -> None:
        """Queues entries that the consumer had, to be sent again."""
        self._replay.add_all(at for at, _ in entries)

    def rewind(self) -> None:
        super().rewind()
        for consumer in self.consumers:
            consumer.pending.clear()
            consumer.lower_unacked(consumer.unacked)
        self.unacked = 0
        self.is_blocked = False
        self._replay.clear()
        self._delayed.clear()

    def forget(self) -> None:
        super().forget()
        self._redeliveries.clear()

    def close(self) -> None:
        super().close()
        self._stop_delay_timer()

    # -- dispatch

    def _pump(self) -> None:
        if self.is_blocked or self._next_with_room() is None:
            return
        limits = self._ctx.limits
        if len(self._delayed):
            self._replay.add_all(self._delayed.take_due(self._ctx.now_ms(), limits.burst_entries))
            self._set_delay_timer()
        self._release()
        if len(self._replay):
            self._pump_replay()
            return
        at = self._next_read()
        if at is None:
            return
        want = self._burst(limits.burst_entries)
        batch = self._log.read_cached(at, want, limits.burst_bytes)
        if batch is None:
            self._read(at, want, self._new_arrived)
        elif batch[1]:
            self._new_arrived(batch)

    def _next_read(self) -> Position | None:
        """Where to read new entries now. None: not before something changes."""
        if not self._may_read_on():
            return None
        if self._cursor.held or self.read_at < self._cursor.next:
            self.read_at = self._cursor.first_unacked(self.read_at)
        return self.read_at

    def _burst(self, entries_max: int) -> int:
        """How many new entries to read."""
        return max(self._room(entries_max), self._read_ahead)

    def _pump_replay(self) -> None:
        limits = self._ctx.limits
        left, entries = limits.burst_bytes, limits.burst_entries
        # Scattered entries are read one by one; a burst of them is many small reads.
        while left > 0 and entries > 0:
            run = self._next_run(self._room(entries))
            if run is None:
                break
            batch = self._log.read_cached(run[:2], run[2], left)
            if batch is None:
                self._read(run[:2], run[2], partial(self._replay_arrived, run))
                return
            left -= self._replay_some(run, batch) + 1024
            entries -= run[2]
            if self.is_blocked or self._next_with_room() is None:
                return
        self.wake_soon()

    def _next_run(self, room: int) -> ReplayRun | None:
        """The next entries to be read again; None: nothing more now."""
        return self._replay.take_run(room)

    def _new_arrived(self, batch: EntryBatch) -> None:
        ledger, entries = batch
        if not entries:
            return
        done, _ = self._deliver(ledger, entries)
        if done:
            self.read_at = (ledger, entries[done - 1][0] + 1)
            if self.read_at < self._log.end or len(self._replay):
                self.wake_soon()

    def _replay_arrived(self, run: ReplayRun, batch: EntryBatch) -> None:
        if batch[0] < 0:
            # The read failed: the entries are still to be sent.
            self._replay.add_all((run[0], run[1] + n) for n in range(run[2]))
            return
        self._replay_some(run, batch)
        self.wake_soon()

    def _replay_some(self, run: ReplayRun, batch: EntryBatch) -> int:
        """Sends entries of a run again; entries that were not read or found no consumer go back to the queue."""
        ledger, first, count = run
        end = first + count
        # A read may return later entries, if those wanted have been trimmed or skipped.
        entries = [entry for entry in batch[1] if entry[0] < end] if batch[0] == ledger else []
        if not entries:
            return 0
        done, size = self._deliver(ledger, entries)
        left = entries[done][0] if done < len(entries) else entries[-1][0] + 1
        self._replay.add_all((ledger, number) for number in range(left, end))
        return size

    def _deliver(self, ledger: int, entries: list[Entry]) -> tuple[int, int]:
        """Sends entries to their consumers; returns how many were processed, and their bytes."""
        cursor, now = self._cursor, self._ctx.now_ms()
        # The pieces for each consumer, and its permits before.
        out: dict[AttachedConsumer, tuple[list[Buffer], int]] = {}
        redeliveries = self._redeliveries
        size = done = 0
        for number, count, data in entries:
            at = (ledger, number)
            if (cursor.held or at < cursor.next) and cursor.is_acked(at):
                done += 1
                continue
            metadata = self._metadata_of(data)
            # The whole millisecond must be over: a client with a finer clock must not find a message early.
            if metadata.deliver_at_time >= now and self._honours_delays and self._ctx.limits.has_delays:
                self._delayed.add(at, metadata.deliver_at_time + 1)
                done += 1
                continue
            consumer = self._route(at, metadata)
            if consumer is None:
                if self._is_stuck:
                    break
                self._set_aside(ledger, (number, count, data))
                done += 1
                continue
            unacked = cursor.batches.get(at) if cursor.batches else None
            if unacked is not None:
                count = unacked.bit_count()
            elif not 0 < count <= BATCH_MESSAGES_MAX:
                count = messages_of(data)
            found = out.get(consumer)
            if found is None:
                found = out[consumer] = ([], consumer.permits)
            consumer.take(at, count, self._key_hash)
            self.unacked += count
            length = len(data)
            again = redeliveries.get(at, 0) if redeliveries else 0
            if again or unacked is not None:
                head = consumer.header(at, length, again, unacked)
            else:
                head = encode_message_header(
                    consumer.id, ledger, number, 0, consumer.partition, None, consumer.epoch, length
                )
            found[0].append(head)
            found[0].append(data)
            size += length
            done += 1
            if self._is_over_unacked():
                break
        for consumer, (pieces, permits) in out.items():
            bytes_out = size if len(out) == 1 else sum(map(len, pieces[1::2]))
            consumer.write(pieces, len(pieces) // 2, permits - consumer.permits, bytes_out, now)
        if len(self._delayed):
            self._set_delay_timer()
        return done, size

    def _is_over_unacked(self) -> bool:
        limit = self._ctx.limits.subscription_unacked_max
        if limit and self._ctx.is_durable and self.unacked >= limit:
            self.is_blocked = True
        return self.is_blocked

    # Further results of `_route`: the entry's key, and whether no consumer can accept anything more.
    _key_hash = 0
    _is_stuck = False
    # The fewest entries to read, however few can be sent: some of them may be set aside.
    _read_ahead = 1
    # Whether messages with a later delivery time wait for it.
    _honours_delays = True

    @abstractmethod
    def _route(self, at: Position, metadata: pb.MessageMetadata) -> AttachedConsumer | None:
        """The consumer for this entry. None: the entry has been set aside or, with `_is_stuck`, must be read again
        later."""

    def _set_aside(self, ledger: int, entry: Entry) -> None:
        """Called with each entry that `_route` has set aside."""

    def _release(self) -> None:
        """Moves entries that were set aside and can be sent now to the replay queue."""

    def _may_read_on(self) -> bool:
        """Whether new entries may be read, given how many are set aside already."""
        return len(self._delayed) < self._ctx.limits.delayed_max

    def _metadata_of(self, data: memoryview) -> pb.MessageMetadata:
        return metadata_of(data)

    # -- delayed entries

    def _set_delay_timer(self) -> None:
        due = self._delayed.next_due_ms
        if self._delay_timer is not None:
            if due == self._delay_timer_ms:
                return
            self._stop_delay_timer()
        if due is not None and not self._is_closed:
            wait = max(0, due - self._ctx.now_ms()) / 1000
            self._delay_timer_ms = due
            self._delay_timer = self._ctx.loop.call_later(wait, self._delay_over)

    def _stop_delay_timer(self) -> None:
        if self._delay_timer is not None:
            self._delay_timer.cancel()
            self._delay_timer = None

    def _delay_over(self) -> None:
        self._delay_timer = None
        self.wake()
        if len(self._delayed):
            self._set_delay_timer_later()

    def _set_delay_timer_later(self) -> None:
        """Sets the timer unless entries are due already: due entries wait for a consumer with room, not for the
        clock."""
        due = self._delayed.next_due_ms
        if due is not None and due > self._ctx.now_ms():
            self._set_delay_timer()

    # -- figures

    def stats(self) -> dict[str, Any]:
        return {
            "unackedMessages": self.unacked,
            "blockedSubscriptionOnUnackedMsgs": self.is_blocked,
            "msgDelayed": len(self._delayed),
            "msgInReplay": len(self._replay),
        }
