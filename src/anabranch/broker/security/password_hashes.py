"""Password hashes in the formats of Apache and crypt(3): `$apr1$`, `$1$` (MD5), `$5$` (SHA-256), `$6$` (SHA-512) and
the oldest, of 13 characters (DES). Pure.

Python's own module for them was removed in 3.13. bcrypt would need a library of its own, and Pulsar does not accept it
either.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable
from typing import Final

from anabranch.broker.security.des_crypt import des_crypt

_ALPHABET: Final = "./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_HASH: Final = re.compile(r"\$(apr1|1|5|6)\$(?:rounds=(\d{1,9})\$)?([^$:]{0,16})\$([./0-9A-Za-z]+)")
_DES: Final = re.compile(r"[./0-9A-Za-z]{13}")
_ROUNDS: Final = 5000
_ROUNDS_MAX: Final = 100_000  # With more, each wrong password would take a core for a second.


def is_weak(stored: str) -> bool:
    """Whether the hash uses the first eight characters of a password only."""
    return _DES.fullmatch(stored) is not None


def is_known(stored: str) -> bool:
    if is_weak(stored):
        return True
    found = _HASH.fullmatch(stored)
    return found is not None and int(found[2] or _ROUNDS) <= _ROUNDS_MAX


def verify(password: bytes, stored: str) -> bool:
    """Whether `stored` is a hash of the password. `stored` must be one that `is_known`."""
    if is_weak(stored):
        # The hash ignores zeros at the end.
        return b"\0" not in password and hmac.compare_digest(des_crypt(password, stored[:2]), stored)
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
