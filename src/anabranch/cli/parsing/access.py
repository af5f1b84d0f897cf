"""The user's identity, and the trusted brokers: the options of every command that connects to one.

Secrets need not stand on the command line, where others on the machine see them: a token may be in a file or in
$ANABRANCH_TOKEN, and a password is read from $ANABRANCH_PASSWORD or asked for.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from anabranch.cli.parsing.options import UsageError
from anabranch.cli.parsing.profiles import PROFILE

if TYPE_CHECKING:
    from anabranch.client.security import Security

TOKEN: Final = "ANABRANCH_TOKEN"
PASSWORD: Final = "ANABRANCH_PASSWORD"
TRUST_CERTS: Final = "ANABRANCH_TRUST_CERTS_FILE"


def declare_access(parser: argparse.ArgumentParser, *, is_inner: bool = False) -> None:
    """Declares the options. The defaults of an inner parser must not replace values given to the outer one."""

    def option(*names: str, default: Any = None, **how: Any) -> None:
        access.add_argument(*names, default=argparse.SUPPRESS if is_inner else default, **how)

    access = parser.add_argument_group("who you are, and whom you trust")
    option(
        "--profile",
        metavar="NAME",
        help=f"brokers and credentials under a name in ~/.config/anabranch/config.toml (default: ${PROFILE}, or the "
        "file's default)",
    )
    option(
        "--token",
        "--auth-token",
        dest="token",
        metavar="TOKEN",
        help=f"a token, or file:///path of one (default: ${TOKEN})",
    )
    option("--user", metavar="NAME", help=f"a user, whose password is ${PASSWORD} or is asked for")
    option(
        "--tls-trust-certs",
        metavar="FILE",
        help=f"authorities to trust in PEM, for pulsar+ssl:// and https:// (default: ${TRUST_CERTS}, or the system's)",
    )
    option("--tls-cert", metavar="FILE", help="your own certificate in PEM, for brokers that want one")
    option("--tls-key", metavar="FILE", help="the private key that belongs to it")
    option(
        "--tls-allow-insecure", action="store_true", default=False, help="trust any broker: for tries only"
    )


def security_of(arguments: argparse.Namespace) -> Security | None:
    """The security options; None if none were given. UsageError for options that exclude each other."""
    token = getattr(arguments, "token", None) or os.environ.get(TOKEN)
    user = getattr(arguments, "user", None)
    trust = getattr(arguments, "tls_trust_certs", None) or os.environ.get(TRUST_CERTS)
    certificate = getattr(arguments, "tls_cert", None)
    key = getattr(arguments, "tls_key", None)
    is_insecure = getattr(arguments, "tls_allow_insecure", False)
    if user and getattr(arguments, "token", None):
        raise UsageError("--token and --user are two ways to say who you are: give one")
    if (certificate is None) != (key is None):
        raise UsageError("--tls-cert and --tls-key belong together: give both")
    if not (token or user or trust or certificate or is_insecure):
        return None
    # Loaded only where it is needed: most commands are done before the client would be loaded.
    from anabranch.client.security import Security

    return Security(
        token=None if user else token,
        username=user,
        password=(getattr(arguments, "password", None) or _password(user)) if user else None,
        tls_trust_certs_file=trust,
        tls_certificate_file=certificate,
        tls_key_file=key,
        tls_allow_insecure=is_insecure,
    )


def _password(user: str) -> str:
    if (known := os.environ.get(PASSWORD)) is not None:
        return known
    if not sys.stdin.isatty():
        raise UsageError(f"--user {user}: put the password into ${PASSWORD}")
    from getpass import getpass

    return getpass(f"Password of {user}: ")


def connect_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The security options for `anabranch.connect`."""
    security = security_of(arguments)
    if security is None:
        return {}
    names = (
        "token",
        "username",
        "password",
        "tls_trust_certs_file",
        "tls_certificate_file",
        "tls_key_file",
        "tls_allow_insecure",
    )
    return {name: getattr(security, name) for name in names}


def spark_options(arguments: argparse.Namespace, given: Iterable[str]) -> dict[str, str]:
    """The security options for the Spark source, without those already `given` as its options. Every worker reads the
    files, a token's too, from its own disk."""
    security = security_of(arguments)
    if security is None:
        return {}
    found = {
        "authToken": security.token,
        "username": security.username,
        "password": security.password,
        "tlsTrustCertsFile": security.tls_trust_certs_file,
        "tlsCertificateFile": security.tls_certificate_file,
        "tlsKeyFile": security.tls_key_file,
        "tlsAllowInsecure": "true" if security.tls_allow_insecure else None,
    }
    taken = {name.lower() for name in given}
    proofs = {"authtoken", "username", "password"}
    if taken & proofs:
        taken |= proofs
    return {n: value for n, value in found.items() if isinstance(value, str) and n.lower() not in taken}
