"""Data plane: from a SEND to its receipt.

Every answer to a producer (receipt, duplicate, error) passes one queue in the order in which the messages arrived. An
answer is due when the entry it waits for is confirmed: its own entry, or for duplicates and refusals the last entry
appended before it. So a duplicate is never acknowledged before the original is on disk, and an error never overtakes a
receipt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import Protocol

from anabranch.broker.state.dedup import WHOLE, Deduplication, counts
from anabranch.broker.topic.producer import AttachedProducer
from anabranch.broker.topic.stamps import Stamps
from anabranch.errors import MalformedFrame
from anabranch.model.hidden_writes import attempt_of_bits
from anabranch.storage.port import Buffer, LogError, LogFullError
from anabranch.storage.topic.topic_log import TopicLog
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.encode import encode_command, encode_receipt_run, encode_receipts
from anabranch.wire.entry import parse_metadata
from anabranch.wire.frames import (
    BAD_CHECKSUM,
    BAD_IDS,
    BAD_METADATA,
    EXTENDED,
    IS_CHUNK,
    REFUSED,
    SEQUENCE_ID_MAX,
    Frame,
)

# (entry waited for, producer, ids, refusal, completed, lane). Ids are (sequence id, highest sequence id) of entries
# stored one after the other, of which the last is the one waited for; they are those of the SEND, so the client knows
# them. A refusal, with its code and text, concerns one message. `completed` is the id that deduplication may then call
# stored, or None: deduplication is off, or a chunk completes no message. `lane` is that entry's, where the topic has
# several.
_Ids = list[tuple[int, int]]
_Answer = tuple[int, AttachedProducer, _Ids, tuple[int, str] | None, int | None, int]

_DUPLICATE = (-1, "")
_UNREADABLE = (
    pb.NotAllowedError,
    "the message's metadata cannot be read, or counts messages that are not there",
)


class PublishPacer(Protocol):
    def spend(self, producer: AttachedProducer, sends: Sequence[Frame]) -> None:
        """Charges these publishes of a producer; holds its connection if they exceed the topic's rate."""


