"""Data plane. Exclusive and Failover: one active consumer gets everything, in order.

Sent entries are not noted: unacknowledged ones are found again by going back to the cursor. A caught-up consumer costs
a header and two list appends per entry, and no metadata is parsed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from anabranch.broker.dispatch.base import (
    BATCH_MESSAGES_MAX,
    DispatchContext,
    Dispatcher,
    messages_of,
    metadata_of,
)
from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.dispatch.selector import FailoverOrder, KeyRanges
from anabranch.broker.dispatch.stamps import WantedHashes
from anabranch.broker.errors import ConsumerBusyError
from anabranch.broker.ports import EntryBatch
from anabranch.model.position import Position
from anabranch.storage.port import Buffer
from anabranch.wire.encode import encode_message_header
from anabranch.wire.extensions import WANTED_HASHES
from anabranch.wire.subscription_types import EXCLUSIVE, FAILOVER

# The most messages that compaction may have left in one batch; if there are more, the whole batch is sent.
_LEFT_MAX: Final = 1 << 16


class SingleActiveDispatcher(Dispatcher):
    def __init__(self, context: DispatchContext, kind: int) -> None:
        super().__init__(context)
        assert kind in (EXCLUSIVE, FAILOVER)
        self.kind = kind
        self.active: AttachedConsumer | None = None
        self._order = FailoverOrder(context.topic, context.partition) if kind == FAILOVER else None
        # While set, dispatch waits for the previous active consumer's acknowledgements before the next one starts.
        self._switching: asyncio.TimerHandle | None = None
        # An Exclusive consumer may ask for some keys only; entries of other keys are skipped and stay unacknowledged.
        self._only: KeyRanges | None = None
        # A reader without a cursor may ask for some entry buckets only; entries that have no key of them are skipped.
        self._wanted: WantedHashes | None = None

    # -- consumers

    def add(self, consumer: AttachedConsumer) -> None:
        if self.kind == EXCLUSIVE and self.consumers:
            raise ConsumerBusyError(
                f"ConsumerBusy: Exclusive consumer is already connected to {self._ctx.subscription}: "
                f"{self.consumers[0].name}"
            )
        self._only = self._wanted = None
        meta = consumer.key_shared
        hashes = consumer.metadata.get(WANTED_HASHES)
        if self.kind == EXCLUSIVE and hashes is not None and not self._ctx.is_durable:
            self._wanted = WantedHashes(hashes)
        if self.kind == EXCLUSIVE and meta is not None and meta.hashRanges:
            self._only = KeyRanges()
            self._only.add(consumer)
        self.consumers.append(consumer)
        if self._order is not None:
            self._order.add(consumer)
        self._choose()

    def ready(self, consumer: AttachedConsumer) -> None:
        if self.kind == FAILOVER and self._switching is None:
            consumer.send_active_change(consumer is self.active)

    def remove(self, consumer: AttachedConsumer) -> None:
        self.consumers.remove(consumer)
        if self._order is not None:
            self._order.remove(consumer)
        if consumer is not self.active:
            return
        if self.consumers:
            self._choose()
        else:
            self._stop_switching()
            self.active = None
            self._only = self._wanted = None
            self.rewind()

    def may_unsubscribe(self, consumer: AttachedConsumer) -> bool:
        return self.consumers == [consumer] and self.active is consumer

    def _choose(self) -> None:
        """Chooses the active consumer again."""
        chosen = self.consumers[0] if self._order is None else self._order.pick()
        last, self.active = self.active, chosen
        if chosen is last:
            return
        self._stop_switching()
        is_last_busy = last in self.consumers and self._cursor.settle(self._log) < self.read_at
        wait = self._ctx.limits.failover_wait_seconds if is_last_busy else 0.0
        if wait:
            self._switching = self._ctx.loop.call_later(wait, self._switch)
        else:
            self._switch()

    def _switch(self) -> None:
        self._switching = None
        if self.active is None or self._is_closed:
            return
        if self.kind == FAILOVER:
            for consumer in self.consumers:
                if consumer.is_ready:
                    consumer.send_active_change(consumer is self.active)
        self.rewind()
        self.wake()

    def _stop_switching(self) -> None:
        if self._switching is not None:
            self._switching.cancel()
            self._switching = None

    def close(self) -> None:
        super().close()
        self._stop_switching()

    # -- acknowledgements

    def acked(self, consumer: AttachedConsumer, at: Position) -> None:
        consumer.messages_acked += 1

    def acked_part(self, consumer: AttachedConsumer, at: Position, messages: int) -> None:
        consumer.messages_acked += messages

    def acked_below(self, at: Position) -> None:
        self.wake()

    def acks_done(self) -> None:
        if self._switching is not None and self._cursor.next >= self.read_at:
            # Everything sent to the previous consumer is acknowledged: nothing will be sent twice.
            self._stop_switching()
            self._switch()

    def redeliver_all(self, consumer: AttachedConsumer) -> None:
        if consumer is self.active and self._switching is None:
            self.rewind()
            self.wake()

    def redeliver(self, consumer: AttachedConsumer, positions: list[Position]) -> None:
        # Single messages cannot be sent again without breaking the order.
        self.redeliver_all(consumer)

    # -- dispatch

    def _pump(self) -> None:
        consumer = self.active
        if consumer is None or self._switching is not None:
            return
        if consumer.permits <= 0 or not consumer.link.is_writable:
            return
        at = self.read_at
        if self._cursor.held or at < self._cursor.next:
            at = self.read_at = self._cursor.first_unacked(at)
        limits = self._ctx.limits
        want = min(consumer.permits, limits.burst_entries)
        batch = self._log.read_cached(at, want, limits.burst_bytes)
        if batch is None:
            self._read(at, want, self._arrived)
        elif batch[1]:
            self._deliver(consumer, batch)
            if self.read_at < self._log.end:
                self.wake_soon()

    def _arrived(self, batch: EntryBatch) -> None:
        consumer = self.active
        if consumer is None or self._switching is not None or not consumer.link.is_writable:
            # Its socket has filled up during the read: the entries are read again when the socket has room.
            return
        if batch[1]:
            self._deliver(consumer, batch)
            if self.read_at < self._log.end:
                self.wake_soon()

    def _deliver(self, consumer: AttachedConsumer, batch: EntryBatch) -> None:
        ledger, entries = batch
        is_choosy = self._only is not None or self._wanted is not None
        if self._cursor.held or self._cursor.batches or is_choosy or self._ctx.is_compacted:
            self._deliver_some(consumer, batch)
            return
        id, partition, epoch, permits = consumer.id, consumer.partition, consumer.epoch, consumer.permits
        pieces: list[Buffer] = []
        sent = messages = size = 0
        number = 0
        for number, count, data in entries:
            length = len(data)
            if not 0 < count <= BATCH_MESSAGES_MAX:
                count = messages_of(data)
            pieces += (encode_message_header(id, ledger, number, 0, partition, None, epoch, length), data)
            size += length
            messages += count
            sent += 1
            if messages >= permits:
                break
        consumer.permits = permits - messages
        self.read_at = (ledger, number + 1)
        consumer.write(pieces, sent, messages, size, self._ctx.now_ms())

    def _deliver_some(self, consumer: AttachedConsumer, batch: EntryBatch) -> None:
        """Like `_deliver`, where some entries, or some messages of a batch, are not to be sent."""
        ledger, entries = batch
        cursor, only = self._cursor, self._only
        pieces: list[Buffer] = []
        sent = messages = size = 0
        number = 0
        last = entries[-1][0]
        for number, count, data in entries:
            at = (ledger, number)
            if cursor.is_acked(at):
                continue
            if only is not None and only.select(only.hash_of(metadata_of(data))) is not consumer:
                continue
            # The last one is sent anyway: the reader learns that nothing before it is left.
            if self._wanted is not None and number != last and not self._wanted.touch(metadata_of(data)):
                continue
            if not 0 < count <= BATCH_MESSAGES_MAX:
                count = messages_of(data)
            unacked = cursor.batches.get(at)
            if self._ctx.is_compacted:
                unacked = self._left_of(at, count, data, unacked)
            pieces += (consumer.header(at, len(data), 0, unacked), data)
            size += len(data)
            messages += count if unacked is None else unacked.bit_count()
            sent += 1
            if messages >= consumer.permits:
                break
        consumer.permits -= messages
        self.read_at = (ledger, number + 1)
        if pieces:
            consumer.write(pieces, sent, messages, size, self._ctx.now_ms())

    def _left_of(self, at: Position, count: int, data: memoryview, unacked: int | None) -> int | None:
        """Which messages of a batch are to be sent, where compaction has removed some of them.

        Not every client checks the marks of removed messages; but every client can be shown them as acknowledged. The
        cursor acknowledges them as well: otherwise a consumer that acknowledges each message it got would never finish
        the batch.
        """
        bits = _bits_of_places(metadata_of(data).compacted_batch_indexes, count)
        if not bits:
            return unacked
        if self._ctx.is_durable:
            self._cursor.ack_batch(at, bits, count)
            return self._cursor.batches.get(at, bits)
        return bits if unacked is None else bits & unacked

    def stats(self) -> dict[str, Any]:
        return {"activeConsumerName": self.active.name} if self.active is not None else {}


def _bits_of_places(places: Sequence[int], size: int) -> int:
    """The bits of those places of a batch of that many messages. Producers can claim any; places outside the batch are
    ignored."""
    if not places or len(places) > _LEFT_MAX:
        return 0
    bits = bytearray((size + 7) // 8)
    for place in places:
        if 0 <= place < size:
            bits[place >> 3] |= 1 << (place & 7)
    return int.from_bytes(bits, "little")
