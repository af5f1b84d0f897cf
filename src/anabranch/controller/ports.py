"""The controller's ports: the brokers that own segments, and its consumers' connections.

A controller never touches a segment itself. Each call goes to the broker that owns the segment now, which reads the
topic's record again and refuses what the record does not call for; so two brokers that both believe they lead can do no
harm. Every call may be repeated, and a call that failed may have taken effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from anabranch.model.key_routing import KeysSeen
from anabranch.model.names import TopicName
from anabranch.model.scalable import InitialPosition, SubscriptionKind, SubscriptionRecord
from anabranch.model.segments import Segment, SegmentId


@dataclass(frozen=True, slots=True)
class CursorStatus:
    """The state of a subscription on one segment."""

    backlog: int  # Unacknowledged messages.
    # The segment is sealed, and acknowledged to the end. Chunked messages that were never completed do not count.
    is_drained: bool
    consumers: int = 0
    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0


@dataclass(frozen=True, slots=True)
class SegmentStatus:
    """The owner's view of a segment."""

    is_sealed: bool
    subscriptions: Mapping[str, CursorStatus] = field(default_factory=dict)
    # The consumer names of readers without a durable cursor that have acknowledged everything in this sealed segment.
    finished_readers: frozenset[str] = frozenset()
    producers: int = 0
    msg_rate_in: float = 0.0
    msg_throughput_in: float = 0.0
    storage_bytes: int = 0
    # The position one past the last entry it ever had, as (ledger, entry); (0, 0) if it had none.
    end: tuple[int, int] | None = None
    keys: KeysSeen = field(default_factory=KeysSeen)
    # Where the segment has several entry buckets: the entries that were in no single one of them since its owner opened
    # it, and the producer of the last of them.
    unstamped_entries: int = 0
    unstamped_producer: str = ""
    # The segment has entries that may yet be shown to readers: no reader is at its end, sealed or not.
    is_hiding: bool = False

    def is_drained_by(
        self, record: SubscriptionRecord, number: SegmentId, members: Iterable[str] = ()
    ) -> bool:
        """Whether the subscription has read this segment to its end. `members` are the members of a checkpoint
        group."""
        if not self.is_sealed or self.is_hiding:
            return False
        if record.kind is SubscriptionKind.CHECKPOINT:
            return any(f"{name}-seg-{number}" in self.finished_readers for name in members)
        cursor = self.subscriptions.get(record.name)
        if cursor is None:
            return record.initial is InitialPosition.LATEST
        return cursor.is_drained


class Segments(Protocol):
    """The brokers that own segments. Raises SegmentRefused, SegmentGone or SegmentUnavailable."""

    async def create(self, topic: TopicName, segment: Segment, subscriptions: Sequence[str]) -> None:
        """Make the segment if it is absent, with a cursor at its start for each subscription that has none yet.

        Storage left over from a deleted topic of the same name is cleared away first. For a segment that exists,
        missing cursors are added; existing ones are never moved.
        """
        ...

    async def seal(self, topic: TopicName, segment: Segment) -> None:
        """Refuse all later publishes for good. Everything published before is confirmed once this returns."""
        ...

    async def delete(self, topic: TopicName, segment: Segment) -> None:
        """Remove the segment's storage; does nothing if there is none."""
        ...

    async def create_subscription(
        self, topic: TopicName, segment: Segment, subscription: str, initial: InitialPosition
    ) -> None:
        """Create a cursor, if there is none yet."""
        ...

    async def delete_subscription(self, topic: TopicName, segment: Segment, subscription: str) -> None:
        """Delete the cursor and disconnect its consumers on this segment; does nothing if there is none."""
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
    # Those of the segments that it shares by entry buckets. Which buckets are its own is known to the broker alone,
    shared: frozenset[SegmentId] = frozenset()
    # but to members of a checkpoint group, who choose messages themselves.
    own: Mapping[SegmentId, tuple[int, ...]] = field(default_factory=dict)

    @property
    def ids(self) -> tuple[SegmentId, ...]:
        return tuple(segment.id for segment in self.segments)


class AssignmentLink(Protocol):
    """The connection a consumer registered over."""

    def send_assignment(self, topic: TopicName, consumer_id: int, assignment: Assignment) -> None:
        """Push an update. It is lost if the connection is gone; the consumer gets it when it comes back."""
        ...


class Candidates(Protocol):
    """Which broker should lead a topic. Only an economy, as leadership itself: any broker may lead any topic."""

    def is_elsewhere(self, topic: TopicName) -> bool:
        """Whether another broker is known that should lead the topic."""
        ...

    async def urge(self, topic: TopicName) -> None:
        """Asks that broker to lead the topic. Returns once it has tried to, or if it does not answer; raises
        nothing."""
        ...


class OnlyCandidate:
    """A broker that has no others beside it, or treats them as equals."""

    def is_elsewhere(self, topic: TopicName) -> bool:
        return False

    async def urge(self, topic: TopicName) -> None: ...
