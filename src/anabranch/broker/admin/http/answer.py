"""One answer of the REST: a status, headers, and a body, either complete or in pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
_BODILESS: Final = (204, 304)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    body: bytes | AsyncIterator[bytes] = b""
    media_type: str = ""
    status: int = 200
    # Sent in the case they have here: Java's admin client compares some of them by case.
    headers: Mapping[str, str] = field(default_factory=dict)

    async def whole(self) -> bytes:
        """The body in one piece."""
        return self.body if isinstance(self.body, bytes) else b"".join([piece async for piece in self.body])

    async def send(self, send: Send) -> None:
        headers = [(name.encode(), value.encode("latin-1")) for name, value in self.headers.items()]
        if self.media_type:
            headers.append((b"content-type", self.media_type.encode()))
        if isinstance(self.body, bytes) and self.status not in _BODILESS:
            headers.append((b"content-length", str(len(self.body)).encode()))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        if isinstance(self.body, bytes):
            await send({"type": "http.response.body", "body": self.body})
            return
        async for piece in self.body:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpAnswer:
    return HttpAnswer(msgspec.json.encode(value), JSON, status, headers or {})


def text_answer(text: str) -> HttpAnswer:
    return HttpAnswer(text.encode(), TEXT)


def refusal(status: int, text: str, headers: Mapping[str, str] | None = None) -> HttpAnswer:
    """A refusal with Pulsar's body."""
    return json_answer({"reason": text}, status, headers)


NO_CONTENT: Final = HttpAnswer(status=204)
