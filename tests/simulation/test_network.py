"""The simulator's network keeps TCP's promises, whatever else it does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from anabranch.simulation.machine.loop import Host, SimLoop, context_of
from anabranch.simulation.machine.network import CALM, Network, Weather

T = TypeVar("T")
ROUGH = Weather(straggler_chance=0.3, fragment_chance=0.5)


class Peer(asyncio.Protocol):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.received = b""
        self.lost: list[Exception | None] = []
        self.is_full = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False


class World:
    def __init__(self, seed: int = 1, weather: Weather = ROUGH) -> None:
        self.loop = SimLoop()
        self.network = self.loop.network = Network(self.loop, random.Random(seed))
        self.network.weather = weather
        self.hosts = {name: Host(name) for name in ("here", "there")}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            result: T = self.loop.run_until_complete(work)
            assert not self.loop.unhandled
            return result
        finally:
            self.loop.close()

    async def on(self, host: str, work: Coroutine[Any, Any, T]) -> T:
        return await self.loop.create_task(work, context=context_of(self.hosts[host]))

    async def pair(self) -> tuple[Peer, Peer]:
        server, client = Peer(), Peer()
        await self.on("there", self.loop.create_server(lambda: server, "there", 6650))
        await self.on("here", self.loop.create_connection(lambda: client, "there", 6650))
        await asyncio.sleep(1)
        return client, server


@pytest.mark.parametrize("seed", range(5))
def test_bytes_arrive_once_and_in_order(seed: int) -> None:
    world = World(seed)

    async def main() -> None:
        client, server = await world.pair()
        for number in range(200):
            client.transport.write(b"%d," % number)
            server.transport.writelines([b"<", b"%d" % number, b">"])
            if number % 3 == 0:
                await asyncio.sleep(0.001)
        client.transport.close()
        await asyncio.sleep(5)
        assert server.received == b"".join(b"%d," % n for n in range(200))
        assert client.lost == [None]
        assert server.lost == [None]
        assert b"".join(b"<%d>" % n for n in range(200)).startswith(client.received)

    world.run(main())


@pytest.mark.parametrize("seed", range(20))
def test_a_cut_lets_only_a_beginning_through_and_both_ends_learn_of_it(seed: int) -> None:
    world = World(seed)

    async def main() -> int:
        client, server = await world.pair()
        sent = bytes(range(256)) * 4
        client.transport.write(sent)
        await asyncio.sleep(0.0001)
        world.network.cut(world.network.links_of("there"))
        client.transport.write(b"too late")
        await asyncio.sleep(1)
        assert sent.startswith(server.received)
        assert [type(lost) for lost in client.lost + server.lost] == [ConnectionResetError] * 2
        assert not world.network.links
        return len(server.received)

    assert world.run(main()) <= 1024


def test_cuts_come_before_within_and_behind_a_frame() -> None:
    async def main(world: World) -> int:
        client, server = await world.pair()
        client.transport.write(bytes(100))
        await asyncio.sleep(0.0001)
        world.network.cut(world.network.links_of("here"))
        await asyncio.sleep(1)
        return len(server.received)

    arrived = {(world := World(seed, CALM)).run(main(world)) for seed in range(60)}
    assert 0 in arrived
    assert any(0 < size < 100 for size in arrived)


def test_parted_hosts_hear_nothing_and_everything_once_they_are_joined() -> None:
    world = World()

    async def main() -> None:
        client, server = await world.pair()
        world.network.part("here", "there")
        client.transport.write(b"hello")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await world.on("here", world.loop.create_connection(Peer, "there", 6650))
        assert server.received == b""
        assert not server.lost
        world.network.join("here", "there")
        await asyncio.sleep(1)
        assert server.received == b"hello"

    world.run(main())


def test_where_nobody_listens_connections_are_refused() -> None:
    world = World()

    async def main() -> None:
        with pytest.raises(ConnectionRefusedError):
            await world.loop.create_connection(Peer, "there", 6650)

    world.run(main())


def test_a_writer_is_held_back_while_its_peer_does_not_read() -> None:
    world = World()

    async def main() -> None:
        client, server = await world.pair()
        server.transport.pause_reading()
        client.transport.write(bytes(100_000))
        await asyncio.sleep(1)
        assert client.is_full
        server.transport.resume_reading()
        await asyncio.sleep(1)
        assert not client.is_full
        assert len(server.received) == 100_000

    world.run(main())


def test_peers_of_a_host_that_died_lose_their_connections_and_the_dead_is_told_nothing() -> None:
    world = World()

    async def main() -> None:
        client, server = await world.pair()
        world.hosts["there"].is_dead = True
        world.network.host_died("there")
        await asyncio.sleep(1)
        assert [type(lost) for lost in client.lost] == [ConnectionResetError]
        assert not server.lost
        with pytest.raises(ConnectionRefusedError):
            await world.loop.create_connection(Peer, "there", 6650)

    world.run(main())
