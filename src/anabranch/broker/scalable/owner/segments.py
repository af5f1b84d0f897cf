"""Segments as their owner serves them: created, sealed, deleted and given cursors on a controller's request.

A controller may be outdated, so each change is checked against the topic's record, read again, and refused unless the
record calls for it. Changes of one segment are serialized: what was checked still holds when the change is made. Each
change may be repeated. A segment that stands for a classic topic is that topic: sealing terminates it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from weakref import WeakValueDictionary

from anabranch.broker.catalog.owners import BrokerAddress, Owners
from anabranch.broker.catalog.resources import NotFound, topic_record_path
from anabranch.broker.catalog.schemas import Schemas
from anabranch.broker.catalog.segment_records import (
    GENERATION,
    generation_of,
    segment_by_id,
)
from anabranch.broker.errors import NotReadyError, SubscriptionNotFoundError, TopicNotFoundError
from anabranch.broker.scalable.load.reporter import remove_load
from anabranch.broker.scalable.ports import ServedTopics
from anabranch.broker.subscription.subscription import Subscription
from anabranch.broker.topic.topic import Topic
from anabranch.broker.topics.creation import NewTopics
from anabranch.controller.core.errors import SegmentGone, SegmentRefused, SegmentUnavailable
from anabranch.controller.ports import CursorStatus, Segments, SegmentStatus
from anabranch.controller.records import Records
from anabranch.errors import AnabranchError
from anabranch.metadata.errors import NotEmpty, VersionConflict
from anabranch.metadata.port import MetadataStore
from anabranch.model.names import TopicName
from anabranch.model.scalable import InitialPosition, ScalableTopic
from anabranch.model.segments import Segment
from anabranch.storage.core.topic_record import TopicRecord
from anabranch.storage.port import LogError
from anabranch.storage.topic.topic_log import TopicLog

log = logging.getLogger(__name__)


class SegmentOwner:
    """Implements `controller.ports.Segments` for the segments that this broker owns."""

    def __init__(
        self,
        metadata: MetadataStore,
        served: ServedTopics,
        new_topics: NewTopics,
        schemas: Schemas,
        now_ms: Callable[[], int],
    ) -> None:
        self._metadata = metadata
        self._records = Records(metadata)
        self._served = served
        self._new_topics = new_topics
        self._schemas = schemas
        self._now_ms = now_ms
        # One lock for each segment being changed; dropped after the last change.
        self._changing: WeakValueDictionary[TopicName, asyncio.Lock] = WeakValueDictionary()

    # -- requests of a controller

    async def create(self, topic: TopicName, segment: Segment, subscriptions: Sequence[str]) -> None:
        async with self._changes(topic, segment) as name:
            record = await self._record(topic, segment)
            if not record.may_create(segment.id, segment.range) or segment.classic_topic:
                raise SegmentRefused(f"{name} must not be created: the topic's record does not ask for it")
            found = await asyncio.gather(*(self._is_subscribed(topic, record, s) for s in subscriptions))
            wanted = [s for s, is_subscribed in zip(subscriptions, found, strict=True) if is_subscribed]
            if not wanted and not segment.parents:
                await self._make(name, record)
                return
            # A child is opened at once: its parent's producers are about to come.
            opened = await self._made_and_opened(name, record)
            await self._check_current(opened)
            # Together, so that they are stored together.
            await asyncio.gather(
                *(opened.create_subscription(s, "earliest", {}, is_limited=False) for s in wanted)
            )

    async def seal(self, topic: TopicName, segment: Segment) -> None:
        async with self._changes(topic, segment) as name:
            record = await self._record(topic, segment)
            if not record.may_seal(segment.id):
                raise SegmentRefused(f"{name} must not be sealed: the topic's record has it active")
            stored = segment_by_id(record, segment.id)
            if stored is None or stored.is_deleting:
                opened = await self._served.topic(name)
            elif segment.classic_topic:
                # Created first if it is a partition that was never used.
                path, now_ms = topic_record_path(name), self._now_ms()
                await TopicLog.create(path, self._metadata, now_ms, topic_id=record.layout.topic_id)
                opened = await self._served.topic(name)
            else:
                # The creation of the topic may have been interrupted before this segment was created. It is sealed
                # empty then.
                opened = await self._made_and_opened(name, record)
            await opened.terminate()

    async def delete(self, topic: TopicName, segment: Segment) -> None:
        async with self._changes(topic, segment) as name:
            record = await self._records.get(topic, fresh=True)
            if record is not None and not record.may_delete(segment.id):
                generation = await self._stored_generation(name)
                if segment.classic_topic or generation is None or generation == record.generation:
                    raise SegmentRefused(
                        f"{name} must not be deleted: the topic's record does not ask for it"
                    )
            if segment.classic_topic:
                _check_classic(record, segment)
            await self._delete(name)
            if not name.is_classic:
                await remove_load(self._metadata, name)
            if record is not None and record.is_deleting:
                # The whole topic is deleted, and a new topic of the same name may have another schema.
                await self._schemas.delete(topic)

    async def create_subscription(
        self, topic: TopicName, segment: Segment, subscription: str, initial: InitialPosition
    ) -> None:
        async with self._changes(topic, segment) as name:
            record = await self._records.get(topic, fresh=True)
            if record is None and not segment.classic_topic:
                raise SegmentGone(f"{topic} does not exist")
            if record is not None and not await self._is_subscribed(topic, record, subscription):
                raise SegmentRefused(f"{topic} has no subscription {subscription}, or it is being deleted")
            opened = await self._current(name)
            await opened.create_subscription(subscription, _PLACE[initial], {}, is_limited=False)

    async def delete_subscription(self, topic: TopicName, segment: Segment, subscription: str) -> None:
        async with self._changes(topic, segment) as name:
            record = await self._records.get(topic, fresh=True)
            if record is not None and await self._is_subscribed(topic, record, subscription):
                raise SegmentRefused(
                    f"{topic} has the subscription {subscription}: delete it there, not on one segment"
                )
            with contextlib.suppress(TopicNotFoundError, SubscriptionNotFoundError):
                opened = await self._current(name)
                await opened.delete_subscription(subscription, force=True)

    async def seek(self, topic: TopicName, segment: Segment, subscription: str, timestamp_ms: int) -> None:
        async with self._changes(topic, segment) as name:
            opened = await self._current(name)
            if subscription not in opened.subscriptions:
                # A subscription that began at the latest message has no cursor on segments sealed before, and may need
                # one now.
                record = await self._records.get(topic, fresh=True)
                if record is not None and not await self._is_subscribed(topic, record, subscription):
                    raise SegmentRefused(f"{topic} has no subscription {subscription}")
                await opened.create_subscription(subscription, "latest", {}, is_limited=False)
            await opened.subscriptions[subscription].seek_to_time(timestamp_ms)

    async def skip_all(self, topic: TopicName, segment: Segment, subscription: str) -> None:
        async with self._changes(topic, segment) as name:
            found = (await self._current(name)).subscriptions.get(subscription)
            if found is not None:
                await found.skip_all()

    async def status(self, topic: TopicName, segment: Segment) -> SegmentStatus:
        with _translated():
            opened = await self._current(segment.topic(topic))
            stamps = opened.stamps
            return SegmentStatus(
                is_sealed=opened.is_sealed,
                is_hiding=opened.hidden.has_open,
                subscriptions={
                    s.name: await _cursor_status(s)
                    for s in list(opened.subscriptions.values())
                    if s.is_durable
                },
                finished_readers=opened.finished_readers,
                producers=len(opened.producers),
                msg_rate_in=opened.rates_in[0],
                msg_throughput_in=opened.rates_in[1],
                storage_bytes=opened.log.size_bytes,
                end=opened.log.written_end,
                keys=opened.keys_seen,
                unstamped_entries=0 if stamps is None else stamps.unstamped,
                unstamped_producer="" if stamps is None else stamps.unstamped_producer,
            )

    # -- requests of clients and operators

    async def last_sequence_id(self, topic: TopicName, segment: Segment, producer: str) -> int:
        """The last sequence id of that producer stored here, sealed or not; -1 if there is none."""
        with _translated():
            opened = await self._served.topic(segment.topic(topic))
            return (await opened.settled_ids(producer)).last

    # -- checks and locks

    @contextlib.asynccontextmanager
    async def _changes(self, topic: TopicName, segment: Segment) -> AsyncIterator[TopicName]:
        """The topic that holds the segment's messages; no other change of it runs meanwhile."""
        name = segment.topic(topic)
        lock = self._changing.get(name)
        if lock is None:
            lock = self._changing[name] = asyncio.Lock()
        async with lock:
            with _translated():
                try:
                    yield name
                except VersionConflict:
                    # Another broker has opened the segment, or a write in doubt was stored after all. Either way the
                    # open topic has an old record, and the next attempt opens it again.
                    if (opened := self._served.opened(name)) is not None:
                        await opened.close()
                    raise

    async def _record(self, topic: TopicName, segment: Segment) -> ScalableTopic:
        record = await self._records.get(topic, fresh=True)
        if record is None:
            raise SegmentRefused(f"there is no scalable topic {topic}")
        if segment.classic_topic:
            _check_classic(record, segment)
        return record

    async def _is_subscribed(self, topic: TopicName, record: ScalableTopic, subscription: str) -> bool:
        """Whether the topic has the subscription. Its record is stored before any cursor, and marked before they are
        deleted."""
        found = await self._records.subscription(topic, record.generation, subscription)
        return found is not None and not found.is_deleting

    async def _current(self, name: TopicName) -> Topic:
        opened = await self._served.topic(name)
        await self._check_current(opened)
        return opened

    async def _check_current(self, opened: Topic) -> None:
        """Another broker may have opened the log, and our answer would be outdated."""
        if not await opened.log.is_current():
            await opened.close()
            raise SegmentUnavailable(f"{opened.name} was taken by another broker: look it up again")

    # -- storage

    async def _stored_generation(self, name: TopicName) -> int | None:
        """The generation of the log stored under that name; None if there is none."""
        found = await self._metadata.get(topic_record_path(name), fresh=True)
        if found is None or not found.value:
            return None
        record = TopicRecord.decode(found.value)
        return -1 if record.is_deleting else generation_of(record.properties)

    async def _make(self, name: TopicName, record: ScalableTopic) -> None:
        """Creates the segment's log if there is none of this generation, and deletes one of another."""
        properties, topic_id = {GENERATION: str(record.generation)}, record.layout.topic_id
        while not await self._new_topics.create(name, properties, topic_id):
            found = await self._stored_generation(name)
            if found == record.generation:
                return
            if found is not None:
                await self._delete(name)

    async def _made_and_opened(self, name: TopicName, record: ScalableTopic) -> Topic:
        try:
            opened = await self._served.topic(name, made_for=record)
            if generation_of(opened.log.topic_record.properties) == record.generation:
                return opened
        except TopicNotFoundError as error:
            log.info("%s: creating the segment again: %s", name, error)
        await self._make(name, record)
        return await self._served.topic(name, made_for=record)

    async def _delete(self, name: TopicName) -> None:
        await self._served.discard_topic(name)
        folder = topic_record_path(name).rpartition("/")[0]
        with contextlib.suppress(NotEmpty):
            # Ten thousand deleted topics should not leave ten thousand empty folders.
            if not name.is_classic:
                await self._metadata.delete(folder)


