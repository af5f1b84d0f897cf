"""The controller's decisions about one scalable topic: `step(state, event) -> (state, effects)`. Pure.

One operation runs at a time; all requests wait their turn in one queue. An operation is a row of effects, each begun
when the one before it is done. What must not be left half done is stored before its first effect (the plan of a split,
the mark of a deletion), so that `resume` finds it in the record and continues it, under this leader or the next.
Everything before the mark may be lost without harm, and every effect may run twice. `operations` has the stages of each
operation and what follows them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from anabranch.controller.core import events as e
from anabranch.controller.core.due import due, still, wanted
from anabranch.controller.core.errors import (
    OperationRefused,
    SegmentRefused,
    SubscriptionMissing,
    TooBusy,
    TopicMissing,
)
from anabranch.controller.core.events import Effect, Event, Request, Ticket
from anabranch.controller.core.operations import (
    NEXT,
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
    at,
)
from anabranch.errors import AnabranchError
from anabranch.metadata.errors import ValueTooLarge
from anabranch.model.scalable import (
    PlanKind,
    ReshapePlan,
    SubscriptionKind,
    SubscriptionRecord,
)
from anabranch.model.segments import SegmentId

WAITING_MAX = 1000


Result = tuple[ControlledTopic, list[Effect]]


def resume(state: ControlledTopic) -> Result:
    """The first work of a new leader: finish what its predecessor stored."""
    return _next(state)


def step(state: ControlledTopic, event: Event) -> Result:
    if state.is_over:
        return _refuse_all(state, event)
    match event:
        case e.TopicRead():
            return _record_read(state, event)
        case e.TopicStored(version):
            return _stored(replace(state, version=version, failures=0))
        case e.SubscriptionsRead(records):
            return _subscriptions_read(replace(state, failures=0), records)
        case e.Unneeded():
            return _checked(replace(state, failures=0), event)
        case e.Done():
            return _effect_done(replace(state, failures=0))
        case e.EffectFailed():
            return _failed(state, event)
        case _:
            return _requested(state, event)


# -- requests


def _requested(state: ControlledTopic, request: Request) -> Result:
    if state.is_classic and not isinstance(request, e.SubscriptionFound | e.RepairRequested):
        error = OperationRefused(
            "this is a classic topic without segments of its own; `anabranch topics migrate` makes it scalable"
        )
        return state, _refusal(request, error)
    if state.topic.is_deleting and not isinstance(request, e.DeletionRequested):
        return state, _refusal(request, TopicMissing("the topic is being deleted"))
    if len(state.waiting) >= WAITING_MAX:
        return state, _refusal(request, TooBusy(f"{WAITING_MAX} operations wait for this topic already"))
    if _is_known(state, request):
        return state, []
    state = replace(state, waiting=(*state.waiting, request))
    return _next(state) if state.doing is None else (state, [])


def _is_known(state: ControlledTopic, request: Request) -> bool:
    """Whether the request is a reminder of work that is waiting already."""
    return request.ticket == 0 and request in state.waiting


def _next(state: ControlledTopic) -> Result:
    """Begins the next piece of work: first what the record says has begun, then the waiting requests."""
    assert state.doing is None
    topic = state.topic
    if topic.is_deleting:
        wanted = next((r for r in state.waiting if isinstance(r, e.DeletionRequested)), None)
        waiting = tuple(r for r in state.waiting if r is not wanted)
        return _go_on(replace(state, doing=Deleting(wanted, DeleteStage.DROP_SESSIONS), waiting=waiting))
    if topic.plan is not None:
        return _go_on(replace(state, doing=Reshaping(topic.plan, None, ReshapeStage.READ)))
    if not state.waiting:
        marked = tuple(s.id for s in topic.layout.sealed if s.is_deleting)
        if marked:
            return _go_on(replace(state, doing=Collecting(e.SegmentsExpired(marked), CollectStage.DELETE)))
        return state, []
    request, *rest = state.waiting
    state = replace(state, waiting=tuple(rest))
    try:
        operation = _begin(state, request)
    except AnabranchError as error:
        after, effects = _next(state)
        return after, _refusal(request, error) + effects
    if operation is None:
        after, effects = _next(state)
        return after, _answer(request, state) + effects
    return _go_on(replace(state, doing=operation))


def _begin(state: ControlledTopic, request: Request) -> Operation | None:
    """The operation that the request asks for; None if there is nothing to do. Raises the refusal."""
    layout = state.topic.layout
    is_reshaping = isinstance(request, e.SplitRequested | e.MergeRequested | e.RebucketRequested)
    if is_reshaping and state.topic.is_terminated:
        raise OperationRefused("the topic was terminated: its segments stay as they are")
    match request:
        case e.SplitRequested(_, segment, now_ms, lopsided):
            result = layout.split(segment, now_ms, lopsided)
            return Reshaping(ReshapePlan(PlanKind.SPLIT, (SegmentId(segment),), result), request)
        case e.MergeRequested(_, one, other, now_ms, budget):
            result = layout.merge(one, other, now_ms, budget)
            # Parents are sealed in the order of their ranges, not in the order of the request.
            parents = sorted((SegmentId(one), SegmentId(other)), key=lambda s: layout.segments[s].range)
            return Reshaping(ReshapePlan(PlanKind.MERGE, tuple(parents), result), request)
        case e.RebucketRequested(_, segment, buckets, now_ms):
            result = layout.rebucket(segment, buckets, now_ms)
            return Reshaping(ReshapePlan(PlanKind.REBUCKET, (SegmentId(segment),), result), request)
        case e.SubscriptionRequested() | e.SubscriptionFound():
            return SubscribeStep(request)
        case e.SubscriptionDeletionRequested():
            return Unsubscribing(request)
        case e.SeekRequested():
            return Seeking(request)
        case e.SegmentsExpired(segments):
            known = tuple(s for s in segments if s in layout.segments and layout.segments[s].is_sealed)
            return Collecting(e.SegmentsExpired(known, request.ticket, request.ends)) if known else None
        case e.DeletionRequested():
            return Deleting(request)
        case e.RepairRequested():
            # Only the creation of a topic can be interrupted: later segments are made before they are published.
            return None if state.is_classic or layout.epoch else Repairing(request)
        case _:
            assert_never(request)


def _go_on(state: ControlledTopic) -> Result:
    """Returns the effect of the operation's stage, or finishes the operation if nothing is left to do."""
    if state.doing is None:
        return state, []
    effect = due(state, state.doing)
    return _finish(state) if effect is None else (state, [effect])


