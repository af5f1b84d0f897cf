"""Who somebody is: what clients and REST callers show, turned into a role and the time until which it is good.

The role of a client certificate is its common name; that the certificate is good is TLS's to find out.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from anabranch.broker.errors import BrokerError
from anabranch.wire import pulsar_pb2 as pb


class AuthenticationFailed(BrokerError):
    """What was shown proves nothing. The text says why, and never what was shown; `reason` is for the metrics, in the
    words of Pulsar's providers, of which there are few."""

    code = pb.AuthenticationError

    def __init__(self, text: str, reason: str = "INVALID_AUTH_DATA", *, has_expired: bool = False) -> None:
        super().__init__(text)
        self.reason = reason
        self.has_expired = has_expired


@dataclass(frozen=True, slots=True)
class Identity:
    role: str
    expires_s: float | None = None  # As time.time() counts; None: never.

    def is_expired(self, now_s: float) -> bool:
        return self.expires_s is not None and now_s >= self.expires_s


class TokenReader(Protocol):
    def identify(self, token: bytes, now_s: float) -> Identity:
        """AuthenticationFailed for a token that proves nothing, or not any more."""
        ...


class PasswordReader(Protocol):
    """Of `user:password`. To find out whether they belong together takes a while, once."""

    def identify(self, proof: bytes) -> Identity | None:
        """If it is known already."""
        ...

    async def learn(self, proof: bytes, host: str, now_s: float) -> Identity:
        """AuthenticationFailed if they do not belong together, or `host` has tried too many."""
        ...


@dataclass(frozen=True, slots=True)
class Authentication:
    """What this broker takes for a proof."""

    tokens: TokenReader | None = None
    passwords: PasswordReader | None = None
    has_certificates: bool = False
    # Of those who show nothing, or something that is not known here; empty: they are refused.
    anonymous_role: str = ""

    def takes_time(self, method: str, proof: bytes) -> bool:
        """Whether `learn` has to come before `identify`."""
        return method == "basic" and self.passwords is not None and self.passwords.identify(proof) is None

    async def learn(self, proof: bytes, host: str, now_s: float) -> None:
        """AuthenticationFailed if there is nothing to be learned."""
        assert self.passwords is not None
        await self.passwords.learn(proof, host, now_s)

    def identify(
        self, method: str, proof: bytes, now_s: float, certificate: Mapping[str, Any] | None = None
    ) -> Identity:
        """`certificate` is what TLS has verified, as `ssl` gives it."""
        if method == "token" and self.tokens is not None:
            return self.tokens.identify(proof, now_s)
        if method == "basic" and self.passwords is not None:
            if (found := self.passwords.identify(proof)) is not None:
                return found
            raise AuthenticationFailed("unknown user or wrong password", "INVALID_TOKEN")
        if method == "tls" and self.has_certificates:
            return Identity(_common_name(certificate))
        if self.anonymous_role:
            # Nobody could learn more by showing nothing at all, and Pulsar's brokers let them in likewise.
            return Identity(self.anonymous_role)
        if method in ("", "none"):
            raise AuthenticationFailed(f"authentication is required: {self._ways()}")
        raise AuthenticationFailed(f"authentication method {method[:40]!r} is not known here: {self._ways()}")

    def shown(self, header: str, certificate: Mapping[str, Any] | None = None) -> tuple[str, bytes]:
        """The method and the proof of an HTTP request: by its Authorization header, without one by its certificate."""
        scheme, _, rest = header.strip().partition(" ")
        match scheme.lower():
            case "":
                return ("tls" if certificate and self.has_certificates else ""), b""
            case "bearer":
                return "token", rest.strip().encode()
            case "basic":
                return "basic", _from_base64(rest)
        # Not what was sent: somebody may have sent the token alone.
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
        return " or ".join(ways) or "nobody is known here"


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
    raise AuthenticationFailed("no client certificate with a common name was shown", "INVALID_CERTS")
