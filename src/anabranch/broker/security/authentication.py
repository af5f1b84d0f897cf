"""Authentication: turns the credentials of clients and REST callers into a role and its time of expiry.

The role of a client certificate is its common name; TLS verifies the certificate.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from anabranch.broker.errors import BrokerError
from anabranch.broker.security.rights import ANONYMOUS
from anabranch.wire import pulsar_pb2 as pb


class AuthenticationFailed(BrokerError):
    """The credentials prove nothing. The text says why, and never contains the credentials; `reason` is for the
    metrics, in the few words of Pulsar's providers."""

    code = pb.AuthenticationError

    def __init__(self, text: str, reason: str = "INVALID_AUTH_DATA", *, has_expired: bool = False) -> None:
        super().__init__(text)
        self.reason = reason
        self.has_expired = has_expired


class TooManyTries(AuthenticationFailed):
    """The credentials were not verified: they may be correct, and clients send them again."""

    code = pb.TooManyRequests

    def __init__(self) -> None:
        super().__init__("too many passwords are being tried: try again in a moment", "TOO_MANY_TRIES")


@dataclass(frozen=True, slots=True)
class Identity:
    role: str
    expires_s: float | None = None  # In seconds, as time.time(); None: never.

    def is_expired(self, now_s: float) -> bool:
        return self.expires_s is not None and now_s >= self.expires_s


NOBODY: Final = Identity(ANONYMOUS)


class TokenReader(Protocol):
    def identify(self, token: bytes, now_s: float) -> Identity:
        """The identity that the token proves. AuthenticationFailed if it proves none, or has expired."""
        ...


class PasswordReader(Protocol):
    """Reads `user:password`. Verifying a pair takes a while, but only once."""

    def identify(self, proof: bytes) -> Identity | None:
        """The identity, if the pair was verified before."""
        ...

    async def learn(self, proof: bytes, host: str, now_s: float) -> Identity:
        """Verifies the pair. AuthenticationFailed if it is wrong, or `host` has tried too many."""
        ...


@dataclass(frozen=True, slots=True)
class Authentication:
    """The credentials that this broker accepts."""

    tokens: TokenReader | None = None
    passwords: PasswordReader | None = None
    has_certificates: bool = False
    # The role of clients without credentials, or with an unknown method; empty: they are refused.
    anonymous_role: str = ""

    def takes_time(self, method: str, proof: bytes) -> bool:
        """Whether `learn` has to be called before `identify`."""
        return method == "basic" and self.passwords is not None and self.passwords.identify(proof) is None

    async def learn(self, proof: bytes, host: str, now_s: float) -> None:
        """Verifies a password. AuthenticationFailed if it is wrong."""
        assert self.passwords is not None
        await self.passwords.learn(proof, host, now_s)

    def identify(
        self, method: str, proof: bytes, now_s: float, certificate: Mapping[str, Any] | None = None
    ) -> Identity:
        """The identity that the credentials prove. `certificate` is verified by TLS, as `ssl` returns it."""
        if method == "token" and self.tokens is not None:
            return self.tokens.identify(proof, now_s)
        if method == "basic" and self.passwords is not None:
            if (found := self.passwords.identify(proof)) is not None:
                return found
            raise AuthenticationFailed("unknown user or wrong password", "INVALID_TOKEN")
        if method == "tls" and self.has_certificates:
            return Identity(_common_name(certificate))
        if self.anonymous_role:
            # The client would get the same role without credentials, and Pulsar's brokers accept it likewise.
            return Identity(self.anonymous_role)
        if method in ("", "none"):
            raise AuthenticationFailed(f"authentication is required: {self._ways()}")
        raise AuthenticationFailed(f"authentication method {method[:40]!r} is not known here: {self._ways()}")

    def shown(self, header: str, certificate: Mapping[str, Any] | None = None) -> tuple[str, bytes]:
        """The method and the credentials of an HTTP request: its Authorization header, or without one its
        certificate."""
        scheme, _, rest = header.strip().partition(" ")
        match scheme.lower():
            case "":
                return ("tls" if certificate and self.has_certificates else ""), b""
            case "bearer":
                return "token", rest.strip().encode()
            case "basic":
                return "basic", _from_base64(rest)
        # The text does not contain the header: it may be the bare token.
        raise AuthenticationFailed(
            "the Authorization header has a scheme that is not known here: send Bearer and a token, or Basic",
            "INVALID_HEADER",
        )

    @property
    def challenge(self) -> str:
        """For the WWW-Authenticate header of a refusal."""
        return 'Basic realm="anabranch"' if self.tokens is None and self.passwords is not None else "Bearer"

    def _ways(self) -> str:
        ways = ["show a token"] if self.tokens is not None else []
        if self.passwords is not None:
            ways.append("give a user and password")
        if self.has_certificates:
            ways.append("come with a client certificate")
        return " or ".join(ways) or "no method is configured here"


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise AuthenticationFailed(
            "the Authorization header is not Basic and user:password in base64", "INVALID_HEADER"
        ) from None


def _common_name(certificate: Mapping[str, Any] | None) -> str:
    for part in (certificate or {}).get("subject", ()):
        for name, value in part:
            if name == "commonName" and value:
                return str(value)
    raise AuthenticationFailed("no client certificate with a common name was sent", "INVALID_CERTS")
