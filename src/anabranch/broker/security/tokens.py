"""JSON Web Tokens, signed with a secret (HS256 and longer) or a private key (RS, PS, ES), and the settings that say
which are valid. Pure but for reading the key. Imported only if authentication is on.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote_to_bytes, urlsplit
from urllib.request import url2pathname

import jwt
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key

from anabranch.broker.config.config import BrokerConfig, ConfigError
from anabranch.broker.security import passwords
from anabranch.broker.security.authentication import Authentication, AuthenticationFailed, Identity

_SECRET_ALGORITHMS: Final = ("HS256", "HS384", "HS512")
_PUBLIC_ALGORITHMS: Final = tuple(f"{kind}{bits}" for kind in ("RS", "PS", "ES") for bits in (256, 384, 512))
# HS256 is no stronger than its secret.
SECRET_BYTES_MIN: Final = 32
PROOF_BYTES_MAX: Final = 64 << 10
# Times, audience and role are checked here, with the broker's clock and settings.
_UNCHECKED: Final[Any] = {f"verify_{claim}": False for claim in ("exp", "nbf", "iat", "aud", "sub", "jti")}


@dataclass(frozen=True, slots=True)
class Tokens:
    """Verifies tokens of one issuer."""

    key: Any = field(repr=False)
    algorithms: Sequence[str]
    claim: str = "sub"
    audience_claim: str = ""
    audience: str = ""
    skew_s: float = 0.0

    def identify(self, token: bytes, now_s: float) -> Identity:
        if len(token) > PROOF_BYTES_MAX:
            raise AuthenticationFailed(f"the token is longer than {PROOF_BYTES_MAX} bytes", "INVALID_TOKEN")
        try:
            claims = jwt.decode(
                token,
                self.key,
                algorithms=list(self.algorithms),
                options=_UNCHECKED,
            )
        except jwt.InvalidSignatureError:
            raise AuthenticationFailed(
                "the token was not signed with this broker's key: ask for a new one", "INVALID_TOKEN"
            ) from None
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            why = str(error) if token.count(b".") == 2 else "a token is three parts with dots between them"
            raise AuthenticationFailed(f"the token cannot be read: {why}", "INVALID_TOKEN") from None
        expires_s = _time(claims, "exp")
        if expires_s is not None:
            expires_s += self.skew_s
        if expires_s is not None and now_s >= expires_s:
            raise AuthenticationFailed(
                "the token has expired: ask for a new one", "INVALID_TOKEN", has_expired=True
            )
        if (_time(claims, "nbf") or 0.0) - self.skew_s > now_s:
            raise AuthenticationFailed("the token is not valid yet", "INVALID_TOKEN")
        self._check_audience(claims)
        return Identity(self._role(claims), expires_s)

    def _role(self, claims: Mapping[str, Any]) -> str:
        role = claims.get(self.claim)
        if isinstance(role, list) and role:
            role = role[0]
        if not isinstance(role, str) or not role:
            raise AuthenticationFailed(
                f"the token has no claim {self.claim!r}, which names the role", "INVALID_TOKEN"
            )
        return role

    def _check_audience(self, claims: Mapping[str, Any]) -> None:
        if not self.audience_claim:
            return
        found = claims.get(self.audience_claim)
        if self.audience not in (found if isinstance(found, list) else [found]):
            raise AuthenticationFailed(f"the token is not for {self.audience!r}", "INVALID_AUDIENCES")


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except OverflowError:
        pass
    raise AuthenticationFailed(f"the token's {name!r} is no time", "INVALID_TOKEN")


# -- settings


_PROVIDERS: Final = frozenset(f"AuthenticationProvider{kind}" for kind in ("Token", "Basic", "Tls"))


def authentication(config: BrokerConfig) -> Authentication:
    """The authentication of the settings. ConfigError for unusable keys."""
    wanted = {name.rpartition(".")[2] for name in config.authentication_providers}
    if unknown := wanted - _PROVIDERS:
        raise ConfigError(
            f"authenticationProviders: {', '.join(sorted(unknown))} is not known here; give some of "
            f"{', '.join(sorted(_PROVIDERS))}, or leave it out"
        )
    wanted = wanted or set(_PROVIDERS)
    tokens = _tokens(config) if "AuthenticationProviderToken" in wanted else None
    users = passwords.read(_text("basicAuthConf", config.basic_auth_conf)) if config.basic_auth_conf else None
    if "AuthenticationProviderBasic" not in wanted:
        users = None
    has_port = config.broker_service_port_tls or config.web_service_port_tls
    has_certificates = bool(has_port and config.tls_trust_certs_file_path)
    has_certificates &= "AuthenticationProviderTls" in wanted
    if tokens is None and users is None and not has_certificates:
        raise ConfigError(
            "authenticationEnabled needs an authentication method: set tokenSecretKey or tokenPublicKey, or "
            "basicAuthConf, or brokerServicePortTls with tlsTrustCertsFilePath"
        )
    return Authentication(tokens, users, has_certificates, config.anonymous_user_role)


def _text(name: str, place: str) -> str:
    try:
        return read_secret(name, place).decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{name} is no text: give a file as `htpasswd` makes it") from None


def _tokens(config: BrokerConfig) -> Tokens | None:
    if bool(config.token_audience_claim) != bool(config.token_audience):
        raise ConfigError("tokenAudienceClaim and tokenAudience belong together: set both")
    if config.token_secret_key:
        secret = read_secret("tokenSecretKey", config.token_secret_key)
        if len(secret) < SECRET_BYTES_MIN:
            raise ConfigError(
                f"tokenSecretKey has {len(secret)} bytes: it must have at least {SECRET_BYTES_MIN}; make one with "
                "`openssl rand -out secret.key 32`"
            )
        return _reader(config, secret, _SECRET_ALGORITHMS)
    if config.token_public_key:
        if config.token_public_alg not in _PUBLIC_ALGORITHMS:
            raise ConfigError(
                f"tokenPublicAlg = {config.token_public_alg!r}: give one of {', '.join(_PUBLIC_ALGORITHMS)}"
            )
        return _reader(config, public_key(config.token_public_key), [config.token_public_alg])
    return None


def _reader(config: BrokerConfig, key: Any, algorithms: Sequence[str]) -> Tokens:
    return Tokens(
        key,
        algorithms,
        config.token_auth_claim,
        config.token_audience_claim,
        config.token_audience,
        config.token_allowed_clock_skew_seconds,
    )


def read_secret(name: str, place: str) -> bytes:
    """Reads `file:///path`, `data:;base64,…`, a path, or the bytes themselves in base64, as Pulsar does."""
    try:
        if place.startswith("data:"):
            kind, _, data = place.removeprefix("data:").partition(",")
            return base64.b64decode(data) if kind.endswith(";base64") else unquote_to_bytes(data)
        path = Path(url2pathname(urlsplit(place).path)) if place.startswith("file:") else Path(place)
        if place.startswith("file:") or path.exists():
            return path.read_bytes()
        return base64.b64decode(place, validate=True)
    except (OSError, binascii.Error, ValueError) as error:
        # Without the value: it may be the secret itself.
        raise ConfigError(
            f"{name} cannot be read: {getattr(error, 'strerror', None) or error}; give file:///path or data:;base64,…"
        ) from None


def public_key(place: str, name: str = "tokenPublicKey") -> Any:
    data = read_secret(name, place)
    try:
        return load_pem_public_key(data) if b"-----BEGIN" in data else load_der_public_key(data)
    except ValueError as error:
        raise ConfigError(f"{name} is no public key in PEM or DER: {error}") from None
