"""A leader in the core world: performs what `core.step` and `core.sessions` decide, one pause at a time.

A leader is a generator: dropping it at any pause is the leader's death there. Every effect may fail, run twice, or take
place while its answer is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import replace
from typing import Final, Protocol

from anabranch.controller.core import events as e
from anabranch.controller.core import sessions as s
from anabranch.controller.core.errors import SegmentGone, SegmentRefused, SegmentUnavailable
from anabranch.controller.core.group import ConsumerGroup
from anabranch.controller.core.operations import ControlledTopic, Seeking, SubscribeStep, Unsubscribing
from anabranch.controller.core.step import resume, step
from anabranch.model.scalable import ConsumerRecord, ScalableTopic, SubscriptionKind, SubscriptionRecord
from anabranch.model.segments import Segment, SegmentId
from anabranch.simulation.core.replan import with_other_buckets
from anabranch.simulation.core.world import CoreSabotage, CoreWorld, StoreDown, Turns

Performing = Generator[None, None, e.Event | None]

NAMES: Final = {
    "stream-a": SubscriptionKind.STREAM,
    "stream-b": SubscriptionKind.STREAM,
    "queue-a": SubscriptionKind.QUEUE,
    "queue-b": SubscriptionKind.QUEUE,
}


class Assignee(Protocol):
    """The leader's view of a consumer."""

    name: str
    world: CoreWorld
    link: LeaderLink | None

    def assign(self, segments: tuple[SegmentId, ...], shared: frozenset[SegmentId]) -> None: ...


class LeaderLink:
    """A consumer's connection to a leader."""

    def __init__(self, consumer: Assignee, leader: Leader) -> None:
        self.consumer = consumer
        self.leader = leader

    def told(self, segments: tuple[SegmentId, ...], shared: frozenset[SegmentId]) -> None:
        if self.consumer.link is self:
            some = f", sharing {sorted(shared)}" if shared else ""
            self.consumer.world.note(
                f"L{self.leader.number} tells {self.consumer.name} {list(segments)}{some}"
            )
            self.consumer.assign(segments, shared)


class Deposed(Exception):
    """The leader has found out that another was elected."""


class ChangedSince(Exception):
    """A former leader has stored a session since the sessions were read."""


