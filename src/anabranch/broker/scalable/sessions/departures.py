"""Detects consumers that leave without a command.

Pulsar's V5 client closes a stream or checkpoint consumer by closing its consumers on the segments, and does not notify
the controller: the consumer would keep its segments until the connection is lost, which may be never. A consumer has
left if it does not read what it is assigned:

- It closed a segment that it was to read further, and reads none of its segments for a while after that. A consumer
  that stays closes only segments that were taken from it, or that it has read to their end, and attaches to new ones at
  once.
- Or it was assigned segments and attached to none of them for longer: it was closed when it had none.

A segment counts as read from when its client has attached until its client closes it. If the broker closes the
consumer, or the connection is lost, the client attaches again, however long that takes.

A consumer that is to share a segment, or to share it no more, closes its consumer on it in order to attach in another
way: that is no departure, and it may have to wait for others who do the same. One that was to share a segment from the
start, and comes to read all of it, does not know how to share: its controller is told.

A consumer that attaches after all was only slow. Its connection is closed, because its client gets an assignment again
only after a lost connection.

The segments of a consumer may be at other brokers than its session. Their owners tell when it attaches and closes; that
may be lost, so they are asked before the consumer is treated as gone, and while one of them cannot be asked it is not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakKeyDictionary

from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.scalable.ports import Opened
from anabranch.broker.scalable.sessions.consumer_session import ConsumerSession
from anabranch.broker.scalable.sessions.link import ScalableLink
from anabranch.broker.scalable.sessions.reading import (
    ElsewhereReaders,
    ReaderState,
    SegmentReader,
    reader_state,
)
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName
from anabranch.model.scalable import SubscriptionKind, scalable_name
from anabranch.model.segment_consumers import consumer_and_segment, segment_consumer
from anabranch.model.segments import Segment, SegmentId
from anabranch.wire import pulsar_pb2 as pb

log = logging.getLogger(__name__)

LEFT_AFTER_S: Final = 5.0
UNREAD_AFTER_S: Final = 15.0
SHARING_AFTER_S: Final = 60.0  # Pulsar's client tries for 30 s to attach where others have not let go yet.
GONE_MAX: Final = 1000  # Remembered for one connection; beyond it the oldest are dropped.
CLOCK_GRAIN_S: Final = 0.001  # Timers may fire this much early.

# A topic, and the name of a consumer of it.
Who = tuple[TopicName, str]


@dataclass(slots=True, eq=False)
class _Observed:
    """What a session's client does with the segments it is assigned."""

    session: ScalableLink
    held: ConsumerSession
    reading: set[SegmentId] = field(default_factory=set)
    # Assigned segments that it has been told to read whole, at any time: its client may still be about to.
    told_whole: set[SegmentId] = field(default_factory=set)
    # It closed a segment in order to attach in another way, and has attached to none since.
    is_changing: bool = False
    has_closed: bool = False  # It closed a segment with more to read, and has attached to none since.
    idle_since: float | None = None  # Since then it has had segments to read, and read none of them.
    timer: asyncio.TimerHandle | None = None
    look_at: float = 0.0  # When the timer fires.
    is_asking: bool = False  # Owners of its segments are being asked.


