"""Tokens: which prove something, and what is said of those that do not."""

from __future__ import annotations

import base64
import hmac
import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.config.config import BrokerConfig, ConfigError
from anabranch.broker.security.authentication import Authentication, AuthenticationFailed, Identity
from anabranch.broker.security.tokens import authentication

SECRET = bytes(range(32))
NOW_S = 1_700_000_000.0


def data_url(data: bytes) -> str:
    return "data:;base64," + base64.b64encode(data).decode()


def required(**settings: Any) -> Authentication:
    settings.setdefault("token_secret_key", data_url(SECRET))
    return authentication(BrokerConfig(authentication_enabled=True, **settings))


def signed(key: Any = SECRET, algorithm: str = "HS256", **claims: Any) -> bytes:
    # Below the library's own checks of what issuers may write.
    return jwt.api_jws.encode(json.dumps({"sub": "alice", **claims}).encode(), key, algorithm).encode()


def test_a_token_signed_with_the_secret_names_its_role_and_its_end() -> None:
    assert required().identify("token", signed(exp=NOW_S + 10), NOW_S) == Identity("alice", NOW_S + 10)
    assert required().identify("token", signed(), NOW_S) == Identity("alice")
    assert required(token_auth_claim="roles").identify("token", signed(roles=["b", "c"]), NOW_S).role == "b"


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (signed(exp=NOW_S), "has expired"),
        (signed(nbf=NOW_S + 1), "not valid yet"),
        (signed(bytes(32)), "not signed with this broker's key"),
        (signed(exp="soon"), "no time"),
        (signed(exp=10**400), "no time"),
        (signed(exp=float("nan")), "no time"),
        (signed(nbf=float("inf")), "no time"),
        (signed(sub=5), "no claim 'sub'"),
        (signed(sub=""), "no claim 'sub'"),
        (b"", "token cannot be read: a token is three parts with dots"),
        (b"secret", "token cannot be read: a token is three parts with dots"),
        (b"x.y.z", "token cannot be read"),
        (b"a" * 100_000, "longer than"),
        (jwt.encode({"sub": "alice"}, "", "none").encode(), "token cannot be read"),
    ],
)
def test_a_token_that_proves_nothing_is_refused_with_the_reason(token: bytes, why: str) -> None:
    with pytest.raises(AuthenticationFailed, match=why) as refused:
        required().identify("token", token, NOW_S)
    assert token == b"" or token.decode() not in str(refused.value)


def test_what_has_no_end_and_what_names_several_is_taken_as_in_pulsar() -> None:
    assert required().identify("token", signed(), NOW_S).expires_s is None
    assert required().identify("token", signed(sub=["alice", "bob"]), NOW_S).role == "alice"
    assert required().identify("token", signed(iat=NOW_S + 1000, jti=7), NOW_S).role == "alice"


def test_clocks_may_differ_by_as_much_as_is_allowed() -> None:
    known = required(token_allowed_clock_skew_seconds=10)
    assert known.identify("token", signed(exp=NOW_S - 9), NOW_S) == Identity("alice", NOW_S + 1)
    assert known.identify("token", signed(nbf=NOW_S + 10), NOW_S).role == "alice"
    for late in (signed(exp=NOW_S - 10), signed(nbf=NOW_S + 11)):
        with pytest.raises(AuthenticationFailed):
            known.identify("token", late, NOW_S)


def test_a_public_key_is_no_secret_to_sign_with() -> None:
    """The header of a token says how it was signed; whoever believes it takes the public key for a secret."""
    key = rsa.generate_private_key(65537, 2048).public_key()
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    for file in (pem, der):
        known = authentication(
            BrokerConfig(
                authentication_enabled=True, token_public_key=data_url(file), token_public_alg="RS256"
            )
        )
        for secret in (pem, der, pem.strip()):
            head, body = (
                base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
                for part in ({"alg": "HS256", "typ": "JWT"}, {"sub": "alice"})
            )
            mark = hmac.digest(secret, head + b"." + body, "sha256")
            forged = b".".join((head, body, base64.urlsafe_b64encode(mark).rstrip(b"=")))
            with pytest.raises(AuthenticationFailed, match="token cannot be read"):
                known.identify("token", forged, NOW_S)


