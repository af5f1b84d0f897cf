"""Serves the admin application on sockets that already listen, inside the broker's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from anabranch.broker.admin.app import create_app
from anabranch.broker.admin.caller import CERTIFICATE
from anabranch.broker.broker import Broker

STOP_MAX_S = 3

Listening = tuple[socket.socket, ssl.SSLContext | None]


class _Server(uvicorn.Server):
    """Says when it serves. Signals belong to the broker, which ends this server itself."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_serving = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_serving.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class _Http(H11Protocol):
    """Tells the application what TLS has verified of the caller, which ASGI itself has no place for.

    And not the default parser, which loses the body of a request that offers HTTP/2, as Java's own HTTP client does.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if certificate := transport.get_extra_info("peercert"):
            self.app = _with_certificate(self.app, certificate)


def _with_certificate(app: ASGIApp, certificate: Mapping[str, Any]) -> ASGIApp:
    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, CERTIFICATE: certificate}, receive, send)

    return called


def _application(broker: Broker) -> FastAPI:
    """The application, made in a thread while publishes go on: its hundreds of routes take a third of a second.

    It has answered a request, too: left to the first caller, what that still loads would stop the event loop.
    """
    app = create_app(broker)
    scope = {"type": "http", "method": "GET", "path": "/status.html", "query_string": b"", "headers": []}

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(message: object) -> None: ...

    asyncio.run(app(scope, receive, send))
    return app


def _server(app: FastAPI, tls: ssl.SSLContext | None, connections_max: int) -> _Server:
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        http=_Http,
        limit_concurrency=connections_max,
        timeout_graceful_shutdown=STOP_MAX_S,
    )
    config.load()
    config.ssl = tls
    return _Server(config)


@contextlib.asynccontextmanager
async def serve_admin(broker: Broker, listening: Sequence[Listening]) -> AsyncIterator[None]:
    """Serving from entry to exit, on sockets with TLS or without; requests under way get a moment to finish."""
    app = await asyncio.to_thread(_application, broker)
    most = broker.config.max_http_server_connections
    servers = [(_server(app, tls, most), sock) for sock, tls in listening]
    tasks = [asyncio.create_task(server.serve([sock])) for server, sock in servers]  # Awaited below.
    try:
        for server, _ in servers:
            await server.is_serving.wait()
        yield
    finally:
        for server, _ in servers:
            server.should_exit = True
        await asyncio.gather(*tasks)
