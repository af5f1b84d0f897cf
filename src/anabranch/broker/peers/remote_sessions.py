"""Scalable topics whose controller and segments are at different brokers: what the two tell each other.

A segment's owner tells the topic's leader when a subscription has reached the end of a sealed segment, and when V5
clients attach and close consumers. Notices of one topic arrive in order. They are an economy: a notice that cannot be
delivered is dropped after a few attempts, and the leader finds out by asking.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final

from anabranch.broker.catalog.owners import Owners
from anabranch.broker.peers.errors import PeerUnavailable
from anabranch.broker.peers.methods import (
    CONTROLLER_NOTICES,
    READER_STATE,
    Nothing,
    Notice,
    NoticeKind,
    Notices,
    ReaderCall,
    ToldReader,
)
from anabranch.broker.peers.peers import Peers
from anabranch.broker.runtime.background import Background
from anabranch.broker.scalable.ports import Opened
from anabranch.broker.scalable.sessions.departures import Departures
from anabranch.broker.scalable.sessions.reading import ReaderState, SegmentReader, reader_state
from anabranch.controller.service import ScalableTopics
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName
from anabranch.model.scalable import scalable_name
from anabranch.model.segments import SegmentId

log = logging.getLogger(__name__)

# Of one topic; the oldest are dropped beyond that.
NOTICES_MAX: Final = 1000
ATTEMPTS: Final = 5
RETRY_S: Final = 0.2


class RemoteSessions:
    """Implements `ElsewhereReaders`, and the same for other brokers."""

    def __init__(
        self, peers: Peers, owners: Owners, topics: ScalableTopics, opened: Opened, background: Background
    ) -> None:
        self._peers = peers
        self._owners = owners
        self._topics = topics
        self._opened = opened
        self._background = background
        # Notices that are not delivered yet, by scalable topic. While there is an entry, a task delivers them.
        self._waiting: dict[TopicName, deque[Notice]] = {}
        self._departures: Departures | None = None
        self.retry_s = RETRY_S

    def serve(self, departures: Departures) -> None:
        self._departures = departures
        self._peers.handlers.add(READER_STATE, self._told_state)
        self._peers.handlers.add(CONTROLLER_NOTICES, self._noticed)

    # -- questions to owners

    def is_elsewhere(self, segment: TopicName) -> bool:
        return not self._owners.is_mine(segment)

    async def look(self, reader: SegmentReader) -> ReaderState:
        owner = self._owners.owner(reader.segment)
        if owner is None:
            raise PeerUnavailable(f"{reader.segment} has no owner at the moment")
        call = ReaderCall(
            str(reader.segment),
            reader.consumer,
            reader.subscription,
            reader.is_of_checkpoint,
            reader.is_active,
        )
        told = await self._peers.call(owner.service_url, READER_STATE, call)
        return ReaderState(told.has_more, told.is_attached, told.progress)

    async def _told_state(self, peer: str, asked: ReaderCall) -> ToldReader:
        reader = SegmentReader(
            TopicName.parse(asked.segment),
            asked.consumer,
            asked.subscription,
            asked.is_of_checkpoint,
            asked.is_active,
        )
        if not self._owners.is_mine(reader.segment):
            raise PeerUnavailable(f"this broker does not own {reader.segment}")
        state = reader_state(self._opened(reader.segment), reader)
        return ToldReader(state.has_more, state.is_attached, state.progress)

    # -- notices to leaders

    def progressed(self, topic: TopicName, segment: TopicName, number: SegmentId) -> None:
        """A subscription has reached the end of that sealed segment, or moved back."""
        self._tell(topic, Notice(NoticeKind.PROGRESS, str(segment), number))

    def attached(self, reader: SegmentReader) -> None:
        notice = Notice(
            NoticeKind.ATTACHED,
            str(reader.segment),
            consumer=reader.consumer,
            subscription=reader.subscription,
            is_shared=reader.is_shared,
        )
        self._tell(scalable_name(reader.segment.base), notice)

    def closed(self, reader: SegmentReader, *, has_more: bool) -> None:
        notice = Notice(
            NoticeKind.CLOSED,
            str(reader.segment),
            consumer=reader.consumer,
            subscription=reader.subscription,
            has_more=has_more,
            is_shared=reader.is_shared,
        )
        self._tell(scalable_name(reader.segment.base), notice)

    def _tell(self, topic: TopicName, notice: Notice) -> None:
        waiting = self._waiting.get(topic)
        if waiting is None:
            self._waiting[topic] = deque([notice], maxlen=NOTICES_MAX)
            self._background.run(self._deliver(topic))
        elif not waiting or waiting[-1] != notice:
            waiting.append(notice)

    async def _deliver(self, topic: TopicName) -> None:
        waiting, attempts = self._waiting[topic], 0
        try:
            while waiting:
                notices = list(waiting)
                try:
                    leader = await self._topics.leader(topic)
                    if leader:
                        await self._peers.call(leader, CONTROLLER_NOTICES, Notices(str(topic), notices))
                    # Without a leader there is no session; the next leader asks owners when it begins.
                except AnabranchError as error:
                    attempts += 1
                    if attempts < ATTEMPTS and error.retryable:
                        await asyncio.sleep(self.retry_s * attempts)
                        continue
                    log.info("%s: its leader could not be told of %d events: %s", topic, len(notices), error)
                attempts = 0
                for _ in notices[: len(waiting)]:
                    waiting.popleft()
        finally:
            del self._waiting[topic]

    async def _noticed(self, peer: str, told: Notices) -> Nothing:
        topic = TopicName.parse(told.topic)
        for notice in told.notices:
            reader = SegmentReader(
                TopicName.parse(notice.segment),
                notice.consumer,
                notice.subscription,
                is_shared=notice.is_shared,
            )
            if notice.kind == NoticeKind.PROGRESS:
                self._topics.segment_progress(topic, notice.number)
            elif self._departures is None:
                continue
            elif notice.kind == NoticeKind.ATTACHED:
                self._departures.attached_elsewhere(reader)
            elif notice.kind == NoticeKind.CLOSED:
                self._departures.closed_elsewhere(reader, has_more=notice.has_more)
        return Nothing()
