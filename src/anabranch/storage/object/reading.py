"""Reads entries from objects. Data plane.

The index says which number holds an entry, the object's own table where in it; records are checked one by one, so a
wrong index gives an error and never another topic's data. A reader that reads on has the next objects asked for
before it needs them, further ahead the longer it does so.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

from anabranch.storage.core import format as fmt
from anabranch.storage.object.blocks import BlockCache
from anabranch.storage.object.core.objects import CommitTable, LogKeys
from anabranch.storage.object.indexing import read_table
from anabranch.storage.object.medium import MediumMissingError
from anabranch.storage.object.places import EntryPlaces
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.on_disk.reader import check_entry
from anabranch.storage.port import Entry, LogDamagedError, LogMissingError

_TABLES_MAX: Final = 2048
_READERS_MAX: Final = 4096
# How many small objects one read goes through, and how many are asked for ahead.
_OBJECTS_MAX: Final = 64


class IndexedLog(Protocol):
    keys: LogKeys

    @property
    def places(self) -> EntryPlaces: ...


@dataclass(slots=True)
class _Reader:
    """A reader that may come back for what follows."""

    next: int
    blocks: int


class ObjectReader:
    def __init__(self, blocks: BlockCache, policy: ObjectLogPolicy) -> None:
        self._blocks = blocks
        self._policy = policy
        self._tables: OrderedDict[str, CommitTable] = OrderedDict()
        self._readers: OrderedDict[int, _Reader] = OrderedDict()

    async def read(
        self, log: IndexedLog, ledger: int, first: int, end: int, entries_max: int, bytes_max: int
    ) -> list[Entry]:
        """Entries from `first` on; none if no object is known to have the first. The one who calls looks for more
        objects then."""
        end = min(end, first + entries_max)
        found: list[Entry] = []
        size = 0
        self._ask_ahead(log, ledger, first)
        for number in islice(log.places.locate(ledger, first), _OBJECTS_MAX):
            try:
                some, size, is_full = await self._read_object(
                    log, number, ledger, first, end, size, bytes_max
                )
            except (LogDamagedError, LogMissingError, MediumMissingError):
                if found:
                    break
                raise
            found += some
            first += len(some)
            if is_full or first >= end or not some:
                break
        if found:
            self._note_reader(ledger, first)
        return found

    async def _read_object(
        self, log: IndexedLog, number: int, ledger: int, first: int, end: int, size: int, bytes_max: int
    ) -> tuple[list[Entry], int, bool]:
        """Entries, the bytes of all entries so far, and whether that is as many as are wanted."""
        key = log.keys.number(number)
        table = await self._table(key, number)
        found: list[Entry] = []
        for of, run_first, entries, at, length in table.runs:
            if of != ledger or not run_first <= first < min(end, run_first + entries):
                continue
            view = await self._blocks.read(key, at, length)
            is_first = True
            for number_, offset, record in records_in(
                view, ledger, run_first, first, min(end, run_first + entries)
            ):
                entry = check_entry(view, offset, record, ledger, number_)
                if entry is None:
                    if found or size:
                        return found, size, True
                    raise LogDamagedError(
                        ledger,
                        number_,
                        self._next_good(log, view, ledger, number_, offset, record),
                        key,
                        at + offset,
                    )
                size += record - fmt.RECORD_BYTES
                if size > bytes_max and (found or size > record - fmt.RECORD_BYTES):
                    return found, size, True
                is_first = False
                found.append(entry)
                first += 1
            if is_first:
                break
        return found, size, False

    def _next_good(
        self, log: IndexedLog, view: memoryview, ledger: int, bad: int, offset: int, length: int
    ) -> int | None:
        """Where reading can go on: at the next record, if the bad one's length leads to one, or with the next run."""
        record = fmt.read_record(view, offset + length, len(view)) if length else None
        if record is not None and record.is_good and record.ledger == ledger and record.number == bad + 1:
            return bad + 1
        return log.places.next_after(ledger, bad)

    async def _table(self, key: str, number: int) -> CommitTable:
        table = self._tables.get(key)
        if table is None:
            table = await read_table(self._blocks, key, number)
            if table is None:
                raise LogMissingError(f"{key} is not the commit that it was")
            self._tables[key] = table
            if len(self._tables) > _TABLES_MAX:
                self._tables.popitem(last=False)
        else:
            self._tables.move_to_end(key)
        return table

    # -- reading ahead

    def _note_reader(self, ledger: int, following: int) -> None:
        reader = self._readers.get(ledger)
        if reader is None:
            self._readers[ledger] = _Reader(following, 1)
            if len(self._readers) > _READERS_MAX:
                self._readers.popitem(last=False)
        else:
            reader.next = following
            self._readers.move_to_end(ledger)

    def _ask_ahead(self, log: IndexedLog, ledger: int, first: int) -> None:
        reader = self._readers.get(ledger)
        if reader is None:
            return
        if reader.next != first:
            reader.blocks = 1
            return
        reader.blocks = min(2 * reader.blocks, self._policy.ahead_blocks_max)
        self._ask_blocks(log, islice(log.places.locate(ledger, first), _OBJECTS_MAX), reader.blocks)

    def _ask_blocks(self, log: IndexedLog, numbers: Iterable[int], blocks: int) -> None:
        """The next objects, as many as that many blocks' bytes."""
        size = self._policy.block_bytes
        left = blocks * size
        for number in numbers:
            length = log.places.size(number) or size
            for at in range(-(-length // size)):
                self._blocks.ask(log.keys.number(number), at)
                left -= min(size, length - at * size)
                if left <= 0:
                    return


def records_in(
    view: memoryview, ledger: int, run_first: int, first: int, end: int
) -> Iterable[tuple[int, int, int]]:
    """(entry id, offset, length) of the entries [first, end) of a run. A length of 0: no record can be found there."""
    at = 0
    number = run_first
    while number < end:
        if at + fmt.RECORD_BYTES > len(view):
            yield max(number, first), at, 0
            return
        _, length, _, _, _, kind = fmt.RECORD.unpack_from(view, at)
        length += fmt.RECORD_BYTES
        if at + length > len(view) or not fmt.ENTRY <= kind <= fmt.CHECKPOINT:
            yield max(number, first), at, 0
            return
        if kind == fmt.ENTRY:
            if number >= first:
                yield number, at, length
            number += 1
        at += length
