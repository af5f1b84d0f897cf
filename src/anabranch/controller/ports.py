"""What a controller asks of its surroundings: the brokers that own segments, and its consumers' connections.

A controller never touches a segment itself. Each call goes to the broker that owns the segment now, which reads the
topic's record afresh and refuses what the record does not call for; so two brokers that both believe they lead can do
no harm. Every call may be repeated, and a call that failed may have taken effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from anabranch.errors import AnabranchError
from anabranch.model.key_routing import KeysSeen
from anabranch.model.names import TopicName
from anabranch.model.scalable import InitialPosition
from anabranch.model.segments import Segment, SegmentId


class SegmentRefused(AnabranchError):
    """The segment's owner finds no reason in the topic's record to do that. Whoever asked is behind the times."""

    code = 22  # NotAllowedError


class SegmentGone(AnabranchError):
    """The segment has no storage (any more)."""

    code = 11  # TopicNotFound


class SegmentUnavailable(AnabranchError):
    """No owner can be reached now. Ask again later."""

    code = 6  # ServiceNotReady
    retryable = True


class NotLeader(AnabranchError):
    """Another broker controls this topic; `leader` is its service URL, or empty while there is none."""

    code = 6  # ServiceNotReady: clients look up again and come back.
    retryable = True

    def __init__(self, topic: TopicName, leader: str) -> None:
        where = f"broker {leader} does" if leader else "nobody does at the moment"
        super().__init__(f"this broker is not the leader of {topic}: {where}")
        self.leader = leader


@dataclass(frozen=True, slots=True)
class CursorStatus:
    """A subscription on one segment."""

    backlog: int  # Messages not acknowledged, or entries where their number is not known.
    # Sealed, and acknowledged to the end. Chunked messages that were never completed do not count.
    is_drained: bool
    consumers: int = 0
    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0


@dataclass(frozen=True, slots=True)
class SegmentStatus:
    """A segment as its owner sees it."""

    is_sealed: bool
    subscriptions: Mapping[str, CursorStatus] = field(default_factory=dict)
    # Readers without a durable cursor, by consumer name, that have acknowledged everything in this sealed segment.
    finished_readers: frozenset[str] = frozenset()
    producers: int = 0
    msg_rate_in: float = 0.0
    msg_throughput_in: float = 0.0
    storage_bytes: int = 0
    # One past the last entry it ever had, as (ledger, entry); (0, 0) if it had none.
    end: tuple[int, int] | None = None
    keys: KeysSeen = field(default_factory=KeysSeen)
    # It has entries that readers may yet be shown: nobody is at its end, sealed or not.
    is_hiding: bool = False


class Segments(Protocol):
    """The brokers that own segments. Raises SegmentRefused, SegmentGone or SegmentUnavailable."""

    async def create(self, topic: TopicName, segment: Segment, subscriptions: Sequence[str]) -> None:
        """Make the segment if it is absent, with a cursor at its start for each subscription that has none yet.

        Storage left over from a deleted topic of the same name is cleared away first. For a segment that exists,
        missing cursors are added; existing ones are never moved.
        """
        ...

    async def seal(self, topic: TopicName, segment: Segment) -> None:
        """No more publishes, for good. Everything published before is confirmed once this returns."""
        ...

    async def delete(self, topic: TopicName, segment: Segment) -> None:
        """Remove the segment's storage; nothing happens if there is none."""
        ...

    async def create_subscription(
        self, topic: TopicName, segment: Segment, subscription: str, initial: InitialPosition
    ) -> None:
        """A cursor, if there is none yet."""
        ...

    async def delete_subscription(self, topic: TopicName, segment: Segment, subscription: str) -> None:
        """Its consumers on this segment are disconnected; nothing happens if there is none."""
        ...

    async def seek(self, topic: TopicName, segment: Segment, subscription: str, timestamp_ms: int) -> None:
        """Move the cursor to the first message published at or after that time."""
        ...

    async def skip_all(self, topic: TopicName, segment: Segment, subscription: str) -> None:
        """Move the cursor to the end."""
        ...

    async def status(self, topic: TopicName, segment: Segment) -> SegmentStatus: ...


@dataclass(frozen=True, slots=True)
class Assignment:
    """The segments that one consumer of a subscription is to read, as of one layout."""

    epoch: int
    segments: tuple[Segment, ...]

    @property
    def ids(self) -> tuple[SegmentId, ...]:
        return tuple(segment.id for segment in self.segments)


class AssignmentLink(Protocol):
    """The connection a consumer registered over."""

    def send_assignment(self, topic: TopicName, consumer_id: int, assignment: Assignment) -> None:
        """Push an update; lost if the connection is gone, and the consumer learns it when it comes back."""
        ...
