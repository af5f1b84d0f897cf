"""Accepts connections, on ports with TLS or without: as many as there are file descriptors for, less a reserve.

A process without descriptors cannot open its log's next file, and ends. Every host that can reach a port can open
connections, before it has to authenticate. So a part of the descriptors is kept from connections, and a connection
beyond that is closed as soon as it is accepted. The system assigns the lowest free number: a descriptor's number alone
says how many are in use.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from anabranch.broker.security.tls import Certificates

log = logging.getLogger(__name__)

# The share of all descriptors (one in four) that is left to the log's files, the metadata store and other uses.
RESERVED: Final = 4
# The limits to request, the largest first: some systems report no limit, and refuse numbers over an undisclosed one.
_WANTED: Final = (1 << 20, 1 << 16, 24_576, 10_240)
GREETING_MAX_S: Final = 10.0
RETRY_S: Final = 1.0
TELL_EVERY_S: Final = 10.0
# The most connections accepted in one turn of the loop, so that a flood of them does not hold up publishing.
BURST: Final = 64

_NOT_NOW: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def descriptors_for_connections() -> int:
    """Raises this process's limit as far as allowed; returns the number from which on descriptors are not for
    connections."""
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in _WANTED:
        if hard != resource.RLIM_INFINITY:
            wanted = min(wanted, hard)
        if limit != resource.RLIM_INFINITY and limit < wanted:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                limit = wanted
    if limit == resource.RLIM_INFINITY:
        limit = _WANTED[0]
    return limit - limit // RESERVED


class Acceptor:
    """Serves one listening socket, which its owner closes, until `close`."""

    def __init__(
        self,
        sock: socket.socket,
        factory: Callable[[], asyncio.BaseProtocol],
        descriptors_end: int,
        tls: Certificates | None = None,
        is_ours: Callable[[socket.socket], Awaitable[bool]] | None = None,
    ) -> None:
        """`is_ours` is asked about each connection first. A connection that is not served here is closed by it."""
        self._is_ours = is_ours
        self._sock = sock
        self._factory = factory
        self._descriptors_end = descriptors_end
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._greetings: set[asyncio.Task[None]] = set()
        self._told_s: dict[int, float] = {}  # The last time of a log line, by level.
        self._retry: asyncio.TimerHandle | None = None
        self._listen()

    def close(self) -> None:
        """Accepts no further connections. Those that are served stay open."""
        self._loop.remove_reader(self._sock)
        if self._retry is not None:
            self._retry.cancel()
        for task in self._greetings:
            task.cancel()

    def _listen(self) -> None:
        self._retry = None
        self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        for _ in range(BURST):
            try:
                taken, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._tell(logging.WARNING, f"no connection can be taken in: {error.strerror}")
                if error.errno not in _NOT_NOW:
                    return  # The error concerns only the connection that was next.
                self._loop.remove_reader(self._sock)
                self._retry = self._loop.call_later(RETRY_S, self._listen)
                return
            self._take(taken, is_ours=self._is_ours)

    def attach(self, taken: socket.socket) -> None:
        """Serves a connection that was accepted elsewhere, as if it had been accepted here."""
        self._take(taken, is_ours=None)

    def _take(self, taken: socket.socket, is_ours: Callable[[socket.socket], Awaitable[bool]] | None) -> None:
        if taken.fileno() >= self._descriptors_end:
            self._tell(
                logging.WARNING,
                f"new connections are closed: {self._descriptors_end} files and connections are open, and the rest "
                "of what the system allows (ulimit -n) is kept for the log",
            )
            taken.close()
            return
        taken.setblocking(False)
        # Held in `_greetings` and cancelled by `close`.
        task = self._loop.create_task(self._greet(taken, is_ours))
        self._greetings.add(task)
        task.add_done_callback(self._greetings.discard)

    async def wait_closed(self) -> None:
        """uvicorn awaits this after `close`."""
        await asyncio.gather(*self._greetings, return_exceptions=True)

    async def _greet(
        self, taken: socket.socket, is_ours: Callable[[socket.socket], Awaitable[bool]] | None
    ) -> None:
        try:
            taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if is_ours is not None and not await is_ours(taken):
                return
            if self._tls is None:
                await self._loop.connect_accepted_socket(self._factory, taken)
            else:
                await self._loop.connect_accepted_socket(
                    self._factory, taken, ssl=self._tls.context, ssl_handshake_timeout=GREETING_MAX_S
                )
        except (OSError, asyncio.CancelledError) as error:
            # The peer is gone, or does not speak TLS, or shows a certificate that we do not trust.
            if self._tls is not None and not isinstance(error, asyncio.CancelledError):
                self._tell(logging.INFO, f"a connection was not taken in, for its TLS: {error}")
            taken.close()

    def _tell(self, level: int, text: str) -> None:
        """Logs at most every ten seconds: a flood of connections must not flood the log too."""
        now = self._loop.time()
        if now - self._told_s.get(level, -TELL_EVERY_S) >= TELL_EVERY_S:
            self._told_s[level] = now
            log.log(level, "%s", text)
