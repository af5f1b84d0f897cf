"""The events of a scalable topic (past tense) and the effects that answer them (imperative).

A `ticket` names the request that waits for an answer; it is 0 for work without a waiting caller. Each effect that
touches the world is answered by one event: its own, `EffectFailed`, or `TopicRead` when the stored record turned out to
differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.errors import AnabranchError
from anabranch.model.buckets import ONE_BUCKET, BucketBudget
from anabranch.model.layout import SegmentLayout
from anabranch.model.scalable import InitialPosition, ScalableTopic, SubscriptionKind, SubscriptionRecord
from anabranch.model.segments import Segment, SegmentId

Ticket = int

# -- requests


@dataclass(frozen=True, slots=True)
class SplitRequested:
    ticket: Ticket
    segment: int
    now_ms: int
    # How many splits in a row in the segment's past have left one child nearly all the load.
    lopsided: int = 0


@dataclass(frozen=True, slots=True)
class MergeRequested:
    ticket: Ticket
    one: int
    other: int
    now_ms: int
    budget: BucketBudget = ONE_BUCKET


@dataclass(frozen=True, slots=True)
class RebucketRequested:
    """The segment is to have a successor of the same range with that number of entry buckets."""

    ticket: Ticket
    segment: int
    buckets: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class SubscriptionRequested:
    """A caller wants a subscription with cursors at `initial`; an existing subscription is completed, never moved."""

    ticket: Ticket
    name: str
    kind: SubscriptionKind
    initial: InitialPosition


@dataclass(frozen=True, slots=True)
class SubscriptionFound:
    """A segment's owner stored a record: its subscription needs cursors on the other segments too."""

    name: str
    ticket: Ticket = 0


@dataclass(frozen=True, slots=True)
class SubscriptionDeletionRequested:
    ticket: Ticket
    name: str


@dataclass(frozen=True, slots=True)
class SeekRequested:
    """Move every cursor of the subscription to the first message of that time; None for behind the last one."""

    ticket: Ticket
    name: str
    timestamp_ms: int | None


@dataclass(frozen=True, slots=True)
class SegmentsExpired:
    """Retention had passed and every subscription had drained these sealed segments. This is checked again at its
    turn."""

    segments: tuple[SegmentId, ...]
    ticket: Ticket = 0
    # The position one past the last entry of each segment, as far as known.
    ends: tuple[tuple[SegmentId, tuple[int, int]], ...] = ()


@dataclass(frozen=True, slots=True)
class DeletionRequested:
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class RepairRequested:
    """A new leader creates what an interrupted creation left out."""

    ticket: Ticket = 0


Request = (
    SplitRequested
    | MergeRequested
    | RebucketRequested
    | SubscriptionRequested
    | SubscriptionFound
    | SubscriptionDeletionRequested
    | SeekRequested
    | SegmentsExpired
    | DeletionRequested
    | RepairRequested
)

# -- results of effects


@dataclass(frozen=True, slots=True)
class TopicStored:
    version: int


@dataclass(frozen=True, slots=True)
class TopicRead:
    """The record as it is in the store now: after a conflict, a refusal, or a change by another broker."""

    topic: ScalableTopic | None
    version: int


@dataclass(frozen=True, slots=True)
class SubscriptionsRead:
    records: tuple[SubscriptionRecord, ...]


@dataclass(frozen=True, slots=True)
class Unneeded:
    """The sealed segments, among those checked, that are not needed any more, and their ends if known."""

    segments: tuple[SegmentId, ...]
    ends: tuple[tuple[SegmentId, tuple[int, int]], ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """The effect took place."""


@dataclass(frozen=True, slots=True)
class EffectFailed:
    """The world failed: the effect may or may not have taken place."""

    effect: Effect
    error: AnabranchError


Event = Request | TopicStored | TopicRead | SubscriptionsRead | Unneeded | Done | EffectFailed

# -- effects


@dataclass(frozen=True, slots=True)
class StoreTopic:
    """Compare-and-set of the record. On a conflict the answer is TopicRead."""

    topic: ScalableTopic
    if_version: int


@dataclass(frozen=True, slots=True)
class ReadTopic:
    """The answer is TopicRead."""


@dataclass(frozen=True, slots=True)
class ReadSubscriptions:
    """The answer is SubscriptionsRead."""


@dataclass(frozen=True, slots=True)
class CreateSegments:
    """Make the absent segments, with cursors at their start."""

    plan: int  # The plan's id, or -1 for a repair.
    segments: tuple[Segment, ...]
    subscriptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SealSegment:
    plan: int
    segment: Segment


@dataclass(frozen=True, slots=True)
class DeleteSegments:
    """Remove the segments' storage. With `best_effort` a failure is logged and the answer is Done all the same."""

    segments: tuple[Segment, ...]
    best_effort: bool = False


@dataclass(frozen=True, slots=True)
class StoreSubscription:
    """Store the record. An existing record stays, and gets its initial position if it has none, unless `overwrite`."""

    record: SubscriptionRecord
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class CreateCursors:
    name: str
    segments: tuple[Segment, ...]
    initial: InitialPosition


@dataclass(frozen=True, slots=True)
class DeleteCursors:
    name: str
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class WithdrawDescendants:
    """Withdraw all descendants of sealed segments from the subscription's consumers: their parents may be undrained
    again."""

    name: str


@dataclass(frozen=True, slots=True)
class MoveCursors:
    name: str
    segments: tuple[Segment, ...]
    timestamp_ms: int | None


@dataclass(frozen=True, slots=True)
class CheckUnneeded:
    """Check which of those sealed segments are not needed now. The answer is Unneeded."""

    segments: tuple[SegmentId, ...]


@dataclass(frozen=True, slots=True)
class CheckDrained:
    """Check again which sealed segments the subscription has drained, and assign what that allows."""

    name: str


@dataclass(frozen=True, slots=True)
class DropSessions:
    """Notify every consumer of the subscription that it has no segments, and remove its session. "" for all."""

    name: str


@dataclass(frozen=True, slots=True)
class RemoveSubscription:
    name: str


@dataclass(frozen=True, slots=True)
class RemoveTopic:
    """Remove the record and everything below it."""


@dataclass(frozen=True, slots=True)
class TellConsumers:
    """The layout has changed: compute every subscription's assignments again."""

    layout: SegmentLayout


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait before the next effect, longer with each attempt."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Answer:
    ticket: Ticket
    layout: SegmentLayout


@dataclass(frozen=True, slots=True)
class Refuse:
    ticket: Ticket
    error: AnabranchError


@dataclass(frozen=True, slots=True)
class EndController:
    """The topic is gone."""


Effect = (
    StoreTopic
    | ReadTopic
    | ReadSubscriptions
    | CreateSegments
    | SealSegment
    | DeleteSegments
    | StoreSubscription
    | CreateCursors
    | DeleteCursors
    | WithdrawDescendants
    | MoveCursors
    | CheckUnneeded
    | CheckDrained
    | DropSessions
    | RemoveSubscription
    | RemoveTopic
    | TellConsumers
    | Wait
    | Answer
    | Refuse
    | EndController
)

# These are answered by an event; the others are not.
ANSWERED = (
    StoreTopic,
    ReadTopic,
    ReadSubscriptions,
    CreateSegments,
    SealSegment,
    DeleteSegments,
    StoreSubscription,
    CreateCursors,
    DeleteCursors,
    WithdrawDescendants,
    MoveCursors,
    CheckUnneeded,
    CheckDrained,
    DropSessions,
    RemoveSubscription,
    RemoveTopic,
)
