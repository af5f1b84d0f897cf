"""Connections are taken in as long as there are descriptors for them, and greeted no longer than a moment."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator

from anabranch.broker.connection.accepting import RESERVED, Acceptor, descriptors_for_connections
from anabranch.broker.runtime.listening import listen

WAIT_MAX_S = 10.0


class Hello(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")
        transport.close()


@contextlib.asynccontextmanager
async def accepting(descriptors_end: int) -> AsyncIterator[int]:
    with listen("127.0.0.1", 0) as sock:
        acceptor = Acceptor(sock, Hello, descriptors_end)
        try:
            yield sock.getsockname()[1]
        finally:
            acceptor.close()
            await acceptor.wait_closed()


async def heard(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(WAIT_MAX_S):
            with contextlib.suppress(ConnectionError):
                return await reader.read()
            return b""
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_connections_are_served_one_after_the_other() -> None:
    async with accepting(descriptors_for_connections()) as port:
        assert await asyncio.gather(*(heard(port) for _ in range(100))) == [b"hello"] * 100


async def test_what_is_kept_for_the_log_no_connection_gets() -> None:
    async with accepting(descriptors_end=0) as port:
        assert await heard(port) == b""
        assert await heard(port) == b""


def test_a_part_of_what_the_system_allows_is_kept() -> None:
    end = descriptors_for_connections()
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert 0 < end <= limit - limit // RESERVED
    assert limit <= hard or hard == resource.RLIM_INFINITY
