"""The connections of one client object, by broker: opened on request, forgotten when lost, looked up by topic.

Nothing is retried here: `attachment` does that. An outage of some seconds is logged, since callers only wait.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from anabranch.client.errors import AccessFailed, ConnectionLost
from anabranch.client.security import NOBODY, PLAIN_SCHEME, TLS_SCHEME, Security
from anabranch.client.transport.connection import ClientConnection
from anabranch.wire import pulsar_pb2 as pb

log = logging.getLogger(__name__)

C = pb.BaseCommand

LOOKUPS_MAX = 20
# A broker that answers pings but not a request for so long has lost it: the connection is closed.
REQUEST_MAX_S = 30.0
# The limit for a broker that does not accept the last bytes.
CLOSE_MAX_S = 2.0
# A broker that restarts is away for less.
TOLD_AWAY_S = 3.0


class Connections:
    """`service_url` may name several brokers, `pulsar://one:6650,two:6650`: they are tried in turn."""

    def __init__(
        self,
        service_url: str,
        security: Security = NOBODY,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        scheme, _, hosts = service_url.partition("://")
        self.security = security
        self.has_tls = scheme == TLS_SCHEME
        self._service = [f"{scheme}://{host.strip()}" for host in hosts.split(",")]
        self._turn = 0
        self._open: dict[str, asyncio.Task[ClientConnection]] = {}
        # Brokers have told that they are reached through the service URL, and named in CONNECT.
        self._is_through_service = False
        self._is_closed = False
        self._clock = clock
        # Since when no connection could be opened, and whether the log says so.
        self._away_since: float | None = None
        self._is_told = False

    async def to(self, url: str) -> ClientConnection:
        """An open connection to that broker; raises ConnectionLost if it cannot be opened."""
        if self._is_closed:
            raise ConnectionLost("the client is closed")
        if self.has_tls and not url.startswith(f"{TLS_SCHEME}://"):
            # Credentials would go there in clear text.
            raise ConnectionLost(f"{url} has no TLS, and this client connects with TLS only")
        opening = self._open.get(url)
        if opening is None or (opening.done() and not _is_usable(opening)):
            # Awaited by all concurrent callers, and by `close`.
            through = self._service[self._turn] if self._is_through_service else ""
            opening = self._open[url] = asyncio.create_task(
                self._opened(url, "" if url in self._service else through)
            )
        connection = await asyncio.shield(opening)
        if self._is_closed:
            connection.abort()
            raise ConnectionLost("the client is closed")
        return connection

    async def _opened(self, url: str, through: str) -> ClientConnection:
        try:
            connection = await ClientConnection.open(url, self.security, through=through)
        except ConnectionLost as error:
            # What a broker refuses its client's user is no outage.
            if not isinstance(error, AccessFailed):
                self._failed(error)
            raise
        if self._is_told:
            log.warning("connected to %s", url)
        self._away_since, self._is_told = None, False
        return connection

    def _failed(self, error: ConnectionLost) -> None:
        now = self._clock()
        if self._away_since is None:
            self._away_since = now
        elif not self._is_told and now - self._away_since >= TOLD_AWAY_S:
            self._is_told = True
            log.warning("%s; trying again", error)

    async def service(self) -> ClientConnection:
        """A connection to any broker of the service; after a failure the next call tries the next broker."""
        try:
            connection = await self.to(self._service[self._turn])
            self._is_through_service = self._is_through_service or connection.has_one_port
            return connection
        except Exception:
            self._turn = (self._turn + 1) % len(self._service)
            raise

    def choose(self, plain: str, tls: str) -> str:
        """The one of a broker's two addresses to use: a client that began with TLS stays with TLS."""
        return tls if self.has_tls else plain

    def assigned(self, close: pb.CommandCloseProducer | pb.CommandCloseConsumer) -> str:
        """The broker that serves the topic of a producer or consumer now, as the broker that closed it says; "" if it
        names none that this client can use."""
        url = self.choose(close.assignedBrokerServiceUrl, close.assignedBrokerServiceUrlTls)
        scheme = TLS_SCHEME if self.has_tls else PLAIN_SCHEME
        return url if url.startswith(f"{scheme}://") else ""

    async def owner(self, topic: str) -> ClientConnection:
        """A connection to the broker that serves a classic topic or a segment, by lookup."""
        connection = await self.service()
        authoritative = False
        for _ in range(LOOKUPS_MAX):
            answer = await ask(connection, C.LOOKUP, "lookupTopic", topic=topic, authoritative=authoritative)
            self._is_through_service = self._is_through_service or answer.proxy_through_service_url
            if url := self.choose(answer.brokerServiceUrl, answer.brokerServiceUrlTls):
                connection = await self.to(url)
            if answer.response == pb.CommandLookupTopicResponse.Connect:
                return connection
            authoritative = answer.authoritative
        raise ConnectionLost(f"{LOOKUPS_MAX} lookups did not find the owner of {topic}")

    async def close(self) -> None:
        self._is_closed = True
        for opening in self._open.values():
            opening.cancel()
        for result in await asyncio.gather(*self._open.values(), return_exceptions=True):
            if isinstance(result, ClientConnection):
                await result.close_within(CLOSE_MAX_S)
        self._open.clear()

    def abort(self) -> None:
        """Drops every connection without closing it properly."""
        self._is_closed = True
        for opening in self._open.values():
            opening.cancel()
            if _is_usable(opening):
                opening.result().abort()
        self._open.clear()


def _is_usable(opening: asyncio.Task[ClientConnection]) -> bool:
    return (
        opening.done()
        and not opening.cancelled()
        and opening.exception() is None
        and not opening.result().is_closed
    )


async def ask(connection: ClientConnection, kind: int, field: str, **fields: Any) -> Any:
    """Like `connection.request`, but drops the connection if the broker does not answer."""
    try:
        async with asyncio.timeout(REQUEST_MAX_S):
            return await connection.request(kind, field, **fields)
    except TimeoutError:
        connection.abort()
        raise ConnectionLost(f"no answer to {field} within {REQUEST_MAX_S:.0f} s") from None
