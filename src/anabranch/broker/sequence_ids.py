"""Each producer's last sequence id, known also while nobody deduplicates, so that doing so can begin at any moment.

While deduplication is on, the table in `dedup.py` has it all. While it is off, a live producer carries its own last id,
and a producer with a name of its own leaves it here when it goes. What was published between the last stored state and
a crash is in the log only: it is read at once where deduplication is on, else when it is turned on, or just before the
log is trimmed of it. And before it is trimmed of anything that the stored state does not have yet, that is stored.

The ids of the time without it are kept apart from the table: there the last id counts and not the highest, and nobody
is told of them before deduplication is on. Whoever starts again from 0 every day would be silenced otherwise.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from anabranch.broker.dedup import PRODUCERS_MAX, Deduplication, last_id
from anabranch.model.position import Position
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.frames import SEQUENCE_ID_MAX, Buffer

if TYPE_CHECKING:
    from anabranch.broker.producer import Producer
    from anabranch.broker.topic import Topic

# Where they are in a topic's stored state.
LAST_IDS = "last_sequence_ids"
UNREAD_FROM = "last_sequence_ids_unread_from"


class SequenceIds:
    """`stored` is the topic's stored extra state, from which this takes what it has put there."""

    def __init__(self, topic: Topic, table: Deduplication, stored: dict[str, Any], as_of: Position) -> None:
        self._topic = topic
        self._table = table
        self._last: dict[str, int] = {
            name: min(last, SEQUENCE_ID_MAX) for name, last in stored.pop(LAST_IDS, {}).items()
        }
        # Entries from here on, up to where the log ended when it was opened, are not accounted for. None: all are.
        ledger, entry = stored.pop(UNREAD_FROM, as_of)
        self.unread_from: Position | None = (ledger, entry)
        self._unread_end: Position = as_of
        # Of the entries before it the stored state has all ids.
        self._stored_end: Position = as_of
        # Those whose last ids have come in since: what is read later is older.
        self._departed: set[str] = set()
        self._is_wanted = False
        self._reading = asyncio.Lock()

    def opened(self, *, is_read: bool) -> None:
        """With `is_read` the log was read from `unread_from` on; else that is left for later, if there is anything."""
        log = self._topic.log
        self._unread_end = log.end
        if is_read or (self.unread_from is not None and log.normalise(self.unread_from) >= log.end):
            self.unread_from = None

    def replay(self, metadata: pb.MessageMetadata, entry: Buffer) -> None:
        """Learns from an entry read back from the log."""
        if self._topic.publishing.is_deduplicating or self._topic.is_sealed:
            self._table.replay(metadata, entry)
        elif (last := last_id(metadata)) is not None:
            self._keep(metadata.producer_name, last)

    def want(self, is_wanted: bool) -> None:
        """Deduplication is turned on or off. Where the log must be read first, it begins once that is done."""
        if is_wanted is self._is_wanted:
            return
        self._is_wanted = is_wanted
        if not is_wanted:
            for producer in self._topic.producers.values():
                producer.last_pushed = self._table.pushed.get(producer.name, -1)
            self._topic.publishing.deduplicate(False)
        elif self.unread_from is None or not self._topic.is_open:
            self._begin()
        else:
            self._topic.broker.background.run(self._read_and_begin())

    async def _read_and_begin(self) -> None:
        await self.read_below(self._unread_end)
        if self._is_wanted and not self._topic.is_closed:
            self._begin()

    async def keep_below(self, end: Position) -> None:
        """The log is about to be trimmed up to there: what only its entries tell is stored otherwise."""
        await self.read_below(end)
        if end <= self._stored_end or not (self._table.pushed or self.image()):
            return
        stored_end = self._topic.log.appended_end
        await self._topic.stored_in_full()
        self._stored_end = stored_end

    async def read_below(self, end: Position) -> None:
        """Learns what is not accounted for and lies below that place: what is trimmed cannot be read later."""
        async with self._reading:
            if self.unread_from is None or end <= self.unread_from:
                return
            end = min(end, self._unread_end)
            async for _, _, metadata, entry in self._topic.entries(self.unread_from, end):
                if metadata.producer_name not in self._departed:
                    self.replay(metadata, entry)
            self.unread_from = end if end < self._unread_end else None
            if self.unread_from is None:
                self._departed.clear()

    def _begin(self) -> None:
        if self._topic.publishing.is_deduplicating:
            # Turned off and on again while the log was read: what the first one learned is newer.
            return
        live = {p.name: p.last_pushed for p in self._topic.producers.values() if p.last_pushed >= 0}
        learned = self._last | live
        for name, last in learned.items():
            self._table.learn(name, last)
        self._last.clear()
        self._departed.clear()
        self._topic.publishing.deduplicate(True)

        def confirmed() -> None:
            for name, last in learned.items():
                self._table.confirm(name, last)

        if self._topic.is_open:
            # Also of those that have left: what they sent last may be on its way still.
            self._topic.when_confirmed(confirmed)
        else:
            confirmed()

    def departed(self, producer: Producer) -> None:
        is_off = not self._topic.publishing.is_deduplicating
        if is_off and producer.is_name_given and producer.last_pushed >= 0:
            self._keep(producer.name, producer.last_pushed)
            if self.unread_from is not None:
                self._departed.add(producer.name)

    def _keep(self, name: str, last: int) -> None:
        self._last.pop(name, None)
        self._last[name] = last
        if len(self._last) > PRODUCERS_MAX:
            oldest = next(iter(self._last))
            del self._last[oldest]
            self._departed.discard(oldest)

    def image(self) -> dict[str, Any]:
        """What is stored with the topic's state; nothing for most topics."""
        ids = dict(self._last)
        if not self._topic.publishing.is_deduplicating:
            ids |= {
                p.name: p.last_pushed
                for p in self._topic.producers.values()
                if p.is_name_given and p.last_pushed >= 0
            }
        image: dict[str, Any] = {LAST_IDS: ids} if ids else {}
        if self.unread_from is not None:
            image[UNREAD_FROM] = self.unread_from
        return image
