"""How a client authenticates, and which brokers it trusts. The values can be pickled; other modules open connections.

Security(token="eyJhbGciOi…")                       # or "file:///run/secrets/token", read for each connection
Security(tls_trust_certs_file="ca.pem")             # for pulsar+ssl:// addresses; without it the system's authorities
Security(username="ann", password="…")
Security(tls_certificate_file="me.pem", tls_key_file="me.key")      # authenticates by certificate
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from anabranch.client.errors import AccessFailed, BadArgument

PLAIN_SCHEME = "pulsar"
TLS_SCHEME = "pulsar+ssl"
Token = str | Callable[[], str]


@dataclass(frozen=True, slots=True)
class Security:
    # The token, "token:…", "file://…", or a function that returns it. Not shown: it is a secret.
    token: Token | None = field(default=None, repr=False)
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls_trust_certs_file: str | None = None
    tls_certificate_file: str | None = None
    tls_key_file: str | None = None
    # Trusts any broker: for experiments only.
    tls_allow_insecure: bool = False
    # Whether the broker's certificate must be for the host name of its address.
    tls_check_host_name: bool = True

    def __post_init__(self) -> None:
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise BadArgument("tls_certificate_file and tls_key_file belong together: give both")
        if (self.username is None) != (self.password is None):
            raise BadArgument("username and password belong together: give both")
        if self.username is not None and self.token is not None:
            raise BadArgument("token and username are two ways to say who you are: give one")
        if isinstance(self.token, str) and not self.token.strip():
            raise BadArgument("token is empty: leave it out, or give one")

    @property
    def method(self) -> str:
        """The name of the authentication method on the wire."""
        if self.token is not None:
            return "token"
        if self.username is not None:
            return "basic"
        return "tls" if self.tls_certificate_file is not None else "none"

    def proof(self) -> bytes:
        """The data that is sent with CONNECT, and when a broker asks again.

        Raises AccessFailed if a file cannot be read, or the application's function returns no token: reconnecting code
        retries after this error, and after no other."""
        if self.username is not None:
            return f"{self.username}:{self.password}".encode()
        if self.token is None:
            return b""
        try:
            token = self.token if isinstance(self.token, str) else self.token()
            if token.startswith("file:"):
                token = _text(url2pathname(urlsplit(token).path))
            return token.removeprefix("token:").strip().encode()
        except AccessFailed:
            raise
        except Exception as error:
            raise AccessFailed(f"token: the function that returns it has failed: {error!r}") from error

    def answer(self, challenge: bytes) -> bytes:
        """The data that is sent when a broker asks for more, or again."""
        return self.proof()

    @property
    def is_of_peer(self) -> bool:
        """Whether the connection is one of brokers, which exchange requests of their own."""
        return False

    def headers(self) -> dict[str, str]:
        """The same for the admin REST."""
        if self.username is not None:
            return {"Authorization": f"Basic {base64.b64encode(self.proof()).decode()}"}
        return {} if self.token is None else {"Authorization": f"Bearer {self.proof().decode()}"}

    def tls(self) -> ssl.SSLContext:
        """The TLS context. Raises AccessFailed if a file is missing or holds something else."""
        try:
            context = ssl.create_default_context(cafile=self.tls_trust_certs_file)
            if self.tls_certificate_file is not None:
                context.load_cert_chain(self.tls_certificate_file, self.tls_key_file)
        except (OSError, ssl.SSLError) as error:
            named = [
                f"{name}={value!r}"
                for name in ("tls_trust_certs_file", "tls_certificate_file", "tls_key_file")
                if (value := getattr(self, name)) is not None
            ]
            raise AccessFailed(f"{', '.join(named)}: {error}; give files in PEM") from None
        context.check_hostname = self.tls_check_host_name and not self.tls_allow_insecure
        if self.tls_allow_insecure:
            context.verify_mode = ssl.CERT_NONE
        return context


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise AccessFailed(f"token: {path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise AccessFailed(f"token: {path} cannot be read: {error}") from None


NOBODY = Security()
