"""Clients that know nothing of entry buckets, as Pulsar's 5.0.0-M1 and relays from elsewhere.

Such a producer batches the keys of a segment as they come, and gives an entry the key of its first message. Its entries
have no range of hashes, or one over several buckets. Such a consumer reads whole segments, whatever it is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum, auto
from typing import Any, Final, TypeVar

from anabranch.client.client import Client
from anabranch.client.consuming.stream import StreamConsumer
from anabranch.client.errors import Closed
from anabranch.client.producing.core.runs import BatchRun, MessageRun
from anabranch.client.producing.entries import Entries, Payload, Pieces, Target, copy_key
from anabranch.client.producing.producer import Producer
from anabranch.client.transport.attachment import Backoff
from anabranch.client.transport.controller_session import Assignments
from anabranch.client.transport.layout_watch import LayoutWatch
from anabranch.wire import pulsar_pb2 as pb

T = TypeVar("T")


class Knowledge(Enum):
    """What a client knows of entry buckets."""

    ALL = auto()
    RANGES = auto()  # It tells the range of hashes of its entries, which may be of several buckets.
    NOTHING = auto()


class OlderEntries(Entries):
    def _batch(self, run: MessageRun, metadata: pb.MessageMetadata) -> Payload:
        payload = super()._batch(run, metadata)
        if isinstance(run, BatchRun):
            copy_key(metadata, run.encoded(0))
        return payload


class UnstampedEntries(OlderEntries):
    def frames(self, run: MessageRun, target: Target) -> list[Pieces]:
        return super().frames(run, target._replace(is_stamped=False))


class OlderProducer(Producer):
    entries_kind: type[Entries] = UnstampedEntries

    def __init__(self, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, **named)
        self._flow.entries.__class__ = self.entries_kind


class RangesProducer(OlderProducer):
    entries_kind = OlderEntries


class OlderStreamConsumer(StreamConsumer):
    def __init__(self, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, **named)
        self._session._knows_buckets = False

    def _assigned(self, assigned: Assignments) -> None:
        super()._assigned({number: replace(one, bucket_ranges=()) for number, one in assigned.items()})


class OlderWatch(LayoutWatch):
    """Every segment has one bucket."""

    def updated(self, body: pb.CommandScalableTopicUpdate) -> None:
        read = pb.CommandScalableTopicUpdate()
        read.CopyFrom(body)
        for segment in read.dag.segments:
            segment.ClearField("entry_bucket_splits")
        super().updated(read)


class OlderClient(Client):
    producer_kind: type[Producer] = OlderProducer

    async def _watch(self, topic: str, *, create: bool) -> LayoutWatch:
        if self._is_closed:
            raise Closed("the client is closed")
        watch = OlderWatch(self._connections, topic, Backoff(self._chance))
        await self._in_time(topic, watch.open(create=create))
        return watch

    def _kind(self, cls: type[T]) -> type[T]:
        kinds: dict[type[Any], type[Any]] = {
            Producer: self.producer_kind,
            StreamConsumer: OlderStreamConsumer,
        }
        return kinds.get(cls, cls)


class RangesClient(OlderClient):
    producer_kind = RangesProducer


CLIENTS: Final[Mapping[Knowledge, type[Client]]] = {
    Knowledge.ALL: Client,
    Knowledge.RANGES: RangesClient,
    Knowledge.NOTHING: OlderClient,
}