class RoutedSegments:
    """Implements `controller.ports.Segments` for all segments: each call goes to the segment's owner."""

    def __init__(self, owners: Owners, local: Segments, remote: Callable[[BrokerAddress], Segments]) -> None:
        self._owners = owners
        self._local = local
        self._remote = remote

    async def _at(self, topic: TopicName, segment: Segment) -> Segments:
        name = segment.topic(topic)
        try:
            owner = await self._owners.resolve(name)
        except NotReadyError as error:
            raise SegmentUnavailable(str(error)) from error
        return self._local if self._owners.is_mine(name) else self._remote(owner)

    async def create(self, topic: TopicName, segment: Segment, subscriptions: Sequence[str]) -> None:
        await (await self._at(topic, segment)).create(topic, segment, subscriptions)

    async def seal(self, topic: TopicName, segment: Segment) -> None:
        await (await self._at(topic, segment)).seal(topic, segment)

    async def delete(self, topic: TopicName, segment: Segment) -> None:
        await (await self._at(topic, segment)).delete(topic, segment)

    async def create_subscription(
        self, topic: TopicName, segment: Segment, subscription: str, initial: InitialPosition
    ) -> None:
        await (await self._at(topic, segment)).create_subscription(topic, segment, subscription, initial)

    async def delete_subscription(self, topic: TopicName, segment: Segment, subscription: str) -> None:
        await (await self._at(topic, segment)).delete_subscription(topic, segment, subscription)

    async def seek(self, topic: TopicName, segment: Segment, subscription: str, timestamp_ms: int) -> None:
        await (await self._at(topic, segment)).seek(topic, segment, subscription, timestamp_ms)

    async def skip_all(self, topic: TopicName, segment: Segment, subscription: str) -> None:
        await (await self._at(topic, segment)).skip_all(topic, segment, subscription)

    async def status(self, topic: TopicName, segment: Segment) -> SegmentStatus:
        return await (await self._at(topic, segment)).status(topic, segment)


