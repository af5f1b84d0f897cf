"""How a connection gets its role: at CONNECT, and again when what was shown has run out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from anabranch.broker.authentication import Authentication, AuthenticationFailed, Identity
from anabranch.broker.authorization import ANONYMOUS, NotAuthorizedError, Proxied
from anabranch.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from anabranch.broker.session import Session

log = logging.getLogger(__name__)

# What Pulsar's brokers put into the challenge, and its clients look for.
REFRESH: Final = b"PulsarAuthRefresh"
# The protocol's version from which clients understand a challenge.
CHALLENGE_VERSION: Final = 14
NOBODY: Final = Identity(ANONYMOUS)


class SignIn:
    """Without authentication everybody is nobody, and welcome."""

    def __init__(
        self,
        authentication: Authentication | None,
        now_ms: Callable[[], int],
        *,
        answer_max_s: float = 30.0,
        has_rights: bool = False,
        proxy_roles: Collection[str] = (),
    ) -> None:
        """`answer_max_s`: how long a client may take to show something newer. `has_rights`: whether roles differ in
        what they may do, so that it matters for whom a proxy speaks."""
        self._authentication = authentication
        self._now_ms = now_ms
        self._answer_max_s = answer_max_s
        self._has_rights = has_rights
        self._proxy_roles = frozenset(proxy_roles)

    @property
    def challenge(self) -> str:
        return self._authentication.challenge if self._authentication is not None else "Bearer"

    def _now_s(self) -> float:
        return self._now_ms() / 1000

    def caller(
        self, header: str, certificate: Mapping[str, Any] | None = None, original: str = ""
    ) -> Identity:
        """Of an HTTP request, by its Authorization header, or its certificate. AuthenticationFailed or
        NotAuthorizedError if it is not to be let in."""
        if self._authentication is None:
            return NOBODY
        found = self._authentication.identify_header(header, self._now_s(), certificate)
        return self._speaking(found, original)

    def _speaking(self, identity: Identity, original: str) -> Identity:
        """For whom a proxy speaks. It must say so, and nobody else may."""
        role = identity.role
        if not self._has_rights:
            return identity
        if role in self._proxy_roles:
            if not original or original in self._proxy_roles:
                raise NotAuthorizedError(f"proxy {role!r} must name the role that it speaks for")
            return replace(identity, role=Proxied(role, original))
        if original and original != role:
            raise NotAuthorizedError(
                f"role {role!r} may not speak for another one: add it to proxyRoles, or connect without a proxy"
            )
        return identity

    def connect(self, session: Session, connect: pb.CommandConnect) -> bool:
        """Whether it is let in; if not it is told why, and disconnected."""
        if self._authentication is None:
            return True
        try:
            shown = self._identified(session, connect.auth_method_name, connect.auth_data)
            session.sign_in(self._speaking(shown, connect.original_principal))
        except (AuthenticationFailed, NotAuthorizedError) as error:
            session.refuse(error)
            return False
        return True

    def answer(self, session: Session, answer: pb.CommandAuthResponse) -> None:
        """A challenged client shows what it has by now. It must still be the same one."""
        if self._authentication is None:
            return
        shown = answer.response
        try:
            found = self._identified(session, shown.auth_method_name, shown.auth_data)
            if found.role != session.role:
                raise AuthenticationFailed(f"the connection belongs to another role than {found.role!r}")
        except AuthenticationFailed as error:
            session.refuse(error)
            return
        session.sign_in(replace(found, role=session.role))

    def _identified(self, session: Session, method: str, proof: bytes) -> Identity:
        assert self._authentication is not None
        return self._authentication.identify(method, proof, self._now_s(), session.peer_certificate)

    def look(self, session: Session) -> None:
        """To be called now and then: asks for something newer, and ends connections that do not answer."""
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
        session.refuse(AuthenticationFailed("the token has expired: connect with a new one"))

    @staticmethod
    def _challenge(session: Session) -> pb.BaseCommand:
        command = pb.BaseCommand(type=pb.BaseCommand.AUTH_CHALLENGE)
        challenge = command.authChallenge
        challenge.server_version = session.broker.server_version
        challenge.protocol_version = session.connection.version
        challenge.challenge.auth_method_name = "token"
        challenge.challenge.auth_data = REFRESH
        return command
