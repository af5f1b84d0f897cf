"""One request of the REST, as its handler sees it: its caller, the names in its path, its query, headers and body.

Bodies are read with any content type: admin clients send a bare `4`, `true`, an object or nothing.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import cached_property
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs

import msgspec

from anabranch.broker.admin.elsewhere import InnerRequest
from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.names import PathNames
from anabranch.broker.admin.services import AdminServices
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
T = TypeVar("T")

BODY_BYTES_MAX: Final = 1 << 20
# Reading takes time for each value: a larger body must consist of values that have this many bytes on average,
_LARGE_VALUE_BYTES: Final = 16
# and nulls, which take another pass, are left out of bodies up to this size.
_NULLS_BYTES_MAX: Final = 64 << 10
# The certificate that TLS has verified, as `ssl` returns it: ASGI itself has no field for it.
CERTIFICATE: Final = "anabranch.certificate"
_SLASHES: Final = re.compile(rb"/+")


class CallerGone(Exception):
    """The caller closed the connection before its request was complete: no answer is sent."""


class HttpRequest:
    # Set once the route is found and the caller is known.
    names: PathNames
    role: str
    # Whether another broker asks, for a caller that it has identified: the answer is about this broker alone.
    is_inner: bool = False

    def __init__(self, scope: Mapping[str, Any], receive: Receive, services: AdminServices) -> None:
        self.scope = scope
        self.services = services
        self.method: str = scope["method"]
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        # Doubled and trailing slashes are dropped, as Pulsar's own server does.
        path = _SLASHES.sub(b"/", raw.partition(b"?")[0])
        self.path = (path.rstrip(b"/") or b"/").decode("latin-1")
        self._receive = receive
        self._body: bytes | None = None

    @cached_property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(self.scope["query_string"].decode("latin-1"), keep_blank_values=True)

    def header(self, name: bytes) -> str:
        """The header with that name in lower case; empty if there is none."""
        for known, value in self.scope["headers"]:
            if known == name:
                return str(value.decode("latin-1"))
        return ""

    def headers(self, name: bytes) -> int:
        """How many headers have that name."""
        return sum(known == name for known, _ in self.scope["headers"])

    @property
    def is_secure(self) -> bool:
        """Whether it came by TLS."""
        return bool(self.scope.get("scheme") == "https")

    def names_topic(self, topic: TopicName) -> bool:
        """Whether the request is about that very topic, and not about a partitioned topic or a namespace with it."""
        try:
            return self.names.topic == topic
        except (AttributeError, KeyError, AnabranchError):
            return False

    def at(self, web_url: str) -> str:
        """The address of the same request at another broker."""
        path = self.scope["raw_path"].partition(b"?")[0].decode("latin-1")
        query = self.scope["query_string"].decode("latin-1")
        return f"{web_url.rstrip('/')}{path}{'?' if query else ''}{query}"

    async def read(self, bytes_max: int) -> bytes:
        """The body, each time it is asked for."""
        if self._body is None:
            self._body = await self._read(bytes_max)
        return self._body

    async def _read(self, bytes_max: int) -> bytes:
        data = bytearray()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise CallerGone
            data += message.get("body", b"")
            if len(data) > bytes_max:
                raise RestError(413, f"The request body is over {bytes_max} bytes")
            if not message.get("more_body", False):
                return bytes(data)


def inner_request(asked: InnerRequest, services: AdminServices) -> HttpRequest:
    """A request that another broker makes."""
    message = {"type": "http.request", "body": asked.body, "more_body": False}

    async def receive() -> MutableMapping[str, Any]:
        return message

    scope = {
        "type": "http",
        "method": asked.method,
        "path": asked.path,
        "raw_path": asked.path.encode("latin-1"),
        "query_string": asked.query.encode("latin-1"),
        "headers": [],
    }
    made = HttpRequest(scope, receive, services)
    made.role = asked.role
    made.is_inner = True
    return made


async def body(
    request: HttpRequest, kind: type[T], default: T | None = None, *, bytes_max: int = BODY_BYTES_MAX
) -> T:
    """The request's JSON as `kind`; `default` for an empty body or null. Unset fields may be sent as null, except in
    very large bodies."""
    value: T = await body_of(request, kind, default, bytes_max=bytes_max)
    return value


async def body_of(
    request: HttpRequest,
    kind: Any,
    default: Any = None,
    *,
    is_nothing_ok: bool = False,
    bytes_max: int = BODY_BYTES_MAX,
) -> Any:
    """As `body`, for a union, which is no type to the type checker. Without a body `default`, if that is allowed."""
    data = await request.read(bytes_max)
    if not data.strip() or data.strip() == b"null":
        if default is None and not is_nothing_ok:
            raise RestError(400, "The request has no body")
        return default
    if len(data) > BODY_BYTES_MAX and data.count(b",") > len(data) // _LARGE_VALUE_BYTES:
        raise RestError(400, f"A body of over {BODY_BYTES_MAX} bytes may not consist of very short values")
    try:
        if len(data) <= _NULLS_BYTES_MAX and b"null" in data:
            return msgspec.convert(_without_nulls(msgspec.json.decode(data)), kind, strict=False)
        # Stops at the first value of the wrong kind, and makes no objects of what it skips.
        return msgspec.json.decode(data, type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RestError(400, f"Invalid request body: {error}") from None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value
