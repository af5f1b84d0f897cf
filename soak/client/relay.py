"""A relay between clients and a broker that cuts, stalls, half-closes and swallows at random.

It listens on the address that the broker advertises and forwards to the one where the broker is, so every lookup leads
back through it: on loopback that is the same port of 127.0.0.1 and 127.0.0.2. Brokers connect to themselves over the
advertised address too, without faults: only connections whose CONNECT names our client are harmed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

GREETING = b"Anabranch"
READ_BYTES = 1 << 16
STALL_S = (0.05, 1.5)
# How long one side receives nothing before the connection is cut.
SWALLOW_S = (0.02, 0.5)
REFUSE_S = (0.1, 0.8)


class Address(NamedTuple):
    host: str
    port: int


class Fault(Enum):
    CUT = "cut"
    STALL = "stall"  # Nothing passes for a while, then everything does.
    END_FOR_CLIENT = (
        "end for client"  # Half-closed: one side sees the end, the other does not until that one ends too.
    )
    END_FOR_BROKER = "end for broker"
    DEAF = "deaf"  # What the broker sends is lost, then the connection: receipts, messages, answers.
    MUTE = "mute"  # What the client sends is lost, then the connection.
    OUTAGE = "outage"  # All connections are cut and new ones refused for a while.


WEIGHTS = {
    Fault.CUT: 4,
    Fault.STALL: 3,
    Fault.END_FOR_CLIENT: 2,
    Fault.END_FOR_BROKER: 2,
    Fault.DEAF: 3,
    Fault.MUTE: 2,
    Fault.OUTAGE: 1,
}


class Line:
    """One connection: two sockets and what goes between them."""

    def __init__(self, peer: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        self._from_client, self._to_client = peer
        # Not the local port: this one identifies the client.
        self.client_port: int = self._to_client.get_extra_info("peername")[1]
        self.is_ours = False
        self.is_deaf = self.is_mute = False
        self._passes = asyncio.Event()
        self._passes.set()
        self._to_broker: asyncio.StreamWriter | None = None

    async def serve(self, broker: Address) -> None:
        try:
            from_broker, self._to_broker = await asyncio.open_connection(*broker)
            await asyncio.gather(
                self._pump(self._from_client, self._to_broker, from_client=True),
                self._pump(from_broker, self._to_client, from_client=False),
            )
        except OSError:
            pass  # An end like any other.
        finally:
            self.cut()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, from_client: bool
    ) -> None:
        while data := await reader.read(READ_BYTES):
            if from_client and not self.is_ours:
                self.is_ours = GREETING in data
            await self._passes.wait()
            if not (self.is_mute if from_client else self.is_deaf):
                writer.write(data)
                await writer.drain()
        writer.write_eof()

    def cut(self) -> None:
        self._passes.set()
        for writer in (self._to_client, self._to_broker):
            if writer is not None:
                writer.transport.abort()

    def end_for_client(self) -> None:
        self.is_deaf = True  # Nothing may be written behind the end.
        self._to_client.write_eof()

    def end_for_broker(self) -> None:
        self.is_mute = True
        if self._to_broker is not None:
            self._to_broker.write_eof()

    def stall(self) -> None:
        self._passes.clear()

    def go_on(self) -> None:
        self._passes.set()


# Called with the clients' ports when their connections begin to fail, and when that is over.
Told = Callable[[list[int], bool], None]


class Relay:
    """A context manager. `harm` injects one random fault; `counts` says what was injected."""

    def __init__(
        self, listen: Address, broker: Address, chance: random.Random, told: Told = lambda ports, begins: None
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._listen = listen
        self._broker = broker
        self._chance = chance
        self._told = told
        self._lines: dict[Line, asyncio.Task[None]] = {}
        self._harming: set[asyncio.Task[None]] = set()
        self._is_refusing = False

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._accept, *self._listen)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        tasks = [*self._harming, *self._lines.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_refusing:
            writer.transport.abort()
            return
        line = Line((reader, writer))
        # Ended by leaving the context.
        serving = self._lines[line] = asyncio.create_task(line.serve(self._broker))
        serving.add_done_callback(lambda _: self._lines.pop(line, None))

    # -- faults

    def harm(self, fault: Fault | None = None) -> Fault | None:
        """Begins a fault, a random one by default, on a random connection; None if there is none of our client's."""
        lines = [line for line in self._lines if line.is_ours]
        if not lines:
            return None
        if fault is None:
            fault = self._chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        harmed = lines if fault is Fault.OUTAGE else [self._chance.choice(lines)]
        self.counts[fault.value] += 1
        task = asyncio.create_task(self._harm(fault, harmed))  # Ended by leaving the context.
        self._harming.add(task)
        task.add_done_callback(self._harming.discard)
        return fault

    async def _harm(self, fault: Fault, lines: list[Line]) -> None:
        ports = [line.client_port for line in lines]
        if fault is not Fault.STALL:
            self._told(ports, True)
        (line, *_) = lines
        chance = self._chance
        with contextlib.suppress(OSError):  # It may have ended by itself meanwhile.
            match fault:
                case Fault.CUT:
                    line.cut()
                case Fault.STALL:
                    line.stall()
                    await asyncio.sleep(chance.uniform(*STALL_S))
                    line.go_on()
                case Fault.END_FOR_CLIENT:
                    line.end_for_client()
                    await self._over(lines)
                case Fault.END_FOR_BROKER:
                    line.end_for_broker()
                    await self._over(lines)
                case Fault.DEAF | Fault.MUTE:
                    line.is_deaf |= fault is Fault.DEAF
                    line.is_mute |= fault is Fault.MUTE
                    await asyncio.sleep(chance.uniform(*SWALLOW_S))
                    line.cut()
                case Fault.OUTAGE:
                    self._is_refusing = True
                    for one in lines:
                        one.cut()
                    await asyncio.sleep(chance.uniform(*REFUSE_S))
                    self._is_refusing = False
        if fault is not Fault.STALL:
            self._told(ports, False)

    async def _over(self, lines: list[Line]) -> None:
        if open_ := [self._lines[line] for line in lines if line in self._lines]:
            await asyncio.wait(open_)
