"""Users and their passwords, from a file that `htpasswd` or `openssl passwd` has made. Pure.

Hashes are those of Apache and of crypt(3): `$apr1$`, `$1$` (MD5), `$5$` (SHA-256) and `$6$` (SHA-512). Python's own
module for them is gone since 3.13. bcrypt would need a library of its own, and the old DES hash looks at eight
characters only: files with either are refused with advice.

A right password is remembered, as a digest under a key of this process, since a hash takes milliseconds to compute and
clients show it with every connection and every request.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from anabranch.broker.authentication import AuthenticationFailed, Identity
from anabranch.broker.config import ConfigError

_ALPHABET: Final = "./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_HASH: Final = re.compile(r"\$(apr1|1|5|6)\$(?:rounds=(\d{1,9})\$)?([^$:]{0,16})\$([./0-9A-Za-z]+)")
_ROUNDS: Final = 5000
_ROUNDS_MAX: Final = 100_000  # A file with more would stop the broker for a second with each wrong password.
_REMEMBERED_MAX: Final = 10_000
PROOF_BYTES_MAX: Final = 1024
# Some tens of milliseconds of each second at most.
TRIES_PER_S: Final = 10
TRIES_AT_ONCE: Final = 50
# What an unknown user's password is compared with, so that it takes as long as a known one's.
_NOBODY: Final = "$apr1$nobody..$................"


class Passwords:
    """Reads what clients show: `user:password`.

    Hashing takes the event loop's time, so it is done so often a second and no oftener: whoever guesses passwords does
    not hold up publishing. Those that were right before are not hashed again.
    """

    def __init__(self, hashes: Mapping[str, str]) -> None:
        self._hashes = dict(hashes)
        self._tries_left = float(TRIES_AT_ONCE)
        self._tried_s = 0.0
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()

    def identify(self, proof: bytes, now_s: float) -> Identity:
        """AuthenticationFailed for an unknown user or a wrong password, without saying which."""
        if len(proof) > PROOF_BYTES_MAX:
            raise AuthenticationFailed(f"user and password are longer than {PROOF_BYTES_MAX} bytes")
        name, colon, password = proof.partition(b":")
        if not colon:
            raise AuthenticationFailed("no user and password were shown: send user:password")
        user = name.decode("utf-8", "replace")
        mark = hmac.digest(self._key, proof, "sha256")
        if mark in self._right:
            self._right.move_to_end(mark)
            return Identity(user)
        self._spend(now_s)
        stored = self._hashes.get(user)
        is_right = verify(password, stored or _NOBODY)
        if stored is None or not is_right:
            raise AuthenticationFailed("unknown user or wrong password")
        self._right[mark] = None
        if len(self._right) > _REMEMBERED_MAX:
            self._right.popitem(last=False)
        return Identity(user)

    def _spend(self, now_s: float) -> None:
        passed_s = max(0.0, now_s - self._tried_s)
        self._tried_s = now_s
        self._tries_left = min(TRIES_AT_ONCE, self._tries_left + passed_s * TRIES_PER_S)
        if self._tries_left < 1:
            raise AuthenticationFailed("too many passwords are being tried: try again in a moment")
        self._tries_left -= 1


def read(text: str) -> Passwords:
    """ConfigError for a line that no password can be right for."""
    hashes: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        user, colon, stored = line.partition(":")
        if not user or not colon or not _is_known(stored):
            raise ConfigError(
                f"basicAuthConf, line {number}: expected user:hash with a hash of `htpasswd -nm` (MD5) or of "
                "`openssl passwd -6` (SHA-512); bcrypt and plain crypt are not taken"
            )
        hashes[user] = stored
    if not hashes:
        raise ConfigError("basicAuthConf has no users: add lines as `htpasswd -nm USER` prints them")
    return Passwords(hashes)


def _is_known(stored: str) -> bool:
    found = _HASH.fullmatch(stored)
    return found is not None and int(found[2] or _ROUNDS) <= _ROUNDS_MAX


def verify(password: bytes, stored: str) -> bool:
    """Whether `stored` is a hash of the password. `stored` must be one of those that `read` takes."""
    found = _HASH.fullmatch(stored)
    assert found is not None
    kind, rounds, salt = found[1], found[2], found[3].encode()
    if kind in ("apr1", "1"):
        digest = _md5_crypt(password, salt[:8], f"${kind}$".encode())
    else:
        hashing = hashlib.sha256 if kind == "5" else hashlib.sha512
        digest = _sha_crypt(password, salt, max(1000, int(rounds or _ROUNDS)), hashing)
    return hmac.compare_digest(digest, found[4])


# -- the hashes


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _md5_crypt(password: bytes, salt: bytes, magic: bytes) -> str:
    size = len(password)
    inner = _md5(password + salt + password)
    start = password + magic + salt + _repeated(inner, size)
    bits = size
    while bits:
        start += b"\0" if bits & 1 else password[:1]
        bits >>= 1
    digest = _md5(start)
    for turn in range(1000):
        is_odd = turn & 1
        digest = _md5(
            (password if is_odd else digest)
            + (salt if turn % 3 else b"")
            + (password if turn % 7 else b"")
            + (digest if is_odd else password)
        )
    groups = [(i, i + 6, i + 12 if i < 4 else 5) for i in range(5)]
    return _encoded(digest, groups) + _sixes(digest[11], 2)


def _sha_crypt(password: bytes, salt: bytes, rounds: int, hashing: Callable[[bytes], hashlib._Hash]) -> str:
    size = len(password)
    inner = hashing(password + salt + password).digest()
    start = password + salt + _repeated(inner, size)
    bits = size
    while bits:
        start += inner if bits & 1 else password
        bits >>= 1
    digest = hashing(start).digest()
    own = _repeated(hashing(password * size).digest(), size)
    spice = _repeated(hashing(salt * (16 + digest[0])).digest(), len(salt))
    for turn in range(rounds):
        is_odd = turn & 1
        digest = hashing(
            (own if is_odd else digest)
            + (spice if turn % 3 else b"")
            + (own if turn % 7 else b"")
            + (digest if is_odd else own)
        ).digest()
    return _sha256_text(digest) if len(digest) == 32 else _sha512_text(digest)


def _sha256_text(digest: bytes) -> str:
    groups, at = [], (0, 10, 20)
    for _ in range(10):
        groups.append(at)
        at = (at[2] + 1, at[0] + 1, at[1] + 1)
    return _encoded(digest, groups) + _sixes(digest[31] << 8 | digest[30], 3)


def _sha512_text(digest: bytes) -> str:
    groups, at = [], (0, 21, 42)
    for _ in range(21):
        groups.append(at)
        at = (at[1] + 1, at[2] + 1, at[0] + 1)
    return _encoded(digest, groups) + _sixes(digest[63], 2)


def _repeated(data: bytes, size: int) -> bytes:
    return (data * (size // len(data) + 1))[:size]


def _encoded(digest: bytes, groups: Iterable[tuple[int, int, int]]) -> str:
    return "".join(_sixes(digest[a] << 16 | digest[b] << 8 | digest[c], 4) for a, b, c in groups)


def _sixes(value: int, count: int) -> str:
    """The lowest six bits first."""
    return "".join(_ALPHABET[value >> 6 * i & 63] for i in range(count))
