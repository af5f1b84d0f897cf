"""Serves the admin application on sockets that already listen, inside the broker's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Generator, Sequence

import uvicorn
from fastapi import FastAPI

from anabranch.broker.accepting import Acceptor, descriptors_for_connections
from anabranch.broker.admin.app import create_app
from anabranch.broker.admin.http import HttpLimits, protocol_class
from anabranch.broker.broker import Broker
from anabranch.broker.connection_limits import ConnectionLimits
from anabranch.broker.tls import Certificates

STOP_MAX_S = 3

Listening = tuple[socket.socket, Certificates | None]


class _Server(uvicorn.Server):
    """Says when it serves, and takes its connections in as the broker does. Signals belong to the broker, which ends
    this server itself.
    """

    def __init__(self, config: uvicorn.Config, tls: Certificates | None) -> None:
        super().__init__(config)
        self.is_serving = asyncio.Event()
        self._tls = tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        end = descriptors_for_connections()
        # What `shutdown` closes.
        self.servers = [Acceptor(sock, self._connection, end, self._tls) for sock in sockets or ()]  # type: ignore[misc]
        self.started = True
        self.is_serving.set()

    def _connection(self) -> asyncio.BaseProtocol:
        made: asyncio.BaseProtocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


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


def _server(app: FastAPI, tls: Certificates | None, connections_max: int, limits: HttpLimits) -> _Server:
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        http=protocol_class(limits),
        limit_concurrency=connections_max,
        timeout_graceful_shutdown=STOP_MAX_S,
        # Whoever sits before us says who calls by X-Original-Principal, and addresses are those of connections.
        proxy_headers=False,
        server_header=False,
    )
    config.load()
    return _Server(config, tls)


@contextlib.asynccontextmanager
async def serve_admin(broker: Broker, listening: Sequence[Listening]) -> AsyncIterator[None]:
    """Serving from entry to exit, on sockets with TLS or without; requests under way get a moment to finish."""
    app = await asyncio.to_thread(_application, broker)
    config = broker.config
    most = config.max_http_server_connections
    per_host = ConnectionLimits(per_host_max=config.broker_max_connections_per_ip)
    limits = HttpLimits(per_host, config.http_server_idle_timeout / 1000)
    servers = [(_server(app, tls, most, limits), sock) for sock, tls in listening]
    tasks = [asyncio.create_task(server.serve([sock])) for server, sock in servers]  # Awaited below.
    try:
        for server, _ in servers:
            await server.is_serving.wait()
        yield
    finally:
        for server, _ in servers:
            server.should_exit = True
        await asyncio.gather(*tasks)
