"""The errors of scalable topics: refusals, by what a caller can do about them, and failures of other brokers.

ControllerError
├── TopicExists          choose another name
├── TopicMissing         create it first
├── SubscriptionMissing  create it first
├── OperationRefused     never right as asked; the message says what would be
└── TooBusy              try again later

SegmentRefused, SegmentGone, SegmentUnavailable: from the owner of a segment, see `controller.ports.Segments`
NotLeader: another broker leads the topic
"""

from __future__ import annotations

from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName


class ControllerError(AnabranchError):
    """A refusal; nothing was changed. `status` is the HTTP status that admin clients expect for it."""

    status = 400


class TopicExists(ControllerError):
    status = 409
    code = 22  # NotAllowedError


class TopicMissing(ControllerError):
    status = 404
    code = 11  # TopicNotFound


class SubscriptionMissing(ControllerError):
    status = 404
    code = 12  # SubscriptionNotFound


class OperationRefused(ControllerError):
    status = 412
    code = 22  # NotAllowedError


class TooBusy(ControllerError):
    status = 503
    code = 6  # ServiceNotReady
    retryable = True


class SegmentRefused(AnabranchError):
    """The topic's record gives the segment's owner no reason to do that. The caller is out of date."""

    code = 22  # NotAllowedError


class SegmentGone(AnabranchError):
    """The segment has no storage, or none any more."""

    code = 11  # TopicNotFound


class SegmentUnavailable(AnabranchError):
    """No owner can be reached now. Retry later."""

    code = 6  # ServiceNotReady
    retryable = True


class NotLeader(AnabranchError):
    """Another broker controls this topic; `leader` is its service URL, or empty while there is none."""

    code = 6  # ServiceNotReady: clients look up again and return.
    retryable = True

    def __init__(self, topic: TopicName, leader: str) -> None:
        where = f"broker {leader} does" if leader else "no broker does at the moment"
        super().__init__(f"this broker is not the leader of {topic}: {where}")
        self.leader = leader
