"""End-to-end encryption, compatible with Pulsar's clients: brokers store payloads that they cannot read.

A producer makes an AES-256 data key, encrypts each entry with it (GCM, a fresh 12-byte nonce, the tag behind), and
sends the data key along, encrypted once for every public key. Each holder of one of the private keys can read. Payloads
are compressed first and then encrypted; each chunk of a large message is encrypted separately.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from anabranch.client.errors import BadArgument, CryptoFailed, Unsupported
from anabranch.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

DATA_KEY_BITS: Final = 256
NONCE_BYTES: Final = 12
# How long a data key is used. Readers receive it again with every entry, and keep some thousands of data keys.
ROTATE_S: Final = 4 * 3600.0
DATA_KEYS_MAX: Final = 4096

Loader: TypeAlias = Callable[[str], str | bytes]
Key: TypeAlias = str | bytes | Path | Loader
OnFailure: TypeAlias = Literal["fail", "skip", "deliver"]


@dataclass(slots=True)
class Encryption:
    """Keys by name. A producer needs public keys and encrypts for all of them; a consumer needs one private key.

    A key is PEM text, the path of a PEM file, or a function of the name that returns PEM; it is read again at each
    rotation. Public keys may be certificates. `private_keys` may also be one function for every name.

    `on_failure` says what a consumer does with a message that it cannot decrypt: "fail" raises CryptoFailed from
    `receive`, "skip" acknowledges and drops the message, "deliver" delivers the encrypted bytes.
    """

    public_keys: Mapping[str, Key] = field(default_factory=dict)
    private_keys: Mapping[str, Key] | Loader = field(default_factory=dict)
    on_failure: OnFailure = "fail"
    rotate_s: float = ROTATE_S
    now_s: Callable[[], float] = field(default=time.monotonic, repr=False)
    _sealing: _DataKey | None = field(default=None, init=False, repr=False)
    # Data keys of other producers by their encrypted form, the oldest first.
    _opened: OrderedDict[bytes, AESGCM] = field(default_factory=OrderedDict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.on_failure not in ("fail", "skip", "deliver"):
            raise BadArgument(f"on_failure is {self.on_failure!r}: give 'fail', 'skip' or 'deliver'")
        if not self.public_keys and not self.private_keys:
            raise BadArgument("no keys: a producer needs public_keys, a consumer private_keys")
        _sealing()

    # -- writing

    def check_can_encrypt(self) -> None:
        """Makes a data key, so that a missing or broken public key is noticed when a producer is opened."""
        self._data_key()

    def encrypt(self, metadata: pb.MessageMetadata, payload: bytes | memoryview) -> bytes:
        """Returns the encrypted payload, and adds what decryption needs to the entry's metadata."""
        key = self._data_key()
        nonce = os.urandom(NONCE_BYTES)
        metadata.encryption_param = nonce
        del metadata.encryption_keys[:]
        metadata.encryption_keys.extend(key.sealed)
        return key.cipher.encrypt(nonce, payload, None)

    def _data_key(self) -> _DataKey:
        if self._sealing is None or self.now_s() - self._sealing.since_s >= self.rotate_s:
            if not self.public_keys:
                raise BadArgument("a producer that encrypts needs public_keys")
            aes: type[AESGCM] = _sealing().AESGCM
            secret = aes.generate_key(DATA_KEY_BITS)
            sealed = [
                pb.EncryptionKeys(key=name, value=_seal(name, key, secret))
                for name, key in self.public_keys.items()
            ]
            self._sealing = _DataKey(aes(secret), sealed, self.now_s())
        return self._sealing

    # -- reading

    def decrypt(self, metadata: pb.MessageMetadata, payload: bytes | memoryview) -> bytes:
        """Returns the decrypted payload of an entry. Raises CryptoFailed if none of our keys decrypts it."""
        tried: list[str] = []
        for sealed in metadata.encryption_keys:
            try:
                cipher = self._opened.get(sealed.value) or self._open(sealed)
                return cipher.decrypt(metadata.encryption_param, payload, None)
            except (_sealing().InvalidTag, ValueError):  # Or an invalid nonce: any producer can send one.
                tried.append(f"{sealed.key} (the message is not what was encrypted)")
            except CryptoFailed as failed:
                tried.append(f"{sealed.key} ({failed})")
        raise CryptoFailed(
            f"a message encrypted for {', '.join(tried) or 'no key at all'}: give the consumer one of these keys in "
            "private_keys, or say on_failure='skip' or 'deliver'"
        )

    def _open(self, sealed: pb.EncryptionKeys) -> AESGCM:
        if callable(self.private_keys):
            key: Key = self.private_keys
        elif sealed.key in self.private_keys:
            key = self.private_keys[sealed.key]
        else:
            raise CryptoFailed("no private key of that name")
        aes: type[AESGCM] = _sealing().AESGCM
        try:
            cipher = aes(_sealing().unseal(_pem(sealed.key, key), sealed.value))
        except ValueError:
            raise CryptoFailed("our key of that name does not fit") from None
        self._opened[sealed.value] = cipher
        while len(self._opened) > DATA_KEYS_MAX:
            self._opened.popitem(last=False)
        return cipher


@dataclass(frozen=True, slots=True)
class _DataKey:
    cipher: AESGCM
    sealed: list[pb.EncryptionKeys]
    since_s: float


def _sealing() -> ModuleType:
    try:
        from anabranch.client.crypto import key_wrap as sealing
    except ImportError:
        raise Unsupported(
            "encryption needs the package `cryptography`: pip install anabranch[encryption]"
        ) from None
    return sealing


def _seal(name: str, key: Key, secret: bytes) -> bytes:
    try:
        sealed: bytes = _sealing().seal(_pem(name, key), secret)
    except (CryptoFailed, Unsupported) as error:
        raise type(error)(f"public key {name}: {error}") from None
    return sealed


def _pem(name: str, key: Key) -> bytes:
    if callable(key):
        key = key(name)
    elif isinstance(key, Path) or (isinstance(key, str) and "-----BEGIN" not in key):
        try:
            return Path(key).read_bytes()
        except OSError as error:
            raise CryptoFailed(str(error)) from error
    return key.encode() if isinstance(key, str) else key
