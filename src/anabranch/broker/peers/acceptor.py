"""Other brokers' connections to this one: their handshake, and the requests on them.

A connection becomes a broker's at CONNECT and stays one: it can carry nothing else. The caller must know the cluster's
secret, and be registered with the run id that it gives, for as long as the connection lasts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from anabranch.broker.peers.directory import PeerDirectory
from anabranch.broker.peers.errors import kind_of
from anabranch.broker.peers.handlers import PeerHandlers
from anabranch.broker.peers.handshake import METHOD, NONCE_BYTES, AcceptingHandshake, PeerIdentity
from anabranch.broker.security.authentication import AuthenticationFailed
from anabranch.errors import AnabranchError
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.connection import NO_REQUEST, Connection, State

log = logging.getLogger(__name__)

C = pb.BaseCommand


class PeerSession(Protocol):
    """A connection that is, or claims to be, another broker's."""

    connection: Connection
    peering: AcceptingHandshake | None
    peer: str

    @property
    def is_open(self) -> bool: ...

    def send(self, command: pb.BaseCommand) -> None: ...

    def write(self, pieces: tuple[bytes, ...]) -> None: ...

    def refuse(self, error: AnabranchError) -> None: ...

    def abort(self) -> None: ...

    def become_peer(self, peer: str) -> None: ...

    def spawn(self, request_id: int, work: Coroutine[Any, Any, None]) -> bool: ...


class PeerAcceptor:
    def __init__(
        self,
        me: PeerIdentity,
        directory: PeerDirectory,
        secret: Callable[[], bytes],
        handlers: PeerHandlers,
        random_bytes: Callable[[int], bytes],
        *,
        server_version: str,
    ) -> None:
        """`secret` raises AnabranchError while this broker accepts no others."""
        self._me = me
        self._directory = directory
        self._secret = secret
        self._handlers = handlers
        self._under_way: set[asyncio.Task[None]] = set()
        # Who linked with this broker. Those that are closed are removed at the next look.
        self._linked: dict[PeerSession, PeerIdentity] = {}
        self._random_bytes = random_bytes
        self._server_version = server_version

    def connect(self, session: PeerSession, connect: pb.CommandConnect) -> None:
        """The first command of a caller that says it is a broker."""
        try:
            nonce = self._random_bytes(NONCE_BYTES)
            session.peering = AcceptingHandshake(self._secret(), self._me, connect.auth_data, nonce)
        except AnabranchError as error:
            session.refuse(error)
            return
        command = C(type=C.AUTH_CHALLENGE)
        challenge = command.authChallenge
        challenge.server_version = self._server_version
        challenge.protocol_version = session.connection.version
        challenge.challenge.auth_method_name = METHOD
        challenge.challenge.auth_data = session.peering.challenge()
        session.send(command)

    def answer(self, session: PeerSession, answer: pb.CommandAuthResponse) -> None:
        """The caller's answer to the challenge."""
        assert session.peering is not None
        try:
            caller = session.peering.check(answer.response.auth_data)
        except AuthenticationFailed as error:
            session.refuse(error)
            return
        session.spawn(NO_REQUEST, self._accept(session, caller))

    async def _accept(self, session: PeerSession, caller: PeerIdentity) -> None:
        try:
            found = await self._directory.find(caller.id)
            if found is None or found.identity.run not in ("", caller.run):
                raise AuthenticationFailed(f"broker {caller.id}, run {caller.run}, is not registered")
        except AnabranchError as error:
            session.refuse(error)
            return
        # A caller that did not wait for the answer has broken the protocol, and has been refused meanwhile.
        if session.is_open and session.connection.state is State.HANDSHAKE:
            session.become_peer(caller.id)
            self._linked = {one: who for one, who in self._linked.items() if one.is_open}
            self._linked[session] = caller
            session.write((session.connection.accept(self._server_version, is_peer=True),))
            log.info("broker %s has linked with this one", caller.id, extra={"peer": caller.id})

    def living(self, before: Mapping[str, str], runs: Mapping[str, str]) -> None:
        """The registrations have changed: run ids by the ids of brokers, before and now. Links of brokers that are gone
        are dropped: one that was stopped for a while and wakes up must register before it is listened to."""
        for session, caller in list(self._linked.items()):
            was_seen = before.get(caller.id) == caller.run
            if not session.is_open:
                del self._linked[session]
            elif was_seen and runs.get(caller.id) != caller.run:
                log.info("broker %s is gone, dropping its link", caller.id, extra={"peer": caller.id})
                del self._linked[session]
                session.abort()

    def request(self, session: PeerSession, request: pb.CommandAnabranchPeer) -> None:
        session.spawn(request.request_id, self._serve(session, request))

    async def _serve(self, session: PeerSession, request: pb.CommandAnabranchPeer) -> None:
        """What was begun is finished, also if the caller is gone meanwhile: half a hand-over would be worse than
        one whose answer is lost. Waiting for it here bounds what a caller may have under way."""
        # Held in `_under_way` and cancelled by `close`.
        task = asyncio.get_running_loop().create_task(self._perform(session, request))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        await asyncio.shield(task)

    async def close(self) -> None:
        """Ends the requests that are under way."""
        tasks = list(self._under_way)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _perform(self, session: PeerSession, request: pb.CommandAnabranchPeer) -> None:
        command = C(type=C.ANABRANCH_PEER_RESPONSE)
        answer = command.anabranchPeerResponse
        answer.request_id = request.request_id
        try:
            answer.body = await self._handlers.perform(session.peer, request.method, request.body)
        except Exception as error:
            if not isinstance(error, AnabranchError):
                log.exception("request %s of broker %s failed", request.method, session.peer)
            answer.error = kind_of(error)
            answer.message = str(error) or type(error).__name__
        session.send(command)
