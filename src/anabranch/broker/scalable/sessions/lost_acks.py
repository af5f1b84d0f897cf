"""Acknowledgements of a V5 stream consumer that were lost with its connection.

Pulsar's client remembers its cumulative acknowledgements. It silently drops redelivered messages before them, and does
not acknowledge those again. On an active segment the next message makes up for this; a sealed one has no next message,
so it would never drain and its children would never be assigned. A consumer that the client creates again remembers
nothing. So a consumer that has come back, and makes no progress before the end of a sealed segment, is assigned that
segment again: first an assignment without the segment, then the previous one. Its unacknowledged messages are
redelivered, as they may be after any lost connection.

A consumer that shares a segment acknowledges its messages one by one, and does not drop what is redelivered.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from anabranch.broker.scalable.ports import Opened
from anabranch.broker.scalable.sessions.consumer_session import ConsumerSession
from anabranch.broker.scalable.sessions.reading import ElsewhereReaders, SegmentReader, reader_state
from anabranch.controller.ports import Assignment
from anabranch.errors import AnabranchError
from anabranch.model.segment_consumers import segment_consumer
from anabranch.model.segments import Segment, SegmentId

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 3.0
LOOKS: Final = 20


class LostAcks:
    def __init__(self, opened: Opened, elsewhere: ElsewhereReaders | None = None) -> None:
        self._opened = opened
        self._elsewhere = elsewhere
        self.look_every_s = LOOK_EVERY_S

    async def watch(self, held: ConsumerSession) -> None:
        """Watches a consumer that has come back, for a minute."""
        seen: dict[SegmentId, str] = {}
        renewed: set[SegmentId] = set()
        for _ in range(LOOKS):
            await asyncio.sleep(self.look_every_s)
            if held.is_over:
                return
            now: dict[SegmentId, str] = {}
            for segment in () if held.assigned is None else held.assigned.segments:
                is_exempt = segment.id in renewed or (
                    held.assigned is not None and segment.id in held.assigned.shared
                )
                progress = "" if is_exempt else await self._progress(held, segment)
                if not progress:
                    continue
                if held.is_over or held.assigned is None:
                    return
                if seen.get(segment.id) == progress and segment in held.assigned.segments:
                    renewed.add(segment.id)
                    self._renew(held, segment)
                else:
                    now[segment.id] = progress
            seen = now

    async def _progress(self, held: ConsumerSession, segment: Segment) -> str:
        """A text that changes if the consumer makes progress; "" unless it has a sealed segment to finish, or while the
        segment's owner cannot be asked."""
        name, consumer = segment.topic(held.topic), segment_consumer(held.name, segment.id)
        reader = SegmentReader(name, consumer, held.subscription, is_active=segment.is_active)
        if self._elsewhere is None or not self._elsewhere.is_elsewhere(name):
            return reader_state(self._opened(name), reader).progress
        try:
            return (await self._elsewhere.look(reader)).progress
        except AnabranchError as error:
            log.info("%s: asking how far %s is failed: %s", name, held.name, error)
            return ""

    def _renew(self, held: ConsumerSession, segment: Segment) -> None:
        whole = held.assigned
        assert whole is not None
        log.info(
            "%s is stuck at sealed segment %d of %s: assigning it again", held.name, segment.id, held.topic
        )
        others = tuple(s for s in whole.segments if s.id != segment.id)
        held.send_assignment(held.topic, held.id, Assignment(whole.epoch, others, whole.shared))
        held.send_assignment(held.topic, held.id, whole)