class Leader:
    """A broker that believes it leads. `generator` is its thread of work; dropping it kills the leader."""

    def __init__(self, world: CoreWorld, number: int, requests: dict[int, e.Request]) -> None:
        self.world = world
        self._requests = requests  # The requests of all leaders, by ticket.
        self.number = number
        self.is_alive = True
        self.is_idle = False
        self.inbox: deque[e.Request | e.TopicRead] = deque()
        self.session_inbox: deque[tuple[str, s.Event]] = deque()
        self.groups: dict[str, ConsumerGroup] = {}
        self.seeks = 0
        # The versions of the sessions' records, by subscription and consumer.
        self.versions: dict[tuple[str, str], int] = {}
        self.generator = self._live()

    # -- the leader's work

    def _live(self) -> Turns:
        try:
            yield from self._lead()
        except Deposed:
            self.world.note(f"L{self.number} finds that it was deposed")

    def _lead(self) -> Turns:
        world = self.world
        yield
        if world.topic is None:
            return
        state, effects = resume(ControlledTopic(self._taken_up(world.topic), world.version))
        self.inbox.appendleft(e.RepairRequested())
        self.look_at_subscriptions()
        for name, kind in NAMES.items():
            if kind is not SubscriptionKind.QUEUE and world.subscription(name) is not None:
                yield from self._restore(name)
        while not state.is_over:
            self.is_idle = False
            for effect in effects:
                event = yield from self._perform(effect, state)
                if event is not None:
                    state, more = step(state, event)
                    effects = more
                    break
            else:
                effects = []
                if self.session_inbox:
                    yield from self._session_event(*self.session_inbox.popleft())
                elif self.inbox:
                    state, effects = step(state, self.inbox.popleft())
                elif self._is_behind(state):
                    # The watch on the record fires, sooner or later.
                    state, effects = step(state, self._read())
                else:
                    self.is_idle = True
                    yield
                    yield from self._ask_about_drained()

    def _taken_up(self, topic: ScalableTopic) -> ScalableTopic:
        """The record that the leader begins with."""
        plan = topic.plan
        if CoreSabotage.REPLAN_N not in self.world.sabotage or plan is None:
            return topic
        return replace(topic, plan=with_other_buckets(topic, plan))

    def _is_behind(self, state: ControlledTopic) -> bool:
        world = self.world
        if world.is_hostile and world.chance.random() < 0.9:
            return False
        is_same = world.topic is not None and world.topic.generation == state.topic.generation
        return not is_same or world.version > state.version

    def look_at_subscriptions(self) -> None:
        for name in self.world.subscriptions:
            self.subscription_changed(name)

    def subscription_changed(self, name: str) -> None:
        """A watch fired. A deletion that another leader began is finished."""
        found = self.world.subscriptions.get(name)
        if found is not None and found[0].is_deleting:
            self.inbox.append(e.SubscriptionDeletionRequested(0, name))
        elif found is not None:
            self.inbox.append(e.SubscriptionFound(name))

    def _perform(self, effect: e.Effect, state: ControlledTopic) -> Performing:
        """Performs the effect and returns its answer. The effect may take place twice, not at all, or with its answer
        lost."""
        world = self.world
        yield
        try:
            event = yield from self._do(effect, state)
            if isinstance(effect, e.ANSWERED) and world.is_hostile and world.chance.random() < 0.05:
                yield
                event = yield from self._do(effect, state)
            if isinstance(effect, e.ANSWERED):
                world.lossy(0.03)
        except (StoreDown, SegmentRefused, SegmentUnavailable, SegmentGone) as error:
            world.note(f"L{self.number} failed at {_say(effect)}: {error}")
            yield
            return e.EffectFailed(effect, error)
        yield
        return event

    def _do(self, effect: e.Effect, state: ControlledTopic) -> Performing:
        world = self.world
        if isinstance(effect, e.ANSWERED):
            world.note(f"L{self.number} {_say(effect)}")
        match effect:
            case e.StoreTopic(topic, if_version):
                world.lossy()
                version = world.put_topic(topic, if_version)
                yield
                if version is None:
                    return self._read()
                return e.TopicStored(version)
            case e.ReadTopic():
                world.lossy()
                if CoreSabotage.STALE_READS in world.sabotage and isinstance(
                    state.doing, SubscribeStep | Unsubscribing | Seeking
                ):
                    return e.TopicRead(state.topic, state.version)
                return self._read()
            case e.ReadSubscriptions():
                world.lossy()
                generation = state.topic.generation
                found = tuple(r for r, _ in world.subscriptions.values() if r.generation == generation)
                yield
                return e.SubscriptionsRead(found)
            case e.CheckUnneeded(numbers):
                unneeded = tuple(number for number in numbers if world.is_unneeded(number))
                yield
                return e.Unneeded(unneeded)
            case e.CreateSegments(_, segments, subscriptions):
                for segment in segments:
                    yield from world.create_segment(segment, subscriptions)
            case e.SealSegment(_, segment):
                yield from world.seal_segment(segment)
            case e.DeleteSegments(segments, best_effort):
                for segment in segments:
                    try:
                        yield from world.delete_segment(segment)
                    except (SegmentUnavailable, SegmentRefused):
                        if not best_effort:
                            raise
            case e.CreateCursors(name, segments, initial):
                for segment in segments:
                    try:
                        yield from world.create_cursor(segment, name, initial)
                    except SegmentGone:
                        if segment.is_active:
                            raise
            case e.DeleteCursors(name, segments):
                for segment in segments:
                    yield from world.delete_cursor(segment, name)
            case e.MoveCursors(name, segments, timestamp_ms):
                for segment in segments:
                    try:
                        yield from world.move_cursor(segment, name, to_end=timestamp_ms is None)
                    except SegmentGone:
                        continue
            case e.RemoveTopic():
                world.lossy()
                world.remove_topic(state.topic.generation)
            case e.Answer() | e.Refuse():
                yield from self._answer(effect, state)
            case e.EndController() | e.Wait():
                pass
            case _:
                yield from self._do_for_subscription(effect, state)
        return e.Done() if isinstance(effect, e.ANSWERED) else None

    def _do_for_subscription(self, effect: e.Effect, state: ControlledTopic) -> Turns:
        world = self.world
        match effect:
            case e.StoreSubscription(record, overwrite):
                world.lossy()
                self._store_subscription(record, overwrite)
            case e.RemoveSubscription(name):
                world.lossy()
                found = world.subscription(name)
                if found is None or found.is_deleting:
                    world.remove_subscription(name)
            case e.WithdrawDescendants(name):
                self.seeks += 1
                yield from self._session_event(name, s.Undrained(frozenset(state.topic.layout.segments)))
            case e.CheckDrained():
                yield from self._ask_about_drained()
            case e.DropSessions(name):
                for one in [name] if name else list(self.groups):
                    yield from self._session_event(one, s.SubscriptionDeleted())
            case e.TellConsumers(layout):
                for name in list(self.groups):
                    yield from self._session_event(name, s.LayoutChanged(layout))
            case _:
                raise AssertionError(f"nobody performs {effect}")

    def _store_subscription(self, record: SubscriptionRecord, overwrite: bool) -> None:
        world = self.world
        if record.is_deleting and CoreSabotage.FORGET_MARK in world.sabotage:
            return
        found = world.subscription(record.name)
        if found is None and world.topic is not None and record.generation != world.topic.generation:
            return
        if found is None or overwrite:
            world.put_subscription(record)
        elif found.initial is None and not found.is_deleting:
            world.put_subscription(replace(found, initial=record.initial))

    def _read(self) -> e.TopicRead:
        return e.TopicRead(self.world.topic, self.world.version)

    def _answer(self, effect: e.Answer | e.Refuse, state: ControlledTopic) -> Turns:
        yield
        asked = self._requests.pop(effect.ticket, None)
        if isinstance(effect, e.Answer) and isinstance(asked, e.SubscriptionRequested):
            life = self.world.life(asked.name)
            self.world.complete.add(life)
            self.world.note(f"L{self.number} answered: {asked.name} is there")

    # -- the leader's consumers

    def _session_event(self, name: str, event: s.Event) -> Turns:
        world = self.world
        record = world.subscription(name)
        group = self.groups.get(name)
        if group is None:
            if record is None or not isinstance(event, s.Joined):
                return
            yield from self._restore(name)
            group = self.groups.get(name)
            if group is None:
                return
        group, effects = s.step(group, event)
        self.groups[name] = group
        try:
            for effect in effects:
                yield
                self._session_effect(name, effect)
        except ChangedSince:
            yield from self._restore(name)

    def _restore(self, name: str) -> Turns:
        """Takes over the sessions that the previous leader stored."""
        world = self.world
        record = world.subscription(name)
        if record is None or world.topic is None:
            return
        group = ConsumerGroup(world.topic.layout, record.kind, shares_sealed=world.shares_sealed)
        yield
        found = tuple(world.consumers.get(name, {}).values())
        stored = tuple(record for record, _ in found)
        self.versions |= {(name, record.name): version for record, version in found}
        asked = [n for n in group.unknown if not world.is_hostile or world.chance.random() < 0.9]
        drained = frozenset(n for n in asked if world.drained(n, name))
        yield
        self.groups[name] = group
        said = {one.name: list(one.assigned) for one in stored}
        world.note(f"L{self.number} restores {name}: {said}, drained {sorted(drained)}")
        yield from self._session_event(name, s.Restored(stored, drained, frozenset(asked) - drained))

    def _store_session(self, name: str, record: ConsumerRecord) -> None:
        world, key = self.world, (name, record.name)
        if key not in self.versions:
            self._check_leads()
        while (version := world.put_consumer(name, record, self.versions.get(key))) is None:
            self._look_again(key)
        self.versions[key] = version
        world.note(
            f"L{self.number} stores that {record.name} has {list(record.assigned)} {dict(record.shares)}"
        )

    def _remove_session(self, name: str, consumer: str) -> None:
        while not self.world.remove_consumer(name, consumer, self.versions.get((name, consumer))):
            self._look_again((name, consumer))
        self.versions.pop((name, consumer), None)

    def _look_again(self, key: tuple[str, str]) -> None:
        self._check_leads()
        version = self.world.consumer_version(*key)
        if version is None:
            self.versions.pop(key, None)
        else:
            self.versions[key] = version

    def _check_leads(self) -> None:
        if self.world.elected != self.number:
            raise Deposed

    def _session_effect(self, name: str, effect: s.Effect) -> None:
        world = self.world
        match effect:
            case s.StoreSession(record):
                self._store_session(name, record)
            case s.FenceSession(record):
                self._check_leads()
                version = world.put_consumer(name, record, self.versions[name, record.name])
                if version is None:
                    self._check_leads()
                    raise ChangedSince
                self.versions[name, record.name] = version
            case s.RemoveSession(consumer):
                self._remove_session(name, consumer)
            case s.Push(link, _, _, segments, shares):
                assert isinstance(link, LeaderLink)
                link.told(segments, frozenset(shares))
            case s.JoinAnswer(consumer, _, segments, shares):
                link = (
                    self.groups[name].sessions[consumer].link
                    if consumer in self.groups[name].sessions
                    else None
                )
                if isinstance(link, LeaderLink):
                    link.told(segments, frozenset(shares))
            case s.StartGrace(consumer, timer):
                if world.chance.random() < 0.3:
                    self.session_inbox.append((name, s.GraceExpired(consumer, timer)))
            case s.StartSettling(timer):
                if world.chance.random() < 0.3:
                    self.session_inbox.append((name, s.SettlingOver(timer)))
            case _:
                pass

    def _ask_about_drained(self) -> Turns:
        for name in list(self.groups):
            seeks = self.seeks
            known = frozenset(n for n in self.groups[name].watched if self.world.drained(n, name))
            yield
            # Answers from before a seek are void after it.
            if known and seeks == self.seeks:
                self.is_idle = False
                self.world.note(f"L{self.number} learns that {name} has drained {sorted(known)}")
                yield from self._session_event(name, s.Drained(known))


def _say(effect: e.Effect) -> str:
    match effect:
        case e.StoreTopic(topic, version):
            plan = f" with plan {topic.plan.id}" if topic.plan else ""
            return f"stores epoch {topic.layout.epoch}{plan} if version is {version}"
        case e.CreateSegments(plan, segments, subscriptions):
            return f"makes {_ids(segments)} with cursors {list(subscriptions)} for plan {plan}"
        case e.SealSegment(plan, segment):
            return f"seals {segment.id} for plan {plan}"
        case e.DeleteSegments(segments):
            return f"deletes {_ids(segments)}"
        case e.CreateCursors(name, segments, initial):
            return f"makes cursors of {name} at {initial} on {_ids(segments)}"
        case e.DeleteCursors(name, segments):
            return f"deletes cursors of {name} on {_ids(segments)}"
        case _:
            return repr(effect)


def _ids(segments: tuple[Segment, ...]) -> list[SegmentId]:
    return [segment.id for segment in segments]
