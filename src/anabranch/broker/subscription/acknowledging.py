"""Data plane. Acknowledgements of consumers: which are refused, how they change the cursor, when they are written.

Acknowledgements change the cursor at once and are written once per turn of the event loop, all of a subscription in one
record; their answers wait until that record is confirmed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from anabranch.broker.dispatch.base import BATCH_MESSAGES_MAX
from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.errors import BrokerError, NotAllowedError, NotReadyError
from anabranch.broker.ports import Done
from anabranch.broker.state.cursor import bits_of_words
from anabranch.broker.subscription.cursor_keeper import CursorKeeper
from anabranch.model.position import Position
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.subscription_types import KEY_SHARED, SHARED

# How many messages of one command are processed in one turn of the event loop: some milliseconds. `_WORDS_PER_ID` words
# of ack sets cost as much as one message.
IDS_PER_TURN: Final = 2_000
_IDS_PER_TURN_MIN: Final = 100
_WORDS_PER_ID: Final = 32
# The most bytes for the bits of a subscription's partly acknowledged batches. They are written into each checkpoint.
_PARTS_BYTES_MAX: Final = 32 << 20


class AckedCursor(CursorKeeper):
    """A cursor that consumers move."""

    # Set while a flush is due at the end of this turn of the event loop.
    _is_flush_due = False

    def ack(self, consumer: AttachedConsumer, command: pb.CommandAck, done: Done | None = None) -> None:
        """Acknowledges messages. `done` is called once that is durable, or with the error that prevents it.

        A command that is refused has acknowledged nothing.
        """
        refused = self._why_not_ack(consumer, command)
        if refused is not None:
            if done is not None:
                done(refused)
            return
        ids = command.message_id
        # Most commands name one whole message: there is nothing more to check, and this path is hot.
        if len(ids) != 1 or ids[0].ack_set:
            parts = [id for id in ids if id.ack_set] if len(ids) <= self._ids_per_turn else None
            if parts is None or any(len(id.ack_set) > _WORDS_PER_ID for id in parts):
                consumer.link.work_begun()
                self._turns.add(self._ack_in_turns(consumer, command, done))
                return
            if parts and (refused := self._why_not_parts(parts)) is not None:
                if done is not None:
                    done(refused)
                return
        now = consumer.last_acked_ms = self._now_ms()
        self.last_active_ms = now
        if command.ack_type == pb.CommandAck.Cumulative:
            self._ack_cumulative(consumer, ids[0])
        else:
            for id in ids:
                self._ack_one(consumer, id)
        if done is not None:
            self._acks.wait(done)
        self._flush_soon()

    @property
    def _ids_per_turn(self) -> int:
        # Finding the consumer that holds a message may require asking every consumer.
        return max(_IDS_PER_TURN_MIN, IDS_PER_TURN // (1 + len(self.consumers) // 16))

    def _ack_in_turns(
        self, consumer: AttachedConsumer, command: pb.CommandAck, done: Done | None
    ) -> Iterator[None]:
        """Like `ack`, for a command so long that it would delay all other work."""
        refused: BrokerError | None = None
        try:
            cost = 0
            for id in command.message_id:
                if id.ack_set and (refused := self._why_not_parts((id,))) is not None:
                    return
                cost += 1 + len(id.ack_set) // _WORDS_PER_ID
                if cost >= 4 * IDS_PER_TURN:
                    cost = 0
                    yield
            seeks = self._seeks
            self.last_active_ms = consumer.last_acked_ms = self._now_ms()
            for id in command.message_id:
                # The consumer may have closed: it gets an error for that after this.
                if self.is_closed or seeks != self._seeks:
                    refused = NotReadyError(f"subscription {self.name} was closed or moved meanwhile")
                    return
                if command.ack_type == pb.CommandAck.Cumulative:
                    self._ack_cumulative(consumer, id)
                else:
                    self._ack_one(consumer, id)
                cost += 1 + len(id.ack_set) // _WORDS_PER_ID
                if cost >= self._ids_per_turn:
                    cost = 0
                    self._flush_soon()
                    yield
            if done is not None:
                self._acks.wait(done)
            self._flush_soon()
        finally:
            consumer.link.work_ended()
            if refused is not None and done is not None:
                done(refused)

    def _why_not_ack(self, consumer: AttachedConsumer, command: pb.CommandAck) -> BrokerError | None:
        if self.is_closed or self.dispatcher is None or not consumer.is_open:
            return NotReadyError(f"consumer {consumer.id} is closed")
        if command.HasField("txnid_most_bits") and command.HasField("txnid_least_bits"):
            return NotAllowedError("transactions are not supported")
        if command.ack_type == pb.CommandAck.Cumulative:
            if consumer.kind in (SHARED, KEY_SHARED):
                return NotAllowedError(
                    f"cumulative acknowledgement is not possible on a {self.type_name} subscription"
                )
            if len(command.message_id) != 1:
                return NotAllowedError("a cumulative acknowledgement names exactly one message")
        return None

    def _why_not_parts(self, ids: Iterable[pb.MessageIdData]) -> BrokerError | None:
        try:
            for id in ids:
                check_ack_set(id)
        except BrokerError as error:
            return error
        if self.cursor.parts_bytes > _PARTS_BYTES_MAX:
            return NotAllowedError(
                f"subscription {self.name} has too many partly acknowledged batches: acknowledge whole ones first"
            )
        return None

    def _ack_one(self, consumer: AttachedConsumer, id: pb.MessageIdData) -> None:
        at = (id.ledgerId, id.entryId)
        # A sent entry is known to exist; any other must be checked, or a hole would stay in the cursor for ever.
        if at not in consumer.pending and (at >= self.topic_log.end or self.topic_log.normalise(at) != at):
            return
        if id.ack_set and (bits := bits_of_words(id.ack_set)):
            self._ack_part(consumer, at, bits, id.batch_size)
            return
        self.cursor.ack(at)
        self._acks.entry(at)
        if self.dispatcher is not None:
            self.dispatcher.acked(consumer, at)

    def _ack_part(self, consumer: AttachedConsumer, at: Position, bits: int, size: int) -> None:
        if not size and at in consumer.pending:
            size = consumer.pending[at][0] if at not in self.cursor.batches else 0
        count = self.cursor.ack_batch(at, bits, size)
        self._acks.part(at, bits, size)
        if self.dispatcher is None:
            return
        if self.cursor.is_acked(at):
            self.dispatcher.acked(consumer, at)
        elif count:
            self.dispatcher.acked_part(consumer, at, count)

    def _ack_cumulative(self, consumer: AttachedConsumer, id: pb.MessageIdData) -> None:
        # A client in the middle of a batch acknowledges the entry before it, which for a ledger's first entry is -1:
        # all the ledgers before this one, and nothing of it.
        at = (signed(id.ledgerId), signed(id.entryId))
        if at >= self.topic_log.end:
            return
        bits = bits_of_words(id.ack_set)
        below = at if bits else (at[0], at[1] + 1)
        self.cursor.ack_below(below)
        self._acks.below(below)
        if bits and self.topic_log.normalise(at) == at:
            self._ack_part(consumer, at, bits, id.batch_size)
        consumer.messages_acked += 1

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Writes the acknowledgements gathered since the last flush, and notifies dispatch of them."""
        self._is_flush_due = False
        self._acks.flush()
        self._cursor_moved()

    def _cursor_moved(self) -> None:
        before = self.cursor.next
        self.cursor.settle(self.topic_log)
        if before is not self.cursor.next:
            self.last_advanced_ms = self._now_ms()
        if self.dispatcher is not None and not self.is_closed:
            self.dispatcher.acks_done()
            if self.is_sealed:
                self._check_end()
                self._progressed()

    def when_stored(self, done: Done) -> None:
        """Calls `done` once every acknowledgement accepted so far is durable, or with the error that prevents it."""
        self._turns.after_all(lambda: self._acks.when_written(done))


def check_ack_set(id: pb.MessageIdData) -> None:
    """Raises NotAllowedError if there is an ack set and it cannot be that of a batch."""
    words, size = len(id.ack_set), id.batch_size
    if not words:
        return
    if not 0 <= size <= BATCH_MESSAGES_MAX:
        raise NotAllowedError(f"a batch of {size} messages cannot be acknowledged: no batch has that many")
    if words > ((size or BATCH_MESSAGES_MAX) + 63) // 64:
        raise NotAllowedError(
            f"an ack set of {words} words is too long for a batch of {size or BATCH_MESSAGES_MAX} messages"
        )


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