class Departures:
    """Observes every session of such a client and its consumers; calls `leave` for those that have left."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        opened: Opened,
        leave: Callable[[ScalableLink, ConsumerSession], None],
        elsewhere: ElsewhereReaders | None = None,
        spawn: Callable[[Coroutine[Any, Any, None]], object] | None = None,
        sharing_refused: Callable[[ConsumerSession], None] = lambda held: None,
    ) -> None:
        """`elsewhere`: the other brokers, if there are any; then `spawn` runs questions to them. `sharing_refused` is
        called for a consumer that does not know how to share a segment."""
        self._loop = loop
        self._elsewhere = elsewhere
        self._spawn = spawn
        self._opened = opened
        self._leave = leave
        self._sharing_refused = sharing_refused
        self.left_after_s = LEFT_AFTER_S
        self.unread_after_s = UNREAD_AFTER_S
        self.sharing_after_s = SHARING_AFTER_S
        self._observed: dict[Who, list[_Observed]] = {}
        # On each connection, the consumers that were treated as gone.
        self._gone: WeakKeyDictionary[ScalableLink, dict[Who, None]] = WeakKeyDictionary()

    # -- sessions

    def observe(self, session: ScalableLink, held: ConsumerSession) -> Callable[[], None]:
        """Observes the session until `end`; the returned function is to be called whenever it was sent an
        assignment."""
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
        """Whether the consumer will not come back; called when its connection ends."""
        return any(
            seen.held is held and seen.has_closed and not self._reads(seen)
            for seen in self._of(held.topic, held.name)
        )

    # -- events

    def attaching(self, session: ScalableLink, topic: TopicName, request: pb.CommandSubscribe) -> None:
        """A client is about to attach a consumer to a topic."""
        who = _who(topic, request.consumer_name)
        if who is None:
            return
        if who[:2] in self._gone.get(session, ()):
            self._return(session, who)
        for seen in self._sessions(who, request.subscription):
            self._check_sharing(seen, who[2], is_shared=request.subType == pb.CommandSubscribe.Key_Shared)

    def consumer_attached(self, consumer: AttachedConsumer) -> None:
        for seen, number in self._reading(consumer):
            self._attached(seen, number)
        if (reader := self._to_tell(consumer)) is not None:
            assert self._elsewhere is not None
            self._elsewhere.attached(reader)

    def consumer_closed(self, consumer: AttachedConsumer) -> None:
        """The client has closed the consumer."""
        if (reader := self._to_tell(consumer)) is not None:
            assert self._elsewhere is not None
            has_more = reader_state(self._opened(reader.segment), reader).has_more
            self._elsewhere.closed(reader, has_more=has_more)
        for seen, number in self._reading(consumer):
            has_more = any(segment.id == number for segment in self._wanted(seen.held))
            self._closed(seen, number, has_more=has_more, is_shared=_is_shared(consumer))

    def attached_elsewhere(self, reader: SegmentReader) -> None:
        """A client has attached that consumer at another broker."""
        who = _who(reader.segment, reader.consumer)
        if who is None:
            return
        observed = self._sessions(who, reader.subscription)
        for seen in observed:
            if reader.is_shared is not None:
                self._check_sharing(seen, who[2], is_shared=reader.is_shared)
            self._attached(seen, who[2])
        if not observed:
            for session, gone in list(self._gone.items()):
                if who[:2] in gone:
                    self._return(session, who)

    def closed_elsewhere(self, reader: SegmentReader, *, has_more: bool) -> None:
        """A client has closed that consumer at another broker."""
        who = _who(reader.segment, reader.consumer)
        if who is None:
            return
        for seen in self._sessions(who, reader.subscription):
            has_more = has_more and any(segment.id == who[2] for segment in _assigned(seen.held))
            self._closed(seen, who[2], has_more=has_more, is_shared=reader.is_shared)

    def _attached(self, seen: _Observed, number: SegmentId) -> None:
        seen.reading.add(number)
        seen.has_closed = seen.is_changing = False
        self._consider(seen)

    def _closed(self, seen: _Observed, number: SegmentId, *, has_more: bool, is_shared: bool | None) -> None:
        seen.reading.discard(number)
        if has_more and is_shared is not None and is_shared != (number in _shared(seen.held)):
            seen.is_changing = True
        elif has_more:
            seen.has_closed = True
        self._consider(seen)

    def _check_sharing(self, seen: _Observed, number: SegmentId, *, is_shared: bool) -> None:
        if not is_shared and number in _shared(seen.held) - seen.told_whole:
            self._sharing_refused(seen.held)

    def _return(self, session: ScalableLink, who: tuple[TopicName, str, SegmentId]) -> None:
        log.info("consumer %s of %s is still connected: it must register again", who[1], who[0])
        session.close()

    def _assigned(self, seen: _Observed) -> None:
        shared = _shared(seen.held)
        seen.told_whole = {
            segment.id
            for segment in _assigned(seen.held)
            if segment.id not in shared or segment.id in seen.told_whole
        }
        self._note_attached(seen)
        self._consider(seen)

    def _note_attached(self, seen: _Observed) -> None:
        """Notes the segments that it is attached to already: its consumers may have come back before its session."""
        for segment in self._wanted(seen.held):
            if self._state(seen.held, segment).is_attached:
                seen.reading.add(segment.id)

    # -- whether it has left

    def _consider(self, seen: _Observed) -> None:
        if not _assigned(seen.held) or self._reads(seen):
            seen.idle_since = None
        elif not self._wanted(seen.held):
            seen.idle_since = None
            # A segment that is not open now may be opened at any time, without a notice to this class.
            self._look_at(seen, self._loop.time() + self.unread_after_s)
        else:
            if seen.idle_since is None:
                seen.idle_since = self._loop.time()
            self._look_at(seen, self._due(seen, seen.idle_since))

    def _due(self, seen: _Observed, idle_since: float) -> float:
        if seen.has_closed:
            return idle_since + self.left_after_s
        waits_for_others = seen.is_changing or bool(_shared(seen.held))
        return idle_since + (self.sharing_after_s if waits_for_others else self.unread_after_s)

    def _look_at(self, seen: _Observed, when: float) -> None:
        if seen.timer is not None:
            if seen.look_at <= when:
                return
            seen.timer.cancel()
        seen.look_at = when
        seen.timer = self._loop.call_at(when, self._look, seen)

    def _look(self, seen: _Observed) -> None:
        seen.timer = None
        held, now = seen.held, self._loop.time()
        if held.is_over:
            return
        self._note_attached(seen)
        idle_since = seen.idle_since
        if idle_since is None or self._reads(seen) or not self._wanted(held):
            self._consider(seen)
        elif (due := self._due(seen, idle_since)) > now + CLOCK_GRAIN_S:
            self._look_at(seen, due)
        elif None in seen.session.consumers.values():
            # A consumer is just being attached, and its segment is not known yet.
            self._look_at(seen, now + self.left_after_s)
        elif self._far(held):
            self._ask(seen)
        else:
            self._evict(seen)

    def _far(self, held: ConsumerSession) -> list[Segment]:
        """The assigned segments that other brokers own."""
        return [segment for segment in _assigned(held) if self._is_far(held, segment)]

    def _ask(self, seen: _Observed) -> None:
        if not seen.is_asking:
            assert self._spawn is not None
            seen.is_asking = True
            self._spawn(self._ask_and_evict(seen))

    async def _ask_and_evict(self, seen: _Observed) -> None:
        """Evicts the consumer if the owners of its segments confirm that it reads none."""
        held, elsewhere = seen.held, self._elsewhere
        assert elsewhere is not None
        assigned, has_more = held.assigned, False
        try:
            for segment in self._far(held):
                state = await elsewhere.look(_reader(held, segment))
                has_more |= state.has_more
                if state.is_attached:
                    seen.reading.add(segment.id)
        except AnabranchError as error:
            log.info("asking which segments %s of %s reads failed: %s", held.name, held.topic, error)
            seen.is_asking = False
            if not held.is_over:
                self._look_at(seen, self._loop.time() + self.left_after_s)
            return
        seen.is_asking = False
        if held.is_over:
            return
        has_more |= any(not self._is_far(held, segment) for segment in self._wanted(held))
        if self._reads(seen) or held.assigned is not assigned or seen.idle_since is None:
            self._consider(seen)
        elif not has_more:
            # It has nothing to read now, and may be sent more.
            seen.idle_since = None
            self._look_at(seen, self._loop.time() + self.unread_after_s)
        else:
            self._evict(seen)

    def _evict(self, seen: _Observed) -> None:
        held = seen.held
        log.info("consumer %s of %s reads none of its segments, treating it as gone", held.name, held.topic)
        gone = self._gone.setdefault(seen.session, {})
        gone[held.topic, held.name] = None
        if len(gone) > GONE_MAX:
            del gone[next(iter(gone))]
        self._leave(seen.session, held)

    def _wanted(self, held: ConsumerSession) -> list[Segment]:
        """The assigned segments that the consumer is to read further, as far as they are served here."""
        return [segment for segment in _assigned(held) if self._has_more(held, segment)]

    def _reads(self, seen: _Observed) -> bool:
        return any(segment.id in seen.reading for segment in _assigned(seen.held))

    def _has_more(self, held: ConsumerSession, segment: Segment) -> bool:
        # What other brokers have is asked for before it matters.
        return self._is_far(held, segment) or self._state(held, segment).has_more

    def _is_far(self, held: ConsumerSession, segment: Segment) -> bool:
        return self._elsewhere is not None and self._elsewhere.is_elsewhere(segment.topic(held.topic))

    def _state(self, held: ConsumerSession, segment: Segment) -> ReaderState:
        """As far as the segment is open here."""
        reader = _reader(held, segment)
        return reader_state(self._opened(reader.segment), reader)

    def _of(self, topic: TopicName, name: str) -> list[_Observed]:
        return self._observed.get((topic, name), [])

    def _sessions(self, who: tuple[TopicName, str, SegmentId], subscription: str) -> list[_Observed]:
        return [seen for seen in self._of(*who[:2]) if _is_of(subscription, seen.held)]

    def _to_tell(self, consumer: AttachedConsumer) -> SegmentReader | None:
        """The consumer, if its session may be at another broker."""
        if self._elsewhere is None or consumer.client_version.startswith("Anabranch"):
            return None
        topic = TopicName.parse(str(consumer.subscription.topic))
        who = _who(topic, consumer.name)
        if who is None or who[:2] in self._observed:
            return None
        name, is_shared = consumer.subscription.name, _is_shared(consumer)
        return SegmentReader(topic, consumer.name, name, is_shared=is_shared)

    def _reading(self, consumer: AttachedConsumer) -> list[tuple[_Observed, SegmentId]]:
        """The sessions that the consumer belongs to, and its segment."""
        if not self._observed:
            return []
        who = _who(TopicName.parse(str(consumer.subscription.topic)), consumer.name)
        if who is None:
            return []
        topic, name, number = who
        return [
            (seen, number) for seen in self._of(topic, name) if _is_of(consumer.subscription.name, seen.held)
        ]


def _assigned(held: ConsumerSession) -> tuple[Segment, ...]:
    return () if held.assigned is None else held.assigned.segments


def _shared(held: ConsumerSession) -> frozenset[SegmentId]:
    return frozenset() if held.assigned is None else held.assigned.shared


def _is_shared(consumer: AttachedConsumer) -> bool:
    return consumer.kind == pb.CommandSubscribe.Key_Shared


def _is_of(subscription: str, held: ConsumerSession) -> bool:
    # The readers of a checkpoint group have subscriptions of their own.
    return held.kind is SubscriptionKind.CHECKPOINT or subscription == held.subscription


def _reader(held: ConsumerSession, segment: Segment) -> SegmentReader:
    return SegmentReader(
        segment.topic(held.topic),
        segment_consumer(held.name, segment.id),
        held.subscription,
        held.kind is SubscriptionKind.CHECKPOINT,
        segment.is_active,
    )


def _who(topic: TopicName, consumer: str) -> tuple[TopicName, str, SegmentId] | None:
    """The scalable topic, the consumer and the segment in the name of a V5 client's consumer on a segment."""
    found = consumer_and_segment(consumer)
    return None if found is None else (scalable_name(topic.base), *found)
