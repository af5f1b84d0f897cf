"""A broker's link to another broker: one authenticated connection, opened at its first use and again when it is lost.

Requests are sent as they come, and answers may come in any order. The number and size of requests under way is
bounded, and users have a part of them only: whatever they ask, the brokers' own requests find a turn. A call whose
answer does not come in time, or whose connection is lost, ends with PeerUnavailable: the caller cannot know whether it
has taken effect, and it is never sent a second time from here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from anabranch.broker.peers.directory import PeerDirectory, RegisteredPeer
from anabranch.broker.peers.errors import UNREADABLE, PeerCallFailed, PeerUnavailable, raised
from anabranch.broker.peers.handshake import METHOD, NONCE_BYTES, CallingHandshake, PeerIdentity
from anabranch.broker.peers.methods import PeerMethod
from anabranch.client.security import Security
from anabranch.client.transport.connection import ClientConnection
from anabranch.errors import AnabranchError
from anabranch.wire import pulsar_pb2 as pb

log = logging.getLogger(__name__)

R = TypeVar("R", bound=msgspec.Struct)
A = TypeVar("A", bound=msgspec.Struct)

# Calls beyond these wait for their turn, within their own time.
CALLS_MAX: Final = 256
# Of these, calls for users. A message that is looked at may have 5 MiB, of which both brokers hold a few copies; and a
# broker drops a link whose other end leaves 256 MiB unread.
USERS_CALLS_MAX: Final = 16
OPEN_MAX_S: Final = 5.0
CLOSE_MAX_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class PeerTls:
    """Whether brokers use TLS among themselves, and whom they trust. Files are in PEM; "" is none."""

    is_enabled: bool = False
    trust_certs_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    checks_host_name: bool = True


PLAIN: Final = PeerTls()


class PeerSecurity(Security):
    """A broker's credentials on one connection to another."""

    def __init__(self, handshake: CallingHandshake, tls: PeerTls) -> None:
        super().__init__(
            tls_trust_certs_file=tls.trust_certs_file or None,
            tls_certificate_file=tls.certificate_file or None,
            tls_key_file=tls.key_file or None,
            tls_check_host_name=tls.checks_host_name,
        )
        object.__setattr__(self, "_handshake", handshake)

    _handshake: CallingHandshake

    @property
    def method(self) -> str:
        return METHOD

    @property
    def is_of_peer(self) -> bool:
        return True

    def proof(self) -> bytes:
        return self._handshake.greeting()

    def answer(self, challenge: bytes) -> bytes:
        return self._handshake.answer(challenge)


