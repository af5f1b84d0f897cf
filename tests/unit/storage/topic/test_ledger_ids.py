"""Ids of ledgers: unique, rising, and asked of the counter in blocks."""

from __future__ import annotations

import asyncio

from anabranch.metadata.memory import MemoryMetadata
from anabranch.storage.topic.ledger_ids import LEDGER_ID_BLOCK, LEDGER_IDS_PATH, LedgerIds


async def test_callers_that_wait_at_once_share_a_block() -> None:
    metadata = await MemoryMetadata(lambda: 1000).connect()
    ids = LedgerIds(metadata)
    found = await asyncio.gather(*(ids.next(0) for _ in range(LEDGER_ID_BLOCK + 50)))
    assert len(set(found)) == len(found)
    first = min(found)
    assert await metadata.next_id(LEDGER_IDS_PATH) == first + 2 * LEDGER_ID_BLOCK


async def test_a_caller_that_gives_up_costs_the_others_nothing() -> None:
    metadata = await MemoryMetadata(lambda: 1000).connect()
    ids = LedgerIds(metadata)
    callers = [asyncio.ensure_future(ids.next(0)) for _ in range(3)]
    await asyncio.sleep(0)
    callers[0].cancel()
    gone, *found = await asyncio.gather(*callers, return_exceptions=True)
    assert isinstance(gone, asyncio.CancelledError)
    assert len(set(found)) == 2


async def test_no_id_is_below_what_the_topic_has_had() -> None:
    metadata = await MemoryMetadata(lambda: 1000).connect()
    ids, others = LedgerIds(metadata), LedgerIds(metadata)
    await ids.next(0)
    of_another_broker = await others.next(0)
    assert await ids.next(of_another_broker + 1) > of_another_broker
