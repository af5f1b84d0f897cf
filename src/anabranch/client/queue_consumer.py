"""A queue consumer: every segment of the topic, active or sealed, shared with the subscription's other consumers.

It never registers anywhere: new segments come with the layout, and a sealed one is dropped once it is acknowledged to
its end.
"""

from __future__ import annotations

from anabranch.client.consumer import Consumer, Setup
from anabranch.client.message import Message
from anabranch.client.segment_consumer import SegmentConsumer, Subscription
from anabranch.model.segments import SegmentId
from anabranch.wire import pulsar_pb2 as pb


class QueueConsumer(Consumer):
    """Made by `Client.queue_consumer`."""

    def __init__(self, setup: Setup, subscription: str, *, earliest: bool = False) -> None:
        super().__init__(setup)
        self.subscription = subscription
        self._how = Subscription(subscription, pb.CommandSubscribe.Shared, setup.consumer_name, earliest)
        self._drained: set[SegmentId] = set()
        self._layout_changed()

    @property
    def drained(self) -> frozenset[SegmentId]:
        """Sealed segments in which the subscription has nothing left."""
        return frozenset(self._drained)

    # -- messages

    async def ack(self, message: Message) -> None:
        """Acknowledges one message. Returns at once; `flush` tells whether it was stored. If not, it comes again."""
        entry = message.container
        if entry.count == 1:
            entry.owner.ack_entry(entry)
        else:
            left = entry.acked(message.index)
            entry.owner.acks.add((entry.ledger, entry.entry), (left, entry.count))

    # -- the layout

    def _layout_changed(self) -> None:
        super()._layout_changed()
        if self._watch.is_deleted:
            return
        layout = self._watch.layout
        for number in [n for n in self._segments if n not in layout.segments]:
            self._release(number)
        self._drained &= layout.segments.keys()
        for number, segment in layout.segments.items():
            if number not in self._segments and number not in self._drained:
                self._read(
                    number,
                    str(segment.topic(self._watch.topic)),
                    self._how,
                    ended=self._ended,
                    may_be_gone=self._watch.is_over,
                )

    def _ended(self, segment: SegmentConsumer) -> None:
        if self._segments.get(segment.segment) is segment:
            self._drained.add(segment.segment)
            self._release(segment.segment)
