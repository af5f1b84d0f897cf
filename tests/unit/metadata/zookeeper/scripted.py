"""A server that speaks as much of ZooKeeper's protocol as a session needs, and does what a test wants of it."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import Final

SYNC, EXISTS, ADD_WATCH, REMOVE_WATCH, PING_OP, CLOSE = 9, 3, 106, 18, 11, -11
WATCH_XID: Final = -1
TIMEOUT_MS: Final = 30_000
NO_NODE: Final = -101


class ScriptedZooKeeper:
    """Holds nothing: every node is absent. One session at a time, whose number grows with each that it ends."""

    def __init__(self) -> None:
        self.session = 0x100
        # What it answers instead, by the opcode: a number of an error, or bytes; None for no answer at all.
        self.answers: dict[int, int | bytes | None] = {}
        self.asked: list[int] = []
        self._was_asked = asyncio.Event()
        self._held: list[tuple[asyncio.StreamWriter, int]] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.drop()
        self._server = None

    async def until_asked(self, *opcodes: int) -> None:
        """Until these were asked for, as the last of all."""
        async with asyncio.timeout(60):
            while self.asked[-len(opcodes) :] != list(opcodes):
                self._was_asked.clear()
                await self._was_asked.wait()

    def drop(self) -> None:
        """Breaks the connections."""
        for writer in self._writers:
            writer.transport.abort()

    def release(self) -> None:
        """Answers what was not answered, in order: it is done. From here on everything is answered."""
        self.answers.clear()
        for writer, xid in self._held:
            writer.write(_sized(struct.pack("!iqi", xid, 1, 0)))
        self._held.clear()

    def expire(self) -> None:
        """Ends the session: who comes back with it is told so."""
        self.session += 1
        self.drop()

    def tell(self, kind: int, path: str) -> None:
        """An event of a watch, to every connection."""
        event = struct.pack("!iqi", WATCH_XID, -1, 0) + struct.pack("!ii", kind, 3) + _sized(path.encode())
        for writer in self._writers:
            writer.write(_sized(event))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            hello = await _packet(reader)
            (wanted,) = struct.unpack_from("!q", hello, 16)
            is_known = wanted in (0, self.session)
            number, timeout_ms = (self.session, TIMEOUT_MS) if is_known else (0, 0)
            writer.write(_sized(struct.pack("!iiq", 0, timeout_ms, number) + _sized(b"\0" * 16) + b"\0"))
            while is_known:
                self._answer(writer, await _packet(reader))
        self._writers.discard(writer)
        writer.transport.abort()

    def _answer(self, writer: asyncio.StreamWriter, request: bytes) -> None:
        xid, opcode = struct.unpack_from("!ii", request)
        if opcode != PING_OP:
            self.asked.append(opcode)
            self._was_asked.set()
        answer = self.answers.get(opcode, 0 if opcode in _ANSWERED else NO_NODE)
        if answer is None:
            self._held.append((writer, xid))
            return
        code, body = (answer, b"") if isinstance(answer, int) else (0, answer)
        writer.write(_sized(struct.pack("!iqi", xid, 1, code) + body))


_ANSWERED: Final = {SYNC, ADD_WATCH, REMOVE_WATCH, PING_OP, CLOSE}


def _sized(data: bytes) -> bytes:
    return struct.pack("!i", len(data)) + data


async def _packet(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack("!i", await reader.readexactly(4))
    return await reader.readexactly(size)