# -- results of effects


def _stored(state: ControlledTopic) -> Result:
    match state.doing:
        case Reshaping(stage=ReshapeStage.STORE_PLAN) as doing:
            topic = state.topic.planned(doing.plan)
            return _go_on(replace(state, topic=topic, doing=at(doing, ReshapeStage.READ)))
        case Reshaping(stage=ReshapeStage.PUBLISH):
            return _published(replace(state, topic=state.topic.published()))
        case Collecting(request, CollectStage.MARK) as doing:
            layout = state.topic.layout.mark_deleting(still(state, request), dict(request.ends))
            topic = replace(state.topic, layout=layout)
            return _go_on(replace(state, topic=topic, doing=at(doing, CollectStage.DELETE)))
        case Collecting(request, CollectStage.PRUNE):
            layout = state.topic.layout.prune(still(state, request))
            return _published(replace(state, topic=replace(state.topic, layout=layout)))
        case Deleting(stage=DeleteStage.MARK) as doing:
            topic = replace(state.topic, is_deleting=True)
            return _go_on(replace(state, topic=topic, doing=at(doing, DeleteStage.DROP_SESSIONS)))
        case _:
            raise AssertionError(f"a record was stored that {state.doing} did not ask for")


def _published(state: ControlledTopic) -> Result:
    after, effects = _finish(state)
    return after, [e.TellConsumers(state.topic.layout), *effects]


