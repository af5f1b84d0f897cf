"""Segments as their owner serves them: made, sealed, deleted and given cursors at a controller's wish.

Whoever asks may be behind the times, so each change is checked against the topic's record, read afresh, and refused
unless the record calls for it. Changes of one segment wait for each other: what was checked still holds when it is
done. Each may be repeated. A segment that stands for a classic topic is that topic: sealing terminates it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from anabranch.broker.errors import SubscriptionNotFoundError, TopicNotFoundError
from anabranch.broker.owners import Owner, Owners
from anabranch.broker.resources import NotFound, topic_record_path
from anabranch.broker.scalable.load_reporter import remove_load
from anabranch.broker.scalable.records import (
    GENERATION,
    generation_of,
    named_segment,
)
from anabranch.controller.ports import (
    CursorStatus,
    SegmentGone,
    SegmentRefused,
    Segments,
    SegmentStatus,
    SegmentUnavailable,
)
from anabranch.controller.records import Records
from anabranch.errors import AnabranchError
from anabranch.metadata.errors import NotEmpty, VersionConflict
from anabranch.model.names import TopicName
from anabranch.model.scalable import InitialPosition, ScalableTopic
from anabranch.model.segments import Segment
from anabranch.storage.port import LogError
from anabranch.storage.topic_log import TopicLog
from anabranch.storage.topic_record import TopicRecord

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.subscription import Subscription
    from anabranch.broker.topic import Topic

log = logging.getLogger(__name__)


class SegmentOwner:
    """Implements `controller.ports.Segments` for the segments that this broker owns."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._metadata = broker.metadata
        self._records = Records(broker.metadata)
        # One lock for each segment being changed; gone with the last change.
        self._changing: WeakValueDictionary[TopicName, asyncio.Lock] = WeakValueDictionary()

    # -- what a controller asks for

    async def create(self, topic: TopicName, segment: Segment, subscriptions: Sequence[str]) -> None:
        async with self._changes(topic, segment) as name:
            record = await self._record(topic, segment)
            if not record.may_create(segment.id, segment.range) or segment.legacy_topic:
                raise SegmentRefused(f"{name} is not to be made: the topic's record does not ask for it")
            found = await asyncio.gather(*(self._is_subscribed(topic, record, s) for s in subscriptions))
            wanted = [s for s, is_subscribed in zip(subscriptions, found, strict=True) if is_subscribed]
            if not wanted and not segment.parents:
                await self._make(name, record)
                return
            # A child is opened at once: its parent's producers are about to come.
            opened = await self._made_and_opened(name, record)
            await self._check_current(opened)
            # Together, so that they are written down together.
            await asyncio.gather(
                *(opened.create_subscription(s, "earliest", {}, is_limited=False) for s in wanted)
            )

    async def seal(self, topic: TopicName, segment: Segment) -> None:
        async with self._changes(topic, segment) as name:
            record = await self._record(topic, segment)
            if not record.may_seal(segment.id):
                raise SegmentRefused(f"{name} is not to be sealed: the topic's record has it active")
            stored = named_segment(record, segment.id)
            if stored is None or stored.is_deleting:
                opened = await self._broker.topic(name)
            elif segment.legacy_topic:
                # Made first if it is a partition that was never used.
                path, now_ms = topic_record_path(name), self._broker.now_ms()
                await TopicLog.create(path, self._metadata, now_ms, topic_id=record.layout.topic_id)
                opened = await self._broker.topic(name)
            else:
                # A topic's making may have been cut short before this segment was made. It ends empty then.
                opened = await self._made_and_opened(name, record)
            await opened.terminate()

    async def delete(self, topic: TopicName, segment: Segment) -> None:
        async with self._changes(topic, segment) as name:
            record = await self._records.get(topic)
            if record is not None and not record.may_delete(segment.id):
                generation = await self._stored_generation(name)
                if segment.legacy_topic or generation is None or generation == record.generation:
                    raise SegmentRefused(
                        f"{name} is not to be deleted: the topic's record does not ask for it"
                    )
            if segment.legacy_topic:
                _check_legacy(record, segment)
            await self._delete(name)
            if not name.is_classic:
                await remove_load(self._metadata, name)
            if record is not None and record.is_deleting:
                # The whole topic goes, and a topic of the same name must be free to have another one.
                await self._broker.schemas.delete(topic)

    async def create_subscription(
        self, topic: TopicName, segment: Segment, subscription: str, initial: InitialPosition
    ) -> None:
        async with self._changes(topic, segment) as name:
            record = await self._records.get(topic)
            if record is None and not segment.legacy_topic:
                raise SegmentGone(f"{topic} does not exist")
            if record is not None and not await self._is_subscribed(topic, record, subscription):
                raise SegmentRefused(f"{topic} has no subscription {subscription}, or it is being deleted")
            opened = await self._current(name)
            await opened.create_subscription(subscription, _PLACE[initial], {}, is_limited=False)

    async def delete_subscription(self, topic: TopicName, segment: Segment, subscription: str) -> None:
        async with self._changes(topic, segment) as name:
            record = await self._records.get(topic)
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
                # One that began at the latest message has no cursor on what was sealed before, and may need one now.
                record = await self._records.get(topic)
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
            )

    # -- what clients and operators ask for

    async def last_sequence_id(self, topic: TopicName, segment: Segment, producer: str) -> int:
        """The last id of that producer which is stored here, sealed or not; -1 if there is none."""
        with _translated():
            opened = await self._broker.topic(segment.topic(topic))
            return await opened.settled_sequence_id(producer)

    # -- how

    @contextlib.asynccontextmanager
    async def _changes(self, topic: TopicName, segment: Segment) -> AsyncIterator[TopicName]:
        """The topic that holds the segment's messages, while nobody else changes it."""
        name = segment.topic(topic)
        lock = self._changing.get(name)
        if lock is None:
            lock = self._changing[name] = asyncio.Lock()
        async with lock:
            with _translated():
                try:
                    yield name
                except VersionConflict:
                    # Somebody else has opened it, or a write in doubt was stored after all. What is open here knows an
                    # old record either way, and the next attempt opens it anew.
                    if (opened := self._broker.opened(name)) is not None:
                        await opened.close()
                    raise

    async def _record(self, topic: TopicName, segment: Segment) -> ScalableTopic:
        record = await self._records.get(topic)
        if record is None:
            raise SegmentRefused(f"there is no scalable topic {topic}")
        if segment.legacy_topic:
            _check_legacy(record, segment)
        return record

    async def _is_subscribed(self, topic: TopicName, record: ScalableTopic, subscription: str) -> bool:
        """Whether the topic has the subscription. Its record comes before every cursor and is marked before they go."""
        found = await self._records.subscription(topic, record.generation, subscription)
        return found is not None and not found.is_deleting

    async def _current(self, name: TopicName) -> Topic:
        opened = await self._broker.topic(name)
        await self._check_current(opened)
        return opened

    async def _check_current(self, opened: Topic) -> None:
        """Another broker may have taken the log, and we would answer from the past."""
        if not await opened.log.is_current():
            await opened.close()
            raise SegmentUnavailable(f"{opened.name} was taken by another broker: look it up again")

    # -- storage

    async def _stored_generation(self, name: TopicName) -> int | None:
        """The generation of what is stored under that name; None if nothing is."""
        found = await self._metadata.get(topic_record_path(name))
        if found is None or not found.value:
            return None
        record = TopicRecord.decode(found.value)
        return -1 if record.is_deleting else generation_of(record.properties)

    async def _make(self, name: TopicName, record: ScalableTopic) -> None:
        """Makes the segment's log if there is none of this generation, and clears away one of another."""
        properties, topic_id = {GENERATION: str(record.generation)}, record.layout.topic_id
        while not await self._broker.new_topics.create(name, properties, topic_id):
            found = await self._stored_generation(name)
            if found == record.generation:
                return
            if found is not None:
                await self._delete(name)

    async def _made_and_opened(self, name: TopicName, record: ScalableTopic) -> Topic:
        try:
            opened = await self._broker.topic(name, made_for=record)
            if generation_of(opened.log.topic_record.properties) == record.generation:
                return opened
        except TopicNotFoundError as error:
            log.info("%s is made anew: %s", name, error)
        await self._make(name, record)
        return await self._broker.topic(name, made_for=record)

    async def _delete(self, name: TopicName) -> None:
        await self._broker.discard_topic(name)
        folder = topic_record_path(name).rpartition("/")[0]
        with contextlib.suppress(NotEmpty):
            # Ten thousand deleted topics should not leave ten thousand empty folders.
            if not name.is_classic:
                await self._metadata.delete(folder)


