"""Encryption: the format, rotation, missing keys. Pulsar's own clients read and write it in tests/interop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from anabranch.client.crypto.encryption import ROTATE_S, Encryption
from anabranch.client.crypto.key_wrap import unseal
from anabranch.client.errors import BadArgument, CryptoFailed, Unsupported
from anabranch.wire import pulsar_pb2 as pb

# A data key that Bouncy Castle 1.84 (as Pulsar's Java client calls it) sealed for this key: the bytes 0 to 31.
CURVE_KEY = b"""\
-----BEGIN PRIVATE KEY-----
MIGTAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBHkwdwIBAQQgO9OT7dTnqTbIrQzQ
hXe4Fg0GZ+XrcY3K6fJo35iq076gCgYIKoZIzj0DAQehRANCAATyAn1Zj7Vu0QW9
YFLf4d7jcmfl8vXyZ/xiLQ0b200yxAhd6mPpPQNFJjRBmJtxHl1XknYioIGzFZuz
MmpT51Ps
-----END PRIVATE KEY-----
"""
SEALED_BY_JAVA = bytes.fromhex(
    "040a56922e36e73346f542fa606f4ea3873f1396576cbf4094c790826d3f7b489777665a883f6b4d8e2a513e7ad8ad36"
    "57179784685454c7163fb35c5272fef7ac69e2937f398e2c6cfae467ee3fc808a9408ecc15ce9833cae466c961864345"
    "378030d6d335b52bf8787427603246a1b24c4c7e85"
)


def pems(private: Any) -> tuple[bytes, bytes]:
    """The public and the private half in PEM."""
    return (
        private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        ),
    )


PUBLIC, PRIVATE = pems(rsa.generate_private_key(65537, 2048))
OTHER_PUBLIC, OTHER_PRIVATE = pems(rsa.generate_private_key(65537, 2048))


def sealed(encryption: Encryption, payload: bytes = b"secret") -> tuple[pb.MessageMetadata, bytes]:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    return metadata, encryption.encrypt(metadata, payload)


def test_whoever_has_one_of_the_private_keys_can_read() -> None:
    metadata, hidden = sealed(Encryption(public_keys={"a": PUBLIC, "b": OTHER_PUBLIC}))
    assert b"secret" not in hidden
    assert [key.key for key in metadata.encryption_keys] == ["a", "b"]
    for name, key in (("a", PRIVATE), ("b", OTHER_PRIVATE)):
        assert Encryption(private_keys={name: key}).decrypt(metadata, hidden) == b"secret"


def test_keys_are_pem_text_files_or_functions_of_the_name(tmp_path: Path) -> None:
    (tmp_path / "public.pem").write_bytes(PUBLIC)
    (tmp_path / "private.pem").write_bytes(PRIVATE)
    asked: list[str] = []

    def load(name: str) -> bytes:
        asked.append(name)
        return PRIVATE

    for public in (PUBLIC, PUBLIC.decode(), tmp_path / "public.pem", str(tmp_path / "public.pem")):
        metadata, hidden = sealed(Encryption(public_keys={"k": public}))
        for private in ({"k": PRIVATE.decode()}, {"k": tmp_path / "private.pem"}, {"k": load}, load):
            assert Encryption(private_keys=private).decrypt(metadata, hidden) == b"secret"
    assert set(asked) == {"k"}


def test_each_entry_has_a_nonce_of_its_own_and_the_data_key_is_sealed_once() -> None:
    encryption = Encryption(public_keys={"k": PUBLIC})
    (one, _), (two, _) = sealed(encryption), sealed(encryption)
    assert one.encryption_param != two.encryption_param
    assert len(one.encryption_param) == 12
    assert one.encryption_keys[0].value == two.encryption_keys[0].value


def test_the_data_key_changes_after_four_hours_and_older_messages_stay_readable() -> None:
    now = [0.0]
    writer = Encryption(public_keys={"k": PUBLIC}, now_s=lambda: now[0])
    reader = Encryption(private_keys={"k": PRIVATE})
    found = []
    for now[0] in (0.0, ROTATE_S - 1, ROTATE_S):
        found.append(sealed(writer, b"%d" % now[0]))
    keys = [metadata.encryption_keys[0].value for metadata, _ in found]
    assert keys[0] == keys[1] != keys[2]
    assert [reader.decrypt(*one) for one in found] == [b"0", b"14399", b"14400"]


def test_a_data_key_is_opened_once() -> None:
    opened = []

    def load(name: str) -> bytes:
        opened.append(name)
        return PRIVATE

    writer, reader = Encryption(public_keys={"k": PUBLIC}), Encryption(private_keys=load)
    for _ in range(3):
        reader.decrypt(*sealed(writer))
    assert opened == ["k"]


def test_encrypting_again_replaces_the_keys_of_the_metadata() -> None:
    encryption = Encryption(public_keys={"k": PUBLIC})
    metadata, _ = sealed(encryption)
    again = encryption.encrypt(metadata, b"again")
    assert len(metadata.encryption_keys) == 1
    assert Encryption(private_keys={"k": PRIVATE}).decrypt(metadata, again) == b"again"


@pytest.mark.parametrize(
    ("reader", "says"),
    [
        (lambda: Encryption(private_keys={"other": PRIVATE}), "k .no private key of that name"),
        (lambda: Encryption(private_keys={"k": OTHER_PRIVATE}), "k .our key of that name does not fit"),
        (lambda: Encryption(private_keys={"k": b"nonsense"}), "k .not a private key in PEM"),
        (lambda: Encryption(private_keys={"k": "missing.pem"}), "missing.pem"),
    ],
)
def test_a_message_that_no_key_opens_says_which_keys_would(
    reader: Callable[[], Encryption], says: str
) -> None:
    metadata, hidden = sealed(Encryption(public_keys={"k": PUBLIC}))
    with pytest.raises(CryptoFailed, match=says):
        reader().decrypt(metadata, hidden)


@pytest.mark.parametrize("nonce", [b"", b"short", b"x" * 200])
def test_a_nonce_that_is_none_is_a_message_that_cannot_be_read(nonce: bytes) -> None:
    metadata, hidden = sealed(Encryption(public_keys={"k": PUBLIC}))
    metadata.encryption_param = nonce
    with pytest.raises(CryptoFailed, match="not what was encrypted"):
        Encryption(private_keys={"k": PRIVATE}).decrypt(metadata, hidden)


def test_a_message_that_was_changed_is_refused() -> None:
    metadata, hidden = sealed(Encryption(public_keys={"k": PUBLIC}))
    changed = bytes([hidden[0] ^ 1]) + hidden[1:]
    with pytest.raises(CryptoFailed, match="not what was encrypted"):
        Encryption(private_keys={"k": PRIVATE}).decrypt(metadata, changed)


def test_a_broken_public_key_shows_when_a_producer_is_opened() -> None:
    for key, error in ((b"nonsense", CryptoFailed), (Path("missing.pem"), CryptoFailed)):
        with pytest.raises(error, match="public key k: "):
            Encryption(public_keys={"k": key}).check_can_encrypt()
    signing = ed25519.Ed25519PrivateKey.generate().public_key()
    pem = signing.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(Unsupported, match=r"public key k: .* give an RSA key"):
        Encryption(public_keys={"k": pem}).check_can_encrypt()
    with pytest.raises(BadArgument, match="needs public_keys"):
        Encryption(private_keys={"k": PRIVATE}).check_can_encrypt()


def test_senseless_settings_are_refused() -> None:
    with pytest.raises(BadArgument, match="'fail', 'skip' or 'deliver'"):
        Encryption(public_keys={"k": PUBLIC}, on_failure="drop")  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="no keys"):
        Encryption()


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()], ids=lambda c: c.name)
def test_keys_of_elliptic_curves_seal_and_unseal(curve: ec.EllipticCurve) -> None:
    public, private = pems(ec.generate_private_key(curve))
    metadata, hidden = sealed(Encryption(public_keys={"k": public}))
    assert Encryption(private_keys={"k": private}).decrypt(metadata, hidden) == b"secret"
    _, other = pems(ec.generate_private_key(curve))
    with pytest.raises(CryptoFailed, match="does not fit"):
        Encryption(private_keys={"k": other}).decrypt(metadata, hidden)


def test_what_javas_client_sealed_for_a_curve_is_unsealed() -> None:
    assert unseal(CURVE_KEY, SEALED_BY_JAVA) == bytes(range(32))
