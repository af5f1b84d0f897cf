"""Which publishes have been seen before: per producer name, the highest sequence id appended and confirmed. Pure.

An entry *names* ids: one, or with `highest_sequence_id` also the last of those it covers. It is judged by the last id
it names: a client sends the entries of a producer, first and again, so that this id rises, however it batches. Nothing
is added to the id for the messages of a batch. Batches by key take turns (A holds 0 and 2, B holds 1 and 3), and some
clients use one id for a batch. An entry that ends behind everything appended is stored even if it begins before: where
a producer has cut its messages into other batches, storing some twice is better than losing some.

*Pushed* and *confirmed* are kept apart. A message at or below *pushed* is a duplicate and must not be stored again, but
it may be answered only once the first one is confirmed; a producer that asks for its last id gets *confirmed*. The
answer may exceed the last named id: some clients name only the first id of a batch, and when such a producer
reconnects, it must not send the rest of the batch again. All chunks of a chunked message share one sequence id: the
message is judged, and counted, at its last chunk.

Where a segment has several entry buckets, a producer's ids rise within each bucket only. `bucket_dedup.py` has the
table of such a topic; the `lane` of an entry, here and there, is the number of its bucket, or `WHOLE`. This table
treats all lanes as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import starts_a_row
from anabranch.wire.frames import SEQUENCE_ID_MAX, Buffer

# Producers remembered per topic; beyond that those inactive for longest are forgotten.
PRODUCERS_MAX = 10_000
# The lane of an entry that is in no single bucket, and of all entries of a topic without buckets.
WHOLE: Final = -1
# Sequence ids of one producer by lane.
LaneIds: TypeAlias = dict[int, int]


class Deduplication:
    """The table of one topic. Its dict order is the order of last use, so that forgetting is cheap."""

    __slots__ = ("_covered", "_names_first", "confirmed", "pushed")

    def __init__(
        self, table: Mapping[str, int] | None = None, covered: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        """`covered` is a result of `covered_image`."""
        self.pushed: dict[str, int] = {
            name: min(last, SEQUENCE_ID_MAX) for name, last in (table or {}).items()
        }
        self.confirmed: dict[str, int] = dict(self.pushed)
        # For producers whose last entry covers more than it names: both ids.
        self._covered: dict[str, tuple[int, int]] = {
            name: (named, end) for name, (named, end) in (covered or {}).items() if name in self.pushed
        }
        # Whether a producer that names one id per batch names the first of several consecutive ids.
        self._names_first: dict[str, bool] = {}

    def lane_of(self, metadata: pb.MessageMetadata) -> int:
        """The lane that an entry is judged in."""
        return WHOLE

    def is_duplicate(self, producer: str, last_named: int, lane: int = WHOLE) -> bool:
        return last_named <= self.pushed.get(producer, -1)

    def push(self, producer: str, last_named: int, covered: int = -1, lane: int = WHOLE) -> None:
        """Notes an appended entry that names ids up to this one; it may be known to cover some more."""
        before = self.pushed.pop(producer, -1)
        self.pushed[producer] = max(before, last_named)
        if covered > last_named:
            self._covered[producer] = (last_named, covered)
        elif self._covered:
            self._covered.pop(producer, None)
        if len(self.pushed) > PRODUCERS_MAX:
            self.forget(next(iter(self.pushed)))

    def learn(self, producer: str, ids: LaneIds, covered: int = -1) -> None:
        """Notes the last ids that this producer has appended, replacing what was known of it."""
        self.pushed.pop(producer, None)
        self.confirmed.pop(producer, None)
        self.push(producer, max(ids.values()), covered)

    def confirm(self, producer: str, last_named: int, lane: int = WHOLE) -> None:
        if last_named > self.confirmed.get(producer, -1) and producer in self.pushed:
            self.confirmed[producer] = last_named

    def last_confirmed(self, producer: str) -> int:
        """The id up to which everything is stored, for the producer. -1 for an unknown one, as the protocol defines."""
        last = self.confirmed.get(producer, -1)
        named, covered = self._covered.get(producer, (-1, -1))
        return covered if named == last else last

    def pushed_by(self, producer: str) -> LaneIds:
        """The last ids that this producer has appended; empty for an unknown one."""
        last = self.pushed.get(producer)
        return {} if last is None else {WHOLE: last}

    def is_behind(self, producer: str) -> bool:
        """Whether entries of this producer are appended and not yet confirmed."""
        return self.pushed.get(producer, -1) > self.confirmed.get(producer, -1)

    def forget(self, producer: str) -> None:
        self.pushed.pop(producer, None)
        self.confirmed.pop(producer, None)
        self._covered.pop(producer, None)
        self._names_first.pop(producer, None)

    def forget_all(self) -> None:
        for table in (self.pushed, self.confirmed, self._covered, self._names_first):
            table.clear()

    def began(self, producer: str) -> None:
        """Called when a producer of this name attaches, perhaps with another client, which may name ids differently."""
        self._names_first.pop(producer, None)

    def covered_by(self, producer: str, metadata: pb.MessageMetadata, entry: Buffer) -> int:
        """The last id that this entry covers, as far as is known: the one it names, unless it names the first."""
        named = max(metadata.sequence_id, metadata.highest_sequence_id)
        messages = metadata.num_messages_in_batch
        if messages < 2 or metadata.HasField("highest_sequence_id"):
            return named
        before, covered = self._covered.get(producer, (-1, -1))
        if before < named <= covered:
            # The id was believed to be covered, but is new: this producer's batches take turns, or have one id each.
            names_first: bool | None = False
        else:
            names_first = self._names_first.get(producer)
        if names_first is None:
            names_first = starts_a_row(metadata, entry)
        self._names_first[producer] = names_first
        return min(named + messages - 1, SEQUENCE_ID_MAX) if names_first else named

    def covered_image(self) -> dict[str, tuple[int, int]]:
        """What the table itself does not hold, for the topic's stored state; nothing for most topics."""
        return dict(self._covered)

    def replay(self, metadata: pb.MessageMetadata, entry: Buffer) -> None:
        """Learns from an entry read back from the log what `push` and `confirm` knew when it was written."""
        last = last_id(metadata)
        if last is not None:
            name = metadata.producer_name
            covered = self.covered_by(name, metadata, entry)
            # The last id and not the highest: ids of entries stored without deduplication may have gone back.
            self.learn(name, {WHOLE: last}, covered)
            self.confirm(name, last)


def last_id(metadata: pb.MessageMetadata) -> int | None:
    """The last sequence id that this entry names; None if the entry is no evidence about its producer.

    These are a chunk that completes no message, an entry of a hidden write, which is not deduplicated and may name any
    producer, and an entry stored by an earlier version that would be refused now.
    """
    if not counts(metadata) or type(metadata.producer_name) is not str:
        return None
    if metadata.HasField("txnid_most_bits") and metadata.HasField("txnid_least_bits"):
        return None
    last = max(metadata.sequence_id, metadata.highest_sequence_id)
    return last if last <= SEQUENCE_ID_MAX else None


def counts(metadata: pb.MessageMetadata) -> bool:
    """Whether this entry completes a message: any but a chunk that is not the last of its message."""
    chunks = metadata.num_chunks_from_msg
    return chunks <= 1 or metadata.chunk_id == chunks - 1
