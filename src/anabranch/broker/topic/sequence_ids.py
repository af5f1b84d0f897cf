"""Each producer's last sequence id, known also while deduplication is off, so that it can be turned on at any moment.

While deduplication is on, the table in `dedup.py` has all ids. While it is off, an attached producer carries its own
last id, and a producer with a given name leaves its id here when it detaches. Ids published between the last stored
state and a crash are in the log only: those entries are read at once where deduplication is on; otherwise when it is
turned on, or just before the log is trimmed of them. Before the log is trimmed of entries newer than the stored state,
the state is stored.

The ids from times without deduplication are kept apart from the table: for them the last id counts and not the highest,
and no producer gets them before deduplication is on. Otherwise the messages of a producer that starts again from 0
every day would be dropped.

Where the topic has several entry buckets, ids are kept by lane (`bucket_dedup.py`); elsewhere all entries are in one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from anabranch.broker.runtime.background import Background
from anabranch.broker.state.bucket_dedup import BucketDeduplication, StoredLanes, noted
from anabranch.broker.state.dedup import PRODUCERS_MAX, WHOLE, Deduplication, LaneIds, last_id
from anabranch.broker.topic.confirmations import Confirmations
from anabranch.broker.topic.phase import TopicLife
from anabranch.broker.topic.producer import AttachedProducer
from anabranch.broker.topic.publishing import Publishing
from anabranch.broker.topic.replay import entries_between
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.storage.topic.topic_log import TopicLog
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.frames import SEQUENCE_ID_MAX, Buffer

# Their keys in a topic's stored state.
LAST_IDS = "last_sequence_ids"
UNREAD_FROM = "last_sequence_ids_unread_from"
BY_BUCKET = "sequence_ids_by_bucket"


class SequenceIds:
    """`stored` is the topic's stored extra state, from which the constructor removes its own items."""

    __slots__ = (
        "_background",
        "_confirmations",
        "_departed",
        "_is_wanted",
        "_lanes",
        "_last",
        "_life",
        "_log",
        "_name",
        "_producers",
        "_publishing",
        "_reading",
        "_stored_end",
        "_table",
        "_unread_end",
        "unread_from",
    )

    def __init__(
        self,
        name: TopicName,
        log: TopicLog,
        publishing: Publishing,
        producers: Mapping[str, AttachedProducer],
        life: TopicLife,
        confirmations: Confirmations,
        background: Background,
        stored: dict[str, Any],
        as_of: Position,
        unjudged: Mapping[str, LaneIds] | None = None,
    ) -> None:
        """`unjudged` are the ids of a topic with several entry buckets, from its stored state."""
        self._name = name
        self._log = log
        self._publishing = publishing
        self._producers = producers
        self._life = life
        self._confirmations = confirmations
        self._background = background
        self._table: Deduplication = publishing.dedup
        # The same where the topic has several entry buckets.
        self._lanes = self._table if isinstance(self._table, BucketDeduplication) else None
        self._last: dict[str, LaneIds] = {
            name: {WHOLE: min(last, SEQUENCE_ID_MAX)} for name, last in stored.pop(LAST_IDS, {}).items()
        }
        self._last |= {name: dict(ids) for name, ids in (unjudged or {}).items()}
        # Entries from here up to the end of the log at opening are not accounted for. None: all are.
        ledger, entry = stored.pop(UNREAD_FROM, as_of)
        self.unread_from: Position | None = (ledger, entry)
        self._unread_end: Position = as_of
        # The stored state has the ids of all entries before this position.
        self._stored_end: Position = as_of
        # Producers whose last ids arrived since: their ids in entries read later are older.
        self._departed: set[str] = set()
        self._is_wanted = False
        self._reading = asyncio.Lock()

    @property
    def were_judged(self) -> bool:
        """Whether the stored state says that the entries behind it were judged."""
        return self._lanes is not None and self._lanes.are_judged

    def opened(self, *, is_read: bool) -> None:
        """With `is_read` the log has been read from `unread_from` on; otherwise reading it is left for later, if there
        is anything to read."""
        log = self._log
        self._unread_end = log.end
        if is_read or (self.unread_from is not None and log.normalise(self.unread_from) >= log.end):
            self.unread_from = None

    def replay(self, metadata: pb.MessageMetadata, entry: Buffer) -> None:
        """Learns from an entry read back from the log."""
        if self._publishing.is_deduplicating or self._life.is_sealed:
            self._table.replay(metadata, entry)
        elif (last := last_id(metadata)) is not None:
            name, lane = metadata.producer_name, self._table.lane_of(metadata)
            ids = self._last.get(name, {})
            self._keep(name, noted(ids, max(ids.values(), default=-1), lane, last))

    def want(self, is_wanted: bool) -> None:
        """Turns deduplication on or off. If the log must be read first, deduplication begins after that."""
        if is_wanted is self._is_wanted:
            return
        self._is_wanted = is_wanted
        if not is_wanted and self._publishing.is_deduplicating:
            for producer in self._producers.values():
                producer.last_pushed = self._table.pushed.get(producer.name, -1)
                producer.last_ids = self._table.pushed_by(producer.name)
            self._publishing.deduplicate(False)
            self._store_what_is_judged()
        elif not is_wanted:
            return  # It has not begun yet.
        elif self.unread_from is None or self._life.is_opening:
            self._begin()
        else:
            self._background.run(self._read_and_begin())

    async def _read_and_begin(self) -> None:
        await self.read_below(self._unread_end)
        if self._is_wanted and not self._life.is_closed:
            self._begin()

    async def keep_below(self, end: Position) -> None:
        """Stores the ids that only the entries below `end` have, before the log is trimmed up to there."""
        await self.read_below(end)
        if end <= self._stored_end or not (self._table.pushed or self.image()):
            return
        stored_end = self._log.appended_end
        await self._confirmations.stored_in_full()
        self._stored_end = stored_end

    async def read_below(self, end: Position) -> None:
        """Learns the ids of entries below `end` that are not accounted for: trimmed entries cannot be read later."""
        async with self._reading:
            if self.unread_from is None or end <= self.unread_from:
                return
            end = min(end, self._unread_end)
            async for _, _, metadata, entry in entries_between(self._name, self._log, self.unread_from, end):
                if metadata.producer_name not in self._departed:
                    self.replay(metadata, entry)
            self.unread_from = end if end < self._unread_end else None
            if self.unread_from is None:
                self._departed.clear()

    def _begin(self) -> None:
        if self._publishing.is_deduplicating:
            # Deduplication was turned off and on again while the log was read: the other call has learned newer ids.
            return
        live = {p.name: ids for p in self._producers.values() if (ids := self._ids_of(p))}
        learned = self._last | live
        for name, ids in learned.items():
            self._table.learn(name, ids)
        self._last.clear()
        self._departed.clear()
        self._publishing.deduplicate(True)

        def confirmed() -> None:
            for name, ids in learned.items():
                for lane, last in ids.items():
                    self._table.confirm(name, last, lane)

        if self._life.is_opening:
            confirmed()
        else:
            # This includes producers that have left: their last entries may not be confirmed yet.
            self._confirmations.when_confirmed(confirmed)
            self._store_what_is_judged()

    def _store_what_is_judged(self) -> None:
        """After a crash, entries that were judged are read otherwise than others: the state between them says which
        are."""
        if self._lanes is not None and not self._life.is_opening:
            self._confirmations.stored_in_full()

    def departed(self, producer: AttachedProducer) -> None:
        is_off = not self._publishing.is_deduplicating
        if is_off and producer.is_name_given and (ids := self._ids_of(producer)):
            self._keep(producer.name, ids)
            if self.unread_from is not None:
                self._departed.add(producer.name)

    def _ids_of(self, producer: AttachedProducer) -> LaneIds:
        """The last ids of entries that were not judged; empty if there are none."""
        if self._lanes is not None:
            return dict(producer.last_ids or {})
        return {WHOLE: producer.last_pushed} if producer.last_pushed >= 0 else {}

    def _keep(self, name: str, ids: LaneIds) -> None:
        self._last.pop(name, None)
        self._last[name] = ids
        if len(self._last) > PRODUCERS_MAX:
            oldest = next(iter(self._last))
            del self._last[oldest]
            self._departed.discard(oldest)

    def image(self) -> dict[str, Any]:
        """The items stored with the topic's state; none for most topics."""
        ids = dict(self._last)
        if not self._publishing.is_deduplicating:
            ids |= {
                p.name: last
                for p in self._producers.values()
                if p.is_name_given and (last := self._ids_of(p))
            }
        image: dict[str, Any] = {}
        if self._lanes is not None:
            are_judged = self._publishing.is_deduplicating
            lanes = StoredLanes(are_judged, dict(self._lanes.lanes_image()), ids)
            if lanes != StoredLanes():
                image[BY_BUCKET] = lanes.image(self._log.appended_end)
        elif ids:
            image[LAST_IDS] = {name: last[WHOLE] for name, last in ids.items()}
        if self.unread_from is not None:
            image[UNREAD_FROM] = self.unread_from
        return image
