"""A broker is healthy if what is published is stored and can be read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from anabranch.broker.observe.log_probe import LogProbe, ProbeFailed
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.position import Incarnation
from anabranch.storage.memory import MemoryLogStore, MemoryMedium
from anabranch.storage.topic.ledger_ids import LedgerIds


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def ids() -> AsyncIterator[LedgerIds]:
    metadata = await MemoryMetadata(lambda: 0).connect()
    yield LedgerIds(metadata)
    await metadata.close()


async def test_an_entry_is_stored_and_read_and_callers_at_the_same_time_share_it(ids: LedgerIds) -> None:
    medium, clock = MemoryMedium(), Clock()
    store = MemoryLogStore(medium, incarnation=Incarnation("one"))
    await store.start()
    probe = LogProbe(store, ids, clock)
    await asyncio.gather(*(probe.look() for _ in range(10)))
    await probe.look()
    clock.now = 2.0
    await probe.look()
    await probe.close()
    other = MemoryLogStore(medium, incarnation=Incarnation("two"))
    states = await other.take(Incarnation("one"), None)
    assert [state.entries_end for state in states.values()] == [2]


async def test_a_log_that_does_not_store_in_time_is_found(ids: LedgerIds) -> None:
    store = MemoryLogStore(incarnation=Incarnation("one"))
    await store.start()
    probe = LogProbe(store, ids, Clock(), stored_max_s=0.0)
    with pytest.raises(ProbeFailed, match="not stored within 0 seconds"):
        await probe.look()
    await probe.close()


async def test_a_log_that_another_broker_has_taken_is_found(ids: LedgerIds) -> None:
    medium, clock = MemoryMedium(), Clock()
    store = MemoryLogStore(medium, incarnation=Incarnation("one"))
    await store.start()
    probe = LogProbe(store, ids, clock)
    await probe.look()
    await MemoryLogStore(medium, incarnation=Incarnation("two")).take(Incarnation("one"), None)
    clock.now = 2.0
    with pytest.raises(ProbeFailed):
        await probe.look()
    await probe.close()
