"""Acknowledgements of a V5 stream consumer that were lost with its connection.

Pulsar's client remembers what it has acknowledged cumulatively. Whatever of that comes again it drops without a word,
and it does not acknowledge it again. On an active segment the next message makes up for it; a sealed one has no next
message, so it would never drain and its children would never be handed out. A consumer that the client makes anew
remembers nothing. So one that has come back, and stands still before the end of a sealed segment, is given it anew: an
assignment without the segment, then the same as before. What it had not acknowledged comes again, as it may after any
lost connection.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from anabranch.controller.ports import Assignment
from anabranch.model.segments import SegmentId

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.consumer import Consumer
    from anabranch.broker.scalable.consumer_sessions import ConsumerSession
    from anabranch.model.position import Position
    from anabranch.model.segments import Segment

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 3.0
LOOKS: Final = 20

State = tuple["Consumer", int, "Position"]


class LostAcks:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.look_every_s = LOOK_EVERY_S

    async def watch(self, held: ConsumerSession) -> None:
        """Looks after a consumer that has come back, for a minute."""
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
        """What would change if the consumer did anything; None unless it has a sealed segment here to finish."""
        topic = self._broker.opened(segment.topic(held.topic))
        if topic is None or not topic.has_end:
            return None
        subscription = topic.subscriptions.get(held.subscription)
        if subscription is None or subscription.is_drained:
            return None
        for consumer in subscription.consumers:
            if consumer.name == f"{held.name}-seg-{segment.id}":
                return consumer, consumer.messages_out, subscription.mark_delete
        return None

    def _renew(self, held: ConsumerSession, segment: Segment) -> None:
        whole = held.assigned
        assert whole is not None
        log.info(
            "%s stands still at sealed segment %d of %s: handed out anew", held.name, segment.id, held.topic
        )
        others = tuple(s for s in whole.segments if s.id != segment.id)
        held.send_assignment(held.topic, held.id, Assignment(whole.epoch, others))
        held.send_assignment(held.topic, held.id, whole)
