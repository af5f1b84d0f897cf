"""Ids of ledgers: unique in the cluster, and rising for each topic."""

from __future__ import annotations

import asyncio

from anabranch.metadata.port import MetadataStore
from anabranch.model.position import LedgerId

LEDGER_ID_BLOCK = 100
LEDGER_IDS_PATH = "/counters/ledger"


class LedgerIds:
    """Hands out ledger ids from blocks, so that most topics open without asking the counter."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._block = iter(range(0))
        # The request for the next block, which all callers that need one await.
        self._asking: asyncio.Task[None] | None = None

    async def next(self, minimum: int) -> LedgerId:
        """An id never used before and at least `minimum`; a block that has fallen behind is discarded."""
        while True:
            for candidate in self._block:
                if candidate >= minimum:
                    return LedgerId(candidate)
                break
            if self._asking is None or self._asking.done():
                self._asking = asyncio.get_running_loop().create_task(self._ask())
                # Its callers may all have given up.
                self._asking.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.shield(self._asking)

    async def _ask(self) -> None:
        self._block = iter(await self._metadata.next_ids(LEDGER_IDS_PATH, LEDGER_ID_BLOCK))