class RoutedSegments:
    """Implements `controller.ports.Segments` for all segments: each call goes to the segment's owner."""

    def __init__(self, owners: Owners, local: Segments, remote: Callable[[Owner], Segments]) -> None:
        self._owners = owners
        self._local = local
        self._remote = remote

    def _at(self, topic: TopicName, segment: Segment) -> Segments:
        name = segment.topic(topic)
        return self._local if self._owners.is_mine(name) else self._remote(self._owners.owner(name))

    async def create(self, topic: TopicName, segment: Segment, subscriptions: Sequence[str]) -> None:
        await self._at(topic, segment).create(topic, segment, subscriptions)

    async def seal(self, topic: TopicName, segment: Segment) -> None:
        await self._at(topic, segment).seal(topic, segment)

    async def delete(self, topic: TopicName, segment: Segment) -> None:
        await self._at(topic, segment).delete(topic, segment)

    async def create_subscription(
        self, topic: TopicName, segment: Segment, subscription: str, initial: InitialPosition
    ) -> None:
        await self._at(topic, segment).create_subscription(topic, segment, subscription, initial)

    async def delete_subscription(self, topic: TopicName, segment: Segment, subscription: str) -> None:
        await self._at(topic, segment).delete_subscription(topic, segment, subscription)

    async def seek(self, topic: TopicName, segment: Segment, subscription: str, timestamp_ms: int) -> None:
        await self._at(topic, segment).seek(topic, segment, subscription, timestamp_ms)

    async def skip_all(self, topic: TopicName, segment: Segment, subscription: str) -> None:
        await self._at(topic, segment).skip_all(topic, segment, subscription)

    async def status(self, topic: TopicName, segment: Segment) -> SegmentStatus:
        return await self._at(topic, segment).status(topic, segment)


