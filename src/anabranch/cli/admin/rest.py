"""The admin REST as the command line needs it, on the standard library's HTTP client."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from anabranch.cli.render.waiting import waiting_for
from anabranch.errors import AnabranchError
from anabranch.model.redirects import UnsafeRedirect, redirected

if TYPE_CHECKING:
    from anabranch.client.security import Security

ANSWER_MAX_S = 60.0
REDIRECTS_MAX = 5


# The user's credentials. A process runs one command and has one user.
_asking: Security | None = None


# Whether a user at a terminal is told that an answer takes its time.
_tells_waiting = False


def ask_as(security: Security | None, *, tells_waiting: bool = False) -> None:
    """Sets the credentials and the trusted authorities of every later call."""
    global _asking, _tells_waiting
    _asking, _tells_waiting = security, tells_waiting


class RestRefused(AnabranchError):
    """The broker's reason, or the reason why the broker could not be reached."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def call(base: str, method: str, path: str, body: Any = None, *, timeout: float = ANSWER_MAX_S) -> Any:
    """The answer: JSON if possible, else text; None if it is empty."""
    _, data = fetch(base, path, method=method, body=body, timeout=timeout)
    text = data.decode()
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text


def fetch(
    base: str, path: str, *, method: str = "GET", body: Any = None, timeout: float = ANSWER_MAX_S
) -> tuple[Mapping[str, str], bytes]:
    """Headers and body of the answer, unchanged."""
    _check(base)
    data = None if body is None else json.dumps(body).encode()
    url = base.rstrip("/") + path
    for _ in range(REDIRECTS_MAX):
        headers = {"Content-Type": "application/json"} | (_asking.headers() if _asking is not None else {})
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            told = waiting_for(url.removesuffix(path)) if _tells_waiting else nullcontext()
            with told, _opener(url).open(request, timeout=timeout) as answer:
                return answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            if error.code == 307 and error.headers["Location"]:
                try:
                    url = redirected(url, error.headers["Location"])
                except UnsafeRedirect as unsafe:
                    raise RestRefused(307, str(unsafe)) from None
                continue
            raise RestRefused(error.code, _reason(error)) from None
        except (OSError, http.client.HTTPException) as error:
            raise _unreachable(url.removesuffix(path), error, timeout) from None
    raise RestRefused(307, f"{base} and the brokers it names redirect the request in circles; try again")


class _StayHere(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the library would follow those of GET only, and wherever they lead, with the credentials."""

    def redirect_request(self, *args: Any, **options: Any) -> None:
        return None


def _opener(url: str) -> urllib.request.OpenerDirector:
    tls = _asking.tls() if _asking is not None and url.startswith("https:") else None
    return urllib.request.build_opener(_StayHere, urllib.request.HTTPSHandler(context=tls))


def _check(base: str) -> None:
    try:
        parts = urllib.parse.urlsplit(base)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # The port is no number.
        is_good = False
    if not is_good:
        raise RestRefused(0, f"{base!r} is no admin URL: expected http://host:port")


def _unreachable(where: str, error: Exception, timeout: float) -> RestRefused:
    cause = getattr(error, "reason", None) or error
    what = f"cannot reach {where}: {getattr(cause, 'strerror', None) or cause}"
    match cause:
        case TimeoutError():
            return RestRefused(0, f"no answer from {where} within {timeout:g} s; is the broker in trouble?")
        case ConnectionRefusedError():
            return RestRefused(
                0,
                f"{what}; is a broker running there? `anabranch standalone` starts one, --admin-url names another",
            )
        case socket.gaierror():
            return RestRefused(0, f"{what}; is the host's name in --admin-url right?")
        case ssl.SSLCertVerificationError():
            is_name = "mismatch" in cause.verify_message
            fix = "use a name that it has" if is_name else "name its authority with --tls-trust-certs"
            text = cause.verify_message.rstrip(".")
            return RestRefused(0, f"{where} shows a certificate that is not trusted: {text}; {fix}")
        case ssl.SSLError():
            return RestRefused(0, f"{what}; is that the port for https, and is its certificate trusted here?")
        case http.client.RemoteDisconnected():
            other = "" if where.startswith("https:") else ", or is that the port for https"
            return RestRefused(
                0, f"{where} ended the connection without an answer; is the broker stopping{other}?"
            )
        case http.client.HTTPException():
            # The answer belongs to another protocol and must not be printed.
            return RestRefused(
                0,
                f"{where} does not speak HTTP: --admin-url names the port of HTTP (8080), not the binary one (6650)",
            )
    return RestRefused(0, what)


def _reason(error: urllib.error.HTTPError) -> str:
    text = error.read().decode(errors="replace")
    try:
        return str(json.loads(text)["reason"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {error.code}: {text[:200].strip() or error.reason}"
