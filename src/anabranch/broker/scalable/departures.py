"""Consumers that leave without saying so.

Pulsar's V5 client closes a stream or checkpoint consumer by closing what it has on the segments, and tells the
controller nothing: the consumer would keep its segments until the connection is lost, which may be never. But it closes
an active segment that is its own for this reason only. So: such a segment was closed, nothing of the same consumer is
attached or attaching a while later or when the connection ends, and its assignment has been the same all the time;
then it has left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from anabranch.model.names import TopicName
from anabranch.model.scalable import scalable_name

if TYPE_CHECKING:
    from anabranch.broker.consumer import Consumer
    from anabranch.broker.scalable.consumer_sessions import ConsumerSession
    from anabranch.broker.session import Session

log = logging.getLogger(__name__)

LEFT_AFTER_S: Final = 5.0
_MARK: Final = "-seg-"  # `{consumer}-seg-{segment}` is what the V5 client calls itself on a segment.


class Departures:
    def __init__(self, leave: Callable[[Session, ConsumerSession], None]) -> None:
        self._leave = leave
        self.left_after_s = LEFT_AFTER_S
        # Those that closed an active segment of their own, and how many assignments they had been sent by then.
        self._closed: WeakKeyDictionary[ConsumerSession, int] = WeakKeyDictionary()

    def consumer_closed(self, session: Session, consumer: Consumer) -> None:
        """The client has closed an ordinary consumer."""
        if not session.sessions or session.connection.peer_features.supports_scalable_topics:
            return  # A client that knows how to leave does so.
        name, mark, number = consumer.name.rpartition(_MARK)
        if not mark or not number.isdigit():
            return
        topic = _parent(consumer)
        for held in session.sessions.values():
            if held.name == name and held.topic == topic and _has_active(held, int(number)):
                self._closed[held] = held.assignments
                session.broker.loop.call_later(self.left_after_s, self._look, session, held, held.assignments)

    def has_left(self, session: Session, held: ConsumerSession) -> bool:
        """Asked when the connection ends, while its consumers are still known."""
        return self._closed.get(held) == held.assignments and not _is_attached(session, held)

    def _look(self, session: Session, held: ConsumerSession, assignments: int) -> None:
        if held.is_over or held.assignments != assignments or _is_attached(session, held):
            return
        log.info("consumer %s of %s has closed all its segments: it has left", held.name, held.topic)
        self._leave(session, held)


def _is_attached(session: Session, held: ConsumerSession) -> bool:
    # None is one that is just being attached, nobody knows yet for whom.
    return any(
        consumer is None
        or (consumer.name.startswith(f"{held.name}{_MARK}") and _parent(consumer) == held.topic)
        for consumer in session.consumers.values()
    )


def _parent(consumer: Consumer) -> TopicName:
    return scalable_name(TopicName.parse(str(consumer.subscription.topic)).base)


def _has_active(held: ConsumerSession, number: int) -> bool:
    assigned = held.assigned.segments if held.assigned is not None else ()
    return any(segment.id == number and segment.is_active for segment in assigned)