def _subscriptions_read(state: ControlledTopic, records: tuple[SubscriptionRecord, ...]) -> Result:
    mine = {r.name: r for r in records if r.generation == state.topic.generation}
    match state.doing:
        case Reshaping() as doing:
            return _go_on(replace(state, doing=_reshaping_read(doing, mine.values())))
        case SubscribeStep(request) as doing:
            return _subscribing_read(state, doing, mine.get(request.name))
        case Unsubscribing(request) as doing:
            found = mine.get(request.name)
            if found is None or (request.ticket == 0 and not found.is_deleting):
                # A reminder concerned a deletion that another leader has finished since.
                return _give_up(state, SubscriptionMissing(f"there is no subscription {request.name}"))
            stage = UnsubscribeStage.DROP_SESSIONS if found.is_deleting else UnsubscribeStage.MARK
            return _go_on(replace(state, doing=at(doing, stage, record=found)))
        case Seeking(request) as doing:
            found = mine.get(request.name)
            if found is None or found.is_deleting:
                return _give_up(state, SubscriptionMissing(f"there is no subscription {request.name}"))
            return _go_on(replace(state, doing=at(doing, SeekStage.READ_TOPIC)))
        case _:
            raise AssertionError(f"subscriptions were read that {state.doing} did not ask for")


def _reshaping_read(doing: Reshaping, records: Iterable[SubscriptionRecord]) -> Reshaping:
    names = sorted(r.name for r in records if not r.is_deleting and r.kind is not SubscriptionKind.CHECKPOINT)
    if doing.stage is ReshapeStage.READ:
        return at(doing, ReshapeStage.CREATE, subscriptions=tuple(names))
    stale = tuple(sorted(doing.given.difference(names)))
    return _with_cursors(replace(doing, subscriptions=tuple(names), stale=stale))


def _with_cursors(doing: Reshaping) -> Reshaping:
    """The parents are sealed: first the children lose stale cursors and get missing ones."""
    if doing.stale:
        return at(doing, ReshapeStage.DELETE_STALE)
    # The usual case: no subscription was added while the parents were being sealed.
    is_complete = doing.given.issuperset(doing.subscriptions)
    return at(doing, ReshapeStage.PUBLISH if is_complete else ReshapeStage.ADD_CURSORS)


def _subscribing_read(
    state: ControlledTopic, doing: SubscribeStep, found: SubscriptionRecord | None
) -> Result:
    request = doing.request
    if isinstance(request, e.SubscriptionRequested):
        is_stored = doing.stage is SubscribeStage.READ_STORED
        if found.is_deleting if found is not None else is_stored:
            return _give_up(state, TooBusy(f"subscription {request.name} is being deleted; try again"))
        if found is not None and found.kind is not request.kind:
            return _give_up(state, _other_kind(found))
        if not is_stored and wanted(state, request, found) != found:
            # The record is read again after that: changes that another leader stored meanwhile are kept.
            return _go_on(replace(state, doing=at(doing, SubscribeStage.STORE, record=found)))
    if found is None or found.is_deleting or found.initial is None:
        return _finish(state)
    if found.kind is SubscriptionKind.CHECKPOINT or state.is_classic:
        return _finish(state)
    return _go_on(replace(state, doing=at(doing, SubscribeStage.READ_TOPIC, record=found)))


def _other_kind(found: SubscriptionRecord) -> OperationRefused:
    return OperationRefused(
        f"subscription {found.name} exists and is of type {found.kind.value}; use that type or another name"
    )


def _checked(state: ControlledTopic, found: e.Unneeded) -> Result:
    match state.doing:
        case Collecting(request, CollectStage.CHECK) as doing:
            left = tuple(n for n in request.segments if n in found.segments)
            expired = e.SegmentsExpired(left, request.ticket, found.ends)
            return _go_on(replace(state, doing=at(doing, CollectStage.MARK, request=expired)))
        case _:
            raise AssertionError(f"segments were looked at that {state.doing} did not ask for")


