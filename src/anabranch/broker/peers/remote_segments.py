"""Segments of other brokers: `controller.ports.Segments` over the link to their owner, and the owner's end of it.

The owner's refusals arrive as the same errors. A call without an answer is SegmentUnavailable, although it may have
taken effect: every call may be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from anabranch.broker.peers.errors import PeerUnavailable
from anabranch.broker.peers.methods import (
    CREATE_SEGMENT,
    CREATE_SUBSCRIPTION,
    DELETE_SEGMENT,
    DELETE_SUBSCRIPTION,
    SEAL_SEGMENT,
    SEEK_SUBSCRIPTION,
    SEGMENT_STATUS,
    SKIP_ALL,
    CreateSegment,
    CreateSubscription,
    Nothing,
    PeerMethod,
    SeekSubscription,
    SegmentCall,
    SubscriptionCall,
    ToldStatus,
)
from anabranch.broker.peers.peers import Peers
from anabranch.controller.core.errors import SegmentUnavailable
from anabranch.controller.ports import Segments, SegmentStatus
from anabranch.model.names import TopicName
from anabranch.model.scalable import InitialPosition
from anabranch.model.segments import Segment

R = TypeVar("R", bound=msgspec.Struct)
A = TypeVar("A", bound=msgspec.Struct)


class PeerSegments:
    """Implements `Segments` for the segments of one other broker."""

    def __init__(self, peers: Peers, owner: str) -> None:
        """`owner`: the id or the service URL of that broker."""
        self._peers = peers
        self._owner = owner

    async def _call(self, method: PeerMethod[R, A], request: R) -> A:
        try:
            return await self._peers.call(self._owner, method, request)
        except PeerUnavailable as error:
            raise SegmentUnavailable(str(error)) from error

    async def create(self, topic: TopicName, segment: Segment, subscriptions: Sequence[str]) -> None:
        await self._call(CREATE_SEGMENT, CreateSegment(str(topic), segment, list(subscriptions)))

    async def seal(self, topic: TopicName, segment: Segment) -> None:
        await self._call(SEAL_SEGMENT, SegmentCall(str(topic), segment))

    async def delete(self, topic: TopicName, segment: Segment) -> None:
        await self._call(DELETE_SEGMENT, SegmentCall(str(topic), segment))

    async def create_subscription(
        self, topic: TopicName, segment: Segment, subscription: str, initial: InitialPosition
    ) -> None:
        request = CreateSubscription(str(topic), segment, subscription, initial)
        await self._call(CREATE_SUBSCRIPTION, request)

    async def delete_subscription(self, topic: TopicName, segment: Segment, subscription: str) -> None:
        await self._call(DELETE_SUBSCRIPTION, SubscriptionCall(str(topic), segment, subscription))

    async def seek(self, topic: TopicName, segment: Segment, subscription: str, timestamp_ms: int) -> None:
        request = SeekSubscription(str(topic), segment, subscription, timestamp_ms)
        await self._call(SEEK_SUBSCRIPTION, request)

    async def skip_all(self, topic: TopicName, segment: Segment, subscription: str) -> None:
        await self._call(SKIP_ALL, SubscriptionCall(str(topic), segment, subscription))

    async def status(self, topic: TopicName, segment: Segment) -> SegmentStatus:
        return (await self._call(SEGMENT_STATUS, SegmentCall(str(topic), segment))).status()


class ServedSegments:
    """This broker's segments, for controllers at others."""

    def __init__(self, segments: Segments) -> None:
        """`segments` checks every change against the topic's record."""
        self._segments = segments

    def serve(self, peers: Peers) -> None:
        add = peers.handlers.add
        add(CREATE_SEGMENT, self._create)
        add(SEAL_SEGMENT, self._seal)
        add(DELETE_SEGMENT, self._delete)
        add(CREATE_SUBSCRIPTION, self._create_subscription)
        add(DELETE_SUBSCRIPTION, self._delete_subscription)
        add(SEEK_SUBSCRIPTION, self._seek)
        add(SKIP_ALL, self._skip_all)
        add(SEGMENT_STATUS, self._status)

    async def _create(self, peer: str, asked: CreateSegment) -> Nothing:
        await self._segments.create(_topic(asked), asked.segment, asked.subscriptions)
        return Nothing()

    async def _seal(self, peer: str, asked: SegmentCall) -> Nothing:
        await self._segments.seal(_topic(asked), asked.segment)
        return Nothing()

    async def _delete(self, peer: str, asked: SegmentCall) -> Nothing:
        await self._segments.delete(_topic(asked), asked.segment)
        return Nothing()

    async def _create_subscription(self, peer: str, asked: CreateSubscription) -> Nothing:
        await self._segments.create_subscription(
            _topic(asked), asked.segment, asked.subscription, asked.initial
        )
        return Nothing()

    async def _delete_subscription(self, peer: str, asked: SubscriptionCall) -> Nothing:
        await self._segments.delete_subscription(_topic(asked), asked.segment, asked.subscription)
        return Nothing()

    async def _seek(self, peer: str, asked: SeekSubscription) -> Nothing:
        await self._segments.seek(_topic(asked), asked.segment, asked.subscription, asked.timestamp_ms)
        return Nothing()

    async def _skip_all(self, peer: str, asked: SubscriptionCall) -> Nothing:
        await self._segments.skip_all(_topic(asked), asked.segment, asked.subscription)
        return Nothing()

    async def _status(self, peer: str, asked: SegmentCall) -> ToldStatus:
        return ToldStatus.of(await self._segments.status(_topic(asked), asked.segment))


def _topic(asked: SegmentCall) -> TopicName:
    return TopicName.parse(asked.topic)
