"""The relay between clients and a broker: passes bytes both ways, and does each of its faults."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from soak.client.relay import Address, Fault, Relay

HELLO = b"Anabranch says hello"
WITHIN_S = 10.0


class Broker:
    """Answers every chunk with itself, in capitals."""

    def __init__(self) -> None:
        self.heard = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1024):
                self.heard += data
                writer.write(data.upper())
        except OSError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def relayed(
    told: Callable[[list[int], bool], None] = lambda ports, begins: None,
) -> AsyncIterator[tuple[Relay, Broker, Callable[..., object]]]:
    broker = Broker()
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, asyncio.timeout(WITHIN_S):
        listen, behind = Address("127.0.0.2", port), Address("127.0.0.1", port)
        async with Relay(listen, behind, random.Random(1), told) as relay:
            yield relay, broker, lambda: asyncio.open_connection(*listen)


async def greet(connect: Callable[..., object]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await connect()  # type: ignore[misc]
    writer.write(HELLO)
    assert await reader.readexactly(len(HELLO)) == HELLO.upper()
    return reader, writer


async def test_bytes_pass_both_ways() -> None:
    async with relayed() as (_, broker, connect):
        _, writer = await greet(connect)
        assert broker.heard == HELLO
        writer.close()


async def test_connections_of_others_are_left_alone() -> None:
    async with relayed() as (relay, _, connect):
        reader, writer = await connect()  # type: ignore[misc]
        writer.write(b"somebody else")
        await reader.read(1)
        assert relay.harm(Fault.CUT) is None
        writer.close()


@pytest.mark.parametrize(
    "fault",
    [Fault.CUT, Fault.END_FOR_CLIENT, Fault.END_FOR_BROKER, Fault.DEAF, Fault.MUTE, Fault.OUTAGE],
)
async def test_a_connection_ends_and_its_owner_is_told_of(fault: Fault) -> None:
    seen: list[tuple[list[int], bool]] = []
    async with relayed(lambda ports, begins: seen.append((ports, begins))) as (relay, _, connect):
        reader, writer = await greet(connect)
        port = writer.get_extra_info("sockname")[1]
        assert relay.harm(fault) is fault
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        while len(seen) < 2:  # noqa: ASYNC110 - the relay tells in a turn of its own.
            await asyncio.sleep(0)
    assert seen == [([port], True), ([port], False)]
    assert relay.counts == {fault.value: 1}


async def test_a_connection_that_is_stalled_goes_on_later() -> None:
    async with relayed() as (relay, _, connect):
        reader, writer = await greet(connect)
        relay.harm(Fault.STALL)
        await asyncio.sleep(0)
        writer.write(b"late")
        assert await reader.readexactly(4) == b"LATE"
        writer.close()


async def test_a_deaf_connection_loses_what_the_broker_says() -> None:
    async with relayed() as (relay, broker, connect):
        reader, writer = await greet(connect)
        relay.harm(Fault.DEAF)
        await asyncio.sleep(0)
        writer.write(b"and?")
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        assert broker.heard == HELLO + b"and?"
        writer.close()