def _effect_done(state: ControlledTopic) -> Result:
    match state.doing:
        case Reshaping(stage=ReshapeStage.CREATE) as doing:
            given = frozenset(doing.subscriptions)
            return _go_on(replace(state, doing=at(doing, ReshapeStage.SEAL, given=given)))
        case Reshaping(plan, stage=ReshapeStage.SEAL) as doing:
            sealed = doing.sealed + 1
            stage = ReshapeStage.SEAL if sealed < len(plan.parents) else ReshapeStage.READ_AGAIN
            return _go_on(replace(state, doing=at(doing, stage, sealed=sealed)))
        case Reshaping(stage=ReshapeStage.DELETE_STALE) as doing:
            return _go_on(replace(state, doing=_with_cursors(replace(doing, stale=doing.stale[1:]))))
        case Deleting(stage=DeleteStage.REMOVE):
            return _ended(state)
        case Reshaping() | SubscribeStep() | Unsubscribing() | Seeking() | Collecting() | Deleting() as doing:
            if not (following := NEXT[doing.stage]):
                return _finish(state)
            assert len(following) == 1, f"{doing.stage}: what follows is for what was read to say"
            return _go_on(replace(state, doing=at(doing, following[0])))
        case Repairing():
            return _finish(state)
        case None:
            raise AssertionError("an effect was done that nobody asked for")
        case _:
            assert_never(state.doing)


def _ended(state: ControlledTopic) -> Result:
    """The topic is gone: requests to delete it succeed, and all others are refused."""
    requests = [*_request_of(state.doing), *state.waiting]
    effects: list[Effect] = []
    for request in requests:
        if isinstance(request, e.DeletionRequested):
            effects += _answer(request, state)
        else:
            effects += _refusal(request, TopicMissing("the topic was deleted"))
    return replace(state, doing=None, waiting=(), is_over=True), [*effects, e.EndController()]


def _finish(state: ControlledTopic) -> Result:
    requests = _request_of(state.doing)
    after, effects = _next(replace(state, doing=None))
    answers = [answer for request in requests for answer in _answer(request, state)]
    return after, [*answers, *effects]


def _give_up(state: ControlledTopic, error: AnabranchError) -> Result:
    requests = _request_of(state.doing)
    after, effects = _next(replace(state, doing=None))
    return after, [refusal for request in requests for refusal in _refusal(request, error)] + effects


def _failed(state: ControlledTopic, event: e.EffectFailed) -> Result:
    if (
        isinstance(event.error, ValueTooLarge)
        and isinstance(state.doing, Reshaping)
        and not state.doing.is_stored
    ):
        # Nothing has begun, and a retry cannot help: the remedy, such as deleting a subscription that keeps sealed
        # segments, waits behind this request.
        return _give_up(replace(state, failures=0), event.error)
    if isinstance(event.effect, e.CheckUnneeded):
        # Nothing has begun, and the next check of sealed segments finds them again.
        return _give_up(replace(state, failures=0), event.error)
    is_refused = isinstance(event.error, SegmentRefused)
    if not is_refused and not _must_finish(state):
        # What was stored is completed later: an interrupted subscription is found by its record.
        return _give_up(replace(state, failures=0), event.error)
    # The record may have changed, because this leader is late or because the topic is being deleted: read it before
    # continuing. The subscription's record may have changed too: an owner that refuses has found it deleted, or made
    # again.
    if isinstance(state.doing, SubscribeStep):
        state = replace(state, doing=SubscribeStep(state.doing.request))
    elif isinstance(state.doing, Unsubscribing) and is_refused:
        state = replace(state, doing=Unsubscribing(state.doing.request))
    failures = state.failures + 1
    return replace(state, failures=failures), [e.Wait(failures), e.ReadTopic()]


def _must_finish(state: ControlledTopic) -> bool:
    """Whether the operation is retried until it is done: it cannot be undone, or no caller would request it again."""
    if isinstance(state.doing, Reshaping | Collecting | Deleting):
        return True
    if isinstance(state.doing, Unsubscribing) and state.doing.is_marked:
        return True
    return not state.is_classic and any(request.ticket == 0 for request in _request_of(state.doing))


# -- the stored record has changed


def _record_read(state: ControlledTopic, event: e.TopicRead) -> Result:
    fresh = event.topic
    if fresh is None or (not state.is_classic and fresh.generation != state.topic.generation):
        return _ended(state)
    if event.version < state.version:
        return _go_on(state)
    before, doing = state.topic.layout, state.doing
    state = replace(state, topic=fresh, version=event.version)
    told: list[Effect] = [] if fresh.layout.epoch == before.epoch else [e.TellConsumers(fresh.layout)]
    if doing is None:
        after, effects = _next(state)
    elif fresh.is_deleting and not isinstance(doing, Deleting):
        after, effects = _drop_for_deletion(state)
    else:
        after, effects = _reconsider(state, doing)
    return after, told + effects


