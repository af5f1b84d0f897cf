"""A topic's layout as clients are sent it: its segments, the owners of the active ones, and its controller.

All watches that look at a topic at the same moment share one read, so that a split of a topic with a thousand watchers
is read, resolved and encoded once. Segments marked for deletion are left out: every subscription has drained them and
their storage may be gone, so clients must not attach any more. Links to them are cut, as the prune that follows will
do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from anabranch.broker.catalog.owners import BrokerAddress, Owners
from anabranch.controller.feed import TopicFeed
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import TopicName
from anabranch.model.scalable import ScalableTopic, scalable_name
from anabranch.model.segments import Segment, SegmentId
from anabranch.wire import pulsar_pb2 as pb

log = logging.getLogger(__name__)


class Layouts(Protocol):
    """What is read of the topics; `ScalableTopics` implements it."""

    @property
    def feed(self) -> TopicFeed: ...

    async def get(self, topic: TopicName) -> ScalableTopic | None: ...

    async def view(self, topic: TopicName) -> ScalableTopic: ...

    async def leader(self, topic: TopicName) -> str: ...

    def touch(self, topic: TopicName) -> None: ...


class Brokers(Protocol):
    """What is read of the brokers' registrations; `BrokerRegistry` implements it."""

    async def find(self, service_url: str) -> BrokerAddress | None: ...


@dataclass(frozen=True, slots=True)
class LayoutView:
    """The layout of a topic at one moment."""

    record: ScalableTopic | None  # None for a classic topic, which has no record.
    dag: pb.ScalableTopicDAG
    # Equal for two views that look the same to a client.
    news: bytes
    has_controller: bool
    is_complete: bool  # False if some active segment has no owner now.


class LayoutViews:
    def __init__(self, layouts: Layouts, owners: Owners, brokers: Brokers) -> None:
        self.layouts = layouts
        self._owners = owners
        self._brokers = brokers
        # Reads that have not begun, with callers waiting.
        self._coming: dict[TopicName, asyncio.Task[LayoutView]] = {}

    async def look(self, topic: TopicName) -> LayoutView:
        """The layout, read after this call. TopicMissing if there is none."""
        topic = scalable_name(topic)
        task = self._coming.get(topic)
        if task is None:
            # Awaited by every caller that comes before the read begins.
            task = self._coming[topic] = asyncio.get_running_loop().create_task(self._look(topic))
            task.add_done_callback(_heard)
        return await asyncio.shield(task)

    async def _look(self, topic: TopicName) -> LayoutView:
        # A caller that comes from here on may know of a change that this read misses, and gets a read of its own.
        del self._coming[topic]
        record = await self.layouts.get(topic)
        layout = shown((record or await self.layouts.view(topic)).layout)
        leader = await self.layouts.leader(topic)
        controller = (await self._brokers.find(leader) or BrokerAddress(leader, "")) if leader else None
        owners = self._owners_of(topic, layout)
        dag = encode_dag(layout, owners, controller)
        return LayoutView(
            record,
            dag,
            _comparable(dag),
            has_controller=controller is not None,
            is_complete=len(owners) == len(layout.active),
        )

    def _owners_of(self, topic: TopicName, layout: SegmentLayout) -> dict[SegmentId, BrokerAddress]:
        owners: dict[SegmentId, BrokerAddress] = {}
        for segment in layout.active:
            # Clients look a segment up by themselves if it has no owner here.
            if (found := self._owners.owner(segment.topic(topic))) is not None:
                owners[segment.id] = found
        return owners


def _heard(task: asyncio.Task[LayoutView]) -> None:
    """Retrieves the exception: all callers may be gone, and asyncio would log it as never retrieved."""
    if not task.cancelled():
        task.exception()


def shown(layout: SegmentLayout) -> SegmentLayout:
    """The layout without the segments that are about to be pruned."""
    gone = [s.id for s in layout.sealed if s.is_deleting]
    if not gone:
        return layout
    return replace(layout.prune(gone), epoch=layout.epoch)


def encode_dag(
    layout: SegmentLayout, owners: Mapping[SegmentId, BrokerAddress], controller: BrokerAddress | None
) -> pb.ScalableTopicDAG:
    dag = pb.ScalableTopicDAG(epoch=layout.epoch)
    if layout.topic_id:
        dag.topic_id = layout.topic_id
    for segment in layout.segments.values():
        _fill_segment(dag.segments.add(), segment)
    dag.tells_gone = layout.gone is not None
    for gone in layout.gone or ():
        about = dag.gone.add(
            segment_id=gone.segment,
            hash_start=gone.range.start,
            hash_end=gone.range.end,
            classic=gone.is_classic,
        )
        if gone.end is not None:
            about.end_ledger, about.end_entry = gone.end
    for number, owner in owners.items():
        broker = dag.segment_brokers.add(segment_id=number, broker_url=owner.service_url)
        if owner.service_url_tls:
            broker.broker_url_tls = owner.service_url_tls
    if controller is not None:
        dag.controller_broker_url = controller.service_url
        if controller.service_url_tls:
            dag.controller_broker_url_tls = controller.service_url_tls
    return dag


def _fill_segment(info: pb.SegmentInfoProto, segment: Segment) -> None:
    info.segment_id = segment.id
    info.hash_start = segment.range.start
    info.hash_end = segment.range.end
    info.state = pb.ACTIVE if segment.is_active else pb.SEALED
    info.parent_ids.extend(segment.parents)
    info.child_ids.extend(segment.children)
    info.created_at_epoch = segment.created_epoch
    info.created_at_ms = segment.created_ms
    if segment.is_sealed:
        info.sealed_at_epoch = segment.sealed_epoch
        info.sealed_at_ms = segment.sealed_ms
    if segment.classic_topic:
        info.legacy_topic_name = segment.classic_topic
    info.entry_bucket_splits.extend(segment.bucket_splits)


def _comparable(dag: pb.ScalableTopicDAG) -> bytes:
    """Two DAGs with equal bytes say the same. A layout made up for a classic topic has no time of its own."""
    copy = pb.ScalableTopicDAG.FromString(dag.SerializeToString())
    for segment in copy.segments:
        segment.created_at_ms = 0
    return copy.SerializeToString(deterministic=True)
