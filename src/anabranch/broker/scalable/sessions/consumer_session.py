"""One stream or checkpoint consumer that is registered over a client's connection, as its controller sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from anabranch.controller.ports import Assignment
from anabranch.model import buckets
from anabranch.model.names import TopicName
from anabranch.model.scalable import SubscriptionKind
from anabranch.wire import pulsar_pb2 as pb

C = pb.BaseCommand
# The topic, the subscription and the consumer's name.
SessionKey = tuple[TopicName, str, str]


@dataclass(eq=False)
class ConsumerSession:
    """The session; implements the controllers' `AssignmentLink`."""

    id: int
    topic: TopicName
    subscription: str
    name: str
    kind: SubscriptionKind
    send: Callable[[pb.BaseCommand], None]
    # Whether the client can share a segment by entry buckets.
    knows_buckets: bool = False
    # Done once the controller has answered, with success or failure.
    registered: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    is_over: bool = False
    is_answered: bool = False
    # The controller has changed since it was last known to hold this session.
    is_in_doubt: bool = False
    is_returning: bool = False
    stop_listening: Callable[[], None] = lambda: None
    # Called whenever the client was sent an assignment.
    told: Callable[[], None] = lambda: None
    # The last assignment that the client was sent.
    assigned: Assignment | None = None
    _waiting: Assignment | None = None

    @property
    def key(self) -> SessionKey:
        return self.topic, self.subscription, self.name

    def send_assignment(self, topic: TopicName, consumer_id: int, assignment: Assignment) -> None:
        if self.is_over:
            return
        if not self.is_answered:
            # A client takes the answer for the newest assignment, so nothing may be sent before it.
            self._waiting = assignment
            return
        command = C(type=C.SCALABLE_TOPIC_ASSIGNMENT_UPDATE)
        command.scalableTopicAssignmentUpdate.consumer_id = self.id
        self._fill(command.scalableTopicAssignmentUpdate.assignment, assignment)
        self.send(command)
        self.told()

    def answer(self, request_id: int, assignment: Assignment) -> None:
        """Sends the answer to the registration, and the assignment that has waited for it, if any."""
        command = C(type=C.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE)
        command.scalableTopicSubscribeResponse.request_id = request_id
        self._fill(command.scalableTopicSubscribeResponse.assignment, assignment)
        self.send(command)
        self.is_answered = True
        self.told()
        if (waiting := self._waiting) is not None:
            self._waiting = None
            self.send_assignment(self.topic, self.id, waiting)

    def _fill(self, message: pb.ScalableConsumerAssignment, assignment: Assignment) -> None:
        self.assigned = assignment
        message.layout_epoch = assignment.epoch
        for segment in assignment.segments:
            told = message.segments.add(
                segment_id=segment.id,
                hash_start=segment.range.start,
                hash_end=segment.range.end,
                segment_topic=str(segment.topic(self.topic)),
            )
            if segment.id in assignment.shared:
                # All buckets, for every sharer the same. Which of them are its own is between the brokers, where these
                # choose what it is sent.
                for bucket in buckets.ranges(segment.bucket_splits):
                    told.bucket_ranges.add(start=bucket.start, end=bucket.end)
                told.anabranch_own_buckets.extend(assignment.own.get(segment.id, ()))

    def end(self) -> None:
        self.is_over = True
        self.stop_listening()
