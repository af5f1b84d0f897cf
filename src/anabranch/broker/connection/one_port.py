"""One port for all brokers of a machine: a connection that names another broker is passed to that broker's process.

Where only the shared port can be reached, lookups tell clients to connect to it for every broker, and to name the
broker in CONNECT (`proxy_to_broker_url`), as with Pulsar's proxy. The process that accepted the connection looks at
CONNECT without taking it out of the socket, and passes the socket itself over a Unix socket: no data is copied, and the
other broker reads CONNECT as if it had accepted the connection. This is for connections without TLS, whose first bytes
can be read.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from anabranch.metadata.unix_sockets import address_of
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.connection import GREETING_BYTES_MAX, NO_REQUEST
from anabranch.wire.encode import encode_command

log = logging.getLogger(__name__)

# How long a client may take to send CONNECT, and how long a broker with many connections to take may keep others.
GREETING_MAX_S: Final = 10.0
PASS_MAX_S: Final = 2.0
PASS_RETRY_S: Final = 0.005
# The most connections taken over in one turn of the loop.
BURST: Final = 64
_SIZE: Final = 4
_HEAD: Final = 2 * _SIZE


class OnePort:
    """`route` decides about each connection of the shared port; connections that others pass on are given to `attach`.

    `port` is the broker's own, by which the others know it. Sockets for passing on are in `folder`."""

    def __init__(self, folder: Path, port: int, attach: Callable[[socket.socket], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._folder = folder
        self._port = port
        self._attach = attach
        self._path = _path(folder, port)
        self._inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._outbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._inbox.setblocking(False)
        self._outbox.setblocking(False)
        # A socket of an earlier process on the same port.
        self._path.unlink(missing_ok=True)
        with address_of(self._path) as address:
            self._inbox.bind(address)
        self._path.chmod(0o600)
        self._loop.add_reader(self._inbox, self._arrived)

    def close(self) -> None:
        self._loop.remove_reader(self._inbox)
        self._inbox.close()
        self._outbox.close()
        self._path.unlink(missing_ok=True)

    async def route(self, taken: socket.socket) -> bool:
        """Whether the connection is this broker's. If it is not, it was passed on or refused, and is closed here."""
        try:
            async with asyncio.timeout(GREETING_MAX_S):
                connect = await self._connect_of(taken)
        except TimeoutError:
            taken.close()
            return False
        named = connect.proxy_to_broker_url if connect is not None else ""
        port = _port(named)
        if not named or port == self._port:
            return True  # Anything that is not CONNECT is refused by the session.
        refusal = await self._passed(taken, port)
        if refusal:
            log.info("a connection was not passed on: %s", refusal)
            _refuse(taken, f"{named}: {refusal}")
        taken.close()
        return False

    # -- passing on

    async def _passed(self, taken: socket.socket, port: int | None) -> str:
        """Empty once the broker of that port has the connection, else the reason why not."""
        if port is None:
            return "this is no broker's host:port"
        ends = self._loop.time() + PASS_MAX_S
        while True:
            try:
                with address_of(_path(self._folder, port)) as address:
                    self._outbox.sendmsg([b"c"], _rights(taken), 0, address)
                return ""
            except BlockingIOError:
                if self._loop.time() > ends:
                    return "this broker takes no more connections at the moment"
                await asyncio.sleep(PASS_RETRY_S)
            except OSError:
                return "no broker has this address at the moment"

    def _arrived(self) -> None:
        for _ in range(BURST):
            try:
                _, numbers, _, _ = socket.recv_fds(self._inbox, 1, 1)
            except BlockingIOError:
                return
            except OSError as error:
                log.warning("a connection that another broker passed on is lost: %s", error)
                return
            for number in numbers:
                self._attach(socket.socket(fileno=number))

    # -- looking at CONNECT

    async def _connect_of(self, taken: socket.socket) -> pb.CommandConnect | None:
        """The CONNECT that the client sends first, left in the socket; None if it sends anything else, or nothing."""
        head = await self._peeked(taken, _HEAD)
        size = int.from_bytes(head[:_SIZE], "big")
        command_size = int.from_bytes(head[_SIZE:], "big")
        if len(head) < _HEAD or size > GREETING_BYTES_MAX or command_size + _SIZE > size:
            return None
        frame = await self._peeked(taken, _HEAD + command_size)
        command = pb.BaseCommand()
        try:
            command.ParseFromString(frame[_HEAD:])
        except DecodeError:
            return None
        if command.type != pb.BaseCommand.CONNECT or not isinstance(command.connect.proxy_to_broker_url, str):
            return None  # Protobuf gives a string that is not UTF-8 as bytes.
        return command.connect

    async def _peeked(self, taken: socket.socket, size: int) -> bytes:
        """That many bytes, or fewer if the client sends no more of them."""
        # The socket is readable once it has so many, or its end.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
        try:
            await self._readable(taken)
            return taken.recv(size, socket.MSG_PEEK)
        except OSError:
            return b""
        finally:
            with contextlib.suppress(OSError):
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    async def _readable(self, taken: socket.socket) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(taken, lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        finally:
            self._loop.remove_reader(taken)


def _path(folder: Path, port: int) -> Path:
    return folder / f"connections-{port}.sock"


def _port(named: str) -> int | None:
    """The port of `host:port`, with or without a scheme before it."""
    digits = named.rpartition(":")[2]
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= 5 else None


def _rights(taken: socket.socket) -> list[tuple[int, int, bytes]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [taken.fileno()]).tobytes())]


def _refuse(taken: socket.socket, reason: str) -> None:
    error = pb.CommandError(request_id=NO_REQUEST, error=pb.ServiceNotReady, message=reason)
    with contextlib.suppress(OSError):
        taken.send(encode_command(pb.BaseCommand(type=pb.BaseCommand.ERROR, error=error)))
