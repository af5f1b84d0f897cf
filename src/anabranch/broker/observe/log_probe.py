"""Shows that what is published here is stored and can be read: one small entry, written, confirmed and read back.

The entry goes into a ledger of its own that no topic has, and is dead as soon as it was read. Callers that come at the
same time, or soon after, share one entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from anabranch.errors import AnabranchError
from anabranch.model.names import SYSTEM_NAMESPACE
from anabranch.storage.port import NO_RECORD, LedgerWriter, LogError, LogStore
from anabranch.storage.topic.ledger_ids import LedgerIds

# A disk that takes longer than this to store one entry does not serve publishers.
STORED_MAX_S: Final = 5.0
# For so long the last outcome is told again.
FRESH_S: Final = 1.0


class ProbeFailed(AnabranchError):
    """An entry was not stored, or not read back."""


class LogProbe:
    """Implements `LedgerListener` for its ledger."""

    def __init__(
        self,
        store: LogStore,
        ids: LedgerIds,
        clock: Callable[[], float],
        *,
        stored_max_s: float = STORED_MAX_S,
    ) -> None:
        self._store = store
        self._ids = ids
        self._clock = clock
        self._stored_max_s = stored_max_s
        self._writer: LedgerWriter | None = None
        self._confirmed = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._looked = float("-inf")

    async def look(self) -> None:
        """ProbeFailed if an entry cannot be stored and read within some seconds."""
        if self._looking is None or (self._looking.done() and self._clock() - self._looked >= FRESH_S):
            # Awaited here, and by `close`.
            self._looking = asyncio.create_task(self._look())
        await asyncio.shield(self._looking)

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(self._stored_max_s):
                await self._write_and_read()
        except TimeoutError:
            raise ProbeFailed(f"an entry was not stored within {self._stored_max_s:g} seconds") from None
        except LogError as error:
            raise ProbeFailed(f"an entry was not stored: {error}") from error
        finally:
            self._looked = self._clock()

    async def _write_and_read(self) -> None:
        if self._writer is None:
            ledger = await self._ids.next(0)
            self._writer = self._store.open_ledger(
                ledger, self, str(SYSTEM_NAMESPACE), NO_RECORD, is_named=False
            )
        writer = self._writer
        number = writer.append(b"health %d" % writer.next_entry, 1)
        while writer.entries_end <= number:
            if self._writer is not writer:
                raise ProbeFailed("the ledger of health checks was lost while an entry was being stored")
            self._confirmed.clear()
            await self._confirmed.wait()
        incarnation = self._store.incarnation
        found = self._store.read_cached(writer.ledger, number, 1, 1 << 10)
        if not found:
            found = await self._store.read(writer.ledger, incarnation, number, number + 1, 1, 1 << 10)
        if bytes(found[0][2]) != b"health %d" % number:
            raise ProbeFailed("an entry was read back changed")
        self._store.trim(writer.ledger, incarnation, number + 1)

    # -- the ledger

    def confirmed(self, entries_end: int, state_end: int) -> None:
        self._confirmed.set()

    def lost(self, error: LogError) -> None:
        self._writer = None
        self._confirmed.set()
