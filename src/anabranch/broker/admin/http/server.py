"""Serves the REST on sockets that already listen, inside the broker's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Generator, Sequence

import uvicorn

from anabranch.broker.admin.http.app import RestApp
from anabranch.broker.admin.http.protocol import HttpLimits, protocol_class
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.connection.accepting import Acceptor, descriptors_for_connections
from anabranch.broker.connection.limits import ConnectionLimits
from anabranch.broker.security.tls import Certificates

STOP_MAX_S = 3

Listening = tuple[socket.socket, Certificates | None]


class _Server(uvicorn.Server):
    """Reports when it serves, and accepts connections as the broker does. Signals of the system belong to the broker,
    which ends this server itself.
    """

    def __init__(self, config: uvicorn.Config, tls: Certificates | None) -> None:
        super().__init__(config)
        self.is_serving = asyncio.Event()
        self._tls = tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        end = descriptors_for_connections()
        # `shutdown` closes these.
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


def _server(app: RestApp, tls: Certificates | None, connections_max: int, limits: HttpLimits) -> _Server:
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
        # A proxy names the caller by X-Original-Principal; addresses are those of connections.
        proxy_headers=False,
        server_header=False,
    )
    config.load()
    return _Server(config, tls)


@contextlib.asynccontextmanager
async def serve(app: RestApp, config: BrokerConfig, listening: Sequence[Listening]) -> AsyncIterator[None]:
    """Serves from entry to exit, on sockets with TLS or without; requests under way get a moment to finish."""
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
