"""What was last read answers while the session is in doubt, and only then."""

from __future__ import annotations

import pytest

from anabranch.metadata.errors import StoreUnavailable
from anabranch.metadata.last_reads import LastReads
from anabranch.metadata.memory import MemoryMetadata, MemoryStore


@pytest.fixture
async def store() -> MemoryStore:
    return await MemoryMetadata(lambda: 0).connect()


async def test_a_node_is_answered_as_last_read_until_the_store_answers_again(store: MemoryStore) -> None:
    reads = LastReads(store)
    await store.create("/a", b"one")
    assert (found := await reads.get("/a")) is not None
    assert await reads.get("/none") is None
    await store.put("/a", b"two")
    store.disconnect()
    assert await reads.get("/a") == found
    assert await reads.get("/none") is None
    await store.reconnect()
    assert (found := await reads.get("/a")) is not None
    assert found.value == b"two"


async def test_what_was_never_read_is_refused_and_so_is_every_write(store: MemoryStore) -> None:
    reads = LastReads(store)
    store.disconnect()
    for asked in (reads.get("/a"), reads.exists("/a"), store.create("/a", b"")):
        with pytest.raises(StoreUnavailable):
            await asked


async def test_existence_is_remembered_without_the_value(store: MemoryStore) -> None:
    reads = LastReads(store, bytes_max=100)
    await store.create("/a", bytes(1000))
    assert await reads.exists("/a")
    assert not await reads.exists("/b")
    store.disconnect()
    assert await reads.exists("/a")
    # It may have been made since.
    with pytest.raises(StoreUnavailable):
        await reads.exists("/b")


async def test_what_was_written_counts_as_read(store: MemoryStore) -> None:
    reads = LastReads(store)
    assert await reads.get("/a") is None
    written = await store.create("/a", b"one")
    reads.note("/a", written)
    store.disconnect()
    assert await reads.get("/a") == written


async def test_nothing_that_was_read_in_a_lost_session_counts_any_more(store: MemoryStore) -> None:
    reads = LastReads(store)
    await store.create("/a", b"one")
    await reads.get("/a")
    store.disconnect()
    await store.expire_session()
    await store.reconnect()
    store.disconnect()
    with pytest.raises(StoreUnavailable):
        await reads.get("/a")


async def test_the_nodes_that_were_read_longest_ago_are_forgotten_first(store: MemoryStore) -> None:
    reads = LastReads(store, nodes_max=2)
    for path in ("/a", "/b", "/a", "/c"):
        await reads.get(path)
    assert len(reads) == 2
    store.disconnect()
    assert await reads.get("/a") is None
    with pytest.raises(StoreUnavailable):
        await reads.get("/b")


async def test_large_values_are_forgotten_at_the_limit_of_bytes(store: MemoryStore) -> None:
    reads = LastReads(store, bytes_max=1000)
    for name in "abc":
        await store.create(f"/{name}", bytes(400))
        await reads.get(f"/{name}")
    assert len(reads) == 2
