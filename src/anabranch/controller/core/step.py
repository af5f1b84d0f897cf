"""The controller's decisions about one scalable topic: `step(state, event) -> (state, effects)`. Pure.

One operation runs at a time; requests wait their turn in one queue, whoever made them. An operation is a row of
effects, each begun when the one before it is done. What must not be left half done is written down before its first
effect (the plan of a split, the mark of a deletion), so that `resume` finds it in the record and goes on, under this
leader or the next. Everything before the mark may be lost without harm, and every effect may run twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import assert_never

from anabranch.controller.core import events as e
from anabranch.controller.core.events import Effect, Event, Request, Ticket
from anabranch.controller.errors import OperationRefused, SubscriptionMissing, TooBusy, TopicMissing
from anabranch.controller.ports import SegmentRefused
from anabranch.errors import AnabranchError
from anabranch.metadata.errors import ValueTooLarge
from anabranch.model.scalable import (
    InitialPosition,
    Plan,
    PlanKind,
    ScalableTopic,
    SubscriptionKind,
    SubscriptionRecord,
)
from anabranch.model.segments import Segment, SegmentId

WAITING_MAX = 1000


# -- operations under way: what they are about, and the step they are at


@dataclass(frozen=True, slots=True)
class Reshaping:
    """A split, a merge or a migration, from the storing of its plan to the publishing of its layout."""

    plan: Plan
    request: Request | None  # None if it was found in the record.
    is_stored: bool = False
    has_children: bool = False
    sealed: int = 0
    subscriptions: tuple[str, ...] | None = None  # Read, and not yet given to the children.
    given: frozenset[str] = frozenset()
    stale: tuple[str, ...] = ()  # Given to the children, and deleted since by another leader.
    is_complete: bool = False  # The children have the cursors of all subscriptions read after the sealing.


@dataclass(frozen=True, slots=True)
class Subscribing:
    request: e.SubscriptionRequested | e.SubscriptionFound
    record: SubscriptionRecord | None = None  # As read.
    is_read: bool = False
    is_stored: bool = False
    is_fresh: bool = False


@dataclass(frozen=True, slots=True)
class Unsubscribing:
    request: e.SubscriptionDeletionRequested
    record: SubscriptionRecord | None = None
    stage: int = 0  # read, marked, sessions dropped, cursors deleted, removed
    is_fresh: bool = False


@dataclass(frozen=True, slots=True)
class Seeking:
    request: e.SeekRequested
    stage: int = 0  # read, withdrawn, moved, checked
    is_fresh: bool = False


@dataclass(frozen=True, slots=True)
class Collecting:
    """Sealed segments that nobody needs: marked, emptied, pruned."""

    request: e.SegmentsExpired
    stage: int = 0  # marked, deleted, pruned
    is_checked: bool = (
        False  # Nobody needs them: what was decided before its turn came may have changed by a seek.
    )


@dataclass(frozen=True, slots=True)
class Deleting:
    request: e.DeletionRequested | None
    stage: int = 0  # marked, sessions dropped, segments deleted, removed


@dataclass(frozen=True, slots=True)
class Repairing:
    request: e.RepairRequested


Operation = Reshaping | Subscribing | Unsubscribing | Seeking | Collecting | Deleting | Repairing


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as its controller knows it."""

    topic: ScalableTopic
    version: int  # Of the stored record; -1 for a classic topic, which has none.
    doing: Operation | None = None
    waiting: tuple[Request, ...] = ()
    failures: int = 0  # In a row, of the effect under way.
    is_over: bool = field(default=False)

    @property
    def is_classic(self) -> bool:
        return self.version < 0


Result = tuple[TopicState, list[Effect]]


def resume(state: TopicState) -> Result:
    """What a new leader does first: finish what the last one wrote down."""
    return _next(state)


def step(state: TopicState, event: Event) -> Result:
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