def unreachable(owner: BrokerAddress) -> Segments:
    """For a broker that cannot reach other brokers."""
    raise SegmentUnavailable(f"broker {owner.service_url} owns that segment, and this one cannot ask it")


_PLACE = {InitialPosition.EARLIEST: "earliest", InitialPosition.LATEST: "latest"}


def _check_classic(record: ScalableTopic | None, segment: Segment) -> None:
    """A classic topic is changed only for the scalable topic that it was migrated to."""
    stored = None if record is None else segment_by_id(record, segment.id)
    if stored is None or stored.classic_topic != segment.classic_topic:
        raise SegmentRefused(f"{segment.classic_topic} is not a segment of that topic")


async def _cursor_status(subscription: Subscription) -> CursorStatus:
    is_drained = await subscription.look_whether_drained()
    rates = [consumer.rates for consumer in subscription.consumers]
    return CursorStatus(
        backlog=0 if is_drained else subscription.backlog_messages(),
        is_drained=is_drained,
        consumers=len(rates),
        msg_rate_out=sum(rate[0] for rate in rates),
        msg_throughput_out=sum(rate[1] for rate in rates),
    )


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Translates a broker's refusals into those that a controller knows."""
    try:
        yield
    except (TopicNotFoundError, NotFound) as error:
        raise SegmentGone(str(error)) from error
    except (LogError, VersionConflict) as error:
        # Another broker has opened the segment meanwhile, or the disk is full.
        raise SegmentUnavailable(str(error)) from error
    except AnabranchError as error:
        if error.retryable and not isinstance(error, SegmentUnavailable):
            raise SegmentUnavailable(str(error)) from error
        raise
