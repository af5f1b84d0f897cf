"""Calls of a broker's admin REST, for code that waits for its answers anyway. Retries are its callers' business."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, urljoin

from anabranch.client.security import NOBODY, Security
from anabranch.model.names import TopicName

REDIRECTS_MAX: Final = 5


class NotAnswered(Exception):
    """No answer came. Asking again may help."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    location: str = ""

    @property
    def reason(self) -> str:
        """What an error answer says."""
        try:
            return str(json.loads(self.body)["reason"])
        except (ValueError, KeyError, TypeError):
            return self.body[:200].decode(errors="replace")


def call(
    method: str, url: str, body: object = None, *, security: Security = NOBODY, timeout_s: float = 30.0
) -> Answer:
    """The last answer, whatever its status, of the broker that redirects lead to. AccessFailed without a token."""
    for _ in range(REDIRECTS_MAX):
        answer = _send(method, url, body, security, timeout_s)
        if answer.status not in (307, 308) or not answer.location:
            return answer
        url = urljoin(url, answer.location)
    raise NotAnswered(f"{REDIRECTS_MAX} redirects led nowhere")


def _send(method: str, url: str, body: object, security: Security, timeout_s: float) -> Answer:
    data = None if body is None else json.dumps(body).encode()
    headers = security.headers() | ({} if data is None else {"Content-Type": "application/json"})
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with _opener(security if url.startswith("https:") else NOBODY).open(
            request, timeout=timeout_s
        ) as found:
            return Answer(found.status, found.read(), found.headers.get("Location", ""))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read(), error.headers.get("Location", ""))
    except (OSError, http.client.HTTPException) as error:
        raise NotAnswered(f"{url}: {getattr(error, 'reason', None) or error}") from None


class _StayHere(urllib.request.HTTPRedirectHandler):
    """Redirects are followed above, with the method and the body that they came with."""

    def redirect_request(self, *args: Any, **options: Any) -> None:
        return None


@lru_cache(maxsize=8)
def _opener(security: Security) -> urllib.request.OpenerDirector:
    # Reading the authorities takes milliseconds: once is enough.
    tls: ssl.SSLContext = security.tls()
    return urllib.request.build_opener(_StayHere, urllib.request.HTTPSHandler(context=tls))


def topic_path(topic: str) -> str:
    """`domain/tenant/namespace/name` of a topic or a segment, whose own slashes are part of its name."""
    name = TopicName.parse(topic)
    local = str(name).partition(f"{name.namespace}/")[2]
    return f"{name.domain.value}/{name.namespace}/{quote(local, safe='')}"
