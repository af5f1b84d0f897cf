"""Data plane. A topic's log as compacted readers see it: the compacted ledger up to its horizon, then the log.

Implements `LogReader`. Ids, order and counts are those of the remaining entries, so that cursors, seeks and backlogs
need not know of compaction. When a compaction ends, every reader continues at the same position in its result.
"""

from __future__ import annotations

import asyncio

from anabranch.broker.compaction.index import CompactedIndex
from anabranch.broker.ports import EntryBatch
from anabranch.model.position import BEFORE_ALL, Position
from anabranch.storage.core.topic_record import CompactedLedger
from anabranch.storage.port import Entry, LogError
from anabranch.storage.topic.publish_times import first_published_at
from anabranch.storage.topic.topic_log import TopicLog

_INDEX_BYTES = 4 << 20

# A compacted ledger, and where in the log its entries came from.
Left = tuple[CompactedLedger, CompactedIndex]


async def load_index(log: TopicLog, compacted: CompactedLedger) -> CompactedIndex:
    index = CompactedIndex()
    at = compacted.entries
    while at < compacted.end:
        parts = await log.read_compacted(compacted, at, compacted.end, compacted.end - at, _INDEX_BYTES)
        for _, _, data in parts:
            index.add_part(data)
        at += len(parts)
    if len(index) != compacted.entries:
        raise LogError(
            f"compacted ledger {compacted.id} has {compacted.entries} entries, and its index {len(index)}"
        )
    return index


class CompactedLog:
    """`left` is the present compacted ledger, which changes with each compaction; without one this is the log
    itself."""

    __slots__ = ("_loading", "_log", "left")

    def __init__(self, log: TopicLog, left: Left | None = None) -> None:
        self._log = log
        self.left = left
        self._loading = asyncio.Lock()

    async def open(self) -> CompactedLog:
        """Reads the index of the compacted ledger that the topic's record names, if it is not in memory."""
        async with self._loading:
            while (named := self._log.topic_record.compacted) is not None:
                if self.left is not None and self.left[0].id == named.id:
                    break
                await self._load(named)
        return self

    async def _load(self, named: CompactedLedger) -> None:
        """Reads the index of that ledger, unless a compaction has replaced it meanwhile."""
        try:
            index = await load_index(self._log, named)
        except LogError:
            if self._log.topic_record.compacted is named:
                raise
            return
        if self._log.topic_record.compacted is named:
            self.left = named, index

    # -- positions

    @property
    def _upto(self) -> Position:
        left = self.left
        return BEFORE_ALL if left is None else left[0].upto

    @property
    def first(self) -> Position:
        return self.normalise(BEFORE_ALL)

    @property
    def end(self) -> Position:
        return self._log.end

    @property
    def last(self) -> Position:
        return self.before(self.end)

    @property
    def is_hiding(self) -> bool:
        return self._log.is_hiding

    @property
    def size_bytes(self) -> int:
        return self._log.size_bytes

    def normalise(self, at: Position) -> Position:
        left = self.left
        if left is not None and at < left[0].upto:
            number = left[1].number(at)
            if number < len(left[1]):
                return left[1].place(number)
            at = left[0].upto
        return self._log.normalise(at)

    def after(self, at: Position) -> Position:
        return self.normalise((at[0], at[1] + 1))

    def before(self, at: Position) -> Position:
        left = self.left
        if left is None:
            return self._log.before(at)
        if at > left[0].upto:
            found = self._log.before(at)
            if found >= left[0].upto:
                return found
        number = left[1].number(min(at, left[0].upto))
        return left[1].place(number - 1) if number else BEFORE_ALL

    def count(self, start: Position, stop: Position) -> int:
        left = self.left
        if left is None:
            return self._log.count(start, stop)
        upto = left[0].upto
        below = left[1].number(min(stop, upto)) - left[1].number(min(start, upto))
        return max(0, below) + self._log.count(max(start, upto), stop)

    def messages(self, start: Position, stop: Position) -> int:
        left = self.left
        if left is None:
            return self._log.messages(start, stop)
        upto = left[0].upto
        # Of a batch compaction leaves the latest messages of its keys, how many is not kept: it counts as one.
        below = left[1].number(min(stop, upto)) - left[1].number(min(start, upto))
        return max(0, below) + self._log.messages(max(start, upto), stop)

    def position_at(self, index: int) -> Position:
        left = self.left
        if left is None:
            return self._log.position_at(index)
        if index < len(left[1]):
            return left[1].place(index)
        log, upto = self._log, left[0].upto
        return log.position_at(log.count(log.first, upto) + index - len(left[1]))

    # -- entries

    def read_cached(self, at: Position, entries_max: int, bytes_max: int) -> EntryBatch | None:
        at = self.normalise(at)
        return None if at < self._upto else self._log.read_cached(at, entries_max, bytes_max)

    async def read(self, at: Position, entries_max: int, bytes_max: int) -> EntryBatch:
        while True:
            first = self.normalise(at)
            left = self.left
            if left is None or first >= left[0].upto:
                return await self._log.read(first, entries_max, bytes_max)
            try:
                return first[0], await self._read_left(left, first, entries_max, bytes_max)
            except LogError:
                # A compaction that has ended meanwhile deletes the previous compacted ledger.
                if self.left is left:
                    raise

    async def _read_left(self, left: Left, at: Position, entries_max: int, bytes_max: int) -> list[Entry]:
        compacted, index = left
        first = index.number(at)
        # Entries of one ledger at a time, and none of the tables behind them.
        end = index.run_end(first)
        found = await self._log.read_compacted(
            compacted, first, end, min(entries_max, end - first), bytes_max
        )
        return [(index.place(number)[1], messages, data) for number, messages, data in found]

    async def find_by_publish_time(self, publish_time_ms: int) -> Position:
        left = self.left
        if left is not None:
            index = left[1]

            async def read(number: int, entries_max: int, bytes_max: int) -> list[Entry]:
                return (await self.read(index.place(number), entries_max, bytes_max))[1]

            found = await first_published_at(publish_time_ms, len(index), read)
            if found < len(index):
                return index.place(found)
        return self.normalise(max(self._upto, await self._log.find_by_publish_time(publish_time_ms)))
