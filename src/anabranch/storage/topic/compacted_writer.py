"""Writes the ledger that keyed compaction makes: in bursts, each of which is confirmed before the next.

It shares the write-ahead log with everything else the broker writes. One burst at a time bounds both the memory that a
compaction takes here and how long a publish may wait behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from anabranch.model.position import LedgerId
from anabranch.storage.port import Buffer, LogError, LogStore


class CompactedWriter:
    """Writes one ledger, whose id was never used before. Implements `LedgerListener`."""

    def __init__(self, store: LogStore, ledger: LedgerId, namespace: str, record: str = "") -> None:
        self.ledger = ledger
        self._store = store
        # The record names it once all of it is written.
        self._writer = store.open_ledger(ledger, self, namespace, record, is_named=False)
        self._lost: LogError | None = None
        self._waiting: asyncio.Future[None] | None = None
        self.bytes = 0

    @property
    def entries(self) -> int:
        return self._writer.next_entry

    async def write(self, entries: Sequence[Buffer], messages: Sequence[int]) -> None:
        """Returns once the entries are confirmed. After a LogError nothing more can be written."""
        if self._lost is not None:
            raise self._lost
        if not entries:
            return
        end = self._writer.append_many(entries, messages) + len(entries)
        self.bytes += sum(map(len, entries))
        while self._writer.entries_end < end:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting

    def confirmed(self, entries_end: int, state_end: int) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def lost(self, error: LogError) -> None:
        self._lost = error
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    def close(self) -> None:
        if self._lost is None:
            self._writer.close()

    def give_up(self) -> None:
        """Discards the ledger: the log may delete it."""
        self.close()
        self._store.delete(self.ledger, self._store.incarnation)
