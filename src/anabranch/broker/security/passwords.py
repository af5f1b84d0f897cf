"""Users and their passwords, from a file in the format of `htpasswd` or `openssl passwd`.

A hash takes milliseconds to compute, and clients send their password with every connection and every request. So a
correct password is remembered, as a digest under a key of this process, and an unknown one is hashed in a thread, one
at a time. The number of wrong passwords is limited per address, and the time to hash them is limited for all addresses
together: a client that guesses passwords does not delay publishing, and cannot lock out users at other addresses for
long.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from anabranch.broker.config.config import ConfigError
from anabranch.broker.policy.rate_bucket import Pace
from anabranch.broker.security.authentication import AuthenticationFailed, Identity, TooManyTries
from anabranch.broker.security.password_hashes import is_known, is_weak, verify

log = logging.getLogger(__name__)

_REMEMBERED_MAX: Final = 10_000
PROOF_BYTES_MAX: Final = 1024
# Wrong passwords from one address: so many at once, and then so many in that time.
TRIES: Final = 20
TRIES_PERIOD_S: Final = 10.0
ADDRESSES_MAX: Final = 10_000
# For all addresses: a tenth of a core.
HASHING_MS: Final = 1_000
HASHING_PERIOD_S: Final = 10.0


class Passwords:
    """Verifies the credentials of clients: `user:password`."""

    def __init__(self, hashes: Mapping[str, str]) -> None:
        self._hashes = dict(hashes)
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, str] = OrderedDict()  # Digests of credentials, and their users.
        self._tries: OrderedDict[str, Pace] = OrderedDict()  # By address.
        self._hashing: Pace | None = None
        self._turn = asyncio.Lock()
        # Passwords of unknown users are compared with these: hashes that cost as much as those of known users.
        self._decoys = sorted(set(hashes.values()))

    def identify(self, proof: bytes) -> Identity | None:
        """The user, if the credentials are remembered."""
        mark = self._mark(proof)
        user = self._right.get(mark)
        if user is None:
            return None
        self._right.move_to_end(mark)
        return Identity(user)

    async def learn(self, proof: bytes, host: str, now_s: float) -> Identity:
        """Verifies the credentials. AuthenticationFailed for an unknown user or a wrong password, without saying
        which."""
        user, password = _parts(proof)
        stored = self._hashes.get(user) or self._decoy(user)
        async with self._turn:
            if (found := self.identify(proof)) is not None:
                return found  # Another connection with the same credentials was faster.
            paces = self._paces(host, now_s)
            if any(pace.wait_s(now_s) > 0 for pace in paces):
                raise TooManyTries
            is_right, took_ms = await asyncio.to_thread(_timed, password, stored)
        if user not in self._hashes or not is_right:
            # Correct passwords do not count as tries: each user has only one.
            for pace, cost in zip(paces, (1, took_ms), strict=True):
                pace.spend(cost, 0, now_s)
            raise AuthenticationFailed("unknown user or wrong password", "INVALID_TOKEN")
        self._right[self._mark(proof)] = user
        if len(self._right) > _REMEMBERED_MAX:
            self._right.popitem(last=False)
        return Identity(user)

    def _mark(self, proof: bytes) -> bytes:
        return hmac.digest(self._key, proof[: PROOF_BYTES_MAX + 1], "sha256")

    def _decoy(self, user: str) -> str:
        """Always the same hash for the same name."""
        number = int.from_bytes(hmac.digest(self._key, user.encode(), "sha256")[:8], "big")
        return self._decoys[number % len(self._decoys)]

    def _paces(self, host: str, now_s: float) -> tuple[Pace, Pace]:
        """The remaining tries of the address, and the remaining hashing time of all."""
        if self._hashing is None:
            self._hashing = Pace(HASHING_MS, 0, HASHING_PERIOD_S, now=now_s)
        tries = self._tries.setdefault(host, Pace(TRIES, 0, TRIES_PERIOD_S, now=now_s))
        self._tries.move_to_end(host)
        if len(self._tries) > ADDRESSES_MAX:
            self._tries.popitem(last=False)
        return tries, self._hashing


def _parts(proof: bytes) -> tuple[str, bytes]:
    if len(proof) > PROOF_BYTES_MAX:
        raise AuthenticationFailed(
            f"user and password are longer than {PROOF_BYTES_MAX} bytes", "INVALID_AUTH_DATA"
        )
    name, colon, password = proof.partition(b":")
    if not colon:
        raise AuthenticationFailed("no user and password were sent: send user:password", "INVALID_AUTH_DATA")
    return name.decode("utf-8", "replace"), password


def _timed(password: bytes, stored: str) -> tuple[bool, int]:
    """Whether the password is correct, and the CPU milliseconds that the check took, at least 1."""
    began = time.thread_time()
    is_right = verify(password, stored)
    return is_right, max(1, round((time.thread_time() - began) * 1000))


def read(text: str) -> Passwords:
    """Reads the file's text. ConfigError for a line without a usable hash."""
    hashes: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        user, colon, stored = line.partition(":")
        if not user or not colon or not is_known(stored):
            raise ConfigError(
                f"basicAuthConf, line {number}: expected user:hash with a hash of `htpasswd -nm` (MD5) or of "
                "`openssl passwd -6` (SHA-512); bcrypt (`htpasswd -B`) is accepted neither here nor by Pulsar"
            )
        hashes[user] = stored
    if not hashes:
        raise ConfigError("basicAuthConf has no users: add lines as `htpasswd -nm USER` prints them")
    if weak := [user for user, stored in hashes.items() if is_weak(stored)]:
        log.warning(
            "basicAuthConf: the hashes of %s look at eight characters of a password only: replace them with "
            "`htpasswd -nm`",
            ", ".join(weak[:10]) + (", …" if len(weak) > 10 else ""),
        )
    return Passwords(hashes)