def _requested(state: TopicState, request: Request) -> Result:
    if state.is_classic and not isinstance(request, e.SubscriptionFound | e.RepairRequested):
        error = OperationRefused("this is a regular topic without segments of its own; migrate it first")
        return state, _refusal(request, error)
    if state.topic.is_deleting and not isinstance(request, e.DeletionRequested):
        return state, _refusal(request, TopicMissing("the topic is being deleted"))
    if len(state.waiting) >= WAITING_MAX:
        return state, _refusal(request, TooBusy(f"{WAITING_MAX} operations wait for this topic already"))
    if _is_known(state, request):
        return state, []
    state = replace(state, waiting=(*state.waiting, request))
    return _next(state) if state.doing is None else (state, [])


def _is_known(state: TopicState, request: Request) -> bool:
    """Whether it is a reminder of work that waits already."""
    return request.ticket == 0 and request in state.waiting


def _next(state: TopicState) -> Result:
    """Begins the next piece of work: first what the record says has begun, then what waits."""
    assert state.doing is None
    topic = state.topic
    if topic.is_deleting:
        wanted = next((r for r in state.waiting if isinstance(r, e.DeletionRequested)), None)
        waiting = tuple(r for r in state.waiting if r is not wanted)
        return _go_on(replace(state, doing=Deleting(wanted, stage=1), waiting=waiting))
    if topic.plan is not None:
        return _go_on(replace(state, doing=Reshaping(topic.plan, None, is_stored=True)))
    if not state.waiting:
        marked = tuple(s.id for s in topic.layout.sealed if s.is_deleting)
        if marked:
            return _go_on(replace(state, doing=Collecting(e.SegmentsExpired(marked), stage=1)))
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


def _begin(state: TopicState, request: Request) -> Operation | None:
    """The operation that the request asks for; None if there is nothing to do. Raises the refusal."""
    layout = state.topic.layout
    match request:
        case e.SplitRequested(_, segment, now_ms, lopsided):
            result = layout.split(segment, now_ms, lopsided)
            return Reshaping(Plan(PlanKind.SPLIT, (SegmentId(segment),), result), request)
        case e.MergeRequested(_, one, other, now_ms):
            result = layout.merge(one, other, now_ms)
            # Sealed in the order of their ranges, whatever order they were named in.
            parents = sorted((SegmentId(one), SegmentId(other)), key=lambda s: layout.segments[s].range)
            return Reshaping(Plan(PlanKind.MERGE, tuple(parents), result), request)
        case e.SubscriptionRequested() | e.SubscriptionFound():
            return Subscribing(request)
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
            # Only the making of a topic can be interrupted: later segments are made before they are published.
            return None if state.is_classic or layout.epoch else Repairing(request)
        case _:
            assert_never(request)


# -- the effect that an operation has come to


def _go_on(state: TopicState) -> Result:
    match state.doing:
        case Reshaping() as doing:
            return _reshape(state, doing)
        case Subscribing() as doing:
            return _subscribe(state, doing)
        case Unsubscribing() as doing:
            return _unsubscribe(state, doing)
        case Seeking() as doing:
            return _seek(state, doing)
        case Collecting() as doing:
            return _collect(state, doing)
        case Deleting() as doing:
            return _delete(state, doing)
        case Repairing():
            return state, [e.CreateSegments(-1, state.topic.layout.active, ())]
        case None:
            return state, []
        case _:
            assert_never(state.doing)


def _reshape(state: TopicState, doing: Reshaping) -> Result:
    plan = doing.plan
    if not doing.is_stored:
        return state, [e.StoreTopic(state.topic.planned(plan), state.version)]
    if doing.has_children and doing.sealed < len(plan.parents):
        # One parent after the other, so that the producers of the first have somewhere to go while the second is open.
        return state, [e.SealSegment(plan.id, state.topic.layout.segments[plan.parents[doing.sealed]])]
    if doing.stale:
        return state, [e.DeleteCursors(doing.stale[0], plan.children)]
    if doing.is_complete:
        return state, [e.StoreTopic(state.topic.published(), state.version)]
    if doing.subscriptions is None:
        return state, [e.ReadSubscriptions()]
    return state, [e.CreateSegments(plan.id, plan.children, doing.subscriptions)]


