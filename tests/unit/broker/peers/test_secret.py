"""The cluster's secret: made once, the same for every broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from anabranch.broker.peers.secret import PATH, BadSecret, cluster_secret
from anabranch.metadata.memory import MemoryMetadata


def always(byte: bytes) -> Callable[[int], bytes]:
    return lambda size: byte * size


async def test_brokers_that_start_at_once_agree() -> None:
    store = MemoryMetadata(lambda: 0)
    sessions = [await store.connect() for _ in range(3)]
    found = await asyncio.gather(
        *(cluster_secret(session, always(b"%d" % n)) for n, session in enumerate(sessions))
    )
    assert len(set(found)) == 1
    assert await cluster_secret(sessions[0], always(b"x")) == found[0]


async def test_a_stored_value_that_is_no_secret_is_reported() -> None:
    session = await MemoryMetadata(lambda: 0).connect()
    await session.put(PATH, b"short")
    with pytest.raises(BadSecret, match="peer-secret"):
        await cluster_secret(session, always(b"x"))
