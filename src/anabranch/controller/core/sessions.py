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

from anabranch.controller.core.group import ConsumerGroup, Link, MemberSession, dealt
from anabranch.controller.core.sharing import Buckets
from anabranch.model.layout import SegmentLayout
from anabranch.model.scalable import ConsumerRecord, SubscriptionKind
from anabranch.model.segments import SegmentId

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
    knows_buckets: bool = False  # Whether its client can share a segment.


@dataclass(frozen=True, slots=True)
class SharingRefused:
    """The consumer was to share a segment, and its client came to read all of it: it does not know buckets."""

    name: str
    link: Link


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
class SettlingOver:
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
    """A member of a CHECKPOINT group has read these segments to their end, and these buckets of others that it
    shares."""

    name: str
    segments: frozenset[SegmentId]
    buckets: Mapping[SegmentId, frozenset[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubscriptionDeleted:
    pass


Event = (
    Restored
    | Joined
    | SharingRefused
    | Left
    | MemberLost
    | GraceExpired
    | SettlingOver
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
class FenceSession:
    """Store the record as it was read, so that a deposed leader can store it no more, if this one leads.

    If the record has been changed since it was read, leave out all further effects and begin again: with a fresh group,
    and Restored with what is stored now.
    """

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
    shares: Mapping[SegmentId, Buckets] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """The join of `name` succeeded."""

    name: str
    epoch: int
    segments: tuple[SegmentId, ...]
    shares: Mapping[SegmentId, Buckets] = field(default_factory=dict)


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
class StartSettling:
    """Send SettlingOver(timer) when consumers have been alone with a shared segment for a while. Replaces any running
    timer of this kind."""

    timer: int


@dataclass(frozen=True, slots=True)
class StopSettling:
    pass


@dataclass(frozen=True, slots=True)
class WatchDrain:
    """From now on ask the owners about exactly these segments; with none, stop asking."""

    segments: tuple[SegmentId, ...]


Effect = (
    StoreSession
    | FenceSession
    | RemoveSession
    | Push
    | JoinAnswer
    | RefuseJoin
    | StartGrace
    | CancelGrace
    | StartSettling
    | StopSettling
    | WatchDrain
)


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
        case SharingRefused(name, link):
            session = group.sessions.get(name)
            if session is None or session.link != link or not session.knows_buckets:
                return group, []
            unknowing = {**group.sessions, name: replace(session, knows_buckets=False)}
            return _settle(group, replace(group, sessions=unknowing))
        case SettlingOver(timer):
            if group.settling != timer:
                return group, []
            return _settle(group, replace(group, settling=0), is_settled=True)
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
            sessions = {n: _without_finished(s, segments) for n, s in group.sessions.items()}
            return _settle(group, replace(group, drained=group.drained - segments, sessions=sessions))
        case Finished(name, segments, buckets):
            return _finished(group, segments, by=name, buckets=buckets)
        case SubscriptionDeleted():
            return _deleted(group)
        case _:
            assert_never(event)


def _restored(group: ConsumerGroup, event: Restored) -> tuple[ConsumerGroup, list[Effect]]:
    records = sorted(event.records, key=lambda record: record.name)
    layout = group.layout
    kind = group.kind or (records[0].kind if records else None)
    sessions = {
        record.name: MemberSession(
            record.name,
            assigned=record.assigned,
            shares=record.shares,
            finished=frozenset(record.finished),
            finished_buckets={n: frozenset(found) for n, found in record.finished_buckets.items()},
            knows_buckets=record.knows_buckets,
        )
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
    begun = replace(group, kind=kind, drained=drained, sessions=sessions)
    strangers: list[Effect] = [RemoveSession(record.name) for record in records if record.kind is not kind]
    stopped: list[Effect] = [
        CancelGrace(s.name) for s in group.sessions.values() if s.timer and s.name not in sessions
    ]
    begun, awaiting = _disconnected(begun, begun.sessions.values())
    settled, effects = step(begun, Drained(event.drained))
    return settled, [*strangers, *_fences(begun), *effects, *stopped, *awaiting]


def _fences(group: ConsumerGroup) -> list[Effect]:
    """Stores the restored sessions as they are, where segments may be shared.

    The owners of segments follow the records. A deposed leader may still store what it decided wherever its successor
    has stored nothing, and would leave two records that name the same bucket.
    """
    if group.kind is None or all(group.room(s) == 1 for s in group.layout.segments.values()):
        return []
    return [FenceSession(session.record(group.kind)) for _, session in sorted(group.sessions.items())]


def _joined(group: ConsumerGroup, event: Joined) -> tuple[ConsumerGroup, list[Effect]]:
    name, link, consumer_id = event.name, event.link, event.consumer_id
    if (reason := _refusal(group, event)) is not None:
        return group, [RefuseJoin(name, reason)]
    before = group.sessions.get(name)
    if before is None:
        joined = MemberSession(name, link, consumer_id, knows_buckets=event.knows_buckets)
        sessions = {**group.sessions, name: joined}
        return _settle(group, replace(group, kind=event.kind, sessions=sessions), joined=name)
    resumed = replace(before, link=link, consumer_id=consumer_id, timer=0, knows_buckets=event.knows_buckets)
    back = replace(group, sessions={**group.sessions, name: resumed})
    epoch = group.layout.epoch
    effects: list[Effect] = []
    if before.is_connected and (before.link, before.consumer_id) != (link, consumer_id):
        # The last message to the older consumer: it must release its segments, or both would read them.
        effects.append(Push(before.link, before.consumer_id, epoch, ()))
    if before.timer:
        effects.append(CancelGrace(name))
    if before.knows_buckets != event.knows_buckets:
        # Another release of its client: the shares change, or may.
        back, more = _settle(group, back, joined=name)
        return back, effects + more
    effects.append(JoinAnswer(name, epoch, *back.told(resumed)))
    return back, effects


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
    known = rest.finished_buckets
    buckets = {
        number: found - known.get(number, frozenset())
        for number, found in leaver.finished_buckets.items()
        if number in group.layout.segments and number not in rest.finished | orphaned
    }
    if not (orphaned or any(buckets.values())) or not sessions:
        return _settle(group, rest)
    assert group.kind is not None
    heir = _with_finished(sessions[min(sessions)], orphaned, buckets)
    sessions[heir.name] = heir
    # The heir is stored before the leaver's record is removed, so that a new leader learns the fact at any moment; and
    # it is stored with the heir's old assignment, because the leaver's record still stands.
    with_heir = replace(group, sessions={**group.sessions, heir.name: heir})
    settled, effects = _settle(with_heir, replace(rest, sessions=sessions))
    return settled, [StoreSession(heir.record(group.kind)), *effects]


def _with_finished(
    session: MemberSession, segments: frozenset[SegmentId], buckets: Mapping[SegmentId, frozenset[int]]
) -> MemberSession:
    found = dict(session.finished_buckets)
    for number, more in buckets.items():
        if more:
            found[number] = found.get(number, frozenset()) | more
    finished = session.finished | segments
    return replace(
        session,
        finished=finished,
        finished_buckets={number: more for number, more in found.items() if number not in finished},
    )


def _without_finished(session: MemberSession, segments: frozenset[SegmentId]) -> MemberSession:
    kept = {number: found for number, found in session.finished_buckets.items() if number not in segments}
    return replace(session, finished=session.finished - segments, finished_buckets=kept)


def _finished(
    group: ConsumerGroup,
    segments: frozenset[SegmentId],
    by: str,
    buckets: Mapping[SegmentId, frozenset[int]] | None = None,
) -> tuple[ConsumerGroup, list[Effect]]:
    if group.kind is not SubscriptionKind.CHECKPOINT or not group.sessions:
        return _settle(group, group)
    # A member that has left meanwhile still read them to their end: any member keeps the fact.
    session = group.sessions[by if by in group.sessions else min(group.sessions)]
    known, over = group.finished_buckets, group.finished
    news = (segments & group.layout.segments.keys()) - over
    parts: dict[SegmentId, frozenset[int]] = {}
    for number, found in (buckets or {}).items():
        segment = group.layout.segments.get(number)
        if segment is not None and number not in over | news:
            there = found & set(range(segment.bucket_count))
            parts[number] = frozenset(there) - known.get(number, frozenset())
    session = _with_finished(session, news, parts)
    return _settle(group, replace(group, sessions={**group.sessions, session.name: session}))


def _deleted(group: ConsumerGroup) -> tuple[ConsumerGroup, list[Effect]]:
    members = [group.sessions[name] for name in sorted(group.sessions)]
    effects: list[Effect] = [RemoveSession(s.name) for s in members]
    effects += [Push(s.link, s.consumer_id, group.layout.epoch, ()) for s in members if s.is_connected]
    effects += [CancelGrace(s.name) for s in members if s.timer]
    if group.settling:
        effects.append(StopSettling())
    if group.watched:
        effects.append(WatchDrain(()))
    return ConsumerGroup(group.layout, timers=group.timers, shares_sealed=group.shares_sealed), effects


def _ancestors(layout: SegmentLayout, numbers: Collection[SegmentId]) -> frozenset[SegmentId]:
    """The ancestors of all these segments, in one pass: children have larger ids than their parents."""
    found: set[SegmentId] = set()
    for number in reversed(list(layout.segments)):
        if any(child in numbers or child in found for child in layout.segments[number].children):
            found.add(number)
    return frozenset(found)


# -- assignments


def _settle(
    before: ConsumerGroup, after: ConsumerGroup, joined: str | None = None, *, is_settled: bool = False
) -> tuple[ConsumerGroup, list[Effect]]:
    """`after` with all segments assigned again, and the effects that lead there from `before`."""
    after = dealt(after, is_settled=is_settled)
    effects: list[Effect] = [RemoveSession(name) for name in sorted(before.sessions.keys() - after.sessions)]
    effects += _stores(before, after)
    news: list[tuple[bool, bool, str, MemberSession]] = []
    for name, session in after.sessions.items():
        old = before.sessions.get(name)
        is_told = old is not None and _told(before, old) == _told(after, session)
        if old is not None and not is_told and session.is_connected and name != joined:
            news.append((session.gains_over(old), not old.gains_over(session), name, session))
    for *_, s in sorted(news, key=lambda one: one[:3]):  # Consumers that lose come first here, too.
        effects.append(Push(s.link, s.consumer_id, after.layout.epoch, *after.told(s)))
    if joined is not None:
        answered = after.sessions[joined]
        effects.append(JoinAnswer(joined, after.layout.epoch, *after.told(answered)))
    if before.watched != after.watched:
        effects.append(WatchDrain(after.watched))
    if after.alone and (not after.settling or after.alone - before.alone):
        after = replace(after, timers=after.timers + 1, settling=after.timers + 1)
        effects.append(StartSettling(after.settling))
    elif after.settling and not after.alone:
        after = replace(after, settling=0)
        effects.append(StopSettling())
    return after, effects


def _told(group: ConsumerGroup, session: MemberSession) -> tuple[object, object]:
    """What its client knows of its assignment: that a segment is shared, and not which of the buckets are its own,
    unless it is of a checkpoint group."""
    numbers, shares = group.told(session)
    return numbers, shares if group.kind is SubscriptionKind.CHECKPOINT else set(shares)


def _stores(before: ConsumerGroup, after: ConsumerGroup) -> list[StoreSession]:
    """The records to store, in an order in which no two of them ever name the same bucket of a segment.

    First every consumer that loses something is stored with what it keeps, and then every consumer that gains is stored
    with all that it has. A leader that dies in between leaves buckets without a consumer, which the next one assigns.
    """
    assert after.kind is not None or not after.sessions
    losers: list[StoreSession] = []
    winners: list[StoreSession] = []
    for name in sorted(after.sessions):
        session, old = after.sessions[name], before.sessions.get(name)
        if old is not None and _stored(old) == _stored(session):
            continue
        assert after.kind is not None
        if not session.gains_over(old):
            losers.append(StoreSession(session.record(after.kind)))
            continue
        if old is not None and _gives_away(old, session, after):
            losers.append(StoreSession(session.kept_from(old).record(after.kind)))
        winners.append(StoreSession(session.record(after.kind)))
    return losers + winners


def _stored(session: MemberSession) -> tuple[object, ...]:
    finished = session.finished, session.finished_buckets
    return session.assigned, session.shares, finished, session.knows_buckets


def _gives_away(old: MemberSession, session: MemberSession, after: ConsumerGroup) -> bool:
    """Whether others now have something of what it had."""
    kept = session.kept_from(old).holding()
    lost = {number for number, buckets in old.holding().items() if kept.get(number) != buckets}
    return any(lost & set(s.assigned) for name, s in after.sessions.items() if name != session.name)
