"""The admin REST over the standard library's HTTP client: requests, redirects between brokers, refusals with reasons.

Every call makes a connection of its own and waits for the answer in the calling thread.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from anabranch.errors import AnabranchError
from anabranch.model.names import InvalidName
from anabranch.model.redirects import UnsafeRedirect, redirected

if TYPE_CHECKING:
    from anabranch.client.security import Security

ANSWER_MAX_S: Final = 60.0
REDIRECTS_MAX: Final = 5


class RestRefused(AnabranchError):
    """The broker's reason, or the reason why the broker could not be reached.

    `status` is that of HTTP: 404 where something does not exist, 409 where it exists already, 401 or 403 without the
    right; 0 if there was no answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        # The broker is busy, is moving the topic, or could not be reached.
        self.retryable = status in (0, 307, 429, 500, 503)  # type: ignore[misc]  # It depends on the answer.


@dataclass(frozen=True, slots=True)
class Words:
    """What the caller's user calls things, for the advice in refusals."""

    url: str
    authorities: str


IN_PYTHON: Final = Words("the URL", "tls_trust_certs_file")


def path_part(text: str) -> str:
    """The name as one word of a path. InvalidName for those that paths leave out: the request would be about all that
    there is above, every subscription instead of one."""
    if text in ("", ".", ".."):
        raise InvalidName(f"{text!r} is no name that a request can have in its path")
    return urllib.parse.quote(text, safe="")


def call(
    base: str,
    method: str,
    path: str,
    body: Any = None,
    *,
    timeout: float = ANSWER_MAX_S,
    security: Security | None = None,
    words: Words = IN_PYTHON,
) -> Any:
    """The answer: JSON if possible, else text; None if it is empty."""
    _, data = fetch(base, path, method=method, body=body, timeout=timeout, security=security, words=words)
    text = data.decode()
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text


def fetch(
    base: str,
    path: str,
    *,
    method: str = "GET",
    body: Any = None,
    timeout: float = ANSWER_MAX_S,
    security: Security | None = None,
    words: Words = IN_PYTHON,
) -> tuple[Mapping[str, str], bytes]:
    """Headers and body of the answer, unchanged."""
    _check(base)
    data = None if body is None else json.dumps(body).encode()
    url = base.rstrip("/") + path
    for _ in range(REDIRECTS_MAX):
        headers = {"Content-Type": "application/json"} | (security.headers() if security is not None else {})
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with _opener(url, security).open(request, timeout=timeout) as answer:
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
            raise _unreachable(url.removesuffix(path), error, timeout, words) from None
    raise RestRefused(307, f"{base} and the brokers it names redirect the request in circles; try again")


class _StayHere(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the library would follow those of GET only, and wherever they lead, with the credentials."""

    def redirect_request(self, *args: Any, **options: Any) -> None:
        return None


def _opener(url: str, security: Security | None) -> urllib.request.OpenerDirector:
    tls = security.tls() if security is not None and url.startswith("https:") else None
    return urllib.request.build_opener(_StayHere, urllib.request.HTTPSHandler(context=tls))


def _check(base: str) -> None:
    try:
        parts = urllib.parse.urlsplit(base)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # The port is no number.
        is_good = False
    if not is_good:
        raise RestRefused(0, f"{base!r} is no admin URL: expected http://host:port")


def _unreachable(where: str, error: Exception, timeout: float, words: Words) -> RestRefused:
    cause = getattr(error, "reason", None) or error
    what = f"cannot reach {where}: {getattr(cause, 'strerror', None) or cause}"
    match cause:
        case TimeoutError():
            return RestRefused(0, f"no answer from {where} within {timeout:g} s; is the broker in trouble?")
        case ConnectionRefusedError():
            return RestRefused(
                0,
                f"{what}; is a broker running there? `anabranch standalone` starts one, {words.url} names another",
            )
        case socket.gaierror():
            return RestRefused(0, f"{what}; is the host's name in {words.url} right?")
        case ssl.SSLCertVerificationError():
            is_name = "mismatch" in cause.verify_message
            fix = "use a name that it has" if is_name else f"name its authority with {words.authorities}"
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
                f"{where} does not speak HTTP: {words.url} names the port of HTTP (8080), not the binary one (6650)",
            )
    return RestRefused(0, what)


def _reason(error: urllib.error.HTTPError) -> str:
    text = error.read().decode(errors="replace")
    try:
        return str(json.loads(text)["reason"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {error.code}: {text[:200].strip() or error.reason}"
