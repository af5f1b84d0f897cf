"""Who owns which entry bucket of the segments that this broker serves, read from the consumers' stored sessions.

The topic's controller decides and stores it; the owner of a segment only reads. The sessions of a subscription are read
once for each change, for all its segments here. A bucket for which no consumer is named, or several are, has no owner:
its entries are withheld until the records agree.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final
from weakref import WeakValueDictionary

from anabranch.broker.catalog.segment_records import segment_by_topic
from anabranch.broker.dispatch.entry_buckets import OwnerNames
from anabranch.broker.dispatch.kept import KeptBudget
from anabranch.broker.errors import TopicNotFoundError
from anabranch.controller.feed import TopicFeed
from anabranch.controller.records import Records
from anabranch.errors import AnabranchError
from anabranch.model.buckets import Splits
from anabranch.model.names import TopicName
from anabranch.model.scalable import ConsumerRecord, SubscriptionKind
from anabranch.model.segment_consumers import segment_consumer
from anabranch.model.segments import SegmentId, segment_of

log = logging.getLogger(__name__)

_RETRY_S: Final = 1.0


def owners_of(records: Iterable[ConsumerRecord], segment: SegmentId, buckets: int) -> OwnerNames:
    """The name that each bucket's owner has on that segment, None where the records name none or several."""
    found: list[str | None] = [None] * buckets
    named: set[int] = set()
    for record in records:
        if record.kind is not SubscriptionKind.STREAM:
            continue
        numbers = record.shares.get(segment, ())
        if segment in record.assigned and segment not in record.shares:
            numbers = tuple(range(buckets))
        for number in set(numbers):
            if 0 <= number < buckets:
                found[number] = None if number in named else segment_consumer(record.name, segment)
                named.add(number)
    return tuple(found)


class SegmentOwnership:
    """Implements `BucketOwnership` for one segment in one subscription."""

    def __init__(
        self, sessions: _Sessions, segment: SegmentId, splits: Splits, kept_budget: KeptBudget
    ) -> None:
        self._sessions = sessions
        self._segment = segment
        self.splits = splits
        self.kept_budget = kept_budget
        self.reassignments = 0
        # The last consumer that each bucket was given to.
        self._last: list[str | None] = [None] * (len(splits) + 1)

    def follow(self, tell: Callable[[OwnerNames], None]) -> Callable[[], None]:
        def read(records: Iterable[ConsumerRecord]) -> None:
            names = owners_of(records, self._segment, len(self._last))
            for number, name in enumerate(names):
                last = self._last[number]
                self.reassignments += name is not None and last is not None and name != last
                self._last[number] = name or last
            tell(names)

        return self._sessions.follow(read)


class _Sessions:
    """The stored consumers of one subscription, read again after each change while they are followed."""

    def __init__(self, records: Records, feed: TopicFeed, topic: TopicName, subscription: str) -> None:
        self._stored = records
        self._feed = feed
        self._topic = topic
        self._subscription = subscription
        self._followers: list[Callable[[Iterable[ConsumerRecord]], None]] = []
        self._known: tuple[ConsumerRecord, ...] | None = None
        self._stop: Callable[[], None] | None = None
        self._is_stale = False
        self._reading: asyncio.Task[None] | None = None

    def follow(self, tell: Callable[[Iterable[ConsumerRecord]], None]) -> Callable[[], None]:
        self._followers.append(tell)
        if self._stop is None:
            self._stop = self._feed.listen_to_consumers(self._topic, self._subscription, self._changed)
            self._changed()
        elif self._known is not None:
            tell(self._known)

        def stop() -> None:
            if tell in self._followers:
                self._followers.remove(tell)
            if not self._followers and self._stop is not None:
                self._stop()
                self._stop = self._known = None

        return stop

    def _changed(self) -> None:
        self._is_stale = True
        if self._reading is None:
            # Ends by itself once there is no follower; this reference keeps it from being garbage-collected.
            self._reading = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        try:
            while self._is_stale and self._followers:
                self._is_stale = False
                try:
                    found = await self._stored.consumers(self._topic, self._subscription)
                except AnabranchError as error:
                    log.warning(
                        "%s, subscription %s: reading who owns which entry bucket failed, trying again: %s",
                        self._topic,
                        self._subscription,
                        error,
                    )
                    self._is_stale = True
                    await asyncio.sleep(_RETRY_S)
                    continue
                # In the order of their names, whatever the store's.
                self._known = tuple(sorted((record for record, _ in found), key=lambda one: one.name))
                for tell in list(self._followers):
                    tell(self._known)
        finally:
            self._reading = None


class BucketOwners:
    def __init__(self, records: Records, feed: TopicFeed) -> None:
        self._records = records
        self._feed = feed
        self._kept_budget = KeptBudget()
        # Kept by the segments' ownerships.
        self._sessions: WeakValueDictionary[tuple[TopicName, str], _Sessions] = WeakValueDictionary()

    async def of(self, name: TopicName, subscription: str) -> SegmentOwnership:
        """Who owns the buckets of that segment's topic. TopicNotFoundError if it is no segment."""
        topic = segment_of(name)[0]
        record = await self._records.get(topic, fresh=True)
        segment = None if record is None else segment_by_topic(record, name)
        if segment is None:
            raise TopicNotFoundError(f"{name} is not a segment of any topic")
        sessions = self._sessions.get((topic, subscription))
        if sessions is None:
            sessions = _Sessions(self._records, self._feed, topic, subscription)
            self._sessions[topic, subscription] = sessions
        return SegmentOwnership(sessions, segment.id, segment.bucket_splits, self._kept_budget)
