"""Says in which objects a ledger's entries lie, for readers that bypass the broker.

The index names the objects, and the table at the beginning of each says where in it the ledger's records are. A plan
has whole runs of a commit, as the table has them: which record is where within a run is left to the reader, which reads
all of it anyway. So a plan costs a small request for each object whose table is not known, and none of the entries.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from itertools import islice
from typing import Final

from anabranch.storage.object.core.objects import CommitTable, decode_table, is_fence, table_bytes
from anabranch.storage.object.medium import ObjectMedium
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.object.reading import IndexedLog
from anabranch.storage.object.requests import asked
from anabranch.storage.port import LogError, LogMissingError, ObjectRun

# How many objects a plan names: at 30 ms a request half a second, and no more than a reader gets through in a while.
OBJECTS_MAX: Final = 256
_READS: Final = 16
# Most tables are not larger.
_HEAD_BYTES: Final = 16 << 10
# Rows of tables that are kept: some 20 MB.
_ROWS_MAX: Final = 100_000


class ObjectPlanner:
    def __init__(self, medium: ObjectMedium, policy: ObjectLogPolicy) -> None:
        self._medium = medium
        self._policy = policy
        # The tables of the log that is written here, and of which nothing is deleted but by this process.
        self._tables: OrderedDict[str, CommitTable] = OrderedDict()
        self._rows = 0

    async def runs(
        self, log: IndexedLog, ledger: int, first: int, end: int, *, is_own: bool
    ) -> list[ObjectRun]:
        """Where the entries from `first` on lie, as far as a plan goes; none if no object is known to have the first.
        It goes up to an object that is damaged, gone or cannot be asked for; an error is raised if that is the first.

        Of the log of another, every object is asked for, so that one which is gone is noticed here:
        MediumMissingError. `is_own`: its tables may be kept."""
        numbers = list(islice(log.places.locate(ledger, first, end), OBJECTS_MAX))
        found: list[ObjectRun] = []
        for at in range(0, len(numbers), _READS):
            some = numbers[at : at + _READS]
            tables = await asyncio.gather(
                *(self._table(log.keys.number(number), number, is_own=is_own) for number in some),
                return_exceptions=True,
            )
            for number, table in zip(some, tables, strict=True):
                if isinstance(table, BaseException):
                    if found and isinstance(table, LogError):
                        return found
                    raise table
                before = first
                for of, run_first, entries, offset, length in table.runs:
                    stop = min(end, run_first + entries)
                    if of == ledger and run_first <= first < stop:
                        found.append(ObjectRun(log.keys.number(number), first, stop, offset, length))
                        first = stop
                if first == before:
                    return found
        return found

    async def _table(self, key: str, number: int, *, is_own: bool) -> CommitTable:
        known = self._tables.get(key)
        if known is not None:
            self._tables.move_to_end(key)
            return known
        table = await self._read(key, number)
        if is_own and key not in self._tables:
            self._tables[key] = table
            self._rows += len(table.runs)
            while self._rows > _ROWS_MAX and len(self._tables) > 1:
                _, gone = self._tables.popitem(last=False)
                self._rows -= len(gone.runs)
        return table

    async def _read(self, key: str, number: int) -> CommitTable:
        head = memoryview(await asked(lambda: self._medium.get(key, 0, _HEAD_BYTES), self._policy))
        size = table_bytes(head)
        if size > len(head) == _HEAD_BYTES:
            rest = await asked(lambda: self._medium.get(key, _HEAD_BYTES, size - _HEAD_BYTES), self._policy)
            head = memoryview(b"".join((head, rest)))
        table = None if is_fence(head) else decode_table(head[:size], number)
        if table is None:
            raise LogMissingError(f"{key} is not the commit that it was")
        return table