def _subscribe(state: TopicState, doing: Subscribing) -> Result:
    if not doing.is_read:
        return state, [e.ReadSubscriptions()]
    record = doing.record
    if isinstance(doing.request, e.SubscriptionRequested) and not doing.is_stored:
        wanted = _wanted(state, doing.request, record)
        if wanted != record:
            # It is read again after that: what another leader has stored meanwhile stays as it is.
            return state, [e.StoreSubscription(wanted)]
    if record is None or record.is_deleting or record.initial is None:
        return _finish(state)
    if record.kind is SubscriptionKind.CHECKPOINT or state.is_classic:
        return _finish(state)
    if not doing.is_fresh:
        return state, [e.ReadTopic()]
    layout = state.topic.layout
    sealed = (
        [] if record.initial is InitialPosition.LATEST else [s for s in layout.sealed if not s.is_deleting]
    )
    return state, [e.CreateCursors(record.name, (*sealed, *layout.active), record.initial)]


def _wanted(
    state: TopicState, request: e.SubscriptionRequested, record: SubscriptionRecord | None
) -> SubscriptionRecord:
    """The record to store: a new one, or the one there is with its initial position filled in."""
    if record is None:
        return SubscriptionRecord(request.name, request.kind, state.topic.generation, request.initial)
    return record if record.initial is not None else replace(record, initial=request.initial)


def _unsubscribe(state: TopicState, doing: Unsubscribing) -> Result:
    name = doing.request.name
    match doing.stage:
        case 0:
            return state, [e.ReadSubscriptions()]
        case 1:
            assert doing.record is not None
            return state, [e.StoreSubscription(replace(doing.record, is_deleting=True), overwrite=True)]
        case 2:
            return state, [e.DropSessions(name)]
        case 3 if not doing.is_fresh:
            return state, [e.ReadTopic()]
        case 3:
            return state, [e.DeleteCursors(name, tuple(state.topic.layout.segments.values()))]
        case 4:
            return state, [e.RemoveSubscription(name)]
        case _:
            return _finish(state)


def _seek(state: TopicState, doing: Seeking) -> Result:
    request = doing.request
    segments = tuple(s for s in state.topic.layout.segments.values() if not s.is_deleting)
    match doing.stage:
        case 0:
            return state, [e.ReadSubscriptions()]
        case 1 | 2 if not doing.is_fresh:
            return state, [e.ReadTopic()]
        case 1:
            # First the descendants, then the cursors: nobody reads a child while its parent is being unread.
            return state, [e.WithdrawDescendants(request.name)]
        case 2:
            return state, [e.MoveCursors(request.name, segments, request.timestamp_ms)]
        case 3:
            return state, [e.CheckDrained(request.name)]
        case _:
            return _finish(state)


def _collect(state: TopicState, doing: Collecting) -> Result:
    layout = state.topic.layout
    numbers = tuple(n for n in doing.request.segments if n in layout.segments)
    match doing.stage:
        case _ if not numbers:
            return _finish(state)
        case 0 if not doing.is_checked:
            return state, [e.CheckUnneeded(numbers)]
        case 0:
            marked = layout.mark_deleting(numbers, dict(doing.request.ends))
            return state, [e.StoreTopic(replace(state.topic, layout=marked), state.version)]
        case 1:
            return state, [e.DeleteSegments(tuple(layout.segments[n] for n in numbers))]
        case _:
            return state, [e.StoreTopic(replace(state.topic, layout=layout.prune(numbers)), state.version)]


def _delete(state: TopicState, doing: Deleting) -> Result:
    match doing.stage:
        case 0:
            return state, [e.StoreTopic(replace(state.topic, is_deleting=True), state.version)]
        case 1:
            return state, [e.DropSessions("")]
        case 2:
            return state, [e.DeleteSegments(_all_segments(state.topic), best_effort=True)]
        case _:
            return state, [e.RemoveTopic()]


