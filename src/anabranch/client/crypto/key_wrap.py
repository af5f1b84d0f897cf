"""Wraps data keys for one public key: RSA or elliptic curves. The only module that needs `cryptography`.

Both forms are those of Pulsar's clients: RSA-OAEP with SHA-1, which all of them read, and for elliptic curves ECIES in
Bouncy Castle's form, which only the Java client has. Neither relies on SHA-1 being free of collisions.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from anabranch.client.errors import CryptoFailed, Unsupported

__all__ = ["AESGCM", "InvalidTag", "seal", "unseal"]

_OAEP: Final = padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None)
_MAC_KEY_BYTES: Final = 16
_MAC_BYTES: Final = 20


def seal(pem: bytes, secret: bytes) -> bytes:
    """Encrypts the secret for the holder of the private key. `pem` is a public key or a certificate."""
    try:
        if b"BEGIN CERTIFICATE" in pem:
            public: object = x509.load_pem_x509_certificate(pem).public_key()
        else:
            public = serialization.load_pem_public_key(_without_parameters(pem))
    except ValueError as error:
        raise CryptoFailed(f"not a public key in PEM: {error}") from error
    if isinstance(public, rsa.RSAPublicKey):
        return public.encrypt(secret, _OAEP)
    if isinstance(public, ec.EllipticCurvePublicKey):
        return _seal_by_curve(public, secret)
    raise Unsupported(
        f"a key of {type(public).__name__} cannot encrypt: give an RSA key of 2048 bits or more"
    )


def unseal(pem: bytes, sealed: bytes) -> bytes:
    """Decrypts the secret. Raises ValueError if it was encrypted for another key."""
    try:
        private = serialization.load_pem_private_key(_without_parameters(pem), None)
    except (ValueError, TypeError) as error:
        raise CryptoFailed(f"not a private key in PEM without a password: {error}") from error
    if isinstance(private, rsa.RSAPrivateKey):
        return private.decrypt(sealed, _OAEP)
    if isinstance(private, ec.EllipticCurvePrivateKey):
        return _unseal_by_curve(private, sealed)
    raise Unsupported(f"a key of {type(private).__name__} cannot decrypt: give an RSA key or one of a curve")


def _without_parameters(pem: bytes) -> bytes:
    """Removes a curve's parameters, which OpenSSL writes before the key; the key names its curve anyway."""
    end = b"-----END EC PARAMETERS-----"
    return pem.partition(end)[2].lstrip() if end in pem else pem


# -- ECIES: the point of a fresh key, the secret under a stream derived from the shared secret, and a MAC


def _seal_by_curve(public: ec.EllipticCurvePublicKey, secret: bytes) -> bytes:
    once = ec.generate_private_key(public.curve)
    point = _point(once.public_key())
    mac_key, stream = _keys(point, once.exchange(ec.ECDH(), public), len(secret))
    hidden = _xor(secret, stream)
    return point + hidden + _mac(mac_key, hidden)


def _unseal_by_curve(private: ec.EllipticCurvePrivateKey, sealed: bytes) -> bytes:
    at = 1 + 2 * ((private.curve.key_size + 7) // 8)
    point, hidden, mac = sealed[:at], sealed[at:-_MAC_BYTES], sealed[-_MAC_BYTES:]
    public = ec.EllipticCurvePublicKey.from_encoded_point(private.curve, point)
    mac_key, stream = _keys(point, private.exchange(ec.ECDH(), public), len(hidden))
    if not hmac.compare_digest(_mac(mac_key, hidden), mac):
        raise ValueError("encrypted for another key")
    return _xor(hidden, stream)


def _point(public: ec.EllipticCurvePublicKey) -> bytes:
    return public.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)


def _keys(point: bytes, shared: bytes, length: int) -> tuple[bytes, bytes]:
    """The MAC's key and a stream of `length` bytes, by KDF2 with SHA-1."""
    made = b""
    counter = 1
    while len(made) < _MAC_KEY_BYTES + length:
        made += hashlib.sha1(point + shared + counter.to_bytes(4, "big")).digest()
        counter += 1
    return made[:_MAC_KEY_BYTES], made[_MAC_KEY_BYTES : _MAC_KEY_BYTES + length]


def _mac(key: bytes, hidden: bytes) -> bytes:
    # The eight bytes are the length of optional parameters, which are absent.
    return hmac.digest(key, hidden + bytes(8), "sha1")


def _xor(data: bytes, stream: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(data, stream, strict=True))
