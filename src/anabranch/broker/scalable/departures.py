"""Consumers that leave without saying so.

Pulsar's V5 client closes a stream or checkpoint consumer by closing what it has on the segments, and tells the
controller nothing: the consumer would keep its segments until the connection is lost, which may be never. What tells
that it has left is that it does not read what it is assigned:

- It closed a segment that it was to read on, and reads none of its segments for a while after that. A consumer that
  stays closes only what was taken from it, or what it has read to its end, and attaches to what it is given at once.
- Or it was given segments and attached to none of them for longer: it was closed when it had none.

A segment counts as read from when its client has attached until its client closes it. One that the broker closes, or
whose connection is lost, is attached again by the client, however long that takes.

Whoever attaches after all was only slow. Its client learns of an assignment anew when its connection is lost, so it
loses that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from anabranch.model.names import TopicName
from anabranch.model.scalable import SubscriptionKind, scalable_name
from anabranch.model.segments import SegmentId

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.consumer import Consumer
    from anabranch.broker.scalable.consumer_sessions import ConsumerSession
    from anabranch.broker.session import Session
    from anabranch.model.segments import Segment

log = logging.getLogger(__name__)

LEFT_AFTER_S: Final = 5.0
UNREAD_AFTER_S: Final = 15.0
GONE_MAX: Final = 1000  # Remembered for one connection; beyond it the first ones are forgotten.
CLOCK_GRAIN_S: Final = 0.001  # Timers may fire this much early.
_MARK: Final = "-seg-"  # `{consumer}-seg-{segment}` is what the V5 client calls itself on a segment.

# A topic, and the name of a consumer of it.
Who = tuple[TopicName, str]


@dataclass(slots=True, eq=False)
class _Observed:
    """What a session's client does with the segments it is assigned."""

    session: Session
    held: ConsumerSession
    reading: set[SegmentId] = field(default_factory=set)
    has_closed: bool = False  # A segment that it was to read on, and has attached to none since.
    idle_since: float | None = None  # Since then it has had something to read, and read none of it.
    timer: asyncio.TimerHandle | None = None
    look_at: float = 0.0  # When the timer ends.


