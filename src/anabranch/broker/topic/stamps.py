"""Data plane. The lanes of entries as they are published to a segment with several entry buckets.

A producer that knows buckets stamps each entry with the range of its keys' hashes, and cuts its batches so that the
range lies in one bucket. Entries without such a stamp are counted, by topic and by producer: they are in order, but
consumers cannot share the segment while there are such entries. Those in a bucket are counted with their messages: many
small entries tell that producers send too little for that many buckets.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.broker.state.bucket_dedup import lane_of, noted
from anabranch.broker.state.dedup import WHOLE, counts
from anabranch.broker.topic.producer import AttachedProducer
from anabranch.errors import MalformedFrame
from anabranch.model.buckets import Splits
from anabranch.storage.port import Buffer
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.entry import parse_metadata
from anabranch.wire.frames import Frame


class Stamps:
    """What the entries published to one topic say of their buckets."""

    __slots__ = ("_entries", "_messages", "_splits", "unstamped", "unstamped_producer")

    def __init__(self, splits: Splits) -> None:
        self._splits = splits
        # The entries since the topic was opened that are in no single bucket, and who published the last of them.
        self.unstamped = 0
        self.unstamped_producer = ""
        # Entries and messages of each bucket since then.
        self._entries = [0] * (len(splits) + 1)
        self._messages = [0] * (len(splits) + 1)

    def lane(self, metadata: pb.MessageMetadata | None) -> int:
        """The lane of an entry with that metadata."""
        return WHOLE if metadata is None else lane_of(self._splits, metadata)

    def look(self, producer: AttachedProducer, entry: Buffer) -> None:
        """Counts an appended entry that deduplication has nothing to do with."""
        metadata = _read(entry)
        messages = 1 if metadata is None else metadata.num_messages_in_batch
        self.count(producer, self.lane(metadata), messages)

    def count(self, producer: AttachedProducer, lane: int, messages: int) -> None:
        """Counts an appended entry."""
        if lane == WHOLE:
            self.unstamped += 1
            self.unstamped_producer = producer.name
            producer.unstamped += 1
        else:
            self._entries[lane] += 1
            self._messages[lane] += messages

    @property
    def fill(self) -> list[tuple[int, int]]:
        """How many entries each bucket got since the topic was opened, and how many messages in these."""
        return list(zip(self._entries, self._messages, strict=True))

    def note(self, producer: AttachedProducer, sends: Sequence[Frame]) -> None:
        """Counts appended entries that were not judged, and notes their ids, in case deduplication is turned on."""
        for send in sends:
            metadata = _read(send[6])
            lane = self.lane(metadata)
            self.count(producer, lane, send[3])
            if metadata is None or counts(metadata):
                last = send[4]
                producer.last_ids = noted(producer.last_ids or {}, producer.last_pushed, lane, last)
                producer.last_pushed = last
            # Else the message is incomplete: if its producer dies now, it must be able to send the message again.


def _read(entry: Buffer) -> pb.MessageMetadata | None:
    try:
        return parse_metadata(entry)
    except MalformedFrame:
        return None
