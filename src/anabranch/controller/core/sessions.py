"""The sessions of one subscription: its members, what each reads, and what to store and send when that changes. Pure.

`step(group, event)` returns the next group and the effects to perform, in order. A session outlives connections and
leaders: it is stored before its assignment is sent to the consumer, so a new leader knows every assignment that a
consumer may have received. Whether a consumer is connected, and its grace timer, are never stored.

The shell performs the effects of one event at a time and performs a Push or an Answer only after the stores before it.
It asks the owners of the segments named by the latest WatchDrain and reports what it finds; an answer to a question
from before an Undrained (and the seek that follows it) is void.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from anabranch.controller.core.assignment import assign, frontier
from anabranch.model.layout import SegmentLayout
from anabranch.model.scalable import ConsumerRecord, SubscriptionKind
from anabranch.model.segments import SegmentId

# Identifies a consumer's connection. Links are only compared, so the connection itself will do.
Link = object


@dataclass(frozen=True, slots=True)
class MemberSession:
    """One consumer, by its name: connected over `link`, or disconnected and awaited until timer number `timer`
    expires."""

    name: str
    link: Link | None = None
    consumer_id: int = 0
    timer: int = 0  # 0 for none.
    assigned: tuple[SegmentId, ...] = ()  # In range order.
    finished: frozenset[SegmentId] = frozenset()  # Only in a CHECKPOINT group.

    @property
    def is_connected(self) -> bool:
        return self.link is not None

    def record(self, kind: SubscriptionKind) -> ConsumerRecord:
        return ConsumerRecord(self.name, kind, self.assigned, tuple(sorted(self.finished)))


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """The controller's knowledge of the consumers of one subscription."""

    layout: SegmentLayout
    # STREAM or CHECKPOINT once known, and then every member has this kind; the subscription's record may have set it.
    kind: SubscriptionKind | None = None
    # Segments known to be read to their end. They count once they are sealed in the layout.
    drained: frozenset[SegmentId] = frozenset()
    sessions: Mapping[str, MemberSession] = field(default_factory=dict)
    watched: tuple[SegmentId, ...] = ()
    timers: int = 0  # The number of timers started, which is the number of the latest.

    @property
    def finished(self) -> frozenset[SegmentId]:
        """The segments that any member finished; each of these is stored with a member's session."""
        return frozenset().union(*(s.finished for s in self.sessions.values()))

    @property
    def done(self) -> frozenset[SegmentId]:
        return self.drained | self.finished

    @property
    def unknown(self) -> tuple[SegmentId, ...]:
        """Sealed segments not known to be drained: before the first join the shell asks about all of them at once.

        Not asking is safe, but slow: drained generations would be assigned and withdrawn one after the other.
        """
        done = self.done
        return tuple(s.id for s in self.layout.sealed if s.id not in done and not s.is_deleting)

    def holder(self, number: SegmentId) -> str | None:
        return next((s.name for s in self.sessions.values() if number in s.assigned), None)


# -- events


@dataclass(frozen=True, slots=True)
class Restored:
    """A leader begins with its predecessor's records, and with the owners' answers about which segments are drained."""

    records: tuple[ConsumerRecord, ...]
    drained: frozenset[SegmentId] = frozenset()
    undrained: frozenset[SegmentId] = frozenset()


@dataclass(frozen=True, slots=True)
class Joined:
    name: str
    kind: SubscriptionKind
    link: Link
    consumer_id: int


@dataclass(frozen=True, slots=True)
class Left:
    """The consumer left on purpose, over `link`."""

    name: str
    link: Link


@dataclass(frozen=True, slots=True)
class MemberLost:
    name: str
    link: Link


@dataclass(frozen=True, slots=True)
class GraceExpired:
    name: str
    timer: int


@dataclass(frozen=True, slots=True)
class LayoutChanged:
    layout: SegmentLayout


@dataclass(frozen=True, slots=True)
class Drained:
    """A segment is sealed and this subscription's cursor is at its end; in a CHECKPOINT group, a member finished it."""

    segments: frozenset[SegmentId]


@dataclass(frozen=True, slots=True)
class Undrained:
    """Cursors are about to be moved back: once the effects are performed, descendants are withdrawn. Then seek."""

    segments: frozenset[SegmentId]


