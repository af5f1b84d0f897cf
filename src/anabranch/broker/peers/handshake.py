"""How two brokers prove to each other that they know the cluster's secret. Holds no clock and no socket.

1. The caller sends a greeting: its id and run id, the id of the broker that it wants, a random number.
2. The acceptor answers with a challenge: its own id and run id, a random number, and its proof.
3. The caller checks that proof and answers with its own.

A proof is an HMAC over both ids, both run ids, both random numbers and the side that makes it. So a proof is worth
nothing to another broker, for another life of the same broker, for the other direction, or a second time. Proofs are
compared in constant time. They protect the handshake: on networks where others can change packets, use TLS.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from anabranch.broker.peers.errors import UNREADABLE
from anabranch.broker.security.authentication import AuthenticationFailed

# The name of the authentication method on the wire.
METHOD: Final = "anabranch-peer"
VERSION: Final = 1
NONCE_BYTES: Final = 32
_GREETING_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """A broker: its id (`host:port`, as it registers), and one life of it."""

    id: str
    run: str


class PeerGreeting(msgspec.Struct, frozen=True):
    """A caller's first words."""

    caller: str
    run: str
    wanted: str
    nonce: bytes
    version: int = VERSION


class PeerChallenge(msgspec.Struct, frozen=True):
    acceptor: str
    run: str
    nonce: bytes
    proof: bytes
    version: int = VERSION


class PeerProof(msgspec.Struct, frozen=True):
    proof: bytes


T = TypeVar("T")


def _read(data: bytes, kind: type[T]) -> T:
    if len(data) > _GREETING_BYTES_MAX:
        raise AuthenticationFailed("a broker's greeting is too long")
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except UNREADABLE as error:
        raise AuthenticationFailed(f"a broker's greeting cannot be read: {error}") from None


def _check_nonce(nonce: bytes) -> None:
    if len(nonce) != NONCE_BYTES:
        raise AuthenticationFailed("a broker's greeting has no random number of the right size")


def _proof(secret: bytes, side: str, greeting: PeerGreeting, challenge: PeerChallenge) -> bytes:
    # MessagePack marks where each part ends: no two lists of parts have the same bytes.
    signed = msgspec.msgpack.encode(
        [
            METHOD,
            side,
            greeting.version,
            challenge.version,
            greeting.caller,
            greeting.run,
            challenge.acceptor,
            challenge.run,
            greeting.nonce,
            challenge.nonce,
        ]
    )
    return hmac.digest(secret, signed, hashlib.sha256)


class CallingHandshake:
    """The caller's side of one connection."""

    def __init__(self, secret: bytes, me: PeerIdentity, wanted: PeerIdentity, nonce: bytes) -> None:
        """`wanted`: the broker to connect to; any run of it is accepted if its run id is empty."""
        self._secret = secret
        self._wanted = wanted
        self._greeting = PeerGreeting(me.id, me.run, wanted.id, nonce)
        # Whether the acceptor has proved that it knows the secret.
        self.is_proven = False

    def greeting(self) -> bytes:
        return msgspec.msgpack.encode(self._greeting)

    def answer(self, data: bytes) -> bytes:
        """The answer to the acceptor's challenge. AuthenticationFailed if that is not the broker that was wanted."""
        challenge = _read(data, PeerChallenge)
        _check_nonce(challenge.nonce)
        if not hmac.compare_digest(
            _proof(self._secret, "acceptor", self._greeting, challenge), challenge.proof
        ):
            raise AuthenticationFailed(f"broker {self._wanted.id} does not know the cluster's secret")
        if challenge.acceptor != self._wanted.id or (self._wanted.run and challenge.run != self._wanted.run):
            raise AuthenticationFailed(
                f"broker {challenge.acceptor}, run {challenge.run}, answers for broker {self._wanted.id}, "
                f"run {self._wanted.run}"
            )
        self.is_proven = True
        return msgspec.msgpack.encode(PeerProof(_proof(self._secret, "caller", self._greeting, challenge)))


class AcceptingHandshake:
    """The acceptor's side of one connection."""

    def __init__(self, secret: bytes, me: PeerIdentity, greeting: bytes, nonce: bytes) -> None:
        """AuthenticationFailed if the greeting is not one, or is meant for another broker."""
        self._secret = secret
        self._greeting = found = _read(greeting, PeerGreeting)
        _check_nonce(found.nonce)
        if found.wanted != me.id:
            raise AuthenticationFailed(f"this is broker {me.id}, not {found.wanted}")
        if not found.caller or found.caller == me.id:
            raise AuthenticationFailed(f"{found.caller!r} is not the id of another broker")
        unproven = PeerChallenge(me.id, me.run, nonce, b"")
        self._challenge = msgspec.structs.replace(unproven, proof=_proof(secret, "acceptor", found, unproven))
        self._is_answered = False

    @property
    def caller(self) -> PeerIdentity:
        """The broker that the caller says it is."""
        return PeerIdentity(self._greeting.caller, self._greeting.run)

    def challenge(self) -> bytes:
        return msgspec.msgpack.encode(self._challenge)

    def check(self, data: bytes) -> PeerIdentity:
        """The caller, which has proved that it knows the secret; else AuthenticationFailed. It has one try."""
        if self._is_answered:
            raise AuthenticationFailed("a broker answers its challenge only once")
        self._is_answered = True
        answer = _read(data, PeerProof)
        if not hmac.compare_digest(
            _proof(self._secret, "caller", self._greeting, self._challenge), answer.proof
        ):
            raise AuthenticationFailed(f"broker {self._greeting.caller} does not know the cluster's secret")
        return self.caller
