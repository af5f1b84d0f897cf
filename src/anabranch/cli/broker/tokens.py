"""`anabranch tokens`: keys that sign tokens, tokens for roles, and the content of a token. No action needs a broker.

The options are those of `pulsar tokens`, and so are the files: secrets are bytes, or text with `--base64`, key pairs
are DER. Pulsar's brokers accept tokens and keys of this command, and ours accept those of `pulsar tokens`.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import secrets
import sys
import time
from pathlib import Path
from typing import Any, Final

from anabranch.broker.config import units
from anabranch.cli.parsing.options import UsageError, pairs

SECRET_BYTES: Final = {"HS256": 32, "HS384": 48, "HS512": 64}
RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
CURVES: Final = {"ES256": "SECP256R1", "ES384": "SECP384R1", "ES512": "SECP521R1"}
PUBLIC: Final = (*RSA, *CURVES)
KEY: Final = "file:///path, or data:;base64,…"


def declare(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def action(name: str, help: str) -> argparse.ArgumentParser:
        made = actions.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
        made.set_defaults(module="broker.tokens", action=name)
        made.add_argument("--json", action="store_true", help="print JSON")
        return made

    secret = action("create-secret-key", "make a secret that signs tokens and checks them")
    secret.add_argument("-o", "--output", metavar="FILE", help="where to (default: printed, in base64)")
    secret.add_argument("-b", "--base64", action="store_true", help="write text instead of bytes")
    _algorithm(secret, list(SECRET_BYTES), "HS256")
    pair = action(
        "create-key-pair", "make a private key that signs tokens, and a public one that checks them"
    )
    pair.add_argument("--output-private-key", required=True, metavar="FILE", help="keep it away from brokers")
    pair.add_argument("--output-public-key", required=True, metavar="FILE", help="for the broker")
    _algorithm(pair, PUBLIC, "RS256")
    create = action("create", "make a token")
    create.add_argument("-s", "--subject", required=True, metavar="ROLE", help="whose it is")
    create.add_argument(
        "-e",
        "--expiry-time",
        metavar="TIME",
        help="for how long, as in 30s, 10m, 5h, 7d, 1y (default: for ever)",
    )
    create.add_argument(
        "-c",
        "--claim",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another claim; may be repeated",
    )
    _keys(create, "private", "secret or private key that signs it")
    for name, help in (
        ("show", "print what a token says, without checking it"),
        ("validate", "check a token"),
    ):
        made = action(name, help)
        made.add_argument("token", nargs="?", help="or file:///path (default: standard input)")
        if name == "validate":
            _keys(made, "public", "secret or public key that checks it")


def _keys(parser: argparse.ArgumentParser, kind: str, title: str) -> None:
    group = parser.add_argument_group(title)
    key = group.add_mutually_exclusive_group(required=True)
    key.add_argument("-sk", "--secret-key", metavar="KEY", help=KEY)
    key.add_argument("-pk", f"--{kind}-key", metavar="KEY", help=KEY)
    _algorithm(parser, [*SECRET_BYTES, *PUBLIC], None)


def _algorithm(parser: argparse.ArgumentParser, choices: Any, default: str | None) -> None:
    shown = default or "HS256 with a secret, RS256 or ES256 with a key"
    parser.add_argument(
        "-a",
        "--signature-algorithm",
        choices=choices,
        default=default,
        help=f"(default: {shown})",
        metavar="ALG",
    )


def run(arguments: argparse.Namespace) -> int:
    match arguments.action:
        case "create-secret-key":
            made = _create_secret(arguments)
            shown = made.get("secretKey", "")
        case "create-key-pair":
            made, shown = _create_pair(arguments), ""
        case "create":
            made = {"token": _create(arguments)}
            shown = made["token"]
        case "show":
            header, claims = _parts(_given(arguments))
            made, shown = {"header": header, "claims": claims}, f"{json.dumps(header)}\n{json.dumps(claims)}"
        case _:
            made = _validate(arguments)
            shown = json.dumps(made)
    if arguments.json or shown:
        print(json.dumps(made) if arguments.json else shown)
    return 0


# -- keys


def _create_secret(arguments: argparse.Namespace) -> dict[str, Any]:
    secret = secrets.token_bytes(SECRET_BYTES[arguments.signature_algorithm])
    if arguments.output is None:
        return {"secretKey": base64.b64encode(secret).decode()}
    _write(arguments.output, base64.b64encode(secret) if arguments.base64 else secret)
    return {"file": arguments.output}


def _create_pair(arguments: argparse.Namespace) -> dict[str, Any]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    algorithm: str = arguments.signature_algorithm
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
    if algorithm in CURVES:
        key = ec.generate_private_key(getattr(ec, CURVES[algorithm])())
    else:
        key = rsa.generate_private_key(65537, 2048 if algorithm.endswith("256") else 4096)
    private = key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    _write(arguments.output_private_key, private)
    _write(arguments.output_public_key, public, is_secret=False)
    return {"privateKey": arguments.output_private_key, "publicKey": arguments.output_public_key}


def _write(path: str, data: bytes, *, is_secret: bool = True) -> None:
    """Never overwrites an existing file: with a key, all tokens that it signed would be lost."""
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(path, flags, 0o600 if is_secret else 0o644), "wb") as file:
            file.write(data)
    except FileExistsError:
        raise UsageError(f"{path} exists already: choose another name, or remove it") from None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None


def _private_key(place: str) -> Any:
    from cryptography.hazmat.primitives.serialization import load_der_private_key, load_pem_private_key

    from anabranch.broker.security.tokens import read_secret

    data = read_secret("--private-key", place)
    try:
        load = load_pem_private_key if b"-----BEGIN" in data else load_der_private_key
        return load(data, None)
    except (ValueError, TypeError) as error:
        raise UsageError(f"--private-key is no private key in PEM or DER: {error}") from None


def _usual(key: Any) -> str:
    """The default algorithm for a key."""
    from cryptography.hazmat.primitives.asymmetric import ec

    if not isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey):
        return "RS256"
    return {256: "ES256", 384: "ES384"}.get(key.curve.key_size, "ES512")


# -- tokens


def _create(arguments: argparse.Namespace) -> str:
    import jwt

    from anabranch.broker.security.tokens import SECRET_BYTES_MIN, read_secret

    key: Any
    if arguments.secret_key is not None:
        key = read_secret("--secret-key", arguments.secret_key)
        if len(key) < SECRET_BYTES_MIN:
            raise UsageError(f"--secret-key has {len(key)} bytes: brokers require {SECRET_BYTES_MIN} or more")
        algorithm = arguments.signature_algorithm or "HS256"
    else:
        key = _private_key(arguments.private_key)
        algorithm = arguments.signature_algorithm or _usual(key)
    claims: dict[str, Any] = {**pairs(arguments.claim, "--claim"), "sub": arguments.subject}
    if arguments.expiry_time is not None:
        claims["exp"] = int(time.time() + _seconds(arguments.expiry_time))
    try:
        return jwt.encode(claims, key, algorithm)
    except (jwt.PyJWTError, TypeError, ValueError) as error:
        raise UsageError(f"the key cannot sign with {algorithm}: {error}") from None


def _seconds(text: str) -> float:
    try:
        if text.endswith("y"):
            return units.seconds(text.removesuffix("y") + "d") * 365
        return units.seconds(text)
    except ValueError:
        raise UsageError(f"--expiry-time {text!r}: expected a time such as 30s, 10m, 5h, 7d or 1y") from None


def _given(arguments: argparse.Namespace) -> str:
    text: str = arguments.token if arguments.token is not None else sys.stdin.read()
    if text.startswith("file:"):
        from anabranch.broker.security.tokens import read_secret

        text = read_secret("the token", text).decode("utf-8", "replace")
    elif os.path.isfile(text):
        raise UsageError(f"{text} is a file: say file://{Path(text).resolve()}")
    return text.strip().removeprefix("token:")


def _parts(token: str) -> list[dict[str, Any]]:
    import jwt

    try:
        return [jwt.get_unverified_header(token), jwt.decode(token, options={"verify_signature": False})]
    except jwt.PyJWTError as error:
        raise UsageError(f"that is no token: {error}") from None


def _validate(arguments: argparse.Namespace) -> dict[str, Any]:
    from anabranch.broker.security.tokens import Tokens, public_key, read_secret

    token = _given(arguments)
    key: Any
    if arguments.secret_key is not None:
        key, usual = read_secret("--secret-key", arguments.secret_key), list(SECRET_BYTES)
    else:
        key = public_key(arguments.public_key, "--public-key")
        usual = [_usual(key)] if _usual(key).startswith("ES") else list(RSA)
    algorithms = [arguments.signature_algorithm] if arguments.signature_algorithm else usual
    # AuthenticationFailed has the reason that a broker would give.
    Tokens(key, algorithms).identify(token.encode(), time.time())
    return _parts(token)[1]
