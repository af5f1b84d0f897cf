"""Which publishes have been seen before: per producer name, the highest sequence id appended and confirmed. Pure.

*Pushed* and *confirmed* are kept apart. A message at or below *pushed* is a duplicate and must not be stored again, but
it may be answered only once the first one is confirmed; a producer that asks where it stands is told *confirmed*.
All chunks of a chunked message share one sequence id: the message is judged, and counted, at its last chunk.
"""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.wire import pulsar_pb2 as pb

# Producers remembered per topic; beyond it the ones that have been silent longest are forgotten.
PRODUCERS_MAX = 10_000


class Deduplication:
    """The table of one topic. Its dict order is the order of last use, so that forgetting is cheap."""

    __slots__ = ("confirmed", "pushed")

    def __init__(self, table: Mapping[str, int] | None = None) -> None:
        self.pushed: dict[str, int] = dict(table or {})
        self.confirmed: dict[str, int] = dict(self.pushed)

    def is_duplicate(self, producer: str, sequence_id: int) -> bool:
        return sequence_id <= self.pushed.get(producer, -1)

    def push(self, producer: str, highest_sequence_id: int) -> None:
        """An entry up to this id has been appended."""
        before = self.pushed.pop(producer, -1)
        self.pushed[producer] = max(before, highest_sequence_id)
        if len(self.pushed) > PRODUCERS_MAX:
            self.forget(next(iter(self.pushed)))

    def learn(self, producer: str, last_sequence_id: int) -> None:
        """What this producer has appended last, whatever was known of it."""
        self.forget(producer)
        self.push(producer, last_sequence_id)

    def confirm(self, producer: str, highest_sequence_id: int) -> None:
        if highest_sequence_id > self.confirmed.get(producer, -1) and producer in self.pushed:
            self.confirmed[producer] = highest_sequence_id

    def last_confirmed(self, producer: str) -> int:
        """-1 for a producer never seen, as the protocol has it."""
        return self.confirmed.get(producer, -1)

    def is_behind(self, producer: str) -> bool:
        """Whether entries of this producer are appended and not yet confirmed."""
        return self.pushed.get(producer, -1) > self.last_confirmed(producer)

    def forget(self, producer: str) -> None:
        self.pushed.pop(producer, None)
        self.confirmed.pop(producer, None)

    def replay(self, metadata: pb.MessageMetadata) -> None:
        """Learns from an entry read back from the log what `push` and `confirm` knew when it was written."""
        highest = last_id(metadata)
        if highest is not None:
            # The last and not the highest: an entry that was stored while nobody deduplicated may have gone back.
            self.learn(metadata.producer_name, highest)
            self.confirm(metadata.producer_name, highest)


def last_id(metadata: pb.MessageMetadata) -> int | None:
    """The highest sequence id that this entry covers; None for a chunk that completes no message."""
    if not counts(metadata):
        return None
    covered = metadata.sequence_id + max(metadata.num_messages_in_batch, 1) - 1
    return max(covered, metadata.highest_sequence_id)


def counts(metadata: pb.MessageMetadata) -> bool:
    """Whether this entry completes a message: any but a chunk that is not the last of its message."""
    chunks = metadata.num_chunks_from_msg
    return chunks <= 1 or metadata.chunk_id == chunks - 1
