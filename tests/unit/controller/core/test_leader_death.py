"""A leader lost between any two effects: the next one finishes what was written down; nothing is stuck or doubled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from anabranch.controller.core import events as e
from anabranch.controller.core.errors import SegmentRefused
from anabranch.controller.core.operations import ControlledTopic
from anabranch.controller.core.step import resume, step
from anabranch.model.layout import SegmentLayout
from anabranch.model.scalable import (
    InitialPosition,
    PlanKind,
    ReshapePlan,
    ScalableTopic,
    SubscriptionKind,
    SubscriptionRecord,
)
from anabranch.model.segments import SegmentId

NOW_MS = 1_000
GENERATION = 7


@dataclass
class Log:
    is_sealed: bool = False
    cursors: set[str] = field(default_factory=set)


class LeaderDied(Exception):
    pass


@dataclass
class World:
    """The store and the owners. An owner reads the record before it acts, as the real ones do."""

    topic: ScalableTopic | None
    version: int = 0
    subscriptions: dict[str, SubscriptionRecord] = field(default_factory=dict)
    segments: dict[SegmentId, Log] = field(default_factory=dict)
    answers: list[e.Effect] = field(default_factory=list)
    effects: int = 0
    dies_after: int | None = None

    def lead(self, *requests: e.Request) -> ControlledTopic:
        """A leader takes over, finishes what it finds and then does what is asked."""
        assert self.topic is not None
        state, effects = resume(ControlledTopic(self.topic, self.version))
        state = self._work(state, effects)
        for name in [r.name for r in self.subscriptions.values() if r.is_deleting]:
            state = self._ask(state, e.SubscriptionDeletionRequested(0, name))
        for request in requests:
            state = self._ask(state, request)
        return state

    def _ask(self, state: ControlledTopic, request: e.Request) -> ControlledTopic:
        state, effects = step(state, request)
        return self._work(state, effects)

    def _work(self, state: ControlledTopic, effects: list[e.Effect]) -> ControlledTopic:
        todo = list(effects)
        while todo:
            effect = todo.pop(0)
            if not isinstance(effect, e.ANSWERED):
                self.answers.append(effect)
                continue
            event = self.perform(effect)
            self.effects += 1
            if self.dies_after is not None and self.effects > self.dies_after:
                raise LeaderDied
            state, more = step(state, event)
            todo += more
        return state

    def perform(self, effect: e.Effect) -> e.Event:
        match effect:
            case e.StoreTopic(topic, if_version):
                if if_version != self.version or self.topic is None:
                    return e.TopicRead(self.topic, self.version)
                self.topic, self.version = ScalableTopic.decode(topic.encode()), self.version + 1
                return e.TopicStored(self.version)
            case e.ReadTopic():
                return e.TopicRead(self.topic, self.version)
            case e.ReadSubscriptions():
                return e.SubscriptionsRead(tuple(self.subscriptions.values()))
            case e.StoreSubscription(record):
                self.subscriptions[record.name] = record
            case e.RemoveSubscription(name):
                self.subscriptions.pop(name, None)
            case e.CreateCursors(name, segments, _):
                for segment in segments:
                    self.segments[segment.id].cursors.add(name)
            case e.DeleteCursors(name, segments):
                for segment in segments:
                    if segment.id in self.segments:
                        self.segments[segment.id].cursors.discard(name)
            case e.CreateSegments(_, segments, subscriptions):
                for segment in segments:
                    if self.topic is None or not self.topic.may_create(segment.id, segment.range):
                        return e.EffectFailed(effect, SegmentRefused("not called for"))
                    self.segments.setdefault(segment.id, Log()).cursors.update(subscriptions)
            case e.SealSegment(_, segment):
                if self.topic is None or not self.topic.may_seal(segment.id):
                    return e.EffectFailed(effect, SegmentRefused("not called for"))
                self.segments[segment.id].is_sealed = True
            case e.DeleteSegments(segments):
                for segment in segments:
                    if self.topic is not None and not self.topic.may_delete(segment.id):
                        return e.EffectFailed(effect, SegmentRefused("not called for"))
                    self.segments.pop(segment.id, None)
            case e.CheckUnneeded(numbers):
                return e.Unneeded(numbers)
            case e.RemoveTopic():
                self.topic = None
                self.subscriptions.clear()
            case e.WithdrawDescendants() | e.MoveCursors() | e.CheckDrained() | e.DropSessions():
                pass
            case _:
                raise AssertionError(effect)
        return e.Done()

    @property
    def facts(self) -> tuple[object, ...]:
        return self.topic, self.subscriptions, self.segments


def world(count: int) -> World:
    topic = ScalableTopic(SegmentLayout.initial(count, NOW_MS), GENERATION, {"owner": "me"})
    names = {"billing": SubscriptionKind.STREAM, "audit": SubscriptionKind.QUEUE}
    made = World(topic)
    made.subscriptions = {
        name: SubscriptionRecord(name, kind, GENERATION, InitialPosition.EARLIEST)
        for name, kind in names.items()
    }
    made.segments = {number: Log(cursors=set(names)) for number in topic.layout.segments}
    return made


def migrating() -> World:
    names = ["persistent://public/default/t-partition-0", "persistent://public/default/t-partition-1"]
    before = SegmentLayout.synthetic(names, NOW_MS)
    plan = ReshapePlan(PlanKind.MIGRATE, tuple(before.segments), SegmentLayout.migrated(names, NOW_MS))
    made = world(2)
    made.topic = ScalableTopic(before, GENERATION, plan=plan)
    return made


def split_once() -> World:
    made = world(1)
    made.lead(e.SplitRequested(1, 0, NOW_MS))
    made.effects = 0
    return made


def test_split_publishes_what_was_planned_with_every_cursor_in_place() -> None:
    made = world(2)
    made.lead(e.SplitRequested(1, 0, NOW_MS))
    assert made.topic is not None
    assert made.topic.layout == SegmentLayout.initial(2, NOW_MS).split(0, NOW_MS)
    assert made.topic.properties == {"owner": "me"}
    assert made.segments[SegmentId(0)].is_sealed
    for child in (SegmentId(2), SegmentId(3)):
        assert made.segments[child] == Log(cursors={"billing", "audit"})
    assert [a for a in made.answers if isinstance(a, e.Answer)] == [e.Answer(1, made.topic.layout)]


def test_a_rebucket_publishes_one_child_with_the_asked_buckets_and_every_cursor_in_place() -> None:
    made = world(2)
    made.lead(e.RebucketRequested(1, 0, 8, NOW_MS))
    assert made.topic is not None
    before = SegmentLayout.initial(2, NOW_MS)
    assert made.topic.layout == before.rebucket(0, 8, NOW_MS)
    assert made.segments[SegmentId(0)].is_sealed
    assert made.segments[SegmentId(2)] == Log(cursors={"billing", "audit"})
    child = made.topic.layout.segment(2)
    assert (child.bucket_count, child.range) == (8, before.segment(0).range)
    assert len(made.topic.layout.active) == 2


OPERATIONS: dict[str, tuple[Callable[..., World], tuple[int, ...], e.Request | None, int]] = {
    "split": (world, (2,), e.SplitRequested(1, 0, NOW_MS), 6),
    "merge": (world, (2,), e.MergeRequested(1, 1, 0, NOW_MS), 7),
    "rebucket": (world, (2,), e.RebucketRequested(1, 0, 8, NOW_MS), 6),
    "migrate": (migrating, (), None, 6),
    "collect": (split_once, (), e.SegmentsExpired((SegmentId(0),), 1), 4),
    "delete": (world, (2,), e.DeletionRequested(1), 4),
    "unsubscribe": (world, (2,), e.SubscriptionDeletionRequested(1, "billing"), 6),
}


def _check_death(operation: str, crash_after: int) -> None:
    make, arguments, request, effects = OPERATIONS[operation]
    requests = [] if request is None else [request]
    undisturbed = make(*arguments)
    undisturbed.lead(*requests)
    assert undisturbed.effects == effects, "the parameters below must reach every effect"

    disturbed = make(*arguments)
    disturbed.dies_after = crash_after
    with pytest.raises(LeaderDied):
        disturbed.lead(*requests)
    disturbed.dies_after = None
    written_down = disturbed.facts != make(*arguments).facts
    if disturbed.topic is not None:
        disturbed.lead()
    if written_down or operation == "migrate":
        assert disturbed.facts == undisturbed.facts
    else:
        assert disturbed.facts == make(*arguments).facts, (
            "nothing was written down, so nothing may have happened"
        )
    if disturbed.topic is not None:
        assert disturbed.topic.plan is None
        disturbed.topic.layout.check()


@pytest.mark.parametrize("crash_after", range(6))
def test_split_completes_whichever_effect_the_leader_dies_after(crash_after: int) -> None:
    _check_death("split", crash_after)


@pytest.mark.parametrize("crash_after", range(7))
def test_merge_completes_whichever_effect_the_leader_dies_after(crash_after: int) -> None:
    _check_death("merge", crash_after)


@pytest.mark.parametrize("crash_after", range(6))
def test_rebucketing_completes_with_the_planned_buckets_whichever_effect_the_leader_dies_after(
    crash_after: int,
) -> None:
    _check_death("rebucket", crash_after)


@pytest.mark.parametrize("crash_after", range(6))
def test_migration_completes_whichever_effect_the_leader_dies_after(crash_after: int) -> None:
    _check_death("migrate", crash_after)


@pytest.mark.parametrize("crash_after", range(3))
def test_collection_completes_whichever_effect_the_leader_dies_after(crash_after: int) -> None:
    _check_death("collect", crash_after)


@pytest.mark.parametrize("crash_after", range(4))
def test_deletion_completes_whichever_effect_the_leader_dies_after(crash_after: int) -> None:
    _check_death("delete", crash_after)


@pytest.mark.parametrize("crash_after", range(6))
def test_unsubscribing_completes_whichever_effect_the_leader_dies_after(crash_after: int) -> None:
    _check_death("unsubscribe", crash_after)


@pytest.mark.parametrize(
    "request_",
    [e.SplitRequested(1, 0, NOW_MS), e.RebucketRequested(1, 0, 4, NOW_MS)],
    ids=["split", "rebucket"],
)
@pytest.mark.parametrize("crash_after", range(6))
def test_a_deposed_leader_that_goes_on_late_changes_nothing(crash_after: int, request_: e.Request) -> None:
    """It performs what it was about to do once the next leader is done, and gets no further."""
    made = world(2)
    made.dies_after = crash_after
    state, effects = resume(ControlledTopic(made.topic or pytest.fail("no topic"), made.version))
    state, effects = step(state, request_)
    for _ in range(crash_after):
        [effect] = [x for x in effects if isinstance(x, e.ANSWERED)]
        state, effects = step(state, made.perform(effect))
    made.dies_after = None
    after = made.lead(e.SplitRequested(2, 1, NOW_MS)).topic
    assert after == made.topic
    before = (made.topic, {n: replace(log) for n, log in made.segments.items()})
    # The late one: everything it still does is refused, finds the work done, or plans anew on the record as it is.
    late = [x for x in effects if isinstance(x, e.ANSWERED)]
    for _ in range(20):
        if not late:
            break
        state, more = step(state, made.perform(late.pop()))
        late += [x for x in more if isinstance(x, e.ANSWERED)]
    assert not late
    assert made.topic is not None
    assert made.topic.plan is None
    made.topic.layout.check()
    active = {s.id for s in made.topic.layout.active}
    assert {n for n, log in made.segments.items() if not log.is_sealed} == active
    assert all(log.cursors == {"billing", "audit"} for log in made.segments.values())
    if crash_after:
        # Its plan was stored, so the other leader finished it: there is nothing left for it to do.
        assert (made.topic, made.segments) == before