class Departures:
    """Told of every session of such a client and of what its consumers do; calls `leave` for those that have left."""

    def __init__(self, broker: Broker, leave: Callable[[Session, ConsumerSession], None]) -> None:
        self._broker = broker
        self._leave = leave
        self.left_after_s = LEFT_AFTER_S
        self.unread_after_s = UNREAD_AFTER_S
        self._observed: dict[Who, list[_Observed]] = {}
        # On each connection, those that were taken to have left.
        self._gone: WeakKeyDictionary[Session, dict[Who, None]] = WeakKeyDictionary()

    # -- sessions

    def observe(self, session: Session, held: ConsumerSession) -> Callable[[], None]:
        """From now on; the result is called whenever it has been told an assignment. `end` when it is over."""
        who = held.topic, held.name
        seen = _Observed(session, held)
        self._observed.setdefault(who, []).append(seen)
        self._gone.get(session, {}).pop(who, None)
        return lambda: self._assigned(seen)

    def end(self, held: ConsumerSession) -> None:
        who = held.topic, held.name
        kept = []
        for seen in self._observed.get(who, ()):
            if seen.held is not held:
                kept.append(seen)
            elif seen.timer is not None:
                seen.timer.cancel()
        if kept:
            self._observed[who] = kept
        else:
            self._observed.pop(who, None)

    def has_left(self, held: ConsumerSession) -> bool:
        """Asked when the connection ends: whether it will not come back."""
        return any(
            seen.held is held and seen.has_closed and not self._reads(seen)
            for seen in self._of(held.topic, held.name)
        )

    # -- what happens

    def attaching(self, session: Session, topic: TopicName, consumer: str) -> None:
        """A client is about to attach a consumer of that name to a topic."""
        who = _who(topic, consumer)
        if who is not None and who[:2] in self._gone.get(session, ()):
            log.info("consumer %s of %s is still there: it has to register again", who[1], who[0])
            session.close()

    def consumer_attached(self, consumer: Consumer) -> None:
        for seen, number in self._reading(consumer):
            seen.reading.add(number)
            seen.has_closed = False
            self._consider(seen)

    def consumer_closed(self, consumer: Consumer) -> None:
        """Its client has closed it."""
        for seen, number in self._reading(consumer):
            seen.reading.discard(number)
            if any(segment.id == number for segment in self._wanted(seen.held)):
                seen.has_closed = True
            self._consider(seen)

    def _assigned(self, seen: _Observed) -> None:
        self._note_attached(seen)
        self._consider(seen)

    def _note_attached(self, seen: _Observed) -> None:
        """What it is attached to already: its consumers may have come back before its session."""
        for segment in self._wanted(seen.held):
            if self._is_attached(seen.held, segment):
                seen.reading.add(segment.id)

    # -- whether it has left

    def _consider(self, seen: _Observed) -> None:
        if not _assigned(seen.held) or self._reads(seen):
            seen.idle_since = None
        elif not self._wanted(seen.held):
            seen.idle_since = None
            # A segment that nobody uses just now may be opened at any time, without a word to us.
            self._look_at(seen, self._broker.loop.time() + self.unread_after_s)
        else:
            if seen.idle_since is None:
                seen.idle_since = self._broker.loop.time()
            self._look_at(seen, self._due(seen.idle_since, has_closed=seen.has_closed))

    def _due(self, idle_since: float, *, has_closed: bool) -> float:
        return idle_since + (self.left_after_s if has_closed else self.unread_after_s)

    def _look_at(self, seen: _Observed, when: float) -> None:
        if seen.timer is not None:
            if seen.look_at <= when:
                return
            seen.timer.cancel()
        seen.look_at = when
        seen.timer = self._broker.loop.call_at(when, self._look, seen)

    def _look(self, seen: _Observed) -> None:
        seen.timer = None
        held, now = seen.held, self._broker.loop.time()
        if held.is_over:
            return
        self._note_attached(seen)
        idle_since = seen.idle_since
        if idle_since is None or self._reads(seen) or not self._wanted(held):
            self._consider(seen)
        elif (due := self._due(idle_since, has_closed=seen.has_closed)) > now + CLOCK_GRAIN_S:
            self._look_at(seen, due)
        elif None in seen.session.consumers.values():
            # One that is just being attached, nobody knows yet for whom.
            self._look_at(seen, now + self.left_after_s)
        else:
            self._evict(seen)

    def _evict(self, seen: _Observed) -> None:
        held = seen.held
        log.info("consumer %s of %s reads none of its segments: it has left", held.name, held.topic)
        gone = self._gone.setdefault(seen.session, {})
        gone[held.topic, held.name] = None
        if len(gone) > GONE_MAX:
            del gone[next(iter(gone))]
        self._leave(seen.session, held)

    def _wanted(self, held: ConsumerSession) -> list[Segment]:
        """Those of its segments that it is to read on, as far as they are served here."""
        return [segment for segment in _assigned(held) if self._has_more(held, segment)]

    def _reads(self, seen: _Observed) -> bool:
        return any(segment.id in seen.reading for segment in _assigned(seen.held))

    def _has_more(self, held: ConsumerSession, segment: Segment) -> bool:
        topic = self._broker.opened(segment.topic(held.topic))
        if topic is None:
            return False
        if not topic.has_end:
            return segment.is_active
        subscription = topic.subscriptions.get(held.subscription)
        return subscription is not None and not subscription.is_drained

    def _is_attached(self, held: ConsumerSession, segment: Segment) -> bool:
        topic = self._broker.opened(segment.topic(held.topic))
        subscriptions = () if topic is None else tuple(topic.subscriptions.values())
        return any(
            consumer.name == f"{held.name}{_MARK}{segment.id}" and _is_of(consumer, held)
            for subscription in subscriptions
            for consumer in subscription.consumers
        )

    def _of(self, topic: TopicName, name: str) -> list[_Observed]:
        return self._observed.get((topic, name), [])

    def _reading(self, consumer: Consumer) -> list[tuple[_Observed, SegmentId]]:
        """Whose consumer it is, and on which segment."""
        if not self._observed:
            return []
        who = _who(TopicName.parse(str(consumer.subscription.topic)), consumer.name)
        if who is None:
            return []
        topic, name, number = who
        return [(seen, number) for seen in self._of(topic, name) if _is_of(consumer, seen.held)]


def _assigned(held: ConsumerSession) -> tuple[Segment, ...]:
    return () if held.assigned is None else held.assigned.segments


def _is_of(consumer: Consumer, held: ConsumerSession) -> bool:
    # The readers of a checkpoint group have subscriptions of their own.
    return held.kind is SubscriptionKind.CHECKPOINT or consumer.subscription.name == held.subscription


def _who(topic: TopicName, consumer: str) -> tuple[TopicName, str, SegmentId] | None:
    """The scalable topic, the consumer and the segment that a V5 client's consumer on a segment is named for."""
    name, mark, number = consumer.rpartition(_MARK)
    if not mark or not (number.isascii() and number.isdecimal()):
        return None
    return scalable_name(topic.base), name, SegmentId(int(number))
