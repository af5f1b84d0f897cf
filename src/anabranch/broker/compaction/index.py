"""The origins of a compacted ledger's entries: their positions in the topic's log, in order. Pure.

The entries of a compacted ledger are numbered from 0; clients know them by their ids in the log. For each ledger of the
log there is a table of the remaining entries as 32-bit numbers, so an entry costs four bytes of memory while the topic
is read compacted. The tables are stored behind the entries, in the same ledger.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final

from anabranch.errors import AnabranchError
from anabranch.model.position import BEFORE_ALL, Position

_HEAD: Final = struct.Struct("<qI")
# The most entries in one stored table; a ledger with more entries takes several.
_PART_ENTRIES: Final = 200_000


class BadIndex(AnabranchError):
    """The data is not the index of a compacted ledger."""


class CompactedIndex:
    def __init__(self) -> None:
        self._ledgers: list[int] = []
        self._tables: list[array[int]] = []
        # The number of entries before each table.
        self._before: list[int] = []
        self._size = 0

    # -- building

    def add(self, at: Position) -> None:
        """Adds a position. Positions must rise."""
        ledger, entry = at
        if not self._ledgers or self._ledgers[-1] != ledger:
            self._ledgers.append(ledger)
            self._tables.append(array("I"))
            self._before.append(self._size)
        self._tables[-1].append(entry)
        self._size += 1

    def parts(self) -> Iterable[bytes]:
        """The stored form: a ledger, a count, the numbers, little-endian."""
        for ledger, table in zip(self._ledgers, self._tables, strict=True):
            for first in range(0, len(table), _PART_ENTRIES):
                some = table[first : first + _PART_ENTRIES]
                yield _HEAD.pack(ledger, len(some)) + struct.pack(f"<{len(some)}I", *some)

    def add_part(self, data: bytes | memoryview) -> None:
        try:
            ledger, count = _HEAD.unpack_from(data)
            entries = struct.unpack_from(f"<{count}I", data, _HEAD.size)
        except struct.error as error:
            raise BadIndex(f"a compacted ledger's index cannot be read: {error}") from error
        if not self._ledgers or self._ledgers[-1] != ledger:
            self._ledgers.append(ledger)
            self._tables.append(array("I"))
            self._before.append(self._size)
        self._tables[-1].extend(entries)
        self._size += count

    # -- queries

    def __len__(self) -> int:
        return self._size

    def place(self, number: int) -> Position:
        """The position of the number-th entry in the log."""
        table = bisect_right(self._before, number) - 1
        return self._ledgers[table], self._tables[table][number - self._before[table]]

    def number(self, at: Position) -> int:
        """How many entries lie below that position: the number of the first entry at or after it."""
        table = bisect_left(self._ledgers, at[0])
        if table == len(self._ledgers):
            return self._size
        if self._ledgers[table] != at[0]:
            return self._before[table]
        return self._before[table] + bisect_left(self._tables[table], max(0, at[1]))

    def run_end(self, number: int) -> int:
        """One past the last entry of the same ledger as the number-th."""
        table = bisect_right(self._before, number) - 1
        return self._before[table] + len(self._tables[table])

    @property
    def first(self) -> Position:
        return self.place(0) if self._size else BEFORE_ALL

    @property
    def last(self) -> Position:
        return self.place(self._size - 1) if self._size else BEFORE_ALL