@dataclass(frozen=True, slots=True)
class Finished:
    """A member of a CHECKPOINT group has read these segments to their end."""

    name: str
    segments: frozenset[SegmentId]


@dataclass(frozen=True, slots=True)
class SubscriptionDeleted:
    pass


Event = (
    Restored
    | Joined
    | Left
    | MemberLost
    | GraceExpired
    | LayoutChanged
    | Drained
    | Undrained
    | Finished
    | SubscriptionDeleted
)


# -- effects


@dataclass(frozen=True, slots=True)
class StoreSession:
    record: ConsumerRecord


@dataclass(frozen=True, slots=True)
class RemoveSession:
    name: str


@dataclass(frozen=True, slots=True)
class Push:
    """Notify a connected consumer of its new assignment."""

    link: Link
    consumer_id: int
    epoch: int
    segments: tuple[SegmentId, ...]


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """The join of `name` succeeded."""

    name: str
    epoch: int
    segments: tuple[SegmentId, ...]


@dataclass(frozen=True, slots=True)
class RefuseJoin:
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class StartGrace:
    """Send GraceExpired(name, timer) after the grace period. Replaces any running timer of the name."""

    name: str
    timer: int


@dataclass(frozen=True, slots=True)
class CancelGrace:
    name: str


@dataclass(frozen=True, slots=True)
class WatchDrain:
    """From now on ask the owners about exactly these segments; with none, stop asking."""

    segments: tuple[SegmentId, ...]


Effect = StoreSession | RemoveSession | Push | JoinAnswer | RefuseJoin | StartGrace | CancelGrace | WatchDrain


# -- the step


def step(group: ConsumerGroup, event: Event) -> tuple[ConsumerGroup, list[Effect]]:
    match event:
        case Restored():
            return _restored(group, event)
        case Joined():
            return _joined(group, event)
        case Left(name, link):
            session = group.sessions.get(name)
            if session is None or session.link != link:
                return group, []  # The event is from a connection whose session was taken over.
            return _without(group, session)
        case MemberLost(name, link):
            session = group.sessions.get(name)
            if session is None or session.link != link:
                return group, []
            return _disconnected(group, [session])
        case GraceExpired(name, timer):
            session = group.sessions.get(name)
            if session is None or session.timer != timer:
                return group, []  # The consumer came back before the timer expired: the numbers differ.
            return _without(group, session)
        case LayoutChanged(layout):
            if layout.epoch < group.layout.epoch:
                return group, []
            kept = group.drained & layout.segments.keys()
            return _settle(group, replace(group, layout=layout, drained=kept))
        case Drained(segments) if group.kind is SubscriptionKind.CHECKPOINT:
            return _finished(group, segments, by="")
        case Drained(segments):
            # Accepted even while the segment is active in the layout: its owner seals it before the layout is
            # published.
            known = segments & group.layout.segments.keys()
            return _settle(group, replace(group, drained=group.drained | known))
        case Undrained(segments):
            sessions = {n: replace(s, finished=s.finished - segments) for n, s in group.sessions.items()}
            return _settle(group, replace(group, drained=group.drained - segments, sessions=sessions))
        case Finished(name, segments):
            return _finished(group, segments, by=name)
        case SubscriptionDeleted():
            return _deleted(group)
        case _:
            assert_never(event)


def _restored(group: ConsumerGroup, event: Restored) -> tuple[ConsumerGroup, list[Effect]]:
    records = sorted(event.records, key=lambda record: record.name)
    layout = group.layout
    kind = group.kind or (records[0].kind if records else None)
    sessions = {
        record.name: MemberSession(record.name, assigned=record.assigned, finished=frozenset(record.finished))
        for record in records
        if record.kind is kind
    }
    # A segment is only assigned with its ancestors drained, and a seek back withdraws it first. So the stored
    # assignments prove that the ancestors are drained, even while their owners cannot be asked. An owner's answer takes
    # precedence: a reader can set a cursor back, and a deposed leader's last record may have come after a seek.
    handed_out = {number for session in sessions.values() for number in session.assigned}
    drained = _ancestors(layout, handed_out)
    if kind is not SubscriptionKind.CHECKPOINT:  # Its owners know less than its members have reported.
        drained -= event.undrained
    begun = ConsumerGroup(layout, kind, drained, sessions, group.watched, group.timers)
    strangers: list[Effect] = [RemoveSession(record.name) for record in records if record.kind is not kind]
    stopped: list[Effect] = [
        CancelGrace(s.name) for s in group.sessions.values() if s.timer and s.name not in sessions
    ]
    begun, awaiting = _disconnected(begun, begun.sessions.values())
    settled, effects = step(begun, Drained(event.drained))
    return settled, [*strangers, *effects, *stopped, *awaiting]


