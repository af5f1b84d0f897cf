"""The effect that belongs to each stage of an operation: `due(state, doing)`. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from anabranch.controller.core import events as e
from anabranch.controller.core.events import Effect
from anabranch.controller.core.operations import (
    Collecting,
    CollectStage,
    ControlledTopic,
    DeleteStage,
    Deleting,
    Operation,
    Repairing,
    ReshapeStage,
    Reshaping,
    Seeking,
    SeekStage,
    SubscribeStage,
    SubscribeStep,
    UnsubscribeStage,
    Unsubscribing,
)
from anabranch.model.scalable import InitialPosition, ScalableTopic, SubscriptionRecord
from anabranch.model.segments import Segment, SegmentId


def due(state: ControlledTopic, doing: Operation) -> Effect | None:
    """The effect of the present stage; None if nothing is left to do."""
    match doing:
        case Reshaping():
            return _reshape(state, doing)
        case SubscribeStep():
            return _subscribe(state, doing)
        case Unsubscribing():
            return _unsubscribe(state, doing)
        case Seeking():
            return _seek(state, doing)
        case Collecting():
            return _collect(state, doing)
        case Deleting():
            return _delete(state, doing)
        case Repairing():
            return e.CreateSegments(-1, state.topic.layout.active, ())
        case _:
            assert_never(doing)


def _reshape(state: ControlledTopic, doing: Reshaping) -> Effect:
    plan = doing.plan
    match doing.stage:
        case ReshapeStage.STORE_PLAN:
            return e.StoreTopic(state.topic.planned(plan), state.version)
        case ReshapeStage.READ | ReshapeStage.READ_AGAIN:
            return e.ReadSubscriptions()
        case ReshapeStage.CREATE | ReshapeStage.ADD_CURSORS:
            return e.CreateSegments(plan.id, plan.children, doing.subscriptions)
        case ReshapeStage.SEAL:
            # Parents are sealed one after the other, so that the producers of the first have somewhere to go while the
            # second is open.
            return e.SealSegment(plan.id, state.topic.layout.segments[plan.parents[doing.sealed]])
        case ReshapeStage.DELETE_STALE:
            return e.DeleteCursors(doing.stale[0], plan.children)
        case ReshapeStage.PUBLISH:
            return e.StoreTopic(state.topic.published(), state.version)
        case _:
            assert_never(doing.stage)


def _subscribe(state: ControlledTopic, doing: SubscribeStep) -> Effect:
    request, record, layout = doing.request, doing.record, state.topic.layout
    match doing.stage:
        case SubscribeStage.READ | SubscribeStage.READ_STORED:
            return e.ReadSubscriptions()
        case SubscribeStage.STORE:
            assert isinstance(request, e.SubscriptionRequested)
            return e.StoreSubscription(wanted(state, request, record))
        case SubscribeStage.READ_TOPIC:
            return e.ReadTopic()
        case SubscribeStage.CREATE_CURSORS:
            assert record is not None
            assert record.initial is not None
            is_late = record.initial is InitialPosition.LATEST
            sealed = [] if is_late else [s for s in layout.sealed if not s.is_deleting]
            return e.CreateCursors(record.name, (*sealed, *layout.active), record.initial)
        case _:
            assert_never(doing.stage)


def wanted(
    state: ControlledTopic, request: e.SubscriptionRequested, record: SubscriptionRecord | None
) -> SubscriptionRecord:
    """The record to store: a new one, or the existing one with its initial position filled in."""
    if record is None:
        return SubscriptionRecord(request.name, request.kind, state.topic.generation, request.initial)
    return record if record.initial is not None else replace(record, initial=request.initial)


def _unsubscribe(state: ControlledTopic, doing: Unsubscribing) -> Effect:
    name = doing.request.name
    match doing.stage:
        case UnsubscribeStage.READ:
            return e.ReadSubscriptions()
        case UnsubscribeStage.MARK:
            assert doing.record is not None
            return e.StoreSubscription(replace(doing.record, is_deleting=True), overwrite=True)
        case UnsubscribeStage.DROP_SESSIONS:
            return e.DropSessions(name)
        case UnsubscribeStage.READ_TOPIC:
            return e.ReadTopic()
        case UnsubscribeStage.DELETE_CURSORS:
            return e.DeleteCursors(name, tuple(state.topic.layout.segments.values()))
        case UnsubscribeStage.REMOVE:
            return e.RemoveSubscription(name)
        case _:
            assert_never(doing.stage)


def _seek(state: ControlledTopic, doing: Seeking) -> Effect:
    request = doing.request
    match doing.stage:
        case SeekStage.READ:
            return e.ReadSubscriptions()
        case SeekStage.READ_TOPIC:
            return e.ReadTopic()
        case SeekStage.WITHDRAW:
            # First the descendants, then the cursors: no consumer reads a child while its parent is being unread.
            return e.WithdrawDescendants(request.name)
        case SeekStage.MOVE:
            segments = tuple(s for s in state.topic.layout.segments.values() if not s.is_deleting)
            return e.MoveCursors(request.name, segments, request.timestamp_ms)
        case SeekStage.CHECK_DRAINED:
            return e.CheckDrained(request.name)
        case _:
            assert_never(doing.stage)


def _collect(state: ControlledTopic, doing: Collecting) -> Effect | None:
    layout, numbers = state.topic.layout, still(state, doing.request)
    if not numbers:
        return None
    match doing.stage:
        case CollectStage.CHECK:
            return e.CheckUnneeded(numbers)
        case CollectStage.MARK:
            marked = layout.mark_deleting(numbers, dict(doing.request.ends))
            return e.StoreTopic(replace(state.topic, layout=marked), state.version)
        case CollectStage.DELETE:
            return e.DeleteSegments(tuple(layout.segments[n] for n in numbers))
        case CollectStage.PRUNE:
            return e.StoreTopic(replace(state.topic, layout=layout.prune(numbers)), state.version)
        case _:
            assert_never(doing.stage)


def still(state: ControlledTopic, request: e.SegmentsExpired) -> tuple[SegmentId, ...]:
    return tuple(n for n in request.segments if n in state.topic.layout.segments)


def _delete(state: ControlledTopic, doing: Deleting) -> Effect:
    match doing.stage:
        case DeleteStage.MARK:
            return e.StoreTopic(replace(state.topic, is_deleting=True), state.version)
        case DeleteStage.DROP_SESSIONS:
            return e.DropSessions("")
        case DeleteStage.DELETE_SEGMENTS:
            return e.DeleteSegments(_all_segments(state.topic), best_effort=True)
        case DeleteStage.REMOVE:
            return e.RemoveTopic()
        case _:
            assert_never(doing.stage)


def _all_segments(topic: ScalableTopic) -> tuple[Segment, ...]:
    known = dict(topic.layout.segments)
    if topic.plan is not None:
        known.update(topic.plan.result.segments)
    return tuple(known[number] for number in sorted(known))
