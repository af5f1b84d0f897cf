"""Calls of a broker's admin REST, for code that waits for its answers anyway. Retries are left to its callers."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, urlsplit

from anabranch.client.security import NOBODY, Security
from anabranch.client.transport import keep_alive
from anabranch.model.names import TopicName
from anabranch.model.redirects import UnsafeRedirect, redirected

REDIRECTS_MAX: Final = 5


class NotAnswered(Exception):
    """No answer came. Asking again may help."""


@dataclass(frozen=True, slots=True)
class RestAnswer:
    status: int
    body: bytes
    location: str = ""

    @property
    def reason(self) -> str:
        """The reason that an error answer gives."""
        try:
            return str(json.loads(self.body)["reason"])
        except (ValueError, KeyError, TypeError):
            return self.body[:200].decode(errors="replace")


def call(
    method: str, url: str, body: object = None, *, security: Security = NOBODY, timeout_s: float = 30.0
) -> RestAnswer:
    """The last answer, whatever its status, after following redirects. A redirect that must not be followed
    (`model/redirects.py`) is the last answer, with the reason. Raises AccessFailed without a token."""
    for _ in range(REDIRECTS_MAX):
        answer = _send(method, url, body, security, timeout_s)
        if answer.status not in (307, 308) or not answer.location:
            return answer
        try:
            url = redirected(url, answer.location)
        except UnsafeRedirect as error:
            return RestAnswer(answer.status, json.dumps({"reason": str(error)}).encode())
    raise NotAnswered(f"{REDIRECTS_MAX} redirects led nowhere")


def fetched(url: str, headers: Mapping[str, str], timeout_s: float) -> RestAnswer:
    """The answer to a GET without credentials; redirects are not followed. NotAnswered if none came."""
    return _send("GET", url, None, NOBODY, timeout_s, headers)


def _send(
    method: str,
    url: str,
    body: object,
    security: Security,
    timeout_s: float,
    more_headers: Mapping[str, str] | None = None,
) -> RestAnswer:
    data = None if body is None else json.dumps(body).encode()
    headers = security.headers() | ({} if data is None else {"Content-Type": "application/json"})
    headers |= more_headers or {}
    trusted = security if url.startswith("https:") else NOBODY
    try:
        if method == "GET" and not _has_proxy(url):
            response, content = keep_alive.get(url, headers, trusted, lambda: _tls(trusted), timeout_s)
            return RestAnswer(response.status, content, response.headers.get("Location", ""))
        request = urllib.request.Request(url, data, headers, method=method)
        with _opener(trusted).open(request, timeout=timeout_s) as found:
            return RestAnswer(found.status, found.read(), found.headers.get("Location", ""))
    except urllib.error.HTTPError as error:
        with error:
            return RestAnswer(error.code, error.read(), error.headers.get("Location", ""))
    except (OSError, http.client.HTTPException) as error:
        raise NotAnswered(f"{url}: {getattr(error, 'reason', None) or error}") from None


def _has_proxy(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(parts.netloc)


class _StayHere(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: `call` does, with the original method and body."""

    def redirect_request(self, *args: Any, **options: Any) -> None:
        return None


@lru_cache(maxsize=8)
def _opener(security: Security) -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(_StayHere, urllib.request.HTTPSHandler(context=_tls(security)))


@lru_cache(maxsize=8)
def _tls(security: Security) -> ssl.SSLContext:
    # Reading the authorities takes milliseconds: once is enough.
    return security.tls()


def topic_path(topic: str) -> str:
    """`domain/tenant/namespace/name` of a topic or a segment, whose own slashes are part of its name."""
    name = TopicName.parse(topic)
    local = str(name).partition(f"{name.namespace}/")[2]
    return f"{name.domain.value}/{name.namespace}/{quote(local, safe='')}"