class Publishing:
    """The publishing half of one topic."""

    __slots__ = (
        "_answers",
        "_delay_ms_max",
        "_is_encryption_required",
        "_is_plain",
        "_is_silent",
        "_log",
        "_message_bytes_max",
        "_on_full",
        "_on_hidden",
        "_pace",
        "_producers",
        "_reads_metadata",
        "_stamps",
        "bytes_in",
        "dedup",
        "entries_in",
        "is_deduplicating",
        "is_sealed",
        "is_stopped",
        "messages_in",
        "rates_in",
    )

    def __init__(
        self,
        log: TopicLog,
        dedup: Deduplication,
        *,
        is_sealed: bool,
        producers: Container[str],
        on_full: Callable[[], None],
        on_hidden: Callable[[str, int, int], None] | None = None,
        stamps: Stamps | None = None,
    ) -> None:
        """`producers` has the names of the attached ones. `on_hidden` is called with attempt, ledger and
        entry of each entry that a hidden producer has appended. `stamps`: the topic has several entry buckets."""
        self._log = log
        self._producers = producers
        self._answers: deque[_Answer] = deque()
        self._on_full = on_full
        self._on_hidden = on_hidden
        self._stamps = stamps
        self.dedup = dedup
        self.is_deduplicating = False
        self.is_sealed = is_sealed
        self.is_stopped = False
        # Nothing to check: append and wait. All other publishes take `_publish_judged`.
        self._is_plain = not is_sealed
        self._reads_metadata = False
        self._is_encryption_required = False
        self._is_silent = False
        self._message_bytes_max = 0
        self._delay_ms_max = 0
        self._pace: PublishPacer | None = None
        self.messages_in = 0
        self.entries_in = 0
        self.bytes_in = 0
        # Messages and bytes a second, as `measured_rates.py` last found them.
        self.rates_in = (0.0, 0.0)

    def deduplicate(self, enabled: bool) -> None:
        self.is_deduplicating = enabled
        self._look_what_is_judged()

    def require_encryption(self, required: bool) -> None:
        self._is_encryption_required = required
        self._look_what_is_judged()

    def limit_messages(self, bytes_max: int, delay_ms_max: int) -> None:
        """Sets the limits; 0: no limit but the broker's own. Chunks are exempt: they are the way to send larger
        messages."""
        self._message_bytes_max = bytes_max
        self._delay_ms_max = delay_ms_max
        self._look_what_is_judged()

    def limit_rate(self, pace: PublishPacer | None) -> None:
        self._pace = pace

    def _look_what_is_judged(self) -> None:
        has_limits = self._message_bytes_max > 0 or self._delay_ms_max > 0
        is_judged = self.is_deduplicating or self._is_encryption_required or has_limits
        self._reads_metadata = self.is_deduplicating or self._is_encryption_required or self._delay_ms_max > 0
        self._is_plain = not (is_judged or self.is_sealed or self.is_stopped)

    def seal(self, *, is_silent: bool = False) -> None:
        """Refuses every publish from now on, after the receipts of earlier ones.

        `is_silent`: publishes are dropped without an answer, since the producers are about to be closed and get the
        reason when they reconnect. Some clients treat a send error as the end of their connection, and some never fail
        the message.
        """
        self.is_sealed = True
        self._is_silent = is_silent
        self._is_plain = False

    def stop(self) -> None:
        """Accepts nothing more: the topic is closing, and clients resend what gets no answer."""
        self.is_stopped = True
        self._is_plain = False

    def publish(self, producer: AttachedProducer, sends: Sequence[Frame]) -> None:
        """Accepts consecutive SENDs of one producer. Their entries are copied before this returns."""
        if self._pace is not None:
            self._pace.spend(producer, sends)
        if producer.attempt is not None:
            for send in sends:
                self._publish_hidden(producer, producer.attempt, send)
            return
        if not self._is_plain or any([send[5] & REFUSED for send in sends]):
            for send in sends:
                self._publish_judged(producer, send)
            return
        if len(sends) == 1:
            # The usual case for many topics at once and for large batches: the lists below would cost more than the
            # append.
            self._publish_one(producer, sends[0])
            return
        _, _, first_ids, counts, last_ids, _, entries = zip(*sends, strict=True)
        try:
            first = self._log.append_many(entries, counts)
        except LogError as error:
            self._append_failed(error)
            return
        self._note(producer, sends)
        ids = list(zip(first_ids, last_ids, strict=True))
        self._answers.append((first + len(ids) - 1, producer, ids, None, None, WHOLE))
        producer.link.owes(len(ids))
        self._count(producer, len(ids), sum(counts), sum(map(len, entries)))

    def _publish_one(self, producer: AttachedProducer, send: Frame) -> None:
        _, _, sequence_id, messages, highest_id, _, entry = send
        try:
            number = self._log.append(entry, messages)
        except LogError as error:
            self._append_failed(error)
            return
        self._note(producer, (send,))
        self._answers.append((number, producer, [(sequence_id, highest_id)], None, None, WHOLE))
        producer.link.owes(1)
        self._count(producer, 1, messages, len(entry))

    def _count(self, producer: AttachedProducer, entries: int, messages: int, size: int) -> None:
        self.entries_in += entries
        self.messages_in += messages
        self.bytes_in += size
        producer.messages_in += messages
        producer.bytes_in += size

    def _note(self, producer: AttachedProducer, sends: Sequence[Frame]) -> None:
        """Notes the ids of appended entries that were not judged, in case deduplication is turned on later: see
        `sequence_ids.py`."""
        if self._stamps is not None:
            self._stamps.note(producer, sends)
            return
        send = sends[-1]
        if send[5] & IS_CHUNK and not _completes(send[6]):
            # The message is incomplete: if its producer dies now, it must be able to send the message again.
            producer.last_pushed = send[2] - 1
        else:
            producer.last_pushed = send[4]

    def publish_own(self, entry: bytes, messages: int) -> None:
        """Appends an entry of the broker itself, without an answer. Raises LogError if it is refused."""
        if self.is_sealed or self.is_stopped:
            raise LogError("the topic accepts no more messages")
        self._log.append(entry, messages)
        self.entries_in += 1
        self.messages_in += messages
        self.bytes_in += len(entry)

    def _publish_judged(self, producer: AttachedProducer, send: Frame) -> None:
        _, _, sequence_id, messages, highest_id, flags, entry = send[:7]
        if self.is_stopped or self._is_silent:
            return
        refusal = refusal_of(flags, is_sealed=self.is_sealed)
        metadata = None
        if refusal is None and self._reads_metadata:
            try:
                metadata = parse_metadata(entry)
            except MalformedFrame:
                refusal = _UNREADABLE
            else:
                refusal = self._refusal_by(metadata, producer)
        if refusal is None and 0 < self._message_bytes_max < len(entry) and not flags & IS_CHUNK:
            refusal = (pb.NotAllowedError, f"Exceed maximum message size of {self._message_bytes_max} bytes")
        stamps = self._stamps
        lane = WHOLE if stamps is None else stamps.lane(metadata)
        if (
            refusal is None
            and self.is_deduplicating
            and self.dedup.is_duplicate(producer.name, highest_id, lane)
        ):
            refusal = _DUPLICATE
        if refusal is not None:
            self._refuse(producer, (sequence_id, highest_id), refusal)
            return
        try:
            number = self._log.append(entry, messages)
        except LogError as error:
            self._append_failed(error)
            return
        # Only entries in the log make later ones duplicates: a refused append leaves no trace.
        completed = None
        if not self.is_deduplicating or metadata is None:
            self._note(producer, (send,))
        else:
            if stamps is not None:
                stamps.count(producer, lane, messages)
            if counts(metadata):
                completed = highest_id
                # Who names a bucket names the last id, and the one behind it may be in another bucket.
                covered = -1 if lane != WHOLE else self.dedup.covered_by(producer.name, metadata, entry)
                self.dedup.push(producer.name, completed, covered, lane)
        self._count(producer, 1, messages, len(entry))
        self._answers.append((number, producer, [(sequence_id, highest_id)], None, completed, lane))
        producer.link.owes(1)

    def _refusal_by(self, metadata: pb.MessageMetadata, producer: AttachedProducer) -> tuple[int, str] | None:
        """The refusal of an entry for its metadata, or None."""
        if self._is_encryption_required and not metadata.encryption_keys:
            return (pb.MetadataError, "Messages must be encrypted")
        if self._delay_ms_max and metadata.HasField("deliver_at_time"):
            delay_ms = metadata.deliver_at_time - metadata.publish_time
            if delay_ms > self._delay_ms_max:
                return (
                    pb.NotAllowedError,
                    f"Exceeds max allowed delivery delay of {self._delay_ms_max} milliseconds",
                )
        if (
            self.is_deduplicating
            and metadata.producer_name != producer.name
            and metadata.producer_name in self._producers
        ):
            # After a crash the log alone shows what each producer has stored: the entry would count for the producer it
            # names.
            return (
                pb.NotAllowedError,
                f"the message names another connected producer, and its own is {producer.name!r}",
            )
        return None

    def _publish_hidden(self, producer: AttachedProducer, attempt: str, send: Frame) -> None:
        """Appends an entry of a hidden write. Every entry must name its attempt: after a crash the log alone shows
        which entries are hidden."""
        _, _, sequence_id, messages, highest_id, flags, entry = send[:7]
        if self.is_stopped or self._is_silent:
            return
        refusal = refusal_of(flags, is_sealed=self.is_sealed)
        if refusal is None and _attempt_in(entry) != attempt:
            refusal = (
                pb.NotAllowedError,
                f"each entry's transaction id must be that of its attempt, {attempt}",
            )
        if refusal is not None:
            self._refuse(producer, (sequence_id, highest_id), refusal)
            return
        try:
            number = self._log.append(entry, messages)
        except LogError as error:
            self._append_failed(error)
            return
        assert self._on_hidden is not None
        self._on_hidden(attempt, self._log.ledger, number)
        if self._stamps is not None:
            self._stamps.look(producer, entry)
        self._answers.append((number, producer, [(sequence_id, highest_id)], None, None, WHOLE))
        producer.link.owes(1)
        self._count(producer, 1, messages, len(entry))

    def _refuse(self, producer: AttachedProducer, ids: tuple[int, int], refusal: tuple[int, str]) -> None:
        self._answers.append((self._log.next_entry - 1, producer, [ids], refusal, None, WHOLE))
        producer.link.owes(1)
        self.confirmed(self._log.confirmed_end)

    def _append_failed(self, error: LogError) -> None:
        # The client keeps the message and resends it once its producer is back: a send error would make some clients
        # drop their whole connection for the broker's fault. A lost log reports itself to the topic.
        if isinstance(error, LogFullError):
            self._on_full()

    def confirmed(self, entries_end: int) -> None:
        """Sends every answer that waited for an entry below `entries_end`; one write per producer and burst."""
        answers = self._answers
        ledger = self._log.ledger
        current: AttachedProducer | None = None
        frames: list[bytes] = []
        count = 0
        while answers and answers[0][0] < entries_end:
            last, producer, ids, refusal, completed, lane = answers.popleft()
            if producer is not current:
                _write(current, frames, count)
                current, frames, count = producer, [], 0
            count += len(ids)
            if refusal is None:
                frames.append(encode_receipt_run(producer.id, ledger, last - len(ids) + 1, ids))
                if completed is not None:
                    self.dedup.confirm(producer.name, completed, lane)
            elif refusal is _DUPLICATE:
                frames.append(encode_receipts(producer.id, [(*ids[0], -1, -1)]))
            else:
                frames.append(send_error(producer.id, ids[0][0], *refusal))
        _write(current, frames, count)

    def abandon(self) -> None:
        """Drops all pending answers because the log is lost; the clients resend those messages."""
        for _, producer, ids, _, _, _ in self._answers:
            producer.link.answered(len(ids))
        self._answers.clear()