def _all_segments(topic: ScalableTopic) -> tuple[Segment, ...]:
    known = dict(topic.layout.segments)
    if topic.plan is not None:
        known.update(topic.plan.result.segments)
    return tuple(known[number] for number in sorted(known))


# -- what came of it


def _stored(state: TopicState) -> Result:
    match state.doing:
        case Reshaping(is_stored=False) as doing:
            topic = state.topic.planned(doing.plan)
            return _go_on(replace(state, topic=topic, doing=replace(doing, is_stored=True)))
        case Reshaping():
            return _published(replace(state, topic=state.topic.published()))
        case Collecting(request, 0) as doing:
            layout = state.topic.layout.mark_deleting(_still(state, request), dict(request.ends))
            topic = replace(state.topic, layout=layout)
            return _go_on(replace(state, topic=topic, doing=replace(doing, stage=1)))
        case Collecting(request, _):
            layout = state.topic.layout.prune(_still(state, request))
            return _published(replace(state, topic=replace(state.topic, layout=layout)))
        case Deleting(_, 0) as doing:
            topic = replace(state.topic, is_deleting=True)
            return _go_on(replace(state, topic=topic, doing=replace(doing, stage=1)))
        case _:
            raise AssertionError(f"a record was stored that {state.doing} did not ask for")


def _still(state: TopicState, request: e.SegmentsExpired) -> tuple[SegmentId, ...]:
    return tuple(n for n in request.segments if n in state.topic.layout.segments)


def _published(state: TopicState) -> Result:
    after, effects = _finish(state)
    return after, [e.TellConsumers(state.topic.layout), *effects]


def _subscriptions_read(state: TopicState, records: tuple[SubscriptionRecord, ...]) -> Result:
    mine = {r.name: r for r in records if r.generation == state.topic.generation}
    match state.doing:
        case Reshaping() as doing:
            names = sorted(
                r.name
                for r in mine.values()
                if not r.is_deleting and r.kind is not SubscriptionKind.CHECKPOINT
            )
            # The usual case: nobody came while the parents were being sealed.
            is_complete = doing.has_children and doing.given.issuperset(names)
            stale = tuple(sorted(doing.given.difference(names)))
            doing = replace(doing, subscriptions=tuple(names), is_complete=is_complete, stale=stale)
            return _go_on(replace(state, doing=doing))
        case Subscribing(request) as doing:
            found = mine.get(request.name)
            if isinstance(request, e.SubscriptionRequested):
                if found.is_deleting if found is not None else doing.is_stored:
                    return _give_up(
                        state, TooBusy(f"subscription {request.name} is being deleted; try again")
                    )
                if found is not None and found.kind is not request.kind:
                    return _give_up(state, _other_kind(found))
            return _go_on(replace(state, doing=replace(doing, record=found, is_read=True)))
        case Unsubscribing(request) as doing:
            found = mine.get(request.name)
            if found is None or (request.ticket == 0 and not found.is_deleting):
                # A reminder was about a deletion that somebody has finished since.
                return _give_up(state, SubscriptionMissing(f"there is no subscription {request.name}"))
            stage = 2 if found.is_deleting else 1
            return _go_on(replace(state, doing=replace(doing, record=found, stage=stage)))
        case Seeking(request) as doing:
            found = mine.get(request.name)
            if found is None or found.is_deleting:
                return _give_up(state, SubscriptionMissing(f"there is no subscription {request.name}"))
            # Forward past everything undrains nothing.
            stage = 2 if request.timestamp_ms is None else 1
            return _go_on(replace(state, doing=replace(doing, stage=stage)))
        case _:
            raise AssertionError(f"subscriptions were read that {state.doing} did not ask for")


def _other_kind(found: SubscriptionRecord) -> OperationRefused:
    return OperationRefused(
        f"subscription {found.name} exists and is of type {found.kind.value}; use that type or another name"
    )


