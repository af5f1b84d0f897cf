"""A network in memory: hosts that connect to each other, and everything that can go wrong between them.

It keeps TCP's promises and no others. Within a living connection bytes arrive once and in order, after a delay, in
pieces cut anywhere. A cut delivers some of the bytes under way and loses the rest, and each end learns of it at its own
time. Between parted hosts nothing arrives, and neither end is notified, until they are joined again.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Any

from anabranch.simulation.machine.loop import HOST, SimLoop

Factory = Callable[[], asyncio.BaseProtocol]

HIGH_WATER = 64 * 1024
CONNECT_TRIES = 120


@dataclass(slots=True)
class Weather:
    """The present behaviour of the network; it may change at any moment."""

    delay_min_s: float = 0.0002
    delay_max_s: float = 0.002
    # Now and then a packet is lost and sent again.
    straggler_chance: float = 0.02
    straggler_max_s: float = 0.2
    # A delivery arrives in two pieces.
    fragment_chance: float = 0.1
    refuse_chance: float = 0.0


CALM = Weather(straggler_chance=0.0, fragment_chance=0.0)


class SimulatedServer:
    """The result of `create_server`."""

    def __init__(self, network: Network, address: tuple[str, int], factory: Factory) -> None:
        self._network = network
        self.address = address
        self.factory = factory
        self.context = copy_context()

    def close(self) -> None:
        self._network.listeners.pop(self.address, None)

    def is_serving(self) -> bool:
        return self._network.listeners.get(self.address) is self

    async def wait_closed(self) -> None:
        """Returns at once: there is nothing to wait for."""


class Network:
    """All hosts' connections. Hosts are named by the loop's `HOST`; code outside any host is at host ""."""

    def __init__(self, loop: SimLoop, chance: random.Random) -> None:
        self.loop = loop
        self.chance = chance
        self.weather = Weather()
        self.listeners: dict[tuple[str, int], SimulatedServer] = {}
        self.links: dict[NetworkLink, None] = {}
        self._parted: set[frozenset[str]] = set()
        self._ports = 40000

    # -- asyncio's calls

    def listen(self, factory: Factory, host: str, port: int) -> SimulatedServer:
        address = (host, port)
        if address in self.listeners:
            raise OSError(errno.EADDRINUSE, f"{host}:{port} is in use")
        listener = self.listeners[address] = SimulatedServer(self, address, factory)
        return listener

    async def connect(self, factory: Factory, host: str, port: int) -> tuple[End, asyncio.BaseProtocol]:
        here = HOST.get()
        source = here.name if here else ""
        await asyncio.sleep(self.delay())
        # The first packet is lost; it is sent again until the caller gives up.
        for _ in range(CONNECT_TRIES):
            if not self.is_parted(source, host):
                break
            await asyncio.sleep(1.0)
        else:
            raise TimeoutError(errno.ETIMEDOUT, f"{host} cannot be reached")
        listener = self.listeners.get((host, port))
        if listener is None or self.chance.random() < self.weather.refuse_chance:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens at {host}:{port}")
        self._ports += 1
        link = NetworkLink(self, (source, self._ports), (host, port), copy_context(), listener.context)
        self.links[link] = None
        self.loop.call_soon(link.server.open, listener.factory, context=listener.context)
        protocol = link.client.open(factory)
        return link.client, protocol

    # -- trouble

    def delay(self) -> float:
        weather, chance = self.weather, self.chance
        delay = chance.uniform(weather.delay_min_s, weather.delay_max_s)
        if weather.straggler_chance and chance.random() < weather.straggler_chance:
            delay += chance.uniform(0, weather.straggler_max_s)
        return delay

    def is_parted(self, one: str, other: str) -> bool:
        return bool(self._parted) and one != other and frozenset((one, other)) in self._parted

    def part(self, one: str, other: str) -> None:
        """No bytes pass between those hosts, in either direction."""
        self._parted.add(frozenset((one, other)))

    def join(self, one: str, other: str) -> None:
        self._parted.discard(frozenset((one, other)))
        for link in list(self.links):
            link.retry()

    def join_all(self) -> None:
        self._parted.clear()
        for link in list(self.links):
            link.retry()

    def links_of(self, host: str) -> list[NetworkLink]:
        return [link for link in self.links if host in link.hosts]

    def cut(self, links: Iterable[NetworkLink]) -> None:
        for link in list(links):
            link.cut()

    def host_died(self, host: str) -> None:
        """The host's listeners are gone and its peers' connections break. Bytes that it had sent may arrive or not."""
        for address in [address for address in self.listeners if address[0] == host]:
            del self.listeners[address]
        self.cut(self.links_of(host))


class NetworkLink:
    """One connection: two ends, and the bytes between them."""

    def __init__(
        self,
        network: Network,
        client: tuple[str, int],
        server: tuple[str, int],
        client_context: Context,
        server_context: Context,
    ) -> None:
        self.network = network
        self.hosts = (client[0], server[0])
        self.client = End(self, client, server, client_context)
        self.server = End(self, server, client, server_context)
        self.client.peer = self.server
        self.server.peer = self.client

    def cut(self) -> None:
        """The connection breaks: some of the bytes under way still arrive."""
        for end in (self.client, self.server):
            end.break_off()
        self.network.links.pop(self, None)

    def retry(self) -> None:
        for end in (self.client, self.server):
            end.schedule()

    def settle(self) -> None:
        if self.client.is_over and self.server.is_over:
            self.network.links.pop(self, None)


class End(asyncio.Transport):
    """One end's transport. `_inbox` holds what the peer sent: (arrival time, bytes), or None for its close."""

    def __init__(
        self, link: NetworkLink, address: tuple[str, int], remote: tuple[str, int], context: Context
    ) -> None:
        super().__init__({"peername": remote, "sockname": address})
        self.peer: End
        self._link = link
        self._network = link.network
        self._loop = link.network.loop
        self._context = context
        self._protocol: asyncio.BaseProtocol | None = None
        self._inbox: deque[tuple[float, bytes | None]] = deque()
        self._inbox_bytes = 0
        self._last_arrival = 0.0
        self._scheduled: asyncio.TimerHandle | None = None
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._high, self._low = HIGH_WATER, HIGH_WATER // 4
        self._is_full = False
        self._is_reading = True
        self._is_closing = False
        self._is_broken = False
        self.is_over = False

    def open(self, factory: Factory) -> asyncio.BaseProtocol:
        protocol = factory()
        if not self.is_over:
            self._protocol = protocol
            protocol.connection_made(self)
            self.schedule()
        return protocol

    # -- asyncio.Transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or self.is_over or not data:
            return
        if not self._outgoing:
            # Sent at the end of this turn: the bytes written in one turn leave together.
            self._loop.call_soon(self._flush, context=self._context)
        self._outgoing.append(bytes(data))
        self._outgoing_bytes += len(data)
        if not self._is_full and self.get_write_buffer_size() > self._high:
            self._is_full = True
            if self._protocol is not None:
                self._protocol.pause_writing()  # Within the call, as asyncio's own transports do.

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def _flush(self) -> None:
        if self._outgoing and not self.is_over:
            data = b"".join(self._outgoing)
            self._outgoing, self._outgoing_bytes = [], 0
            self.peer._arrive(data)

    def close(self) -> None:
        """The written bytes still arrive; then the peer sees the close."""
        if self._is_closing:
            return
        self._is_closing = True
        self._flush()
        if not self.is_over:
            self.peer._arrive(None)
            self._end(None)

    def abort(self) -> None:
        self._is_closing = True
        self._outgoing, self._outgoing_bytes = [], 0
        if not self.is_over:
            self._end(None)
            self.peer.break_off()

    def is_closing(self) -> bool:
        return self._is_closing or self.is_over

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._outgoing_bytes + self.peer._inbox_bytes

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self.schedule()

    def is_reading(self) -> bool:
        return self._is_reading

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def _drained(self) -> None:
        if self._is_full and not self.is_over and self.get_write_buffer_size() <= self._low:
            self._is_full = False
            if self._protocol is not None:
                self._protocol.resume_writing()

    # -- receiving

    def _arrive(self, data: bytes | None) -> None:
        """The peer sent something, which arrives after everything sent before it."""
        if self.is_over or self._is_broken:
            return
        at = self._last_arrival = max(self._last_arrival, self._loop.time() + self._network.delay())
        chance, weather = self._network.chance, self._network.weather
        if data and len(data) > 1 and chance.random() < weather.fragment_chance:
            middle = chance.randrange(1, len(data))
            self._inbox.append((at, data[:middle]))
            at = self._last_arrival = at + self._network.delay()
            self._inbox.append((at, data[middle:]))
        else:
            self._inbox.append((at, data))
        self._inbox_bytes += len(data or b"")
        self.schedule()

    def schedule(self) -> None:
        if (
            self._scheduled is None
            and self._inbox
            and self._is_reading
            and self._protocol is not None
            and not self.is_over
            and not self._network.is_parted(*self._link.hosts)
        ):
            at = max(self._inbox[0][0], self._loop.time())
            self._scheduled = self._loop.call_at(at, self._deliver, context=self._context)

    def _deliver(self) -> None:
        self._scheduled = None
        if self.is_over or not self._is_reading or self._network.is_parted(*self._link.hosts):
            return
        # A host that was paused finds several pieces at once and reads them together.
        pieces: list[bytes] = []
        is_goodbye = False
        while self._inbox and self._inbox[0][0] <= self._loop.time() and not is_goodbye:
            data = self._inbox.popleft()[1]
            if data is None:
                is_goodbye = True
            else:
                pieces.append(data)
        if pieces:
            data = b"".join(pieces)
            self._inbox_bytes -= len(data)
            self._hand_over(data)
            if self.peer._is_full:
                self._loop.call_soon(self.peer._drained, context=self.peer._context)
        if is_goodbye and not self.is_over:
            self._is_closing = True
            assert isinstance(self._protocol, asyncio.Protocol | asyncio.BufferedProtocol)
            self._protocol.eof_received()
            self._end(None)
            return
        self.schedule()

    def _hand_over(self, data: bytes) -> None:
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            view = memoryview(data)
            while view and not self.is_over:
                buffer = protocol.get_buffer(len(view))
                assert isinstance(buffer, memoryview | bytearray)
                size = min(len(buffer), len(view))
                buffer[:size] = view[:size]
                view = view[size:]
                protocol.buffer_updated(size)
        else:
            assert isinstance(protocol, asyncio.Protocol)
            protocol.data_received(data)

    # -- ending

    def break_off(self) -> None:
        """The connection is cut, seen from this end: some of the bytes under way arrive, then the error."""
        if self.is_over or self._is_broken:
            return
        self._is_broken = True
        chance = self._network.chance
        waiting = [data for _, data in self._inbox if data]
        self._inbox.clear()
        whole = b"".join(waiting)
        rest = whole[: chance.randint(0, len(whole))] if chance.random() < 0.5 else b""
        self._inbox_bytes = 0
        self._loop.call_later(self._network.delay(), self._broken, rest, context=self._context)

    def _broken(self, rest: bytes) -> None:
        if self.is_over:
            return
        if rest and self._protocol is not None and self._is_reading:
            self._hand_over(rest)
        self._is_closing = True
        self._end(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))

    def _end(self, error: Exception | None) -> None:
        if self.is_over:
            return
        self.is_over = True
        self._is_closing = True
        self._inbox.clear()
        self._inbox_bytes = 0
        self._link.settle()
        # Never inside the call that caused it, as with asyncio's own transports.
        self._loop.call_soon(self._tell_lost, error, context=self._context)

    def _tell_lost(self, error: Exception | None) -> None:
        if self._protocol is not None:
            self._protocol.connection_lost(error)