def _drop_for_deletion(state: ControlledTopic) -> Result:
    refusals = [
        refusal
        for request in _request_of(state.doing)
        for refusal in _refusal(request, TopicMissing("the topic is being deleted"))
    ]
    after, effects = _next(replace(state, doing=None))
    return after, [*refusals, *effects]


def _reconsider(state: ControlledTopic, doing: Operation) -> Result:
    """Continues the operation under way, given the record as it is now."""
    match doing:
        case Reshaping(plan, request) if doing.is_stored:
            if state.topic.layout.epoch >= plan.id:
                # Another leader has finished it, and may have begun the next.
                return _finish(state)
            if state.topic.plan != plan:
                raise AssertionError("a plan is gone and its layout was not published")
            return _go_on(state)
        case Reshaping(plan, request):
            if state.topic.plan == plan:
                # The plan was stored; only the answer was lost.
                return _go_on(replace(state, doing=at(doing, ReshapeStage.READ)))
            # Another leader was first. Plan again on the present record, after the work that it has begun.
            assert request is not None
            return _next(replace(state, doing=None, waiting=(request, *state.waiting)))
        case Repairing(request) | Collecting(request) if state.topic.plan is not None:
            # The plan is another leader's, and it goes first: its parents must not be created any more, and the layout
            # that it will publish would undo marks and prunings made meanwhile.
            return _next(replace(state, doing=None, waiting=(request, *state.waiting)))
        case Collecting(request, stage):
            segments = state.topic.layout.segments
            if not all(segments[n].is_deleting for n in still(state, request)):
                return _go_on(replace(state, doing=Collecting(request)))
            if stage in (CollectStage.CHECK, CollectStage.MARK):
                return _go_on(replace(state, doing=at(doing, CollectStage.DELETE)))
            return _go_on(state)
        case Deleting(request, stage):
            if not state.topic.is_deleting:
                return _go_on(replace(state, doing=Deleting(request)))
            if stage is DeleteStage.MARK:
                return _go_on(replace(state, doing=at(doing, DeleteStage.DROP_SESSIONS)))
            return _go_on(state)
        case SubscribeStep() | Unsubscribing() | Seeking():
            # Cursors are touched only if the topic's record was read after the subscription's: another leader's split
            # either finds the subscription as it is now, or is found here, and then it goes first.
            if state.topic.plan is not None:
                return _next(replace(state, doing=None, waiting=(doing.request, *state.waiting)))
            return _go_on(replace(state, doing=_topic_read(doing)))
        case Repairing():
            return _go_on(state)
        case _:
            assert_never(doing)


def _topic_read(doing: SubscribeStep | Unsubscribing | Seeking) -> Operation:
    match doing:
        case SubscribeStep(stage=SubscribeStage.READ_TOPIC):
            return at(doing, SubscribeStage.CREATE_CURSORS)
        case Unsubscribing(stage=UnsubscribeStage.READ_TOPIC):
            return at(doing, UnsubscribeStage.DELETE_CURSORS)
        case Seeking(request, SeekStage.READ_TOPIC):
            # A move to the end undrains nothing.
            return at(doing, SeekStage.MOVE if request.timestamp_ms is None else SeekStage.WITHDRAW)
        case _:
            return doing


# -- answers


def _request_of(doing: Operation | None) -> list[Request]:
    request = None if doing is None else doing.request
    return [] if request is None else [request]


def _answer(request: Request, state: ControlledTopic) -> list[Effect]:
    return [e.Answer(request.ticket, state.topic.layout)] if request.ticket else []


def _refusal(request: Request, error: AnabranchError) -> list[Effect]:
    ticket: Ticket = request.ticket
    return [e.Refuse(ticket, error)] if ticket else []


def _refuse_all(state: ControlledTopic, event: Event) -> Result:
    if isinstance(
        event,
        e.TopicStored | e.TopicRead | e.SubscriptionsRead | e.Unneeded | e.Done | e.EffectFailed,
    ):
        return state, []
    if isinstance(event, e.DeletionRequested):
        return state, _answer(event, state)
    return state, _refusal(event, TopicMissing("the topic was deleted"))