class PeerLink:
    """The link to the broker of one id, whichever run of it is registered."""

    def __init__(
        self,
        peer: str,
        me: PeerIdentity,
        directory: PeerDirectory,
        secret: Callable[[], bytes],
        tls: PeerTls,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self.peer = peer
        self._me = me
        self._directory = directory
        self._secret = secret
        self._tls = tls
        self._random_bytes = random_bytes
        self._opening: asyncio.Task[ClientConnection] | None = None
        # The run of the other broker that the link is with.
        self._run = ""
        self._turns = asyncio.Semaphore(CALLS_MAX)
        self._users_turns = asyncio.Semaphore(USERS_CALLS_MAX)
        self._is_closed = False

    async def call(self, method: PeerMethod[R, A], request: R, answer_max_s: float | None = None) -> A:
        """The other broker's answer. PeerUnavailable if there is none in time; else the error that it answers with."""
        body = method.encode(request)
        if len(body) > method.bytes_max:
            raise PeerCallFailed(
                f"{method.name} has {len(body)} bytes, more than the {method.bytes_max} that are sent"
            )
        limit_s = method.answer_max_s if answer_max_s is None else answer_max_s
        try:
            async with asyncio.timeout(limit_s), self._turn(method), self._turns:
                connection = await self._connection()
                await connection.writable()
                answer = await connection.request(
                    pb.BaseCommand.ANABRANCH_PEER, "anabranchPeer", method=method.name, body=body
                )
        except TimeoutError:
            raise PeerUnavailable(
                f"broker {self.peer} did not answer {method.name} within {limit_s:g} s"
            ) from None
        except PeerUnavailable:
            raise
        except (AnabranchError, OSError) as error:
            raise PeerUnavailable(f"broker {self.peer} cannot be asked: {error}") from error
        if answer.HasField("error"):
            raise raised(answer.error, f"{answer.message}")
        try:
            return method.read_answer(answer.body)
        except UNREADABLE as error:
            raise PeerCallFailed(
                f"broker {self.peer} answers {method.name} with what cannot be read: {error}"
            ) from None

    def _turn(self, method: PeerMethod[R, A]) -> AbstractAsyncContextManager[None]:
        return self._users_turns if method.is_for_users else nullcontext()

    def gone(self, run: str) -> None:
        """That run of the other broker is not registered any more. A link to it is dropped: its calls would wait for an
        answer that may never come, as that of a stopped process."""
        opening = self._opening
        if opening is not None and _is_usable(opening) and run == self._run:
            log.info("broker %s is gone, dropping the link to it", self.peer, extra={"peer": self.peer})
            opening.result().abort()

    async def close(self) -> None:
        self._is_closed = True
        if self._opening is not None:
            self._opening.cancel()
            (result,) = await asyncio.gather(self._opening, return_exceptions=True)
            if isinstance(result, ClientConnection):
                await result.close_within(CLOSE_MAX_S)

    @property
    def is_open(self) -> bool:
        return self._opening is not None and _is_usable(self._opening)

    @property
    def is_unused(self) -> bool:
        """Whether there is neither a connection nor an attempt to open one."""
        return self._opening is None or (self._opening.done() and not _is_usable(self._opening))

    async def _connection(self) -> ClientConnection:
        if self._is_closed:
            raise PeerUnavailable("this broker is stopping")
        opening = self._opening
        if opening is None or self.is_unused:
            # Awaited by all concurrent callers, and by `close`.
            opening = self._opening = asyncio.create_task(self._open())
            opening.add_done_callback(_look)
        return await asyncio.shield(opening)

    async def _open(self) -> ClientConnection:
        try:
            async with asyncio.timeout(OPEN_MAX_S):
                found = await self._directory.find(self.peer)
                if found is None:
                    raise PeerUnavailable(f"broker {self.peer} is not registered")
                handshake = CallingHandshake(
                    self._secret(), self._me, found.identity, self._random_bytes(NONCE_BYTES)
                )
                connection = await ClientConnection.open(self._url(found), PeerSecurity(handshake, self._tls))
        except TimeoutError:
            raise PeerUnavailable(
                f"broker {self.peer} did not accept a link within {OPEN_MAX_S:g} s"
            ) from None
        if not handshake.is_proven:
            connection.abort()
            raise PeerUnavailable(f"broker {self.peer} did not prove that it is a broker of this cluster")
        self._run = found.identity.run
        log.info("linked with broker %s", self.peer, extra={"peer": self.peer})
        return connection

    def _url(self, found: RegisteredPeer) -> str:
        if not self._tls.is_enabled:
            return found.service_url
        if not found.service_url_tls:
            raise PeerUnavailable(
                f"broker {self.peer} has no TLS port (brokerServicePortTls), and brokerClientTlsEnabled=true here"
            )
        return found.service_url_tls


def _is_usable(opening: asyncio.Task[ClientConnection]) -> bool:
    return (
        opening.done()
        and not opening.cancelled()
        and opening.exception() is None
        and not opening.result().is_closed
    )


def _look(opening: asyncio.Task[ClientConnection]) -> None:
    """It is no mistake if every caller has given up waiting."""
    if not opening.cancelled():
        opening.exception()