def unreachable(owner: Owner) -> Segments:
    """For a broker that knows no way to others."""
    raise SegmentUnavailable(f"broker {owner.service_url} owns that segment, and this one cannot ask it")


_PLACE = {InitialPosition.EARLIEST: "earliest", InitialPosition.LATEST: "latest"}


def _check_legacy(record: ScalableTopic | None, segment: Segment) -> None:
    """A classic topic is touched only on behalf of the scalable topic that it was turned into."""
    stored = None if record is None else named_segment(record, segment.id)
    if stored is None or stored.legacy_topic != segment.legacy_topic:
        raise SegmentRefused(f"{segment.legacy_topic} is not a segment of that topic")


async def _cursor_status(subscription: Subscription) -> CursorStatus:
    is_drained = await subscription.look_whether_drained()
    rates = [consumer.rates for consumer in subscription.consumers]
    return CursorStatus(
        backlog=0 if is_drained else subscription.backlog(),
        is_drained=is_drained,
        consumers=len(rates),
        msg_rate_out=sum(rate[0] for rate in rates),
        msg_throughput_out=sum(rate[1] for rate in rates),
    )


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """A broker's refusals as a controller knows them."""
    try:
        yield
    except (TopicNotFoundError, NotFound) as error:
        raise SegmentGone(str(error)) from error
    except (LogError, VersionConflict) as error:
        # Somebody else has opened the segment meanwhile, or the disk is full.
        raise SegmentUnavailable(str(error)) from error
    except AnabranchError as error:
        if error.retryable and not isinstance(error, SegmentUnavailable):
            raise SegmentUnavailable(str(error)) from error
        raise
