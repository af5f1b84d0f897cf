"""How a connection gets its role: at CONNECT, and again when what was shown has run out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from anabranch.broker.authentication import Authentication, AuthenticationFailed, Identity
from anabranch.broker.authorization import ANONYMOUS
from anabranch.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from anabranch.broker.session import Session

log = logging.getLogger(__name__)

# What Pulsar's brokers put into the challenge, and its clients look for.
REFRESH: Final = b"PulsarAuthRefresh"
# How long a client may take to show something newer.
ANSWER_MAX_S: Final = 30.0
# The protocol's version from which clients understand a challenge.
CHALLENGE_VERSION: Final = 14
NOBODY: Final = Identity(ANONYMOUS)


class SignIn:
    """Without authentication everybody is nobody, and welcome."""

    def __init__(self, authentication: Authentication | None, now_ms: Callable[[], int]) -> None:
        self._authentication = authentication
        self._now_ms = now_ms

    def _now_s(self) -> float:
        return self._now_ms() / 1000

    def caller(self, header: str) -> Identity:
        """Of an HTTP request, by its Authorization header. AuthenticationFailed if it is not to be let in."""
        if self._authentication is None:
            return NOBODY
        return self._authentication.identify_header(header, self._now_s())

    def connect(self, session: Session, connect: pb.CommandConnect) -> bool:
        """Whether it is let in; if not it is told why, and disconnected."""
        if self._authentication is None:
            return True
        try:
            session.sign_in(self._identified(session, connect.auth_method_name, connect.auth_data))
        except AuthenticationFailed as error:
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
        session.sign_in(found)

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
        elif now_s < session.challenged_s + ANSWER_MAX_S:
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
