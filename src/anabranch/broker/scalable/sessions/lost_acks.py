"""Acknowledgements of a V5 stream consumer that were lost with its connection.

Pulsar's client remembers its cumulative acknowledgements. It silently drops redelivered messages before them, and does
not acknowledge those again. On an active segment the next message makes up for this; a sealed one has no next message,
so it would never drain and its children would never be assigned. A consumer that the client creates again remembers
nothing. So a consumer that has come back, and makes no progress before the end of a sealed segment, is assigned that
segment again: first an assignment without the segment, then the previous one. Its unacknowledged messages are
redelivered, as they may be after any lost connection.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.scalable.ports import Opened
from anabranch.broker.scalable.sessions.consumer_session import ConsumerSession
from anabranch.controller.ports import Assignment
from anabranch.model.position import Position
from anabranch.model.segment_consumers import segment_consumer
from anabranch.model.segments import Segment, SegmentId

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 3.0
LOOKS: Final = 20

State = tuple[AttachedConsumer, int, Position]


class LostAcks:
    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self.look_every_s = LOOK_EVERY_S

    async def watch(self, held: ConsumerSession) -> None:
        """Watches a consumer that has come back, for a minute."""
        seen: dict[SegmentId, State] = {}
        renewed: set[SegmentId] = set()
        for _ in range(LOOKS):
            await asyncio.sleep(self.look_every_s)
            if held.is_over:
                return
            now: dict[SegmentId, State] = {}
            for segment in () if held.assigned is None else held.assigned.segments:
                state = None if segment.id in renewed else self._state(held, segment)
                if state is None:
                    continue
                if seen.get(segment.id) == state:
                    renewed.add(segment.id)
                    self._renew(held, segment)
                else:
                    now[segment.id] = state
            seen = now

    def _state(self, held: ConsumerSession, segment: Segment) -> State | None:
        """A state that changes if the consumer makes progress; None unless it has a sealed segment here to finish."""
        topic = self._opened(segment.topic(held.topic))
        if topic is None or not topic.has_end:
            return None
        subscription = topic.subscriptions.get(held.subscription)
        if subscription is None or subscription.is_drained:
            return None
        name = segment_consumer(held.name, segment.id)
        for consumer in subscription.consumers:
            if consumer.name == name:
                return consumer, consumer.messages_out, subscription.mark_delete
        return None

    def _renew(self, held: ConsumerSession, segment: Segment) -> None:
        whole = held.assigned
        assert whole is not None
        log.info(
            "%s is stuck at sealed segment %d of %s: assigning it again", held.name, segment.id, held.topic
        )
        others = tuple(s for s in whole.segments if s.id != segment.id)
        held.send_assignment(held.topic, held.id, Assignment(whole.epoch, others))
        held.send_assignment(held.topic, held.id, whole)