def refusal_of(flags: int, *, is_sealed: bool = False) -> tuple[int, str] | None:
    """Why an entry is refused, as an error code and a message; None if it is accepted."""
    if flags & BAD_CHECKSUM:
        return (pb.ChecksumError, "the message's checksum does not match its bytes")
    if flags & EXTENDED:
        return (pb.NotAllowedError, "transactions are not supported by this broker")
    if flags & BAD_METADATA:
        return _UNREADABLE
    if flags & BAD_IDS:
        return (pb.NotAllowedError, f"sequence ids end at {SEQUENCE_ID_MAX}")
    if is_sealed:
        return (pb.TopicTerminatedError, "the topic was already terminated")
    return None


def _completes(entry: Buffer) -> bool:
    try:
        return counts(parse_metadata(entry))
    except MalformedFrame:
        return False


def _attempt_in(entry: Buffer) -> str | None:
    try:
        metadata = parse_metadata(entry)
    except MalformedFrame:
        return None
    if not (metadata.HasField("txnid_most_bits") and metadata.HasField("txnid_least_bits")):
        return None
    return attempt_of_bits(metadata.txnid_most_bits, metadata.txnid_least_bits)


def _write(producer: AttachedProducer | None, frames: list[bytes], count: int) -> None:
    if producer is not None:
        if not producer.is_closed:
            producer.link.write(frames)
        producer.link.answered(count)


def send_error(producer_id: int, sequence_id: int, code: int, message: str) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.SEND_ERROR)
    command.send_error.producer_id = producer_id
    command.send_error.sequence_id = sequence_id
    command.send_error.error = code  # type: ignore[assignment]  # An int of ServerError by construction.
    command.send_error.message = message
    return encode_command(command)
