"""A received message, and how an entry is taken apart into its messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import open_entry, unpack


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `index` is its place in a batch, or -1; `size` the batch's.

    Of a scalable topic, `topic` is the topic itself, `segment` the one it was read from, and `number` counts what its
    consumer has received.
    """

    topic: str
    ledger: int
    entry: int
    index: int
    size: int
    payload: bytes
    key: str | None
    properties: Mapping[str, str]
    producer: str
    sequence_id: int
    publish_time_ms: int
    event_time_ms: int
    redeliveries: int
    partition: int = -1
    segment: int = -1
    number: int = 0

    @property
    def id(self) -> str:
        return f"{self.ledger}:{self.entry}:{self.partition}:{self.index}"

    @property
    def is_last_of_entry(self) -> bool:
        return self.index in (-1, self.size - 1)


def take_apart(
    topic: str,
    body: pb.CommandMessage,
    payload: memoryview,
    *,
    partition: int = -1,
    segment: int = -1,
    number: int = 0,
) -> list[Message]:
    """The messages of an entry as a broker sent it, numbered from `number`. Raises for what this client cannot read."""
    metadata, packed = open_entry(payload)
    if metadata.num_chunks_from_msg > 1 or metadata.encryption_keys:
        raise ValueError(f"{topic}: chunked and encrypted messages are not supported by this client")
    singles = unpack(metadata, packed)
    in_batch = metadata.HasField("num_messages_in_batch")
    return [
        Message(
            topic=topic,
            ledger=body.message_id.ledgerId,
            entry=body.message_id.entryId,
            index=index if in_batch else -1,
            size=len(singles),
            payload=bytes(data),
            key=single.partition_key if single.HasField("partition_key") else None,
            properties={item.key: item.value for item in single.properties},
            producer=metadata.producer_name,
            sequence_id=single.sequence_id if single.HasField("sequence_id") else metadata.sequence_id,
            publish_time_ms=metadata.publish_time,
            event_time_ms=single.event_time,
            redeliveries=body.redelivery_count,
            partition=partition,
            segment=segment,
            number=number + index,
        )
        for index, (single, data) in enumerate(singles)
    ]


def signed(number: int) -> int:
    """A ledger or entry id as meant: what lies before everything, and repetitions, carry -1 in unsigned fields."""
    return number - (1 << 64) if number >= 1 << 63 else number