def _checked(state: TopicState, found: e.Unneeded) -> Result:
    match state.doing:
        case Collecting(request, 0):
            left = tuple(n for n in request.segments if n in found.segments)
            doing = Collecting(e.SegmentsExpired(left, request.ticket, found.ends), is_checked=True)
            return _go_on(replace(state, doing=doing))
        case _:
            raise AssertionError(f"segments were looked at that {state.doing} did not ask for")


def _effect_done(state: TopicState) -> Result:
    match state.doing:
        case Reshaping(has_children=False) as doing:
            given = frozenset(doing.subscriptions or ())
            doing = replace(doing, has_children=True, subscriptions=None, given=given)
            return _go_on(replace(state, doing=doing))
        case Reshaping(plan) as doing if doing.sealed < len(plan.parents):
            return _go_on(replace(state, doing=replace(doing, sealed=doing.sealed + 1)))
        case Reshaping() as doing if doing.stale:
            return _go_on(replace(state, doing=replace(doing, stale=doing.stale[1:])))
        case Reshaping() as doing:
            return _go_on(replace(state, doing=replace(doing, is_complete=True)))
        case Subscribing(request) as doing:
            if isinstance(request, e.SubscriptionRequested) and not doing.is_fresh:
                return _go_on(replace(state, doing=Subscribing(request, is_stored=True)))
            return _finish(state)
        case Unsubscribing() | Seeking() | Collecting() as doing:
            return _go_on(replace(state, doing=replace(doing, stage=doing.stage + 1)))
        case Deleting(request, stage) as doing:
            if stage < 3:
                return _go_on(replace(state, doing=replace(doing, stage=stage + 1)))
            return _ended(state)
        case Repairing():
            return _finish(state)
        case None:
            raise AssertionError("an effect was done that nobody asked for")
        case _:
            assert_never(state.doing)


def _ended(state: TopicState) -> Result:
    """The topic is gone: whoever wanted that has it, and all others are refused."""
    requests = [*_request_of(state.doing), *state.waiting]
    effects: list[Effect] = []
    for request in requests:
        if isinstance(request, e.DeletionRequested):
            effects += _answer(request, state)
        else:
            effects += _refusal(request, TopicMissing("the topic was deleted"))
    return replace(state, doing=None, waiting=(), is_over=True), [*effects, e.EndController()]


def _finish(state: TopicState) -> Result:
    requests = _request_of(state.doing)
    after, effects = _next(replace(state, doing=None))
    answers = [answer for request in requests for answer in _answer(request, state)]
    return after, [*answers, *effects]


def _give_up(state: TopicState, error: AnabranchError) -> Result:
    requests = _request_of(state.doing)
    after, effects = _next(replace(state, doing=None))
    return after, [refusal for request in requests for refusal in _refusal(request, error)] + effects


def _failed(state: TopicState, event: e.EffectFailed) -> Result:
    if (
        isinstance(event.error, ValueTooLarge)
        and isinstance(state.doing, Reshaping)
        and not state.doing.is_stored
    ):
        # Nothing has begun, and trying again cannot help: what would, such as deleting a subscription that keeps sealed
        # segments, waits behind it.
        return _give_up(replace(state, failures=0), event.error)
    if isinstance(event.effect, e.CheckUnneeded):
        # Nothing has begun, and the next look at sealed segments finds them again.
        return _give_up(replace(state, failures=0), event.error)
    is_refused = isinstance(event.error, SegmentRefused)
    if not is_refused and not _must_finish(state):
        # What was stored is completed later: an interrupted subscription is found by its record.
        return _give_up(replace(state, failures=0), event.error)
    # The record may be another by now, because we are late or because somebody deletes the topic: look before going on.
    # And so may the subscription's: an owner that refuses has found it deleted, or made again.
    if isinstance(state.doing, Subscribing):
        state = replace(state, doing=Subscribing(state.doing.request))
    elif isinstance(state.doing, Unsubscribing) and is_refused:
        state = replace(state, doing=Unsubscribing(state.doing.request))
    failures = state.failures + 1
    return replace(state, failures=failures), [e.Wait(failures), e.ReadTopic()]