def _joined(group: ConsumerGroup, event: Joined) -> tuple[ConsumerGroup, list[Effect]]:
    name, link, consumer_id = event.name, event.link, event.consumer_id
    if (reason := _refusal(group, event)) is not None:
        return group, [RefuseJoin(name, reason)]
    before = group.sessions.get(name)
    if before is None:
        joined = MemberSession(name, link, consumer_id)
        sessions = {**group.sessions, name: joined}
        return _settle(group, replace(group, kind=event.kind, sessions=sessions), joined=name)
    resumed = replace(before, link=link, consumer_id=consumer_id, timer=0)
    epoch = group.layout.epoch
    effects: list[Effect] = []
    if before.is_connected and (before.link, before.consumer_id) != (link, consumer_id):
        # The last message to the older consumer: it must release its segments, or both would read them.
        effects.append(Push(before.link, before.consumer_id, epoch, ()))
    if before.timer:
        effects.append(CancelGrace(name))
    effects.append(JoinAnswer(name, epoch, resumed.assigned))
    return replace(group, sessions={**group.sessions, name: resumed}), effects


def _refusal(group: ConsumerGroup, event: Joined) -> str | None:
    if event.kind is SubscriptionKind.QUEUE:
        return "queue consumers do not register: they attach to every segment of the layout"
    if group.kind is None or group.kind is event.kind:
        return None
    return (
        f"the subscription is of kind {group.kind}, and consumer {event.name!r} asks for {event.kind}: "
        f"use another subscription name, or delete this subscription first"
    )


def _disconnected(group: ConsumerGroup, gone: Iterable[MemberSession]) -> tuple[ConsumerGroup, list[Effect]]:
    """Starts a fresh timer for each disconnected member. No other member is notified."""
    sessions, timers = dict(group.sessions), group.timers
    effects: list[Effect] = []
    for session in gone:
        timers += 1
        sessions[session.name] = replace(session, link=None, consumer_id=0, timer=timers)
        effects.append(StartGrace(session.name, timers))
    return replace(group, sessions=sessions, timers=timers), effects


def _without(group: ConsumerGroup, leaver: MemberSession) -> tuple[ConsumerGroup, list[Effect]]:
    """Removes the session of `leaver`; what it reported as finished stays known as long as the group has members."""
    sessions = {name: s for name, s in group.sessions.items() if name != leaver.name}
    rest = replace(group, sessions=sessions)
    if not sessions and group.kind is SubscriptionKind.CHECKPOINT:
        # Nothing of the group is stored any more: the next members bring their own positions.
        rest = replace(rest, drained=frozenset())
    orphaned = (leaver.finished & group.layout.segments.keys()) - rest.finished
    if not orphaned or not sessions:
        return _settle(group, rest)
    assert group.kind is not None
    heir = sessions[min(sessions)]
    heir = replace(heir, finished=heir.finished | orphaned)
    sessions[heir.name] = heir
    # The heir is stored before the leaver's record is removed, so that a new leader learns the fact at any moment; and
    # it is stored with the heir's old assignment, because the leaver's record still stands.
    with_heir = replace(group, sessions={**group.sessions, heir.name: heir})
    settled, effects = _settle(with_heir, replace(rest, sessions=sessions))
    return settled, [StoreSession(heir.record(group.kind)), *effects]


def _finished(
    group: ConsumerGroup, segments: frozenset[SegmentId], by: str
) -> tuple[ConsumerGroup, list[Effect]]:
    if group.kind is not SubscriptionKind.CHECKPOINT or not group.sessions:
        return _settle(group, group)
    # A member that has left meanwhile still read them to their end: any member keeps the fact.
    session = group.sessions[by if by in group.sessions else min(group.sessions)]
    news = (segments & group.layout.segments.keys()) - group.finished
    session = replace(session, finished=session.finished | news)
    return _settle(group, replace(group, sessions={**group.sessions, session.name: session}))


