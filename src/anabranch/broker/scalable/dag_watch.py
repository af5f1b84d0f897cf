"""A client's view of a scalable topic's layout, kept fresh: the DAG watch (PIP-468, commands 70 to 72).

Any broker serves it from the stored record. A watch listens before it first reads, so no change falls between the two;
every change of the record, of the controller or of a segment's owner makes it read again, and whatever came meanwhile
is read once. Only news is pushed, and never an older epoch. A watch costs no task while nothing happens.

- The update has every segment of the record, active and sealed, except those marked for deletion: every subscription
  has drained them and their storage may be gone, so nobody is to attach any more. Links to them are cut, as the prune
  that follows will do.
- A topic that goes away while it is watched ends the watch with TopicNotFound, and so does one that went and came back
  under the same name. Only the first read may make a missing topic, never a later one.
- A classic topic is shown as a layout of its partitions, until it is migrated and the real layout follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from anabranch.broker.owners import Owner, Owners
from anabranch.controller.errors import TopicMissing
from anabranch.controller.feed import Part, TopicFeed
from anabranch.errors import AnabranchError
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import TopicName
from anabranch.model.scalable import ScalableTopic, scalable_name
from anabranch.model.segments import Segment, SegmentId
from anabranch.wire import pulsar_pb2 as pb

log = logging.getLogger(__name__)

# The first update waits this long for a controller: a client that is told of none connects to any broker instead.
CONTROLLER_WAIT_S: Final = 2.0
RETRY_S: Final = 1.0


class Layouts(Protocol):
    """What a watch asks of the topics; `ScalableTopics` answers it."""

    @property
    def feed(self) -> TopicFeed: ...

    async def get(self, topic: TopicName) -> ScalableTopic | None: ...

    async def view(self, topic: TopicName) -> ScalableTopic: ...

    async def leader(self, topic: TopicName) -> str: ...

    def touch(self, topic: TopicName) -> None: ...


class Brokers(Protocol):
    """What a watch asks of the brokers' registrations; `BrokerRegistry` answers it."""

    async def find(self, service_url: str) -> Owner | None: ...