def _must_finish(state: TopicState) -> bool:
    """Whether it is tried until it is done: it has begun for good, or nobody would ask for it again."""
    if isinstance(state.doing, Reshaping | Collecting | Deleting):
        return True
    if isinstance(state.doing, Unsubscribing) and state.doing.stage >= 2:
        return True
    return not state.is_classic and any(request.ticket == 0 for request in _request_of(state.doing))


# -- the record is another than we thought


def _record_read(state: TopicState, event: e.TopicRead) -> Result:
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


def _drop_for_deletion(state: TopicState) -> Result:
    refusals = [
        refusal
        for request in _request_of(state.doing)
        for refusal in _refusal(request, TopicMissing("the topic is being deleted"))
    ]
    after, effects = _next(replace(state, doing=None))
    return after, [*refusals, *effects]


def _reconsider(state: TopicState, doing: Operation) -> Result:
    """Goes on with the operation under way, given the record as it is now."""
    match doing:
        case Reshaping(plan, request) if doing.is_stored:
            if state.topic.layout.epoch >= plan.id:
                # Somebody else has finished it, and may have begun the next.
                return _finish(state)
            if state.topic.plan != plan:
                raise AssertionError("a plan is gone and its layout was not published")
            return _go_on(state)
        case Reshaping(plan, request):
            if state.topic.plan == plan:
                # It was stored, only the answer was lost.
                return _go_on(replace(state, doing=replace(doing, is_stored=True)))
            # Another leader was first. Plan again on what is there now, after what it has begun.
            assert request is not None
            return _next(replace(state, doing=None, waiting=(request, *state.waiting)))
        case Repairing(request) | Collecting(request) if state.topic.plan is not None:
            # Another leader's, and it goes first: its parents are not to be made any more, and the layout it will
            # publish knows nothing of segments that are marked or pruned meanwhile.
            return _next(replace(state, doing=None, waiting=(request, *state.waiting)))
        case Collecting(request, stage):
            layout = state.topic.layout
            left = tuple(n for n in request.segments if n in layout.segments)
            marked = all(layout.segments[n].is_deleting for n in left)
            if marked:
                return _go_on(replace(state, doing=replace(doing, stage=max(stage, 1))))
            return _go_on(replace(state, doing=replace(doing, stage=0, is_checked=False)))
        case Deleting(_, stage):
            return _go_on(
                replace(state, doing=replace(doing, stage=max(stage, 1) if state.topic.is_deleting else 0))
            )
        case Subscribing() | Unsubscribing() | Seeking():
            # Cursors are touched only once the record was read after the subscription's: another leader's split either
            # finds the subscription as it is now, or is found here, and then it goes first.
            if state.topic.plan is not None:
                return _next(replace(state, doing=None, waiting=(doing.request, *state.waiting)))
            return _go_on(replace(state, doing=replace(doing, is_fresh=True)))
        case _:
            return _go_on(state)


# -- answers


def _request_of(doing: Operation | None) -> list[Request]:
    request = None if doing is None else doing.request
    return [] if request is None else [request]


def _answer(request: Request, state: TopicState) -> list[Effect]:
    return [e.Answer(request.ticket, state.topic.layout)] if request.ticket else []


def _refusal(request: Request, error: AnabranchError) -> list[Effect]:
    ticket: Ticket = request.ticket
    return [e.Refuse(ticket, error)] if ticket else []


def _refuse_all(state: TopicState, event: Event) -> Result:
    if isinstance(
        event,
        e.TopicStored | e.TopicRead | e.SubscriptionsRead | e.Unneeded | e.Done | e.EffectFailed,
    ):
        return state, []
    if isinstance(event, e.DeletionRequested):
        return state, _answer(event, state)
    return state, _refusal(event, TopicMissing("the topic was deleted"))
