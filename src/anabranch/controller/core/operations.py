"""The operations of a scalable topic's controller: the data of each, its present stage, and which may follow. Pure.

A stage names the effect that is under way. `NEXT` lists the stages that may follow each; `at` refuses all others, so
`step` cannot leave the table. Any operation may also begin again at its first stage, because every effect may run
twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, TypeVar

from anabranch.controller.core import events as e
from anabranch.controller.core.events import Request
from anabranch.model.scalable import ReshapePlan, ScalableTopic, SubscriptionRecord


class ReshapeStage(Enum):
    STORE_PLAN = "the plan is stored"
    READ = "subscriptions are read"
    CREATE = "the children are made, with a cursor for each subscription"
    SEAL = "the parents are sealed, one after the other"
    READ_AGAIN = "subscriptions are read again, now that nothing more is published to the parents"
    DELETE_STALE = "cursors of subscriptions that were deleted meanwhile are deleted, one after the other"
    ADD_CURSORS = "the children get cursors for subscriptions that were made meanwhile"
    PUBLISH = "the new layout is stored"


class SubscribeStage(Enum):
    READ = "the subscription's record is read"
    STORE = "its record is stored"
    READ_STORED = "its record is read again: another leader's stays as it is"
    READ_TOPIC = "the topic's record is read, after the subscription's"
    CREATE_CURSORS = "segments get their cursors"


class UnsubscribeStage(Enum):
    READ = "the subscription's record is read"
    MARK = "its record is marked as being deleted"
    DROP_SESSIONS = "its consumers are sent away"
    READ_TOPIC = "the topic's record is read, after the subscription's"
    DELETE_CURSORS = "the cursors are deleted"
    REMOVE = "its record is removed"


class SeekStage(Enum):
    READ = "the subscription's record is read"
    READ_TOPIC = "the topic's record is read, after the subscription's"
    WITHDRAW = "consumers give back the descendants of what will be read again"
    MOVE = "the cursors are moved"
    CHECK_DRAINED = "owners are asked what is drained now"


class CollectStage(Enum):
    CHECK = "owners are asked whether nobody needs the segments: a seek may have been first"
    MARK = "the segments are marked as being deleted"
    DELETE = "their storage is deleted"
    PRUNE = "the layout without them is stored"


class DeleteStage(Enum):
    MARK = "the topic is marked as being deleted"
    DROP_SESSIONS = "all consumers are sent away"
    DELETE_SEGMENTS = "the storage of all segments is deleted"
    REMOVE = "the topic's record is removed"


Stage = ReshapeStage | SubscribeStage | UnsubscribeStage | SeekStage | CollectStage | DeleteStage

# The stages that may follow each. Where there are several, the record that was read decides. A stage without followers
# ends the operation.
NEXT: Final[Mapping[Stage, tuple[Stage, ...]]] = {
    ReshapeStage.STORE_PLAN: (ReshapeStage.READ,),
    ReshapeStage.READ: (ReshapeStage.CREATE,),
    ReshapeStage.CREATE: (ReshapeStage.SEAL,),
    ReshapeStage.SEAL: (ReshapeStage.SEAL, ReshapeStage.READ_AGAIN),
    ReshapeStage.READ_AGAIN: (ReshapeStage.DELETE_STALE, ReshapeStage.ADD_CURSORS, ReshapeStage.PUBLISH),
    ReshapeStage.DELETE_STALE: (ReshapeStage.DELETE_STALE, ReshapeStage.ADD_CURSORS, ReshapeStage.PUBLISH),
    ReshapeStage.ADD_CURSORS: (ReshapeStage.PUBLISH,),
    ReshapeStage.PUBLISH: (),
    #
    SubscribeStage.READ: (SubscribeStage.STORE, SubscribeStage.READ_TOPIC),
    SubscribeStage.STORE: (SubscribeStage.READ_STORED,),
    SubscribeStage.READ_STORED: (SubscribeStage.READ_TOPIC,),
    SubscribeStage.READ_TOPIC: (SubscribeStage.CREATE_CURSORS,),
    SubscribeStage.CREATE_CURSORS: (),
    #
    UnsubscribeStage.READ: (UnsubscribeStage.MARK, UnsubscribeStage.DROP_SESSIONS),
    UnsubscribeStage.MARK: (UnsubscribeStage.DROP_SESSIONS,),
    UnsubscribeStage.DROP_SESSIONS: (UnsubscribeStage.READ_TOPIC,),
    UnsubscribeStage.READ_TOPIC: (UnsubscribeStage.DELETE_CURSORS,),
    UnsubscribeStage.DELETE_CURSORS: (UnsubscribeStage.REMOVE,),
    UnsubscribeStage.REMOVE: (),
    #
    SeekStage.READ: (SeekStage.READ_TOPIC,),
    SeekStage.READ_TOPIC: (SeekStage.WITHDRAW, SeekStage.MOVE),
    SeekStage.WITHDRAW: (SeekStage.MOVE,),
    SeekStage.MOVE: (SeekStage.CHECK_DRAINED,),
    SeekStage.CHECK_DRAINED: (),
    #
    CollectStage.CHECK: (CollectStage.MARK, CollectStage.DELETE),  # DELETE if another leader has marked them.
    CollectStage.MARK: (CollectStage.DELETE,),
    CollectStage.DELETE: (CollectStage.PRUNE,),
    CollectStage.PRUNE: (),
    #
    DeleteStage.MARK: (DeleteStage.DROP_SESSIONS,),
    DeleteStage.DROP_SESSIONS: (DeleteStage.DELETE_SEGMENTS,),
    DeleteStage.DELETE_SEGMENTS: (DeleteStage.REMOVE,),
    DeleteStage.REMOVE: (),
}


@dataclass(frozen=True, slots=True)
class Reshaping:
    """A split, a merge or a migration, from storing its plan to publishing its layout."""

    plan: ReshapePlan
    request: Request | None  # None if it was found in the record.
    stage: ReshapeStage = ReshapeStage.STORE_PLAN
    sealed: int = 0  # How many parents are sealed.
    subscriptions: tuple[str, ...] = ()  # As last read.
    given: frozenset[str] = frozenset()  # The subscriptions that the children were made with.
    stale: tuple[str, ...] = ()  # Those of `given` that another leader has deleted since.

    @property
    def is_stored(self) -> bool:
        return self.stage is not ReshapeStage.STORE_PLAN


@dataclass(frozen=True, slots=True)
class SubscribeStep:
    request: e.SubscriptionRequested | e.SubscriptionFound
    stage: SubscribeStage = SubscribeStage.READ
    record: SubscriptionRecord | None = None  # As read.


@dataclass(frozen=True, slots=True)
class Unsubscribing:
    request: e.SubscriptionDeletionRequested
    stage: UnsubscribeStage = UnsubscribeStage.READ
    record: SubscriptionRecord | None = None  # As read.

    @property
    def is_marked(self) -> bool:
        return self.stage not in (UnsubscribeStage.READ, UnsubscribeStage.MARK)


@dataclass(frozen=True, slots=True)
class Seeking:
    request: e.SeekRequested
    stage: SeekStage = SeekStage.READ


@dataclass(frozen=True, slots=True)
class Collecting:
    """Sealed segments that are not needed any more: marked, emptied, pruned."""

    request: e.SegmentsExpired
    stage: CollectStage = CollectStage.CHECK


@dataclass(frozen=True, slots=True)
class Deleting:
    request: e.DeletionRequested | None
    stage: DeleteStage = DeleteStage.MARK


@dataclass(frozen=True, slots=True)
class Repairing:
    """Creating the segments of a new topic that may be missing: one effect, so it has no stages."""

    request: e.RepairRequested


Staged = Reshaping | SubscribeStep | Unsubscribing | Seeking | Collecting | Deleting
Operation = Staged | Repairing


@dataclass(frozen=True, slots=True)
class ControlledTopic:
    """The controller's knowledge of a topic."""

    topic: ScalableTopic
    version: int  # The stored record's version; -1 for a classic topic, which has none.
    doing: Operation | None = None
    waiting: tuple[Request, ...] = ()
    failures: int = 0  # Failures in a row of the effect under way.
    is_over: bool = field(default=False)

    @property
    def is_classic(self) -> bool:
        return self.version < 0


T = TypeVar("T", bound=Staged)


def at(doing: T, stage: Stage, **changes: Any) -> T:
    """The operation moved to one of the stages that may follow its own."""
    assert stage in NEXT[doing.stage], f"{doing.stage} does not lead to {stage}"
    fields: dict[str, Any] = {"stage": stage, **changes}
    return replace(doing, **fields)
