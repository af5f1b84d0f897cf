"""How a connection gets its role: at CONNECT, and again when its credentials have expired."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from anabranch.broker.connection.session import ClientSession
from anabranch.broker.security.authentication import NOBODY, Authentication, AuthenticationFailed, Identity
from anabranch.broker.security.rights import NotAuthorizedError, Proxied
from anabranch.broker.security.sign_in_counts import SignInCounts
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.connection import NO_REQUEST, State

log = logging.getLogger(__name__)

# Pulsar's brokers put this into the challenge, and its clients look for it.
REFRESH: Final = b"PulsarAuthRefresh"
# The first protocol version whose clients understand a challenge.
CHALLENGE_VERSION: Final = 14


class SignIn:
    """Identifies clients. Without authentication every client is accepted, without a role."""

    def __init__(
        self,
        authentication: Authentication | None,
        now_ms: Callable[[], int],
        *,
        server_version: str = "",
        answer_max_s: float = 30.0,
        has_rights: bool = False,
        proxy_roles: Collection[str] = (),
    ) -> None:
        """`server_version`: sent to clients. `answer_max_s`: how long a client may take to show newer credentials.
        `has_rights`: whether roles differ in their rights, so that the role that a proxy acts for matters."""
        self._authentication = authentication
        self._now_ms = now_ms
        self._server_version = server_version
        self._answer_max_s = answer_max_s
        self._has_rights = has_rights
        self._proxy_roles = frozenset(proxy_roles)
        self.counts = SignInCounts()

    @property
    def challenge(self) -> str:
        return self._authentication.challenge if self._authentication is not None else "Bearer"

    def _now_s(self) -> float:
        return self._now_ms() / 1000

    async def caller(
        self,
        header: str,
        certificate: Mapping[str, Any] | None = None,
        original: str = "",
        host: str = "",
    ) -> Identity:
        """The identity of an HTTP request, by its Authorization header or its certificate. Raises AuthenticationFailed
        or NotAuthorizedError if the request is refused."""
        known = self._authentication
        if known is None:
            return NOBODY
        method = "unknown"
        try:
            method, proof = known.shown(header, certificate)
            if known.takes_time(method, proof):
                await known.learn(proof, host, self._now_s())
            found = known.identify(method, proof, self._now_s(), certificate)
        except AuthenticationFailed as error:
            self.counts.failed(method, error)
            raise
        self.counts.succeeded(method, found, self._now_s())
        return self._speaking(found, original)

    def _speaking(self, identity: Identity, original: str) -> Identity:
        """The identity, with the role that a proxy acts for. Only a proxy may name another role, and it must."""
        role = identity.role
        if not self._has_rights:
            return identity
        if role in self._proxy_roles:
            if not original or original in self._proxy_roles:
                raise NotAuthorizedError(f"proxy {role!r} must name the role that it acts for")
            return replace(identity, role=Proxied(role, original))
        if original and original != role:
            raise NotAuthorizedError(
                f"role {role!r} may not act for another one: add it to proxyRoles, or connect without a proxy"
            )
        return identity

    def connect(self, session: ClientSession, connect: pb.CommandConnect, accept: Callable[[], None]) -> None:
        """Calls `accept` if the client is accepted; else the client is sent the reason and disconnected."""
        if self._authentication is None:
            accept()
            return

        def shown(identity: Identity) -> None:
            session.sign_in(self._speaking(identity, connect.original_principal))
            accept()

        self._identify(session, connect.auth_method_name, connect.auth_data, shown)

    def answer(self, session: ClientSession, answer: pb.CommandAuthResponse) -> None:
        """A challenged client shows its current credentials. Its role must still be the same."""
        if self._authentication is None:
            return

        def shown(identity: Identity) -> None:
            if identity.role != session.role:
                raise AuthenticationFailed(f"the connection belongs to another role than {identity.role!r}")
            session.sign_in(replace(identity, role=session.role))

        self._identify(session, answer.response.auth_method_name, answer.response.auth_data, shown)

    def _identify(
        self, session: ClientSession, method: str, proof: bytes, then: Callable[[Identity], None]
    ) -> None:
        """Calls `then` with the identity, before returning unless identifying takes time."""
        assert self._authentication is not None
        if self._authentication.takes_time(method, proof):
            session.spawn(NO_REQUEST, self._learn(session, method, proof, then))
        else:
            self._act(session, method, proof, then)

    async def _learn(
        self, session: ClientSession, method: str, proof: bytes, then: Callable[[Identity], None]
    ) -> None:
        assert self._authentication is not None
        try:
            await self._authentication.learn(proof, session.host, self._now_s())
        except AuthenticationFailed as error:
            self.counts.failed(method, error)
            session.refuse(error)
            return
        # A client that did not wait for the answer has broken the protocol, and has been refused meanwhile.
        if session.is_open and session.connection.state is not State.CLOSED:
            self._act(session, method, proof, then)

    def _act(
        self, session: ClientSession, method: str, proof: bytes, then: Callable[[Identity], None]
    ) -> None:
        assert self._authentication is not None
        now_s = self._now_s()
        try:
            found = self._authentication.identify(method, proof, now_s, session.peer_certificate)
        except AuthenticationFailed as error:
            self.counts.failed(method, error)
            session.refuse(error)
            return
        self.counts.succeeded(method, found, now_s)
        try:
            then(found)
        except (AuthenticationFailed, NotAuthorizedError) as error:
            session.refuse(error)

    def look(self, session: ClientSession) -> None:
        """To be called regularly: challenges clients with expired credentials, and disconnects those that do not
        answer."""
        now_s = self._now_s()
        if not session.identity.is_expired(now_s):
            return
        connection = session.connection
        if session.challenged_s is None:
            can_answer = connection.peer_features.supports_auth_refresh
            if can_answer and connection.version >= CHALLENGE_VERSION:
                session.challenged_s = now_s
                session.send(self._challenge(session))
                return
        elif now_s < session.challenged_s + self._answer_max_s:
            return
        self.counts.expired += 1
        session.refuse(AuthenticationFailed("the token has expired: connect with a new one"))

    def _challenge(self, session: ClientSession) -> pb.BaseCommand:
        command = pb.BaseCommand(type=pb.BaseCommand.AUTH_CHALLENGE)
        challenge = command.authChallenge
        challenge.server_version = self._server_version
        challenge.protocol_version = session.connection.version
        challenge.challenge.auth_method_name = "token"
        challenge.challenge.auth_data = REFRESH
        return command