@given(st.binary(max_size=200))
def test_no_bytes_are_taken_for_a_token(data: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        required().identify("token", data, NOW_S)


@pytest.mark.parametrize(
    ("algorithm", "private"),
    [("RS256", rsa.generate_private_key(65537, 2048)), ("ES256", ec.generate_private_key(ec.SECP256R1()))],
)
@pytest.mark.parametrize("encoding", [serialization.Encoding.PEM, serialization.Encoding.DER])
def test_public_keys_tell_who_signed(algorithm: str, private: Any, encoding: Any, tmp_path: Path) -> None:
    public = private.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
    file = tmp_path / "public.key"
    file.write_bytes(public)
    for place in (data_url(public), file.as_uri(), str(file)):
        found = required(token_secret_key="", token_public_key=place, token_public_alg=algorithm)
        assert found.identify("token", signed(private, algorithm), NOW_S).role == "alice"
        # The public key is no secret: a token signed with it as one must not get in.
        with pytest.raises(AuthenticationFailed):
            found.identify("token", signed(b"x" * 32), NOW_S)


def test_a_token_must_be_for_the_audience_that_is_asked_for() -> None:
    found = required(token_audience_claim="aud", token_audience="river")
    assert found.identify("token", signed(aud="river"), NOW_S).role == "alice"
    assert found.identify("token", signed(aud=["sea", "river"]), NOW_S).role == "alice"
    for token in (signed(), signed(aud="sea")):
        with pytest.raises(AuthenticationFailed, match="not for 'river'"):
            found.identify("token", token, NOW_S)


def test_nobody_gets_in_without_a_proof_unless_there_is_a_role_for_nobody() -> None:
    for method in ("", "none"):
        with pytest.raises(AuthenticationFailed, match="authentication is required: show a token"):
            required().identify(method, b"", NOW_S)
    with pytest.raises(AuthenticationFailed, match="method 'athenz' is not known"):
        required().identify("athenz", b"", NOW_S)


def test_an_anonymous_role_is_for_those_who_show_nothing_that_is_known_but_not_for_bad_proofs() -> None:
    open_to_guests = required(anonymous_user_role="guest")
    for method in ("", "none", "athenz", "basic", "tls"):
        assert open_to_guests.identify(method, b"", NOW_S).role == "guest"
    with pytest.raises(AuthenticationFailed):
        open_to_guests.identify("token", b"not one", NOW_S)


def test_a_certificate_counts_only_where_its_authority_is_known() -> None:
    certificate = {"subject": ((("countryName", "DE"),), (("commonName", "alice"),))}
    with pytest.raises(AuthenticationFailed, match="not known"):
        required().identify("tls", b"", NOW_S, certificate)
    known = Authentication(has_certificates=True)
    assert known.identify("tls", b"", NOW_S, certificate).role == "alice"
    with pytest.raises(AuthenticationFailed, match="no client certificate"):
        known.identify("tls", b"", NOW_S, None)


def test_http_callers_show_the_same_token() -> None:
    known = required()
    assert known.identify(*known.shown(f"Bearer {signed().decode()}"), NOW_S).role == "alice"
    for header in ("", "Basic YTpi", "Bearer", "Bearer nonsense", "nonsense"):
        with pytest.raises(AuthenticationFailed):
            known.identify(*known.shown(header), NOW_S)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"token_secret_key": ""}, "set tokenSecretKey or tokenPublicKey"),
        ({"token_secret_key": data_url(b"short")}, "has 5 bytes: it must have at least 32"),
        ({"token_secret_key": "file:///nowhere/secret.key"}, "tokenSecretKey cannot be read"),
        ({"token_secret_key": "", "token_public_key": data_url(b"no key")}, "no public key"),
        (
            {"token_secret_key": "", "token_public_key": data_url(b""), "token_public_alg": "HS256"},
            "tokenPublicAlg",
        ),
        ({"token_audience": "river"}, "belong together"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_the_start(settings: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        required(**settings)


def test_the_secret_is_not_among_the_settings_that_are_shown() -> None:
    config = BrokerConfig(authentication_enabled=True, token_secret_key=data_url(SECRET))
    assert config.spelled()["tokenSecretKey"] == "*****"
    assert base64.b64encode(SECRET).decode() not in repr(authentication(config))