def _deleted(group: ConsumerGroup) -> tuple[ConsumerGroup, list[Effect]]:
    members = [group.sessions[name] for name in sorted(group.sessions)]
    effects: list[Effect] = [RemoveSession(s.name) for s in members]
    effects += [Push(s.link, s.consumer_id, group.layout.epoch, ()) for s in members if s.is_connected]
    effects += [CancelGrace(s.name) for s in members if s.timer]
    if group.watched:
        effects.append(WatchDrain(()))
    return ConsumerGroup(group.layout, timers=group.timers), effects


def _ancestors(layout: SegmentLayout, numbers: Collection[SegmentId]) -> frozenset[SegmentId]:
    """The ancestors of all these segments, in one pass: children have larger ids than their parents."""
    found: set[SegmentId] = set()
    for number in reversed(list(layout.segments)):
        if any(child in numbers or child in found for child in layout.segments[number].children):
            found.add(number)
    return frozenset(found)


# -- assignments


def _settle(
    before: ConsumerGroup, after: ConsumerGroup, joined: str | None = None
) -> tuple[ConsumerGroup, list[Effect]]:
    """`after` with all segments assigned again, and the effects that lead there from `before`.

    Consumers that only lose segments come first, in the store and on the wire: no segment is ever named by two records.
    """
    after = _dealt(after)
    effects: list[Effect] = [RemoveSession(name) for name in sorted(before.sessions.keys() - after.sessions)]
    changed: list[tuple[bool, str]] = []
    for name, session in after.sessions.items():
        old = before.sessions.get(name)
        if old is None or (old.assigned, old.finished) != (session.assigned, session.finished):
            gains = bool(set(session.assigned).difference(old.assigned if old else ()))
            changed.append((gains, name))
    stores: list[Effect] = []
    pushes: list[Effect] = []
    for _, name in sorted(changed):
        session, old = after.sessions[name], before.sessions.get(name)
        assert after.kind is not None
        stores.append(StoreSession(session.record(after.kind)))
        is_news = old is not None and old.assigned != session.assigned
        if is_news and session.is_connected and name != joined:
            pushes.append(Push(session.link, session.consumer_id, after.layout.epoch, session.assigned))
    effects += stores + pushes
    if joined is not None:
        effects.append(JoinAnswer(joined, after.layout.epoch, after.sessions[joined].assigned))
    if before.watched != after.watched:
        effects.append(WatchDrain(after.watched))
    return after, effects


def _dealt(group: ConsumerGroup) -> ConsumerGroup:
    if not group.sessions:
        return replace(group, watched=())
    layout, done = group.layout, group.done
    front = frontier(layout, done.__contains__)
    holders: dict[SegmentId, str] = {}
    for name in sorted(group.sessions):
        for number in group.sessions[name].assigned:
            holders.setdefault(number, name)
    has_new = any(segment.id not in holders for segment in front.ready)
    chosen = assign(front.ready, group.sessions, holders, _heirs(layout, holders) if has_new else {})
    lists: dict[str, list[SegmentId]] = {name: [] for name in group.sessions}
    for number, name in chosen.items():  # In range order.
        lists[name].append(number)
    sessions = {name: _reassigned(s, tuple(lists[name]), layout) for name, s in group.sessions.items()}
    return replace(group, sessions=sessions, watched=tuple(s.id for s in front.watched))


def _reassigned(
    session: MemberSession, assigned: tuple[SegmentId, ...], layout: SegmentLayout
) -> MemberSession:
    if session.assigned == assigned:
        return session
    # The record is written anyway, so facts about pruned segments are dropped now and cause no write of their own.
    return replace(session, assigned=assigned, finished=session.finished & layout.segments.keys())


def _heirs(layout: SegmentLayout, holders: Mapping[SegmentId, str]) -> dict[SegmentId, str]:
    """For each segment, the consumer that reads it or the nearest of its ancestors."""
    heirs: dict[SegmentId, str] = {}
    for number, segment in layout.segments.items():  # Parents come first: their ids are smaller.
        for relative in (number, *segment.parents):
            if (name := holders.get(relative) or heirs.get(relative)) is not None:
                heirs[number] = name
                break
    return heirs
