"""One HTTP connection: uvicorn's own, with limits against peers that send or read too slowly.

A request must arrive completely, head and body, within the time that a silent connection has; an answer must be read
within that time too. The number of connections from one address is limited. A request that two servers could read in
two ways is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from anabranch.broker.admin.http.request import CERTIFICATE
from anabranch.broker.connection.limits import ConnectionLimits
from anabranch.broker.errors import NotAllowedError

_REFUSAL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b'Content-Length: %d\r\n\r\n{"reason":"%s"}'
)


@dataclass(frozen=True, slots=True)
class HttpLimits:
    connections: ConnectionLimits
    silence_max_s: float


class Http(H11Protocol):
    """Passes the certificate that TLS has verified to the application; ASGI itself has no field for it.

    It does not use uvicorn's default parser, which loses the body of a request that offers HTTP/2, as Java's own HTTP
    client does.
    """

    limits: HttpLimits  # Set by `protocol_class`: uvicorn constructs its connections itself.

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._host = ""
        # One runs until a request is complete, the other while the peer does not read its answer.
        self._request_due: asyncio.TimerHandle | None = None
        self._answer_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if certificate := transport.get_extra_info("peercert"):
            self.app = _with_certificate(self.app, certificate)
        peer = transport.get_extra_info("peername")
        self._host = str(peer[0]) if peer else ""
        self._watch()
        try:
            self.limits.connections.opened(self._host)
        except NotAllowedError as error:
            text = str(error).encode()
            transport.write(_REFUSAL % (len(text) + 13, text))
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.limits.connections.closed(self._host)
        for timer in (self._request_due, self._answer_due):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():
            super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        self._part_if_unclear()
        self._watch()

    def _part_if_unclear(self) -> None:
        """If a request has a body that it did not declare, as Node sends one with DELETE, the connection is closed
        after it.

        The answer says so, before the client sends another request, which would begin with the rest of this one."""
        rest, _ = self.conn.trailing_data
        if self.conn.their_state is h11.DONE and rest and not rest[:1].isalpha():
            self.scope["headers"] = [*self.scope["headers"], (b"connection", b"close")]

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            # The request was answered before all of it had arrived, and its rest is wrong.
            self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Says nothing: an offer of another protocol is declined by answering in this one. Java's own client makes one
        with every request."""

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def _watch(self) -> None:
        is_due = self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and not self.transport.is_closing()
        if is_due and self._request_due is None:
            self._request_due = self.loop.call_later(self.limits.silence_max_s, self.transport.abort)
        elif not is_due and self._request_due is not None:
            self._request_due.cancel()
            self._request_due = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._answer_due = self.loop.call_later(self.limits.silence_max_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._answer_due is not None:
            self._answer_due.cancel()
            self._answer_due = None


def protocol_class(limits: HttpLimits) -> type[Http]:
    return type("LimitedHttp", (Http,), {"limits": limits})


def _with_certificate(app: Any, certificate: Mapping[str, Any]) -> Any:
    async def called(scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        await app({**scope, CERTIFICATE: certificate}, receive, send)

    return called
