"""How far a V5 client's consumer on one segment is: asked at the segment's owner, wherever its session is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from anabranch.broker.topic.topic import Topic
from anabranch.model.names import TopicName


@dataclass(frozen=True, slots=True)
class SegmentReader:
    """A consumer on one segment."""

    segment: TopicName  # The topic that holds the segment's messages.
    consumer: str  # Its name there, which names the segment too.
    subscription: str
    # The readers of a checkpoint group have subscriptions of their own.
    is_of_checkpoint: bool = False
    # Whether the layout has the segment active.
    is_active: bool = True
    # Whether it shares the segment by entry buckets; None where that is not known.
    is_shared: bool | None = None


@dataclass(frozen=True, slots=True)
class ReaderState:
    # There is more to read, or there may be; False if the segment is not open.
    has_more: bool = False
    is_attached: bool = False
    # A text that changes if the consumer makes progress; "" unless it has a sealed segment to finish.
    progress: str = ""


def reader_state(topic: Topic | None, reader: SegmentReader) -> ReaderState:
    """`topic`: the segment, if it is open here."""
    if topic is None:
        return ReaderState()
    subscription = topic.subscriptions.get(reader.subscription)
    is_left = subscription is not None and not subscription.is_drained
    named = [
        (found, consumer)
        for found in list(topic.subscriptions.values())
        for consumer in found.consumers
        if consumer.name == reader.consumer and (reader.is_of_checkpoint or found.name == reader.subscription)
    ]
    progress = ""
    if topic.has_end and is_left:
        for found, consumer in named:
            if found is subscription:
                progress = (
                    f"{consumer.address} {consumer.id} {consumer.connected_ms} {consumer.messages_out} "
                    f"{found.mark_delete}"
                )
                break
    return ReaderState(is_left if topic.has_end else reader.is_active, bool(named), progress)


class ElsewhereReaders(Protocol):
    """Segments at other brokers, and controllers there."""

    def is_elsewhere(self, segment: TopicName) -> bool:
        """Whether another broker owns the segment."""
        ...

    async def look(self, reader: SegmentReader) -> ReaderState:
        """Asks the segment's owner. Raises AnabranchError if it cannot be asked."""
        ...

    def attached(self, reader: SegmentReader) -> None:
        """A client has attached that consumer here. Tells the controller's broker, if it is another one."""
        ...

    def closed(self, reader: SegmentReader, *, has_more: bool) -> None:
        """A client has closed that consumer here. Tells the controller's broker, if it is another one."""
        ...