@dataclass(eq=False)
class DagWatch:
    """One watch. `start` it once; it calls `ended` when it is over by itself, and nothing after `close`."""

    id: int
    topic: TopicName  # As the client called it, in any domain.
    layouts: Layouts
    owners: Owners
    brokers: Brokers
    send: Callable[[pb.BaseCommand], None]
    ended: Callable[[DagWatch], None]
    # Asked once, before anything is read: may this client look here at all?
    admit: Callable[[], Awaitable[None]]
    # Makes the topic if it may be made; None if this client does not want that.
    make: Callable[[], Awaitable[None]] | None = None
    retry_s: float = RETRY_S
    is_closed: bool = False
    _sent: bytes | None = None
    _epoch: int = -1
    _generation: int | None = None  # None while no record was seen: a classic topic has none.
    _is_stale: bool = False
    _work: asyncio.Task[None] | None = None
    _retry: asyncio.TimerHandle | None = None
    _controller_told: asyncio.Event = field(default_factory=asyncio.Event)
    _stop_listening: Callable[[], None] = lambda: None

    def start(self) -> None:
        self._stop_listening = self.layouts.feed.listen(self.topic, self._changed)
        self.refresh()

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._stop_listening()
        if self._retry is not None:
            self._retry.cancel()
        if self._work is not None:
            self._work.cancel()

    def refresh(self) -> None:
        """Look again, since an owner may have changed."""
        self._is_stale = True
        if self._work is None and not self.is_closed:
            # Cancelled by `close`; it answers for its own failures.
            self._work = asyncio.get_running_loop().create_task(self._catch_up())

    def _changed(self, part: Part) -> None:
        if Part.CONTROLLER in part:
            self._controller_told.set()
        if part & (Part.RECORD | Part.CONTROLLER):
            self.refresh()

    async def _catch_up(self) -> None:
        try:
            while self._is_stale and not self.is_closed:
                self._is_stale = False
                await self._update()
        except AnabranchError as error:
            self._failed(error, is_passing=error.retryable)
        except Exception as error:
            log.exception("the watch on %s failed", self.topic)
            self._failed(error, is_passing=True)
        finally:
            self._work = None

    def _failed(self, error: Exception, *, is_passing: bool) -> None:
        if self.is_closed:
            return
        if is_passing and self._sent is not None:
            # What the client has is the best there is. It is told when the store answers again.
            log.warning("the layout of %s cannot be read, trying again: %s", self.topic, error)
            self._later()
            return
        log.info("the watch on %s ends: %s", self.topic, error)
        self.send(error_update(self.id, error, str(scalable_name(self.topic))))
        self.close()
        self.ended(self)

    def _later(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        self._retry = asyncio.get_running_loop().call_later(self.retry_s, self.refresh)

    # -- one look

    async def _update(self) -> None:
        is_first = self._sent is None
        record = await (self._first_record() if is_first else self._record())
        controller = await self._controller(wait=is_first)
        layout = shown(record.layout)
        owners = self._owners_of(layout)
        dag = encode_dag(layout, owners, controller)
        news = _comparable(dag)
        if self.is_closed or news == self._sent or layout.epoch < self._epoch:
            return
        self._sent, self._epoch = news, layout.epoch
        command = pb.BaseCommand(type=pb.BaseCommand.SCALABLE_TOPIC_UPDATE)
        command.scalableTopicUpdate.session_id = self.id
        command.scalableTopicUpdate.resolved_topic_name = str(scalable_name(self.topic))
        command.scalableTopicUpdate.dag.CopyFrom(dag)
        self.send(command)

    async def _first_record(self) -> ScalableTopic:
        await self.admit()
        try:
            return await self._record()
        except TopicMissing:
            if self.make is None:
                raise
        await self.make()
        return await self._record()

    async def _record(self) -> ScalableTopic:
        record = await self.layouts.get(self.topic)
        if record is None and self._generation is None:
            return await self.layouts.view(self.topic)
        if record is None or record.is_deleting:
            raise TopicMissing(f"{scalable_name(self.topic)} has been deleted")
        if self._generation is None:
            self._generation = record.generation
        elif record.generation != self._generation:
            raise TopicMissing(f"{scalable_name(self.topic)} was deleted and made anew; look it up again")
        return record

    async def _controller(self, *, wait: bool) -> Owner | None:
        self._controller_told.clear()
        leader = await self.layouts.leader(self.topic)
        if not leader:
            # A lookup is a reason to have a controller: the client may be about to register with it.
            self.layouts.touch(self.topic)
            if wait:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CONTROLLER_WAIT_S):
                        await self._controller_told.wait()
                leader = await self.layouts.leader(self.topic)
        return (await self.brokers.find(leader) or Owner(leader, "")) if leader else None

    def _owners_of(self, layout: SegmentLayout) -> dict[SegmentId, Owner]:
        owners: dict[SegmentId, Owner] = {}
        for segment in layout.active:
            try:
                owners[segment.id] = self.owners.owner(segment.topic(self.topic))
            except AnabranchError as error:
                # The client looks that one up by itself, and is told as soon as there is an owner.
                log.info("segment %s of %s has no owner yet: %s", segment.id, self.topic, error)
                self._later()
        return owners


def shown(layout: SegmentLayout) -> SegmentLayout:
    """The layout without the segments that are about to be pruned."""
    gone = [s.id for s in layout.sealed if s.is_deleting]
    if not gone:
        return layout
    return replace(layout.prune(gone), epoch=layout.epoch)


def encode_dag(
    layout: SegmentLayout, owners: Mapping[SegmentId, Owner], controller: Owner | None
) -> pb.ScalableTopicDAG:
    dag = pb.ScalableTopicDAG(epoch=layout.epoch)
    for segment in layout.segments.values():
        _fill_segment(dag.segments.add(), segment)
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
    if segment.legacy_topic:
        info.legacy_topic_name = segment.legacy_topic
    info.entry_bucket_splits.extend(segment.bucket_splits)


def _comparable(dag: pb.ScalableTopicDAG) -> bytes:
    """Two updates with equal bytes say the same. A layout made up for a classic topic has no time of its own."""
    copy = pb.ScalableTopicDAG.FromString(dag.SerializeToString())
    for segment in copy.segments:
        segment.created_at_ms = 0
    return copy.SerializeToString(deterministic=True)


def error_update(session_id: int, error: Exception, resolved: str = "") -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.SCALABLE_TOPIC_UPDATE)
    update = command.scalableTopicUpdate
    update.session_id = session_id
    update.error = getattr(error, "code", None) or pb.UnknownError
    update.message = str(error) or type(error).__name__
    if resolved:
        update.resolved_topic_name = resolved
    return command
